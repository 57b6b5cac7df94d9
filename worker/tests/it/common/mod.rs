//! A broker and a Redis for one test: names of its own, and what a test asks of them.

mod claim_server;
mod confirm_hold;
mod consumer_drop_proxy;
mod jobs;

pub(crate) use jobs::{CountingJob, EmptyInput, SnoozingJob};

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use chrono::{DateTime, Utc};
use claim_server::{FakeClaimServer, answer_claims, claims_queue};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    options::{BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::{JobMessage, LogMessage, RegistrationMessage, StatusMessage, StatusReport},
    status::OccurrenceStatus,
    topology::{HEADER_REPUBLISH, RedisKeys, Topology},
};
use milvaion_worker::{CancellationToken, Outbox, Worker, WorkerBuilder, WorkerError};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinHandle,
};

/// How long anything may take before a test fails.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct WorkerTestEnv {
    pub(crate) topology: Topology,
    pub(crate) worker_id: String,
    /// Where its workers keep what the broker has not confirmed.
    pub(crate) outbox: PathBuf,
    amqp_url: String,
    redis_url: String,
    key_prefix: String,
    channel: Channel,
    _connection: Connection,
    reports: std::sync::Mutex<Vec<StatusReport>>,
    server: Arc<FakeClaimServer>,
}

impl WorkerTestEnv {
    pub(crate) async fn new() -> Self {
        let amqp_url = service("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/%2f");
        let redis_url = service("REDIS_URL", "redis://127.0.0.1:6379/0");
        let name = format!("t{:016x}", rand::random::<u64>());
        let connection = Connection::connect(&amqp_url, ConnectionProperties::default())
            .await
            .expect("RabbitMQ at AMQP_URL answers");
        let channel = connection.create_channel().await.expect("a channel");
        channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
        let (topology, server) = (Topology::new(name.as_str()), Arc::<FakeClaimServer>::default());
        tokio::spawn(answer_claims(claims_queue(&connection, &topology.claims()).await, server.clone()));
        Self {
            topology,
            server,
            worker_id: "w".to_owned(),
            outbox: std::env::temp_dir().join(format!("milvaion-{name}")),
            key_prefix: format!("{name}:"),
            amqp_url,
            redis_url,
            channel,
            _connection: connection,
            reports: std::sync::Mutex::default(),
        }
    }

    /// A builder that leads to this stack.
    pub(crate) fn worker(&self) -> WorkerBuilder {
        let prefix = self.topology.jobs_exchange();
        Worker::builder()
            .worker_id(self.worker_id.as_str())
            .amqp_url(self.amqp_url.as_str())
            .redis_url(self.redis_url.as_str())
            .prefix(prefix.trim_end_matches(".jobs"))
            .key_prefix(self.key_prefix.as_str())
            .outbox(Outbox::Folder(self.outbox.clone()))
    }

    /// The same for a process of its own.
    pub(crate) fn environment(&self) -> [(&'static str, String); 6] {
        [
            ("AMQP_URL", self.amqp_url.clone()),
            ("REDIS_URL", self.redis_url.clone()),
            ("MILVAION_WORKER_ID", self.worker_id.clone()),
            ("MILVAION_PREFIX", self.topology.jobs_exchange().trim_end_matches(".jobs").to_owned()),
            ("MILVAION_KEY_PREFIX", self.key_prefix.clone()),
            ("MILVAION_OUTBOX", self.outbox.display().to_string()),
        ]
    }

    /// Runs a worker, and waits until it has introduced itself and takes work.
    pub(crate) async fn start(&self, builder: WorkerBuilder, job_type: &str) -> StartedWorker {
        let worker = builder.build().expect("a valid configuration");
        let (instance, stop) = (worker.instance_id().to_owned(), CancellationToken::new());
        let task = tokio::spawn(worker.run_until(stop.clone()));
        eventually("the worker introduces itself", async || {
            self.registrations()
                .await
                .into_iter()
                .any(|message| matches!(message, RegistrationMessage::Hello(hello) if hello.instance_id == instance))
        })
        .await;
        let queue = self.topology.job_queue(&self.worker_id, job_type);
        eventually("the worker takes work", async || {
            self.queue(&queue).await.is_some_and(|(_, consumers)| consumers > 0)
        })
        .await;
        StartedWorker { stop, task }
    }

    /// A job message for this stack's worker.
    pub(crate) fn message(&self, job_type: &str, input: Value) -> JobMessage {
        let occurrence_id = OccurrenceId::from_parts(now(), rand::random());
        JobMessage {
            occurrence_id,
            job_id: JobId::from_parts(now(), rand::random()),
            job_name: "test".to_owned(),
            job_type: job_type.to_owned(),
            job_data: input,
            correlation_id: occurrence_id,
            scheduled_for: now(),
            timestamp: now(),
            attempt: 1,
            retry_count: 0,
            max_retries: 0,
            timeout_seconds: None,
            priority: 3,
            traceparent: None,
        }
    }

    pub(crate) async fn publish(&self, message: &JobMessage) {
        let key = Topology::routing_key(&self.worker_id, &message.job_type, message.occurrence_id);
        let body = serde_json::to_vec(message).expect("plain data");
        self.send(&key, &body, FieldTable::default(), message.priority).await;
    }

    /// Publishes it as the server does when it could not know whether an earlier copy arrived.
    pub(crate) async fn republish(&self, message: &JobMessage) {
        let key = Topology::routing_key(&self.worker_id, &message.job_type, message.occurrence_id);
        let mut headers = FieldTable::default();
        headers.insert(HEADER_REPUBLISH.into(), AMQPValue::LongInt(1));
        self.send(&key, &serde_json::to_vec(message).expect("plain data"), headers, message.priority).await;
    }

    pub(crate) async fn publish_raw(&self, key: &str, body: &[u8]) {
        self.send(key, body, FieldTable::default(), 3).await;
    }

    async fn send(&self, key: &str, body: &[u8], headers: FieldTable, priority: u8) {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let exchange = self.topology.jobs_exchange();
        let properties = BasicProperties::default().with_delivery_mode(2).with_headers(headers).with_priority(priority);
        let confirm = self
            .channel
            .basic_publish(exchange.as_str().into(), key.into(), options, body, properties)
            .await
            .expect("sent");
        assert_eq!(confirm.await.expect("answered"), lapin::Confirmation::Ack(None), "the message must reach a queue");
    }

    /// Claims the first attempt in the name of another instance, with a lease of so many milliseconds; its key outlives
    /// that by a day, as every claim's does.
    pub(crate) async fn claim(&self, occurrence: OccurrenceId, by: &str, lease_ms: u32) {
        self.claim_for(occurrence, by, lease_ms + 24 * 3_600_000).await;
    }

    /// The same, with a key that is gone after so many milliseconds.
    pub(crate) async fn claim_for(&self, occurrence: OccurrenceId, by: &str, kept_ms: u32) {
        let key = self.keys().running(occurrence);
        self.redis::<()>(redis::cmd("SET").arg(key).arg(format!("{by}:1")).arg("PX").arg(kept_ms)).await;
    }

    /// Who has claimed which attempt of an occurrence, as Redis has it; none when nobody has.
    pub(crate) async fn claimed(&self, occurrence: OccurrenceId) -> Option<String> {
        self.redis(redis::cmd("GET").arg(self.keys().running(occurrence))).await
    }

    /// Leaves the wish that an occurrence be cancelled where it can be read.
    pub(crate) async fn write_cancellation(&self, occurrence: OccurrenceId, reason: &str) {
        let (key, wish) = (self.keys().cancel_request(occurrence), cancellation(occurrence, reason));
        self.redis::<()>(redis::cmd("SET").arg(key).arg(wish).arg("EX").arg(60)).await;
    }

    /// Tells everybody who listens that an occurrence is to be cancelled; answers how many that are.
    pub(crate) async fn tell_cancellation(&self, occurrence: OccurrenceId, reason: &str) -> u32 {
        let (channel, wish) = (self.keys().cancellation_channel(), cancellation(occurrence, reason));
        self.redis(redis::cmd("PUBLISH").arg(channel).arg(wish)).await
    }

    /// Breaks the connection of everybody who listens to a channel of Redis.
    pub(crate) async fn break_listeners(&self) {
        self.redis::<()>(redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub")).await;
    }

    fn keys(&self) -> RedisKeys {
        RedisKeys::new(self.key_prefix.as_str())
    }

    async fn redis<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> T {
        let client = redis::Client::open(self.redis_url.as_str()).expect("a valid address");
        let mut redis = client.get_multiplexed_async_connection().await.expect("Redis at REDIS_URL answers");
        command.query_async(&mut redis).await.expect("done")
    }

    /// How many messages wait in a queue and how many consumers it has; none if there is no such queue.
    pub(crate) async fn queue(&self, name: &str) -> Option<(u32, u32)> {
        // Asking for a queue that is not there closes the channel.
        let channel = self._connection.create_channel().await.expect("a channel");
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = channel.queue_declare(name.into(), options, FieldTable::default()).await.ok()?;
        channel.close(200, "".into()).await.expect("closed");
        Some((queue.message_count(), queue.consumer_count()))
    }

    /// Every report so far, in the order they came.
    pub(crate) async fn reports(&self) -> Vec<StatusReport> {
        let fresh: Vec<StatusMessage> = self.take(&self.topology.status()).await;
        let mut reports = self.reports.lock().expect("no test thread panicked");
        reports.extend(fresh.into_iter().flat_map(StatusMessage::into_reports));
        reports.clone()
    }

    /// Waits until an occurrence has ended and answers its reports.
    pub(crate) async fn ended(&self, occurrence: OccurrenceId) -> Vec<StatusReport> {
        let of = |reports: Vec<StatusReport>| {
            reports.into_iter().filter(|report| report.occurrence_id == occurrence).collect::<Vec<_>>()
        };
        eventually("the occurrence ends", async || {
            of(self.reports().await).iter().any(|report| report.status != OccurrenceStatus::Running)
        })
        .await;
        of(self.reports().await)
    }

    /// The log messages since the last call.
    pub(crate) async fn logs(&self) -> Vec<LogMessage> {
        self.take(&self.topology.logs()).await
    }

    /// What workers have said about themselves since the last call.
    pub(crate) async fn registrations(&self) -> Vec<RegistrationMessage> {
        self.take(&self.topology.registration()).await
    }

    async fn take<T: DeserializeOwned>(&self, queue: &str) -> Vec<T> {
        let mut taken = Vec::new();
        if self.queue(queue).await.is_none() {
            return taken;
        }
        while let Some(got) =
            self.channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await.expect("answered")
        {
            taken.push(serde_json::from_slice(&got.delivery.data).expect("a message of the protocol"));
        }
        taken
    }

    /// Takes the exchanges, the queues and the outbox away again.
    pub(crate) async fn clean(self, job_types: &[&str]) {
        let _ = std::fs::remove_dir_all(&self.outbox);
        let topology = &self.topology;
        let mut queues = vec![
            topology.dead_letter_queue(),
            topology.status(),
            topology.logs(),
            topology.registration(),
            topology.claims(),
        ];
        queues.extend(job_types.iter().map(|job_type| topology.job_queue(&self.worker_id, job_type)));
        for queue in queues {
            let _ = self.channel.queue_delete(queue.as_str().into(), Default::default()).await;
        }
        let exchanges = [
            topology.jobs_exchange(),
            topology.dead_letter_exchange(),
            topology.status(),
            topology.logs(),
            topology.registration(),
            topology.claims(),
        ];
        for exchange in exchanges {
            let _ = self.channel.exchange_delete(exchange.as_str().into(), Default::default()).await;
        }
    }
}

/// A running worker.
pub(crate) struct StartedWorker {
    stop: CancellationToken,
    task: JoinHandle<Result<(), WorkerError>>,
}

impl StartedWorker {
    /// Asks it to stop, without waiting.
    pub(crate) fn ask(&self) {
        self.stop.cancel();
    }

    /// Stops it and waits for its end.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        let ended = tokio::time::timeout(TEST_TIMEOUT, self.task).await.expect("the worker stops in time");
        ended.expect("the worker does not panic").expect("the worker ends well");
    }
}

/// Asks again and again until `holds`.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let since = Instant::now();
    while !holds().await {
        assert!(since.elapsed() < TEST_TIMEOUT, "in vain waited for this: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether these reports tell of one run that was done.
pub(crate) fn tell_of_one_run(reports: &[StatusReport]) -> bool {
    use OccurrenceStatus::{Completed, Running};
    reports.iter().map(|report| report.status).collect::<Vec<_>>() == [Running, Completed]
}

/// The machine's clock.
#[expect(clippy::disallowed_methods, reason = "a test of real services goes by their time")]
pub(crate) fn now() -> DateTime<Utc> {
    Utc::now()
}

pub(crate) fn nothing() -> Value {
    json!({})
}

fn cancellation(occurrence: OccurrenceId, reason: &str) -> String {
    json!({"occurrenceId": occurrence, "attempt": 1, "reason": reason}).to_string()
}

fn service(name: &str, example: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: these tests need a RabbitMQ and a Redis; run `make test`, or set it like {example}")
    })
}

/// An address nobody listens at.
pub(crate) fn free_address() -> std::net::SocketAddr {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    free.local_addr().expect("bound")
}

/// Asks a worker how it is: the status line and the body.
pub(crate) async fn ask(port: u16, path: &str) -> (String, String) {
    let mut line = TcpStream::connect(("127.0.0.1", port)).await.expect("the worker answers");
    line.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.expect("asked");
    let mut answer = String::new();
    line.read_to_string(&mut answer).await.expect("answered");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}
