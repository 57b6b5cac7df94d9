//! Connections to the broker, with reconnection.
//!
//! A worker has separate connections for publishing and for consuming. A broker short of memory or disk blocks
//! connections that publish, and the consuming connection must remain able to acknowledge. All connections are opened
//! here, without a limit on attempts: an unavailable broker is waited for, however long.

use std::time::Duration;

use lapin::{Connection, ConnectionProperties, uri::AMQPUri};
use milvaion_protocol::backoff::Backoff;
use tokio::time::{Instant, timeout};

use crate::{api::error::log_text, clock};

/// Interval of AMQP heartbeats. A dead connection is detected after twice this time.
const AMQP_HEARTBEAT_SECONDS: u16 = 10;
/// Maximum time for opening a connection, including the handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time for the broker to confirm that a connection is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Minimum time between two warnings about failures of one connection. The first attempts follow each other so quickly that
/// a warning for each would hide the first, which names the address.
const WARNING_INTERVAL: Duration = Duration::from_secs(5);

/// The time of the last warning about failures in a row.
#[derive(Default)]
pub(crate) struct LastWarning(Option<Instant>);

impl LastWarning {
    /// Returns true if a failure deserves a warning: the first does, and later ones if the last warning is 5 s old.
    pub(crate) fn is_due(&mut self) -> bool {
        let due = self.0.is_none_or(|warned| warned.elapsed() >= WARNING_INTERVAL);
        if due {
            self.0 = Some(Instant::now());
        }
        due
    }
}

/// Opens a connection, with as many attempts as needed. The management pages of the broker show `name`.
pub(crate) async fn open(uri: &AMQPUri, name: &str, backoff: &mut Backoff) -> Connection {
    let mut uri = uri.clone();
    uri.query.heartbeat.get_or_insert(AMQP_HEARTBEAT_SECONDS);
    let (mut attempts, mut last_warning) = (0, LastWarning::default());
    loop {
        attempts += 1;
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let reason = match timeout(CONNECT_TIMEOUT, Connection::connect_uri(uri.clone(), properties)).await {
            Ok(Ok(connection)) => {
                tracing::info!(connection.name = name, "connection {name} to the broker is open");
                return connection;
            }
            Ok(Err(error)) => log_text(&error),
            Err(_) => format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()),
        };
        let pause = backoff.next_delay(clock::jitter());
        if last_warning.is_due() {
            let (host, port) = (&uri.authority.host, uri.authority.port);
            tracing::warn!(
                connection.name = name,
                broker.host = host,
                broker.port = port,
                error = reason,
                attempts,
                retry_ms = pause.as_millis() as u64,
                "cannot connect to the broker at {host}:{port}; check AMQP_URL if this persists"
            );
        }
        tokio::time::sleep(pause).await;
    }
}

/// Closes a connection in an orderly way, or abandons it if the broker does not answer.
pub(crate) async fn close(connection: &Connection) {
    let closing = connection.close(200, "closed by the worker".into());
    if let Ok(Err(error)) = timeout(CLOSE_TIMEOUT, closing).await {
        tracing::debug!(error = log_text(&error), "the connection to the broker was lost before it could be closed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failures_in_quick_succession_give_one_warning() {
        let mut last_warning = LastWarning::default();
        assert!(last_warning.is_due(), "the first");
        tokio::time::advance(WARNING_INTERVAL - Duration::from_millis(1)).await;
        assert!(!last_warning.is_due(), "too early for another");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(last_warning.is_due(), "still failing");
    }
}
