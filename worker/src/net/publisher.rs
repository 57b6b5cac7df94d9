//! The publishing side: one connection, one channel with confirms, opened again whenever it fails.
//!
//! Every message is persistent and mandatory. A message counts as sent when the broker has confirmed it without handing
//! it back: an unroutable message is confirmed *and* returned, and would be gone if the confirmation alone were believed.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, future::BoxFuture};
use lapin::{
    BasicProperties, Channel, Confirmation, Event,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    uri::AMQPUri,
};
use milvaion_protocol::{message::MAX_MESSAGE_BYTES, topology::Topology};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    clock,
    net::connection::{self, JitteredBackoff},
    net::topology,
};

/// How long the broker may take to confirm before the channel is given up.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);
/// AMQP's number for a message that survives a restart of the broker.
const PERSISTENT_DELIVERY_MODE: u8 = 2;

/// Why a message does not count as sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PublishError {
    #[error("not connected")]
    NotConnected,
    #[error("{0}")]
    Broker(#[from] lapin::Error),
    #[error("the broker refused the message")]
    Nacked,
    #[error("no queue takes the message")]
    Unroutable,
    #[error("no confirmation within {} s", CONFIRM_TIMEOUT.as_secs())]
    Unconfirmed,
}

/// Publishes through whatever channel there is at the moment. Cloning gives the same one.
#[derive(Clone)]
pub(crate) struct WorkerPublisher {
    channel: watch::Receiver<Option<Channel>>,
    failures: Arc<Notify>,
    app_id: String,
}

impl WorkerPublisher {
    /// The publisher, and the task that keeps its channel open until `stop` fires.
    pub(crate) fn new(
        uri: AMQPUri,
        topology: Topology,
        app_id: String,
        stop: CancellationToken,
    ) -> (Self, impl Future<Output = ()>) {
        let (sender, channel) = watch::channel(None);
        let failures = Arc::new(Notify::new());
        let keep = keep_open(uri, topology, app_id.clone(), sender, failures.clone(), stop);
        (Self { channel, failures, app_id }, keep)
    }

    /// Whether there is a channel right now.
    pub(crate) fn is_up(&self) -> bool {
        self.channel.borrow().is_some()
    }

    /// Waits until there is a new channel, or the one there was is gone.
    pub(crate) async fn changed(&mut self) {
        if self.channel.changed().await.is_err() {
            // The keeper has gone, and with it every change.
            futures::future::pending::<()>().await;
        }
    }

    /// Sends one message to an exchange whose queue has the same name. The message is handed over at the first poll, so
    /// futures polled in order send in order; the future ends with the broker's verdict.
    pub(crate) fn publish(&self, exchange: &str, body: String) -> BoxFuture<'static, Result<(), PublishError>> {
        debug_assert!(body.len() <= MAX_MESSAGE_BYTES, "batches are bounded where they are made");
        let Some(channel) = self.channel.borrow().clone() else {
            return Box::pin(futures::future::ready(Err(PublishError::NotConnected)));
        };
        let failures = self.failures.clone();
        let exchange = exchange.to_owned();
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_delivery_mode(PERSISTENT_DELIVERY_MODE)
            .with_message_id(clock::random_id().to_string().into())
            .with_timestamp(clock::now().timestamp().unsigned_abs())
            .with_app_id(self.app_id.as_str().into());
        Box::pin(async move {
            let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            let sending = async {
                let name = exchange.as_str();
                let confirm =
                    channel.basic_publish(name.into(), name.into(), options, body.as_bytes(), properties).await?;
                match confirm.await? {
                    Confirmation::Ack(None) => Ok(()),
                    Confirmation::Ack(Some(_)) => Err(PublishError::Unroutable),
                    Confirmation::Nack(_) | Confirmation::NotRequested => Err(PublishError::Nacked),
                }
            };
            let verdict =
                tokio::time::timeout(CONFIRM_TIMEOUT, sending).await.unwrap_or(Err(PublishError::Unconfirmed));
            if verdict.is_err() {
                failures.notify_one();
            }
            verdict
        })
    }
}

async fn keep_open(
    uri: AMQPUri,
    topology: Topology,
    app_id: String,
    sender: watch::Sender<Option<Channel>>,
    failures: Arc<Notify>,
    stop: CancellationToken,
) {
    let name = format!("{app_id} publish");
    let mut backoff = JitteredBackoff::new();
    loop {
        let connection = tokio::select! {
            connection = connection::open(&uri, &name, &mut backoff) => connection,
            () = stop.cancelled() => return,
        };
        let mut events = Box::pin(connection.events_listener());
        while connection.status().connected() && !stop.is_cancelled() {
            // A broker that takes nothing from publishers does not answer here either, for as long as that lasts.
            let opened = tokio::select! {
                opened = open_channel(&connection, &topology) => opened,
                () = stop.cancelled() => {
                    connection::close(&connection).await;
                    return;
                }
            };
            match opened {
                Ok(channel) => sender.send_replace(Some(channel)),
                Err(error) => {
                    tracing::warn!(error = %error, "cannot prepare the channel for reports; is the topology of another version there?");
                    break;
                }
            };
            // What was complained about before belongs to the channel before.
            let _ = futures::FutureExt::now_or_never(failures.notified());
            tokio::select! {
                () = trouble(&mut events) => {}
                () = failures.notified() => {}
                () = stop.cancelled() => {
                    connection::close(&connection).await;
                    return;
                }
            }
            sender.send_replace(None);
            tracing::warn!("the channel for reports has failed; they wait until it is open again");
            pause(&mut backoff, &stop).await;
        }
        sender.send_replace(None);
        connection::close(&connection).await;
        pause(&mut backoff, &stop).await;
    }
}

async fn pause(backoff: &mut JitteredBackoff, stop: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(backoff.next()) => {}
        () = stop.cancelled() => {}
    }
}

async fn open_channel(connection: &lapin::Connection, topology: &Topology) -> Result<Channel, lapin::Error> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    topology::declare_shared(&channel, topology).await?;
    Ok(channel)
}

/// Waits for the connection or its channel to fail; says so when the broker stops taking messages for a while.
async fn trouble(events: &mut (impl futures::Stream<Item = Event> + Unpin)) {
    while let Some(event) = events.next().await {
        match event {
            Event::Error(_) => return,
            Event::ConnectionBlocked(reason) => {
                tracing::warn!(reason, "the broker takes no messages for now; reports wait")
            }
            Event::ConnectionUnblocked => tracing::info!("the broker takes messages again"),
            _ => {}
        }
    }
}
