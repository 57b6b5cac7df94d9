//! Deliveries from a real broker: rejected messages, and the order of priorities.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use milvaion_protocol::{id::OccurrenceId, message::JobMessage};
use milvaion_worker::{Job, JobContext, JobError};

use milvaion_test_support::{
    broker_env::{CountingJob, EmptyInput, WorkerTestEnv, is_one_completed_run, no_input},
    wait::until,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusable_messages_become_dead_letters() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let worker = env.start(env.worker().job(counter.clone()), "count").await;
    let mut unusable = env.message("other", no_input());
    env.publish_raw("w.count.x", b"not JSON").await;
    env.publish_raw("w.count.x", &serde_json::to_vec(&unusable).expect("a message can be serialized")).await;
    unusable.attempt = 0;
    unusable.job_type = "count".to_owned();
    env.publish(&unusable).await;
    let dead_letters = env.topology.dead_letter_queue();
    until("three dead letters", async || env.queue(&dead_letters).await == Some((3, 0))).await;
    worker.stop().await;
    assert_eq!(counter.runs(), 0);
    env.clean(&["count"]).await;
}

/// A job that takes 20 ms and records the order in which its occurrences start.
#[derive(Clone, Default)]
struct StartRecordingJob(Arc<Mutex<Vec<OccurrenceId>>>);

impl StartRecordingJob {
    fn started(&self) -> Vec<OccurrenceId> {
        self.0.lock().expect("the mutex is not poisoned").clone()
    }
}

impl Job for StartRecordingJob {
    const TYPE: &'static str = "record-start";
    const DESCRIPTION: &'static str = "Records the occurrences that start.";
    const CONCURRENCY: u16 = 4;
    type Input = EmptyInput;
    type Output = ();

    async fn run(&self, ctx: &JobContext, _: EmptyInput) -> Result<(), JobError> {
        self.0.lock().expect("the mutex is not poisoned").push(ctx.occurrence_id());
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn critical_message_overtakes_waiting_ones() {
    let env = WorkerTestEnv::new().await;
    let job = StartRecordingJob::default();
    let builder = env.worker().job(job.clone());
    let worker = env.start(builder, "record-start").await;
    let (count, window) = (500, usize::from(StartRecordingJob::CONCURRENCY));
    // All are published at once. One after the other, they might arrive no faster than they run.
    let messages: Vec<_> = std::iter::repeat_with(|| env.message("record-start", no_input())).take(count).collect();
    let messages: Vec<_> = messages.into_iter().map(|message| JobMessage { priority: 1, ..message }).collect();
    futures::future::join_all(messages.iter().map(|message| env.publish(message))).await;
    let mut critical = env.message("record-start", no_input());
    critical.priority = 5;
    env.publish(&critical).await;
    let before = job.started().len();
    assert!(before + 4 * window < count, "too few messages are left to be overtaken: {before} have started");
    let position = async || job.started().iter().position(|occurrence| *occurrence == critical.occurrence_id);
    until("the start of the critical run", async || position().await.is_some()).await;
    let position = position().await.expect("the critical run has started");
    // It may start after the messages that wait in the worker and those that are on their way to it.
    assert!(position <= before + 2 * window, "{} others started first", position - before);
    let critical_queue = env.topology.critical_queue("w", "record-start");
    assert_eq!(env.queue(&critical_queue).await, None, "no slots are reserved");
    worker.stop().await;
    env.clean(&["record-start"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn critical_run_starts_in_a_reserved_slot() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(false);
    let worker = env.start(env.worker().capacity(1).critical_slots(1).job(counter.clone()), "count").await;
    let critical_queue = env.topology.critical_queue("w", "count");
    until("a consumer of critical runs", async || env.queue(&critical_queue).await == Some((0, 1))).await;
    let with = |priority| JobMessage { priority, ..env.message("count", no_input()) };
    let (long, waiting, critical, second) = (with(1), with(1), with(5), with(5));
    // The first takes the only permit until the end of the test, and the second fills the prefetch window.
    env.publish(&long).await;
    until("the start of the long run", async || counter.runs() == 1).await;
    env.publish(&waiting).await;
    env.publish_critical(&critical).await;
    until("the start of the critical run", async || counter.runs() == 2).await;
    env.publish_critical(&second).await;
    counter.open();
    for message in [&long, &waiting, &critical, &second] {
        assert!(is_one_completed_run(&env.ended(message.occurrence_id).await));
    }
    worker.stop().await;
    assert_eq!(counter.runs(), 4);
    assert_eq!(env.queue(&critical_queue).await, Some((0, 0)));
    env.clean(&["count"]).await;
}
