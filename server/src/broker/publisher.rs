//! Publishes job messages over one connection and one channel with publisher confirms, with many messages in flight.
//!
//! Every message is persistent and mandatory. A message counts as sent when the broker has confirmed it without
//! returning it: an unroutable message is confirmed *and* returned, and would be lost if only the confirm counted. Any
//! other message stays unsent in PostgreSQL and is published again later.
//!
//! A job queue that the broker refuses must not stop the others. Job queues are therefore declared on channels of their
//! own, since a refusal closes its channel, and a refused queue is parked for a while.

use std::{
    collections::{BTreeMap, HashMap, HashSet, hash_map::Entry},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, join_all},
};
use lapin::{
    BasicProperties, Channel, Confirmation, ErrorKind,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    protocol::AMQPErrorKind,
    types::{AMQPValue, FieldTable},
};
use milvaion_protocol::{
    id::OccurrenceId,
    message::JobMessage,
    topology::{HEADER_CORRELATION_ID, HEADER_MAX_RETRIES, HEADER_REPUBLISH, HEADER_RETRY_COUNT, Topology},
};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{Broker, parked_queues::ParkedQueues, topology};
use crate::{
    backoff::ReconnectBackoff,
    faults::{
        self,
        seams::{SEAMS, Seams},
    },
};

/// The timeout for a confirm.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);
/// The most unsent messages that are remembered. The republisher finds any others by their age.
pub const MAX_UNSENT: usize = 10_000;
/// AMQP's delivery mode for messages that survive a restart of the broker.
pub(super) const PERSISTENT_DELIVERY_MODE: u8 = 2;

/// A message that the broker has confirmed: its occurrence and its attempt. If the occurrence is in a later attempt by
/// now, that attempt has a message of its own.
pub type ConfirmedMessage = (OccurrenceId, i32);

/// A job message with its destination.
#[derive(Clone, Debug)]
pub struct OutgoingMessage {
    /// The worker it is addressed to.
    pub worker_id: String,
    /// The message.
    pub message: JobMessage,
    /// True if the message may have been published and delivered before.
    pub republished: bool,
}

/// An open connection with the channel for job messages.
#[derive(Clone, Debug)]
struct OpenChannel {
    connection: Arc<lapin::Connection>,
    channel: Channel,
    /// The channel for declarations of job queues. A refusal closes it, and the next declaration opens another.
    declaring: Arc<tokio::sync::Mutex<Option<Channel>>>,
}

/// The publisher of job messages. Clones share its channel.
#[derive(Clone, Debug)]
pub struct Publisher {
    names: Topology,
    channel: watch::Receiver<Option<OpenChannel>>,
    broken: Arc<Notify>,
    /// The queues declared since the current channel was opened.
    declared: Arc<Mutex<HashSet<(String, String)>>>,
    /// Occurrences whose message was not confirmed and is no longer in flight.
    unsent: Arc<Mutex<HashSet<OccurrenceId>>>,
    parked: ParkedQueues,
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
            declared: Arc::default(),
            unsent: Arc::default(),
            parked: ParkedQueues::default(),
        };
        let (broker, broken, declared) = (broker.clone(), publisher.broken.clone(), publisher.declared.clone());
        let keep_open =
            move |stop| keep_open(broker.clone(), sender.clone(), broken.clone(), declared.clone(), stop).boxed();
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
    pub fn parked(&self) -> Vec<(String, String)> {
        self.parked.list()
    }

    /// Declares the queue of a worker's job type. Without a channel it does nothing, because the queue is in any case
    /// declared before the first message to it.
    pub async fn ensure_queue(&self, worker_id: &str, job_type: &str) {
        let Some(open) = self.channel.borrow().clone() else { return };
        self.declare(&open, worker_id, job_type).await;
    }

    /// Declares a queue unless that was done before. Returns false if nothing can be sent to it.
    async fn declare(&self, open: &OpenChannel, worker_id: &str, job_type: &str) -> bool {
        let key = (worker_id.to_owned(), job_type.to_owned());
        if self.parked.contains(&key) {
            return false;
        }
        if self.declared.lock().is_ok_and(|declared| declared.contains(&key)) {
            return true;
        }
        match self.try_to_declare(open, worker_id, job_type).await {
            Ok(()) => {
                if let Ok(mut declared) = self.declared.lock() {
                    declared.insert(key);
                }
                true
            }
            Err(error) if is_refusal(&error) => {
                self.parked.park(key, &self.names.job_queue(worker_id, job_type), &error.to_string());
                false
            }
            Err(error) => {
                tracing::warn!(worker.id = worker_id, job.type = job_type, error = %error, "the queue of job type {job_type} of worker {worker_id} cannot be declared");
                self.broken.notify_one();
                false
            }
        }
    }

    async fn try_to_declare(&self, open: &OpenChannel, worker_id: &str, job_type: &str) -> Result<(), lapin::Error> {
        let mut declaring = open.declaring.lock().await;
        let channel = match declaring.take() {
            Some(channel) => channel,
            None => open.connection.create_channel().await?,
        };
        topology::declare_job_queue(&channel, &self.names, worker_id, job_type).await?;
        *declaring = Some(channel);
        Ok(())
    }

    /// Publishes messages, all in flight at once, and returns those that the broker confirmed. The others are
    /// [remembered as unsent](Self::note_unsent).
    pub async fn publish(&self, messages: &[OutgoingMessage]) -> Vec<ConfirmedMessage> {
        let sent = self.try_to_publish(messages).await;
        if sent.len() < messages.len() {
            let confirmed: HashSet<OccurrenceId> = sent.iter().map(|(id, _)| *id).collect();
            self.note_unsent(messages.iter().map(|out| out.message.occurrence_id).filter(|id| !confirmed.contains(id)));
        }
        sent
    }

    async fn try_to_publish(&self, messages: &[OutgoingMessage]) -> Vec<ConfirmedMessage> {
        let Some(open) = self.channel.borrow().clone() else { return Vec::new() };
        let mut queues: HashMap<(&str, &str), bool> = HashMap::new();
        for out in messages {
            let key = (out.worker_id.as_str(), out.message.job_type.as_str());
            if let Entry::Vacant(entry) = queues.entry(key) {
                entry.insert(self.declare(&open, key.0, key.1).await);
            }
        }
        let is_open = |out: &&OutgoingMessage| queues[&(out.worker_id.as_str(), out.message.job_type.as_str())];
        faults::crash_point("publisher.before_send");
        let mut sent = Vec::with_capacity(messages.len());
        // Messages are sent one after another, so that they keep the order of the batch, and confirmed together.
        let mut waiting = Vec::with_capacity(messages.len());
        for out in messages.iter().filter(is_open) {
            match self.send(&open.channel, out).await {
                Ok(confirm) => waiting.push((out, confirm)),
                Err(error) => {
                    tracing::warn!(occurrence.id = %out.message.occurrence_id, error = %error, "the message of occurrence {} could not be sent", out.message.occurrence_id);
                    self.broken.notify_one();
                    break;
                }
            }
        }
        if !waiting.is_empty() {
            faults::crash_point("publisher.after_send");
        }
        if !SEAMS.waits_for_confirms() {
            return waiting.iter().map(|(out, _)| confirmed_message(out)).collect();
        }
        let confirmations = join_all(
            waiting.into_iter().map(async |(out, confirm)| (out, tokio::time::timeout(CONFIRM_TIMEOUT, confirm).await)),
        )
        .await;
        // Grouped by reason, so that a failure of a whole batch is one log line instead of five hundred.
        let mut refused: BTreeMap<String, Vec<OccurrenceId>> = BTreeMap::new();
        for (out, confirmation) in confirmations {
            let reason = match confirmation {
                Ok(Ok(Confirmation::Ack(None))) => {
                    self.parked.release(&out.worker_id, &out.message.job_type);
                    sent.push(confirmed_message(out));
                    continue;
                }
                Ok(Ok(Confirmation::Ack(Some(_)))) => {
                    // The queue was deleted after its declaration. Declare it again before the next publish.
                    self.forget_declaration(out);
                    "no queue is bound for the message".to_owned()
                }
                Ok(Ok(Confirmation::Nack(_))) => {
                    let key = (out.worker_id.clone(), out.message.job_type.clone());
                    let queue = self.names.job_queue(&key.0, &key.1);
                    self.parked.park(key, &queue, "it rejects messages, for example because it is full");
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
            refused.entry(reason).or_default().push(out.message.occurrence_id);
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
        if !sent.is_empty() {
            faults::crash_point("publisher.after_confirm");
        }
        sent
    }

    fn forget_declaration(&self, out: &OutgoingMessage) {
        if let Ok(mut declared) = self.declared.lock() {
            declared.remove(&(out.worker_id.clone(), out.message.job_type.clone()));
        }
    }

    async fn send(&self, channel: &Channel, out: &OutgoingMessage) -> Result<lapin::PublisherConfirm, lapin::Error> {
        let message = &out.message;
        let id = message.occurrence_id.to_string();
        let mut headers = FieldTable::default();
        headers.insert(HEADER_RETRY_COUNT.into(), AMQPValue::LongUInt(message.retry_count));
        headers.insert(HEADER_MAX_RETRIES.into(), AMQPValue::LongUInt(message.max_retries));
        headers.insert(HEADER_CORRELATION_ID.into(), AMQPValue::LongString(id.as_str().into()));
        if out.republished {
            headers.insert(HEADER_REPUBLISH.into(), AMQPValue::LongUInt(1));
        }
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_delivery_mode(PERSISTENT_DELIVERY_MODE)
            .with_priority(message.priority)
            .with_message_id(id.as_str().into())
            .with_correlation_id(id.as_str().into())
            .with_timestamp(message.timestamp.timestamp().unsigned_abs())
            .with_headers(headers);
        let body = serde_json::to_vec(message).unwrap_or_default();
        let options = BasicPublishOptions { mandatory: SEAMS.is_mandatory(), ..BasicPublishOptions::default() };
        let key = Topology::routing_key(&out.worker_id, &message.job_type, message.occurrence_id);
        channel.basic_publish(self.names.jobs_exchange().into(), key.into(), options, &body, properties).await
    }
}

/// Returns true if the broker answered and refused a declaration. The connection works then.
fn is_refusal(error: &lapin::Error) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(error) if matches!(error.kind(), AMQPErrorKind::Soft(_)))
}

fn confirmed_message(out: &OutgoingMessage) -> ConfirmedMessage {
    (out.message.occurrence_id, i32::try_from(out.message.attempt).unwrap_or(i32::MAX))
}

/// Keeps the connection and its channel open until `stop`.
async fn keep_open(
    broker: Broker,
    sender: watch::Sender<Option<OpenChannel>>,
    broken: Arc<Notify>,
    declared: Arc<Mutex<HashSet<(String, String)>>>,
    stop: CancellationToken,
) {
    let mut backoff = ReconnectBackoff::default();
    loop {
        let connection = tokio::select! {
            connection = broker.connect_with_retry("milvaion server publish") => Arc::new(connection),
            () = stop.cancelled() => return,
        };
        let mut events = Box::pin(connection.events_listener());
        match open_channel(&connection, broker.topology()).await {
            Ok(channel) => {
                let open = OpenChannel { connection: connection.clone(), channel, declaring: Arc::default() };
                if let Ok(mut declared) = declared.lock() {
                    declared.clear();
                }
                // A notification about the previous channel does not apply to this one.
                let _ = futures::FutureExt::now_or_never(broken.notified());
                sender.send_replace(Some(open.clone()));
                backoff = ReconnectBackoff::default();
                let mut is_blocked = false;
                loop {
                    tokio::select! {
                        event = next_connection_event(&mut events) => match event {
                            ConnectionEvent::Broken => break,
                            // A new connection would be blocked as well, and messages sent over this one would arrive
                            // twice. This connection is therefore kept, but not used.
                            ConnectionEvent::Blocked => {
                                is_blocked = true;
                                sender.send_replace(None);
                            }
                            ConnectionEvent::Unblocked => {
                                is_blocked = false;
                                // Confirms that were late because of the block are no fault of the channel.
                                let _ = futures::FutureExt::now_or_never(broken.notified());
                                sender.send_replace(Some(open.clone()));
                            }
                        },
                        () = broken.notified(), if !is_blocked => break,
                        () = stop.cancelled() => break,
                    }
                }
                sender.send_replace(None);
            }
            Err(error) => {
                tracing::warn!(error = %error, "the publishing channel cannot be prepared; check for exchanges or queues declared by another version")
            }
        }
        let _ = tokio::time::timeout(Duration::from_secs(2), connection.close(200, "closing".into())).await;
        if stop.is_cancelled() {
            return;
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

async fn open_channel(connection: &lapin::Connection, names: &Topology) -> Result<Channel, lapin::Error> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    topology::declare(&channel, names).await?;
    Ok(channel)
}

/// An event of a connection.
enum ConnectionEvent {
    /// The connection or its channel has failed.
    Broken,
    /// The broker is short of memory or disk and accepts no messages.
    Blocked,
    /// The broker accepts messages again.
    Unblocked,
}

/// Waits for the next event that matters to publishing.
async fn next_connection_event(events: &mut (impl futures::Stream<Item = lapin::Event> + Unpin)) -> ConnectionEvent {
    while let Some(event) = events.next().await {
        match event {
            lapin::Event::Error(_) => return ConnectionEvent::Broken,
            lapin::Event::ConnectionBlocked(reason) => {
                tracing::warn!(reason, "RabbitMQ blocks publishing ({reason}); occurrences wait in PostgreSQL");
                return ConnectionEvent::Blocked;
            }
            lapin::Event::ConnectionUnblocked => {
                tracing::info!("RabbitMQ accepts messages again");
                return ConnectionEvent::Unblocked;
            }
            _ => {}
        }
    }
    ConnectionEvent::Broken
}
