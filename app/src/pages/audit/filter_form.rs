//! The form with the filter of the audit page. It is a plain GET form; a script applies it without a full load.

use leptos::{ev, html, prelude::*};
use leptos_router::{NavigateOptions, hooks::use_navigate};
use milvaion_api::audit::{AuditFilter, AuditResult};

use super::filter::{NAMES, OBJECT_MAX_CHARS, WHO_MAX_CHARS, is_narrowed, parameters};
use crate::{
    components::{
        audit_list::actions::{ACTION_GROUPS, action_words},
        filter_controls::{DrawnFilter, control_value},
        icon::Icon,
        query_reader::filter_address,
    },
    format::capitalized,
};

/// The filter form.
#[component]
pub fn AuditFilterForm(
    /// The filter of the list.
    filter: AuditFilter,
    /// The values that the form was last drawn with.
    drawn: DrawnFilter,
) -> impl IntoView {
    let form = NodeRef::<html::Form>::new();
    let values = parameters(&filter);
    drawn.show(form, values.to_vec());
    let [(_, who), _, (_, object), _, (_, since), (_, until)] = values;
    let navigate = use_navigate();
    let apply = move |event: ev::SubmitEvent| {
        event.prevent_default();
        // As typed: the page checks them.
        let typed = NAMES.map(|name| (name, control_value(form, name)));
        navigate(&filter_address("/audit", &typed), NavigateOptions::default());
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
        <form
            method="get"
            action="/audit"
            class="filterbar"
            role="search"
            aria-label="Audit log"
            on:submit=apply
            node_ref=form
        >
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
                />
            </div>
            <div class="field">
                <label for="action">"Action"</label>
                <select id="action" name="action">
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
                />
            </div>
            <div class="field">
                <label for="result">"Result"</label>
                <select id="result" name="result">
                    <option value="">"Any result"</option>
                    {results}
                </select>
            </div>
            <div class="field">
                <label for="since">"First day (UTC)"</label>
                <input type="date" id="since" name="since" value=since/>
            </div>
            <div class="field">
                <label for="until">"Last day (UTC)"</label>
                <input type="date" id="until" name="until" value=until/>
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
