//! The outbox of a worker: it keeps reports and log lines while the broker is unavailable. If the process ends before
//! they are sent, the next process sends them.

use std::{sync::Arc, time::Duration};

use milvaion_protocol::{
    id::OccurrenceId,
    message::{JobMessage, RegistrationMessage, StatusReport, first_log_seq},
    status::OccurrenceStatus::{Completed, Running},
};
use milvaion_test_support::{
    broker_env::{BrokerProxy, ConfirmHold, WorkerTestEnv, final_report_ids},
    wait::until,
};
use milvaion_worker::{Job, JobContext, JobError};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use sqlx::Connection;
use tokio::sync::Semaphore;

/// A job that writes the requested number of log lines. If `waits` is set, it waits for a permit first.
#[derive(Clone)]
struct LogWritingJob(Arc<Semaphore>);

#[derive(Deserialize, JsonSchema)]
struct LogWritingInput {
    #[serde(default)]
    lines: u32,
    #[serde(default)]
    waits: bool,
}

impl Job for LogWritingJob {
    const TYPE: &'static str = "write-log";
    const DESCRIPTION: &'static str = "Writes log lines.";
    const CONCURRENCY: u16 = 20;
    type Input = LogWritingInput;
    type Output = ();

    async fn run(&self, ctx: &JobContext, input: LogWritingInput) -> Result<(), JobError> {
        if input.waits {
            self.0.acquire().await?.forget();
        }
        for n in 0..input.lines {
            ctx.info(format!("line {n}"));
        }
        Ok(())
    }
}

impl LogWritingJob {
    fn new() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    /// Releases the run that has waited longest.
    fn release_one(&self) {
        self.0.add_permits(1);
    }
}

/// Starts runs that wait for a permit. Each starts before the next one is published.
async fn start_waiting_runs(env: &WorkerTestEnv, count: usize) -> Vec<JobMessage> {
    let mut messages = Vec::new();
    for _ in 0..count {
        let message = env.message("write-log", json!({"waits": true, "lines": 1}));
        env.publish(&message).await;
        until("the start of the run", async || {
            env.reports().await.iter().any(|report| report.occurrence_id == message.occurrence_id)
        })
        .await;
        messages.push(message);
    }
    messages
}

#[tokio::test]
async fn reports_are_sent_in_order_after_a_broker_outage() {
    let mut env = WorkerTestEnv::new().await;
    let hold = ConfirmHold::start(&mut env).await;
    let proxy = BrokerProxy::start(&mut env).await;
    let job = LogWritingJob::new();
    let worker = env.start(env.worker().job(job.clone()), "write-log").await;
    let messages = start_waiting_runs(&env, 10).await;
    env.wait_for_running_entries(10).await;
    let order: Vec<OccurrenceId> = messages.iter().map(|message| message.occurrence_id).collect();

    // The broker receives reports and confirms none: the outbox keeps the sent one and those that wait behind it.
    hold.set(true);
    for n in 1..=3 {
        job.release_one();
        until("a final report in the outbox", async || {
            final_report_ids(&env.outbox_contents().await.reports) == order[..n]
        })
        .await;
    }
    until("the first final report at the broker", async || env.has_ended(&messages[0]).await).await;
    assert_eq!(final_report_ids(&env.outbox_contents().await.reports), order[..3], "deleted before it was confirmed");
    // Now the broker is unreachable.
    proxy.cut();
    for n in 4..=10 {
        job.release_one();
        until("a final report in the outbox", async || {
            final_report_ids(&env.outbox_contents().await.reports) == order[..n]
        })
        .await;
    }
    let contents = env.outbox_contents().await;
    assert_eq!((contents.running, contents.log_lines), (0, 10));
    hold.set(false);
    proxy.restore();
    until("all final reports", async || env.has_ended(&messages[9]).await).await;
    let mut arrived = final_report_ids(&env.reports().await);
    // Reports that the broker received without confirming them arrive twice.
    arrived.dedup();
    let last_pass = arrived.iter().rposition(|id| *id == order[0]).expect("the first final report");
    assert_eq!(arrived[last_pass..], order, "{arrived:?}");
    env.wait_for_empty_outbox().await;
    worker.stop().await;
    env.clean(&["write-log"]).await;
}

#[tokio::test]
async fn dropped_log_lines_are_counted_in_the_log() {
    let mut env = WorkerTestEnv::new().await;
    let proxy = BrokerProxy::start(&mut env).await;
    let job = LogWritingJob::new();
    let worker = env.start(env.worker().outbox_bounds(100, 1).job(job.clone()), "write-log").await;
    let message = env.message("write-log", json!({"waits": true, "lines": 350}));
    env.publish(&message).await;
    env.wait_for_running_entries(1).await;
    proxy.cut();
    // The run continues only after the worker has noticed the lost connection.
    let (queue, mut logs) = (env.topology.job_queue(&env.worker_id, "write-log"), Vec::new());
    until("the end of its consumers", async || env.queue(&queue).await.is_some_and(|(_, consumers)| consumers == 0))
        .await;
    job.release_one();
    until("the final report in the outbox", async || env.outbox_contents().await.reports.len() == 1).await;
    // The bound applies to the outbox file as well as to memory.
    until("100 log lines in the outbox", async || env.outbox_contents().await.log_lines == 100).await;
    proxy.restore();
    env.ended(message.occurrence_id).await;
    until("the last log line", async || {
        logs.extend(env.logs().await.into_iter().flat_map(|message| message.lines));
        logs.iter().any(|line| line.message == "line 349")
    })
    .await;
    assert!(logs[0].message.starts_with("250 lines before this one were dropped"), "{}", logs[0].message);
    let numbers: Vec<i64> = logs.iter().map(|line| line.seq - first_log_seq(1)).collect();
    assert_eq!(numbers, (249..350).collect::<Vec<_>>());
    env.wait_for_empty_outbox().await;
    worker.stop().await;
    env.clean(&["write-log"]).await;
}

/// Writes `count` lines at once in each of three runs.
async fn write_bursts(count: i64) {
    let env = WorkerTestEnv::new().await;
    // The bound on the number of lines is for an unavailable broker.
    let builder = env.worker().outbox_bounds(100, 64).job(LogWritingJob::new());
    let worker = env.start(builder, "write-log").await;
    let messages: Vec<_> = (0..3).map(|_| env.message("write-log", json!({"lines": count}))).collect();
    for message in &messages {
        env.publish(message).await;
    }
    for message in &messages {
        env.ended(message.occurrence_id).await;
    }
    // The lines of a run are sent before its end.
    let mut lines: std::collections::HashMap<OccurrenceId, Vec<i64>> = std::collections::HashMap::new();
    for batch in env.logs().await {
        let seqs = batch.lines.iter().map(|line| line.seq - first_log_seq(1));
        lines.entry(batch.occurrence_id).or_default().extend(seqs);
    }
    for message in &messages {
        let mut seqs = lines.remove(&message.occurrence_id).unwrap_or_default();
        seqs.sort_unstable();
        assert!(seqs.iter().copied().eq(0..count), "{} lines arrived", seqs.len());
    }
    worker.stop().await;
    env.clean(&["write-log"]).await;
}

#[tokio::test]
async fn burst_of_lines_loses_none_on_a_healthy_broker() {
    write_bursts(1_000).await;
}

#[tokio::test]
async fn next_process_sends_unsent_reports_after_shutdown() {
    let mut env = WorkerTestEnv::new().await;
    let proxy = BrokerProxy::start(&mut env).await;
    let job = LogWritingJob::new();
    let worker = env.start(env.worker().job(job.clone()), "write-log").await;
    let message = start_waiting_runs(&env, 1).await.remove(0);
    env.wait_for_running_entries(1).await;
    proxy.cut();
    job.release_one();
    worker.stop().await;
    until("the release of the job", async || Arc::strong_count(&job.0) == 1).await;
    assert!(!env.has_ended(&message).await);
    proxy.restore();
    let worker = env.start(env.worker().job(job.clone()), "write-log").await;
    let reports = env.ended(message.occurrence_id).await;
    assert_eq!(reports.iter().map(|report| report.status).collect::<Vec<_>>(), [Running, Completed]);
    worker.stop().await;
    env.clean(&["write-log"]).await;
}

#[tokio::test]
async fn unwritable_outbox_prevents_new_runs_only() {
    let env = WorkerTestEnv::new().await;
    let job = LogWritingJob::new();
    let worker = env.start(env.worker().job(job.clone()), "write-log").await;
    // A lock on the SQLite file prevents the worker's writes, as a full disk would.
    let mut lock = env.open_outbox().await;
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut lock).await.expect("the file is locked");
    let running = start_waiting_runs(&env, 1).await.remove(0);
    let mut refused = None;
    until("a run that does not start", async || {
        let message = env.message("write-log", json!({}));
        env.publish(&message).await;
        let wait = tokio::time::timeout(Duration::from_secs(1), env.ended(message.occurrence_id));
        if wait.await.is_err() {
            refused = Some(message);
        }
        refused.is_some()
    })
    .await;
    let refused = refused.expect("a refused message");
    job.release_one();
    assert_eq!(env.ended(running.occurrence_id).await.last().map(|report| report.status), Some(Completed));
    let has_started =
        |reports: Vec<StatusReport>| reports.iter().any(|report| report.occurrence_id == refused.occurrence_id);
    assert!(!has_started(env.reports().await), "the refused message has started");
    until("a heartbeat with the notice", async || {
        env.registrations().await.iter().any(|message| {
            let RegistrationMessage::Heartbeat(heartbeat) = message else { return false };
            heartbeat.notice.as_deref().is_some_and(|notice| notice.starts_with("No new work is taken"))
        })
    })
    .await;
    sqlx::raw_sql("ROLLBACK").execute(&mut lock).await.expect("the file is unlocked");
    lock.close().await.expect("the connection is closed");
    assert_eq!(env.ended(refused.occurrence_id).await.last().map(|report| report.status), Some(Completed));
    worker.stop().await;
    env.clean(&["write-log"]).await;
}

mod exhaustive {
    use super::*;

    #[tokio::test]
    async fn burst_of_ten_thousand_lines_loses_none_on_a_healthy_broker() {
        write_bursts(10_000).await;
    }
}
