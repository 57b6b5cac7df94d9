//! Concurrency limits per job and per key, and priorities.

use chrono::Duration;
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_schedule::{
    rules::{ConcurrencyKeyLimit, Rules},
    schedule::Schedule,
};
use milvaion_test_support::{database, jobs, manual_clock::ManualClockHarness};

#[tokio::test]
async fn job_limit_is_never_exceeded() {
    let harness = ManualClockHarness::open().await;
    let rules = Rules { max_concurrent: Some(2), ..Rules::default() };
    let job = harness.job(Schedule::every(60), rules, Some(harness.clock.now())).await;
    for n in 1..=6 {
        harness.occurrences(job, n).await;
        harness.advance(Duration::seconds(60)).await;
    }
    for n in 1..=6 {
        let started = harness.starts(n.clamp(2, 6)).await;
        harness.gate.complete_one();
        harness.becomes(job, started[n - 1], OccurrenceStatus::Completed).await;
    }
    assert_eq!(harness.gate.max_concurrent(), 2);
    harness.close().await;
}

#[tokio::test]
async fn jobs_with_one_key_share_its_limit() {
    let harness = ManualClockHarness::open().await;
    let key_limit = Some(ConcurrencyKeyLimit { key: "warehouse".into(), limit: 1 });
    let rules = Rules { key_limit, ..Rules::default() };
    let now = harness.clock.now();
    let mut jobs = Vec::new();
    for _ in 0..3 {
        jobs.push(harness.job(Schedule::once(now), rules.clone(), Some(now)).await);
    }
    let free = harness.job(Schedule::once(now), Rules::default(), Some(now)).await;
    for job in &jobs {
        harness.occurrences(*job, 1).await;
    }
    harness.occurrences(free, 1).await;
    // The job without the key runs beside one of the three.
    harness.starts(2).await;
    for n in 3..=4 {
        harness.gate.complete_one();
        harness.gate.complete_one();
        harness.starts(n).await;
    }
    assert!(
        harness.gate.max_concurrent() <= 2,
        "one run with the key and one without: {}",
        harness.gate.max_concurrent()
    );
    harness.close().await;
}

#[tokio::test]
async fn due_jobs_are_ordered_by_priority() {
    let store = database::fresh().await;
    let clock = milvaion_server::clock::Clock::system();
    let now = clock.now();
    for n in 0..40 {
        let priority = if n == 39 { 5 } else { 1 + (n % 3) as u8 };
        let job = milvaion_api::requests::JobInput { priority, ..jobs::echo_job(Schedule::every(60)) };
        let due = now - Duration::seconds(100 - n);
        jobs::insert_job(&store, &clock, &job, Some(due)).await;
    }
    let due = store.due_jobs(now, 10, &[]).await.expect("the query succeeds");
    let priorities: Vec<i16> = due.iter().map(|job| job.priority).collect();
    assert_eq!(priorities, [5, 3, 3, 3, 3, 3, 3, 3, 3, 3]);
    assert!(due[1..].windows(2).all(|pair| pair[0].next_fire_at <= pair[1].next_fire_at));
}
