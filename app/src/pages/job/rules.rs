//! The rules of a job that differ from the defaults, in words.

use chrono::{DateTime, Utc};
use leptos::prelude::*;
use milvaion_api::{permissions::Permission, views::CalendarName};
use milvaion_schedule::rules::{BlackoutPolicy, LostRunPolicy, MisfirePolicy, OverlapPolicy, Rules};

use crate::{
    components::{session_context::may, time::Time},
    format::{plural, span},
};

/// The value beside a rule's name.
#[derive(Clone, Debug, PartialEq)]
enum RuleValue {
    At(DateTime<Utc>),
    Words(String),
    /// The job's calendars, with the effect of its blackout policy in words.
    Calendars(&'static str),
}

/// Returns every rule that differs from its default, in the order of the form.
fn rule_values(rules: &Rules) -> Vec<(&'static str, RuleValue)> {
    let mut all = Vec::new();
    if !rules.calendars.is_empty() {
        let policy = match rules.blackout {
            BlackoutPolicy::Skip => "Runs due in a blackout are skipped",
            BlackoutPolicy::Postpone => "Runs due in a blackout start when it ends",
        };
        all.push(("Blackout calendars", RuleValue::Calendars(policy)));
    }
    let mut add = |name, words: String| all.push((name, RuleValue::Words(words)));
    if rules.jitter_seconds > 0 {
        let most = span(rules.jitter_seconds);
        add("Jitter", format!("Each run starts up to {most} later; the delay of this job is always the same"));
    }
    if rules.overlap != OverlapPolicy::default() {
        add("Overlap policy", rules.overlap.label().into());
    }
    if rules.misfire == MisfirePolicy::CatchUp {
        let (limit, back) = (rules.catch_up_limit, span(rules.catch_up_window_seconds));
        add("Misfire policy", format!("{}: at most {limit}, none older than {back}", rules.misfire.label()));
    } else if rules.misfire != MisfirePolicy::default() {
        add("Misfire policy", rules.misfire.label().into());
    }
    if let Some(seconds) = rules.start_within_seconds {
        add("Start limit", format!("A run that no worker has begun {} after its due time is skipped", span(seconds)));
    }
    if let Some(limit) = rules.max_concurrent {
        add("Maximum concurrent runs", limit.to_string());
    }
    if let Some(shared) = &rules.key_limit {
        add(
            "Concurrency key",
            format!("{}, at most {} concurrent runs of all jobs with this key", shared.key, shared.limit),
        );
    }
    if rules.max_retries > 0 {
        add("Retries", rules.describe_retries().trim_end_matches('.').into());
    }
    if let Some(seconds) = rules.heartbeat_timeout_seconds {
        add("Heartbeat timeout", span(seconds));
    }
    if let Some(seconds) = rules.unreachable_timeout_seconds {
        add("Unreachable timeout", span(seconds));
    }
    if rules.on_lost != LostRunPolicy::default() {
        add("Lost run policy", rules.on_lost.label().into());
    }
    if let Some(auto_disable) = rules.auto_disable {
        let again = match auto_disable.cool_down_seconds {
            Some(seconds) => format!("re-enabled after {}", span(seconds)),
            None => "stays disabled until it is resumed".into(),
        };
        let failures = plural(auto_disable.threshold.into(), "failure");
        let window = span(auto_disable.window_seconds);
        add("Auto-disable", format!("After {failures} in a row within {window}; {again}"));
    }
    let bounds = [("Starts", rules.start_at), ("Ends", rules.end_at)];
    let bounds = bounds.into_iter().filter_map(|(name, at)| at.map(|at| (name, RuleValue::At(at))));
    bounds.chain(all).collect()
}

/// Shows the rules as entries of a definition list.
#[component]
pub fn RuleEntries(
    /// The job's rules.
    #[prop(into)]
    rules: Signal<Rules>,
    /// The names of the calendars in the rules.
    #[prop(into)]
    calendars: Signal<Vec<CalendarName>>,
) -> impl IntoView {
    // A reader who may not edit a calendar is sent to the list instead of the form.
    let may_define = may(Permission::DefineCalendar);
    let links = move |policy: &'static str| {
        let link = |calendar: CalendarName| {
            let href = if may_define { format!("/calendars/{}/edit", calendar.id) } else { "/calendars".into() };
            view! { <li><a href=href>{calendar.name}</a></li> }
        };
        let links = calendars.get().into_iter().map(link).collect::<Vec<_>>();
        view! {
            <ul class="names">{links}</ul>
            <span class="muted">{policy}</span>
        }
    };
    move || {
        let entry = |(name, value)| {
            let value = match value {
                RuleValue::Calendars(policy) => links(policy).into_any(),
                RuleValue::At(at) => view! { <Time at/> }.into_any(),
                RuleValue::Words(words) => words.into_any(),
            };
            view! {
                <dt>{name}</dt>
                <dd>{value}</dd>
            }
        };
        rules.with(|rules| rule_values(rules).into_iter().map(entry).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use milvaion_schedule::rules::{AutoDisable, ConcurrencyKeyLimit};

    use super::*;

    #[test]
    fn default_rules_are_not_listed() {
        assert_eq!(rule_values(&Rules::default()), []);
    }

    #[test]
    fn every_non_default_rule_is_listed() {
        let rules = Rules {
            start_at: Some(DateTime::UNIX_EPOCH),
            end_at: Some(DateTime::UNIX_EPOCH),
            jitter_seconds: 90,
            calendars: vec![milvaion_protocol::id::CalendarId::from_parts(DateTime::UNIX_EPOCH, [1; 10])],
            blackout: BlackoutPolicy::Postpone,
            overlap: OverlapPolicy::Queue,
            misfire: MisfirePolicy::CatchUp,
            start_within_seconds: Some(1_800),
            max_concurrent: Some(3),
            key_limit: Some(ConcurrencyKeyLimit { key: "tenant-7".into(), limit: 2 }),
            max_retries: 2,
            heartbeat_timeout_seconds: Some(60),
            on_lost: LostRunPolicy::Fail,
            auto_disable: Some(AutoDisable { threshold: 5, window_seconds: 3_600, cool_down_seconds: None }),
            ..Rules::default()
        };
        let words: Vec<_> = rule_values(&rules)
            .into_iter()
            .map(|(name, value)| match value {
                RuleValue::At(at) => format!("{name}: {at}"),
                RuleValue::Words(words) => format!("{name}: {words}"),
                RuleValue::Calendars(policy) => format!("{name}: {policy}"),
            })
            .collect();
        assert_eq!(
            words,
            [
                "Starts: 1970-01-01 00:00:00 UTC",
                "Ends: 1970-01-01 00:00:00 UTC",
                "Blackout calendars: Runs due in a blackout start when it ends",
                "Jitter: Each run starts up to 90 seconds later; the delay of this job is always the same",
                "Overlap policy: Wait for the previous run to end",
                "Misfire policy: Run each missed due time: at most 100, none older than 1 hour",
                "Start limit: A run that no worker has begun 30 minutes after its due time is skipped",
                "Maximum concurrent runs: 3",
                "Concurrency key: tenant-7, at most 2 concurrent runs of all jobs with this key",
                "Retries: Up to 2 retries, after 5 s and 10 s",
                "Heartbeat timeout: 1 minute",
                "Lost run policy: Do not run it again",
                "Auto-disable: After 5 failures in a row within 1 hour; stays disabled until it is resumed",
            ]
        );
    }
}
