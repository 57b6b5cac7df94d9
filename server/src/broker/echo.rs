//! Echoes: a probe that shows whether the messages of workers arrive.
//!
//! A worker without heartbeats may be dead. Or the broker accepts no messages because it is short of memory or disk, no
//! server consumes, PostgreSQL does not store, or a backlog is so long that the heartbeat is still in it. The server cannot
//! tell these apart by looking at its own connections: the broker blocks only connections that publish, and another server
//! may hold the messages. It therefore does what a worker does. It publishes a small confirmed message to each queue on
//! which workers report. The server that consumes the message answers it once everything before it is stored. If the
//! answer arrives soon, so would a heartbeat.
//!
//! Answers go over this connection too, and never over that of a consumer: a connection that publishes is blocked
//! during an alarm, and consuming must continue then.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, StreamExt, future::BoxFuture};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, Consumer,
    message::Delivery,
    options::{BasicConsumeOptions, BasicPublishOptions},
    types::{FieldTable, ShortString},
};
use tokio::sync::{Mutex, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{
    Broker,
    link::{ConfirmChannel, Link},
    reply,
};

/// The longest time for the answer to an echo: longer than a batch usually takes, and shorter than what is left of the
/// heartbeat timeout after two missed heartbeats.
pub const ECHO_LIMIT: Duration = Duration::from_secs(2);
/// The name of the connection and of its consumer.
const CONNECTION_NAME: &str = "milvaion server echo";
/// The AMQP type of an echo.
const ECHO_TYPE: &str = "milvaion.echo";
/// The time in milliseconds after which the broker drops an echo that no server consumes.
const ECHO_EXPIRATION_MS: &str = "10000";
/// The queue name by which AMQP requests a direct reply-to address.
const DIRECT_REPLY_TO: &str = "amq.rabbitmq.reply-to";
/// The most answers that wait to be read. Further answers are dropped, so that a repeated answer cannot fill the memory.
const MAX_ANSWERS: usize = 16;

/// The open channel for echoes and answers.
type OpenChannel = (Channel, Arc<Mutex<mpsc::Receiver<String>>>);

/// Sends echoes and answers those of other servers. Clones share one connection.
#[derive(Clone, Debug)]
pub struct Echo {
    /// The queues on which workers report.
    queues: [String; 2],
    channel: watch::Receiver<Option<OpenChannel>>,
    /// The number of the last echo.
    last: Arc<AtomicU64>,
}

impl Echo {
    /// Creates the sender of echoes, and the loop that keeps its channel open until its token is cancelled. The loop can be
    /// started again after it has ended.
    pub fn new(broker: &Broker) -> (Self, impl Fn(CancellationToken) -> BoxFuture<'static, ()> + Send + Sync + use<>) {
        let (sender, channel) = watch::channel(None);
        let names = broker.topology();
        let echo = Self { queues: [names.status(), names.registration()], channel, last: Arc::default() };
        let broker = broker.clone();
        let keep_open = move |stop| keep_open(broker.clone(), sender.clone(), stop).boxed();
        (echo, keep_open)
    }

    /// Returns true if a message to each queue of reports was confirmed, consumed and answered within [`ECHO_LIMIT`].
    pub async fn returns(&self) -> bool {
        tokio::time::timeout(ECHO_LIMIT, self.send_and_wait()).await.unwrap_or(false)
    }

    async fn send_and_wait(&self) -> bool {
        let Some((channel, answers)) = self.channel.borrow().clone() else { return false };
        let mut answers = answers.lock().await;
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let mut missing: HashSet<String> = self.queues.iter().map(|queue| format!("{queue}:{number}")).collect();
        let sending = self.queues.iter().map(|queue| send(&channel, queue, format!("{queue}:{number}")));
        if futures::future::join_all(sending).await.contains(&false) {
            return false;
        }
        while !missing.is_empty() {
            // An answer to an earlier echo, which came too late, is in no set.
            let Some(answer) = answers.recv().await else { return false };
            missing.remove(&answer);
        }
        true
    }

    /// Answers an echo, unless the broker accepts no messages now.
    pub async fn answer(&self, delivery: &Delivery) {
        let Some((channel, _)) = self.channel.borrow().clone() else { return };
        if let Err(error) = reply::send(&channel, delivery, b"{}").await {
            tracing::debug!(error = %error, "an echo could not be answered");
        }
    }
}

/// Returns true if a delivery is an echo.
#[must_use]
pub fn is_echo(delivery: &Delivery) -> bool {
    delivery.properties.kind().as_ref().is_some_and(|kind| kind.as_str() == ECHO_TYPE) && reply::is_requested(delivery)
}

/// Publishes an echo. Returns true if the broker confirmed it and a queue took it.
async fn send(channel: &Channel, queue: &str, id: String) -> bool {
    let properties = BasicProperties::default()
        .with_type(ECHO_TYPE.into())
        .with_content_type("application/json".into())
        .with_expiration(ECHO_EXPIRATION_MS.into())
        .with_reply_to(DIRECT_REPLY_TO.into())
        .with_correlation_id(ShortString::from(id));
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let sent = channel.basic_publish(queue.into(), queue.into(), options, b"{}", properties).await;
    match sent {
        Ok(confirm) => matches!(confirm.await, Ok(Confirmation::Ack(None))),
        Err(_) => false,
    }
}

/// Keeps the connection and its channel open until `stop`. The channel is withdrawn while the broker blocks it.
async fn keep_open(broker: Broker, sender: watch::Sender<Option<OpenChannel>>, stop: CancellationToken) {
    let mut link = Link::new(&broker, CONNECTION_NAME, &stop);
    while let Some(connection) = link.connect().await {
        let log = |error: lapin::Error| {
            tracing::warn!(error = %error, "the channel for echoes cannot be prepared and is retried; no run counts as lost meanwhile");
        };
        let Some((confirm, mut replies)) = link.open(open(&connection, &broker), log).await else { continue };
        let (answers, received) = mpsc::channel(MAX_ANSWERS);
        let receiving = async {
            while let Some(Ok(answer)) = replies.next().await {
                let id = answer.properties.correlation_id().as_ref().map(|id| id.as_str().to_owned());
                let _ = answers.try_send(id.unwrap_or_default());
            }
        };
        let open = (confirm.channel.clone(), Arc::new(Mutex::new(received)));
        confirm.provide(open, &sender, receiving, &stop).await;
    }
}

async fn open(connection: &Arc<Connection>, broker: &Broker) -> lapin::Result<(ConfirmChannel, Consumer)> {
    // The publisher logs a block.
    let confirm = ConfirmChannel::open(connection, broker.topology(), |_| {}).await?;
    // AMQP requires that the address is consumed without acknowledgements, on the channel that sends the requests.
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let (queue, tag) = (DIRECT_REPLY_TO.into(), CONNECTION_NAME.into());
    let replies = confirm.channel.basic_consume(queue, tag, options, FieldTable::default()).await?;
    Ok((confirm, replies))
}
