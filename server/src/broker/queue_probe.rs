//! Counts the messages that wait in queues.

use std::time::Duration;

use lapin::{Connection, ErrorKind, options::QueueDeclareOptions, protocol::AMQPErrorKind, types::FieldTable};

use super::{Broker, BrokerError};

/// The timeout of one count.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// The most time for the counts of all queues together.
const ALL_PROBES_TIMEOUT: Duration = Duration::from_secs(3);

/// The messages that wait in a queue, and its consumers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCounts {
    /// Messages, without those that consumers have prefetched.
    pub messages: u32,
    /// Consumers.
    pub consumers: u32,
}

/// A probe that counts waiting messages, over a connection of its own: a request about a missing queue closes the
/// channel, and must not close a channel that other code uses.
#[derive(Debug)]
pub struct QueueProbe {
    broker: Broker,
    connection: Option<Connection>,
}

impl QueueProbe {
    /// Creates a probe, which connects at its first use.
    #[must_use]
    pub const fn new(broker: Broker) -> Self {
        Self { broker, connection: None }
    }

    /// Returns the number of messages that wait in `queue`, without those that consumers have prefetched, or 0 if there
    /// is no such queue.
    ///
    /// # Errors
    ///
    /// Returns [`BrokerError::Amqp`] if the broker refuses the request or cannot be reached, and
    /// [`BrokerError::Timeout`] if it does not answer.
    pub async fn waiting(&mut self, queue: &str) -> Result<u32, BrokerError> {
        let connection = match self.connection.take() {
            Some(connection) if connection.status().connected() => connection,
            _ => self.broker.connect("milvaion server probe").await?,
        };
        let waiting = tokio::time::timeout(PROBE_TIMEOUT, count(&connection, queue))
            .await
            .map_err(|_| BrokerError::Timeout { timeout: PROBE_TIMEOUT })?;
        // A connection that did not answer is dropped instead of kept.
        self.connection = Some(connection);
        Ok(waiting?)
    }

    /// Returns the counts of several queues, in their order; `None` for a queue that does not exist.
    ///
    /// # Errors
    ///
    /// The same as of [`waiting`](Self::waiting).
    pub async fn counts(&mut self, queues: &[String]) -> Result<Vec<Option<QueueCounts>>, BrokerError> {
        let connection = match self.connection.take() {
            Some(connection) if connection.status().connected() => connection,
            _ => self.broker.connect("milvaion server metrics").await?,
        };
        let counts = tokio::time::timeout(ALL_PROBES_TIMEOUT, count_all(&connection, queues))
            .await
            .map_err(|_| BrokerError::Timeout { timeout: ALL_PROBES_TIMEOUT })?;
        self.connection = Some(connection);
        Ok(counts?)
    }

    /// Closes the connection. The next count opens another.
    pub async fn close(&mut self) {
        if let Some(connection) = self.connection.take() {
            let closing = connection.close(200, "counted".into());
            let _ = tokio::time::timeout(Duration::from_secs(2), closing).await;
        }
    }
}

/// Counts queue by queue on one channel, and on a new one after a queue that does not exist.
async fn count_all(connection: &Connection, queues: &[String]) -> Result<Vec<Option<QueueCounts>>, lapin::Error> {
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let mut channel = None;
    let mut counts = Vec::with_capacity(queues.len());
    for queue in queues {
        let open = match channel.take() {
            Some(open) => open,
            None => connection.create_channel().await?,
        };
        match open.queue_declare(queue.as_str().into(), options, FieldTable::default()).await {
            Ok(queue) => {
                counts.push(Some(QueueCounts { messages: queue.message_count(), consumers: queue.consumer_count() }));
                channel = Some(open);
            }
            Err(error) if is_missing(&error) => counts.push(None),
            Err(error) => return Err(error),
        }
    }
    if let Some(open) = channel {
        let _ = open.close(200, "counted".into()).await;
    }
    Ok(counts)
}

async fn count(connection: &Connection, queue: &str) -> Result<u32, lapin::Error> {
    let channel = connection.create_channel().await?;
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    match channel.queue_declare(queue.into(), options, FieldTable::default()).await {
        Ok(queue) => {
            let _ = channel.close(200, "counted".into()).await;
            Ok(queue.message_count())
        }
        Err(error) if is_missing(&error) => Ok(0),
        Err(error) => Err(error),
    }
}

fn is_missing(error: &lapin::Error) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(error)
        if matches!(error.kind(), AMQPErrorKind::Soft(lapin::protocol::AMQPSoftError::NOTFOUND)))
}
