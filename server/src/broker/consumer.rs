//! Consumes the messages of workers in batches.
//!
//! A batch is passed to a [`BatchHandler`], which commits it. Only then is the whole batch acknowledged, at once. If
//! the handler fails because a service is down, nothing is acknowledged and the batch is retried: the broker keeps it.
//! The retry is limited in time, because the service may be unreachable from this server only. Meanwhile the other
//! servers do not receive the messages held here, and would count runs as lost although they were reported. A body that
//! cannot be read is logged and acknowledged, because it would never become readable.

use std::time::Duration;

use futures::StreamExt;
pub use lapin::{Channel, message::Delivery};
use lapin::{
    Consumer,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Broker, topology};
use crate::{
    backoff::ReconnectBackoff,
    error::{body_excerpt, chain},
    faults,
};

/// The most messages in one batch. A worker's message has at most some 400 reports, so that a full batch is stored in
/// two or three seconds. The whole prefetch is then processed within the heartbeat timeout.
const MAX_BATCH_MESSAGES: usize = 250;

/// The longest time for which a batch that cannot be stored is kept from other servers. Together with the ten seconds
/// that a failing attempt takes at most, it is shorter than
/// [`MIN_HEARTBEAT_TIMEOUT`](crate::domain::lost_run::MIN_HEARTBEAT_TIMEOUT). An attempt without an answer is not cut
/// short, because a large batch on a slow disk would otherwise be restarted forever.
const MAX_BATCH_HOLD: Duration = Duration::from_secs(4);

/// The time between two log lines about a batch that still cannot be stored.
const RETRY_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The handler of the messages of one queue.
pub trait BatchHandler: Send + Sync + 'static {
    /// The handler's name in logs.
    const NAME: &'static str;

    /// Handles bodies in order. After an error the same bodies are handled again. Bodies that were stored before must
    /// then change nothing.
    fn handle(&self, bodies: Vec<Vec<u8>>) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Returns true if a retry with the same bodies may succeed. Otherwise the consumer finds the offending body and
    /// drops it.
    fn is_retryable(_error: &anyhow::Error) -> bool {
        true
    }

    /// Handles deliveries in order, for handlers that need the message properties. The default implementation calls
    /// [`handle`](Self::handle) with the bodies. The same rule applies after an error.
    fn handle_deliveries(
        &self,
        _channel: &Channel,
        batch: &[Delivery],
    ) -> impl Future<Output = anyhow::Result<()>> + Send {
        self.handle(batch.iter().map(|delivery| delivery.data.clone()).collect())
    }
}

/// Consumes `queue` until `stop`.
pub async fn consume<H: BatchHandler>(broker: Broker, queue: String, handler: H, stop: CancellationToken) {
    let mut backoff = ReconnectBackoff::default();
    broker.note_consuming(&queue, false);
    while !stop.is_cancelled() {
        let connection = tokio::select! {
            connection = broker.connect_with_retry(H::NAME) => connection,
            () = stop.cancelled() => return,
        };
        match open(&connection, &broker, &queue, H::NAME).await {
            Ok((channel, consumer)) => {
                broker.note_consuming(&queue, true);
                backoff = ReconnectBackoff::default();
                process_deliveries(&channel, consumer, &handler, &stop).await;
                broker.note_consuming(&queue, false);
            }
            Err(error) => {
                tracing::warn!(queue.name = queue, error = %error, "queue {queue} cannot be consumed and is retried")
            }
        }
        let _ = tokio::time::timeout(Duration::from_secs(2), connection.close(200, "closing".into())).await;
        if !stop.is_cancelled() {
            tokio::time::sleep(backoff.pause()).await;
        }
    }
}

async fn open(
    connection: &lapin::Connection,
    broker: &Broker,
    queue: &str,
    tag: &str,
) -> Result<(Channel, Consumer), lapin::Error> {
    let channel = connection.create_channel().await?;
    topology::declare(&channel, broker.topology()).await?;
    channel.basic_qos(broker.prefetch, BasicQosOptions::default()).await?;
    let consumer =
        channel.basic_consume(queue.into(), tag.into(), BasicConsumeOptions::default(), FieldTable::default()).await?;
    Ok((channel, consumer))
}

async fn process_deliveries<H: BatchHandler>(
    channel: &Channel,
    mut consumer: Consumer,
    handler: &H,
    stop: &CancellationToken,
) {
    loop {
        let first = tokio::select! {
            next = consumer.next() => match next {
                Some(Ok(delivery)) => delivery,
                Some(Err(error)) => {
                    tracing::warn!(consumer = H::NAME, error = %error, "the broker stopped delivering");
                    return;
                }
                None => return,
            },
            () = stop.cancelled() => return,
        };
        // A batch consists of the messages that have already arrived. It does not wait for more, so a single message is
        // not delayed, and a backlog is processed in large batches.
        let mut batch = vec![first];
        while batch.len() < MAX_BATCH_MESSAGES {
            match futures::FutureExt::now_or_never(consumer.next()) {
                Some(Some(Ok(delivery))) => batch.push(delivery),
                _ => break,
            }
        }
        if !process_batch(channel, batch, handler, stop).await {
            return;
        }
    }
}

/// Handles a batch until it is stored, then acknowledges it. Returns false if the channel cannot be used any more.
async fn process_batch<H: BatchHandler>(
    channel: &Channel,
    batch: Vec<Delivery>,
    handler: &H,
    stop: &CancellationToken,
) -> bool {
    let Some(last) = batch.last().map(|delivery| delivery.delivery_tag) else { return true };
    if faults::is_sabotaged("ack_before_commit") {
        let _ = channel.basic_ack(last, BasicAckOptions { multiple: true }).await;
        // The broker has dropped the messages, so they are not retried either.
        return handler.handle_deliveries(channel, &batch).await.is_ok() || channel.status().connected();
    }
    let since = Instant::now();
    let done = match store(channel, &batch, handler, stop, since).await {
        BatchOutcome::Refused(_) if batch.len() > 1 => process_each(channel, &batch, handler, stop, since).await,
        BatchOutcome::Refused(error) => {
            log_dropped::<H>(&batch[0], &error);
            true
        }
        BatchOutcome::Done => true,
        BatchOutcome::Interrupted => false,
    };
    if !done {
        return false;
    }
    match channel.basic_ack(last, BasicAckOptions { multiple: true }).await {
        Ok(_) => true,
        Err(error) => {
            tracing::warn!(consumer = H::NAME, error = %error, "a batch is stored but could not be acknowledged; its redelivery changes nothing");
            false
        }
    }
}

/// Handles each delivery individually, and drops those that can never be stored. Returns false if one was not stored.
async fn process_each<H: BatchHandler>(
    channel: &Channel,
    batch: &[Delivery],
    handler: &H,
    stop: &CancellationToken,
    since: Instant,
) -> bool {
    for delivery in batch {
        match store(channel, std::slice::from_ref(delivery), handler, stop, since).await {
            BatchOutcome::Done => {}
            BatchOutcome::Refused(error) => log_dropped::<H>(delivery, &error),
            BatchOutcome::Interrupted => return false,
        }
    }
    true
}

fn log_dropped<H: BatchHandler>(delivery: &Delivery, error: &anyhow::Error) {
    tracing::error!(
        consumer = H::NAME,
        error = %chain(error.as_ref()),
        body.bytes = delivery.data.len(),
        body.start = body_excerpt(&delivery.data),
        "a worker's message can never be stored and is dropped"
    );
}

/// The outcome of storing deliveries.
enum BatchOutcome {
    /// They are stored.
    Done,
    /// They can never be stored.
    Refused(anyhow::Error),
    /// They could not be stored by this server in time.
    Interrupted,
}

/// Retries the batch until it succeeds, fails permanently, or has been held for longer than [`MAX_BATCH_HOLD`] since
/// `since`.
async fn store<H: BatchHandler>(
    channel: &Channel,
    batch: &[Delivery],
    handler: &H,
    stop: &CancellationToken,
    since: Instant,
) -> BatchOutcome {
    let mut backoff = ReconnectBackoff::default();
    let mut logged_at: Option<Instant> = None;
    loop {
        let error = match handler.handle_deliveries(channel, batch).await {
            Ok(()) => return BatchOutcome::Done,
            Err(error) if !H::is_retryable(&error) => return BatchOutcome::Refused(error),
            Err(error) => error,
        };
        let pause = backoff.pause();
        if logged_at.is_none_or(|at| at.elapsed() >= RETRY_LOG_INTERVAL) {
            logged_at = Some(Instant::now());
            tracing::warn!(
                consumer = H::NAME,
                batch.size = batch.len(),
                error = %chain(error.as_ref()),
                retry_ms = pause.as_millis() as u64,
                "a batch could not be stored and is retried; the broker keeps it"
            );
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.cancelled() => return BatchOutcome::Interrupted,
        }
        // Closing the channel returns the batch to the broker.
        if since.elapsed() >= MAX_BATCH_HOLD || !channel.status().connected() {
            return BatchOutcome::Interrupted;
        }
    }
}
