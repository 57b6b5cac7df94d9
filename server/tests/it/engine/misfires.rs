//! Misfire policies: the occurrences of due times that passed while no scheduler ran.

use chrono::Duration;
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_schedule::{
    rules::{MisfirePolicy, Rules},
    schedule::Schedule,
};
use milvaion_test_support::{jobs, manual_clock::ManualClockHarness};

fn rules(misfire: MisfirePolicy) -> Rules {
    Rules { misfire, ..Rules::default() }
}

#[tokio::test]
async fn fire_once_creates_one_occurrence_with_a_reason() {
    let harness = ManualClockHarness::open().await;
    let due = harness.clock.now() - Duration::seconds(600);
    let job = harness.job(Schedule::every(60), rules(MisfirePolicy::FireOnce), Some(due)).await;
    let rows = harness.occurrences(job, 1).await;
    harness.starts(1).await;
    assert_eq!(rows[0].scheduled_for, due);
    let view = harness.server.store.occurrence(rows[0].id, 1, due).await;
    let view = view.expect("the query succeeds").expect("it exists");
    assert_eq!(view.trigger_reason.as_deref(), Some("also covers 10 due times that passed before it ran"));
    assert_eq!(harness.next_due(job).await, Some(harness.clock.now() + Duration::seconds(60)));
    assert_eq!(harness.rows(job).await.len(), 1);
    harness.close().await;
}

#[tokio::test]
async fn skip_creates_one_row_with_the_number_of_misfires() {
    let harness = ManualClockHarness::open().await;
    let due = harness.clock.now() - Duration::seconds(600);
    let job = harness.job(Schedule::every(60), rules(MisfirePolicy::Skip), Some(due)).await;
    let rows = harness.occurrences(job, 1).await;
    assert_eq!(rows[0].status, OccurrenceStatus::Skipped);
    assert!(rows[0].note.as_deref().is_some_and(|note| note.contains("11 due times")), "{:?}", rows[0].note);
    harness.advance(Duration::seconds(60)).await;
    harness.starts(1).await;
    harness.close().await;
}

#[tokio::test]
async fn catch_up_runs_misfires_up_to_its_limit() {
    let harness = ManualClockHarness::open().await;
    let due = harness.clock.now() - Duration::seconds(600);
    let limit = Rules { catch_up_limit: 5, ..rules(MisfirePolicy::CatchUp) };
    let job = harness.job(Schedule::every(60), limit, Some(due)).await;
    let rows = harness.occurrences(job, 6).await;
    harness.starts(5).await;
    assert_eq!(rows[0].status, OccurrenceStatus::Skipped);
    let due_times: Vec<_> = rows[1..].iter().map(|row| (row.scheduled_for - due).num_seconds()).collect();
    assert_eq!(due_times, [360, 420, 480, 540, 600]);
    harness.close().await;
}

#[tokio::test]
async fn resumed_job_catches_nothing_up() {
    let harness = ManualClockHarness::open().await;
    let rules = Rules { catch_up_window_seconds: 2_592_000, catch_up_limit: 1_000, ..rules(MisfirePolicy::CatchUp) };
    let now = harness.clock.now();
    let job = harness.job(Schedule::every(3_600), rules, Some(now + Duration::seconds(3_600))).await;
    let me = jobs::admin();
    harness.server.jobs.set_active(&me, job, false, "holidays").await.expect("paused");
    harness.advance(Duration::days(30)).await;
    harness.server.jobs.set_active(&me, job, true, "").await.expect("resumed");
    assert_eq!(harness.next_due(job).await, Some(harness.clock.now() + Duration::seconds(3_600)));
    assert!(harness.rows(job).await.is_empty());
    harness.close().await;
}
