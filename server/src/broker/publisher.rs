//! Publishing job messages: one connection, one channel with confirms, many messages in flight.
//!
//! Persistent and mandatory, always. A message counts as sent when the broker has confirmed it without handing it back:
//! an unroutable one is confirmed *and* returned, and would be gone if the confirmation alone were believed. Whatever does
//! not count as sent stays unpublished in PostgreSQL and is published again later.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{StreamExt, future::join_all};
use lapin::{
    BasicProperties, Channel, Confirmation,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::{AMQPValue, FieldTable},
};
use milvaion_protocol::{
    id::OccurrenceId,
    message::JobMessage,
    topology::{HEADER_CORRELATION_ID, HEADER_MAX_RETRIES, HEADER_REPUBLISH, HEADER_RETRY_COUNT, Topology},
};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{Broker, topology};
use crate::{backoff::ReconnectBackoff, faults};

/// How long the broker may take to confirm.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);
/// How many messages are remembered as not taken. What is beyond is found by its age.
pub const MAX_UNSENT: usize = 10_000;
/// AMQP's number for a message that survives a restart of the broker.
const PERSISTENT_DELIVERY_MODE: u8 = 2;

/// Which message the broker has confirmed: the occurrence and the attempt it was about. A row that is in a later attempt
/// by then has a message of its own to wait for.
pub type ConfirmedMessage = (OccurrenceId, i32);

/// One message and whom it is for.
#[derive(Clone, Debug)]
pub struct OutgoingMessage {
    /// The worker it is addressed to.
    pub worker_id: String,
    /// What it says.
    pub message: JobMessage,
    /// True when an earlier copy may have arrived.
    pub republished: bool,
}

/// The publisher. Cloning gives the same one.
#[derive(Clone, Debug)]
pub struct Publisher {
    names: Topology,
    channel: watch::Receiver<Option<Channel>>,
    broken: Arc<Notify>,
    /// Queues declared on the present channel's broker.
    declared: Arc<Mutex<HashSet<(String, String)>>>,
    /// What the broker has not, or may not have: none of it is on its way any more.
    unsent: Arc<Mutex<HashSet<OccurrenceId>>>,
}

impl Publisher {
    /// The publisher and the task that keeps its channel open until `stop`.
    pub fn new(broker: &Broker, stop: CancellationToken) -> (Self, impl Future<Output = ()> + use<>) {
        let (sender, channel) = watch::channel(None);
        let publisher = Self {
            names: broker.topology().clone(),
            channel,
            broken: Arc::default(),
            declared: Arc::default(),
            unsent: Arc::default(),
        };
        let keep = keep_open(broker.clone(), sender, publisher.broken.clone(), publisher.declared.clone(), stop);
        (publisher, keep)
    }

    /// Whether messages can be sent right now.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.channel.borrow().is_some()
    }

    /// Waits until there is a channel.
    pub async fn wait_until_up(&self) {
        // The keeper only goes when the server does.
        let _ = self.channel.clone().wait_for(Option::is_some).await;
    }

    /// Waits until there is none.
    pub async fn wait_until_down(&self) {
        let _ = self.channel.clone().wait_for(Option::is_none).await;
    }

    /// Remembers occurrences whose messages are not on their way from here, up to 10,000.
    pub fn note_unsent(&self, occurrences: impl IntoIterator<Item = OccurrenceId>) {
        if let Ok(mut unsent) = self.unsent.lock() {
            let room = MAX_UNSENT.saturating_sub(unsent.len());
            unsent.extend(occurrences.into_iter().take(room));
        }
    }

    /// What was left since this was asked last.
    #[must_use]
    pub fn take_unsent(&self) -> Vec<OccurrenceId> {
        self.unsent.lock().map(|mut unsent| unsent.drain().collect()).unwrap_or_default()
    }

    /// Makes sure that the queue of a worker's job type exists. Without a channel nothing is done: the queue is declared
    /// before the first message to it in any case.
    pub async fn ensure_queue(&self, worker_id: &str, job_type: &str) {
        let Some(channel) = self.channel.borrow().clone() else { return };
        self.declare(&channel, worker_id, job_type).await;
    }

    async fn declare(&self, channel: &Channel, worker_id: &str, job_type: &str) {
        let key = (worker_id.to_owned(), job_type.to_owned());
        if self.declared.lock().is_ok_and(|declared| declared.contains(&key)) {
            return;
        }
        match topology::declare_job_queue(channel, &self.names, worker_id, job_type).await {
            Ok(()) => {
                if let Ok(mut declared) = self.declared.lock() {
                    declared.insert(key);
                }
            }
            Err(error) => {
                tracing::warn!(worker.id = worker_id, job.type = job_type, error = %error, "cannot declare a job queue");
                self.broken.notify_one();
            }
        }
    }

    /// Sends messages, all in flight at once, and tells which the broker has for certain. The others are
    /// [left](Self::note_unsent).
    pub async fn publish(&self, messages: &[OutgoingMessage]) -> Vec<ConfirmedMessage> {
        let sent = self.try_to_publish(messages).await;
        if sent.len() < messages.len() {
            let taken: HashSet<OccurrenceId> = sent.iter().map(|(id, _)| *id).collect();
            self.note_unsent(messages.iter().map(|out| out.message.occurrence_id).filter(|id| !taken.contains(id)));
        }
        sent
    }

    async fn try_to_publish(&self, messages: &[OutgoingMessage]) -> Vec<ConfirmedMessage> {
        let Some(channel) = self.channel.borrow().clone() else { return Vec::new() };
        let queues: HashSet<(&str, &str)> =
            messages.iter().map(|out| (out.worker_id.as_str(), out.message.job_type.as_str())).collect();
        for (worker_id, job_type) in queues {
            self.declare(&channel, worker_id, job_type).await;
        }
        faults::point("publisher.before_send");
        let mut sent = Vec::with_capacity(messages.len());
        // Handed over one after another, so that they leave in the order of the batch; confirmed together.
        let mut waiting = Vec::with_capacity(messages.len());
        for out in messages {
            match self.hand_over(&channel, out).await {
                Ok(confirm) => waiting.push((out, confirm)),
                Err(error) => {
                    tracing::warn!(occurrence.id = %out.message.occurrence_id, error = %error, "a message could not be handed to the broker");
                    self.broken.notify_one();
                    break;
                }
            }
        }
        if !waiting.is_empty() {
            faults::point("publisher.after_send");
        }
        if faults::sabotaged("skip_publisher_confirms") {
            return waiting.iter().map(|(out, _)| mark(out)).collect();
        }
        let verdicts = join_all(
            waiting.into_iter().map(async |(out, confirm)| (out, tokio::time::timeout(CONFIRM_TIMEOUT, confirm).await)),
        )
        .await;
        // By reason: what befalls a whole batch is one line in the log, not five hundred.
        let mut refused: BTreeMap<String, Vec<OccurrenceId>> = BTreeMap::new();
        for (out, verdict) in verdicts {
            let reason = match verdict {
                Ok(Ok(Confirmation::Ack(None))) => {
                    sent.push(mark(out));
                    continue;
                }
                Ok(Ok(Confirmation::Ack(Some(_)))) => {
                    // The queue was deleted under us: declare it again before the next try.
                    self.forget(out);
                    "no queue takes the message".to_owned()
                }
                Ok(Ok(Confirmation::Nack(_))) => "the broker refused the message".to_owned(),
                Ok(Ok(Confirmation::NotRequested)) => "confirms are not on".to_owned(),
                Ok(Err(error)) => {
                    self.broken.notify_one();
                    error.to_string()
                }
                Err(_) => {
                    self.broken.notify_one();
                    format!("no confirmation within {} s", CONFIRM_TIMEOUT.as_secs())
                }
            };
            refused.entry(reason).or_default().push(out.message.occurrence_id);
        }
        for (reason, occurrences) in refused {
            tracing::warn!(
                occurrence.first = %occurrences[0],
                messages = occurrences.len(),
                error = reason,
                "messages were not taken; they will be sent again"
            );
        }
        if !sent.is_empty() {
            faults::point("publisher.after_confirm");
        }
        sent
    }

    fn forget(&self, out: &OutgoingMessage) {
        if let Ok(mut declared) = self.declared.lock() {
            declared.remove(&(out.worker_id.clone(), out.message.job_type.clone()));
        }
    }

    async fn hand_over(
        &self,
        channel: &Channel,
        out: &OutgoingMessage,
    ) -> Result<lapin::PublisherConfirm, lapin::Error> {
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
        let options = BasicPublishOptions {
            mandatory: !faults::sabotaged("skip_mandatory_flag"),
            ..BasicPublishOptions::default()
        };
        let key = Topology::routing_key(&out.worker_id, &message.job_type, message.occurrence_id);
        channel.basic_publish(self.names.jobs_exchange().into(), key.into(), options, &body, properties).await
    }
}

fn mark(out: &OutgoingMessage) -> ConfirmedMessage {
    (out.message.occurrence_id, i32::try_from(out.message.attempt).unwrap_or(i32::MAX))
}

async fn keep_open(
    broker: Broker,
    sender: watch::Sender<Option<Channel>>,
    broken: Arc<Notify>,
    declared: Arc<Mutex<HashSet<(String, String)>>>,
    stop: CancellationToken,
) {
    let mut backoff = ReconnectBackoff::default();
    loop {
        let connection = tokio::select! {
            connection = broker.connect_with_retry("milvaion server publish") => connection,
            () = stop.cancelled() => return,
        };
        let mut events = Box::pin(connection.events_listener());
        match open_channel(&connection, broker.topology()).await {
            Ok(channel) => {
                if let Ok(mut declared) = declared.lock() {
                    declared.clear();
                }
                // A complaint about the channel before is no complaint about this one.
                let _ = futures::FutureExt::now_or_never(broken.notified());
                sender.send_replace(Some(channel.clone()));
                backoff = ReconnectBackoff::default();
                let mut is_blocked = false;
                loop {
                    tokio::select! {
                        news = next_connection_event(&mut events) => match news {
                            ConnectionEvent::Broken => break,
                            // A new connection would be blocked as well, and what was handed to this one would arrive
                            // twice; so this one is kept, and nobody is given it.
                            ConnectionEvent::Blocked => {
                                is_blocked = true;
                                sender.send_replace(None);
                            }
                            ConnectionEvent::Unblocked => {
                                is_blocked = false;
                                // Confirms that were late meanwhile are no fault of the channel's.
                                let _ = futures::FutureExt::now_or_never(broken.notified());
                                sender.send_replace(Some(channel.clone()));
                            }
                        },
                        () = broken.notified(), if !is_blocked => break,
                        () = stop.cancelled() => break,
                    }
                }
                sender.send_replace(None);
            }
            Err(error) => {
                tracing::warn!(error = %error, "cannot prepare the publishing channel; is another version's topology there?")
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

/// What a connection says about itself.
enum ConnectionEvent {
    /// It, or its channel, has failed.
    Broken,
    /// The broker is short of memory or disk and takes no messages.
    Blocked,
    /// It takes them again.
    Unblocked,
}

/// Waits for news.
async fn next_connection_event(events: &mut (impl futures::Stream<Item = lapin::Event> + Unpin)) -> ConnectionEvent {
    while let Some(event) = events.next().await {
        match event {
            lapin::Event::Error(_) => return ConnectionEvent::Broken,
            lapin::Event::ConnectionBlocked(reason) => {
                tracing::warn!(reason, "the broker takes no messages for now; occurrences wait");
                return ConnectionEvent::Blocked;
            }
            lapin::Event::ConnectionUnblocked => {
                tracing::info!("the broker takes messages again");
                return ConnectionEvent::Unblocked;
            }
            _ => {}
        }
    }
    ConnectionEvent::Broken
}
