//! What a worker remembers while nobody listens, and what the next one makes of it.

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

/// Writes as many lines as it is told, then waits for a pass, unless there are to be none.
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
    const TYPE: &'static str = "scribe";
    const DESCRIPTION: &'static str = "Writes.";
    const CONCURRENCY: u16 = 20;
    type Input = LogWritingInput;
    type Output = ();

    async fn run(&self, ctx: &JobContext, orders: LogWritingInput) -> Result<(), JobError> {
        if orders.waits {
            self.0.acquire().await?.forget();
        }
        for n in 0..orders.lines {
            ctx.info(format!("line {n}"));
        }
        Ok(())
    }
}

impl LogWritingJob {
    fn new() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    /// Lets one run go on: the one that has waited longest.
    fn pass(&self) {
        self.0.add_permits(1);
    }
}

/// Publishes jobs that wait for a pass, each begun before the next.
async fn begin(env: &WorkerTestEnv, count: usize) -> Vec<JobMessage> {
    let mut messages = Vec::new();
    for _ in 0..count {
        let message = env.message("scribe", json!({"waits": true, "lines": 1}));
        env.publish(&message).await;
        until("it runs", async || {
            env.reports().await.iter().any(|report| report.occurrence_id == message.occurrence_id)
        })
        .await;
        messages.push(message);
    }
    messages
}

#[tokio::test]
async fn reports_wait_in_order_while_the_broker_is_away_and_go_when_it_has_confirmed_them() {
    let mut env = WorkerTestEnv::new().await;
    let hold = ConfirmHold::start(&mut env).await;
    let proxy = BrokerProxy::start(&mut env).await;
    let scribe = LogWritingJob::new();
    let worker = env.start(env.worker().job(scribe.clone()), "scribe").await;
    let messages = begin(&env, 10).await;
    env.wait_for_running_entries(10).await;
    let order: Vec<OccurrenceId> = messages.iter().map(|message| message.occurrence_id).collect();

    // The broker hears and does not answer: what is sent, and what waits behind it, is kept.
    hold.set(true);
    for n in 1..=3 {
        scribe.pass();
        until("the end is kept", async || final_report_ids(&env.outbox_contents().await.reports) == order[..n]).await;
    }
    until("the broker has the first", async || env.has_ended(&messages[0]).await).await;
    assert_eq!(final_report_ids(&env.outbox_contents().await.reports), order[..3], "deleted before it was confirmed");
    // Now it is gone.
    proxy.cut();
    for n in 4..=10 {
        scribe.pass();
        until("the end is kept", async || final_report_ids(&env.outbox_contents().await.reports) == order[..n]).await;
    }
    let held = env.outbox_contents().await;
    assert_eq!((held.running, held.log_lines), (0, 10));
    hold.set(false);
    proxy.restore();
    until("all ends arrive", async || env.has_ended(&messages[9]).await).await;
    let mut arrived = final_report_ids(&env.reports().await);
    // What the broker had heard, it hears again.
    arrived.dedup();
    let again = arrived.iter().rposition(|id| *id == order[0]).expect("it is there");
    assert_eq!(arrived[again..], order, "{arrived:?}");
    env.wait_for_empty_outbox().await;
    worker.stop().await;
    env.clean(&["scribe"]).await;
}

#[tokio::test]
async fn lines_beyond_the_bound_are_given_up_and_counted_in_the_log() {
    let mut env = WorkerTestEnv::new().await;
    let proxy = BrokerProxy::start(&mut env).await;
    let scribe = LogWritingJob::new();
    let worker = env.start(env.worker().outbox_bounds(100, 1).job(scribe.clone()), "scribe").await;
    let message = env.message("scribe", json!({"waits": true, "lines": 350}));
    env.publish(&message).await;
    env.wait_for_running_entries(1).await;
    proxy.cut();
    // Not before the worker knows.
    let (queue, mut logs) = (env.topology.job_queue(&env.worker_id, "scribe"), Vec::new());
    until("nobody consumes", async || env.queue(&queue).await.is_some_and(|(_, consumers)| consumers == 0)).await;
    scribe.pass();
    until("the end is kept", async || env.outbox_contents().await.reports.len() == 1).await;
    until("the file has as many lines as memory", async || env.outbox_contents().await.log_lines == 100).await;
    proxy.restore();
    env.ended(message.occurrence_id).await;
    until("the last line arrives", async || {
        logs.extend(env.logs().await.into_iter().flat_map(|message| message.lines));
        logs.iter().any(|line| line.message == "line 349")
    })
    .await;
    assert!(logs[0].message.starts_with("250 lines before this one were dropped"), "{}", logs[0].message);
    let numbers: Vec<i64> = logs.iter().map(|line| line.seq - first_log_seq(1)).collect();
    assert_eq!(numbers, (249..350).collect::<Vec<_>>());
    env.wait_for_empty_outbox().await;
    worker.stop().await;
    env.clean(&["scribe"]).await;
}

#[tokio::test]
async fn what_an_orderly_end_could_not_tell_the_next_process_does() {
    let mut env = WorkerTestEnv::new().await;
    let proxy = BrokerProxy::start(&mut env).await;
    let scribe = LogWritingJob::new();
    let worker = env.start(env.worker().job(scribe.clone()), "scribe").await;
    let message = begin(&env, 1).await.remove(0);
    env.wait_for_running_entries(1).await;
    proxy.cut();
    scribe.pass();
    worker.stop().await;
    assert!(!env.has_ended(&message).await);
    proxy.restore();
    let worker = env.start(env.worker().job(scribe.clone()), "scribe").await;
    let reports = env.ended(message.occurrence_id).await;
    assert_eq!(reports.iter().map(|report| report.status).collect::<Vec<_>>(), [Running, Completed]);
    worker.stop().await;
    env.clean(&["scribe"]).await;
}

#[tokio::test]
async fn an_outbox_that_cannot_be_written_lets_nothing_begin_and_what_runs_go_on() {
    let env = WorkerTestEnv::new().await;
    let scribe = LogWritingJob::new();
    let worker = env.start(env.worker().job(scribe.clone()), "scribe").await;
    // Whoever holds SQLite's lock keeps the worker from writing, as a full disk would.
    let mut intruder = env.open_outbox().await;
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut intruder).await.expect("locked");
    let long = begin(&env, 1).await.remove(0);
    let mut refused = None;
    until("nothing begins any more", async || {
        let message = env.message("scribe", json!({}));
        env.publish(&message).await;
        let wait = tokio::time::timeout(Duration::from_secs(1), env.ended(message.occurrence_id));
        if wait.await.is_err() {
            refused = Some(message);
        }
        refused.is_some()
    })
    .await;
    let refused = refused.expect("one was refused");
    scribe.pass();
    assert_eq!(env.ended(long.occurrence_id).await.last().map(|report| report.status), Some(Completed));
    let is_heard =
        |reports: Vec<StatusReport>| reports.iter().any(|report| report.occurrence_id == refused.occurrence_id);
    assert!(!is_heard(env.reports().await), "it has begun");
    until("a heartbeat says why", async || {
        env.registrations().await.iter().any(|said| {
            let RegistrationMessage::Heartbeat(beat) = said else { return false };
            beat.notice.as_deref().is_some_and(|notice| notice.starts_with("No new work is taken"))
        })
    })
    .await;
    sqlx::raw_sql("ROLLBACK").execute(&mut intruder).await.expect("unlocked");
    intruder.close().await.expect("closed");
    assert_eq!(env.ended(refused.occurrence_id).await.last().map(|report| report.status), Some(Completed));
    worker.stop().await;
    env.clean(&["scribe"]).await;
}
