//! How many messages wait in a queue.

use std::time::Duration;

use lapin::{Connection, ErrorKind, options::QueueDeclareOptions, protocol::AMQPErrorKind, types::FieldTable};

use super::Broker;

/// How long the broker may take to answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Asks the broker, over a connection of its own: a question about a queue that is not there costs the channel it was
/// asked on, and must cost nobody else theirs.
#[derive(Debug)]
pub struct QueueProbe {
    broker: Broker,
    connection: Option<Connection>,
}

impl QueueProbe {
    /// A probe that connects when it is first asked.
    #[must_use]
    pub const fn new(broker: Broker) -> Self {
        Self { broker, connection: None }
    }

    /// How many messages wait in `queue`, those that consumers have fetched not counted; 0 when there is no such queue.
    ///
    /// # Errors
    ///
    /// The broker's reason, or that it did not answer.
    pub async fn waiting(&mut self, queue: &str) -> Result<u32, String> {
        let connection = match self.connection.take() {
            Some(connection) if connection.status().connected() => connection,
            _ => self.broker.connect("milvaion server probe").await?,
        };
        let waiting = tokio::time::timeout(PROBE_TIMEOUT, ask(&connection, queue))
            .await
            .map_err(|_| format!("no answer within {} s", PROBE_TIMEOUT.as_secs()))?
            .map_err(|error| error.to_string());
        // One that did not answer is not asked again.
        self.connection = Some(connection);
        waiting
    }

    /// Closes the connection; the next question opens another.
    pub async fn close(&mut self) {
        if let Some(connection) = self.connection.take() {
            let closing = connection.close(200, "asked".into());
            let _ = tokio::time::timeout(Duration::from_secs(2), closing).await;
        }
    }
}

async fn ask(connection: &Connection, queue: &str) -> Result<u32, lapin::Error> {
    let channel = connection.create_channel().await?;
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    match channel.queue_declare(queue.into(), options, FieldTable::default()).await {
        Ok(queue) => {
            let _ = channel.close(200, "asked".into()).await;
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
