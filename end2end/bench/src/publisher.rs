//! Connections to the broker, and a publisher that waits for many confirms at once. A publisher that waited for the
//! confirm of each message before it sent the next one would measure the round trip, not the broker.

use std::collections::VecDeque;

use anyhow::{Context, ensure};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, PublisherConfirm,
    options::{BasicPublishOptions, ConfirmSelectOptions},
};

/// The maximum number of outstanding confirms.
pub(crate) const MAX_UNCONFIRMED: usize = 2_000;

/// Opens a connection to the broker.
pub(crate) async fn connect(url: &str) -> anyhow::Result<Connection> {
    Connection::connect(url, ConnectionProperties::default()).await.context("RabbitMQ cannot be reached")
}

/// Closes a connection. Errors are ignored: channels that were just dropped may still be closing themselves.
pub(crate) async fn close(connection: Connection) {
    let _ = connection.close(200, "done".into()).await;
}

/// Opens a channel with publisher confirms.
pub(crate) async fn confirming(connection: &Connection) -> anyhow::Result<Channel> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}

/// Publishes persistent messages with up to [`MAX_UNCONFIRMED`] outstanding confirms.
pub(crate) struct PipelinedPublisher<'a> {
    channel: &'a Channel,
    exchange: String,
    pub(crate) key: String,
    waiting: VecDeque<PublisherConfirm>,
}

impl<'a> PipelinedPublisher<'a> {
    /// Creates a publisher to one exchange; `key` is the routing key of the next messages.
    pub(crate) fn new(channel: &'a Channel, exchange: &str, key: &str) -> Self {
        Self { channel, exchange: exchange.to_owned(), key: key.to_owned(), waiting: VecDeque::new() }
    }

    /// Publishes one message. Waits for the oldest confirm first if too many are outstanding.
    pub(crate) async fn send(&mut self, body: &[u8]) -> anyhow::Result<()> {
        if self.waiting.len() >= MAX_UNCONFIRMED
            && let Some(oldest) = self.waiting.pop_front()
        {
            ensure!(oldest.await?.is_ack(), "the broker rejected a message");
        }
        let (exchange, key) = (self.exchange.as_str().into(), self.key.as_str().into());
        let persistent = BasicProperties::default().with_delivery_mode(2);
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        self.waiting.push_back(self.channel.basic_publish(exchange, key, options, body, persistent).await?);
        Ok(())
    }

    /// Waits for all outstanding confirms.
    pub(crate) async fn settle(&mut self) -> anyhow::Result<()> {
        for confirm in self.waiting.drain(..) {
            ensure!(confirm.await?.is_ack(), "the broker rejected a message");
        }
        Ok(())
    }
}
