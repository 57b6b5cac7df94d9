//! Consumes the messages of workers in batches.
//!
//! A batch is passed to a [`BatchHandler`], which commits it. Only then is the whole batch acknowledged, at once. If
//! the handler fails because a service is down, nothing is acknowledged and the batch is retried: the broker keeps it.
//! The retry is limited in time, because the service may be unreachable from this server only. Meanwhile the other
//! servers do not receive the messages held here, and would count runs as lost although they were reported. A body that
//! cannot be read is logged and acknowledged, because it would never become readable.
//!
//! If the handler panics on a batch, its messages are handled one by one. A message on which it panics three times becomes
//! a dead letter, so that one message stops neither the others nor the server. The same holds for a message in which the
//! process ends; a [`DeliveryLog`] counts these, because nothing in this process can.
//!
//! An [echo] among the messages is answered once everything that was delivered before it is stored.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt, future::BoxFuture};
use lapin::{
    BasicProperties, Consumer,
    options::{BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions},
    types::{AMQPValue, FieldTable},
};
pub use lapin::{Channel, message::Delivery};
use milvaion_protocol::backoff::Backoff;
use milvaion_telemetry::SPANS;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{
    Broker,
    echo::{self, Echo},
    link::Link,
    publisher::PERSISTENT_DELIVERY_MODE,
    topology,
};
use crate::{
    error::{body_excerpt, chain, panic_text},
    faults,
};

/// The most messages in one batch. A worker's message has at most some 400 reports, so that a full batch is stored in
/// two or three seconds. The whole prefetch is then processed within the heartbeat timeout.
const MAX_BATCH_MESSAGES: usize = 250;

/// The longest time for which a batch that cannot be stored is kept from other servers. Together with the nine seconds of
/// an attempt that waits for a connection and gets no answer ([`PoolUse::Reports`](crate::store::PoolUse::Reports)), it is
/// shorter than [`MIN_HEARTBEAT_TIMEOUT`](crate::domain::lost_run::MIN_HEARTBEAT_TIMEOUT). A large batch on a slow disk
/// consists of many statements that are answered; it is cut short after [`ATTEMPT_LIMIT`] only, because it would otherwise
/// be restarted forever.
const MAX_BATCH_HOLD: Duration = Duration::from_secs(4);

/// The time between two log lines about a batch that still cannot be stored.
const RETRY_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The panics on one message after which it becomes a dead letter.
const MAX_PANICS: u32 = 3;

/// The ends of a process in a redelivered message after which it becomes a dead letter. The first delivery is not
/// counted, because most messages have only one.
const MAX_LOST_PROCESSES: u32 = 4;

/// The longest time for an attempt to store a batch. PostgreSQL cancels a long statement much earlier, so the limit is met
/// only if PostgreSQL is unreachable and the network does not say so.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(60);

/// The header of a dead letter that a consumer has set aside: its name and the reason.
pub const HEADER_REASON: &str = "x-server-reason";

/// Records what happens to deliveries beside their handling.
pub trait DeliveryLog: Send + Sync + 'static {
    /// Records a panic of a handler.
    fn note_panic(&self, consumer: &'static str, reason: &str);

    /// Returns true if a process has ended while it handled one of these redelivered messages again.
    fn is_suspected<'a>(&'a self, queue: &'a str, messages: &'a [Delivery]) -> BoxFuture<'a, bool>;

    /// Records that these redelivered messages are being handled. Returns the largest number of such attempts at one of
    /// them in which the process has ended, this one included; 0 if they cannot be counted.
    fn begin<'a>(&'a self, queue: &'a str, messages: &'a [Delivery]) -> BoxFuture<'a, u32>;

    /// Records that the messages were handled or given back.
    fn end<'a>(&'a self, queue: &'a str, messages: &'a [Delivery]) -> BoxFuture<'a, ()>;
}

/// The handler of the messages of one queue.
pub trait BatchHandler: Send + Sync + 'static {
    /// The handler's name in logs.
    const NAME: &'static str;
    /// True if a message that can never be stored becomes a dead letter, and false if it is logged and dropped.
    const KEEPS_REFUSED: bool = false;

    /// Handles bodies in order. After an error the same bodies are handled again. Bodies that were stored before must
    /// then change nothing.
    fn handle(&self, bodies: Vec<Vec<u8>>) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Returns true if a retry with the same bodies may succeed. Otherwise the consumer finds the offending body and
    /// drops it.
    fn is_retryable(_error: &anyhow::Error) -> bool {
        true
    }

    /// Checks that bodies could be stored now; called for an echo that arrives without other messages.
    ///
    /// # Errors
    ///
    /// Returns an error if they could not.
    fn check(&self) -> impl Future<Output = anyhow::Result<()>> + Send {
        async { Ok(()) }
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

/// Consumes `queue` until `stop`, and answers the echoes in it over `echo`.
pub async fn consume<H: BatchHandler>(
    broker: Broker,
    queue: String,
    echo: Echo,
    handler: Arc<H>,
    log: Arc<dyn DeliveryLog>,
    stop: CancellationToken,
) {
    broker.note_consuming(&queue, false);
    let mut link = Link::new(&broker, H::NAME, &stop);
    while let Some(connection) = link.connect().await {
        let log_refusal = |error: lapin::Error| {
            tracing::warn!(queue.name = queue, error = %error, "queue {queue} cannot be consumed and is retried");
        };
        let opening = open(&connection, &broker, &queue, H::NAME);
        let Some((channel, consumer)) = link.open(opening, log_refusal).await else { continue };
        broker.note_consuming(&queue, true);
        let deliveries = DeliveryLoop {
            broker: &broker,
            queue: &queue,
            echo: &echo,
            channel,
            handler: &*handler,
            log: &*log,
            stop: &stop,
        };
        deliveries.run(consumer).await;
        broker.note_consuming(&queue, false);
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

/// The outcome of storing deliveries.
enum BatchOutcome {
    /// They are stored.
    Done,
    /// At least one of them can never be stored.
    Refused(anyhow::Error),
    /// The handler panicked on them, with this text.
    Panicked(String),
    /// They could not be stored by this server in time.
    Interrupted,
}

/// The deliveries of one channel.
struct DeliveryLoop<'a, H> {
    broker: &'a Broker,
    queue: &'a str,
    echo: &'a Echo,
    channel: Channel,
    handler: &'a H,
    log: &'a dyn DeliveryLog,
    stop: &'a CancellationToken,
}

impl<H: BatchHandler> DeliveryLoop<'_, H> {
    /// Processes deliveries until the channel cannot be used any more.
    async fn run(&self, mut consumer: Consumer) {
        // The first message of the next batch.
        let mut held: Option<Delivery> = None;
        loop {
            let first = tokio::select! {
                next = next(&mut held, &mut consumer) => match next {
                    Some(Ok(delivery)) => delivery,
                    Some(Err(error)) => {
                        tracing::warn!(consumer = H::NAME, error = %error, "the broker stopped delivering");
                        return;
                    }
                    None => return,
                },
                () = self.stop.cancelled() => return,
            };
            // A batch consists of the messages that have already arrived. It does not wait for more, so a single message
            // is not delayed, and a backlog is processed in large batches.
            let is_redelivered = first.redelivered;
            let mut batch = vec![first];
            while batch.len() < MAX_BATCH_MESSAGES {
                match consumer.next().now_or_never() {
                    Some(Some(Ok(delivery))) if delivery.redelivered == is_redelivered => batch.push(delivery),
                    Some(Some(Ok(delivery))) => {
                        held = Some(delivery);
                        break;
                    }
                    _ => break,
                }
            }
            let last = batch.last().map(|delivery| delivery.delivery_tag);
            let (echoes, batch): (Vec<_>, Vec<_>) = batch.into_iter().partition(echo::is_echo);
            let can_continue = match is_redelivered && !batch.is_empty() {
                true => self.process_redelivered(&batch).await,
                false => self.process_batch(&batch).await,
            };
            if !can_continue || !self.answer(&echoes, batch.is_empty(), last).await {
                return;
            }
        }
    }

    /// Answers echoes after the messages of their batch are stored. `last` is the last delivery of the batch; if an echo
    /// is the last one, it is not acknowledged yet. Returns false if the channel cannot be used any more.
    async fn answer(&self, echoes: &[Delivery], is_alone: bool, last: Option<u64>) -> bool {
        let Some(newest) = echoes.last() else { return true };
        if is_alone && let Err(error) = self.handler.check().await {
            // Without an answer, no run counts as lost.
            tracing::debug!(consumer = H::NAME, error = %chain(error.as_ref()), "an echo is not answered: nothing can be stored");
        } else {
            for echo in echoes {
                self.echo.answer(echo).await;
            }
        }
        last != Some(newest.delivery_tag) || self.acknowledge(newest).await
    }

    /// Handles messages that were delivered before. The process that received them may have ended because of one, by an
    /// abort or for lack of memory, and would take one server after the other with it. They are therefore counted while
    /// they are handled. After a second such end they are handled one by one, and one that has ended five processes
    /// becomes a dead letter. Returns false if the channel cannot be used any more.
    async fn process_redelivered(&self, batch: &[Delivery]) -> bool {
        let size = if self.log.is_suspected(self.queue, batch).await { 1 } else { batch.len() };
        for part in batch.chunks(size) {
            if self.stop.is_cancelled() {
                return false;
            }
            let attempts = self.log.begin(self.queue, part).await;
            let can_continue = if size == 1 && attempts > MAX_LOST_PROCESSES {
                let text = "the process of the server ended each time that it handled the message; this is a bug of the \
                            server";
                self.set_aside(&part[0], text).await && self.acknowledge(&part[0]).await
            } else {
                self.process_batch(part).await
            };
            self.log.end(self.queue, part).await;
            if !can_continue {
                return false;
            }
        }
        true
    }

    /// Handles a batch until it is stored, then acknowledges it. Returns false if the channel cannot be used any more.
    async fn process_batch(&self, batch: &[Delivery]) -> bool {
        let Some(last) = batch.last() else { return true };
        let is_acknowledged = faults::is_sabotaged("ack_before_commit") && self.acknowledge(last).await;
        match self.store(batch, Instant::now()).await {
            BatchOutcome::Refused(_) | BatchOutcome::Panicked(_) if batch.len() > 1 => self.process_each(batch).await,
            outcome => self.settle(last, outcome).await && (is_acknowledged || self.acknowledge(last).await),
        }
    }

    /// Acknowledges a message and those before it. Returns false if the channel cannot be used any more.
    async fn acknowledge(&self, last: &Delivery) -> bool {
        match self.channel.basic_ack(last.delivery_tag, BasicAckOptions { multiple: true }).await {
            Ok(_) => true,
            Err(error) => {
                tracing::warn!(consumer = H::NAME, error = %error, "a batch is stored but could not be acknowledged; its redelivery changes nothing");
                false
            }
        }
    }

    /// Handles and acknowledges each delivery individually. Returns false if one was not settled.
    async fn process_each(&self, batch: &[Delivery]) -> bool {
        for delivery in batch {
            if self.stop.is_cancelled() {
                return false;
            }
            let outcome = self.store(std::slice::from_ref(delivery), Instant::now()).await;
            if !self.settle(delivery, outcome).await || !self.acknowledge(delivery).await {
                return false;
            }
        }
        true
    }

    /// Sets a delivery aside that was not stored. Returns false if the delivery must not be acknowledged.
    async fn settle(&self, delivery: &Delivery, outcome: BatchOutcome) -> bool {
        match outcome {
            BatchOutcome::Done => true,
            BatchOutcome::Refused(error) if H::KEEPS_REFUSED => {
                self.set_aside(delivery, &format!("it can never be stored: {}", chain(error.as_ref()))).await
            }
            BatchOutcome::Refused(error) => {
                tracing::error!(
                    consumer = H::NAME,
                    error = %chain(error.as_ref()),
                    body.bytes = delivery.data.len(),
                    body.start = body_excerpt(&delivery.data),
                    "a worker's message can never be stored and is dropped"
                );
                true
            }
            BatchOutcome::Panicked(panic) => {
                let reason =
                    format!("the server panicked {MAX_PANICS} times on it: {panic}; this is a bug of the server");
                self.set_aside(delivery, &reason).await
            }
            BatchOutcome::Interrupted => false,
        }
    }

    /// Makes a dead letter of a message that the server cannot handle. Returns false if it could not be published.
    async fn set_aside(&self, delivery: &Delivery, reason: &str) -> bool {
        let names = self.broker.topology();
        // The consumer of the dead letters cannot hand a message to itself.
        let is_dead_letter = delivery.exchange.as_str() == names.dead_letter_exchange();
        tracing::error!(
            consumer = H::NAME,
            reason,
            body.bytes = delivery.data.len(),
            body.start = body_excerpt(&delivery.data),
            "a message cannot be handled and {}",
            if is_dead_letter { "is dropped" } else { "becomes a dead letter" }
        );
        if is_dead_letter {
            return true;
        }
        let mut headers = FieldTable::default();
        headers.insert(HEADER_REASON.into(), AMQPValue::LongString(format!("{}: {reason}", H::NAME).into()));
        // The headers and the other properties are the worker's. Some would make the broker refuse or drop the message, or
        // have it fail a run.
        let properties = BasicProperties::default().with_delivery_mode(PERSISTENT_DELIVERY_MODE).with_headers(headers);
        // The broker handles the messages of a channel in order: this one before the acknowledgement of the original.
        let published = self.channel.basic_publish(
            names.dead_letter_exchange().into(),
            delivery.routing_key.clone(),
            BasicPublishOptions::default(),
            &delivery.data,
            properties,
        );
        published.await.is_ok()
    }

    /// Retries the batch until it succeeds, fails permanently, or has been held for longer than [`MAX_BATCH_HOLD`] since
    /// `since`. A panic ends the retries of a batch, and of a single message for the third time.
    async fn store(&self, batch: &[Delivery], since: Instant) -> BatchOutcome {
        let mut backoff = Backoff::default();
        let mut logged_at: Option<Instant> = None;
        let mut panics = 0;
        loop {
            // The handlers keep no state between two batches that a panic could leave half changed.
            let handled =
                AssertUnwindSafe(async { self.handler.handle_deliveries(&self.channel, batch).await }).catch_unwind();
            let span = tracing::info_span!(
                target: SPANS, "ingest", otel.name = format_args!("ingest {}", H::NAME), batch.size = batch.len()
            );
            let error = match tokio::time::timeout(ATTEMPT_LIMIT, handled.instrument(span)).await {
                Ok(Ok(Ok(()))) => return BatchOutcome::Done,
                Ok(Ok(Err(error))) if !H::is_retryable(&error) => return BatchOutcome::Refused(error),
                Ok(Ok(Err(error))) => error,
                Err(_) => anyhow::anyhow!("PostgreSQL did not respond within {} s", ATTEMPT_LIMIT.as_secs()),
                Ok(Err(panic)) => {
                    let text = panic_text(panic.as_ref()).to_owned();
                    self.log.note_panic(H::NAME, &format!("it panicked on a message: {text}"));
                    panics += 1;
                    if batch.len() > 1 || panics == MAX_PANICS {
                        return BatchOutcome::Panicked(text);
                    }
                    anyhow::anyhow!("the server panicked: {text}")
                }
            };
            let pause = backoff.next_delay(rand::random());
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
                () = self.stop.cancelled() => return BatchOutcome::Interrupted,
            }
            // Closing the channel returns the batch to the broker.
            if since.elapsed() >= MAX_BATCH_HOLD || !self.channel.status().connected() {
                return BatchOutcome::Interrupted;
            }
        }
    }
}

/// Returns the held message, or waits for the next one.
async fn next(held: &mut Option<Delivery>, consumer: &mut Consumer) -> Option<Result<Delivery, lapin::Error>> {
    match held.take() {
        Some(delivery) => Some(Ok(delivery)),
        None => consumer.next().await,
    }
}
