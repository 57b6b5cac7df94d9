//! The table of alerts.

use leptos::prelude::*;
use milvaion_api::alerts::{Alert, AlertMessageStatus};

use super::badges::{badge, severity_badge};
use crate::{
    api::alerts::rule_address,
    components::{
        live_rows::LiveRows,
        table::{Number, Table, Text},
        time::Time,
    },
    format::count,
};

/// The alerts, newest first.
#[component]
pub fn AlertTable(
    /// The alerts of the page.
    rows: LiveRows<Alert>,
    /// The accessible name.
    caption: &'static str,
    /// True to name the rule of each alert.
    #[prop(optional)]
    names_rule: bool,
) -> impl IntoView {
    let mut columns = vec![Text("Alert"), Text("Job"), Number("Events"), Text("Since")];
    columns.extend(names_rule.then_some(Text("Rule")));
    columns.push(Text("Messages"));
    view! {
        <Table caption columns>
            {rows.view(move |row| view! { <AlertTableRow row names_rule/> }.into_any())}
        </Table>
    }
}

#[component]
fn AlertTableRow(row: RwSignal<Alert>, names_rule: bool) -> impl IntoView {
    // The rule, the job and the first event of an alert never change.
    let Alert { id, rule_id, rule_name, job_id, job_name, first_at, .. } = row.get_untracked();
    let severity = Memo::new(move |_| row.with(|row| row.severity));
    let title = Memo::new(move |_| row.with(|row| row.title.clone()));
    let detail = Memo::new(move |_| row.with(|row| row.detail.clone()));
    let events = Memo::new(move |_| row.with(|row| row.count));
    let last = Memo::new(move |_| row.with(|row| (row.count > 1).then_some(row.last_at)));
    let end = Memo::new(move |_| row.with(|row| row.resolved_at.map(|at| (at, row.resolution.clone()))));
    let occurrence = Memo::new(move |_| row.with(|row| row.occurrence_id));
    let messages = Memo::new(move |_| row.with(|row| (message_counts(&row.messages), message_errors(&row.messages))));
    let resolved = Memo::new(move |_| end.with(Option::is_some));
    let job = job_id.map(|job| {
        view! { <a class="row-link" href=format!("/jobs/{job}")>{job_name.unwrap_or_else(|| "Deleted job".into())}</a> }
    });
    let has_links = job.is_some() || occurrence.with_untracked(Option::is_some);
    let occurrence_link =
        move || occurrence.get().map(|id| view! { <a href=format!("/occurrences/{id}")>"Latest occurrence"</a> });
    let links = if has_links {
        view! { <div class="links">{job} {occurrence_link}</div> }.into_any()
    } else {
        view! { <span class="muted">"–"</span> }.into_any()
    };
    let rule = names_rule.then(|| {
        view! { <td role="cell" data-label="Rule"><a class="row-link" href=rule_address(rule_id)>{rule_name}</a></td> }
    });
    let latest = move || last.get().map(|at| view! { <div class="row-note">"Latest " <Time at relative=true/></div> });
    let resolution = move || {
        end.get().map(|(at, reason)| {
            view! {
                <div class="row-note">"Resolved " <Time at relative=true/></div>
                {reason.map(|reason| view! { <div class="row-note">{reason}</div> })}
            }
        })
    };
    let sent = move || {
        let (counts, errors) = messages.get();
        let errors: Vec<_> = errors.into_iter().map(|error| view! { <div class="row-note">{error}</div> }).collect();
        view! { <div>{counts} {errors}</div> }
    };
    view! {
        <tr role="row" data-id=id.to_string()>
            <th role="rowheader" scope="row" data-label="Alert">
                {move || severity_badge(severity.get())}
                " "
                {move || resolved.get().then(|| badge("active", "circle-check", "Resolved"))}
                <div>
                    <strong>{move || title.get()}</strong>
                </div>
                <div class="row-note">{move || detail.get()}</div>
            </th>
            <td role="cell" data-label="Job">{links}</td>
            <td role="cell" data-label="Events" class="num">{move || count(events.get())}</td>
            <td role="cell" data-label="Since">
                <div>
                    <Time at=first_at relative=true/>
                    {latest}
                    {resolution}
                </div>
            </td>
            {rule}
            <td role="cell" data-label="Messages">{sent}</td>
        </tr>
    }
}

/// Returns the numbers of messages: `2 sent, 1 pending`.
fn message_counts(messages: &[AlertMessageStatus]) -> String {
    let number = |is_counted: fn(&AlertMessageStatus) -> bool| messages.iter().filter(|m| is_counted(m)).count();
    let parts = [
        (number(|message| message.sent_at.is_some()), "sent"),
        (number(|message| message.sent_at.is_none() && message.failed_at.is_none()), "pending"),
        (number(|message| message.sent_at.is_none() && message.failed_at.is_some()), "failed"),
    ];
    let parts: Vec<_> = parts.into_iter().filter(|(n, _)| *n > 0).map(|(n, word)| format!("{n} {word}")).collect();
    if parts.is_empty() { "None".into() } else { parts.join(", ") }
}

/// Returns the error of each message that no receiver accepted, with the name of its channel.
fn message_errors(messages: &[AlertMessageStatus]) -> Vec<String> {
    let unsent = messages.iter().filter(|message| message.sent_at.is_none());
    unsent
        .filter_map(|message| {
            let about = if message.is_resolution { " (resolution)" } else { "" };
            Some(format!("{}{about}: {}", message.channel, message.error.as_ref()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    #[test]
    fn messages_are_counted_and_their_errors_named() {
        let pending = AlertMessageStatus {
            channel: "Ops".into(),
            is_resolution: false,
            sent_at: None,
            failed_at: None,
            attempts: 2,
            error: Some("Status 500.".into()),
        };
        let at = Some(DateTime::UNIX_EPOCH);
        let sent = AlertMessageStatus { sent_at: at, ..pending.clone() };
        let failed = AlertMessageStatus { failed_at: at, is_resolution: true, ..pending.clone() };
        let messages = [sent.clone(), sent, pending, failed];
        assert_eq!(message_counts(&messages), "2 sent, 1 pending, 1 failed");
        assert_eq!(message_errors(&messages), ["Ops: Status 500.", "Ops (resolution): Status 500."]);
        assert_eq!((message_counts(&[]), message_errors(&[])), ("None".into(), vec![]));
    }
}
