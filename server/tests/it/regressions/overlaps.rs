//! The windows of a rule that says "never two at once".

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

use super::harness::ReportingHarness;

const MINUTE: Duration = Duration::seconds(60);

async fn skipping(harness: &ReportingHarness) -> JobId {
    harness.job(Schedule::every(60), Rules { overlap: OverlapPolicy::Skip, ..Rules::default() }).await
}

/// Lets the next fire come, and says what became of each so far.
async fn next(harness: &ReportingHarness, job: JobId) -> Vec<OccurrenceStatus> {
    let already = harness.occurrences(job, 1).await.len();
    harness.pass(MINUTE).await;
    harness.occurrences(job, already + 1).await.iter().map(|row| row.status).collect()
}

#[tokio::test]
async fn mv18_skip_holds_between_the_fire_and_the_workers_first_word() {
    let harness = ReportingHarness::open().await;
    let job = skipping(&harness).await;
    let first = harness.occurrences(job, 1).await[0].id;
    assert_eq!(next(&harness, job).await, [Queued, Skipped], "nobody has said that the first one runs");
    assert!(harness.tell(first, Running).await);
    assert_eq!(next(&harness, job).await, [Running, Skipped, Skipped]);
    assert!(harness.tell(first, Completed).await);
    assert_eq!(next(&harness, job).await, [Completed, Skipped, Skipped, Queued]);
    harness.server.stop().await;
}

#[tokio::test]
async fn mv18_the_end_of_another_occurrence_and_the_wish_to_end_this_one_open_no_window() {
    let harness = ReportingHarness::open().await;
    let job = skipping(&harness).await;
    let first = harness.occurrences(job, 1).await[0].id;
    assert!(harness.tell(first, Running).await);

    // Somebody insists on a run beside it, and that one ends.
    harness.clock.advance(Duration::seconds(1));
    let asked = NewManualRun {
        id: harness.clock.occurrence_id(),
        job_id: job,
        by: "ana".into(),
        force: true,
        ..NewManualRun::default()
    };
    let store = &harness.server.store;
    store.insert_manual_run(&asked, harness.clock.now()).await.expect("answered").into_created().expect("made");
    assert!(harness.tell(asked.id, Running).await);
    assert!(harness.tell(asked.id, Completed).await);
    assert_eq!(next(&harness, job).await, [Running, Completed, Skipped]);

    // Somebody wants the first one to end; its worker has not ended it yet.
    let edit = AuditStamp { by: "ana", at: harness.clock.now() };
    store.cancel(&[first], None, edit).await.expect("answered");
    assert_eq!(next(&harness, job).await, [Running, Completed, Skipped, Skipped]);
    assert!(harness.tell(first, OccurrenceStatus::Cancelled).await);
    assert_eq!(next(&harness, job).await.last(), Some(&Queued));
    harness.server.stop().await;
}
