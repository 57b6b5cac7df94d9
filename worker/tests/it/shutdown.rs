//! What ends a run from outside: a worker that stops, somebody who cancels.

use std::time::Duration;

use milvaion_protocol::{message::RegistrationMessage, status::OccurrenceStatus};
use nix::sys::signal::{Signal, kill};
use serde_json::json;

use crate::{
    common::{CountingJob, WorkerTestEnv, eventually, nothing, tell_of_one_run},
    outbox::{pid, process},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopping_worker_ends_what_runs_and_hands_back_the_rest() {
    let stack = WorkerTestEnv::new().await;
    let counter = CountingJob::new(false);
    let worker = stack.start(stack.worker().job(counter.clone()), "count").await;
    let messages: Vec<_> = (0..3).map(|_| stack.message("count", nothing())).collect();
    for message in &messages {
        stack.publish(message).await;
    }
    eventually("the first one runs", async || counter.runs() == 1).await;
    worker.ask();
    let queue = stack.topology.job_queue("w", "count");
    eventually("two are back", async || stack.queue(&queue).await == Some((2, 0))).await;
    counter.open();
    worker.stop().await;
    assert_eq!(counter.runs(), 1);
    assert!(tell_of_one_run(&stack.ended(messages[0].occurrence_id).await));
    let said = stack.registrations().await;
    assert!(matches!(said.last(), Some(RegistrationMessage::Goodbye { .. })), "{said:?}");

    // The next worker takes what was handed back, though the broker marks it as delivered before.
    let worker = stack.start(stack.worker().job(counter.clone()), "count").await;
    for message in &messages[1..] {
        assert!(tell_of_one_run(&stack.ended(message.occurrence_id).await));
    }
    worker.stop().await;
    stack.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_outlives_the_grace_is_interrupted_and_reported() {
    let stack = WorkerTestEnv::new().await;
    let counter = CountingJob::new(false);
    let worker = stack.start(stack.worker().job(counter.clone()).shutdown_grace(Duration::ZERO), "count").await;
    let message = stack.message("count", nothing());
    stack.publish(&message).await;
    eventually("it runs", async || counter.runs() == 1).await;
    worker.stop().await;
    let reports = stack.ended(message.occurrence_id).await;
    let end = reports.last().expect("an end");
    // Handed back, which is no failure.
    assert_eq!(end.status, OccurrenceStatus::Queued);
    assert_eq!(end.exception.as_deref(), Some("interrupted: the worker stopped"));
    stack.clean(&["count"]).await;
}

#[tokio::test]
async fn a_second_sigterm_ends_the_grace() {
    let stack = WorkerTestEnv::new().await;
    let mut worker = process(&stack).env("MILVAION_SHUTDOWN_GRACE_SECONDS", "600").spawn().expect("started");
    let queue = stack.topology.job_queue(&stack.worker_id, "shell-command");
    let consumers = async || stack.queue(&queue).await.map(|(_, consumers)| consumers);
    eventually("it takes work", async || consumers().await.is_some_and(|consumers| consumers > 0)).await;
    let message = stack.message("shell-command", json!({"argv": ["sleep", "600"]}));
    stack.publish(&message).await;
    eventually("it runs", async || !stack.reports().await.is_empty()).await;
    kill(pid(&worker), Signal::SIGTERM).expect("told");
    eventually("it takes no more", async || consumers().await == Some(0)).await;
    assert!(worker.try_wait().expect("asked").is_none(), "the run may go on");
    kill(pid(&worker), Signal::SIGTERM).expect("told again");
    assert_eq!(stack.ended(message.occurrence_id).await.last().map(|end| end.status), Some(OccurrenceStatus::Queued));
    assert!(worker.wait().await.expect("it ends").success());
    stack.clean(&["http-request", "shell-command"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_cancelled_by_a_message_and_by_one_that_nobody_heard() {
    let stack = WorkerTestEnv::new().await;
    let counter = CountingJob::new(false);
    let worker = stack.start(stack.worker().job(counter.clone()).concurrency("count", 2), "count").await;
    let (told, written) = (stack.message("count", nothing()), stack.message("count", nothing()));
    stack.publish(&told).await;
    stack.publish(&written).await;
    eventually("both run", async || counter.runs() == 2).await;
    // The connection breaks, and comes back by itself.
    stack.break_listeners().await;
    eventually("the worker listens", async || stack.tell_cancellation(told.occurrence_id, "by ann").await == 1).await;
    stack.write_cancellation(written.occurrence_id, "by bob").await;
    for (message, reason) in [(&told, "by ann"), (&written, "by bob")] {
        let reports = stack.ended(message.occurrence_id).await;
        let statuses: Vec<_> = reports.iter().map(|report| report.status).collect();
        assert_eq!(statuses, [OccurrenceStatus::Running, OccurrenceStatus::Cancelled]);
        assert!(reports[1].exception.as_deref().is_some_and(|text| text.starts_with(reason)), "{reports:?}");
    }
    worker.stop().await;
    stack.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_cancelled_in_its_queue_is_not_started() {
    let stack = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let worker = stack.start(stack.worker().job(counter.clone()), "count").await;
    let (cancelled, other) = (stack.message("count", nothing()), stack.message("count", nothing()));
    stack.write_cancellation(cancelled.occurrence_id, "by ann").await;
    stack.publish(&cancelled).await;
    stack.publish(&other).await;
    let reports = stack.ended(cancelled.occurrence_id).await;
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!(reports[0].status, OccurrenceStatus::Cancelled);
    assert_eq!(reports[0].exception.as_deref(), Some("by ann"));
    assert!(tell_of_one_run(&stack.ended(other.occurrence_id).await));
    // A late copy brings no second report.
    stack.publish(&cancelled).await;
    // One at a time: when this one has ended, that one was dealt with.
    let after = stack.message("count", nothing());
    stack.publish(&after).await;
    stack.ended(after.occurrence_id).await;
    worker.stop().await;
    assert_eq!(counter.runs(), 2);
    assert_eq!(stack.ended(cancelled.occurrence_id).await.len(), 1);
    stack.clean(&["count"]).await;
}
