//! The form with the filter of the audit page. It is a plain GET form; a script applies it without a full load.

use leptos::{ev, html, prelude::*};
use leptos_router::{NavigateOptions, hooks::use_navigate};
use milvaion_api::audit::{AuditFilter, AuditResult};

use super::filter::{OBJECT_MAX_CHARS, WHO_MAX_CHARS, is_narrowed, join, parameters};
use crate::components::{
    audit_list::actions::{ACTION_GROUPS, action_words},
    icon::Icon,
    input_form::capitalized,
};

/// The controls of the form.
#[derive(Clone, Copy)]
struct Controls {
    who: NodeRef<html::Input>,
    action: NodeRef<html::Select>,
    object: NodeRef<html::Input>,
    result: NodeRef<html::Select>,
    since: NodeRef<html::Input>,
    until: NodeRef<html::Input>,
}

impl Controls {
    /// Returns the values by parameter, as they were typed: the page checks them.
    fn values(self) -> [(&'static str, String); 6] {
        let typed = |node: NodeRef<html::Input>| node.get_untracked().map(|node| node.value()).unwrap_or_default();
        let chosen = |node: NodeRef<html::Select>| node.get_untracked().map(|node| node.value()).unwrap_or_default();
        [
            ("who", typed(self.who)),
            ("action", chosen(self.action)),
            ("object", typed(self.object)),
            ("result", chosen(self.result)),
            ("since", typed(self.since)),
            ("until", typed(self.until)),
        ]
    }

    /// Sets all values once the controls exist.
    fn set(self, values: &[(&'static str, String); 6]) {
        let [who, action, object, result, since, until] = values;
        for (node, (_, value)) in [(self.who, who), (self.object, object), (self.since, since), (self.until, until)] {
            if let Some(node) = node.get() {
                node.set_value(value);
            }
        }
        for (node, (_, value)) in [(self.action, action), (self.result, result)] {
            if let Some(node) = node.get() {
                node.set_value(value);
            }
        }
    }
}

/// The filter form.
#[component]
pub fn AuditFilterForm(
    /// The filter of the list.
    filter: AuditFilter,
    /// True if the form keeps what was typed; false if the list was filtered anew.
    keeps_form: bool,
) -> impl IntoView {
    let controls = Controls {
        who: NodeRef::new(),
        action: NodeRef::new(),
        object: NodeRef::new(),
        result: NodeRef::new(),
        since: NodeRef::new(),
        until: NodeRef::new(),
    };
    let values = parameters(&filter);
    let [(_, who), _, (_, object), _, (_, since), (_, until)] = values.clone();
    // The browser keeps what was typed while the page loaded, so the first list leaves the form alone. A list for another
    // filter is drawn into the same elements, whose attributes no longer decide their values.
    Effect::new(move |_| {
        if !keeps_form {
            controls.set(&values);
        }
    });
    let navigate = use_navigate();
    let apply = move |event: ev::SubmitEvent| {
        event.prevent_default();
        navigate(&join("/audit", &controls.values()), NavigateOptions::default());
    };
    let results: Vec<_> = AuditResult::ALL
        .into_iter()
        .map(|result| view! { <option value=result.slug() selected=filter.result == Some(result)>{result.label()}</option> })
        .collect();
    let clear = is_narrowed(&filter).then(|| {
        view! {
            <a class="btn" href="/audit">
                <Icon name="x"/>
                "Clear filters"
            </a>
        }
    });
    view! {
        <form method="get" action="/audit" class="filterbar" role="search" aria-label="Audit log" on:submit=apply>
            <div class="field grow">
                <label for="who">"User"</label>
                <input
                    type="text"
                    id="who"
                    name="who"
                    value=who
                    placeholder="E-mail address, system or unknown"
                    autocomplete="off"
                    spellcheck="false"
                    maxlength=WHO_MAX_CHARS.to_string()
                    node_ref=controls.who
                />
            </div>
            <div class="field">
                <label for="action">"Action"</label>
                <select id="action" name="action" node_ref=controls.action>
                    <option value="">"Any action"</option>
                    {action_options(&filter.action)}
                </select>
            </div>
            <div class="field grow">
                <label for="object">"Object"</label>
                <input
                    type="text"
                    id="object"
                    name="object"
                    value=object
                    placeholder="Kind and id, as in job:0198…"
                    autocomplete="off"
                    spellcheck="false"
                    maxlength=OBJECT_MAX_CHARS.to_string()
                    node_ref=controls.object
                />
            </div>
            <div class="field">
                <label for="result">"Result"</label>
                <select id="result" name="result" node_ref=controls.result>
                    <option value="">"Any result"</option>
                    {results}
                </select>
            </div>
            <div class="field">
                <label for="since">"First day (UTC)"</label>
                <input type="date" id="since" name="since" value=since node_ref=controls.since/>
            </div>
            <div class="field">
                <label for="until">"Last day (UTC)"</label>
                <input type="date" id="until" name="until" value=until node_ref=controls.until/>
            </div>
            <button type="submit" class="btn">
                <Icon name="filter"/>
                "Apply"
            </button>
            {clear}
        </form>
    }
}

/// Returns the choices of the action, by kind. An action that is not known stays a choice by its name.
fn action_options(chosen: &str) -> impl IntoView + use<> {
    let is_prefix = ACTION_GROUPS.iter().any(|group| group.prefix == Some(chosen));
    let is_unknown = !chosen.is_empty() && !is_prefix && action_words(chosen).is_none();
    let unknown = is_unknown.then(|| {
        let chosen = chosen.to_owned();
        view! { <option value=chosen.clone() selected=true>{chosen.clone()}</option> }
    });
    let groups: Vec<_> = ACTION_GROUPS
        .into_iter()
        .map(|group| {
            let all = group.prefix.map(|prefix| {
                view! { <option value=prefix selected=prefix == chosen>{format!("All of {}", group.label)}</option> }
            });
            let options: Vec<_> = group
                .actions
                .iter()
                .map(|(action, words)| view! { <option value=*action selected=*action == chosen>{*words}</option> })
                .collect();
            view! { <optgroup label=capitalized(group.label)>{all}{options}</optgroup> }
        })
        .collect();
    (unknown, groups)
}
