//! Counts the messages that wait in queues, and deletes a queue that nothing consumes.

use std::time::Duration;

use lapin::{
    Channel, Connection, ErrorKind,
    options::{QueueDeclareOptions, QueueDeleteOptions},
    protocol::{AMQPError, AMQPErrorKind, AMQPSoftError},
    types::FieldTable,
};

use super::{Broker, BrokerError};

/// The timeout of one count, and of opening a channel for it.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// The most time for the counts of all queues together.
const ALL_PROBES_TIMEOUT: Duration = Duration::from_secs(3);

/// The messages that wait in a queue, and its consumers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    open: Option<ProbeConnection>,
}

/// A connection, and the number of channels that were opened on it.
#[derive(Debug)]
struct ProbeConnection {
    connection: Connection,
    opened: u16,
}

impl ProbeConnection {
    /// Returns true if another channel can be opened. The client library numbers channels in a circle, and a channel with
    /// the number of one that the broker has closed fails with the error of that one. So each number is used once.
    fn is_usable(&self) -> bool {
        self.connection.status().connected() && self.opened < self.connection.configuration().channel_max()
    }
}

impl QueueProbe {
    /// Creates a probe, which connects at its first use.
    #[must_use]
    pub const fn new(broker: Broker) -> Self {
        Self { broker, open: None }
    }

    /// Returns the counts of `queue`: 0 if there is no such queue, and `None` if its node is down.
    ///
    /// # Errors
    ///
    /// Returns [`BrokerError::Amqp`] if the broker refuses the request or cannot be reached, and
    /// [`BrokerError::Timeout`] if it does not answer.
    pub async fn waiting(&mut self, queue: &str) -> Result<Option<QueueCounts>, BrokerError> {
        let channel = self.channel().await?;
        let counts = self.count_within(PROBE_TIMEOUT, channel, &[queue.to_owned()]).await?;
        Ok(match counts.first() {
            Some(Ok(counts)) => Some(*counts),
            Some(Err(NoCount::Missing)) => Some(QueueCounts::default()),
            Some(Err(NoCount::NodeDown)) | None => None,
        })
    }

    /// Deletes `queue` with its messages if it has no consumer, which the broker decides in one step. Returns false if it has
    /// one, and true if there is no such queue.
    ///
    /// # Errors
    ///
    /// The same as of [`waiting`](Self::waiting).
    pub async fn delete_unused(&mut self, queue: &str) -> Result<bool, BrokerError> {
        let channel = self.channel().await?;
        let options = QueueDeleteOptions { if_unused: true, ..QueueDeleteOptions::default() };
        let Ok(deleted) = tokio::time::timeout(PROBE_TIMEOUT, channel.queue_delete(queue.into(), options)).await else {
            // A connection that did not answer is dropped instead of kept.
            self.open = None;
            return Err(BrokerError::Timeout { timeout: PROBE_TIMEOUT });
        };
        match deleted {
            Ok(_) => {
                let _ = channel.close(200, "deleted".into()).await;
                Ok(true)
            }
            Err(error) if is_in_use(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the counts of several queues, in their order; `None` for a queue that does not exist or whose node is down.
    ///
    /// # Errors
    ///
    /// The same as of [`waiting`](Self::waiting).
    pub async fn counts(&mut self, queues: &[String]) -> Result<Vec<Option<QueueCounts>>, BrokerError> {
        let channel = self.channel().await?;
        let counts = self.count_within(ALL_PROBES_TIMEOUT, channel, queues).await?;
        Ok(counts.into_iter().map(Result::ok).collect())
    }

    /// Closes the connection. The next count opens another.
    pub async fn close(&mut self) {
        if let Some(open) = self.open.take() {
            let closing = open.connection.close(200, "counted".into());
            let _ = tokio::time::timeout(Duration::from_secs(2), closing).await;
        }
    }

    async fn count_within(
        &mut self,
        limit: Duration,
        channel: Channel,
        queues: &[String],
    ) -> Result<Vec<Result<QueueCounts, NoCount>>, BrokerError> {
        let Ok(counts) = tokio::time::timeout(limit, self.count(channel, queues)).await else {
            // A connection that did not answer is dropped instead of kept.
            self.open = None;
            return Err(BrokerError::Timeout { timeout: limit });
        };
        counts
    }

    /// Counts queue by queue on one channel, and on a new one after a queue that does not exist.
    async fn count(
        &mut self,
        first: Channel,
        queues: &[String],
    ) -> Result<Vec<Result<QueueCounts, NoCount>>, BrokerError> {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let mut channel = Some(first);
        let mut counts = Vec::with_capacity(queues.len());
        for queue in queues {
            let open = match channel.take() {
                Some(open) => open,
                None => self.channel().await?,
            };
            match open.queue_declare(queue.as_str().into(), options, FieldTable::default()).await {
                Ok(queue) => {
                    counts.push(Ok(QueueCounts { messages: queue.message_count(), consumers: queue.consumer_count() }));
                    channel = Some(open);
                }
                Err(error) => counts.push(Err(no_count(&error).ok_or(error)?)),
            }
        }
        if let Some(open) = channel {
            let _ = open.close(200, "counted".into()).await;
        }
        Ok(counts)
    }

    /// Opens a channel, on a new connection if there is none with numbers left.
    async fn channel(&mut self) -> Result<Channel, BrokerError> {
        if !self.open.as_ref().is_some_and(ProbeConnection::is_usable) {
            self.close().await;
        }
        // Taken, so that a connection that does not answer in time is dropped with this future.
        let mut open = match self.open.take() {
            Some(open) => open,
            None => ProbeConnection { connection: self.broker.connect("milvaion server probe").await?, opened: 0 },
        };
        open.opened += 1;
        let channel = tokio::time::timeout(PROBE_TIMEOUT, open.connection.create_channel())
            .await
            .map_err(|_| BrokerError::Timeout { timeout: PROBE_TIMEOUT })?;
        self.open = Some(open);
        Ok(channel?)
    }
}

/// Returns true if an error says that a queue has consumers. It closes the channel only.
fn is_in_use(error: &lapin::Error) -> bool {
    let in_use = AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED);
    matches!(error.kind(), ErrorKind::ProtocolError(error) if *error.kind() == in_use)
}

/// The reason that the broker has no count of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoCount {
    /// There is no such queue.
    Missing,
    /// The node of the queue is down. Its messages are not lost, and nothing is known about them.
    NodeDown,
}

/// Returns the reason if an error says that the broker has no count of a queue. It closes the channel only.
fn no_count(error: &lapin::Error) -> Option<NoCount> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => reason_of(error),
        _ => None,
    }
}

/// Returns the reason of an answer. The broker answers *not found* for both, and only the text tells them apart.
fn reason_of(error: &AMQPError) -> Option<NoCount> {
    match error.kind() {
        AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) if error.get_message().as_str().contains("home node") => {
            Some(NoCount::NodeDown)
        }
        AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => Some(NoCount::Missing),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_of_a_node_that_is_down_is_not_missing() {
        let reason = |text: &str| reason_of(&AMQPError::new(AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND), text.into()));
        assert_eq!(reason("NOT_FOUND - no queue 'jobs.w.t' in vhost '/'"), Some(NoCount::Missing));
        let down = "NOT_FOUND - home node 'rabbit@b' of durable queue 'jobs.w.t' in vhost '/' is down or inaccessible";
        assert_eq!(reason(down), Some(NoCount::NodeDown));
    }
}
