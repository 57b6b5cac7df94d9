//! Overlap policies: an occurrence that is due while the previous one is open.

use chrono::Duration;
use milvaion_protocol::{
    id::JobId,
    status::OccurrenceStatus::{self, Completed, Queued, Running, Skipped},
};
use milvaion_schedule::{
    rules::{OverlapPolicy, Rules},
    schedule::{IntervalAnchor, Schedule},
};
use milvaion_server::store::{create::NewRun, jobs::AuditStamp};
use milvaion_test_support::{jobs, manual_clock::ManualClockHarness, wait};

const MINUTE: Duration = Duration::seconds(60);

fn rules(overlap: OverlapPolicy) -> Rules {
    Rules { overlap, ..Rules::default() }
}

#[tokio::test]
async fn skip_records_the_reason() {
    let harness = ManualClockHarness::open().await;
    let now = harness.clock.now();
    let job = harness.job(Schedule::every(60), rules(OverlapPolicy::Skip), Some(now)).await;
    let first = harness.starts(1).await[0];
    harness.advance(Duration::seconds(60)).await;
    let rows = harness.occurrences(job, 2).await;
    assert_eq!(rows[1].status, OccurrenceStatus::Skipped);
    assert_eq!(rows[1].note.as_deref(), Some("Skipped: the previous occurrence is still open."));
    assert_eq!(rows[1].scheduled_for, now + Duration::seconds(60));
    // An open occurrence does not keep a user from skipping the next due time.
    harness.server.jobs.skip_due(&jobs::admin(), job, now + Duration::seconds(120)).await.expect("skipped");

    harness.gate.complete_one();
    harness.becomes(job, first, OccurrenceStatus::Completed).await;
    harness.advance(Duration::seconds(120)).await;
    assert_eq!(harness.starts(2).await.len(), 2, "the skipped occurrence never starts");
    harness.close().await;
}

#[tokio::test]
async fn queue_runs_one_at_a_time_in_order() {
    let harness = ManualClockHarness::open().await;
    let job = harness.job(Schedule::every(60), rules(OverlapPolicy::Queue), Some(harness.clock.now())).await;
    let first = harness.starts(1).await[0];
    harness.becomes(job, first, OccurrenceStatus::Running).await;
    for n in 2..=4 {
        harness.advance(Duration::seconds(60)).await;
        harness.occurrences(job, n).await;
    }
    let rows = harness.rows(job).await;
    assert_eq!(rows.iter().filter(|row| row.status == OccurrenceStatus::Queued).count(), 3);
    for n in 1..=4 {
        let started = harness.starts(n).await;
        assert_eq!(started.len(), n, "one at a time");
        harness.gate.complete_one();
        harness.becomes(job, started[n - 1], OccurrenceStatus::Completed).await;
    }
    let mut in_order = harness.gate.started();
    in_order.sort();
    assert_eq!(harness.gate.started(), in_order, "oldest first");
    assert_eq!(harness.gate.max_concurrent(), 1);
    harness.close().await;
}

#[tokio::test]
async fn replace_cancels_the_previous_occurrence() {
    let harness = ManualClockHarness::open().await;
    let job = harness.job(Schedule::every(60), rules(OverlapPolicy::Replace), Some(harness.clock.now())).await;
    let first = harness.starts(1).await[0];
    for n in 2..=3 {
        // An occurrence that is not known to run would be cancelled in the queue, and its slot would be free at once.
        harness.becomes(job, harness.gate.started()[n - 2], OccurrenceStatus::Running).await;
        harness.advance(Duration::seconds(60)).await;
        let started = harness.starts(n).await;
        let before = harness.becomes(job, started[n - 2], OccurrenceStatus::Cancelled).await;
        assert!(before.note.as_deref().is_some_and(|note| note.contains("Replaced by a newer")), "{before:?}");
    }
    assert_eq!(harness.gate.started()[0], first);
    assert_eq!(harness.gate.max_concurrent(), 1);
    harness.close().await;
}

#[tokio::test]
async fn allow_runs_occurrences_concurrently() {
    let harness = ManualClockHarness::open().await;
    harness.job(Schedule::every(60), rules(OverlapPolicy::Allow), Some(harness.clock.now())).await;
    harness.starts(1).await;
    harness.advance(Duration::seconds(60)).await;
    harness.starts(2).await;
    assert_eq!(harness.gate.max_concurrent(), 2);
    harness.close().await;
}

#[tokio::test]
async fn interval_from_the_end_starts_when_the_run_ends() {
    let harness = ManualClockHarness::open().await;
    let schedule = Schedule::Every { seconds: 60, from: IntervalAnchor::End };
    let job = harness.job(schedule, Rules::default(), Some(harness.clock.now())).await;
    let first = harness.starts(1).await[0];
    assert_eq!(harness.next_due(job).await, None, "not due while it runs");
    // Pausing and resuming the job meanwhile does not change that.
    let me = jobs::admin();
    harness.server.jobs.set_active(&me, job, false, "").await.expect("paused");
    harness.server.jobs.set_active(&me, job, true, "").await.expect("resumed");
    assert_eq!(harness.next_due(job).await, None, "not due while it runs, though it was paused");
    harness.advance(Duration::seconds(300)).await;
    harness.gate.complete_one();
    harness.becomes(job, first, OccurrenceStatus::Completed).await;
    let next = wait::eventually("the next due time", || harness.next_due(job)).await;
    assert_eq!(next, harness.clock.now() + Duration::seconds(60));
    harness.advance(Duration::seconds(60)).await;
    harness.starts(2).await;
    assert_eq!(harness.rows(job).await.len(), 2);
    harness.close().await;
}

/// Inserts a job that is due each minute and skips overlaps.
async fn skipping_job(harness: &ManualClockHarness) -> JobId {
    harness.job(Schedule::every(60), rules(OverlapPolicy::Skip), Some(harness.clock.now())).await
}

/// Advances to the next due time. Returns the status of each occurrence so far.
async fn next_minute(harness: &ManualClockHarness, job: JobId) -> Vec<OccurrenceStatus> {
    let already = harness.occurrences(job, 1).await.len();
    harness.advance(MINUTE).await;
    harness.occurrences(job, already + 1).await.iter().map(|row| row.status).collect()
}

#[tokio::test]
async fn skip_holds_at_every_moment() {
    let harness = ManualClockHarness::without_worker().await;
    skips_before_the_first_report(&harness).await;
    skips_after_a_forced_run_and_a_cancel_request(&harness).await;
    harness.close().await;
}

async fn skips_before_the_first_report(harness: &ManualClockHarness) {
    let job = skipping_job(harness).await;
    let first = harness.occurrences(job, 1).await[0].id;
    assert_eq!(next_minute(harness, job).await, [Queued, Skipped], "the first occurrence has no report yet");
    assert!(harness.report(first, Running).await);
    assert_eq!(next_minute(harness, job).await, [Running, Skipped, Skipped]);
    assert!(harness.report(first, Completed).await);
    assert_eq!(next_minute(harness, job).await, [Completed, Skipped, Skipped, Queued]);
}

async fn skips_after_a_forced_run_and_a_cancel_request(harness: &ManualClockHarness) {
    let job = skipping_job(harness).await;
    let first = harness.occurrences(job, 1).await[0].id;
    assert!(harness.report(first, Running).await);

    // A forced manual run beside it, which ends.
    harness.clock.advance(Duration::seconds(1));
    let forced =
        NewRun { id: harness.clock.occurrence_id(), job_id: job, by: "ana".into(), force: true, ..NewRun::default() };
    let store = &harness.server.store;
    let outcome = store.insert_manual_run(&forced, harness.clock.now()).await.expect("the query succeeds");
    outcome.into_created().expect("it is created");
    assert!(harness.report(forced.id, Running).await);
    assert!(harness.report(forced.id, Completed).await);
    assert_eq!(next_minute(harness, job).await, [Running, Completed, Skipped]);

    // The first one is to be cancelled, and its worker has not ended it yet.
    let edit = AuditStamp { by: "ana", at: harness.clock.now(), address: None };
    store.cancel(&[first], None, edit).await.expect("the query succeeds");
    assert_eq!(next_minute(harness, job).await, [Running, Completed, Skipped, Skipped]);
    assert!(harness.report(first, OccurrenceStatus::Cancelled).await);
    assert_eq!(next_minute(harness, job).await.last(), Some(&Queued));
}
