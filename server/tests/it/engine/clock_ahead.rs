//! A clock that was ahead for a while, and was set back: nothing stays silent, and nothing runs twice.

use chrono::{DateTime, Duration, Utc};
use milvaion_protocol::id::JobId;
use milvaion_schedule::{
    rules::{OverlapPolicy, Rules},
    schedule::Schedule,
};
use milvaion_server::{background::due_times::DueTimeUpdater, engine::Service};
use milvaion_test_support::{
    jobs,
    manual_clock::{ManualClockHarness, RunEnding},
    wait,
};

const AHEAD: Duration = Duration::hours(1);

/// Sets the clock back and repairs what it left. Returns the number of jobs that got an earlier due time.
async fn set_back(harness: &ManualClockHarness) -> usize {
    harness.clock.advance(-AHEAD);
    tick(harness).await
}

/// Runs the first tick of the task, which covers every cause.
async fn tick(harness: &ManualClockHarness) -> usize {
    let (jobs, leadership) = (harness.server.jobs.clone(), harness.server.leadership.clone());
    let mut task = DueTimeUpdater { jobs, leadership, last_repair: None };
    task.tick().await.expect("PostgreSQL and Redis respond").moved
}

async fn due_times(harness: &ManualClockHarness, job: JobId, count: usize) -> Vec<DateTime<Utc>> {
    harness.occurrences(job, count).await.iter().map(|row| row.scheduled_for).collect()
}

#[tokio::test]
async fn silent_job_is_due_again_and_repeats_no_due_time() {
    let harness = ManualClockHarness::open().await;
    let start = harness.clock.now();
    let minutes = |n: i64| start + Duration::minutes(n);
    let rules = Rules { overlap: OverlapPolicy::Allow, ..Rules::default() };
    let job = harness.job(Schedule::every(300), rules, Some(minutes(5))).await;
    harness.advance(AHEAD).await;
    assert_eq!(due_times(&harness, job, 1).await, [minutes(5)], "it covers the hour");
    assert_eq!(harness.next_due(job).await, Some(minutes(65)));
    harness.advance(Duration::minutes(5)).await;
    assert_eq!(due_times(&harness, job, 2).await, [minutes(5), minutes(65)]);
    let (me, jobs) = (jobs::admin(), &harness.server.jobs);
    jobs.skip_due(&me, job, minutes(70)).await.expect("skipped");

    // The clock is right again: it is five minutes after the start.
    assert_eq!(set_back(&harness).await, 1);
    wait::eventually("the next due time that was not dispatched", || async {
        (harness.next_due(job).await == Some(minutes(10))).then_some(())
    })
    .await;
    // A resume keeps what the dispatcher needs to pass the due times that were dispatched.
    for is_active in [false, true] {
        jobs.set_active(&me, job, is_active, "").await.expect("changed");
    }
    for n in 2..=11 {
        harness.advance(Duration::minutes(5)).await;
        let expected: Vec<_> = (1..=n).chain([13, 14]).map(|n| minutes(5 * n)).collect();
        assert_eq!(due_times(&harness, job, expected.len()).await, expected);
    }
    harness.advance(Duration::minutes(10)).await;
    wait::eventually("the due time after the one that was dispatched ahead", || async {
        (harness.next_due(job).await == Some(minutes(70))).then_some(())
    })
    .await;
    let all: Vec<_> = (1..=14).map(|n| minutes(5 * n)).collect();
    assert_eq!(due_times(&harness, job, 14).await, all, "each due time has one occurrence");
    harness.close().await;
}

#[tokio::test]
async fn job_edited_under_the_wrong_clock_is_due_by_the_right_one() {
    let harness = ManualClockHarness::open().await;
    harness.clock.advance(AHEAD);
    let form =
        milvaion_api::requests::JobForm { kind: "cron".into(), cron: "* * * * *".into(), ..jobs::form("Saved ahead") };
    let job = harness.server.jobs.save(&jobs::admin(), &form).await.expect("saved");
    let ahead = harness.next_due(job).await.expect("it is due");
    assert_eq!(set_back(&harness).await, 1);
    let due = harness.next_due(job).await.expect("it is due");
    assert!(due <= ahead - AHEAD, "{due} {ahead}");
    assert_eq!(tick(&harness).await, 0, "the repair is repeated without effect");
    harness.close().await;
}

#[tokio::test]
async fn delayed_attempt_keeps_its_delay() {
    let harness = ManualClockHarness::open().await;
    harness.clock.advance(AHEAD);
    let now = harness.clock.now();
    let job = harness.job(Schedule::once(now), Rules::default(), Some(now)).await;
    harness.starts(1).await;
    harness.gate.end_one(RunEnding::Snoozes(600));
    wait::eventually("the snooze", || async { harness.rows(job).await[0].waits_until }).await;
    set_back(&harness).await;
    let waits = harness.rows(job).await[0].waits_until.expect("it waits") - harness.clock.now();
    assert!(waits <= Duration::seconds(600) && waits > Duration::seconds(590), "{waits}");
    harness.advance(Duration::seconds(600)).await;
    harness.starts(2).await;
    harness.close().await;
}
