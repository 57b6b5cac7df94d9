//! What becomes of fires that were missed while no scheduler was there.

use chrono::Duration;
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_schedule::{
    rules::{MisfirePolicy, Rules},
    schedule::Schedule,
};

use super::harness::ManualClockHarness;

fn rules(misfire: MisfirePolicy) -> Rules {
    Rules { misfire, ..Rules::default() }
}

#[tokio::test]
async fn fire_once_makes_one_occurrence_that_says_what_it_stands_for() {
    let harness = ManualClockHarness::open().await;
    let due = harness.clock.now() - Duration::seconds(600);
    let job = harness.job(Schedule::every(60), rules(MisfirePolicy::FireOnce), Some(due)).await;
    let rows = harness.occurrences(job, 1).await;
    harness.starts(1).await;
    assert_eq!(rows[0].scheduled_for, due);
    let view = harness.server.store.occurrence(rows[0].id, 1, due).await.expect("answered").expect("there");
    assert_eq!(view.trigger_reason.as_deref(), Some("stands for 10 fires more, which came due before it ran"));
    assert_eq!(harness.next(job).await, Some(harness.clock.now() + Duration::seconds(60)));
    assert_eq!(harness.rows(job).await.len(), 1);
    harness.close().await;
}

#[tokio::test]
async fn skip_makes_one_row_that_counts_what_was_missed() {
    let harness = ManualClockHarness::open().await;
    let due = harness.clock.now() - Duration::seconds(600);
    let job = harness.job(Schedule::every(60), rules(MisfirePolicy::Skip), Some(due)).await;
    let rows = harness.occurrences(job, 1).await;
    assert_eq!(rows[0].status, OccurrenceStatus::Skipped);
    assert!(rows[0].note.as_deref().is_some_and(|note| note.contains("11 fires")), "{:?}", rows[0].note);
    harness.pass(Duration::seconds(60)).await;
    harness.starts(1).await;
    harness.close().await;
}

#[tokio::test]
async fn catch_up_runs_every_missed_fire_within_its_limit() {
    let harness = ManualClockHarness::open().await;
    let due = harness.clock.now() - Duration::seconds(600);
    let limit = Rules { catch_up_limit: 5, ..rules(MisfirePolicy::CatchUp) };
    let job = harness.job(Schedule::every(60), limit, Some(due)).await;
    let rows = harness.occurrences(job, 6).await;
    harness.starts(5).await;
    assert_eq!(rows[0].status, OccurrenceStatus::Skipped);
    let instants: Vec<_> = rows[1..].iter().map(|row| (row.scheduled_for - due).num_seconds()).collect();
    assert_eq!(instants, [360, 420, 480, 540, 600]);
    harness.close().await;
}

#[tokio::test]
async fn mv22_a_job_that_is_enabled_again_after_a_month_neither_fires_at_once_nor_floods() {
    let harness = ManualClockHarness::open().await;
    let rules = Rules { catch_up_window_seconds: 2_592_000, catch_up_limit: 1_000, ..rules(MisfirePolicy::CatchUp) };
    let now = harness.clock.now();
    let job = harness.job(Schedule::every(3_600), rules, Some(now + Duration::seconds(3_600))).await;
    let me = milvaion_test_support::stack::admin();
    harness.server.jobs.set_active(&me, job, false, "holidays").await.expect("paused");
    harness.pass(Duration::days(30)).await;
    harness.server.jobs.set_active(&me, job, true, "").await.expect("resumed");
    assert_eq!(harness.next(job).await, Some(harness.clock.now() + Duration::seconds(3_600)));
    assert!(harness.rows(job).await.is_empty());
    harness.close().await;
}
