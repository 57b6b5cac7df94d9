//! The publishing side: one connection and one channel with publisher confirms, reopened after each failure.
//!
//! Every message is persistent and mandatory. A message counts as sent when the broker has confirmed it without
//! returning it. The broker confirms *and* returns an unroutable message, so the confirmation alone would hide its
//! loss.
//!
//! The server answers a registration on the direct reply-to address of the channel that sent it. So this channel consumes
//! that address, too; no other message asks for an answer here.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, future::BoxFuture};
use lapin::{
    BasicProperties, Channel, Confirmation, Consumer, Event,
    options::{BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions},
    types::{FieldTable, ShortString},
    uri::AMQPUri,
};
use milvaion_protocol::{
    backoff::Backoff,
    message::{HelloReply, MAX_MESSAGE_BYTES},
    topology::Topology,
};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::{api::error::log_text, clock, net::connection, net::topology};

/// Maximum time for the broker to confirm a message before the channel is reopened.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);
/// Address of the broker that stands for the direct replies to a channel.
const REPLY_TO: &str = "amq.rabbitmq.reply-to";
/// AMQP delivery mode of messages that survive a restart of the broker.
const PERSISTENT_DELIVERY_MODE: u8 = 2;

/// The cause for which a message does not count as sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PublishError {
    #[error("not connected to the broker")]
    NotConnected,
    #[error("an AMQP operation failed")]
    Broker(#[from] lapin::Error),
    #[error("the broker rejected the message")]
    Nacked,
    #[error("no queue is bound for the message")]
    Unroutable,
    #[error("the broker did not confirm the message within {} s", CONFIRM_TIMEOUT.as_secs())]
    Unconfirmed,
}

/// Publishes through the current channel. Clones share the same channel.
#[derive(Clone)]
pub(crate) struct WorkerPublisher {
    channel: watch::Receiver<Option<Channel>>,
    failures: Arc<Notify>,
    hello_replies: watch::Receiver<Option<HelloReply>>,
    app_id: String,
}

impl WorkerPublisher {
    /// Creates the publisher, and the task that keeps its channel open until `stop` fires.
    pub(crate) fn new(
        uri: AMQPUri,
        topology: Topology,
        app_id: String,
        stop: CancellationToken,
    ) -> (Self, impl Future<Output = ()>) {
        let (sender, channel) = watch::channel(None);
        let failures = Arc::new(Notify::new());
        let (replies, hello_replies) = watch::channel(None);
        let keep = keep_open(uri, topology, app_id.clone(), sender, replies, failures.clone(), stop);
        (Self { channel, failures, hello_replies, app_id }, keep)
    }

    /// Returns true if the channel is open.
    pub(crate) fn is_up(&self) -> bool {
        self.channel.borrow().is_some()
    }

    /// Waits until the channel has been opened or lost.
    pub(crate) async fn changed(&mut self) {
        if self.channel.changed().await.is_err() {
            // The task has ended, so there are no further changes.
            futures::future::pending::<()>().await;
        }
    }

    /// Waits for the next answer of the server to a registration.
    pub(crate) async fn hello_reply(&mut self) -> HelloReply {
        loop {
            if self.hello_replies.changed().await.is_err() {
                // The task has ended, so there are no further answers.
                futures::future::pending::<()>().await;
            }
            if let Some(reply) = self.hello_replies.borrow_and_update().clone() {
                return reply;
            }
        }
    }

    /// Publishes a registration, which the server answers. See [`publish`](Self::publish).
    ///
    /// # Errors
    /// Returns [`PublishError`] if the broker did not accept the message, or if that is unknown.
    pub(crate) fn publish_hello(&self, exchange: &str, body: String) -> BoxFuture<'static, Result<(), PublishError>> {
        let properties = BasicProperties::default()
            .with_reply_to(REPLY_TO.into())
            .with_correlation_id(clock::random_id().to_string().into());
        self.send(exchange, body, properties)
    }

    /// Publishes a message to an exchange whose queue has the same name. The first poll passes the message to the
    /// connection, so futures that are polled in order send in order. The future completes with the broker's
    /// confirmation.
    ///
    /// # Errors
    /// Returns [`PublishError`] if the broker did not accept the message, or if that is unknown.
    pub(crate) fn publish(&self, exchange: &str, body: String) -> BoxFuture<'static, Result<(), PublishError>> {
        self.send(exchange, body, BasicProperties::default())
    }

    fn send(
        &self,
        exchange: &str,
        body: String,
        properties: BasicProperties,
    ) -> BoxFuture<'static, Result<(), PublishError>> {
        debug_assert!(body.len() <= MAX_MESSAGE_BYTES, "batches are bounded by their builders");
        let Some(channel) = self.channel.borrow().clone() else {
            return Box::pin(futures::future::ready(Err(PublishError::NotConnected)));
        };
        let failures = self.failures.clone();
        let exchange = exchange.to_owned();
        let properties = properties
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
            let result = tokio::time::timeout(CONFIRM_TIMEOUT, sending).await.unwrap_or(Err(PublishError::Unconfirmed));
            if result.is_err() {
                failures.notify_one();
            }
            result
        })
    }
}

async fn keep_open(
    uri: AMQPUri,
    topology: Topology,
    app_id: String,
    sender: watch::Sender<Option<Channel>>,
    replies: watch::Sender<Option<HelloReply>>,
    failures: Arc<Notify>,
    stop: CancellationToken,
) {
    let name = format!("{app_id} publish");
    let mut backoff = Backoff::default();
    loop {
        let connection = tokio::select! {
            connection = connection::open(&uri, &name, &mut backoff) => connection,
            () = stop.cancelled() => return,
        };
        let mut events = Box::pin(connection.events_listener());
        while connection.status().connected() && !stop.is_cancelled() {
            // A broker that blocks publishers does not answer this either, for as long as it blocks them.
            let opened = tokio::select! {
                opened = open_channel(&connection, &topology) => opened,
                () = stop.cancelled() => {
                    connection::close(&connection).await;
                    return;
                }
            };
            let channel = match opened {
                Ok((channel, consumer)) => {
                    tokio::spawn(listen(consumer, replies.clone()));
                    channel
                }
                Err(error) => {
                    tracing::warn!(
                        error = log_text(&error),
                        "cannot open the channel for reports; check whether the queues of MILVAION_PREFIX were declared by another version"
                    );
                    break;
                }
            };
            // Nothing is sent while the broker blocks publishers: it would not be confirmed in time, and be sent again.
            let set_blocked = |is_blocked: bool| drop(sender.send_replace((!is_blocked).then(|| channel.clone())));
            set_blocked(false);
            // Earlier failures belong to the previous channel.
            let _ = futures::FutureExt::now_or_never(failures.notified());
            let opened_at = tokio::time::Instant::now();
            tokio::select! {
                () = wait_for_failure(&mut events, set_blocked) => {}
                () = failures.notified() => {}
                () = stop.cancelled() => {
                    connection::close(&connection).await;
                    return;
                }
            }
            sender.send_replace(None);
            drop(channel);
            tracing::warn!("the channel for reports has failed; reports wait until it is open again");
            backoff.reset_after(opened_at.elapsed());
            pause(&mut backoff, &stop).await;
        }
        sender.send_replace(None);
        connection::close(&connection).await;
        pause(&mut backoff, &stop).await;
    }
}

async fn pause(backoff: &mut Backoff, stop: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(backoff.next_delay(clock::jitter())) => {}
        () = stop.cancelled() => {}
    }
}

/// Opens a channel with confirms, and consumes the replies to what it sends.
async fn open_channel(
    connection: &lapin::Connection,
    topology: &Topology,
) -> Result<(Channel, Consumer), lapin::Error> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    topology::declare_shared(&channel, topology).await?;
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let replies =
        channel.basic_consume(REPLY_TO.into(), ShortString::default(), options, FieldTable::default()).await?;
    Ok((channel, replies))
}

/// Passes on the answers to registrations until the channel closes.
async fn listen(mut consumer: Consumer, replies: watch::Sender<Option<HelloReply>>) {
    while let Some(Ok(delivery)) = consumer.next().await {
        match serde_json::from_slice(&delivery.data) {
            Ok(reply) => drop(replies.send_replace(Some(reply))),
            Err(error) => tracing::warn!(error = %error, "cannot decode the server's answer to the registration"),
        }
    }
}

/// Waits until the connection or its channel fails. Passes on whether the broker blocks publishers, when that changes.
async fn wait_for_failure(events: &mut (impl futures::Stream<Item = Event> + Unpin), set_blocked: impl Fn(bool)) {
    while let Some(event) = events.next().await {
        match event {
            Event::Error(_) => return,
            Event::ConnectionBlocked(reason) => {
                tracing::warn!(reason, "the broker blocks publishers; reports wait until it accepts messages again");
                set_blocked(true);
            }
            Event::ConnectionUnblocked => {
                tracing::info!("the broker accepts messages again");
                set_blocked(false);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[tokio::test]
    async fn block_of_publishers_is_passed_on_when_it_changes() {
        let seen = RefCell::new(Vec::new());
        let mut events =
            futures::stream::iter([Event::ConnectionBlocked("low on memory".to_owned()), Event::ConnectionUnblocked]);
        wait_for_failure(&mut events, |is_blocked| seen.borrow_mut().push(is_blocked)).await;
        assert_eq!(seen.into_inner(), [true, false]);
    }
}
