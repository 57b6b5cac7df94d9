//! Consuming what workers say, in batches.
//!
//! A batch is handed to a [`BatchHandler`], which commits it; only then is it acknowledged, all at once. If the handler fails
//! because a service is away, nothing is acknowledged and the batch is tried again: the broker keeps it for us. Not for
//! long, though, for perhaps it is only from here that the service cannot be reached: what is in our hand no other server
//! can hear, and it would take workers for silent that have spoken. A body that cannot be read is logged and acknowledged,
//! for it would never become readable.

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

/// The most messages in one batch. A worker's has some 400 reports at most, so that a full batch is stored in two or three
/// seconds, and all that may be in our hand in less than it takes to count as silent.
const MAX_BATCH_MESSAGES: usize = 250;

/// For how long a batch that cannot be stored is kept from other servers. With the ten seconds that a refused attempt takes
/// at most, shorter than [`MIN_HEARTBEAT_TIMEOUT`](crate::domain::lost_run::MIN_HEARTBEAT_TIMEOUT). An attempt that is not answered at all
/// is not cut short: a large batch on a slow disk would begin again for ever.
const MAX_BATCH_HOLD: Duration = Duration::from_secs(4);

/// How often it is said that a batch still cannot be stored.
const RETRY_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Does something with what a queue holds.
pub trait BatchHandler: Send + Sync + 'static {
    /// What it is called in logs.
    const NAME: &'static str;

    /// Handles bodies in order. `Err` means that not all was done and all must come again; what was done already changes
    /// nothing then.
    fn handle(&self, bodies: Vec<Vec<u8>>) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Whether the same bodies once more could fare better. If not, the one that is to blame is looked for and let go.
    fn is_retryable(_error: &anyhow::Error) -> bool {
        true
    }

    /// Handles whole deliveries in order, for those who must know what is written on the envelope; by itself it hands
    /// over the bodies alone. `Err` means the same.
    fn handle_deliveries(
        &self,
        _channel: &Channel,
        batch: &[Delivery],
    ) -> impl Future<Output = anyhow::Result<()>> + Send {
        self.handle(batch.iter().map(|delivery| delivery.data.clone()).collect())
    }
}

/// Consumes `queue` for ever, until `stop`.
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
                deliver(&channel, consumer, &handler, &stop).await;
                broker.note_consuming(&queue, false);
            }
            Err(error) => tracing::warn!(queue.name = queue, error = %error, "cannot consume"),
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

async fn deliver<H: BatchHandler>(channel: &Channel, mut consumer: Consumer, handler: &H, stop: &CancellationToken) {
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
        // Whatever has already arrived belongs to this batch; nothing is waited for, so a lone message is not delayed and
        // a flood is taken in large bites.
        let mut batch = vec![first];
        while batch.len() < MAX_BATCH_MESSAGES {
            match futures::FutureExt::now_or_never(consumer.next()) {
                Some(Some(Ok(delivery))) => batch.push(delivery),
                _ => break,
            }
        }
        if !settle(channel, batch, handler, stop).await {
            return;
        }
    }
}

/// Handles a batch until it is done, then acknowledges it. False when the channel is of no more use.
async fn settle<H: BatchHandler>(
    channel: &Channel,
    batch: Vec<Delivery>,
    handler: &H,
    stop: &CancellationToken,
) -> bool {
    let Some(last) = batch.last().map(|delivery| delivery.delivery_tag) else { return true };
    if faults::sabotaged("ack_before_commit") {
        let _ = channel.basic_ack(last, BasicAckOptions { multiple: true }).await;
        // Nobody has it any more, so it is not tried again either.
        return handler.handle_deliveries(channel, &batch).await.is_ok() || channel.status().connected();
    }
    let since = Instant::now();
    let done = match store(channel, &batch, handler, stop, since).await {
        BatchOutcome::Refused(_) if batch.len() > 1 => one_by_one(channel, &batch, handler, stop, since).await,
        BatchOutcome::Refused(error) => {
            let_go::<H>(&batch[0], &error);
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
            tracing::warn!(consumer = H::NAME, error = %error, "a batch is stored but could not be acknowledged; its copy will change nothing");
            false
        }
    }
}

/// Handles each delivery by itself, and lets go of those that can never be stored. False when one was not stored.
async fn one_by_one<H: BatchHandler>(
    channel: &Channel,
    batch: &[Delivery],
    handler: &H,
    stop: &CancellationToken,
    since: Instant,
) -> bool {
    for delivery in batch {
        match store(channel, std::slice::from_ref(delivery), handler, stop, since).await {
            BatchOutcome::Done => {}
            BatchOutcome::Refused(error) => let_go::<H>(delivery, &error),
            BatchOutcome::Interrupted => return false,
        }
    }
    true
}

fn let_go<H: BatchHandler>(delivery: &Delivery, error: &anyhow::Error) {
    tracing::error!(
        consumer = H::NAME,
        error = %chain(error.as_ref()),
        body.bytes = delivery.data.len(),
        body.start = body_excerpt(&delivery.data),
        "a worker sent something that can never be stored; it is let go"
    );
}

/// What became of deliveries.
enum BatchOutcome {
    Done,
    /// It never will be.
    Refused(anyhow::Error),
    /// Not here, not now.
    Interrupted,
}

/// Handles deliveries, again and again while that may help and the batch, in our hand `since` then, may be kept.
async fn store<H: BatchHandler>(
    channel: &Channel,
    batch: &[Delivery],
    handler: &H,
    stop: &CancellationToken,
    since: Instant,
) -> BatchOutcome {
    let mut backoff = ReconnectBackoff::default();
    let mut said: Option<Instant> = None;
    loop {
        let error = match handler.handle_deliveries(channel, batch).await {
            Ok(()) => return BatchOutcome::Done,
            Err(error) if !H::is_retryable(&error) => return BatchOutcome::Refused(error),
            Err(error) => error,
        };
        let pause = backoff.pause();
        if said.is_none_or(|said| said.elapsed() >= RETRY_LOG_INTERVAL) {
            said = Some(Instant::now());
            tracing::warn!(
                consumer = H::NAME,
                batch.size = batch.len(),
                error = %chain(error.as_ref()),
                retry_ms = pause.as_millis() as u64,
                "a batch could not be stored; the broker keeps it until it can"
            );
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.cancelled() => return BatchOutcome::Interrupted,
        }
        // Closing gives it back.
        if since.elapsed() >= MAX_BATCH_HOLD || !channel.status().connected() {
            return BatchOutcome::Interrupted;
        }
    }
}
