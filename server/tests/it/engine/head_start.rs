//! Occurrences are created a head start before they are due, and never start before they are due.

use chrono::Duration;
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_schedule::{
    rules::{OverlapPolicy, Rules},
    schedule::Schedule,
};
use milvaion_server::background::dispatcher::HEAD_START;
use milvaion_test_support::{jobs, manual_clock::ManualClockHarness, runs, server_env, wait, worker_env};

fn head_start() -> Duration {
    Duration::from_std(HEAD_START).expect("a short duration")
}

#[tokio::test]
async fn occurrence_is_created_ahead_of_its_due_time() {
    let harness = ManualClockHarness::open().await;
    let due = harness.clock.now() + Duration::seconds(10);
    // With more digits than PostgreSQL stores: it must not be due again after its run.
    let at = due + Duration::nanoseconds(700);
    let job = harness.job(Schedule::once(at), Rules::default(), Some(due)).await;
    harness.advance(Duration::seconds(10) - head_start() - Duration::milliseconds(1)).await;
    let report = harness.server.dispatcher.tick().await.expect("the tick succeeds");
    assert!(report.fired.is_empty(), "the head start has not started");
    harness.advance(Duration::milliseconds(1)).await;
    let rows = harness.occurrences(job, 1).await;
    assert_eq!(rows[0].scheduled_for, due);
    assert!(rows[0].id.created_at() < due, "created ahead");
    harness.starts(1).await;
    let report = harness.server.dispatcher.tick().await.expect("the tick succeeds");
    assert_eq!((report.due, harness.rows(job).await.len()), (0, 1), "it is due once");
    harness.close().await;
}

#[tokio::test]
async fn skip_is_decided_at_the_due_time() {
    let harness = ManualClockHarness::open().await;
    let first = harness.clock.now() + Duration::seconds(10);
    let rules = Rules { overlap: OverlapPolicy::Skip, ..Rules::default() };
    let job = harness.job(Schedule::every(60), rules, Some(first)).await;
    harness.advance(Duration::seconds(10)).await;
    let id = harness.starts(1).await[0];
    harness.advance(Duration::seconds(60) - head_start()).await;
    let report = harness.server.dispatcher.tick().await.expect("the tick succeeds");
    assert_eq!(report.deferred_until, Some(first + Duration::seconds(60)), "deferred until the due time");
    assert_eq!(harness.rows(job).await.len(), 1, "nothing is skipped before the due time");
    harness.gate.complete_one();
    harness.becomes(job, id, OccurrenceStatus::Completed).await;
    harness.advance(head_start()).await;
    let rows = harness.occurrences(job, 2).await;
    // A fast worker has already started it.
    assert_ne!(rows[1].status, OccurrenceStatus::Skipped, "the first occurrence ended in time: {rows:?}");
    harness.starts(2).await;
    harness.close().await;
}

#[tokio::test]
async fn jobs_with_limits_get_no_head_start() {
    let harness = ManualClockHarness::open().await;
    let limits = [
        Rules { overlap: OverlapPolicy::Queue, ..Rules::default() },
        Rules { overlap: OverlapPolicy::Replace, ..Rules::default() },
        Rules { max_concurrent: Some(2), ..Rules::default() },
    ];
    for (before, rules) in limits.into_iter().enumerate() {
        let due = harness.clock.now() + Duration::seconds(10);
        let job = harness.job(Schedule::once(due), rules, Some(due)).await;
        harness.advance(Duration::seconds(10) - Duration::milliseconds(1)).await;
        assert_eq!(harness.server.dispatcher.tick().await.expect("the tick succeeds").deferred_until, Some(due));
        assert!(harness.rows(job).await.is_empty(), "the slot granter would grant the slot too early");
        harness.advance(Duration::milliseconds(1)).await;
        let id = harness.starts(before + 1).await[before];
        harness.gate.complete_one();
        harness.becomes(job, id, OccurrenceStatus::Completed).await;
    }
    harness.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_run_starts_before_it_is_due() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let worker = worker_env::start(&config);
    let form = milvaion_api::requests::JobForm {
        kind: "cron".into(),
        cron: "* * * * * *".into(),
        zone: "UTC".into(),
        ..jobs::form("Every second")
    };
    server.jobs.save(&jobs::admin(), &form).await.expect("saved");
    let rows = wait::eventually("four completed runs", || async {
        let rows = runs::all(&server, None).await;
        let done: Vec<_> = rows.into_iter().filter(|row| row.status == OccurrenceStatus::Completed).collect();
        (done.len() >= 4).then_some(done)
    })
    .await;
    for row in rows {
        let started = row.started_at.expect("a completed run has started");
        assert!(started >= row.scheduled_for, "{} ms early", (row.scheduled_for - started).num_milliseconds());
    }
    worker.stop().await;
    server.stop().await;
}
