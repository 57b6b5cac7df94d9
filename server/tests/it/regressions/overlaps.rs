//! Moments at which the overlap policy `Skip` must hold.

use chrono::Duration;
use milvaion_protocol::{
    id::JobId,
    status::OccurrenceStatus::{self, Completed, Queued, Running, Skipped},
};
use milvaion_schedule::{
    rules::{OverlapPolicy, Rules},
    schedule::Schedule,
};
use milvaion_server::store::{jobs::AuditStamp, manual_runs::NewManualRun};
use milvaion_test_support::manual_clock::ManualClockHarness;

const MINUTE: Duration = Duration::seconds(60);

/// Inserts a job that is due each minute and skips overlaps.
async fn skipping_job(harness: &ManualClockHarness) -> JobId {
    let rules = Rules { overlap: OverlapPolicy::Skip, ..Rules::default() };
    harness.job(Schedule::every(60), rules, Some(harness.clock.now())).await
}

/// Advances to the next due time. Returns the status of each occurrence so far.
async fn next_minute(harness: &ManualClockHarness, job: JobId) -> Vec<OccurrenceStatus> {
    let already = harness.occurrences(job, 1).await.len();
    harness.advance(MINUTE).await;
    harness.occurrences(job, already + 1).await.iter().map(|row| row.status).collect()
}

#[tokio::test]
async fn skip_holds_before_the_first_report() {
    let harness = ManualClockHarness::without_worker().await;
    let job = skipping_job(&harness).await;
    let first = harness.occurrences(job, 1).await[0].id;
    assert_eq!(next_minute(&harness, job).await, [Queued, Skipped], "the first occurrence has no report yet");
    assert!(harness.report(first, Running).await);
    assert_eq!(next_minute(&harness, job).await, [Running, Skipped, Skipped]);
    assert!(harness.report(first, Completed).await);
    assert_eq!(next_minute(&harness, job).await, [Completed, Skipped, Skipped, Queued]);
    harness.close().await;
}

#[tokio::test]
async fn skip_holds_after_forced_runs_and_cancel_requests() {
    let harness = ManualClockHarness::without_worker().await;
    let job = skipping_job(&harness).await;
    let first = harness.occurrences(job, 1).await[0].id;
    assert!(harness.report(first, Running).await);

    // A forced manual run beside it, which ends.
    harness.clock.advance(Duration::seconds(1));
    let forced = NewManualRun {
        id: harness.clock.occurrence_id(),
        job_id: job,
        by: "ana".into(),
        force: true,
        ..NewManualRun::default()
    };
    let store = &harness.server.store;
    let outcome = store.insert_manual_run(&forced, harness.clock.now()).await.expect("the query succeeds");
    outcome.into_created().expect("it is created");
    assert!(harness.report(forced.id, Running).await);
    assert!(harness.report(forced.id, Completed).await);
    assert_eq!(next_minute(&harness, job).await, [Running, Completed, Skipped]);

    // The first one is to be cancelled, and its worker has not ended it yet.
    let edit = AuditStamp { by: "ana", at: harness.clock.now(), address: None };
    store.cancel(&[first], None, edit).await.expect("the query succeeds");
    assert_eq!(next_minute(&harness, job).await, [Running, Completed, Skipped, Skipped]);
    assert!(harness.report(first, OccurrenceStatus::Cancelled).await);
    assert_eq!(next_minute(&harness, job).await.last(), Some(&Queued));
    harness.close().await;
}
