//! One connection to the broker, with one channel that publishes and receives the replies.
//!
//! Direct reply-to ties a reply to the channel of its request, so both are lost together: a task that reads the replies
//! ends with the channel, and then fails every request that waits.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Consumer,
    options::{BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions},
    types::{FieldTable, ShortString},
    uri::AMQPUri,
};
use milvaion_protocol::message::IngestReply;
use tokio::{sync::oneshot, time::timeout};

use crate::clock;

/// Interval of AMQP heartbeats. A dead connection is detected after twice this time.
const AMQP_HEARTBEAT_SECONDS: u16 = 10;
/// Maximum time for opening a connection with its channel.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time for the broker to confirm a message. After it, the connection counts as lost, because a network can lose it
/// without a sign.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for the broker to confirm that a connection is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// AMQP delivery mode of messages that survive a restart of the broker.
const PERSISTENT_DELIVERY_MODE: u8 = 2;
/// Pseudo-queue of the broker that delivers replies to the requesting channel.
const REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// The reason that a message has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum BrokerError {
    #[error("the connection to the broker failed")]
    Broker(#[from] lapin::Error),
    #[error("the broker did not accept a connection within {} s", CONNECT_TIMEOUT.as_secs())]
    ConnectTimeout,
    #[error("the broker did not confirm the message within {} s", CONFIRM_TIMEOUT.as_secs())]
    Unconfirmed,
    #[error("the broker rejected the message")]
    Nacked,
    #[error("the broker has no ingest queue; check the prefix, and that a server of this version has started")]
    Unroutable,
    #[error("no answer arrived; check that a server runs")]
    NoReply,
    #[error("the reply belongs to another message")]
    OtherReply,
}

/// Determines what counts as the answer to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerMode {
    /// The confirm of the broker.
    ConfirmOnly,
    /// The reply of the server.
    Reply,
}

/// An open connection with its channel.
pub(super) struct IngestChannel {
    connection: Connection,
    channel: Channel,
    pending: PendingReplies,
}

/// The requests that wait for a reply; none after the channel was lost.
type PendingReplies = Arc<Mutex<Option<HashMap<String, oneshot::Sender<IngestReply>>>>>;

impl IngestChannel {
    /// Opens a connection, whose name the management pages of the broker show.
    ///
    /// # Errors
    /// Returns [`BrokerError`] if the broker cannot be reached or refuses the connection.
    pub(super) async fn open(uri: &AMQPUri, name: &str) -> Result<Self, BrokerError> {
        timeout(CONNECT_TIMEOUT, Self::connect(uri, name)).await.unwrap_or(Err(BrokerError::ConnectTimeout))
    }

    async fn connect(uri: &AMQPUri, name: &str) -> Result<Self, BrokerError> {
        let mut uri = uri.clone();
        uri.query.heartbeat.get_or_insert(AMQP_HEARTBEAT_SECONDS);
        let properties = ConnectionProperties::default().with_connection_name(format!("{name} enqueue").into());
        let connection = Connection::connect_uri(uri, properties).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let replies =
            channel.basic_consume(REPLY_TO.into(), ShortString::default(), options, FieldTable::default()).await?;
        let pending = PendingReplies::new(Mutex::new(Some(HashMap::new())));
        tokio::spawn(read_replies(replies, pending.clone()));
        Ok(Self { connection, channel, pending })
    }

    /// Returns true if the channel can be used.
    pub(super) fn is_open(&self) -> bool {
        self.channel.status().connected() && lock(&self.pending).is_some()
    }

    /// Publishes a message, and waits for the confirm and, if the mode demands it, for the reply.
    ///
    /// # Errors
    /// Returns [`BrokerError`] if the message has no answer. It may have arrived all the same.
    pub(super) async fn send(
        &self,
        exchange: &str,
        body: &[u8],
        mode: AnswerMode,
    ) -> Result<Option<IngestReply>, BrokerError> {
        let id = uuid::Builder::from_random_bytes(rand::random()).into_uuid().to_string();
        let mut properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_delivery_mode(PERSISTENT_DELIVERY_MODE)
            .with_message_id(id.as_str().into())
            .with_timestamp(clock::now().timestamp().unsigned_abs());
        let mut reply = None;
        // Also removes the entry if the caller stops waiting.
        let _guard = PendingReplyGuard { pending: &self.pending, id: &id };
        if mode == AnswerMode::Reply {
            let (sender, receiver) = oneshot::channel();
            lock(&self.pending).as_mut().ok_or(BrokerError::NoReply)?.insert(id.clone(), sender);
            properties = properties.with_reply_to(REPLY_TO.into()).with_correlation_id(id.as_str().into());
            reply = Some(receiver);
        }
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let confirming = async {
            self.channel.basic_publish(exchange.into(), exchange.into(), options, body, properties).await?.await
        };
        let Ok(confirmed) = timeout(CONFIRM_TIMEOUT, confirming).await else {
            // The other requests on this channel have no hope either.
            lock(&self.pending).take();
            return Err(BrokerError::Unconfirmed);
        };
        match confirmed? {
            Confirmation::Ack(None) => {}
            Confirmation::Ack(Some(_)) => return Err(BrokerError::Unroutable),
            Confirmation::Nack(_) | Confirmation::NotRequested => return Err(BrokerError::Nacked),
        }
        match reply {
            Some(reply) => reply.await.map(Some).map_err(|_| BrokerError::NoReply),
            None => Ok(None),
        }
    }

    /// Closes the connection in an orderly way, or abandons it if the broker does not answer.
    pub(super) async fn close(&self) {
        // An error means that the connection is closed already.
        let _ = timeout(CLOSE_TIMEOUT, self.connection.close(200, "closed by the client".into())).await;
    }
}

/// Removes a request that waits for a reply when its caller stops waiting.
struct PendingReplyGuard<'a> {
    pending: &'a PendingReplies,
    id: &'a str,
}

impl Drop for PendingReplyGuard<'_> {
    fn drop(&mut self) {
        if let Some(pending) = lock(self.pending).as_mut() {
            pending.remove(self.id);
        }
    }
}

fn lock(pending: &PendingReplies) -> MutexGuard<'_, Option<HashMap<String, oneshot::Sender<IngestReply>>>> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes replies to their callers until the channel closes, and then fails those that still wait.
async fn read_replies(mut replies: Consumer, pending: PendingReplies) {
    while let Some(Ok(delivery)) = replies.next().await {
        let caller = delivery
            .properties
            .correlation_id()
            .as_ref()
            .and_then(|id| lock(&pending).as_mut().and_then(|pending| pending.remove(id.as_str())));
        match (caller, serde_json::from_slice(&delivery.data)) {
            (Some(caller), Ok(reply)) => drop(caller.send(reply)),
            (_, Err(error)) => tracing::warn!(
                error = %error,
                "the server's answer to new occurrences cannot be read; use the client of the server's version"
            ),
            // The caller has stopped waiting.
            (None, Ok(_)) => {}
        }
    }
    lock(&pending).take();
}
