//! The ceiling under us: what the broker and the database do in a second when somebody asks them for exactly what an
//! occurrence needs, in the form that suits them best, and for nothing else. No scheduler on these services can be faster
//! than `ceiling-both`, so our throughput is told as a share of it too.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, ensure};
use chrono::{DateTime, Utc};
use futures::StreamExt;
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, PublisherConfirm,
    options::{BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions},
    types::FieldTable,
};
use milvaion_protocol::{id::OccurrenceId, topology::Topology};
use milvaion_server::broker::topology;
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    figures::RunSample,
    harness::{BenchEnv, BenchHarness, JOB_TYPE, WORKER_ID, occurrence_id},
};

/// How long is counted, after a second that is not.
const MEASURED_SECONDS: u64 = 10;
/// Rows in a statement, messages in a bite.
const ROWS_PER_BATCH: usize = 500;
/// Batches under way at once.
const CONCURRENT_BATCHES: usize = 4;
/// Confirms that may be awaited at once.
const MAX_UNCONFIRMED: usize = 2_000;
/// Bytes of a message.
const MESSAGE_BYTES: usize = 500;

#[derive(Clone, Copy, PartialEq, Eq)]
enum CeilingLoad {
    Broker,
    Database,
    Both,
}

/// Messages a second: published persistent with confirm, consumed, acknowledged.
pub(crate) async fn broker(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    repeat(harness, runs, "ceiling-broker", CeilingLoad::Broker).await
}

/// Rows a second: inserted and updated twice.
pub(crate) async fn database(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    repeat(harness, runs, "ceiling-database", CeilingLoad::Database).await
}

/// Both for each occurrence: inserted, updated, published, consumed, updated, acknowledged.
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
        topology::declare_job_queue(&channel, &names, WORKER_ID, JOB_TYPE).await?;
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
            // Before the message, so that this update and the consumer's never wait for each other.
            let statement = "UPDATE occurrences o SET published_at = now() \
                               FROM unnest($1::uuid[], $2::timestamptz[]) AS p (id, created_at) \
                              WHERE o.id = p.id AND o.created_at = p.created_at AND o.created_at BETWEEN $3 AND $4";
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
            // Never more than a few batches ahead of the consumer: a queue that grows is not what we measure.
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
    let mut bites = consume.await?.ready_chunks(ROWS_PER_BATCH);
    while let Some(Some(bite)) = stop.run_until_cancelled(bites.next()).await {
        let mut ids = Vec::with_capacity(bite.len());
        let mut last = None;
        for delivery in bite {
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

/// Inserts queued rows, as wide as ours are.
pub(crate) async fn insert(pool: &PgPool, ids: &[OccurrenceId]) -> anyhow::Result<()> {
    let statement = "INSERT INTO occurrences (id, created_at, job_id, job_name, job_version, worker_id, job_type, job_data, \
                                              scheduled_for, trigger, status, priority, status_changes) \
         SELECT id, created_at, id, 'Bench', 1, 'bench', 'noop', '{}', created_at, 'schedule', 0, 3, \
                jsonb_build_array(jsonb_build_object('status', 0, 'at', created_at, 'attempt', 1)) \
           FROM unnest($1::uuid[], $2::timestamptz[]) AS p (id, created_at)";
    let created: Vec<DateTime<Utc>> = ids.iter().map(|id| id.created_at()).collect();
    let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
    sqlx::query(statement).bind(ids).bind(created).execute(pool).await?;
    Ok(())
}

async fn complete(pool: &PgPool, ids: &[OccurrenceId]) -> anyhow::Result<()> {
    let statement = "UPDATE occurrences o \
            SET status = 2, version = version + 1, instance_id = 'bench-00000000', started_at = now(), ended_at = now(), \
                duration_ms = 0, last_heartbeat = now(), published_at = coalesce(published_at, now()), \
                status_changes = status_changes || jsonb_build_array( \
                    jsonb_build_object('status', 1, 'at', now(), 'attempt', 1), \
                    jsonb_build_object('status', 2, 'at', now(), 'attempt', 1)) \
           FROM unnest($1::uuid[], $2::timestamptz[]) AS p (id, created_at) \
          WHERE o.id = p.id AND o.created_at = p.created_at AND o.created_at BETWEEN $3 AND $4 AND o.status = 0";
    ensure!(update(pool, statement, ids).await? == ids.len() as u64, "not all rows were updated");
    Ok(())
}

/// `$3` and `$4` are the oldest and the newest instant, which spares all partitions but one or two.
async fn update(pool: &PgPool, statement: &'static str, ids: &[OccurrenceId]) -> anyhow::Result<u64> {
    let created: Vec<DateTime<Utc>> = ids.iter().map(|id| id.created_at()).collect();
    let (oldest, newest) = (created.iter().min().copied(), created.iter().max().copied());
    let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
    let done = sqlx::query(statement).bind(ids).bind(created).bind(oldest).bind(newest).execute(pool).await?;
    Ok(done.rows_affected())
}

/// A connection to the broker.
pub(crate) async fn connect(url: &str) -> anyhow::Result<Connection> {
    Connection::connect(url, ConnectionProperties::default()).await.context("RabbitMQ cannot be reached")
}

/// Ends a connection. Channels that were just dropped may be ending themselves; that is no trouble.
pub(crate) async fn close(connection: Connection) {
    let _ = connection.close(200, "done".into()).await;
}

/// A channel on which the broker confirms what it has taken.
pub(crate) async fn confirming(connection: &Connection) -> anyhow::Result<Channel> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}

/// Publishes persistent messages with many confirms awaited at once.
pub(crate) struct PipelinedPublisher<'a> {
    channel: &'a Channel,
    exchange: String,
    pub(crate) key: String,
    waiting: VecDeque<PublisherConfirm>,
}

impl<'a> PipelinedPublisher<'a> {
    pub(crate) fn new(channel: &'a Channel, exchange: &str, key: &str) -> Self {
        Self { channel, exchange: exchange.to_owned(), key: key.to_owned(), waiting: VecDeque::new() }
    }

    /// Sends one; waits for the oldest confirm when too many are missing.
    pub(crate) async fn send(&mut self, body: &[u8]) -> anyhow::Result<()> {
        if self.waiting.len() >= MAX_UNCONFIRMED
            && let Some(oldest) = self.waiting.pop_front()
        {
            ensure!(oldest.await?.is_ack(), "the broker refused a message");
        }
        let (exchange, key) = (self.exchange.as_str().into(), self.key.as_str().into());
        let persistent = BasicProperties::default().with_delivery_mode(2);
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        self.waiting.push_back(self.channel.basic_publish(exchange, key, options, body, persistent).await?);
        Ok(())
    }

    /// Waits for all confirms.
    pub(crate) async fn settle(&mut self) -> anyhow::Result<()> {
        for confirm in self.waiting.drain(..) {
            ensure!(confirm.await?.is_ack(), "the broker refused a message");
        }
        Ok(())
    }
}
