//! What holds between a worker and a real broker: what it takes, in which order, and what it refuses.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use milvaion_protocol::{id::OccurrenceId, message::JobMessage};
use milvaion_worker::{Job, JobContext, JobError};

use milvaion_test_support::{
    broker_env::{CountingJob, EmptyInput, WorkerTestEnv, no_input},
    wait::until,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_run_goes_to_the_dead_letters() {
    let env = WorkerTestEnv::new().await;
    let counter = CountingJob::new(true);
    let worker = env.start(env.worker().job(counter.clone()), "count").await;
    let mut stranger = env.message("other", no_input());
    env.publish_raw("w.count.x", b"not JSON").await;
    env.publish_raw("w.count.x", &serde_json::to_vec(&stranger).expect("plain data")).await;
    stranger.attempt = 0;
    stranger.job_type = "count".to_owned();
    env.publish(&stranger).await;
    let letters = env.topology.dead_letter_queue();
    until("three dead letters", async || env.queue(&letters).await == Some((3, 0))).await;
    worker.stop().await;
    assert_eq!(counter.runs(), 0);
    env.clean(&["count"]).await;
}

/// Takes a while, and writes down who began.
#[derive(Clone, Default)]
struct StartRecordingJob(Arc<Mutex<Vec<OccurrenceId>>>);

impl StartRecordingJob {
    fn began(&self) -> Vec<OccurrenceId> {
        self.0.lock().expect("no test thread panicked").clone()
    }
}

impl Job for StartRecordingJob {
    const TYPE: &'static str = "diary";
    const DESCRIPTION: &'static str = "Writes down who began.";
    const CONCURRENCY: u16 = 4;
    type Input = EmptyInput;
    type Output = ();

    async fn run(&self, ctx: &JobContext, _: EmptyInput) -> Result<(), JobError> {
        self.0.lock().expect("no test thread panicked").push(ctx.occurrence_id());
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_critical_message_overtakes_what_waits() {
    let env = WorkerTestEnv::new().await;
    let diary = StartRecordingJob::default();
    let builder = env.worker().job(diary.clone());
    let worker = env.start(builder, "diary").await;
    let (low, window) = (500, usize::from(StartRecordingJob::CONCURRENCY));
    // All at once: one after the other, they might come no faster than they run.
    let messages: Vec<_> = std::iter::repeat_with(|| env.message("diary", no_input())).take(low).collect();
    let messages: Vec<_> = messages.into_iter().map(|message| JobMessage { priority: 1, ..message }).collect();
    futures::future::join_all(messages.iter().map(|message| env.publish(message))).await;
    let mut critical = env.message("diary", no_input());
    critical.priority = 5;
    env.publish(&critical).await;
    let before = diary.began().len();
    assert!(before + 4 * window < low, "too few are left to be overtaken: {before} began before");
    let place = async || diary.began().iter().position(|occurrence| *occurrence == critical.occurrence_id);
    until("the critical one begins", async || place().await.is_some()).await;
    let place = place().await.expect("it has begun");
    // Those that wait in the worker, and those that were on their way to it.
    assert!(place <= before + 2 * window, "{} others began first", place - before);
    worker.stop().await;
    env.clean(&["diary"]).await;
}
