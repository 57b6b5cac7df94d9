//! The ceiling: the rate at which the broker and the database alone do the work that an occurrence needs.
//!
//! Each load sends exactly the messages and statements of an occurrence, in the form that suits the services best, and
//! nothing else. No scheduler on these services can be faster than `ceiling-both`, so the report also gives our
//! throughput as a share of it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::ensure;
use chrono::{DateTime, Utc};
use futures::StreamExt;
use lapin::{
    Channel,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};
use milvaion_protocol::{id::OccurrenceId, topology::Topology};
use milvaion_server::broker::topology;
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    harness::{BenchEnv, BenchHarness, JOB_TYPE, WORKER_ID, occurrence_id},
    publisher::{MAX_UNCONFIRMED, PipelinedPublisher, close, confirming, connect},
    samples::RunSample,
};

/// The length of the measurement, after one second of warm-up.
const MEASURED_SECONDS: u64 = 10;
/// Rows per statement, and the maximum number of messages per consumed batch.
const ROWS_PER_BATCH: usize = 500;
/// Producers, each with one batch in progress.
const CONCURRENT_BATCHES: usize = 4;
/// The size of a message body.
const MESSAGE_BYTES: usize = 500;

/// The services that a measurement loads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CeilingLoad {
    Broker,
    Database,
    Both,
}

/// Measures messages per second: published as persistent with publisher confirms, consumed and acknowledged.
pub(crate) async fn broker(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    repeat(harness, runs, "ceiling-broker", CeilingLoad::Broker).await
}

/// Measures rows per second: inserted once and updated twice.
pub(crate) async fn database(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    repeat(harness, runs, "ceiling-database", CeilingLoad::Database).await
}

/// Measures occurrences per second, each inserted, updated, published, consumed, updated and acknowledged.
pub(crate) async fn both(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    repeat(harness, runs, "ceiling-both", CeilingLoad::Both).await
}

async fn repeat(
    harness: &BenchHarness,
    runs: usize,
    name: &'static str,
    load: CeilingLoad,
) -> anyhow::Result<Vec<RunSample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        samples.push(vec![(name, once(harness, load).await?)]);
    }
    Ok(samples)
}

async fn once(harness: &BenchHarness, load: CeilingLoad) -> anyhow::Result<f64> {
    let env = BenchEnv::new(harness).await?;
    let connections = [connect(&harness.amqp_url).await?, connect(&harness.amqp_url).await?];
    let (done, stop) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
    let mut tasks = JoinSet::new();
    if load != CeilingLoad::Database {
        let names = Topology::new(env.prefix.as_str());
        let channel = connections[0].create_channel().await?;
        topology::declare(&channel, &names).await?;
        let queue = (WORKER_ID.to_owned(), JOB_TYPE.to_owned());
        if let (_, Some(error)) = topology::declare_job_queues(&channel, &names, &[queue]).await {
            return Err(error.into());
        }
        let pool = (load == CeilingLoad::Both).then(|| env.pool.clone());
        let channel = connections[1].create_channel().await?;
        tasks.spawn(consume(channel, names, pool, done.clone(), stop.clone()));
    }
    for _ in 0..CONCURRENT_BATCHES {
        let channel = confirming(&connections[0]).await?;
        tasks.spawn(produce(load, env.pool.clone(), channel, env.prefix.clone(), done.clone(), stop.clone()));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (from, begun) = (done.load(Ordering::Relaxed), tokio::time::Instant::now());
    tokio::time::sleep(Duration::from_secs(MEASURED_SECONDS)).await;
    let (upto, took) = (done.load(Ordering::Relaxed), begun.elapsed());
    stop.cancel();
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    for connection in connections {
        close(connection).await;
    }
    env.close().await?;
    Ok((upto - from) as f64 / took.as_secs_f64())
}

/// Produces batches until `stop`: rows, messages, or a message for each row.
async fn produce(
    load: CeilingLoad,
    pool: PgPool,
    channel: Channel,
    prefix: String,
    done: Arc<AtomicU64>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let names = Topology::new(prefix);
    let exchange = names.jobs_exchange();
    while !stop.is_cancelled() {
        let ids: Vec<OccurrenceId> = (0..ROWS_PER_BATCH).map(|_| occurrence_id()).collect();
        if load != CeilingLoad::Broker {
            insert(&pool, &ids).await?;
            // Before the message, so that this update and the consumer's never wait for each other's row locks.
            let statement = "UPDATE runs SET published_at = now(), publish_after = NULL WHERE id = ANY($1)";
            update(&pool, statement, &ids).await?;
        }
        if load != CeilingLoad::Database {
            let mut sender = PipelinedPublisher::new(&channel, &exchange, "");
            for id in &ids {
                sender.key = Topology::routing_key(WORKER_ID, JOB_TYPE, *id);
                sender.send(format!("{id:<MESSAGE_BYTES$}").as_bytes()).await?;
            }
            sender.settle().await?;
        }
        if load == CeilingLoad::Database {
            complete(&pool, &ids).await?;
            done.fetch_add(ids.len() as u64, Ordering::Relaxed);
        } else {
            // At most a few batches ahead of the consumer: the rate of a growing queue is not the one to measure.
            let ahead = channel.queue_declare(
                names.job_queue(WORKER_ID, JOB_TYPE).into(),
                lapin::options::QueueDeclareOptions { passive: true, ..Default::default() },
                FieldTable::default(),
            );
            if ahead.await?.message_count() > 4_000 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    Ok(())
}

/// Consumes messages in batches until `stop`. With a pool, it completes their rows before it acknowledges them.
async fn consume(
    channel: Channel,
    names: Topology,
    pool: Option<PgPool>,
    done: Arc<AtomicU64>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    channel.basic_qos(u16::try_from(MAX_UNCONFIRMED)?, BasicQosOptions::default()).await?;
    let queue = names.job_queue(WORKER_ID, JOB_TYPE);
    let consume = channel.basic_consume(queue.into(), "".into(), BasicConsumeOptions::default(), FieldTable::default());
    let mut batches = consume.await?.ready_chunks(ROWS_PER_BATCH);
    while let Some(Some(batch)) = stop.run_until_cancelled(batches.next()).await {
        let mut ids = Vec::with_capacity(batch.len());
        let mut last = None;
        for delivery in batch {
            let delivery = delivery?;
            last = Some(delivery.delivery_tag);
            let text = std::str::from_utf8(&delivery.data)?;
            ids.push(text.trim_end().parse::<OccurrenceId>()?);
        }
        if let Some(pool) = &pool {
            complete(pool, &ids).await?;
        }
        if let Some(tag) = last {
            channel.basic_ack(tag, BasicAckOptions { multiple: true }).await?;
        }
        done.fetch_add(ids.len() as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// Inserts queued occurrences with the columns and sizes that the server writes.
pub(crate) async fn insert(pool: &PgPool, ids: &[OccurrenceId]) -> anyhow::Result<()> {
    let statement = "INSERT INTO runs (id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, \
                                       trigger, status, priority, publish_after, status_changes) \
         SELECT id, created_at, id, 'Bench', 1, 'bench', 'noop', created_at, 'schedule', 'queued', 3, created_at, \
                jsonb_build_array(jsonb_build_object('status', 0, 'at', created_at, 'attempt', 1)) \
           FROM unnest($1::uuid[], $2::timestamptz[]) AS p (id, created_at)";
    let created: Vec<DateTime<Utc>> = ids.iter().map(|id| id.created_at()).collect();
    let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
    sqlx::query(statement).bind(ids).bind(created).execute(pool).await?;
    Ok(())
}

/// Moves queued occurrences to the history as Completed, with the columns that the server writes.
async fn complete(pool: &PgPool, ids: &[OccurrenceId]) -> anyhow::Result<()> {
    let statement = "WITH gone AS (DELETE FROM runs WHERE id = ANY($1) AND status = 'queued' RETURNING *) \
         INSERT INTO history (id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger, \
                              status, version, priority, attempt, max_retries, published_at, instance_id, started_at, \
                              ended_at, duration_ms, status_changes, filed_at) \
         SELECT id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger, \
                'completed', version + 1, priority, attempt, max_retries, published_at, 'bench-00000000', now(), \
                now(), 0, status_changes || jsonb_build_array( \
                    jsonb_build_object('status', 1, 'at', now(), 'attempt', 1), \
                    jsonb_build_object('status', 2, 'at', now(), 'attempt', 1)), now() \
           FROM gone";
    let updated = update(pool, statement, ids).await?;
    ensure!(updated == ids.len() as u64, "only {updated} of {} rows were updated", ids.len());
    Ok(())
}

/// Runs a statement on these rows and returns their number.
async fn update(pool: &PgPool, statement: &'static str, ids: &[OccurrenceId]) -> anyhow::Result<u64> {
    let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
    Ok(sqlx::query(statement).bind(ids).execute(pool).await?.rows_affected())
}
