//! The rate at which the server ingests reports and log lines. They are published directly to its queues, as many
//! workers would do together.
//!
//! The occurrences that the messages name are inserted beforehand and marked as published, so that the server does
//! nothing else meanwhile.

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
    ceiling,
    harness::{BenchEnv, BenchHarness, JOB_TYPE, WORKER_ID, occurrence_id},
    publisher::{self, PipelinedPublisher},
    raw,
    samples::{RawValue, RunSample, p50_and_p99},
};

/// Occurrences with two reports each.
const REPORTED_OCCURRENCES: usize = 50_000;
/// Occurrences whose two reports are in one message.
const OCCURRENCES_PER_MESSAGE: usize = 50;
/// Messages of 100 lines each. They are spread over [`LOGGED_OCCURRENCES`].
const LOG_MESSAGES: usize = 3_000;
/// The occurrences that the log lines belong to.
const LOGGED_OCCURRENCES: usize = 300;
/// Lines per message.
const LINES_PER_MESSAGE: usize = 100;
/// The interval between the reports that are sent during the log lines.
const STATUS_INTERVAL: std::time::Duration = std::time::Duration::from_millis(10);

/// Measures reports per second: Running and Completed of each occurrence.
pub(crate) async fn status(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        let env = BenchEnv::new(harness).await?;
        let ids = insert_published(&env.pool, REPORTED_OCCURRENCES).await?;
        let server = env.server().await?;
        let (connection, channel) = open(harness).await?;
        let queue = Topology::new(env.prefix.as_str()).status();
        let mut sender = PipelinedPublisher::new(&channel, &queue, &queue);
        let begun = machine_now();
        for chunk in ids.chunks(OCCURRENCES_PER_MESSAGE) {
            let reports = chunk.iter().map(|id| report(*id, OccurrenceStatus::Running));
            let reports = reports.chain(chunk.iter().map(|id| report(*id, OccurrenceStatus::Completed))).collect();
            sender.send(&serde_json::to_vec(&StatusMessage::Batch { reports })?).await?;
        }
        sender.settle().await?;
        env.wait_until_drained().await?;
        let last: DateTime<Utc> =
            sqlx::query_scalar("SELECT max(last_heartbeat) FROM occurrences").fetch_one(&env.pool).await?;
        samples.push(vec![("status-ingest", (2 * REPORTED_OCCURRENCES) as f64 / seconds(last - begun))]);
        publisher::close(connection).await;
        server.stop().await?;
        env.close().await?;
    }
    Ok(samples)
}

/// Measures log lines per second, and the delay of a report that is sent meanwhile, in milliseconds.
pub(crate) async fn logs(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        samples.push(logs_once(harness).await?);
    }
    Ok(samples)
}

async fn logs_once(harness: &BenchHarness) -> anyhow::Result<RunSample> {
    let env = BenchEnv::new(harness).await?;
    let logged = insert_published(&env.pool, LOGGED_OCCURRENCES).await?;
    let reported = insert_published(&env.pool, 20_000).await?;
    let server = env.server().await?;
    let (connection, channel) = open(harness).await?;
    let is_over = Arc::new(AtomicBool::new(false));
    let (over, status_queue) = (is_over.clone(), Topology::new(env.prefix.as_str()).status());
    let (report_connection, report_channel) = open(harness).await?;
    let reports = tokio::spawn(async move {
        let mut sender = PipelinedPublisher::new(&report_channel, &status_queue, &status_queue);
        let mut sent = Vec::new();
        for id in reported {
            if over.load(Ordering::Relaxed) {
                break;
            }
            sender
                .send(&serde_json::to_vec(&StatusMessage::One(Box::new(report(id, OccurrenceStatus::Completed))))?)
                .await?;
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
    env.wait_until("the last log line", async || {
        Ok(sqlx::query_scalar::<_, i64>("SELECT count(*) FROM occurrence_logs").fetch_one(&env.pool).await? == all)
    })
    .await?;
    let took = seconds(machine_now() - begun);
    is_over.store(true, Ordering::Relaxed);
    let sent = reports.await??;
    let open = "SELECT NOT EXISTS (SELECT 1 FROM occurrences WHERE id = ANY($1) AND status = 'queued')";
    env.wait_until("the last report", async || Ok(sqlx::query_scalar(open).bind(&sent).fetch_one(&env.pool).await?))
        .await?;
    let statement = "SELECT ended_at, extract(epoch FROM last_heartbeat - ended_at)::float8 * 1000 \
                       FROM occurrences WHERE id = ANY($1) ORDER BY ended_at";
    let delays: Vec<RawValue> = sqlx::query_as(statement).bind(&sent).fetch_all(&env.pool).await?;
    raw::keep(harness, "status-beside-logs", &env.prefix, &delays)?;
    let [_, p99] = p50_and_p99(&delays);
    publisher::close(connection).await;
    publisher::close(report_connection).await;
    server.stop().await?;
    env.close().await?;
    Ok(vec![("log-ingest", all as f64 / took), ("status-beside-logs-p99", p99)])
}

/// Inserts queued occurrences and marks them as published.
async fn insert_published(pool: &PgPool, count: usize) -> anyhow::Result<Vec<OccurrenceId>> {
    let ids: Vec<OccurrenceId> = (0..count).map(|_| occurrence_id()).collect();
    for chunk in ids.chunks(5_000) {
        ceiling::insert(pool, chunk).await?;
        let raw: Vec<Uuid> = chunk.iter().map(|id| id.0).collect();
        sqlx::query("UPDATE runs SET published_at = now(), publish_after = NULL WHERE id = ANY($1)")
            .bind(raw)
            .execute(pool)
            .await?;
    }
    sqlx::query("VACUUM ANALYZE runs").execute(pool).await?;
    Ok(ids)
}

/// Opens a connection to the broker and a confirming channel on it.
async fn open(harness: &BenchHarness) -> anyhow::Result<(lapin::Connection, Channel)> {
    let connection = publisher::connect(&harness.amqp_url).await?;
    let channel = publisher::confirming(&connection).await?;
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
