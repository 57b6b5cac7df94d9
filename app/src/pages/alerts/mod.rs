//! The alerts: those that fire, and those that are resolved, newest first.
//!
//! The filter is in the address. Rows change in place when an alert fires again or is resolved, so that a focused link
//! stays focused. The rules and the channels have pages of their own beside this one.

pub mod badges;
pub mod channel;
pub mod channel_form;
pub mod channels;
pub mod delete;
pub mod edited_form;
pub mod filter;
pub mod mute;
pub mod rows;
pub mod rule;
pub mod rule_form;
pub mod rules;
pub mod table;

use leptos::{ev, html, prelude::*};
use leptos_meta::Title;
use leptos_router::{NavigateOptions, hooks::use_navigate};
use milvaion_api::{
    alerts::{Alert, AlertFilter},
    permissions::Permission,
};
use milvaion_protocol::id::AlertRuleId;

use self::{
    filter::{STATES, address},
    rows::{REFRESH_DELAY, is_about_alerts},
    table::AlertTable,
};
use crate::{
    api::alerts::{AlertList, CHANNELS_ADDRESS, RULES_ADDRESS, alerts},
    components::{
        empty_state::EmptyState,
        filter_controls::{DrawnFilter, FilterValues, control_value},
        filter_error::{render_filtered, use_filter},
        icon::Icon,
        live_rows::LiveRows,
        page_header::PageHeader,
        session_context::may,
    },
    live::live_page,
};

/// The line below the heading.
const PAGE_SUB: &str = "What needs attention, by the alert rules. An alert is resolved when its condition is over.";

/// A page of the section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlertSection {
    /// The alerts.
    Alerts,
    /// The rules.
    Rules,
    /// The channels.
    Channels,
}

/// The links between the pages of the section. Viewers do not read channels.
#[component]
pub fn AlertTabs(
    /// The page with the links.
    here: AlertSection,
) -> impl IntoView {
    let current = move |section: AlertSection| (here == section).then_some("page");
    let channels = may(Permission::DefineAlert).then(|| {
        view! { <a href=CHANNELS_ADDRESS aria-current=current(AlertSection::Channels)>"Channels"</a> }
    });
    view! {
        <nav class="tabs" aria-label="Alerts, rules and channels">
            <a href="/alerts" aria-current=current(AlertSection::Alerts)>"Alerts"</a>
            <a href=RULES_ADDRESS aria-current=current(AlertSection::Rules)>"Rules"</a>
            {channels}
        </nav>
    }
}

/// `/alerts`. The filter is in the address: `state`, `rule` and `before`.
#[component]
pub fn AlertsPage() -> impl IntoView {
    let drawn = DrawnFilter::new();
    let read = |filter: AlertFilter| async move { Ok((filter.clone(), alerts(filter).await?)) };
    let content = render_filtered(use_filter(filter::parse), read, move |found| {
        let content = match found {
            Ok((filter, list)) => view! { <AlertsContent filter list drawn/> }.into_any(),
            Err(notice) => notice,
        };
        view! {
            <PageHeader title="Alerts" sub=PAGE_SUB/>
            <div class="stack">
                <AlertTabs here=AlertSection::Alerts/>
                {content}
            </div>
        }
        .into_any()
    });
    view! {
        <Title text="Alerts"/>
        {content}
    }
}

#[component]
fn AlertsContent(filter: AlertFilter, list: AlertList, drawn: DrawnFilter) -> impl IntoView {
    let rows = LiveRows::new(list.page, |alert: &Alert| alert.id.to_string());
    let request = filter.clone();
    live_page(
        REFRESH_DELAY,
        move || alerts(request.clone()),
        is_about_alerts,
        move |read: AlertList| rows.apply(read.page, false),
    );
    let is_empty = Memo::new(move |_| rows.is_empty());
    let has_rules = !list.rules.is_empty();
    let empty = empty_state(&filter, has_rules);
    let older = {
        let filter = filter.clone();
        move || {
            let before = rows.next()?.parse().ok()?;
            let href = address(&AlertFilter { before: Some(before), ..filter.clone() });
            Some(view! {
                <a class="btn" href=href rel="next">
                    "Older"
                    <Icon name="chevron-right"/>
                </a>
            })
        }
    };
    let newest = filter.before.is_some().then(|| {
        let href = address(&AlertFilter { before: None, ..filter.clone() });
        view! {
            <a class="btn" href=href rel="prev">
                <Icon name="chevron-left"/>
                "Newest"
            </a>
        }
    });
    let caption = match filter.firing {
        Some(true) => "Firing alerts, newest first",
        Some(false) => "Resolved alerts, newest first",
        None => "All alerts, newest first",
    };
    view! {
        <FilterBar filter rules=list.rules drawn/>
        <div hidden=move || !is_empty.get()>{empty}</div>
        <div id="alerts" hidden=move || is_empty.get()>
            <AlertTable rows caption names_rule=true/>
        </div>
        <nav class="pager" aria-label="Pages">{newest} {older}</nav>
    }
}

/// The states as links, and the form that selects a rule.
#[component]
fn FilterBar(filter: AlertFilter, rules: Vec<(AlertRuleId, String)>, drawn: DrawnFilter) -> impl IntoView {
    let form = NodeRef::<html::Form>::new();
    let chosen = filter.rule.map(|rule| rule.to_string()).unwrap_or_default();
    let values: FilterValues = vec![("rule", chosen.clone())];
    drawn.show(form, values);
    let chips: Vec<_> = STATES
        .into_iter()
        .map(|(_, label, state)| {
            let href = address(&AlertFilter { firing: state, before: None, ..filter.clone() });
            let current = (filter.firing == state).then_some("true");
            view! { <a class="chip" href=href aria-current=current>{label}</a> }
        })
        .collect();
    let options: Vec<_> = rules
        .into_iter()
        .map(|(id, name)| {
            let id = id.to_string();
            let selected = id == chosen;
            view! { <option value=id selected=selected>{name}</option> }
        })
        .collect();
    let state = STATES.into_iter().find(|(.., state)| *state == filter.firing).map(|(word, ..)| word);
    let navigate = use_navigate();
    let apply = move |event: ev::SubmitEvent| {
        event.prevent_default();
        let rule = control_value(form, "rule").parse().ok();
        navigate(&address(&AlertFilter { rule, before: None, ..filter.clone() }), NavigateOptions::default());
    };
    view! {
        <form
            method="get"
            action="/alerts"
            class="filterbar"
            role="search"
            aria-label="Alerts"
            on:submit=apply
            node_ref=form
        >
            <div class="chips" role="group" aria-label="State">{chips}</div>
            <input type="hidden" name="state" value=state/>
            <div class="field">
                <label for="rule">"Rule"</label>
                <select id="rule" name="rule">
                    <option value="">"Every rule"</option>
                    {options}
                </select>
            </div>
            <button type="submit" class="btn">
                <Icon name="filter"/>
                "Apply"
            </button>
        </form>
    }
}

fn empty_state(filter: &AlertFilter, has_rules: bool) -> AnyView {
    let all_rules = AlertFilter { rule: None, before: None, ..filter.clone() };
    if filter.before.is_some() {
        let href = address(&AlertFilter { before: None, ..filter.clone() });
        return view! {
            <EmptyState icon="history" title="No older alerts" text="The previous page was the last one.">
                <a class="btn" href=href>"Show the newest"</a>
            </EmptyState>
        }
        .into_any();
    }
    let (title, text) = match filter.firing {
        Some(true) => (
            "Nothing fires",
            "An alert is listed here while the condition of its rule holds, such as a job that failed for good. The bell at the top counts these alerts.",
        ),
        Some(false) => ("No resolved alerts", "An alert is listed here after its condition is over."),
        None => ("No alerts yet", "An alert is listed here when the condition of a rule becomes true."),
    };
    let (href, next) = match (filter.rule, has_rules) {
        (Some(_), _) => (address(&all_rules), "Show every rule"),
        (None, true) => (RULES_ADDRESS.to_owned(), "See the rules"),
        (None, false) => (RULES_ADDRESS.to_owned(), "Set up alert rules"),
    };
    view! {
        <EmptyState icon="bell" title text>
            <a class="btn" href=href>{next}</a>
        </EmptyState>
    }
    .into_any()
}
