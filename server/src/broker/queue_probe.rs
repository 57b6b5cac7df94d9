//! Counts the messages that wait in a queue.

use std::time::Duration;

use lapin::{Connection, ErrorKind, options::QueueDeclareOptions, protocol::AMQPErrorKind, types::FieldTable};

use super::{Broker, BrokerError};

/// The timeout of one count.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

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

    /// Closes the connection. The next count opens another.
    pub async fn close(&mut self) {
        if let Some(connection) = self.connection.take() {
            let closing = connection.close(200, "counted".into());
            let _ = tokio::time::timeout(Duration::from_secs(2), closing).await;
        }
    }
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
