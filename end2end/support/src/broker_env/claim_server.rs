//! The server's side of claims.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::StreamExt;
use lapin::{
    BasicProperties, Channel, Connection, Consumer, ExchangeKind,
    options::{BasicConsumeOptions, BasicPublishOptions, ExchangeDeclareOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{ClaimDenial, ClaimReply, ClaimRequest},
};

/// A server that only responds to claims. It grants all claims except those it was configured to deny.
#[derive(Debug, Default)]
pub struct FakeClaimServer {
    denials: Mutex<HashMap<OccurrenceId, ClaimDenial>>,
    requests: Mutex<Vec<ClaimRequest>>,
    is_silent: AtomicBool,
}

impl FakeClaimServer {
    /// Declares the exchange and the queue of claims, and responds until the connection ends.
    pub(super) async fn start(connection: &Connection, name: &str) -> Arc<Self> {
        let server = Arc::<Self>::default();
        let channel = connection.create_channel().await.expect("a channel");
        let consumer = consume(&channel, name).await.expect("the claims queue can be consumed");
        tokio::spawn(respond(channel, consumer, server.clone()));
        server
    }

    /// Denies claims on an occurrence from now on.
    ///
    /// # Panics
    ///
    /// Panics if a thread of the test panicked.
    pub fn deny(&self, occurrence: OccurrenceId, reason: ClaimDenial) {
        self.denials.lock().expect("the mutex is not poisoned").insert(occurrence, reason);
    }

    /// Receives claims from now on and responds to none.
    pub fn fall_silent(&self) {
        self.is_silent.store(true, Ordering::SeqCst);
    }

    /// Returns true if a claim request for an occurrence announced its start.
    ///
    /// # Panics
    ///
    /// Panics if a thread of the test panicked.
    #[must_use]
    pub fn has_start_of(&self, occurrence: OccurrenceId) -> bool {
        let requests = self.requests.lock().expect("the mutex is not poisoned");
        requests.iter().any(|request| request.occurrence_id == occurrence && request.starts_at.is_some())
    }

    /// Returns true if there was a claim request for an occurrence.
    ///
    /// # Panics
    ///
    /// Panics if a thread of the test panicked.
    #[must_use]
    pub fn has_request_for(&self, occurrence: OccurrenceId) -> bool {
        let requests = self.requests.lock().expect("the mutex is not poisoned");
        requests.iter().any(|request| request.occurrence_id == occurrence)
    }
}

async fn consume(channel: &Channel, name: &str) -> lapin::Result<Consumer> {
    let none = FieldTable::default;
    let exchange = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let queue = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.exchange_declare(name.into(), ExchangeKind::Direct, exchange, none()).await?;
    let mut arguments = none();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("classic".into()));
    channel.queue_declare(name.into(), queue, arguments).await?;
    channel.queue_bind(name.into(), name.into(), name.into(), Default::default(), none()).await?;
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    channel.basic_consume(name.into(), "".into(), options, none()).await
}

async fn respond(channel: Channel, mut consumer: Consumer, server: Arc<FakeClaimServer>) {
    while let Some(Ok(delivery)) = consumer.next().await {
        let request: ClaimRequest = serde_json::from_slice(&delivery.data).expect("a message of the protocol");
        let reason = server.denials.lock().expect("the mutex is not poisoned").get(&request.occurrence_id).copied();
        let reply = ClaimReply {
            occurrence_id: request.occurrence_id,
            attempt: request.attempt,
            granted: reason.is_none(),
            reason,
            by: None,
        };
        server.requests.lock().expect("the mutex is not poisoned").push(request);
        if server.is_silent.load(Ordering::SeqCst) {
            continue;
        }
        let reply_to = delivery.properties.reply_to().clone().expect("a request names its reply queue");
        let id = delivery.properties.correlation_id().clone().expect("a request has a correlation id");
        let body = serde_json::to_vec(&reply).expect("a reply can be serialized");
        let properties = BasicProperties::default().with_correlation_id(id);
        let options = BasicPublishOptions::default();
        channel.basic_publish("".into(), reply_to, options, &body, properties).await.expect("the reply is sent");
    }
}
