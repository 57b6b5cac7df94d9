//! Bundles: messages with several runs, which have one answer to the broker and are delivered once.

use milvaion_protocol::{message::JobMessage, status::OccurrenceStatus};
use milvaion_test_support::{
    broker_env::{CountingJob, StartedWorker, WorkerTestEnv, is_one_completed_run, no_input},
    wait::until,
};

/// The permits of a worker that cannot run a whole bundle at once.
const PERMITS: u16 = 4;

fn bundle(env: &WorkerTestEnv, runs: usize) -> Vec<JobMessage> {
    std::iter::repeat_with(|| env.message("count", no_input())).take(runs).collect()
}

async fn start(env: &WorkerTestEnv, counter: &CountingJob) -> StartedWorker {
    env.start(env.worker().concurrency("count", PERMITS).job(counter.clone()), "count").await
}

/// Waits until a number of runs has started, and the bundle that they were in is a dead letter. Returns the other runs.
async fn rest_of_rejected_bundle(env: &WorkerTestEnv, runs: &[JobMessage], started: usize) -> Vec<JobMessage> {
    let dead_letters = env.topology.dead_letter_queue();
    until("the dead letter", async || env.queue(&dead_letters).await == Some((1, 0))).await;
    let reports = env.reports().await;
    let is_running = |run: &&JobMessage| reports.iter().any(|report| report.occurrence_id == run.occurrence_id);
    let (running, rest): (Vec<_>, Vec<_>) = runs.iter().partition(is_running);
    assert_eq!(running.len(), started, "the starts were confirmed before");
    rest.into_iter().cloned().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_run_of_a_bundle_is_handled_for_itself() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let worker = start(&env, &counter).await;
    let runs = bundle(&env, 4);
    env.store_cancel_request(runs[1].occurrence_id, "by ann").await;
    // Another instance runs this one, so it is a duplicate.
    env.claim(runs[2].occurrence_id, "w-living", 60_000).await;
    env.publish_bundle(&runs).await;
    for run in [&runs[0], &runs[3]] {
        assert!(is_one_completed_run(&env.ended(run.occurrence_id).await));
    }
    let cancelled = env.ended(runs[1].occurrence_id).await;
    assert_eq!(cancelled.iter().map(|report| report.status).collect::<Vec<_>>(), [OccurrenceStatus::Cancelled]);
    worker.stop().await;
    assert_eq!(counter.runs(), 2);
    assert_eq!(env.queue(&env.topology.job_queue("w", "count")).await, Some((0, 0)), "it was acknowledged");
    assert_eq!(env.queue(&env.topology.dead_letter_queue()).await, Some((0, 0)));
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bundle_without_permits_for_all_is_rejected_once() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(false);
    let worker = start(&env, &counter).await;
    let runs = bundle(&env, 10);
    env.publish_bundle(&runs).await;
    let rest = rest_of_rejected_bundle(&env, &runs, PERMITS.into()).await;
    assert_eq!(counter.runs(), u32::from(PERMITS));
    // The server sends the others again.
    for run in &rest {
        env.republish(run).await;
    }
    counter.open();
    for run in &runs {
        assert!(is_one_completed_run(&env.ended(run.occurrence_id).await));
    }
    worker.stop().await;
    assert_eq!(counter.runs(), 10);
    assert_eq!(env.queue(&env.topology.job_queue("w", "count")).await, Some((0, 0)));
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bundle_is_rejected_at_a_stop() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(false);
    let worker = start(&env, &counter).await;
    let runs = bundle(&env, 10);
    env.publish_bundle(&runs).await;
    until("the first starts", async || counter.runs() == u32::from(PERMITS)).await;
    worker.request_stop();
    let rest = rest_of_rejected_bundle(&env, &runs, PERMITS.into()).await;
    assert_eq!(rest.len(), 6);
    counter.open();
    worker.stop().await;
    assert_eq!(counter.runs(), u32::from(PERMITS), "the started ones end within the grace");
    assert_eq!(env.queue(&env.topology.job_queue("w", "count")).await, Some((0, 0)), "it did not return to its queue");
    env.clean(&["count"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redelivered_bundle_is_rejected_unread() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let queue = env.topology.job_queue("w", "count");
    // Declares the queue.
    start(&env, &counter).await.stop().await;
    env.publish_bundle(&bundle(&env, 3)).await;
    env.deliver_and_return(&queue).await;
    let worker = start(&env, &counter).await;
    let dead_letters = env.topology.dead_letter_queue();
    until("the dead letter", async || env.queue(&dead_letters).await == Some((1, 0))).await;
    worker.stop().await;
    assert_eq!(counter.runs(), 0);
    assert_eq!(env.queue(&queue).await, Some((0, 0)));
    env.clean(&["count"]).await;
}
