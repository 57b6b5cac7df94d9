//! Decides which alerts fire.
//!
//! There are two kinds of conditions. An *event* happens at an instant: an occurrence failed, a run was lost. It is
//! counted in the alert of its rule and cause, and the alert is resolved when a later fact says so. A *state* lasts: a run
//! takes too long, no live worker has a job type. It is looked for again and again ([`conditions`]), and its alert is
//! resolved when it is no longer found.
//!
//! Both yield [`Finding`]s. A rule has one alert for each group key at a time, so that 2,000 failures of one job and cause
//! are one alert with a count.

pub mod conditions;

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use milvaion_api::{
    alerts::{AlertCondition, AlertRule},
    failures::FailureCause,
};
use milvaion_protocol::id::{AlertRuleId, JobId, OccurrenceId};

/// A rule that is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveRule {
    /// Identifier.
    pub id: AlertRuleId,
    /// Definition.
    pub definition: AlertRule,
}

/// The job that an alert may be about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlertJob {
    /// Identifier.
    pub id: JobId,
    /// Name.
    pub name: String,
    /// Key, if it has one.
    pub key: Option<String>,
    /// Tags.
    pub tags: Vec<String>,
}

/// An event that rules are applied to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertEvent {
    /// Kind of the condition of rules that apply.
    pub kind: String,
    /// Time of the event.
    pub at: DateTime<Utc>,
    /// The job, if it is about one.
    pub job: Option<AlertJob>,
    /// The occurrence, if it is about one.
    pub occurrence_id: Option<OccurrenceId>,
    /// Cause of a failure.
    pub cause: Option<FailureCause>,
    /// Source of an event that is about no job.
    pub subject: Option<String>,
    /// Details in one line.
    pub detail: String,
}

/// A reason for an alert of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule.
    pub rule_id: AlertRuleId,
    /// Job, worker, queue or service that the alert is about.
    pub group_key: String,
    /// Title of the alert in one line.
    pub title: String,
    /// Details.
    pub detail: String,
    /// The job with its name, if the alert is about one.
    pub job: Option<(JobId, String)>,
    /// The latest occurrence, if the alert is about one.
    pub occurrence_id: Option<OccurrenceId>,
    /// Number of events; 1 for a state.
    pub count: i64,
    /// Time of the first event.
    pub first_at: DateTime<Utc>,
    /// Time of the latest event.
    pub last_at: DateTime<Utc>,
}

/// Applies rules to events, in the order of time. Returns at most one finding for each rule and group key.
#[must_use]
pub fn match_events(rules: &[ActiveRule], events: &[AlertEvent]) -> Vec<Finding> {
    let mut findings: BTreeMap<(AlertRuleId, String), Finding> = BTreeMap::new();
    for event in events {
        for rule in rules.iter().filter(|rule| applies(&rule.definition, event)) {
            let (group_key, title) = describe(event);
            let entry = findings.entry((rule.id, group_key.clone()));
            let found = entry.or_insert_with(|| Finding {
                rule_id: rule.id,
                group_key,
                title,
                detail: String::new(),
                job: event.job.as_ref().map(|job| (job.id, job.name.clone())),
                occurrence_id: None,
                count: 0,
                first_at: event.at,
                last_at: event.at,
            });
            found.count += 1;
            found.first_at = found.first_at.min(event.at);
            if event.at >= found.last_at {
                found.last_at = event.at;
                found.detail.clone_from(&event.detail);
                found.occurrence_id = event.occurrence_id.or(found.occurrence_id);
            }
        }
    }
    findings.into_values().collect()
}

fn applies(rule: &AlertRule, event: &AlertEvent) -> bool {
    let is_wanted_cause = match &rule.condition {
        AlertCondition::OccurrenceFailed { causes } => {
            causes.is_empty() || event.cause.is_some_and(|cause| causes.contains(&cause))
        }
        _ => true,
    };
    rule.condition.kind() == event.kind
        && is_wanted_cause
        && event.job.as_ref().is_none_or(|job| rule.selects(job.id, job.key.as_deref(), &job.tags))
}

/// Returns the group key of an event and the title of its alert.
fn describe(event: &AlertEvent) -> (String, String) {
    let (key, name) = match (&event.job, &event.subject) {
        (Some(job), _) => (format!("job:{}", job.id), job.name.as_str()),
        (None, subject) => (format!("source:{}", subject.as_deref().unwrap_or_default()), ""),
    };
    match event.kind.as_str() {
        "occurrence_failed" => {
            let cause = event.cause.unwrap_or(FailureCause::Failed);
            (format!("{key}:{}", cause.as_str()), format!("Job {name} failed{}", in_words(cause)))
        }
        "misfire" => (key, format!("Job {name} missed a due time")),
        "lost_run" => (key, format!("A run of job {name} was lost")),
        "auto_disabled" => (key, format!("Job {name} was disabled automatically")),
        _ => {
            let source = event.subject.as_deref().unwrap_or("an unknown source");
            (key, format!("A message from {source} became a dead letter"))
        }
    }
}

/// Returns the cause of a failure as the end of a sentence; nothing for the plain one.
const fn in_words(cause: FailureCause) -> &'static str {
    match cause {
        FailureCause::Failed => "",
        FailureCause::Permanent => ": a retry is useless",
        FailureCause::Exhausted => ": all attempts failed",
        FailureCause::TimedOut => ": a run exceeded its timeout",
        FailureCause::Rejected => ": a worker could not read the message",
        FailureCause::Poison => ": its runs crashed the worker",
        FailureCause::Lost => ": a run was lost",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use milvaion_api::alerts::AlertSeverity;

    use super::*;

    pub(crate) fn rule(number: u8, condition: AlertCondition) -> ActiveRule {
        let definition = AlertRule {
            name: format!("rule {number}"),
            condition,
            jobs: vec![],
            tags: vec![],
            severity: AlertSeverity::Warning,
            channels: vec![],
            is_enabled: true,
        };
        ActiveRule { id: AlertRuleId::from_parts(DateTime::UNIX_EPOCH, [number; 10]), definition }
    }

    fn failure(second: i64, cause: FailureCause) -> AlertEvent {
        AlertEvent {
            kind: "occurrence_failed".into(),
            at: DateTime::UNIX_EPOCH + chrono::TimeDelta::seconds(second),
            job: Some(AlertJob { name: "nightly".into(), tags: vec!["finance".into()], ..AlertJob::default() }),
            occurrence_id: Some(OccurrenceId::default()),
            cause: Some(cause),
            subject: None,
            detail: format!("boom {second}"),
        }
    }

    #[test]
    fn failures_of_one_job_and_cause_are_one_finding() {
        let rules = [rule(1, AlertCondition::OccurrenceFailed { causes: vec![] })];
        let mut events: Vec<_> = (1..=2_000).map(|second| failure(second, FailureCause::Exhausted)).collect();
        events.push(failure(3, FailureCause::TimedOut));
        let found = match_events(&rules, &events);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].count, found[0].detail.as_str()), (2_000, "boom 2000"));
        assert_eq!(found[0].title, "Job nightly failed: all attempts failed");
        assert_eq!((found[1].count, found[1].first_at), (1, events[2].at));
    }

    #[test]
    fn rule_sees_only_its_causes_jobs_and_tags() {
        let of_cause = |cause| AlertCondition::OccurrenceFailed { causes: vec![cause] };
        let events = [failure(1, FailureCause::Exhausted)];
        assert_eq!(match_events(&[rule(1, of_cause(FailureCause::TimedOut))], &events), []);
        assert_eq!(match_events(&[rule(1, of_cause(FailureCause::Exhausted))], &events).len(), 1);
        assert_eq!(match_events(&[rule(1, AlertCondition::Misfire {})], &events), []);
        let tagged = |tag: &str| {
            let mut rule = rule(1, of_cause(FailureCause::Exhausted));
            rule.definition.tags = vec![tag.to_owned()];
            rule
        };
        assert_eq!(match_events(&[tagged("web")], &events), []);
        assert_eq!(match_events(&[tagged("finance")], &events).len(), 1);
    }

    #[test]
    fn dead_letter_is_grouped_by_its_source() {
        let event = AlertEvent {
            kind: "dead_letter".into(),
            job: None,
            occurrence_id: None,
            cause: None,
            subject: Some("milvaion.status".into()),
            ..failure(1, FailureCause::Failed)
        };
        let found = match_events(&[rule(1, AlertCondition::DeadLetter {})], &[event.clone(), event]);
        assert_eq!((found.len(), found[0].count), (1, 2));
        assert_eq!(found[0].title, "A message from milvaion.status became a dead letter");
    }
}
