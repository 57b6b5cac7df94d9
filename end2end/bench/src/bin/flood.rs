//! Measures the speed of a worker and its processor time per occurrence:
//! `cargo run --release -p milvaion-bench --bin flood`.
//!
//! Fills the queue of a job that does nothing, starts a worker that drains it, and prints the occurrences per second
//! and the processor time that this process used for a thousand of them. The first argument is the number of messages
//! (default 20,000), the second the concurrency limit (default 100). The run uses its own names on the broker and in
//! Redis, and deletes them at its end together with its outbox. With `MILVAION_OUTBOX=off` there is no outbox, and the
//! difference is its cost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    options::{BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions},
};
use milvaion_protocol::{id::OccurrenceId, message::StatusMessage, topology::Topology};
use milvaion_test_support::messages;
use milvaion_worker::{CancellationToken, Job, JobContext, JobError, Outbox, Worker, WorkerConfig};

/// A job that does nothing and counts its runs.
#[derive(Clone)]
struct NoopJob(Arc<AtomicUsize>);

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct EmptyInput {}

impl Job for NoopJob {
    const TYPE: &'static str = "nothing";
    const DESCRIPTION: &'static str = "Does nothing.";
    type Input = EmptyInput;
    type Output = ();

    async fn run(&self, _: &JobContext, _: EmptyInput) -> Result<(), JobError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_env_filter("info").with_writer(std::io::stderr).init();
    let mut arguments = std::env::args().skip(1);
    let count: usize = arguments.next().map_or(Ok(20_000), |text| text.parse())?;
    let concurrency: u16 = arguments.next().map_or(Ok(100), |text| text.parse())?;
    let name = format!("flood{:08x}", rand::random::<u32>());
    let folder = std::env::temp_dir().join(format!("milvaion-{name}"));
    let mut config = WorkerConfig::from_env()?;
    if config.outbox == Outbox::StateDirectory {
        config.outbox = Outbox::Folder(folder.clone());
    }
    config.worker_id = "flood".to_owned();
    config.prefix = name.clone();
    config.key_prefix = format!("{name}:");
    config.capacity = concurrency.into();
    config.concurrency = [("nothing".to_owned(), concurrency)].into();
    let topology = Topology::new(name.as_str());
    let ran = Arc::new(AtomicUsize::new(0));
    let worker = || Worker::builder().config(config.clone()).job(NoopJob(ran.clone())).build();

    // A worker that starts and stops leaves its queues behind.
    let stop = CancellationToken::new();
    let declaring = tokio::spawn(worker()?.run_until(stop.clone()));
    let connection = Connection::connect(&config.amqp_url, ConnectionProperties::default()).await?;
    let queue = topology.job_queue("flood", "nothing");
    while !exists(&connection, &queue).await {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stop.cancel();
    declaring.await??;
    let channel = connection.create_channel().await?;
    fill(&channel, &topology, count).await?;

    let (stop, began, processor) = (CancellationToken::new(), Instant::now(), processor_time());
    let working = tokio::spawn(worker()?.run_until(stop.clone()));
    while ran.load(Ordering::Relaxed) < count {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (took, spent) = (began.elapsed(), processor_time() - processor);
    stop.cancel();
    working.await??;
    println!(
        "{count} occurrences in {took:.2?}: {:.0} a second; {:.3} s of processor time for 1,000",
        count as f64 / took.as_secs_f64(),
        spent.as_secs_f64() / (count as f64 / 1000.0)
    );
    let (messages, reports) = read_reports(&channel, &topology).await?;
    println!("{reports} reports in {messages} messages");
    clean(&channel, &topology).await?;
    let _ = std::fs::remove_dir_all(folder);
    Ok(())
}

/// Returns true if the queue exists.
async fn exists(connection: &Connection, queue: &str) -> bool {
    let Ok(channel) = connection.create_channel().await else { return false };
    let options = lapin::options::QueueDeclareOptions { passive: true, ..Default::default() };
    channel.queue_declare(queue.into(), options, Default::default()).await.is_ok()
}

/// Publishes `count` job messages and waits for their confirms.
async fn fill(channel: &Channel, topology: &Topology, count: usize) -> Result<(), Box<dyn std::error::Error>> {
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let exchange = topology.jobs_exchange();
    let mut confirms = Vec::with_capacity(count);
    for _ in 0..count {
        let occurrence_id = OccurrenceId(uuid::Builder::from_random_bytes(rand::random()).into_uuid());
        let at = chrono::DateTime::UNIX_EPOCH;
        let message = messages::job_message(occurrence_id, "nothing", serde_json::json!({}), at);
        let key = Topology::routing_key("flood", "nothing", occurrence_id);
        let properties = BasicProperties::default().with_delivery_mode(2).with_priority(3);
        let (options, body) = (BasicPublishOptions::default(), serde_json::to_vec(&message)?);
        confirms.push(
            channel.basic_publish(exchange.as_str().into(), key.as_str().into(), options, &body, properties).await?,
        );
    }
    for confirm in confirms {
        confirm.await?;
    }
    Ok(())
}

/// Consumes the worker's reports. Returns the number of messages and of reports.
async fn read_reports(channel: &Channel, topology: &Topology) -> Result<(usize, usize), Box<dyn std::error::Error>> {
    let (queue, mut messages, mut reports) = (topology.status(), 0, 0);
    while let Some(got) = channel.basic_get(queue.as_str().into(), BasicGetOptions { no_ack: true }).await? {
        messages += 1;
        reports += serde_json::from_slice::<StatusMessage>(&got.delivery.data)?.into_reports().len();
    }
    Ok((messages, reports))
}

/// Deletes the queues and exchanges of this run.
async fn clean(channel: &Channel, topology: &Topology) -> lapin::Result<()> {
    let shared = [topology.status(), topology.logs(), topology.registration()];
    let queues = shared.iter().cloned().chain([topology.dead_letter_queue(), topology.job_queue("flood", "nothing")]);
    for queue in queues {
        channel.queue_delete(queue.as_str().into(), Default::default()).await?;
    }
    for exchange in shared.into_iter().chain([topology.jobs_exchange(), topology.dead_letter_exchange()]) {
        channel.exchange_delete(exchange.as_str().into(), Default::default()).await?;
    }
    Ok(())
}

/// Returns the processor time of this process so far, in user and kernel mode.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The command is in parentheses. The 12th and the 13th field after it are hundredths of a second.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().skip(11).take(2);
    Duration::from_millis(10 * fields.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>())
}
