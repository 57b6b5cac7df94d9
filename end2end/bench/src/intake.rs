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
    message::{LogLevel, LogLine, LogMessage, StatusMessage, StatusReport, first_seq},
    status::OccurrenceStatus,
    topology::Topology,
};
use milvaion_server::clock::machine_now;
use sqlx::PgPool;
use uuid::Uuid;

use crate::{
    ceiling::{self, Sender},
    figures::{Sample, percentile},
    lab::{JOB_TYPE, Lab, Site, WORKER, occurrence_id},
};

/// Occurrences that are reported on: two reports each.
const REPORTED: usize = 50_000;
/// Occurrences whose two reports travel in one message.
const TOGETHER: usize = 50;
/// Messages of a hundred lines, and the occurrences they are spread over.
const LOG_MESSAGES: usize = 3_000;
/// See [`LOG_MESSAGES`].
const LOGGED: usize = 300;
/// Lines in a message.
const LINES: usize = 100;
/// How often a report is sent beside the lines.
const BESIDE: std::time::Duration = std::time::Duration::from_millis(10);

/// Reports a second: each occurrence's Running and Completed.
pub(crate) async fn status(lab: &Lab, runs: usize) -> anyhow::Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        let site = Site::new(lab).await?;
        let ids = rows(&site.pool, REPORTED).await?;
        let server = site.server().await?;
        let (connection, channel) = open(lab).await?;
        let queue = Topology::new(site.prefix.as_str()).status();
        let mut sender = Sender::new(&channel, &queue, &queue);
        let begun = machine_now();
        for some in ids.chunks(TOGETHER) {
            let reports = some.iter().map(|id| report(*id, OccurrenceStatus::Running));
            let reports = reports.chain(some.iter().map(|id| report(*id, OccurrenceStatus::Completed))).collect();
            sender.send(&serde_json::to_vec(&StatusMessage::Batch { reports })?).await?;
        }
        sender.settle().await?;
        site.drained().await?;
        let last: DateTime<Utc> =
            sqlx::query_scalar("SELECT max(last_heartbeat) FROM occurrences").fetch_one(&site.pool).await?;
        samples.push(vec![("status-intake", (2 * REPORTED) as f64 / seconds(last - begun))]);
        ceiling::close(connection).await;
        server.stop().await?;
        site.close().await?;
    }
    Ok(samples)
}

/// Log lines a second, and how long a report takes that is sent beside them.
pub(crate) async fn logs(lab: &Lab, runs: usize) -> anyhow::Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        samples.push(logs_once(lab).await?);
    }
    Ok(samples)
}

async fn logs_once(lab: &Lab) -> anyhow::Result<Sample> {
    let site = Site::new(lab).await?;
    let logged = rows(&site.pool, LOGGED).await?;
    let reported = rows(&site.pool, 20_000).await?;
    let server = site.server().await?;
    let (connection, channel) = open(lab).await?;
    let beside_over = Arc::new(AtomicBool::new(false));
    let (over, status_queue) = (beside_over.clone(), Topology::new(site.prefix.as_str()).status());
    let (beside_connection, beside_channel) = open(lab).await?;
    let beside = tokio::spawn(async move {
        let mut sender = Sender::new(&beside_channel, &status_queue, &status_queue);
        let mut sent = Vec::new();
        for id in reported {
            if over.load(Ordering::Relaxed) {
                break;
            }
            sender.send(&serde_json::to_vec(&StatusMessage::One(report(id, OccurrenceStatus::Completed)))?).await?;
            sent.push(id.0);
            tokio::time::sleep(BESIDE).await;
        }
        sender.settle().await?;
        anyhow::Ok(sent)
    });

    let queue = Topology::new(site.prefix.as_str()).logs();
    let mut sender = Sender::new(&channel, &queue, &queue);
    let begun = machine_now();
    for number in 0..LOG_MESSAGES {
        let first = first_seq(1) + (number / LOGGED * LINES) as i64;
        let lines = (0..LINES as i64).map(|line| line_at(first + line)).collect();
        let message = LogMessage { occurrence_id: logged[number % LOGGED], lines };
        sender.send(&serde_json::to_vec(&message)?).await?;
    }
    sender.settle().await?;
    let all = (LOG_MESSAGES * LINES) as i64;
    site.until("the last line", async || {
        Ok(sqlx::query_scalar::<_, i64>("SELECT count(*) FROM occurrence_logs").fetch_one(&site.pool).await? == all)
    })
    .await?;
    let took = seconds(machine_now() - begun);
    beside_over.store(true, Ordering::Relaxed);
    let sent = beside.await??;
    let open = "SELECT NOT EXISTS (SELECT 1 FROM occurrences WHERE id = ANY($1) AND status = 0)";
    site.until("the last report", async || Ok(sqlx::query_scalar(open).bind(&sent).fetch_one(&site.pool).await?))
        .await?;
    let statement =
        "SELECT extract(epoch FROM last_heartbeat - ended_at)::float8 * 1000 FROM occurrences WHERE id = ANY($1)";
    let mut delays: Vec<f64> = sqlx::query_scalar(statement).bind(&sent).fetch_all(&site.pool).await?;
    ceiling::close(connection).await;
    ceiling::close(beside_connection).await;
    server.stop().await?;
    site.close().await?;
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

async fn open(lab: &Lab) -> anyhow::Result<(lapin::Connection, Channel)> {
    let connection = ceiling::connect(&lab.amqp_url).await?;
    let channel = ceiling::confirming(&connection).await?;
    Ok((connection, channel))
}

fn report(occurrence_id: OccurrenceId, status: OccurrenceStatus) -> StatusReport {
    StatusReport {
        duration_ms: status.is_final().then_some(1),
        ..StatusReport::new(occurrence_id, 1, format!("{WORKER}-00000000"), status, machine_now())
    }
}

fn line_at(seq: i64) -> LogLine {
    let message = format!("{JOB_TYPE}: line {seq} of a job that has a lot to say, about as long as such lines are");
    LogLine { seq, at: machine_now(), level: LogLevel::Info, message, data: None }
}

fn seconds(span: Duration) -> f64 {
    span.num_microseconds().unwrap_or_default() as f64 / 1e6
}
