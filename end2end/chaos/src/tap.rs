//! A queue of our own on an exchange, which gets a copy of everything that is published there.

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

/// Marks what was sent by us, so that copies of copies are not copied.
const COPY_HEADER: &str = "x-chaos-copy";

/// A message as it was published.
#[derive(Clone, Debug)]
pub(crate) struct TappedMessage {
    exchange: String,
    key: String,
    properties: BasicProperties,
    body: Vec<u8>,
}

/// What was published since it was opened.
pub(crate) struct ExchangeTap {
    connection: Connection,
    channel: Channel,
    messages: Arc<Mutex<Vec<TappedMessage>>>,
    /// How often each message is published again as soon as it is heard.
    is_copying: Arc<AtomicBool>,
}

impl ExchangeTap {
    /// Listens on exchanges, each with the key it is bound with. What is heard is published `copies` times more at once.
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
                let one = TappedMessage {
                    exchange: delivery.exchange.to_string(),
                    key: delivery.routing_key.to_string(),
                    properties: delivery.properties,
                    body: delivery.data,
                };
                if may_copy.load(Ordering::SeqCst) {
                    for _ in 0..copies {
                        let _ = publish(&again, &one).await;
                    }
                }
                note.lock().unwrap_or_else(PoisonError::into_inner).push(one);
            }
        });
        Ok(Self { connection, channel, messages, is_copying })
    }

    /// Everything that was heard so far.
    pub(crate) fn messages(&self) -> Vec<TappedMessage> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Publishes something again.
    pub(crate) async fn replay(&self, one: &TappedMessage) -> anyhow::Result<()> {
        publish(&self.channel, one).await
    }

    /// Copies nothing any more.
    pub(crate) fn stop_copying(&self) {
        self.is_copying.store(false, Ordering::SeqCst);
    }

    /// Listens no longer.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        self.stop_copying();
        // As in `final_state`: it ends, whatever it says.
        let _ = self.connection.close(200, "heard".into()).await;
        Ok(())
    }
}

async fn publish(channel: &Channel, one: &TappedMessage) -> anyhow::Result<()> {
    let mut headers = one.properties.headers().clone().unwrap_or_default();
    headers.insert(COPY_HEADER.into(), AMQPValue::Boolean(true));
    let properties = one.properties.clone().with_headers(headers);
    let (exchange, key) = (one.exchange.as_str().into(), one.key.as_str().into());
    channel.basic_publish(exchange, key, BasicPublishOptions::default(), &one.body, properties).await?;
    Ok(())
}
