//! An occurrence is made a moment before it is due, and nothing comes of that moment but time.

use chrono::Duration;
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_schedule::{
    rules::{OverlapPolicy, Rules},
    schedule::Schedule,
};
use milvaion_server::background::dispatcher::HEAD_START;

use super::harness::ManualClockHarness;
use milvaion_test_support::stack;

fn head_start() -> Duration {
    Duration::from_std(HEAD_START).expect("short")
}

#[tokio::test]
async fn what_is_due_in_a_moment_is_made_already() {
    let harness = ManualClockHarness::open().await;
    let due = harness.clock.now() + Duration::seconds(10);
    let job = harness.job(Schedule::Once { at: due }, Rules::default(), Some(due)).await;
    harness.pass(Duration::seconds(10) - head_start() - Duration::milliseconds(1)).await;
    assert!(harness.server.dispatcher.tick().await.expect("answered").fired.is_empty(), "not before its head start");
    harness.pass(Duration::milliseconds(1)).await;
    let rows = harness.occurrences(job, 1).await;
    assert_eq!(rows[0].scheduled_for, due);
    assert!(rows[0].id.created_at() < due, "made ahead");
    harness.starts(1).await;
    harness.close().await;
}

#[tokio::test]
async fn what_would_be_skipped_for_an_open_occurrence_is_looked_at_again_when_it_is_due() {
    let harness = ManualClockHarness::open().await;
    let first = harness.clock.now() + Duration::seconds(10);
    let rules = Rules { overlap: OverlapPolicy::Skip, ..Rules::default() };
    let job = harness.job(Schedule::every(60), rules, Some(first)).await;
    harness.pass(Duration::seconds(10)).await;
    let id = harness.starts(1).await[0];
    harness.pass(Duration::seconds(60) - head_start()).await;
    let ticked = harness.server.dispatcher.tick().await.expect("answered");
    assert_eq!(ticked.deferred_until, Some(first + Duration::seconds(60)), "it waits for its instant");
    assert_eq!(harness.rows(job).await.len(), 1, "nothing is skipped while there is time");
    harness.gate.let_one_end();
    harness.becomes(job, id, OccurrenceStatus::Completed).await;
    harness.pass(head_start()).await;
    let rows = harness.occurrences(job, 2).await;
    // A quick worker has begun it by now.
    assert_ne!(rows[1].status, OccurrenceStatus::Skipped, "the first one ended in time: {rows:?}");
    harness.starts(2).await;
    harness.close().await;
}

#[tokio::test]
async fn what_takes_turns_is_made_when_it_is_due() {
    for rules in [
        Rules { overlap: OverlapPolicy::Queue, ..Rules::default() },
        Rules { overlap: OverlapPolicy::Replace, ..Rules::default() },
        Rules { max_concurrent: Some(2), ..Rules::default() },
    ] {
        let harness = ManualClockHarness::open().await;
        let due = harness.clock.now() + Duration::seconds(10);
        let job = harness.job(Schedule::Once { at: due }, rules, Some(due)).await;
        harness.pass(Duration::seconds(10) - Duration::milliseconds(1)).await;
        assert_eq!(harness.server.dispatcher.tick().await.expect("answered").deferred_until, Some(due));
        assert!(harness.rows(job).await.is_empty(), "the releaser would let it go before its time");
        harness.pass(Duration::milliseconds(1)).await;
        harness.starts(1).await;
        harness.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_starts_before_it_is_due() {
    let config = stack::config().await;
    let server = stack::server(&config).await;
    let worker = stack::worker(&config);
    let form = milvaion_api::requests::JobForm {
        kind: "cron".into(),
        cron: "* * * * * *".into(),
        zone: "UTC".into(),
        ..stack::form("Every second")
    };
    server.jobs.save(&stack::admin(), &form).await.expect("saved");
    let rows = stack::eventually("four have ended", || async {
        let rows = stack::all(&server, None).await;
        let done: Vec<_> = rows.into_iter().filter(|row| row.status == OccurrenceStatus::Completed).collect();
        (done.len() >= 4).then_some(done)
    })
    .await;
    for row in rows {
        let started = row.started_at.expect("it ran");
        assert!(started >= row.scheduled_for, "{} ms early", (row.scheduled_for - started).num_milliseconds());
    }
    worker.stop().await;
    server.stop().await;
}
