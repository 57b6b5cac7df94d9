//! A connection to RabbitMQ that is opened, used until it is lost, and opened again after a backoff.
//!
//! The stop token ends each of these steps at once, so that a broker that does not answer delays no stop of the server.

use std::{pin::pin, sync::Arc, time::Duration};

use futures::{StreamExt, stream::BoxStream};
use lapin::{Channel, Connection, Event, options::ConfirmSelectOptions};
use milvaion_protocol::{backoff::Backoff, topology::Topology};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Broker, topology};

/// The timeout for closing a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// One connection at a time. Each follows after the one before it was lost.
pub(super) struct Link<'a> {
    broker: &'a Broker,
    name: &'static str,
    stop: &'a CancellationToken,
    backoff: Backoff,
    current: Option<Arc<Connection>>,
}

impl<'a> Link<'a> {
    /// Creates a link without a connection. The management pages of the broker show `name`.
    pub(super) fn new(broker: &'a Broker, name: &'static str, stop: &'a CancellationToken) -> Self {
        Self { broker, name, stop, backoff: Backoff::default(), current: None }
    }

    /// Closes the connection that is not used any more, and opens the next one. Returns `None` after `stop`.
    pub(super) async fn connect(&mut self) -> Option<Arc<Connection>> {
        if let Some(used) = self.current.take() {
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, used.close(200, "closing".into())).await;
            self.pause().await?;
        }
        loop {
            match self.stop.run_until_cancelled(self.broker.connect(self.name)).await? {
                Ok(connection) => {
                    tracing::info!(connection.name = self.name, "connected to RabbitMQ as {}", self.name);
                    return Some(self.current.insert(Arc::new(connection)).clone());
                }
                Err(error) => self.broker.log_outage(self.name, &error),
            }
            self.pause().await?;
        }
    }

    async fn pause(&mut self) -> Option<()> {
        self.stop.run_until_cancelled(tokio::time::sleep(self.backoff.next_delay(rand::random()))).await
    }

    /// Waits until channels of the connection are open. Returns `None` after `stop`, and after an error that `log` receives.
    pub(super) async fn open<T>(
        &mut self,
        opening: impl Future<Output = lapin::Result<T>>,
        log: impl FnOnce(lapin::Error),
    ) -> Option<T> {
        let opened = self.stop.run_until_cancelled(opening).await?;
        opened.inspect(|_| self.backoff.reset()).map_err(log).ok()
    }
}

/// A channel with publisher confirms, and the events of its connection.
pub(super) struct ConfirmChannel {
    connection: Arc<Connection>,
    pub(super) channel: Channel,
    events: BoxStream<'static, Event>,
}

impl ConfirmChannel {
    /// Opens a channel on which the common exchanges and queues are declared. `log` receives each event of the connection.
    pub(super) async fn open(connection: &Arc<Connection>, names: &Topology, log: fn(&Event)) -> lapin::Result<Self> {
        let events = connection.events_listener().inspect(log).boxed();
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        topology::declare(&channel, names).await?;
        Ok(Self { connection: connection.clone(), channel, events })
    }

    /// Provides `open` over `sender` until the channel is lost, `lost` completes or `stop`. Nothing is provided while the
    /// broker blocks the connection.
    pub(super) async fn provide<T: Clone>(
        mut self,
        open: T,
        sender: &watch::Sender<Option<T>>,
        lost: impl Future<Output = ()>,
        stop: &CancellationToken,
    ) {
        let mut lost = pin!(lost);
        sender.send_replace(Some(open.clone()));
        loop {
            let event = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = &mut lost => break,
                event = self.events.next() => event,
            };
            match event {
                // A new connection would be blocked as well, and messages sent over this one would arrive twice. This
                // connection is therefore kept, but not used.
                Some(Event::ConnectionBlocked(_)) => drop(sender.send_replace(None)),
                Some(Event::ConnectionUnblocked) => drop(sender.send_replace(Some(open.clone()))),
                // The errors of all channels are events of their connection. One of another channel is a refused
                // declaration, which does not matter here.
                Some(Event::Error(_)) if self.connection.status().connected() && self.channel.status().connected() => {}
                Some(Event::Error(_)) | None => break,
                Some(_) => {}
            }
        }
        sender.send_replace(None);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::config::broker::BrokerConfig;

    #[tokio::test(start_paused = true)]
    async fn stop_ends_the_pause_before_a_connection() {
        // No broker listens on this port.
        let config = BrokerConfig { url: "amqp://127.0.0.1:1/%2f".to_owned(), prefix: "t".to_owned(), prefetch: 50 };
        let (broker, stop) = (Broker::new(&config).expect("a valid URL"), CancellationToken::new());
        let mut link = Link::new(&broker, "test", &stop);
        let stopping = async {
            while broker.last_outage_log.lock().expect("the mutex is not poisoned").is_none() {
                tokio::task::yield_now().await;
            }
            stop.cancel();
            Instant::now()
        };
        let (connection, stopped_at) = tokio::join!(link.connect(), stopping);
        assert!(connection.is_none());
        assert_eq!(stopped_at.elapsed(), Duration::ZERO);
    }
}
