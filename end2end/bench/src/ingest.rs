//! What the server takes in: reports and log lines, sent straight to its queues as a crowd of workers would.
//!
//! The rows they are about are put there beforehand, marked as published, so that nothing else happens meanwhile.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use chrono::{DateTime, Duration, Utc};
use lapin::Channel;
use milvaion_protocol::{
    id::OccurrenceId,
    message::{LogLevel, LogLine, LogMessage, StatusMessage, StatusReport, first_log_seq},
    status::OccurrenceStatus,
    topology::Topology,
};
use milvaion_server::clock::machine_now;
use sqlx::PgPool;
use uuid::Uuid;

use crate::{
    ceiling::{self, PipelinedPublisher},
    figures::{RunSample, percentile},
    harness::{BenchEnv, BenchHarness, JOB_TYPE, WORKER_ID, occurrence_id},
};

/// Occurrences that are reported on: two reports each.
const REPORTED_OCCURRENCES: usize = 50_000;
/// Occurrences whose two reports travel in one message.
const OCCURRENCES_PER_MESSAGE: usize = 50;
/// Messages of a hundred lines, and the occurrences they are spread over.
const LOG_MESSAGES: usize = 3_000;
/// See [`LOG_MESSAGES`].
const LOGGED_OCCURRENCES: usize = 300;
/// Lines in a message.
const LINES_PER_MESSAGE: usize = 100;
/// How often a report is sent beside the lines.
const STATUS_INTERVAL: std::time::Duration = std::time::Duration::from_millis(10);

/// Reports a second: each occurrence's Running and Completed.
pub(crate) async fn status(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        let env = BenchEnv::new(harness).await?;
        let ids = rows(&env.pool, REPORTED_OCCURRENCES).await?;
        let server = env.server().await?;
        let (connection, channel) = open(harness).await?;
        let queue = Topology::new(env.prefix.as_str()).status();
        let mut sender = PipelinedPublisher::new(&channel, &queue, &queue);
        let begun = machine_now();
        for some in ids.chunks(OCCURRENCES_PER_MESSAGE) {
            let reports = some.iter().map(|id| report(*id, OccurrenceStatus::Running));
            let reports = reports.chain(some.iter().map(|id| report(*id, OccurrenceStatus::Completed))).collect();
            sender.send(&serde_json::to_vec(&StatusMessage::Batch { reports })?).await?;
        }
        sender.settle().await?;
        env.wait_until_drained().await?;
        let last: DateTime<Utc> =
            sqlx::query_scalar("SELECT max(last_heartbeat) FROM occurrences").fetch_one(&env.pool).await?;
        samples.push(vec![("status-intake", (2 * REPORTED_OCCURRENCES) as f64 / seconds(last - begun))]);
        ceiling::close(connection).await;
        server.stop().await?;
        env.close().await?;
    }
    Ok(samples)
}

/// Log lines a second, and how long a report takes that is sent beside them.
pub(crate) async fn logs(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        samples.push(logs_once(harness).await?);
    }
    Ok(samples)
}

async fn logs_once(harness: &BenchHarness) -> anyhow::Result<RunSample> {
    let env = BenchEnv::new(harness).await?;
    let logged = rows(&env.pool, LOGGED_OCCURRENCES).await?;
    let reported = rows(&env.pool, 20_000).await?;
    let server = env.server().await?;
    let (connection, channel) = open(harness).await?;
    let beside_over = Arc::new(AtomicBool::new(false));
    let (over, status_queue) = (beside_over.clone(), Topology::new(env.prefix.as_str()).status());
    let (beside_connection, beside_channel) = open(harness).await?;
    let beside = tokio::spawn(async move {
        let mut sender = PipelinedPublisher::new(&beside_channel, &status_queue, &status_queue);
        let mut sent = Vec::new();
        for id in reported {
            if over.load(Ordering::Relaxed) {
                break;
            }
            sender.send(&serde_json::to_vec(&StatusMessage::One(report(id, OccurrenceStatus::Completed)))?).await?;
            sent.push(id.0);
            tokio::time::sleep(STATUS_INTERVAL).await;
        }
        sender.settle().await?;
        anyhow::Ok(sent)
    });

    let queue = Topology::new(env.prefix.as_str()).logs();
    let mut sender = PipelinedPublisher::new(&channel, &queue, &queue);
    let begun = machine_now();
    for number in 0..LOG_MESSAGES {
        let first = first_log_seq(1) + (number / LOGGED_OCCURRENCES * LINES_PER_MESSAGE) as i64;
        let lines = (0..LINES_PER_MESSAGE as i64).map(|line| line_at(first + line)).collect();
        let message = LogMessage { occurrence_id: logged[number % LOGGED_OCCURRENCES], lines };
        sender.send(&serde_json::to_vec(&message)?).await?;
    }
    sender.settle().await?;
    let all = (LOG_MESSAGES * LINES_PER_MESSAGE) as i64;
    env.wait_until("the last line", async || {
        Ok(sqlx::query_scalar::<_, i64>("SELECT count(*) FROM occurrence_logs").fetch_one(&env.pool).await? == all)
    })
    .await?;
    let took = seconds(machine_now() - begun);
    beside_over.store(true, Ordering::Relaxed);
    let sent = beside.await??;
    let open = "SELECT NOT EXISTS (SELECT 1 FROM occurrences WHERE id = ANY($1) AND status = 0)";
    env.wait_until("the last report", async || Ok(sqlx::query_scalar(open).bind(&sent).fetch_one(&env.pool).await?))
        .await?;
    let statement =
        "SELECT extract(epoch FROM last_heartbeat - ended_at)::float8 * 1000 FROM occurrences WHERE id = ANY($1)";
    let mut delays: Vec<f64> = sqlx::query_scalar(statement).bind(&sent).fetch_all(&env.pool).await?;
    ceiling::close(connection).await;
    ceiling::close(beside_connection).await;
    server.stop().await?;
    env.close().await?;
    Ok(vec![("log-intake", all as f64 / took), ("status-beside-logs-p99", percentile(&mut delays, 0.99))])
}

/// Puts queued rows there whose messages count as published.
async fn rows(pool: &PgPool, count: usize) -> anyhow::Result<Vec<OccurrenceId>> {
    let ids: Vec<OccurrenceId> = (0..count).map(|_| occurrence_id()).collect();
    for some in ids.chunks(5_000) {
        ceiling::insert(pool, some).await?;
        let raw: Vec<Uuid> = some.iter().map(|id| id.0).collect();
        sqlx::query("UPDATE occurrences SET published_at = now() WHERE id = ANY($1)").bind(raw).execute(pool).await?;
    }
    sqlx::query("VACUUM ANALYZE occurrences").execute(pool).await?;
    Ok(ids)
}

async fn open(harness: &BenchHarness) -> anyhow::Result<(lapin::Connection, Channel)> {
    let connection = ceiling::connect(&harness.amqp_url).await?;
    let channel = ceiling::confirming(&connection).await?;
    Ok((connection, channel))
}

fn report(occurrence_id: OccurrenceId, status: OccurrenceStatus) -> StatusReport {
    StatusReport {
        duration_ms: status.is_final().then_some(1),
        ..StatusReport::new(occurrence_id, 1, format!("{WORKER_ID}-00000000"), status, machine_now())
    }
}

fn line_at(seq: i64) -> LogLine {
    let message = format!("{JOB_TYPE}: line {seq} of a job that has a lot to say, about as long as such lines are");
    LogLine { seq, at: machine_now(), level: LogLevel::Info, message, data: None }
}

fn seconds(span: Duration) -> f64 {
    span.num_microseconds().unwrap_or_default() as f64 / 1e6
}
