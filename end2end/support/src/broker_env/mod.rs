//! A worker's environment without a server: a broker, a Redis, and names of a test's own on them.
//!
//! The test publishes job messages as a server would, and reads the messages that workers send back from the server's
//! queues. Claims alone need responses, which [`FakeClaimServer`] sends.

mod broker_proxy;
mod claim_server;
mod confirm_hold;
mod consumer_drop_proxy;
mod counting_job;
mod outbox;
mod redis_state;

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
};

use chrono::{DateTime, Utc};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    options::{BasicGetOptions, BasicNackOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
    uri::AMQPUri,
};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{JobBundle, JobMessage, LogMessage, RegistrationMessage, StatusMessage, StatusReport},
    status::OccurrenceStatus,
    topology::{BUNDLE_TYPE, HEADER_REPUBLISH, Topology},
};
use milvaion_worker::{CancellationToken, Outbox, Worker, WorkerBuilder, WorkerError};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

pub use broker_proxy::BrokerProxy;
pub use claim_server::FakeClaimServer;
pub use confirm_hold::ConfirmHold;
pub use consumer_drop_proxy::ConsumerDropProxy;
pub use counting_job::{CountingJob, EmptyInput, SnoozingJob};
pub use outbox::{OutboxContents, final_report_ids, is_final};

use crate::{
    lossy_network::LossyNetwork,
    messages, services,
    wait::{self, until},
};

/// The services of one test, with names of its own, and the messages that workers sent.
#[derive(Debug)]
pub struct WorkerTestEnv {
    /// The names of the exchanges and queues.
    pub topology: Topology,
    /// The worker's id.
    pub worker_id: String,
    /// The folder of its workers' outboxes.
    pub outbox: PathBuf,
    amqp_url: String,
    redis_url: String,
    /// The URL of the test itself, if its workers have another one.
    admin_redis_url: Option<String>,
    key_prefix: String,
    channel: Channel,
    connection: Connection,
    reports: Mutex<Vec<StatusReport>>,
    claim_server: Arc<FakeClaimServer>,
}

impl WorkerTestEnv {
    /// Connects to the services and starts responding to claims.
    ///
    /// # Panics
    ///
    /// Panics if `AMQP_URL` or `REDIS_URL` is not set, or RabbitMQ does not respond.
    pub async fn new() -> Self {
        let name = services::unique("t");
        let key_prefix = format!("{name}:");
        Self::on(services::amqp_url(), services::redis_url(), &name, &key_prefix).await
    }

    /// Connects to other services, with these prefixes, and starts responding to claims.
    ///
    /// # Panics
    ///
    /// Panics if the services do not respond.
    pub async fn on(amqp_url: String, redis_url: String, name: &str, key_prefix: &str) -> Self {
        let connection = Connection::connect(&amqp_url, ConnectionProperties::default())
            .await
            .expect("RabbitMQ at AMQP_URL responds");
        let channel = connection.create_channel().await.expect("a channel");
        channel.confirm_select(ConfirmSelectOptions::default()).await.expect("publisher confirms");
        let topology = Topology::new(name);
        let claim_server = FakeClaimServer::start(&connection, &topology.claims()).await;
        let env = Self {
            topology,
            worker_id: "w".to_owned(),
            outbox: std::env::temp_dir().join(services::unique("milvaion-outbox")),
            amqp_url,
            admin_redis_url: None,
            redis_url,
            key_prefix: key_prefix.to_owned(),
            channel,
            connection,
            reports: Mutex::default(),
            claim_server,
        };
        env.remember_claims().await;
        env
    }

    /// Returns the server's side of claims.
    #[must_use]
    pub fn claim_server(&self) -> &FakeClaimServer {
        &self.claim_server
    }

    /// Makes the workers that are built from now on sign in with other accounts.
    pub fn sign_in_with(&mut self, amqp_url: String, redis_url: String) {
        self.amqp_url = amqp_url;
        self.admin_redis_url = Some(std::mem::replace(&mut self.redis_url, redis_url));
    }

    /// Puts a network that can lose connections between Redis and the workers that are built from now on.
    ///
    /// # Panics
    ///
    /// Panics if `REDIS_URL` is not a URL with a port of this machine.
    pub async fn lossy_redis(&mut self) -> LossyNetwork {
        let network;
        (network, self.redis_url) = LossyNetwork::connect(&services::redis_url()).await;
        network
    }

    /// Returns the builder of a worker in this environment.
    #[must_use]
    pub fn worker(&self) -> WorkerBuilder {
        Worker::builder()
            .worker_id(self.worker_id.as_str())
            .amqp_url(self.amqp_url.as_str())
            .redis_url(self.redis_url.as_str())
            .prefix(self.prefix())
            .key_prefix(self.key_prefix.as_str())
            .outbox(Outbox::Folder(self.outbox.clone()))
    }

    /// Returns the environment variables of a worker process in this environment.
    #[must_use]
    pub fn variables(&self) -> [(&'static str, String); 6] {
        [
            ("AMQP_URL", self.amqp_url.clone()),
            ("REDIS_URL", self.redis_url.clone()),
            ("MILVAION_WORKER_ID", self.worker_id.clone()),
            ("MILVAION_PREFIX", self.prefix()),
            ("MILVAION_KEY_PREFIX", self.key_prefix.clone()),
            ("MILVAION_OUTBOX", self.outbox.display().to_string()),
        ]
    }

    fn prefix(&self) -> String {
        self.topology.jobs_exchange().trim_end_matches(".jobs").to_owned()
    }

    /// Starts a worker. Returns when it has registered and consumes messages of a job type.
    ///
    /// # Panics
    ///
    /// Panics if the configuration is invalid, or the worker does not consume within [`wait::WAIT_TIMEOUT`].
    pub async fn start(&self, builder: WorkerBuilder, job_type: &str) -> StartedWorker {
        let worker = builder.build().expect("the configuration is valid");
        let (instance, stop) = (worker.instance_id().to_owned(), CancellationToken::new());
        let task = tokio::spawn(worker.run_until(stop.clone()));
        until("the worker's registration", async || {
            self.registrations()
                .await
                .into_iter()
                .any(|message| matches!(message, RegistrationMessage::Hello(hello) if hello.instance_id == instance))
        })
        .await;
        self.wait_for_consumer(job_type).await;
        StartedWorker { stop, task }
    }

    /// Waits until a worker consumes messages of a job type.
    ///
    /// # Panics
    ///
    /// Panics if none does within [`wait::WAIT_TIMEOUT`].
    pub async fn wait_for_consumer(&self, job_type: &str) {
        let queue = self.topology.job_queue(&self.worker_id, job_type);
        until("a consumer of the job queue", async || {
            self.queue(&queue).await.is_some_and(|(_, consumers)| consumers > 0)
        })
        .await;
    }

    /// Returns a message for the first attempt of a new occurrence.
    #[must_use]
    pub fn message(&self, job_type: &str, input: Value) -> JobMessage {
        let now = now();
        messages::job_message(OccurrenceId::from_parts(now, rand::random()), job_type, input, now)
    }

    /// Publishes a job message. Returns when the broker has confirmed it.
    ///
    /// # Panics
    ///
    /// Panics if no queue accepts it.
    pub async fn publish(&self, message: &JobMessage) {
        self.publish_with(message, FieldTable::default()).await;
    }

    /// Publishes a job message to the queue of critical runs. Returns when the broker has confirmed it.
    ///
    /// # Panics
    ///
    /// Panics if no queue accepts it.
    pub async fn publish_critical(&self, message: &JobMessage) {
        let key = Topology::critical_routing_key(&self.worker_id, &message.job_type, message.occurrence_id);
        let body = serde_json::to_vec(message).expect("a message can be serialized");
        self.send(&key, &body, BasicProperties::default().with_priority(message.priority)).await;
    }

    /// Publishes a job message with the mark of a republished one: an earlier copy may have arrived.
    ///
    /// # Panics
    ///
    /// Panics if no queue accepts it.
    pub async fn republish(&self, message: &JobMessage) {
        let mut headers = FieldTable::default();
        headers.insert(HEADER_REPUBLISH.into(), AMQPValue::LongInt(1));
        self.publish_with(message, headers).await;
    }

    /// Publishes any body to the exchange of job messages.
    ///
    /// # Panics
    ///
    /// Panics if no queue accepts it.
    pub async fn publish_raw(&self, key: &str, body: &[u8]) {
        self.send(key, body, BasicProperties::default().with_priority(3)).await;
    }

    /// Publishes several runs of one job type as a bundle. Returns when the broker has confirmed it.
    ///
    /// # Panics
    ///
    /// Panics if there is no run, or no queue accepts the bundle.
    pub async fn publish_bundle(&self, runs: &[JobMessage]) {
        let first = runs.first().expect("a bundle has a run");
        let key = Topology::routing_key(&self.worker_id, &first.job_type, first.occurrence_id);
        let body = serde_json::to_vec(&JobBundle { runs: runs.to_vec() }).expect("a bundle can be serialized");
        let properties = BasicProperties::default().with_priority(first.priority).with_type(BUNDLE_TYPE.into());
        self.send(&key, &body, properties).await;
    }

    /// Takes the next message of a queue and returns it, so that its next delivery is marked as a redelivery.
    ///
    /// # Panics
    ///
    /// Panics if the broker fails, or the queue is empty.
    pub async fn deliver_and_return(&self, queue: &str) {
        let message =
            self.channel.basic_get(queue.into(), BasicGetOptions::default()).await.expect("the broker responds");
        let tag = message.expect("a message").delivery.delivery_tag;
        let options = BasicNackOptions { requeue: true, ..BasicNackOptions::default() };
        self.channel.basic_nack(tag, options).await.expect("the message is returned");
    }

    async fn publish_with(&self, message: &JobMessage, headers: FieldTable) {
        let key = Topology::routing_key(&self.worker_id, &message.job_type, message.occurrence_id);
        let body = serde_json::to_vec(message).expect("a message can be serialized");
        let properties = BasicProperties::default().with_headers(headers).with_priority(message.priority);
        self.send(&key, &body, properties).await;
    }

    async fn send(&self, key: &str, body: &[u8], properties: BasicProperties) {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let exchange = self.topology.jobs_exchange();
        let properties = properties.with_delivery_mode(2);
        let confirm = self
            .channel
            .basic_publish(exchange.as_str().into(), key.into(), options, body, properties)
            .await
            .expect("the message is sent");
        assert_eq!(
            confirm.await.expect("a confirm"),
            lapin::Confirmation::Ack(None),
            "the message must be routed to a queue"
        );
    }

    /// Returns the number of messages in a queue and of its consumers; none if there is no such queue.
    ///
    /// # Panics
    ///
    /// Panics if the broker fails.
    pub async fn queue(&self, name: &str) -> Option<(u32, u32)> {
        // The broker closes a channel on which a missing queue is declared passively. The client may still be closing it when
        // the next one is opened, and then returns the error of the old one.
        let channel = self.connection.create_channel().await.ok()?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = channel.queue_declare(name.into(), options, FieldTable::default()).await.ok()?;
        channel.close(200, "".into()).await.expect("the channel is closed");
        Some((queue.message_count(), queue.consumer_count()))
    }

    /// Returns all status reports so far, in the order of their arrival.
    ///
    /// # Panics
    ///
    /// Panics if the broker fails or a message is not a status message.
    pub async fn reports(&self) -> Vec<StatusReport> {
        let received: Vec<StatusMessage> = self.receive(&self.topology.status()).await;
        let mut reports = self.reports.lock().expect("the mutex is not poisoned");
        reports.extend(received.into_iter().flat_map(StatusMessage::into_reports));
        reports.clone()
    }

    /// Waits until an occurrence's run has ended. Returns all reports of the occurrence.
    ///
    /// # Panics
    ///
    /// Panics if there is no final report within [`wait::WAIT_TIMEOUT`].
    pub async fn ended(&self, occurrence: OccurrenceId) -> Vec<StatusReport> {
        wait::eventually("the end of the run", || async {
            let mut reports = self.reports().await;
            reports.retain(|report| report.occurrence_id == occurrence);
            reports.iter().any(is_final).then_some(reports)
        })
        .await
    }

    /// Returns true if an occurrence's run has ended.
    ///
    /// # Panics
    ///
    /// Panics if the broker fails.
    pub async fn has_ended(&self, message: &JobMessage) -> bool {
        self.reports().await.iter().any(|report| is_final(report) && report.occurrence_id == message.occurrence_id)
    }

    /// Returns the log messages since the last call.
    ///
    /// # Panics
    ///
    /// Panics if the broker fails or a message is not a log message.
    pub async fn logs(&self) -> Vec<LogMessage> {
        self.receive(&self.topology.logs()).await
    }

    /// Returns the registrations, heartbeats and goodbyes since the last call.
    ///
    /// # Panics
    ///
    /// Panics if the broker fails or a message is not a registration message.
    pub async fn registrations(&self) -> Vec<RegistrationMessage> {
        self.receive(&self.topology.registration()).await
    }

    async fn receive<T: DeserializeOwned>(&self, queue: &str) -> Vec<T> {
        let mut messages = Vec::new();
        if self.queue(queue).await.is_none() {
            return messages;
        }
        while let Some(message) =
            self.channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await.expect("the broker responds")
        {
            let mode = *message.delivery.properties.delivery_mode();
            assert_eq!(mode, Some(2), "what a worker sends must survive a crash of the broker");
            messages.push(serde_json::from_slice(&message.delivery.data).expect("a message of the protocol"));
        }
        messages
    }

    /// Makes workers that are built from now on connect to a proxy. Returns the broker's host and port.
    fn redirect(&mut self, proxy: &TcpListener) -> (String, u16) {
        let mut uri: AMQPUri = self.amqp_url.parse().expect("a valid URL");
        let target = (uri.authority.host, uri.authority.port);
        uri.authority.host = "127.0.0.1".to_owned();
        uri.authority.port = proxy.local_addr().expect("the listener is bound").port();
        self.amqp_url = uri.to_string();
        target
    }

    /// Deletes the exchanges, the queues and the outboxes.
    pub async fn clean(self, job_types: &[&str]) {
        let _ = std::fs::remove_dir_all(&self.outbox);
        let topology = &self.topology;
        let mut queues = vec![
            topology.dead_letter_queue(),
            topology.status(),
            topology.logs(),
            topology.registration(),
            topology.claims(),
            topology.ingest(),
        ];
        queues.extend(job_types.iter().map(|job_type| topology.job_queue(&self.worker_id, job_type)));
        queues.extend(job_types.iter().map(|job_type| topology.critical_queue(&self.worker_id, job_type)));
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
            topology.ingest(),
        ];
        for exchange in exchanges {
            let _ = self.channel.exchange_delete(exchange.as_str().into(), Default::default()).await;
        }
    }
}

/// A running worker.
#[derive(Debug)]
pub struct StartedWorker {
    stop: CancellationToken,
    task: JoinHandle<Result<(), WorkerError>>,
}

impl StartedWorker {
    /// Requests a graceful stop, without waiting for it.
    pub fn request_stop(&self) {
        self.stop.cancel();
    }

    /// Stops the worker gracefully.
    ///
    /// # Panics
    ///
    /// Panics if it does not end within [`wait::WAIT_TIMEOUT`], or ends with an error.
    pub async fn stop(self) {
        self.stop.cancel();
        let ended = tokio::time::timeout(wait::WAIT_TIMEOUT, self.task).await.expect("the worker stops in time");
        ended.expect("the worker does not panic").expect("the worker ends without an error");
    }
}

/// Returns true if these are the reports of exactly one completed run.
#[must_use]
pub fn is_one_completed_run(reports: &[StatusReport]) -> bool {
    use OccurrenceStatus::{Completed, Running};
    reports.iter().map(|report| report.status).collect::<Vec<_>>() == [Running, Completed]
}

/// Returns the machine's time.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "workers under test read the machine's clock too")]
pub fn now() -> DateTime<Utc> {
    Utc::now()
}

/// Returns an input without fields, for [`EmptyInput`].
#[must_use]
pub fn no_input() -> Value {
    json!({})
}
