//! Attempts that more than one instance has started.
//!
//! A broker may deliver a message twice. Claims make the second copy harmless; but a worker may do without claims, and a
//! wiped Redis forgets them. Then an attempt may be started twice. That cannot be undone, so it is told: whoever reads
//! the life of the occurrence finds both starts in it, and the page warns of what both may have done.

use chrono::{DateTime, Utc};

use crate::views::StatusChange;
use milvaion_protocol::status::OccurrenceStatus;

/// How the note of a start begins that was not the first one of its attempt.
pub const DUPLICATE_START_NOTE: &str = "duplicate start";

/// An attempt that was started more than once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DuplicateStart {
    /// Which attempt.
    pub attempt: i32,
    /// The instance that was first to speak of it.
    pub first: String,
    /// The others, in the order they spoke.
    pub others: Vec<String>,
}

/// The attempts in an occurrence's life that several instances have started, in order.
#[must_use]
pub fn find_duplicate_starts(life: &[StatusChange]) -> Vec<DuplicateStart> {
    let mut attempts: Vec<i32> = life.iter().map(|step| step.attempt).collect();
    attempts.sort_unstable();
    attempts.dedup();
    attempts
        .into_iter()
        .filter_map(|attempt| {
            let mut instances = runners(life, attempt).into_iter().map(|(instance, _)| instance);
            let first = instances.next()?;
            let others: Vec<String> = instances.collect();
            (!others.is_empty()).then_some(DuplicateStart { attempt, first, others })
        })
        .collect()
}

/// Notes in an occurrence's life that `instance` started `attempt`, if another one had it too. Every start but the first
/// becomes a step, beside the first one, so that the last step stays the last. Returns whether anything was added.
pub fn record_duplicate_start(life: &mut Vec<StatusChange>, attempt: i32, instance: &str, at: DateTime<Utc>) -> bool {
    let mut runners = runners(life, attempt);
    let Some(first) = runners.first().map(|(first, _)| first.clone()) else { return false };
    if !runners.iter().any(|(known, _)| known == instance) {
        runners.push((instance.to_owned(), at));
    }
    let mut is_new = false;
    for (instance, at) in runners.into_iter().skip(1) {
        let is_told = |step: &StatusChange| {
            step.attempt == attempt
                && step.status == OccurrenceStatus::Running
                && step.by.as_deref() == Some(instance.as_str())
        };
        if life.iter().any(is_told) {
            continue;
        }
        let of_attempt = |step: &StatusChange| step.attempt == attempt && step.status != OccurrenceStatus::Queued;
        let is_start = |step: &StatusChange| step.attempt == attempt && step.status == OccurrenceStatus::Running;
        let place = match life.iter().rposition(is_start) {
            Some(start) => start + 1,
            None => life.iter().position(of_attempt).unwrap_or(life.len()),
        };
        let note = Some(format!("{DUPLICATE_START_NOTE}: {first} had started this attempt already"));
        let status = OccurrenceStatus::Running;
        life.insert(place, StatusChange { status, at, attempt, by: Some(instance), note });
        is_new = true;
    }
    is_new
}

/// The instances that said they had run an attempt, and since when they are known, in the order of the steps; those that
/// were noted as not the first come last, wherever their step stands.
fn runners(life: &[StatusChange], attempt: i32) -> Vec<(String, DateTime<Utc>)> {
    let mut runners: Vec<(String, DateTime<Utc>)> = Vec::new();
    let steps = life.iter().filter(|step| step.attempt == attempt && is_of_a_run(step));
    let (noted, told): (Vec<&StatusChange>, Vec<&StatusChange>) = steps.partition(|step| is_noted(step));
    for step in told.into_iter().chain(noted) {
        let Some(by) = &step.by else { continue };
        if !runners.iter().any(|(known, _)| known == by) {
            runners.push((by.clone(), step.at));
        }
    }
    runners
}

/// Whether a step says that an instance ran the attempt. A start by a person, with a note, is a wish that it end; and
/// an attempt may be reported as cancelled by who never started it.
fn is_of_a_run(step: &StatusChange) -> bool {
    match step.status {
        OccurrenceStatus::Running => step.note.is_none() || is_noted(step),
        OccurrenceStatus::Completed | OccurrenceStatus::Failed | OccurrenceStatus::TimedOut => true,
        _ => false,
    }
}

fn is_noted(step: &StatusChange) -> bool {
    step.status == OccurrenceStatus::Running
        && step.note.as_deref().is_some_and(|note| note.starts_with(DUPLICATE_START_NOTE))
}

#[cfg(test)]
mod tests {
    use chrono::Duration;

    use super::*;

    fn step(second: i64, status: OccurrenceStatus, attempt: i32, by: Option<&str>) -> StatusChange {
        StatusChange { status, at: at(second), attempt, by: by.map(str::to_owned), note: None }
    }

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + Duration::seconds(second)
    }

    fn words(life: &[StatusChange]) -> Vec<String> {
        life.iter().map(|step| format!("{} {}", step.status.slug(), step.by.as_deref().unwrap_or("-"))).collect()
    }

    /// A life of two attempts: the first one was lost with its worker.
    fn life() -> Vec<StatusChange> {
        use OccurrenceStatus as S;
        vec![
            step(0, S::Queued, 1, Some("ann")),
            step(1, S::Running, 1, Some("a")),
            step(9, S::Queued, 2, None),
            step(10, S::Running, 2, Some("b")),
            step(11, S::Completed, 2, Some("b")),
        ]
    }

    #[test]
    fn another_attempt_elsewhere_is_no_duplicate() {
        let mut life = life();
        assert_eq!(find_duplicate_starts(&life), []);
        assert!(!record_duplicate_start(&mut life, 1, "a", at(2)));
        assert!(!record_duplicate_start(&mut life, 2, "b", at(12)));
        assert!(!record_duplicate_start(&mut life, 3, "c", at(12)), "nobody has spoken of that attempt");
        assert_eq!(life.len(), 5);
    }

    #[test]
    fn a_second_start_stands_beside_the_first_one_and_is_noted_once() {
        let mut life = life();
        assert!(record_duplicate_start(&mut life, 2, "c", at(12)));
        assert!(!record_duplicate_start(&mut life, 2, "c", at(12)));
        assert!(record_duplicate_start(&mut life, 1, "b", at(3)));
        assert_eq!(
            words(&life),
            ["queued ann", "running a", "running b", "queued -", "running b", "running c", "completed b"]
        );
        assert_eq!(life[5].note.as_deref(), Some("duplicate start: b had started this attempt already"));
        let found = find_duplicate_starts(&life);
        assert_eq!(found.iter().map(|one| (one.attempt, one.first.as_str())).collect::<Vec<_>>(), [(1, "a"), (2, "b")]);
        assert_eq!(found[1].others, ["c"]);
    }

    #[test]
    fn who_ended_what_another_began_must_have_started_it() {
        use OccurrenceStatus as S;
        let mut life = vec![
            step(0, S::Queued, 1, None),
            step(1, S::Running, 1, Some("a")),
            StatusChange { note: Some("asked to end".into()), ..step(2, S::Running, 1, Some("ann")) },
            step(3, S::Completed, 1, Some("b")),
        ];
        assert_eq!(find_duplicate_starts(&life)[0].others, ["b"], "and not the person who wanted it to end");
        assert!(record_duplicate_start(&mut life, 1, "a", at(4)));
        assert_eq!(words(&life), ["queued -", "running a", "running ann", "running b", "completed b"]);
    }

    #[test]
    fn who_told_only_its_end_was_first_all_the_same() {
        use OccurrenceStatus as S;
        let mut life = vec![step(0, S::Queued, 1, None), step(2, S::Failed, 1, Some("a")), step(2, S::Queued, 2, None)];
        assert!(record_duplicate_start(&mut life, 1, "b", at(1)));
        assert_eq!(words(&life), ["queued -", "running b", "failed a", "queued -"]);
        let found = find_duplicate_starts(&life);
        assert_eq!((found[0].first.as_str(), found[0].others.as_slice()), ("a", ["b".to_owned()].as_slice()));
        assert!(
            !record_duplicate_start(&mut life, 1, "a", at(2)) && !record_duplicate_start(&mut life, 1, "b", at(1)),
            "and is not noted later"
        );
    }

    #[test]
    fn what_was_declined_was_never_started() {
        use OccurrenceStatus as S;
        let life =
            [step(0, S::Queued, 1, None), step(1, S::Running, 1, Some("a")), step(2, S::Cancelled, 1, Some("b"))];
        assert_eq!(find_duplicate_starts(&life), []);
    }
}
