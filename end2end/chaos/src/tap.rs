//! A queue bound to an exchange, which receives a copy of everything that is published there and can publish it again.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use futures::StreamExt;
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    options::{BasicConsumeOptions, BasicPublishOptions, QueueBindOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use milvaion_protocol::{
    message::JobMessage,
    topology::{BUNDLE_TYPE, HEADER_REPUBLISH},
};

/// The header of messages published by the tap, which the tap itself ignores; otherwise it would copy its own copies.
const COPY_HEADER: &str = "x-chaos-copy";

/// A message as it was published.
#[derive(Clone, Debug)]
pub(crate) struct TappedMessage {
    exchange: String,
    key: String,
    properties: BasicProperties,
    body: Vec<u8>,
}

impl TappedMessage {
    /// Returns true if the message has several runs.
    pub(crate) fn is_bundle(&self) -> bool {
        self.properties.kind().as_ref().is_some_and(|kind| kind.as_str() == BUNDLE_TYPE)
    }

    /// Returns true if a server has sent the first attempt of an occurrence again. The next attempt of a lost run has the
    /// same mark.
    pub(crate) fn repeats_first_attempt(&self) -> bool {
        let headers = self.properties.headers().as_ref();
        headers.is_some_and(|headers| headers.inner().contains_key(HEADER_REPUBLISH))
            && serde_json::from_slice::<JobMessage>(&self.body).is_ok_and(|message| message.attempt == 1)
    }
}

/// A tap on some exchanges, with the messages published since it was opened.
pub(crate) struct ExchangeTap {
    connection: Connection,
    channel: Channel,
    messages: Arc<Mutex<Vec<TappedMessage>>>,
    /// True while each received message is published again at once.
    is_copying: Arc<AtomicBool>,
}

impl ExchangeTap {
    /// Binds a queue to exchanges, each with its binding key. Each received message is published `copies` more times.
    pub(crate) async fn open(url: &str, exchanges: &[(String, &str)], copies: usize) -> anyhow::Result<Self> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        let queue = format!("chaos-tap-{:08x}", rand::random::<u32>());
        let exclusive = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(queue.as_str().into(), exclusive, FieldTable::default()).await?;
        for (exchange, key) in exchanges {
            let (exchange, key) = (exchange.as_str().into(), (*key).into());
            channel
                .queue_bind(queue.as_str().into(), exchange, key, QueueBindOptions::default(), FieldTable::default())
                .await?;
        }
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let mut deliveries =
            channel.basic_consume(queue.as_str().into(), "tap".into(), options, FieldTable::default()).await?;
        let (messages, is_copying) =
            (Arc::<Mutex<Vec<TappedMessage>>>::default(), Arc::new(AtomicBool::new(copies > 0)));
        let (note, may_copy, again) = (messages.clone(), is_copying.clone(), channel.clone());
        tokio::spawn(async move {
            while let Some(Ok(delivery)) = deliveries.next().await {
                let headers = delivery.properties.headers();
                if headers.as_ref().is_some_and(|headers| headers.inner().contains_key(COPY_HEADER)) {
                    continue;
                }
                let message = TappedMessage {
                    exchange: delivery.exchange.to_string(),
                    key: delivery.routing_key.to_string(),
                    properties: delivery.properties,
                    body: delivery.data,
                };
                if may_copy.load(Ordering::SeqCst) {
                    for _ in 0..copies {
                        let _ = publish(&again, &message).await;
                    }
                }
                note.lock().unwrap_or_else(PoisonError::into_inner).push(message);
            }
        });
        Ok(Self { connection, channel, messages, is_copying })
    }

    /// Returns everything received so far.
    pub(crate) fn messages(&self) -> Vec<TappedMessage> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Publishes a message again.
    pub(crate) async fn replay(&self, message: &TappedMessage) -> anyhow::Result<()> {
        publish(&self.channel, message).await
    }

    /// Stops publishing copies; messages are still received.
    pub(crate) fn stop_copying(&self) {
        self.is_copying.store(false, Ordering::SeqCst);
    }

    /// Closes the connection, which deletes the queue.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        self.stop_copying();
        // Closing may report an error for a channel that is just being closed; the connection ends all the same.
        let _ = self.connection.close(200, "done".into()).await;
        Ok(())
    }
}

async fn publish(channel: &Channel, message: &TappedMessage) -> anyhow::Result<()> {
    let mut headers = message.properties.headers().clone().unwrap_or_default();
    headers.insert(COPY_HEADER.into(), AMQPValue::Boolean(true));
    let properties = message.properties.clone().with_headers(headers);
    let (exchange, key) = (message.exchange.as_str().into(), message.key.as_str().into());
    channel.basic_publish(exchange, key, BasicPublishOptions::default(), &message.body, properties).await?;
    Ok(())
}
