//! Detection of attempts that more than one instance has started, or that were started after the occurrence had ended.
//!
//! A broker may deliver a message twice. Claims make the duplicate delivery harmless, but a worker may run without
//! claims, and a Redis that lost its data has lost the claims too. Then an attempt may be started twice, or an occurrence
//! that was cancelled while it waited in the queue may be started all the same. This cannot be undone, so it is reported:
//! the occurrence's history lists these starts, and its page warns about their side effects.

use chrono::{DateTime, Utc};

use crate::views::StatusChange;
use milvaion_protocol::status::OccurrenceStatus;

/// The prefix of the note of a start that was not the first one of its attempt.
pub const DUPLICATE_START_NOTE: &str = "duplicate start";

/// The prefix of the note of a start of an occurrence that had ended.
pub const START_AFTER_END_NOTE: &str = "started after the end";

/// The time within which two reported starts of one attempt by one instance are the same start, in seconds.
pub const SAME_START_SECONDS: i64 = 3;

/// An attempt that was started more than once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DuplicateStart {
    /// The attempt, counted from 1.
    pub attempt: i32,
    /// The instance that reported first.
    pub first: String,
    /// The other instances, in the order of their reports.
    pub others: Vec<String>,
}

/// A start of an attempt that no instance had started before its occurrence ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartAfterEnd {
    /// The attempt, counted from 1.
    pub attempt: i32,
    /// The instance that started it.
    pub instance: String,
    /// The time of the start, by the clock of the instance.
    pub at: DateTime<Utc>,
}

/// Returns the starts in an occurrence's history that came after its end, in the order of their reports.
#[must_use]
pub fn find_starts_after_end(history: &[StatusChange]) -> Vec<StartAfterEnd> {
    let late = history.iter().filter(|step| is_start_after_end(step));
    late.filter_map(|step| Some(StartAfterEnd { attempt: step.attempt, instance: step.by.clone()?, at: step.at }))
        .collect()
}

/// Records in the history of an occurrence that ended as `end` that `instance` started `attempt` all the same. The start
/// becomes the last status change. Returns false if it is recorded already, or if another instance had started the attempt
/// before, because it is a duplicate start then.
pub fn record_start_after_end(
    history: &mut Vec<StatusChange>,
    end: OccurrenceStatus,
    attempt: i32,
    instance: &str,
    at: DateTime<Utc>,
) -> bool {
    let is_recorded = history
        .iter()
        .any(|step| is_start_after_end(step) && step.attempt == attempt && step.by.as_deref() == Some(instance));
    if is_recorded || !runners(history, attempt).is_empty() {
        return false;
    }
    let note = Some(format!("{START_AFTER_END_NOTE}: the occurrence was already {}", end.label().to_lowercase()));
    let (status, by) = (OccurrenceStatus::Running, Some(instance.to_owned()));
    history.push(StatusChange { status, at, attempt, by, note });
    true
}

/// Returns true if a status change is a start after the end of its occurrence.
#[must_use]
pub fn is_start_after_end(step: &StatusChange) -> bool {
    step.status == OccurrenceStatus::Running
        && step.note.as_deref().is_some_and(|note| note.starts_with(START_AFTER_END_NOTE))
}

/// Returns the attempts in an occurrence's history that several instances have started, in ascending order.
#[must_use]
pub fn find_duplicate_starts(history: &[StatusChange]) -> Vec<DuplicateStart> {
    let mut attempts: Vec<i32> = history.iter().map(|step| step.attempt).collect();
    attempts.sort_unstable();
    attempts.dedup();
    attempts
        .into_iter()
        .filter_map(|attempt| {
            let mut instances = runners(history, attempt).into_iter().map(|(instance, _)| instance);
            let first = instances.next()?;
            // A second start by the first instance.
            let again = history
                .iter()
                .any(|step| step.attempt == attempt && is_duplicate(step) && step.by.as_deref() == Some(&first));
            let others: Vec<String> = again.then(|| first.clone()).into_iter().chain(instances).collect();
            (!others.is_empty()).then_some(DuplicateStart { attempt, first, others })
        })
        .collect()
}

/// Records in an occurrence's history that `instance` started `attempt`, if another instance started it too. Every
/// start but the first becomes a status change next to the first one, so that the last status change stays the last.
/// Returns true if anything was added.
pub fn record_duplicate_start(
    history: &mut Vec<StatusChange>,
    attempt: i32,
    instance: &str,
    at: DateTime<Utc>,
) -> bool {
    let mut runners = runners(history, attempt);
    let Some(first) = runners.first().map(|(first, _)| first.clone()) else { return false };
    if !runners.iter().any(|(known, _)| known == instance) {
        runners.push((instance.to_owned(), at));
    }
    let mut is_new = false;
    for (instance, at) in runners.into_iter().skip(1) {
        let is_recorded = |step: &StatusChange| {
            step.attempt == attempt
                && step.status == OccurrenceStatus::Running
                && step.by.as_deref() == Some(instance.as_str())
        };
        if history.iter().any(is_recorded) {
            continue;
        }
        let of_attempt = |step: &StatusChange| step.attempt == attempt && step.status != OccurrenceStatus::Queued;
        let is_start = |step: &StatusChange| step.attempt == attempt && step.status == OccurrenceStatus::Running;
        let index = match history.iter().rposition(is_start) {
            Some(start) => start + 1,
            None => history.iter().position(of_attempt).unwrap_or(history.len()),
        };
        let note = Some(format!("{DUPLICATE_START_NOTE}: {first} had already started this attempt"));
        let status = OccurrenceStatus::Running;
        history.insert(index, StatusChange { status, at, attempt, by: Some(instance), note });
        is_new = true;
    }
    is_new
}

/// Records in an occurrence's history that `instance` started `attempt` a second time, if its first start is in the history
/// with another time. Returns true if it was added.
///
/// The same report may arrive twice, with the same time. An instance that announced its start with a claim check reports it
/// again within a moment; so two times within [`SAME_START_SECONDS`] are one start.
pub fn record_second_start(history: &mut Vec<StatusChange>, attempt: i32, instance: &str, at: DateTime<Utc>) -> bool {
    let is_own = |step: &StatusChange| {
        step.status == OccurrenceStatus::Running
            && step.attempt == attempt
            && step.by.as_deref() == Some(instance)
            && (step.note.is_none() || is_duplicate(step))
    };
    let starts: Vec<(usize, DateTime<Utc>)> =
        history.iter().enumerate().filter(|(_, step)| is_own(step)).map(|(index, step)| (index, step.at)).collect();
    let is_same = |start: &(usize, DateTime<Utc>)| (at - start.1).num_seconds().abs() < SAME_START_SECONDS;
    let Some((index, _)) = starts.last().filter(|_| !starts.iter().any(is_same)) else { return false };
    let note = Some(format!("{DUPLICATE_START_NOTE}: the same instance had already started this attempt"));
    let (status, by) = (OccurrenceStatus::Running, Some(instance.to_owned()));
    history.insert(index + 1, StatusChange { status, at, attempt, by, note });
    true
}

/// Returns the instances that reported to have run an attempt, each with the time of its first status change, in the
/// order of the history. Instances that were recorded as duplicates come last, wherever their status change is.
fn runners(history: &[StatusChange], attempt: i32) -> Vec<(String, DateTime<Utc>)> {
    let mut runners: Vec<(String, DateTime<Utc>)> = Vec::new();
    let steps = history.iter().filter(|step| step.attempt == attempt && shows_a_run(step));
    let (duplicates, reported): (Vec<&StatusChange>, Vec<&StatusChange>) = steps.partition(|step| is_duplicate(step));
    for step in reported.into_iter().chain(duplicates) {
        let Some(by) = &step.by else { continue };
        if !runners.iter().any(|(known, _)| known == by) {
            runners.push((by.clone(), step.at));
        }
    }
    runners
}

/// Returns true if a status change shows that an instance ran the attempt. A Running change with another note is a
/// user's cancellation request, and an attempt may be reported as Cancelled by an instance that never started it.
fn shows_a_run(step: &StatusChange) -> bool {
    match step.status {
        OccurrenceStatus::Running => step.note.is_none() || is_duplicate(step),
        OccurrenceStatus::Completed | OccurrenceStatus::Failed | OccurrenceStatus::TimedOut => true,
        _ => false,
    }
}

fn is_duplicate(step: &StatusChange) -> bool {
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

    #[test]
    fn second_start_by_the_same_instance_is_recorded_once() {
        use OccurrenceStatus as S;
        let mut history = vec![step(0, S::Queued, 1, None), step(5, S::Running, 1, Some("a"))];
        assert!(!record_second_start(&mut history, 1, "a", at(5)), "the same report again");
        assert!(!record_second_start(&mut history, 1, "a", at(7)), "an announced start");
        assert!(!record_second_start(&mut history, 1, "b", at(20)), "another instance is a duplicate start");
        assert!(!record_second_start(&mut history, 2, "a", at(20)), "the next attempt");
        assert!(find_duplicate_starts(&history).is_empty());
        assert!(record_second_start(&mut history, 1, "a", at(20)));
        assert!(!record_second_start(&mut history, 1, "a", at(20)), "it is recorded already");
        let found = find_duplicate_starts(&history);
        assert_eq!((found[0].first.as_str(), found[0].others.as_slice()), ("a", &["a".to_owned()][..]));
        history.push(step(30, S::Completed, 1, Some("a")));
        assert_eq!(find_duplicate_starts(&history).len(), 1);
    }

    fn words(history: &[StatusChange]) -> Vec<String> {
        history.iter().map(|step| format!("{} {}", step.status.slug(), step.by.as_deref().unwrap_or("-"))).collect()
    }

    /// A history of two attempts. The first one was lost with its worker.
    fn history() -> Vec<StatusChange> {
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
    fn later_attempt_elsewhere_is_not_a_duplicate() {
        let mut history = history();
        assert_eq!(find_duplicate_starts(&history), []);
        assert!(!record_duplicate_start(&mut history, 1, "a", at(2)));
        assert!(!record_duplicate_start(&mut history, 2, "b", at(12)));
        assert!(!record_duplicate_start(&mut history, 3, "c", at(12)), "no instance reported that attempt");
        assert_eq!(history.len(), 5);
    }

    #[test]
    fn second_start_is_recorded_once_next_to_the_first() {
        let mut history = history();
        assert!(record_duplicate_start(&mut history, 2, "c", at(12)));
        assert!(!record_duplicate_start(&mut history, 2, "c", at(12)));
        assert!(record_duplicate_start(&mut history, 1, "b", at(3)));
        assert_eq!(
            words(&history),
            ["queued ann", "running a", "running b", "queued -", "running b", "running c", "completed b"]
        );
        assert_eq!(history[5].note.as_deref(), Some("duplicate start: b had already started this attempt"));
        let found = find_duplicate_starts(&history);
        assert_eq!(found.iter().map(|one| (one.attempt, one.first.as_str())).collect::<Vec<_>>(), [(1, "a"), (2, "b")]);
        assert_eq!(found[1].others, ["c"]);
    }

    #[test]
    fn instance_that_reported_the_end_counts_as_a_start() {
        use OccurrenceStatus as S;
        let mut history = vec![
            step(0, S::Queued, 1, None),
            step(1, S::Running, 1, Some("a")),
            StatusChange { note: Some("cancellation requested".into()), ..step(2, S::Running, 1, Some("ann")) },
            step(3, S::Completed, 1, Some("b")),
        ];
        assert_eq!(find_duplicate_starts(&history)[0].others, ["b"], "the user who cancelled is not an instance");
        assert!(record_duplicate_start(&mut history, 1, "a", at(4)));
        assert_eq!(words(&history), ["queued -", "running a", "running ann", "running b", "completed b"]);
    }

    #[test]
    fn instance_that_reported_only_the_end_is_first() {
        use OccurrenceStatus as S;
        let mut history =
            vec![step(0, S::Queued, 1, None), step(2, S::Failed, 1, Some("a")), step(2, S::Queued, 2, None)];
        assert!(record_duplicate_start(&mut history, 1, "b", at(1)));
        assert_eq!(words(&history), ["queued -", "running b", "failed a", "queued -"]);
        let found = find_duplicate_starts(&history);
        assert_eq!((found[0].first.as_str(), found[0].others.as_slice()), ("a", ["b".to_owned()].as_slice()));
        assert!(
            !record_duplicate_start(&mut history, 1, "a", at(2))
                && !record_duplicate_start(&mut history, 1, "b", at(1)),
            "known starts are not recorded again"
        );
    }

    #[test]
    fn declined_attempt_was_not_started() {
        use OccurrenceStatus as S;
        let history =
            [step(0, S::Queued, 1, None), step(1, S::Running, 1, Some("a")), step(2, S::Cancelled, 1, Some("b"))];
        assert_eq!(find_duplicate_starts(&history), []);
    }

    #[test]
    fn start_after_the_end_is_no_duplicate_start() {
        use OccurrenceStatus as S;
        let mut history = vec![step(0, S::Queued, 1, Some("ann")), step(1, S::Cancelled, 1, Some("ann"))];
        for (instance, is_new) in [("a", true), ("a", false), ("b", true)] {
            assert_eq!(record_start_after_end(&mut history, S::Cancelled, 1, instance, at(5)), is_new);
            assert!(!record_duplicate_start(&mut history, 1, instance, at(5)), "no instance ran it before the end");
        }
        assert_eq!(words(&history), ["queued ann", "cancelled ann", "running a", "running b"]);
        assert_eq!(history[2].note.as_deref(), Some("started after the end: the occurrence was already cancelled"));
        assert_eq!(find_duplicate_starts(&history), []);
        let found = find_starts_after_end(&history);
        assert_eq!(found.iter().map(|one| one.instance.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        // An attempt that an instance had started before the end was started twice.
        let mut started = vec![step(1, S::Running, 1, Some("a")), step(2, S::Completed, 1, Some("a"))];
        assert!(!record_start_after_end(&mut started, S::Completed, 1, "b", at(5)));
        assert!(record_duplicate_start(&mut started, 1, "b", at(5)));
    }
}
