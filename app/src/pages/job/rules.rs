//! What a job's rules say, as far as they are not the usual ones.

use chrono::{DateTime, Utc};
use leptos::prelude::*;
use milvaion_api::{permissions::Permission, views::CalendarName};
use milvaion_schedule::rules::{BlackoutPolicy, LostRunPolicy, MisfirePolicy, OverlapPolicy, Rules, describe_retries};

use crate::{
    components::{session_context::may, time::Time},
    format::{plural, span},
};

/// What stands beside a rule's name.
#[derive(Clone, Debug, PartialEq)]
enum RuleValue {
    At(DateTime<Utc>),
    Words(String),
    /// The calendars it keeps to, and what becomes of a fire in a blackout.
    Calendars(&'static str),
}

/// Every rule that differs from the usual, in the order of the form.
fn rule_values(rules: &Rules) -> Vec<(&'static str, RuleValue)> {
    let mut all = Vec::new();
    if !rules.calendars.is_empty() {
        let fire = match rules.blackout {
            BlackoutPolicy::Skip => "A fire in a blackout is left out",
            BlackoutPolicy::Postpone => "A fire in a blackout runs when that ends",
        };
        all.push(("Calendars", RuleValue::Calendars(fire)));
    }
    let mut say = |name, words: String| all.push((name, RuleValue::Words(words)));
    if rules.jitter_seconds > 0 {
        let most = span(rules.jitter_seconds);
        say("Jitter", format!("Each fire comes up to {most} later, the same for this job every time"));
    }
    if rules.overlap != OverlapPolicy::default() {
        say("Overlap", rules.overlap.label().into());
    }
    if rules.misfire == MisfirePolicy::CatchUp {
        let (limit, back) = (rules.catch_up_limit, span(rules.catch_up_window_seconds));
        say("Missed fires", format!("{}: at most {limit}, and none older than {back}", rules.misfire.label()));
    } else if rules.misfire != MisfirePolicy::default() {
        say("Missed fires", rules.misfire.label().into());
    }
    if let Some(limit) = rules.max_concurrent {
        say("At once", format!("At most {limit}"));
    }
    if let Some(shared) = &rules.key_limit {
        say("Shared limit", format!("At most {} at once among all jobs that share {}", shared.limit, shared.key));
    }
    if rules.max_retries > 0 {
        let words = describe_retries(rules.max_retries, rules.base_retry_delay_seconds, rules.retry_jitter_percent);
        say("Retries", words.trim_end_matches('.').into());
    }
    if let Some(seconds) = rules.heartbeat_timeout_seconds {
        say("Lost", format!("After {} without a heartbeat", span(seconds)));
    }
    if rules.on_lost != LostRunPolicy::default() {
        say("When lost", rules.on_lost.label().into());
    }
    if let Some(breaker) = rules.auto_disable {
        let again = match breaker.cool_down_seconds {
            Some(seconds) => format!("enabled again after {}", span(seconds)),
            None => "enabled again by hand".into(),
        };
        let failures = plural(breaker.threshold.into(), "failure");
        let window = span(breaker.window_seconds);
        say("Disabled", format!("After {failures} in a row within {window}; {again}"));
    }
    let bounds = [("Starts", rules.start_at), ("Ends", rules.end_at)];
    let bounds = bounds.into_iter().filter_map(|(name, at)| at.map(|at| (name, RuleValue::At(at))));
    bounds.chain(all).collect()
}

/// The rules as entries of a definition's list.
#[component]
pub fn RuleEntries(
    /// The rules.
    #[prop(into)]
    rules: Signal<Rules>,
    /// The calendars among them, by name.
    #[prop(into)]
    calendars: Signal<Vec<CalendarName>>,
) -> impl IntoView {
    // Who may not change a calendar finds it in the list.
    let may_define = may(Permission::DefineCalendar);
    let links = move |fire: &'static str| {
        let link = |calendar: CalendarName| {
            let href = if may_define { format!("/calendars/{}/edit", calendar.id) } else { "/calendars".into() };
            view! { <li><a href=href>{calendar.name}</a></li> }
        };
        let links = calendars.get().into_iter().map(link).collect::<Vec<_>>();
        view! {
            <ul class="names">{links}</ul>
            <span class="muted">{fire}</span>
        }
    };
    move || {
        let entry = |(name, said)| {
            let value = match said {
                RuleValue::Calendars(fire) => links(fire).into_any(),
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
    fn the_usual_goes_without_saying() {
        assert_eq!(rule_values(&Rules::default()), []);
    }

    #[test]
    fn every_rule_that_differs_is_said_in_words() {
        let rules = Rules {
            start_at: Some(DateTime::UNIX_EPOCH),
            end_at: Some(DateTime::UNIX_EPOCH),
            jitter_seconds: 90,
            calendars: vec![milvaion_protocol::id::CalendarId::from_parts(DateTime::UNIX_EPOCH, [1; 10])],
            blackout: BlackoutPolicy::Postpone,
            overlap: OverlapPolicy::Queue,
            misfire: MisfirePolicy::CatchUp,
            max_concurrent: Some(3),
            key_limit: Some(ConcurrencyKeyLimit { key: "tenant-7".into(), limit: 2 }),
            max_retries: 2,
            retry_jitter_percent: 20,
            heartbeat_timeout_seconds: Some(60),
            on_lost: LostRunPolicy::Fail,
            auto_disable: Some(AutoDisable { threshold: 5, window_seconds: 3_600, cool_down_seconds: None }),
            ..Rules::default()
        };
        let words: Vec<_> = rule_values(&rules)
            .into_iter()
            .map(|(name, said)| match said {
                RuleValue::At(at) => format!("{name}: {at}"),
                RuleValue::Words(words) => format!("{name}: {words}"),
                RuleValue::Calendars(fire) => format!("{name}: {fire}"),
            })
            .collect();
        assert_eq!(
            words,
            [
                "Starts: 1970-01-01 00:00:00 UTC",
                "Ends: 1970-01-01 00:00:00 UTC",
                "Calendars: A fire in a blackout runs when that ends",
                "Jitter: Each fire comes up to 90 seconds later, the same for this job every time",
                "Overlap: Wait for it to end",
                "Missed fires: Run each missed fire: at most 100, and none older than 1 hour",
                "At once: At most 3",
                "Shared limit: At most 2 at once among all jobs that share tenant-7",
                "Retries: Tried up to 2 times more: after 5 s and 10 s, each up to 20 % sooner",
                "Lost: After 1 minute without a heartbeat",
                "When lost: Do not run it again",
                "Disabled: After 5 failures in a row within 1 hour; enabled again by hand",
            ]
        );
    }
}
