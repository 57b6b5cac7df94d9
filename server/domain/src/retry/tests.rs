use milvaion_protocol::message::StatusReport;

use super::*;
use crate::transition::fold;

const NOW: DateTime<Utc> = DateTime::UNIX_EPOCH;

fn context(failures: i16, max_retries: i16) -> RetryContext {
    RetryContext {
        failures,
        max_retries,
        base_delay: Duration::from_secs(5),
        jitter_percent: 0,
        is_cancelled: false,
        on_lost: LostRunRule::Requeue,
        requeues: 0,
        is_stopping: false,
    }
}

fn change(status: OccurrenceStatus) -> AttemptChange {
    let report = StatusReport {
        exception: Some("boom".into()),
        duration_ms: Some(7),
        ..StatusReport::new(OccurrenceId::default(), 3, "w-1", status, NOW)
    };
    fold(vec![report]).remove(0)
}

fn occurrence(high: u8, low: u8) -> OccurrenceId {
    OccurrenceId::from_parts(NOW, [0, 0, 0, 0, 0, 0, 0, 0, high, low])
}

fn wait(change: &AttemptChange) -> Option<i64> {
    change.waits_until.map(|until| (until - NOW).num_milliseconds())
}

#[test]
fn backoff_doubles_up_to_one_day() {
    let pauses = [0, 1, 2, 3].map(|failures| backoff(Duration::from_secs(5), failures).as_secs());
    assert_eq!(pauses, [5, 10, 20, 40]);
    assert_eq!(backoff(Duration::from_secs(86_400), 100), MAX_RETRY_BACKOFF);
}

#[test]
fn jitter_shortens_the_delay_within_its_share() {
    let pause = Duration::from_millis(10_500);
    for percent in [0, 1, 20, 100] {
        for n in 0..=255_u8 {
            let drawn = jittered(pause, percent, occurrence(n, 0), 1);
            let least = pause - pause * u32::from(percent) / 100;
            assert!((least..=pause).contains(&drawn), "{percent} %: {drawn:?}");
        }
    }
    let id = occurrence(1, 2);
    assert_eq!(jittered(pause, 0, id, 1), pause);
    assert_eq!(jittered(Duration::ZERO, 100, id, 1), Duration::ZERO);
    assert!(jittered(Duration::MAX, 100, id, 1) <= Duration::MAX);
}

#[test]
fn jitter_spreads_retries_evenly() {
    let pause = Duration::from_secs(100);
    let mut tenths = [0; 10];
    for n in 0..1_000_u16 {
        let [high, low] = n.to_be_bytes();
        let drawn = jittered(pause, 50, occurrence(high, low), 1).as_millis();
        // The delays lie between 50 and 100 s; the whole delay belongs to the last tenth.
        let tenth = (drawn - 50_000) / 5_000;
        tenths[usize::try_from(tenth).expect("small").min(9)] += 1;
    }
    assert!(tenths.iter().all(|count| (60..=140).contains(count)), "a hundred each, more or less: {tenths:?}");
}

#[test]
fn jitter_is_stable_per_attempt() {
    let pause = Duration::from_secs(3_600);
    let draw = |attempt| jittered(pause, 100, occurrence(7, 7), attempt);
    assert_eq!(draw(1), draw(1));
    let mut drawn: Vec<_> = (1..=20).map(draw).collect();
    drawn.sort();
    drawn.dedup();
    assert!(drawn.len() > 15, "{drawn:?}");
}

#[test]
fn failure_with_a_retry_left_is_queued() {
    for status in [OccurrenceStatus::Failed, OccurrenceStatus::TimedOut] {
        let mut change = change(status);
        decide(&mut change, &context(1, 3), NOW);
        assert_eq!((change.status, wait(&change)), (OccurrenceStatus::Queued, Some(10_000)));
        assert!(change.counts_as_failure && change.ended_at.is_none() && change.cause.is_none());
        let steps: Vec<_> = change.steps.iter().map(|step| (step.status, step.attempt)).collect();
        assert_eq!(steps, [(status, 3), (OccurrenceStatus::Queued, 4)]);
        assert_eq!(change.steps[1].note.as_deref(), Some("Retry 2 of 3 in 10 s"));
        // The note of the failure stays readable while the retry waits.
        assert_eq!(change.note.as_deref(), Some("boom"));
    }
}

#[test]
fn final_failure_records_its_cause() {
    for (status, context, permanent, cause) in [
        (OccurrenceStatus::Failed, context(3, 3), false, FailureCause::Exhausted),
        (OccurrenceStatus::Failed, context(0, 0), false, FailureCause::Failed),
        (OccurrenceStatus::Failed, context(0, 3), true, FailureCause::Permanent),
        (OccurrenceStatus::TimedOut, context(3, 3), false, FailureCause::TimedOut),
        (OccurrenceStatus::Failed, RetryContext { is_cancelled: true, ..context(0, 3) }, false, FailureCause::Failed),
    ] {
        let mut change = AttemptChange { permanent, ..change(status) };
        let before = change.clone();
        decide(&mut change, &context, NOW);
        assert_eq!(change.cause, Some(cause));
        assert_eq!(AttemptChange { cause: None, ..change }, before);
    }
}

#[test]
fn worker_may_request_the_delay() {
    let mut change =
        AttemptChange { retry_after: Some(Duration::from_millis(1_500)), ..change(OccurrenceStatus::Failed) };
    decide(&mut change, &context(0, 1), NOW);
    assert_eq!(wait(&change), Some(1_500));
    let mut change = AttemptChange { retry_after: Some(Duration::MAX), ..self::change(OccurrenceStatus::Failed) };
    decide(&mut change, &context(0, 1), NOW);
    assert_eq!(wait(&change), Some(30 * 24 * 3_600_000));
}

#[test]
fn jitter_shortens_backoff_but_not_requested_delay() {
    let context = RetryContext { jitter_percent: 80, ..context(1, 3) };
    let mut change = change(OccurrenceStatus::Failed);
    decide(&mut change, &context, NOW);
    let drawn = jittered(Duration::from_secs(10), 80, OccurrenceId::default(), 3);
    assert!(drawn < Duration::from_secs(10));
    assert_eq!(wait(&change), i64::try_from(drawn.as_millis()).ok());
    let asked = Duration::from_secs(10);
    let mut change = AttemptChange { retry_after: Some(asked), ..self::change(OccurrenceStatus::Failed) };
    decide(&mut change, &context, NOW);
    assert_eq!(wait(&change), Some(10_000));
}

#[test]
fn run_lost_while_its_instance_stopped_counts_no_requeue() {
    for on_lost in [LostRunRule::Requeue, LostRunRule::Fail] {
        let mut change = change(OccurrenceStatus::Unknown);
        decide(&mut change, &RetryContext { on_lost, requeues: 3, is_stopping: true, ..context(0, 0) }, NOW);
        assert_eq!((change.status, change.is_requeue), (OccurrenceStatus::Queued, false), "{on_lost:?}");
    }
}

#[test]
fn lost_run_is_requeued_three_times_then_poison() {
    for (requeues, start) in [(0, "at once"), (1, quarantine::QUARANTINE_NOTE), (2, quarantine::QUARANTINE_NOTE)] {
        let mut change = change(OccurrenceStatus::Unknown);
        decide(&mut change, &RetryContext { requeues, ..context(0, 0) }, NOW);
        assert_eq!((change.status, change.is_requeue), (OccurrenceStatus::Queued, true));
        assert!(!change.counts_as_failure);
        assert_eq!((wait(&change), change.is_quarantined), (Some(0), requeues >= 1));
        let note = change.steps[0].note.as_deref().unwrap_or_default();
        assert!(note.ends_with(&format!("attempt 4 starts {start}")), "{note}");
    }
    let mut change = change(OccurrenceStatus::Unknown);
    decide(&mut change, &RetryContext { requeues: 3, ..context(0, 5) }, NOW);
    assert_eq!((change.status, change.cause), (OccurrenceStatus::Failed, Some(FailureCause::Poison)));
    assert!(change.waits_until.is_none() && change.ended_at.is_some());
}

#[test]
fn lost_run_that_must_not_repeat_is_unknown() {
    let strict = RetryContext { on_lost: LostRunRule::Fail, ..context(0, 5) };
    let mut lost = change(OccurrenceStatus::Unknown);
    decide(&mut lost, &strict, NOW);
    assert_eq!((lost.status, lost.ended_at, lost.waits_until), (OccurrenceStatus::Unknown, None, None));
    let mut cancelled = change(OccurrenceStatus::Unknown);
    decide(&mut cancelled, &RetryContext { is_cancelled: true, ..strict }, NOW);
    assert_eq!(cancelled.status, OccurrenceStatus::Cancelled);
}

#[test]
fn handed_back_attempt_is_not_a_failure() {
    let mut change = change(OccurrenceStatus::Queued);
    assert!(change.handed_back);
    decide(&mut change, &context(0, 0), NOW);
    assert_eq!((change.status, wait(&change)), (OccurrenceStatus::Queued, Some(0)));
    assert!(!change.counts_as_failure);
    assert_eq!(change.steps[0].note.as_deref(), Some("Handed back by the worker: boom; attempt 4 starts at once"));
    let mut silent = AttemptChange { note: None, ..self::change(OccurrenceStatus::Queued) };
    decide(&mut silent, &context(0, 0), NOW);
    assert_eq!(silent.steps[0].note.as_deref(), Some("Handed back by the worker; attempt 4 starts at once"));
}

#[test]
fn timeline_keeps_the_reason_of_a_reported_loss() {
    let note = |context: RetryContext| {
        let mut lost = change(OccurrenceStatus::Unknown);
        decide(&mut lost, &context, NOW);
        lost.steps[0].note.clone().unwrap_or_default()
    };
    let requeued = note(context(0, 0));
    assert_eq!(requeued, "Reported as lost by the worker: boom; attempt 4 starts at once");
    for other in [
        RetryContext { on_lost: LostRunRule::Fail, ..context(0, 0) },
        RetryContext { is_cancelled: true, ..context(0, 0) },
        RetryContext { requeues: 3, ..context(0, 0) },
    ] {
        assert!(note(other.clone()).contains("Reported as lost by the worker: boom"), "{other:?}");
    }
}

#[test]
fn cancelled_run_is_not_requeued_after_hand_back() {
    let mut change = change(OccurrenceStatus::Queued);
    decide(&mut change, &RetryContext { is_cancelled: true, ..context(0, 3) }, NOW);
    assert_eq!((change.status, change.ended_at), (OccurrenceStatus::Cancelled, Some(NOW)));
}

#[test]
fn other_changes_stay_as_they_are() {
    for status in [OccurrenceStatus::Running, OccurrenceStatus::Completed, OccurrenceStatus::Cancelled] {
        let mut change = change(status);
        let before = change.clone();
        decide(&mut change, &context(0, 3), NOW);
        assert_eq!(change, before);
    }
}

#[test]
fn run_that_was_lost_repeatedly_stays_quarantined() {
    for status in [OccurrenceStatus::Failed, OccurrenceStatus::TimedOut, OccurrenceStatus::Queued] {
        let mut change = change(status);
        decide(&mut change, &RetryContext { requeues: 2, ..context(0, 3) }, NOW);
        assert!(change.is_quarantined, "{status:?}");
    }
}
