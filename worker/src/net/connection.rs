//! Connections to the broker that come back.
//!
//! A worker has two, because a broker short of memory or disk blocks whole connections that publish, and the one that
//! consumes must go on acknowledging. Both are opened here, for ever: a broker that is away is waited for, however long.

use std::time::Duration;

use lapin::{Connection, ConnectionProperties, uri::AMQPUri};
use tokio::time::{Instant, timeout};

use crate::clock;

/// How often the two ends assure each other that they are there; a dead line is noticed after twice that.
const AMQP_HEARTBEAT_SECONDS: u16 = 10;
/// How long opening may take, handshake included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the broker may take to answer a polite close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// The first pause after a failure.
const MIN_BACKOFF: Duration = Duration::from_millis(200);
/// The longest pause.
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// Pauses between attempts: doubling, jittered, short again after a time without trouble.
pub(crate) struct JitteredBackoff {
    next: Duration,
    last: Option<Instant>,
}

impl JitteredBackoff {
    pub(crate) const fn new() -> Self {
        Self { next: MIN_BACKOFF, last: None }
    }

    /// How long to wait now.
    pub(crate) fn next(&mut self) -> Duration {
        if self.last.is_some_and(|last| last.elapsed() > 2 * MAX_BACKOFF) {
            self.next = MIN_BACKOFF;
        }
        let pause = self.next;
        self.next = (pause * 2).min(MAX_BACKOFF);
        self.last = Some(Instant::now());
        clock::jitter(pause)
    }

    /// All is well: the next pause is a short one.
    pub(crate) const fn reset(&mut self) {
        *self = Self::new();
    }
}

/// Opens a connection, however often it takes. `name` is what the broker's own pages call it.
pub(crate) async fn open(uri: &AMQPUri, name: &str, backoff: &mut JitteredBackoff) -> Connection {
    let mut uri = uri.clone();
    uri.query.heartbeat.get_or_insert(AMQP_HEARTBEAT_SECONDS);
    loop {
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let reason = match timeout(CONNECT_TIMEOUT, Connection::connect_uri(uri.clone(), properties)).await {
            Ok(Ok(connection)) => {
                tracing::info!(connection.name = name, "connected to the broker");
                return connection;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()),
        };
        let pause = backoff.next();
        tracing::warn!(
            connection.name = name,
            broker.host = uri.authority.host,
            broker.port = uri.authority.port,
            error = reason,
            retry_ms = pause.as_millis() as u64,
            "cannot connect to the broker; check AMQP_URL if this stays so"
        );
        tokio::time::sleep(pause).await;
    }
}

/// Closes a connection politely, or leaves it when the broker does not answer.
pub(crate) async fn close(connection: &Connection) {
    let closing = connection.close(200, "the worker closes it".into());
    if let Ok(Err(error)) = timeout(CLOSE_TIMEOUT, closing).await {
        tracing::debug!(error = %error, "the broker was gone before the connection was closed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_shrink_again() {
        let mut backoff = JitteredBackoff::new();
        let pauses: Vec<Duration> = (0..12).map(|_| backoff.next()).collect();
        assert!(pauses[0] <= MIN_BACKOFF && pauses[0] >= MIN_BACKOFF / 2);
        assert!(pauses[11] <= MAX_BACKOFF && pauses[11] >= MAX_BACKOFF / 2);
        backoff.reset();
        assert!(backoff.next() <= MIN_BACKOFF);
    }
}
