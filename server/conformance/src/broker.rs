//! The kit's side of the broker: the topology, the queues that the server consumes, and the publishing of job messages.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ExchangeKind,
    message::Delivery,
    options::{
        BasicConsumeOptions, BasicGetOptions, BasicNackOptions, BasicPublishOptions, ConfirmSelectOptions,
        ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
    },
    types::{AMQPValue, FieldTable, ShortString},
};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{
        FEATURE_CLAIMS, HelloReply, JobBundle, JobMessage, MAX_MESSAGE_BYTES, PROTOCOL_VERSION, RegistrationMessage,
    },
    topology::{
        BUNDLE_TYPE, HEADER_CAUSE, HEADER_CORRELATION_ID, HEADER_MAX_RETRIES, HEADER_REPUBLISH, HEADER_RETRY_COUNT,
        MAX_PRIORITY, Topology,
    },
};
use serde_json::json;

use crate::{
    reading::MessageReader,
    record::{MessageRecord, WorkerMessage},
};

/// The direct reply-to addresses of the broker. A server replies to no other queue.
const REPLY_ADDRESS: &str = "amq.rabbitmq.reply-to.";
/// The value of `delivery_mode` of a persistent message.
const PERSISTENT: u8 = 2;

/// The broker of one case.
pub(crate) struct FakeServer {
    link: Mutex<BrokerLink>,
    topology: Topology,
    record: Arc<Mutex<MessageRecord>>,
    reader: Arc<MessageReader>,
    job_queues: Mutex<Vec<String>>,
}

/// The connections of one case.
///
/// The broker closes a channel that asks for a missing queue, and the client library can apply the error to the next
/// channel of the connection, because it gets the same number. So questions about queues have a connection of their own,
/// and no case uses the connection of another.
#[derive(Clone)]
struct BrokerLink {
    connection: Arc<Connection>,
    channel: Channel,
    questions: Arc<Connection>,
}

/// The mark of a published job message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PublishMark {
    /// A message that is sent for the first time.
    First,
    /// A message with the header `x-republish`.
    Republished,
}

impl FakeServer {
    /// Opens the connections of a case. Declares nothing.
    pub(crate) async fn open(
        amqp_url: &str,
        topology: Topology,
        reader: Arc<MessageReader>,
    ) -> Result<Self, lapin::Error> {
        let link = Mutex::new(BrokerLink::open(amqp_url).await?);
        Ok(Self { link, topology, record: Arc::default(), reader, job_queues: Mutex::default() })
    }

    /// Continues on new connections, after the broker has ended those before.
    pub(crate) async fn reopen(&self, amqp_url: &str) -> Result<(), lapin::Error> {
        let link = BrokerLink::open(amqp_url).await?;
        *self.link.lock().unwrap_or_else(PoisonError::into_inner) = link;
        self.start().await
    }

    fn link(&self) -> BrokerLink {
        self.link.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn channel(&self) -> Channel {
        self.link().channel
    }

    /// Returns everything received so far.
    pub(crate) fn record(&self) -> MutexGuard<'_, MessageRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Declares everything that server and workers share, and consumes it.
    pub(crate) async fn start(&self) -> Result<(), lapin::Error> {
        self.declare_shared().await?;
        for queue in self.consumed() {
            self.consume(queue).await?;
        }
        Ok(())
    }

    fn consumed(&self) -> [String; 5] {
        let topology = &self.topology;
        [topology.status(), topology.logs(), topology.registration(), topology.claims(), topology.dead_letter_queue()]
    }

    async fn declare_shared(&self) -> Result<(), lapin::Error> {
        let topology = &self.topology;
        self.exchange(&topology.jobs_exchange(), ExchangeKind::Topic).await?;
        self.exchange(&topology.dead_letter_exchange(), ExchangeKind::Fanout).await?;
        self.queue(&topology.dead_letter_queue(), classic()).await?;
        self.bind(&topology.dead_letter_queue(), &topology.dead_letter_exchange(), "").await?;
        for name in [topology.status(), topology.logs(), topology.registration(), topology.claims()] {
            self.exchange(&name, ExchangeKind::Direct).await?;
            self.queue(&name, classic()).await?;
            self.bind(&name, &name, &name).await?;
        }
        Ok(())
    }

    /// Declares the queue of a job type as the server does.
    pub(crate) async fn declare_job_queue(&self, worker: &str, job_type: &str) -> Result<(), lapin::Error> {
        let topology = &self.topology;
        let name = topology.job_queue(worker, job_type);
        let mut arguments = classic();
        arguments.insert("x-max-priority".into(), AMQPValue::LongInt(MAX_PRIORITY.into()));
        arguments
            .insert("x-dead-letter-exchange".into(), AMQPValue::LongString(topology.dead_letter_exchange().into()));
        self.queue(&name, arguments).await?;
        self.bind(&name, &topology.jobs_exchange(), &Topology::job_binding(worker, job_type)).await?;
        self.job_queues.lock().unwrap_or_else(PoisonError::into_inner).push(name);
        Ok(())
    }

    /// Deletes the queue of status reports, so that the broker returns every report.
    pub(crate) async fn delete_status_queue(&self) -> Result<(), lapin::Error> {
        self.channel().queue_delete(self.topology.status().into(), QueueDeleteOptions::default()).await.map(drop)
    }

    /// Declares the queue of status reports again, and consumes it.
    pub(crate) async fn restore_status_queue(&self) -> Result<(), lapin::Error> {
        self.declare_shared().await?;
        self.consume(self.topology.status()).await
    }

    /// Returns the number of consumers and of waiting messages of a job type's queue. None if there is no such queue.
    pub(crate) async fn job_queue(&self, worker: &str, job_type: &str) -> Option<(u32, u32)> {
        self.counts(self.topology.job_queue(worker, job_type)).await
    }

    /// Returns the same of the queue of its critical runs, which the worker declares.
    pub(crate) async fn critical_queue(&self, worker: &str, job_type: &str) -> Option<(u32, u32)> {
        self.counts(self.topology.critical_queue(worker, job_type)).await
    }

    async fn counts(&self, name: String) -> Option<(u32, u32)> {
        // A channel of its own, because the broker closes it if the queue is missing.
        let channel = self.link().questions.create_channel().await.ok()?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = channel.queue_declare(name.into(), options, FieldTable::default()).await.ok()?;
        let _ = channel.close(200, "counted".into()).await;
        Some((queue.consumer_count(), queue.message_count()))
    }

    /// Publishes a job message. Returns once the broker has confirmed it. Returns false if no queue takes it.
    pub(crate) async fn publish_job(
        &self,
        worker: &str,
        message: &JobMessage,
        mark: PublishMark,
    ) -> Result<bool, lapin::Error> {
        let body = serde_json::to_vec(message).unwrap_or_default();
        self.publish_body(worker, &message.job_type, message, mark, &body).await
    }

    /// Publishes a body with the properties of a job message to the queue of a job type.
    pub(crate) async fn publish_body(
        &self,
        worker: &str,
        job_type: &str,
        message: &JobMessage,
        mark: PublishMark,
        body: &[u8],
    ) -> Result<bool, lapin::Error> {
        let id = message.occurrence_id.to_string();
        self.record_sent(message);
        let mut headers = FieldTable::default();
        headers.insert(HEADER_RETRY_COUNT.into(), AMQPValue::LongUInt(message.retry_count));
        headers.insert(HEADER_MAX_RETRIES.into(), AMQPValue::LongUInt(message.max_retries));
        headers.insert(HEADER_CORRELATION_ID.into(), AMQPValue::LongString(id.clone().into()));
        if mark == PublishMark::Republished {
            headers.insert(HEADER_REPUBLISH.into(), AMQPValue::LongUInt(1));
        }
        let properties = BasicProperties::default()
            .with_priority(message.priority)
            .with_message_id(id.clone().into())
            .with_correlation_id(id.into())
            .with_headers(headers);
        self.publish_to(Topology::routing_key(worker, job_type, message.occurrence_id), properties, body).await
    }

    /// Publishes a job message to the queue of critical runs. Returns false if no queue takes it.
    pub(crate) async fn publish_critical(&self, worker: &str, message: &JobMessage) -> Result<bool, lapin::Error> {
        self.record_sent(message);
        let body = serde_json::to_vec(message).unwrap_or_default();
        let properties = BasicProperties::default().with_priority(message.priority);
        let key = Topology::critical_routing_key(worker, &message.job_type, message.occurrence_id);
        self.publish_to(key, properties, &body).await
    }

    /// Publishes several runs of one job type as a bundle. Returns false if no queue takes it, or if there is no run.
    pub(crate) async fn publish_bundle(&self, worker: &str, runs: &[JobMessage]) -> Result<bool, lapin::Error> {
        let Some(first) = runs.first() else { return Ok(false) };
        runs.iter().for_each(|run| self.record_sent(run));
        let body = serde_json::to_vec(&JobBundle { runs: runs.to_vec() }).unwrap_or_default();
        let properties = BasicProperties::default().with_priority(first.priority).with_type(BUNDLE_TYPE.into());
        self.publish_to(Topology::routing_key(worker, &first.job_type, first.occurrence_id), properties, &body).await
    }

    async fn publish_to(&self, key: String, properties: BasicProperties, body: &[u8]) -> Result<bool, lapin::Error> {
        let properties = properties.with_content_type("application/json".into()).with_delivery_mode(PERSISTENT);
        let exchange = self.topology.jobs_exchange();
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let confirm = self.channel().basic_publish(exchange.into(), key.into(), options, body, properties).await?;
        Ok(matches!(confirm.await?, Confirmation::Ack(None)))
    }

    fn record_sent(&self, message: &JobMessage) {
        let mut record = self.record();
        let in_force = record.sent.entry(message.occurrence_id).or_default();
        *in_force = message.attempt.max(*in_force);
    }

    /// Takes the next message from the queue of a job type and returns it, so that its next delivery is a redelivery. Returns
    /// false if none waits.
    pub(crate) async fn deliver_and_return(&self, worker: &str, job_type: &str) -> Result<bool, lapin::Error> {
        let (channel, queue) = (self.channel(), self.topology.job_queue(worker, job_type));
        let Some(message) = channel.basic_get(queue.into(), BasicGetOptions::default()).await? else {
            return Ok(false);
        };
        let options = BasicNackOptions { requeue: true, ..BasicNackOptions::default() };
        channel.basic_nack(message.delivery.delivery_tag, options).await?;
        Ok(true)
    }

    /// Deletes every queue and exchange of the case, and closes its connections.
    pub(crate) async fn erase(&self) {
        let mut queues = self.consumed().to_vec();
        for queue in self.job_queues.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            queues.extend([queue.clone(), format!("{queue}.critical")]);
        }
        let topology = &self.topology;
        let exchanges = [
            topology.jobs_exchange(),
            topology.dead_letter_exchange(),
            topology.status(),
            topology.logs(),
            topology.registration(),
            topology.claims(),
        ];
        // A channel of its own, because a case may have closed the first one.
        let BrokerLink { connection, questions, .. } = self.link();
        let Ok(channel) = connection.create_channel().await else { return };
        for queue in queues {
            let _ = channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await;
        }
        for exchange in exchanges {
            let _ = channel.exchange_delete(exchange.into(), ExchangeDeleteOptions::default()).await;
        }
        let _ = questions.close(200, "erased".into()).await;
        let _ = connection.close(200, "erased".into()).await;
    }

    async fn exchange(&self, name: &str, kind: ExchangeKind) -> Result<(), lapin::Error> {
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        self.channel().exchange_declare(name.into(), kind, options, FieldTable::default()).await
    }

    async fn queue(&self, name: &str, arguments: FieldTable) -> Result<(), lapin::Error> {
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        self.channel().queue_declare(name.into(), options, arguments).await.map(drop)
    }

    async fn bind(&self, queue: &str, exchange: &str, key: &str) -> Result<(), lapin::Error> {
        let (queue, exchange, key) = (queue.into(), exchange.into(), key.into());
        self.channel().queue_bind(queue, exchange, key, QueueBindOptions::default(), FieldTable::default()).await
    }

    async fn consume(&self, queue: String) -> Result<(), lapin::Error> {
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let tag = ShortString::default();
        let mut messages =
            self.channel().basic_consume(queue.as_str().into(), tag, options, FieldTable::default()).await?;
        let inbox = MessageInbox {
            channel: self.channel(),
            topology: self.topology.clone(),
            record: self.record.clone(),
            reader: self.reader.clone(),
            queue,
        };
        tokio::spawn(async move {
            while let Some(Ok(delivery)) = messages.next().await {
                inbox.receive(delivery).await;
            }
        });
        Ok(())
    }
}

impl BrokerLink {
    /// Connects twice, and opens a channel with publisher confirms.
    async fn open(amqp_url: &str) -> Result<Self, lapin::Error> {
        let connect = || Connection::connect(amqp_url, ConnectionProperties::default());
        let (connection, questions) = tokio::try_join!(connect(), connect())?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Self { connection: Arc::new(connection), channel, questions: Arc::new(questions) })
    }
}

/// The reader of one queue.
struct MessageInbox {
    channel: Channel,
    topology: Topology,
    record: Arc<Mutex<MessageRecord>>,
    reader: Arc<MessageReader>,
    queue: String,
}

impl MessageInbox {
    fn record(&self) -> MutexGuard<'_, MessageRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn receive(&self, delivery: Delivery) {
        if self.queue == self.topology.dead_letter_queue() {
            let header = |name: &str| match delivery.properties.headers().as_ref()?.inner().get(name)? {
                AMQPValue::LongString(text) => Some(text.to_string()),
                AMQPValue::ShortString(text) => Some(text.to_string()),
                _ => None,
            };
            let id = header(HEADER_CORRELATION_ID).unwrap_or_default();
            let cause = header(HEADER_CAUSE).unwrap_or_else(|| "rejected".to_owned());
            self.record().add(WorkerMessage::DeadLetter(format!("{id} {cause}")));
            return;
        }
        if let Err(reason) = self.read(&delivery).await {
            let text = String::from_utf8_lossy(&delivery.data);
            let excerpt: String = text.chars().take(300).collect();
            self.record().complaints.push(format!("a message on {} cannot be read: {reason}: {excerpt}", self.queue));
        }
    }

    async fn read(&self, delivery: &Delivery) -> Result<(), String> {
        let body = &delivery.data;
        if body.len() > MAX_MESSAGE_BYTES {
            return Err(format!("it has {} bytes, more than {MAX_MESSAGE_BYTES}", body.len()));
        }
        if self.queue == self.topology.claims() {
            return self.answer_claim(delivery).await;
        }
        if *delivery.properties.delivery_mode() != Some(PERSISTENT) {
            let complaint = format!("a message on {} has no delivery_mode 2", self.queue);
            self.record().complaints.push(complaint);
        }
        if self.queue == self.topology.status() {
            let reports = self.reader.reports(body)?;
            let mut record = self.record();
            reports.into_iter().for_each(|report| record.add(WorkerMessage::Report(report)));
        } else if self.queue == self.topology.logs() {
            let lines = self.reader.lines(body)?;
            self.record().add(WorkerMessage::Lines(lines));
        } else {
            let message = match self.reader.registration(body)? {
                RegistrationMessage::Hello(hello) => {
                    self.answer_hello(delivery).await;
                    WorkerMessage::Hello(hello)
                }
                RegistrationMessage::Heartbeat(heartbeat) => WorkerMessage::Heartbeat(heartbeat),
                RegistrationMessage::Goodbye { instance_id } => WorkerMessage::Goodbye(instance_id),
            };
            self.record().add(message);
        }
        Ok(())
    }

    async fn answer_claim(&self, delivery: &Delivery) -> Result<(), String> {
        let request = self.reader.claim(&delivery.data)?;
        let denial = {
            let mut record = self.record();
            record.add(WorkerMessage::ClaimCheck(request.clone()));
            record.denial(&request)
        };
        let Ok(denial) = denial else { return Ok(()) };
        let mut reply = json!({
            "occurrenceId": request.occurrence_id, "attempt": request.attempt, "granted": denial.is_none(),
            "conformance": "a field that this version does not define",
        });
        if let Some((reason, by)) = denial {
            reply["reason"] = json!(reason);
            if let Some(by) = by {
                reply["by"] = json!(by);
            }
        }
        self.reply(delivery, reply.to_string().as_bytes()).await
    }

    async fn answer_hello(&self, delivery: &Delivery) {
        let reply = HelloReply {
            accepted: true,
            protocol: PROTOCOL_VERSION,
            features: vec![FEATURE_CLAIMS.to_owned(), "conformance".to_owned()],
            problems: Vec::new(),
        };
        if delivery.properties.reply_to().is_some()
            && let Ok(body) = serde_json::to_vec(&reply)
            && let Err(reason) = self.reply(delivery, &body).await
        {
            self.record().complaints.push(format!("a hello cannot be answered: {reason}"));
        }
    }

    async fn reply(&self, delivery: &Delivery, body: &[u8]) -> Result<(), String> {
        let address = delivery.properties.reply_to().as_ref().map(|address| address.to_string()).unwrap_or_default();
        if !address.starts_with(REPLY_ADDRESS) {
            return Err(format!("reply_to is {address:?}, not a direct reply-to address"));
        }
        let mut properties = BasicProperties::default().with_content_type("application/json".into());
        if let Some(id) = delivery.properties.correlation_id() {
            properties = properties.with_correlation_id(id.clone());
        }
        let options = BasicPublishOptions::default();
        let sent = self.channel.basic_publish(ShortString::default(), address.into(), options, body, properties).await;
        sent.map(drop).map_err(|error| error.to_string())
    }
}

/// Returns the arguments of every queue.
fn classic() -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("classic".into()));
    arguments
}

/// Returns the dead letter of an occurrence as it is recorded.
pub(crate) fn dead_letter(occurrence: OccurrenceId, cause: &str) -> String {
    format!("{occurrence} {cause}")
}
