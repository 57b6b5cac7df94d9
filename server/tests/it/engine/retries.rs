//! Retries: a failed attempt is followed by another one after a delay, until the retries are used up. A delayed attempt
//! uses no resources of a worker.

use chrono::Duration;
use milvaion_api::{
    failures::{FailureCause, FailureFilter},
    views::{OccurrenceRow, OccurrenceView},
};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::StatusReport,
    status::OccurrenceStatus,
};
use milvaion_schedule::{
    rules::{OverlapPolicy, Rules},
    schedule::Schedule,
};
use milvaion_server::{
    clock::Clock,
    domain::retry,
    store::{Store, delayed::NextDelayedTimes, jobs::AuditStamp},
};
use milvaion_test_support::{
    database::{self, TestConnection},
    jobs,
    manual_clock::{ManualClockHarness, RunEnding},
    runs, wait,
};

fn rules(max_retries: u16) -> Rules {
    Rules { max_retries, base_retry_delay_seconds: 5, ..Rules::default() }
}

async fn once(harness: &ManualClockHarness, rules: Rules) -> JobId {
    let now = harness.clock.now();
    harness.job(Schedule::once(now), rules, Some(now)).await
}

async fn view(harness: &ManualClockHarness, id: OccurrenceId) -> OccurrenceView {
    let view = harness.server.store.occurrence(id, 100, harness.clock.now()).await.expect("the query succeeds");
    view.expect("it exists")
}

/// Waits until an attempt is delayed. Returns its delay.
async fn delay_of(harness: &ManualClockHarness, job: JobId, id: OccurrenceId, attempt: i32) -> Duration {
    wait::eventually("a delayed attempt", || async {
        let row = harness.rows(job).await.into_iter().find(|row| row.id == id && row.attempt == attempt)?;
        row.waits_until.map(|until| until - harness.clock.now())
    })
    .await
}

#[tokio::test]
async fn retry_delay_doubles_until_no_retry_is_left() {
    let harness = ManualClockHarness::open().await;
    let job = once(&harness, rules(2)).await;
    let id = harness.starts(1).await[0];
    for (attempt, delay) in [(2, 5), (3, 10)] {
        harness.gate.end_one(RunEnding::Fails);
        assert_eq!(delay_of(&harness, job, id, attempt).await, Duration::seconds(delay));
        let delayed = view(&harness, id).await;
        assert_eq!(delayed.row.status, OccurrenceStatus::Queued);
        assert_eq!(delayed.row.note.as_deref(), Some("the connection is lost"));
        assert_eq!((delayed.published_at, delayed.row.instance_id.as_deref()), (None, None));
        // One millisecond early, nothing is released.
        harness.advance(Duration::milliseconds(delay * 1_000 - 1)).await;
        let released = harness.server.store.release_delayed(harness.clock.now(), 10).await;
        assert!(released.expect("the query succeeds").is_empty());
        harness.advance(Duration::milliseconds(1)).await;
        assert_eq!(harness.starts(attempt as usize).await.last(), Some(&id));
    }
    harness.gate.end_one(RunEnding::Fails);
    harness.becomes(job, id, OccurrenceStatus::Failed).await;

    let view = view(&harness, id).await;
    let steps: Vec<_> = view.changes.iter().map(|step| (step.status, step.attempt)).collect();
    use OccurrenceStatus::{Failed, Queued, Running};
    let expected = [(1, Queued), (1, Running), (1, Failed), (2, Queued), (2, Running), (2, Failed), (3, Queued)];
    let expected = expected.into_iter().chain([(3, Running), (3, Failed)]);
    assert_eq!(steps, expected.map(|(attempt, status)| (status, attempt)).collect::<Vec<_>>());
    assert_eq!(view.changes[3].note.as_deref(), Some("Retry 1 of 2 in 5 s"));
    // The log contains the failure of each attempt.
    wait::eventually("three log lines", || async {
        let lines = harness.server.store.log_before(id, i64::MAX, 100).await.expect("the query succeeds");
        (lines.iter().filter(|line| line.message == "the connection is lost").count() == 3).then_some(())
    })
    .await;
    let failures = harness.server.store.failures(&FailureFilter::default()).await.expect("the query succeeds").rows;
    assert_eq!(failures.iter().map(|row| (row.cause, row.attempt)).collect::<Vec<_>>(), [(FailureCause::Exhausted, 3)]);
    harness.close().await;
}

#[tokio::test]
async fn retry_jitter_is_the_same_on_every_server() {
    let harness = ManualClockHarness::open().await;
    let job = once(&harness, Rules { retry_jitter_percent: 50, ..rules(1) }).await;
    let id = harness.starts(1).await[0];
    harness.gate.end_one(RunEnding::Fails);
    let jittered = retry::jittered(std::time::Duration::from_secs(5), 50, id, 1);
    assert_eq!(delay_of(&harness, job, id, 2).await.to_std().expect("a time in the future"), jittered);
    harness.advance(Duration::seconds(5)).await;
    harness.starts(2).await;
    harness.gate.complete_one();
    harness.becomes(job, id, OccurrenceStatus::Completed).await;
    harness.close().await;
}

#[tokio::test]
async fn successful_retry_completes_the_occurrence() {
    let harness = ManualClockHarness::open().await;
    let job = once(&harness, rules(1)).await;
    let id = harness.starts(1).await[0];
    harness.gate.end_one(RunEnding::Fails);
    delay_of(&harness, job, id, 2).await;
    harness.advance(Duration::seconds(5)).await;
    harness.starts(2).await;
    harness.gate.complete_one();
    let row = harness.becomes(job, id, OccurrenceStatus::Completed).await;
    assert_eq!((row.attempt, row.note), (2, None));
    assert_eq!(view(&harness, id).await.exception, None, "the first attempt's exception is in the log only");
    let failures = harness.server.store.failures(&FailureFilter::default()).await.expect("the query succeeds");
    assert!(failures.rows.is_empty());
    harness.close().await;
}

#[tokio::test]
async fn permanent_failure_is_not_retried() {
    let harness = ManualClockHarness::open().await;
    let job = once(&harness, rules(5)).await;
    let id = harness.starts(1).await[0];
    harness.gate.end_one(RunEnding::FailsPermanently);
    harness.becomes(job, id, OccurrenceStatus::Failed).await;
    let failures = harness.server.store.failures(&FailureFilter::default()).await.expect("the query succeeds").rows;
    assert_eq!(failures.iter().map(|row| row.cause).collect::<Vec<_>>(), [FailureCause::Permanent]);
    harness.close().await;
}

#[tokio::test]
async fn snoozing_uses_up_no_retry() {
    let harness = ManualClockHarness::open().await;
    let job = once(&harness, rules(0)).await;
    let id = harness.starts(1).await[0];
    for attempt in 2..=4 {
        harness.gate.end_one(RunEnding::Snoozes(90));
        assert_eq!(delay_of(&harness, job, id, attempt).await, Duration::seconds(90));
        harness.advance(Duration::seconds(90)).await;
        harness.starts(attempt as usize).await;
    }
    harness.gate.complete_one();
    assert_eq!(harness.becomes(job, id, OccurrenceStatus::Completed).await.attempt, 4);
    harness.close().await;
}

#[tokio::test]
async fn delayed_occurrence_keeps_its_slot_until_cancelled() {
    let harness = ManualClockHarness::open().await;
    let rules = Rules { overlap: OverlapPolicy::Queue, base_retry_delay_seconds: 300, ..rules(3) };
    let job = harness.job(Schedule::every(60), rules, Some(harness.clock.now())).await;
    let id = harness.starts(1).await[0];
    harness.gate.end_one(RunEnding::Fails);
    delay_of(&harness, job, id, 2).await;
    harness.advance(Duration::seconds(60)).await;
    let second = harness.occurrences(job, 2).await[1].id;
    // The second occurrence is created while the first is delayed, and gets no slot before it.
    assert!(harness.server.store.grant_slots(10, harness.clock.now()).await.expect("the query succeeds").is_empty());
    let edit = AuditStamp { by: "ana", at: harness.clock.now(), address: None };
    harness.server.store.cancel(&[id], Some("not today"), edit).await.expect("the query succeeds");
    harness.server.jobs.activate_slot_granter.notify_one();
    assert_eq!(harness.starts(2).await[1], second, "the cancelled occurrence does not start again");
    let row = harness.rows(job).await.into_iter().find(|row| row.id == id).expect("it exists");
    assert_eq!((row.status, row.waits_until), (OccurrenceStatus::Cancelled, None));
    let released = harness.server.store.release_delayed(harness.clock.now() + Duration::days(1), 10).await;
    assert!(released.expect("the query succeeds").is_empty());
    harness.close().await;
}

/// Creates `count` occurrences whose first attempt failed. Returns their ids.
async fn insert_failed(store: &Store, clock: &Clock, count: usize) -> Vec<OccurrenceId> {
    let job = milvaion_api::requests::JobInput { rules: rules(3), ..jobs::echo_job(Schedule::every(60)) };
    let job_id = jobs::insert_job(store, clock, &job, None).await;
    let mut reports = Vec::new();
    for _ in 0..count {
        let id = runs::insert_manual(store, clock, job_id).await;
        reports.push(StatusReport {
            exception: Some("the connection is lost".into()),
            duration_ms: Some(1),
            ..StatusReport::new(id, 1, "w-1", OccurrenceStatus::Failed, clock.now())
        });
    }
    let applied = runs::report_with_retries(store, clock, reports.clone()).await;
    assert!(applied.has_delayed && applied.rows.len() == count);
    // Repeated reports change nothing, because their attempt has ended.
    assert!(runs::report_with_retries(store, clock, reports).await.rows.is_empty());
    applied.rows.into_iter().map(|row| row.id).collect()
}

/// Releases `count` delayed occurrences on two servers at once, in batches of `batch`.
async fn release_twice(count: usize, batch: i64) {
    let store = database::fresh().await;
    let clock = Clock::system();
    let mut ids = insert_failed(&store, &clock, count).await;
    let unsent = store.claim_unsent(clock.now() + Duration::days(1), &[], &[], 10, clock.now()).await;
    assert!(unsent.expect("the query succeeds").is_empty());
    let until =
        store.next_delayed_times().await.expect("the query succeeds").outside_quarantine.expect("some are delayed");
    let early = store.release_delayed(until - Duration::milliseconds(1), 10).await;
    assert!(early.expect("the query succeeds").is_empty());
    // Two servers at once, as when both wake up for the same time.
    let mut released = Vec::new();
    loop {
        let (one, two) = tokio::join!(store.release_delayed(until, batch), store.release_delayed(until, batch));
        let (one, two) = (one.expect("the query succeeds"), two.expect("the query succeeds"));
        if one.is_empty() && two.is_empty() {
            break;
        }
        released.extend(one.into_iter().chain(two));
    }
    assert!(released.iter().all(|queued| (queued.attempt, queued.failures) == (2, 1)));
    let mut released: Vec<_> = released.into_iter().map(|queued| queued.id).collect();
    released.sort();
    ids.sort();
    assert_eq!(released, ids);
}

#[tokio::test]
async fn delayed_occurrences_are_released_once() {
    release_twice(100, 30).await;
}

#[tokio::test]
async fn cluster_pause_keeps_delayed_occurrences() {
    let store = database::fresh().await;
    let clock = Clock::system();
    insert_failed(&store, &clock, 3).await;
    let later = clock.now() + Duration::hours(1);
    let edit = AuditStamp { by: "ana", at: clock.now(), address: None };
    store.pause_cluster("the warehouse moves", edit).await.expect("the query succeeds");
    assert!(store.release_delayed(later, 10).await.expect("the query succeeds").is_empty());
    assert_eq!(
        store.next_delayed_times().await.expect("the query succeeds"),
        NextDelayedTimes::default(),
        "there is no time to wake up for"
    );
    store.resume_cluster(edit).await.expect("the query succeeds");
    assert_eq!(store.release_delayed(later, 10).await.expect("the query succeeds").len(), 3);
}

#[tokio::test]
async fn quarantined_retries_start_one_after_the_other() {
    let harness = ManualClockHarness::open().await;
    let jobs = [once(&harness, rules(1)).await, once(&harness, rules(1)).await];
    harness.starts(2).await;
    let mut connection = TestConnection::open(&harness.config.database.url).await;
    connection.execute("UPDATE runs SET requeues = 3").await;
    // The next attempt is quarantined, whatever the result of this one is.
    while let Some(id) = harness.gate.end_one(RunEnding::Fails) {
        let job = view(&harness, id).await.row.job_id;
        delay_of(&harness, job, id, 2).await;
    }
    harness.advance(Duration::seconds(5)).await;
    let first = harness.starts(3).await[2];
    let waiting = |row: &OccurrenceRow| row.waits_until.is_some();
    let mut rows = harness.rows(jobs[0]).await;
    rows.extend(harness.rows(jobs[1]).await);
    assert_eq!(rows.iter().filter(|row| waiting(row)).count(), 1, "the other is still delayed");
    harness.gate.complete_one();
    let second = harness.starts(4).await[3];
    assert_ne!(first, second);
    assert_eq!(harness.gate.max_concurrent(), 2, "concurrent only before the quarantine");
    harness.close().await;
}

mod exhaustive {
    use super::*;

    #[tokio::test]
    async fn thousand_delayed_occurrences_are_released_once() {
        release_twice(1_000, 300).await;
    }
}
