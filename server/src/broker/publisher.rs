//! Publishes job messages over one connection and one channel with publisher confirms, with many messages in flight.
//!
//! Every message is persistent and mandatory. A message counts as sent when the broker has confirmed it without
//! returning it: an unroutable message is confirmed *and* returned, and would be lost if only the confirm counted. Its
//! queue is declared again, and the message is sent again at once. Any other message stays unsent in PostgreSQL and is
//! published again later.
//!
//! A message has one run or, as a bundle, several. What is said about it holds for each of them.
//!
//! A critical run is sent to the queue of critical runs if its job type has one by the plan. If that queue is gone, the message
//! comes back and is sent to the queue of the job type at once.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{
    FutureExt,
    future::{BoxFuture, join_all},
};
use lapin::{BasicProperties, Channel, Confirmation, Event, options::BasicPublishOptions};
use milvaion_protocol::{
    id::OccurrenceId,
    message::bundle_body,
    topology::{BUNDLE_TYPE, Topology},
};
use milvaion_telemetry::SPANS;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

pub use super::prepared_message::OutgoingMessage;
use super::{
    Broker,
    job_queues::{DeclaringChannel, JobQueues},
    link::{ConfirmChannel, Link},
    prepared_message::PreparedMessage,
    topology::QueueKey,
};
use crate::{
    domain::{
        bundles::{self, BundleSizes, CriticalTypes, SendPlan},
        message::ConfirmedMessage,
    },
    faults,
};

/// The timeout for a confirm.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);
/// The most unsent messages that are remembered. The republisher finds any others by their age.
pub const MAX_UNSENT: usize = 10_000;
/// AMQP's delivery mode for messages that survive a restart of the broker.
pub(super) const PERSISTENT_DELIVERY_MODE: u8 = 2;

/// An open connection with the channel for job messages.
#[derive(Clone, Debug)]
struct OpenChannel {
    channel: Channel,
    declaring: Arc<DeclaringChannel>,
}

/// What became of messages that were sent.
#[derive(Debug, Default)]
struct SendOutcome<'a> {
    confirmed: Vec<ConfirmedMessage>,
    /// The messages for which no queue is bound. Each is sent to the queue of its job type.
    unroutable: Vec<&'a OutgoingMessage>,
}

/// The publisher of job messages. Clones share its channel.
#[derive(Clone, Debug)]
pub struct Publisher {
    names: Topology,
    channel: watch::Receiver<Option<OpenChannel>>,
    broken: Arc<Notify>,
    queues: JobQueues,
    /// Occurrences whose message was not confirmed and is no longer in flight.
    unsent: Arc<Mutex<HashSet<OccurrenceId>>>,
}

impl Publisher {
    /// Creates the publisher, and the loop that keeps its channel open until its token is cancelled. The loop can be
    /// started again after it has ended.
    pub fn new(broker: &Broker) -> (Self, impl Fn(CancellationToken) -> BoxFuture<'static, ()> + Send + Sync + use<>) {
        let (sender, channel) = watch::channel(None);
        let publisher = Self {
            names: broker.topology().clone(),
            channel,
            broken: Arc::default(),
            queues: JobQueues::new(broker.topology().clone()),
            unsent: Arc::default(),
        };
        let (broker, broken) = (broker.clone(), publisher.broken.clone());
        let keep_open = move |stop| keep_open(broker.clone(), sender.clone(), broken.clone(), stop).boxed();
        (publisher, keep_open)
    }

    /// Returns true if messages can be published now.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.channel.borrow().is_some()
    }

    /// Waits until a channel is open.
    pub async fn wait_until_up(&self) {
        // The task that keeps the channel open ends only when the server stops.
        let _ = self.channel.clone().wait_for(Option::is_some).await;
    }

    /// Waits until no channel is open.
    pub async fn wait_until_down(&self) {
        let _ = self.channel.clone().wait_for(Option::is_none).await;
    }

    /// Remembers occurrences whose messages were not published, up to [`MAX_UNSENT`].
    pub fn note_unsent(&self, occurrences: impl IntoIterator<Item = OccurrenceId>) {
        if let Ok(mut unsent) = self.unsent.lock() {
            let capacity = MAX_UNSENT.saturating_sub(unsent.len());
            unsent.extend(occurrences.into_iter().take(capacity));
        }
    }

    /// Removes and returns the occurrences remembered since the last call.
    #[must_use]
    pub fn take_unsent(&self) -> Vec<OccurrenceId> {
        self.unsent.lock().map(|mut unsent| unsent.drain().collect()).unwrap_or_default()
    }

    /// Returns the worker ids and job types whose queues the broker refuses, and to which nothing is sent now.
    #[must_use]
    pub fn parked(&self) -> Vec<QueueKey> {
        self.queues.parked.list()
    }

    /// Declares the queue of a worker's job type. Without a channel it does nothing, because the queue is in any case
    /// declared before the first message to it.
    pub async fn ensure_queue(&self, worker_id: &str, job_type: &str) {
        let Some(open) = self.channel.borrow().clone() else { return };
        self.declare(&open, [(worker_id.to_owned(), job_type.to_owned())]).await;
    }

    async fn declare(&self, open: &OpenChannel, keys: impl IntoIterator<Item = QueueKey>) {
        if let Err(error) = self.queues.ensure(&open.declaring, keys).await {
            tracing::warn!(error = %error, "queues of job types cannot be declared: {error}");
            self.broken.notify_one();
        }
    }

    /// Publishes messages, all in flight at once, and returns those that the broker confirmed. The others are
    /// [remembered as unsent](Self::note_unsent).
    pub async fn publish(&self, messages: &[OutgoingMessage], plan: &SendPlan<'_>) -> Vec<ConfirmedMessage> {
        let span = tracing::info_span!(target: SPANS, "publish batch", messages = messages.len());
        let sent = self.try_to_publish(messages, plan).instrument(span).await;
        if sent.len() < messages.len() {
            let confirmed: HashSet<OccurrenceId> = sent.iter().map(|message| message.id).collect();
            self.note_unsent(messages.iter().map(|out| out.message.occurrence_id).filter(|id| !confirmed.contains(id)));
        }
        sent
    }

    async fn try_to_publish(&self, messages: &[OutgoingMessage], plan: &SendPlan<'_>) -> Vec<ConfirmedMessage> {
        let Some(open) = self.channel.borrow().clone() else { return Vec::new() };
        let parked = &self.queues.parked_critical;
        let is_open =
            |(worker_id, job_type): (&str, &str)| !parked.contains(&(worker_id.to_owned(), job_type.to_owned()));
        let critical: CriticalTypes<'_> = plan.critical.iter().copied().filter(|key| is_open(*key)).collect();
        let sent = self.declare_and_send(&open, messages.iter().collect(), &plan.sizes, &critical).await;
        let SendOutcome { mut confirmed, unroutable } = sent;
        if !unroutable.is_empty() {
            log_unroutable(&unroutable, &critical);
            let again = self.declare_and_send(&open, unroutable, &plan.sizes, &CriticalTypes::new()).await;
            confirmed.extend(again.confirmed);
            if let Some(first) = again.unroutable.first() {
                tracing::warn!(
                    occurrence.first = %first.message.occurrence_id,
                    messages = again.unroutable.len(),
                    "{} messages were not confirmed and are published again: no queue is bound for them",
                    again.unroutable.len()
                );
            }
        }
        confirmed
    }

    /// Sends messages to those of their queues that the broker accepts, and waits for the confirms. The critical runs of the
    /// job types in `critical` are sent to the queues of their own.
    async fn declare_and_send<'a>(
        &self,
        open: &OpenChannel,
        mut messages: Vec<&'a OutgoingMessage>,
        sizes: &BundleSizes<'_>,
        critical: &CriticalTypes<'_>,
    ) -> SendOutcome<'a> {
        let keys: HashSet<QueueKey> =
            messages.iter().filter(|out| !out.is_in(critical)).map(|out| out.queue_key()).collect();
        self.declare(open, keys).await;
        messages.retain(|out| out.is_in(critical) || self.queues.is_open(&out.queue_key()));
        faults::crash_point("publisher.before_send");
        let mut outcome = SendOutcome { confirmed: Vec::with_capacity(messages.len()), unroutable: Vec::new() };
        // Messages are sent one after another, so that they keep the order of the batch, and confirmed together.
        let mut waiting = Vec::with_capacity(messages.len());
        let exchange = self.names.jobs_exchange();
        for bundle in prepare(messages, sizes, &exchange) {
            match self.send(&open.channel, &bundle, bundle[0].out.is_in(critical)).await {
                Ok(confirm) => waiting.push((bundle, confirm)),
                Err(error) => {
                    let first = bundle[0].out.message.occurrence_id;
                    tracing::warn!(occurrence.id = %first, error = %error, "the message of occurrence {first} could not be sent");
                    bundle.into_iter().for_each(|message| message.end(Some("the message could not be sent")));
                    self.broken.notify_one();
                    break;
                }
            }
        }
        if !waiting.is_empty() {
            faults::crash_point("publisher.after_send");
        }
        if faults::is_sabotaged("skip_publisher_confirms") {
            outcome.confirmed = waiting
                .iter()
                .flat_map(|(bundle, _)| bundle)
                .map(|one| confirmed_message(one.out, one.out.is_in(critical)))
                .collect();
            return outcome;
        }
        let confirmations = join_all(
            waiting
                .into_iter()
                .map(async |(bundle, confirm)| (bundle, tokio::time::timeout(CONFIRM_TIMEOUT, confirm).await)),
        )
        .await;
        // Grouped by reason, so that a failure of a whole batch is one log line instead of five hundred.
        let mut refused: BTreeMap<String, Vec<OccurrenceId>> = BTreeMap::new();
        for (bundle, confirmation) in confirmations {
            let (key, is_critical) = (bundle[0].out.queue_key(), bundle[0].out.is_in(critical));
            let parked = if is_critical { &self.queues.parked_critical } else { &self.queues.parked };
            let reason = match confirmation {
                Ok(Ok(Confirmation::Ack(None))) => {
                    parked.release(&key.0, &key.1);
                    for message in bundle {
                        outcome.confirmed.push(confirmed_message(message.out, is_critical));
                        message.end(None);
                    }
                    continue;
                }
                Ok(Ok(Confirmation::Ack(Some(_)))) => {
                    if !is_critical {
                        self.queues.forget(&key);
                    }
                    for message in bundle {
                        outcome.unroutable.push(message.out);
                        message.end(Some("no queue is bound for the message"));
                    }
                    continue;
                }
                Ok(Ok(Confirmation::Nack(_))) => {
                    let (queue, consequence) = if is_critical {
                        (self.names.critical_queue(&key.0, &key.1), "are sent to the queue of their job type")
                    } else {
                        (self.names.job_queue(&key.0, &key.1), "wait")
                    };
                    parked.park(key, &queue, consequence, "it rejects messages, for example because it is full");
                    "the broker refused the message".to_owned()
                }
                Ok(Ok(Confirmation::NotRequested)) => "publisher confirms are off".to_owned(),
                Ok(Err(error)) => {
                    self.broken.notify_one();
                    error.to_string()
                }
                Err(_) => {
                    self.broken.notify_one();
                    format!("no confirm within {} s", CONFIRM_TIMEOUT.as_secs())
                }
            };
            let refused = refused.entry(reason.clone()).or_default();
            for message in bundle {
                refused.push(message.out.message.occurrence_id);
                message.end(Some(&reason));
            }
        }
        for (reason, occurrences) in refused {
            tracing::warn!(
                occurrence.first = %occurrences[0],
                messages = occurrences.len(),
                error = reason,
                "{} messages were not confirmed and are published again: {reason}",
                occurrences.len()
            );
        }
        if !outcome.confirmed.is_empty() {
            faults::crash_point("publisher.after_confirm");
        }
        outcome
    }

    /// Sends a message with the runs of a bundle, or with a single one.
    async fn send(
        &self,
        channel: &Channel,
        bundle: &[PreparedMessage<'_>],
        is_critical: bool,
    ) -> Result<lapin::PublisherConfirm, lapin::Error> {
        let OutgoingMessage { worker_id, message, .. } = bundle[0].out;
        let id = message.occurrence_id.to_string();
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_delivery_mode(PERSISTENT_DELIVERY_MODE)
            .with_priority(message.priority)
            .with_message_id(id.as_str().into())
            .with_timestamp(message.timestamp.timestamp().unsigned_abs());
        let (properties, body) = match bundle {
            [single] => {
                let properties = properties.with_correlation_id(id.as_str().into()).with_headers(single.headers());
                (properties, Cow::Borrowed(&single.body))
            }
            several => {
                let body = bundle_body(several.iter().map(|message| message.body.as_slice()));
                (properties.with_type(BUNDLE_TYPE.into()), Cow::Owned(body))
            }
        };
        let mandatory = !faults::is_sabotaged("skip_mandatory_flag");
        let options = BasicPublishOptions { mandatory, ..BasicPublishOptions::default() };
        let key = if is_critical {
            Topology::critical_routing_key(worker_id, &message.job_type, message.occurrence_id)
        } else {
            Topology::routing_key(worker_id, &message.job_type, message.occurrence_id)
        };
        channel.basic_publish(self.names.jobs_exchange().into(), key.into(), options, &body, properties).await
    }
}

/// Divides messages into those that share a bundle and those that are sent alone.
fn prepare<'a>(
    messages: Vec<&'a OutgoingMessage>,
    sizes: &BundleSizes<'_>,
    exchange: &str,
) -> Vec<Vec<PreparedMessage<'a>>> {
    let groups = bundles::group(messages, |out| {
        let key = out.bundle_key()?;
        Some((key, *sizes.get(&key)?))
    });
    let prepared = groups.into_iter().flat_map(|group| {
        let group: Vec<_> = group.into_iter().map(|out| PreparedMessage::new(out, exchange)).collect();
        bundles::split_by_bytes(group, |message| message.body.len())
    });
    prepared.collect()
}

/// Logs that messages came back because their queues are missing.
fn log_unroutable(unroutable: &[&OutgoingMessage], critical: &CriticalTypes<'_>) {
    let (left, missing): (Vec<&OutgoingMessage>, Vec<&OutgoingMessage>) =
        unroutable.iter().partition(|out| out.is_in(critical));
    if let Some(first) = left.first() {
        tracing::info!(
            occurrence.first = %first.message.occurrence_id,
            messages = left.len(),
            "the queues of critical runs of {} messages are missing at the broker; they are sent to those of their job types",
            left.len()
        );
    }
    if let Some(first) = missing.first() {
        tracing::info!(
            occurrence.first = %first.message.occurrence_id,
            messages = missing.len(),
            "the queues of {} messages are missing at the broker, and are declared again",
            missing.len()
        );
    }
}

fn confirmed_message(OutgoingMessage { message, .. }: &OutgoingMessage, is_critical: bool) -> ConfirmedMessage {
    let attempt = i32::try_from(message.attempt).unwrap_or(i32::MAX);
    ConfirmedMessage { id: message.occurrence_id, attempt, is_critical }
}

/// Keeps the connection and its channel open until `stop`.
async fn keep_open(
    broker: Broker,
    sender: watch::Sender<Option<OpenChannel>>,
    broken: Arc<Notify>,
    stop: CancellationToken,
) {
    let mut link = Link::new(&broker, "milvaion server publish", &stop);
    while let Some(connection) = link.connect().await {
        let log = |error: lapin::Error| {
            tracing::warn!(error = %error, "the publishing channel cannot be prepared; check for exchanges or queues declared by another version");
        };
        let opening = ConfirmChannel::open(&connection, broker.topology(), log_block);
        let Some(confirm) = link.open(opening, log).await else { continue };
        let declaring = Arc::new(DeclaringChannel::new(connection.clone()));
        let open = OpenChannel { channel: confirm.channel.clone(), declaring };
        // A notification about the previous channel does not apply to this one.
        let _ = broken.notified().now_or_never();
        let lost = async {
            loop {
                broken.notified().await;
                // Confirms that are late because of a block are no fault of the channel.
                let is_blocked = sender.borrow().is_none();
                if !is_blocked {
                    return;
                }
            }
        };
        confirm.provide(open, &sender, lost, &stop).await;
    }
}

/// Logs that the broker accepts no messages, because it is short of memory or disk, and that it accepts them again.
fn log_block(event: &Event) {
    match event {
        Event::ConnectionBlocked(reason) => {
            tracing::warn!(reason, "RabbitMQ blocks publishing ({reason}); occurrences wait in PostgreSQL");
        }
        Event::ConnectionUnblocked => tracing::info!("RabbitMQ accepts messages again"),
        _ => {}
    }
}
