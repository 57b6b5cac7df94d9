//! The list of alert rules with their states.

use leptos::prelude::*;
use leptos_meta::Title;
use milvaion_api::{
    alerts::{AlertRule, AlertRuleRow},
    permissions::Permission,
};

use super::{
    AlertSection, AlertTabs,
    badges::{rule_state, severity_badge},
    rows::{REFRESH_DELAY, is_about_alerts, use_server_now},
};
use crate::{
    api::alerts::{alert_rules, rule_address},
    components::{
        empty_state::EmptyState,
        icon::Icon,
        live_rows::LiveRows,
        loading::render_page,
        page_header::PageHeader,
        session_context::may,
        table::{Table, Text},
        time::MaybeTime,
    },
    live::live_page,
};

/// `/alerts/rules`.
#[component]
pub fn AlertRulesPage() -> impl IntoView {
    let data = Resource::new_blocking(|| (), |()| alert_rules());
    render_page(data, |rows: Vec<AlertRuleRow>| view! { <RulesContent rows/> })
}

#[component]
fn RulesContent(rows: Vec<AlertRuleRow>) -> impl IntoView {
    let rows = LiveRows::of_all(rows, |row: &AlertRuleRow| row.id.to_string());
    live_page(REFRESH_DELAY, alert_rules, is_about_alerts, move |read| rows.apply_all(read));
    let is_empty = Memo::new(move |_| rows.is_empty());
    let may_define = may(Permission::DefineAlert);
    let new = may_define.then(|| {
        view! {
            <a class="btn btn-primary" href="/alerts/rules/new">
                <Icon name="plus"/>
                "New rule"
            </a>
        }
    });
    view! {
        <Title text="Alert rules · Alerts"/>
        <PageHeader
            title="Alert rules"
            sub="A rule names a condition. While the condition holds, an alert fires, and the channels of the rule get a message."
        >
            {new}
        </PageHeader>
        <div class="stack">
            <AlertTabs here=AlertSection::Rules/>
            <div hidden=move || !is_empty.get()>
                <EmptyState
                    icon="bell"
                    title="No alert rules"
                    text="Without a rule, no alert fires and no message is sent when a job fails."
                >
                    {may_define
                        .then(|| view! { <a class="btn btn-primary" href="/alerts/rules/new">"Create the first rule"</a> })}
                </EmptyState>
            </div>
            <Table
                caption="Alert rules by name"
                columns=[
                    Text("Rule"), Text("Severity"), Text("Applies to"), Text("Channels"), Text("State"),
                    Text("Last fired"),
                ]
                id="alert-rules"
                hidden=move || is_empty.get()
            >
                {rows.view(move |row| view! { <RuleTableRow row/> }.into_any())}
            </Table>
        </div>
    }
}

#[component]
fn RuleTableRow(row: RwSignal<AlertRuleRow>) -> impl IntoView {
    let id = row.with_untracked(|row| row.id);
    let now = use_server_now();
    let muted = Memo::new(move |_| row.with(|row| row.muted_until).filter(|until| *until > now.get()));
    let text = move |words: fn(&AlertRule) -> String| move || row.with(|row| words(&row.definition));
    view! {
        <tr role="row" data-id=id.to_string()>
            <th role="rowheader" scope="row" data-label="Rule">
                <a class="row-link" href=rule_address(id)>{text(|rule| rule.name.clone())}</a>
                <div class="row-note">{text(|rule| rule.condition.describe())}</div>
            </th>
            <td role="cell" data-label="Severity">
                {move || severity_badge(row.with(|row| row.definition.severity))}
            </td>
            <td role="cell" data-label="Applies to" class="breaks">{text(selection)}</td>
            <td role="cell" data-label="Channels" class="breaks">{text(channel_names)}</td>
            <td role="cell" data-label="State">{move || row.with(|row| rule_state(row, muted.get()))}</td>
            <td role="cell" data-label="Last fired">
                <MaybeTime at=Signal::derive(move || row.with(|row| row.last_fired_at)) relative=true/>
            </td>
        </tr>
    }
}

/// Returns the jobs that a rule applies to, in words.
pub(super) fn selection(rule: &AlertRule) -> String {
    if !rule.condition.is_about_jobs() {
        return "The installation".into();
    }
    let jobs = (!rule.jobs.is_empty()).then(|| rule.jobs.join(", "));
    let tags = (!rule.tags.is_empty()).then(|| format!("Tag {}", rule.tags.join(" or ")));
    match (jobs, tags) {
        (None, None) => "Every job".into(),
        (Some(one), None) | (None, Some(one)) => one,
        (Some(jobs), Some(tags)) => format!("{jobs}; only with {}", tags.replacen("Tag", "the tag", 1)),
    }
}

/// Returns the channels of a rule, in words.
pub(super) fn channel_names(rule: &AlertRule) -> String {
    if rule.channels.is_empty() { "Dashboard only".into() } else { rule.channels.join(", ") }
}

#[cfg(test)]
mod tests {
    use milvaion_api::alerts::{AlertCondition, AlertSeverity};

    use super::*;

    #[test]
    fn selection_of_a_rule_is_put_in_words() {
        let rule = |condition, jobs: &[&str], tags: &[&str]| AlertRule {
            name: "Rule".into(),
            condition,
            jobs: jobs.iter().map(|job| (*job).to_owned()).collect(),
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            severity: AlertSeverity::Warning,
            channels: vec![],
            is_enabled: true,
        };
        let about_jobs = AlertCondition::LostRun {};
        assert_eq!(selection(&rule(about_jobs.clone(), &[], &[])), "Every job");
        assert_eq!(selection(&rule(about_jobs.clone(), &["a", "b"], &[])), "a, b");
        assert_eq!(selection(&rule(about_jobs.clone(), &[], &["web", "x"])), "Tag web or x");
        assert_eq!(selection(&rule(about_jobs, &["a"], &["web"])), "a; only with the tag web");
        assert_eq!(selection(&rule(AlertCondition::DeadLetter {}, &[], &[])), "The installation");
        assert_eq!(channel_names(&rule(AlertCondition::DeadLetter {}, &[], &[])), "Dashboard only");
    }
}
