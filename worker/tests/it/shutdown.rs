//! What ends a run from outside: a worker that stops, somebody who cancels.

use std::time::Duration;

use milvaion_protocol::{message::RegistrationMessage, status::OccurrenceStatus};
use milvaion_test_support::{
    broker_env::{CountingJob, WorkerTestEnv, is_one_completed_run, no_input},
    wait::until,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopping_worker_ends_what_runs_and_hands_back_the_rest() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(false);
    let worker = env.start(env.worker().job(counter.clone()), "count").await;
    let messages: Vec<_> = (0..3).map(|_| env.message("count", no_input())).collect();
    for message in &messages {
        env.publish(message).await;
    }
    until("the first one runs", async || counter.runs() == 1).await;
    worker.request_stop();
    let queue = env.topology.job_queue("w", "count");
    until("two are back", async || env.queue(&queue).await == Some((2, 0))).await;
    counter.open();
    worker.stop().await;
    assert_eq!(counter.runs(), 1);
    assert!(is_one_completed_run(&env.ended(messages[0].occurrence_id).await));
    let said = env.registrations().await;
    assert!(matches!(said.last(), Some(RegistrationMessage::Goodbye { .. })), "{said:?}");

    // The next worker takes what was handed back, though the broker marks it as delivered before.
    let worker = env.start(env.worker().job(counter.clone()), "count").await;
    for message in &messages[1..] {
        assert!(is_one_completed_run(&env.ended(message.occurrence_id).await));
    }
    worker.stop().await;
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_outlives_the_grace_is_interrupted_and_reported() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(false);
    let worker = env.start(env.worker().job(counter.clone()).shutdown_grace(Duration::ZERO), "count").await;
    let message = env.message("count", no_input());
    env.publish(&message).await;
    until("it runs", async || counter.runs() == 1).await;
    worker.stop().await;
    let reports = env.ended(message.occurrence_id).await;
    let end = reports.last().expect("an end");
    // Handed back, which is no failure.
    assert_eq!(end.status, OccurrenceStatus::Queued);
    assert_eq!(end.exception.as_deref(), Some("interrupted: the worker stopped"));
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_cancelled_by_a_message_and_by_one_that_nobody_heard() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(false);
    let worker = env.start(env.worker().job(counter.clone()).concurrency("count", 2), "count").await;
    let (told, written) = (env.message("count", no_input()), env.message("count", no_input()));
    env.publish(&told).await;
    env.publish(&written).await;
    until("both run", async || counter.runs() == 2).await;
    // The connection breaks, and comes back by itself.
    env.disconnect_subscribers().await;
    until("the worker listens", async || env.publish_cancel_request(told.occurrence_id, "by ann").await == 1).await;
    env.store_cancel_request(written.occurrence_id, "by bob").await;
    for (message, reason) in [(&told, "by ann"), (&written, "by bob")] {
        let reports = env.ended(message.occurrence_id).await;
        let statuses: Vec<_> = reports.iter().map(|report| report.status).collect();
        assert_eq!(statuses, [OccurrenceStatus::Running, OccurrenceStatus::Cancelled]);
        assert!(reports[1].exception.as_deref().is_some_and(|text| text.starts_with(reason)), "{reports:?}");
    }
    worker.stop().await;
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_cancelled_in_its_queue_is_not_started() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let worker = env.start(env.worker().job(counter.clone()), "count").await;
    let (cancelled, other) = (env.message("count", no_input()), env.message("count", no_input()));
    env.store_cancel_request(cancelled.occurrence_id, "by ann").await;
    env.publish(&cancelled).await;
    env.publish(&other).await;
    let reports = env.ended(cancelled.occurrence_id).await;
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!(reports[0].status, OccurrenceStatus::Cancelled);
    assert_eq!(reports[0].exception.as_deref(), Some("by ann"));
    assert!(is_one_completed_run(&env.ended(other.occurrence_id).await));
    // A late copy brings no second report.
    env.publish(&cancelled).await;
    // One at a time: when this one has ended, that one was dealt with.
    let after = env.message("count", no_input());
    env.publish(&after).await;
    env.ended(after.occurrence_id).await;
    worker.stop().await;
    assert_eq!(counter.runs(), 2);
    assert_eq!(env.ended(cancelled.occurrence_id).await.len(), 1);
    env.clean(&["count"]).await;
}
