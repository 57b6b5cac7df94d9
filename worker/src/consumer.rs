//! From the broker's queues to the executor.
//!
//! Each job type has its queue, its channel and its consumer, so that a slow type blocks none but itself. What becomes of
//! a delivery:
//!
//! | Delivery | Answer to the broker |
//! |---|---|
//! | cannot be read, or is of another type | rejected: it goes to the dead letters |
//! | copy of what runs here, or ran a moment ago | acknowledged, once the first one needs no copy any more |
//! | copy of what ended, or what a living instance runs | acknowledged |
//! | has not started when the worker stops, or has waited for two seconds: for a place, or for an outbox that can be written | handed back |
//! | was cancelled before it started | acknowledged when the broker has confirmed the report that says so |
//! | perhaps a copy, and the server says that its attempt has begun, ended or been overtaken | acknowledged |
//! | perhaps a copy, and Redis or the server does not answer | handed back after a pause |
//! | runs | acknowledged when the broker has confirmed the report that says so |
//!
//! The acknowledgement comes early, so the broker's delivery timeout never ends a long run; from then on the run is
//! guarded by its lease alone.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use lapin::{
    Connection,
    message::Delivery,
    options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
    uri::AMQPUri,
};
use protocol::{
    message::{Denial, JobMessage, MAX_MESSAGE},
    topology::{HEADER_REPUBLISH, MAX_PRIORITY, Topology},
};
use tokio::time::{sleep, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    cancel::Wish,
    claim::Answer,
    clerk::Clerk,
    connection::{self, Backoff},
    executor::Executor,
    faults,
    inquiry::Inquiry,
    outbox::Gate,
    places::{Place, Places},
    receipts::{Receipt, Receipts},
    registry::Registered,
    running::{Place as Seat, Running},
    topology,
    vitals::Vitals,
    watchdog::Watchdog,
};

/// How long a delivery waits for a place here before it is handed back. Runs may take hours, and another instance may have
/// a place; if none has, it comes back at once and waits again, which costs a message each time.
const TURN: Duration = Duration::from_secs(2);
/// How long a delivery stays away after it was handed back because nobody could say whether it is a copy.
const PAUSE: Duration = Duration::from_secs(1);
/// How often a copy looks whether the holder of its claim is alive.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long the broker may take to answer, and a server that was asked when the worker stops.
const CANCEL: Duration = Duration::from_secs(2);

/// Everything deliveries share.
pub(crate) struct Consumer {
    pub(crate) worker_id: String,
    pub(crate) instance_id: String,
    pub(crate) topology: Topology,
    /// The job types, each with a queue of its own.
    pub(crate) lines: Vec<Arc<Registered>>,
    /// In the order of the lines.
    pub(crate) places: Places,
    /// Shut while a run could not be remembered.
    pub(crate) outbox: Gate,
    pub(crate) clerk: Clerk,
    pub(crate) inquiry: Inquiry,
    pub(crate) running: Running,
    pub(crate) vitals: Vitals,
    pub(crate) executor: Executor,
    /// Deliveries that are not answered yet.
    pub(crate) deliveries: TaskTracker,
    /// Those among them that are not over: they wait or run.
    pub(crate) runs: TaskTracker,
    pub(crate) stop: CancellationToken,
}

/// The consuming connection after its consumers were cancelled. A channel closes when its last handle is dropped, and
/// takes the unacknowledged deliveries with it; so the handles are kept.
pub(crate) struct StillOpen {
    connection: Connection,
    _channels: Vec<Receipts>,
}

/// What becomes of a delivery whose turn has come.
enum Turn {
    /// It runs.
    Begins(Place),
    /// It is reported as cancelled instead.
    Cancelled(String),
    /// It does not run here; what to tell the broker.
    Elsewhere(Verdict),
}

impl StillOpen {
    /// Closes it. Whatever is not acknowledged goes back to its queue.
    pub(crate) async fn close(self) {
        connection::close(&self.connection).await;
    }
}

/// Why consuming ended though the worker does not stop.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("{0}")]
    Broker(#[from] lapin::Error),
    #[error("the broker has cancelled a consumer; was its queue deleted?")]
    Consumer,
    #[error("messages wait in {0}, and none is delivered")]
    Silent(String),
    #[error("the broker does not answer on this connection")]
    Deaf,
}

/// What to tell the broker about a delivery that does not run here.
enum Verdict {
    Ack,
    HandBack,
}

impl Consumer {
    /// Consumes until the worker is to stop; answers what is still needed to acknowledge what runs.
    pub(crate) async fn run(self: Arc<Self>, uri: AMQPUri) -> Option<StillOpen> {
        let name = format!("{} consume", self.instance_id);
        let mut backoff = Backoff::new();
        loop {
            let connection = tokio::select! {
                connection = connection::open(&uri, &name, &mut backoff) => connection,
                () = self.stop.cancelled() => return None,
            };
            let ended = self.consume(&connection).await;
            self.vitals.consuming(false);
            match ended {
                Ok(channels) => return Some(StillOpen { connection, _channels: channels }),
                Err(error) => tracing::warn!(error = %error, "consuming has failed; it begins again"),
            }
            connection::close(&connection).await;
            tokio::select! {
                () = sleep(backoff.next()) => {}
                () = self.stop.cancelled() => return None,
            }
        }
    }

    /// Consumes on one connection. `Ok` means that the worker stops; it holds the channels deliveries came by.
    async fn consume(self: &Arc<Self>, connection: &Connection) -> Result<Vec<Receipts>, Lost> {
        let channel = connection.create_channel().await?;
        topology::declare_shared(&channel, &self.topology).await?;
        let mut channels = Vec::new();
        let mut streams = Vec::new();
        let mut queues = Vec::new();
        for (line, job) in self.lines.iter().enumerate() {
            let job_type = job.job_type;
            let queue = topology::declare_job_queue(&channel, &self.topology, &self.worker_id, job_type).await?;
            let own = connection.create_channel().await?;
            own.basic_qos(self.places.window(line), BasicQosOptions::default()).await?;
            let consumer = own
                .basic_consume(
                    queue.as_str().into(),
                    self.instance_id.as_str().into(),
                    BasicConsumeOptions::default(),
                    FieldTable::default(),
                )
                .await?;
            channels.push(Receipts::new(own));
            queues.push(queue);
            // A consumer that ends by itself (its queue was deleted) must be noticed, so its end is an item too.
            streams.push(consumer.map(Some).chain(stream::iter([None])).map(move |delivery| (line, delivery)));
        }
        self.vitals.consuming(true);
        tracing::info!(worker.id = self.worker_id, job_types = self.lines.len(), "waiting for work");
        let mut deliveries = stream::select_all(streams);
        let mut watchdog = Watchdog::new(channel, queues);
        loop {
            let next = tokio::select! {
                biased;
                () = self.stop.cancelled() => {
                    self.hand_back_the_rest(&channels, deliveries).await;
                    return Ok(channels);
                }
                next = deliveries.next() => next,
                () = watchdog.wait() => {
                    match timeout(CANCEL, watchdog.look()).await {
                        Ok(Ok(None)) => continue,
                        Ok(Ok(Some(queue))) => return Err(Lost::Silent(queue.to_owned())),
                        Ok(Err(error)) => return Err(error.into()),
                        Err(_) => return Err(Lost::Deaf),
                    }
                }
            };
            match next {
                Some((line, Some(Ok(delivery)))) => {
                    watchdog.hear(line);
                    self.vitals.delivered();
                    let receipt = channels[line].open(delivery.delivery_tag);
                    self.deliveries.spawn(self.clone().handle(line, delivery, receipt));
                }
                Some((_, Some(Err(error)))) => return Err(error.into()),
                Some((_, None)) | None => return Err(Lost::Consumer),
            }
        }
    }

    async fn hand_back_the_rest<S>(&self, channels: &[Receipts], mut deliveries: S)
    where
        S: futures::Stream<Item = (usize, Option<lapin::Result<Delivery>>)> + Unpin,
    {
        let cancelling = async {
            for receipts in channels {
                let (name, options) = (self.instance_id.as_str().into(), BasicCancelOptions::default());
                if receipts.channel().basic_cancel(name, options).await.is_err() {
                    return;
                }
            }
            while let Some((line, delivery)) = deliveries.next().await {
                if let Some(Ok(delivery)) = delivery {
                    channels[line].open(delivery.delivery_tag).hand_back().await;
                }
            }
        };
        let _ = timeout(CANCEL, cancelling).await;
    }

    async fn handle(self: Arc<Self>, line: usize, delivery: Delivery, receipt: Receipt) {
        let job = &self.lines[line];
        let run = self.runs.token();
        let message = match read(&delivery, job.job_type) {
            Ok(message) => message,
            Err(reason) => {
                tracing::warn!(
                    job.r#type = job.job_type,
                    error = reason,
                    "a message cannot be run; it goes to the dead letters"
                );
                return receipt.dead_letter().await;
            }
        };
        let may_be_a_copy = may_be_a_copy(&delivery);
        drop(delivery);
        faults::point("cp20");
        let attempt = (message.occurrence_id, message.attempt);
        let slot = match self.running.take(attempt.0, attempt.1) {
            Seat::Free(slot) => slot,
            Seat::Ended => {
                self.tell_of_copy(&message, "it ended here a moment ago");
                return receipt.ack().await;
            }
            Seat::Taken(mut safe) => {
                // Until its start is confirmed, this copy may be the only trace of the run outside this process.
                let is_safe = tokio::select! {
                    safe = safe.wait_for(|safe| *safe) => safe.is_ok(),
                    () = self.stop.cancelled() => false,
                };
                if is_safe {
                    self.tell_of_copy(&message, "it runs here already");
                    return receipt.ack().await;
                }
                return receipt.hand_back().await;
            }
        };

        let place = match self.admit(line, &message, may_be_a_copy).await {
            Turn::Begins(place) => place,
            Turn::Cancelled(reason) => {
                slot.end();
                drop(run);
                self.executor.decline(&message, &reason).await;
                self.clerk.end(attempt);
                return receipt.ack().await;
            }
            Turn::Elsewhere(verdict) => {
                drop((slot, run));
                return match verdict {
                    Verdict::Ack => receipt.ack().await,
                    Verdict::HandBack => receipt.hand_back().await,
                };
            }
        };
        faults::point("cp21");
        let stop = self.executor.stop_sign();
        slot.begin(stop.clone());
        tracing::debug!(
            occurrence.id = %message.occurrence_id,
            occurrence.attempt = message.attempt,
            job.name = message.job_name,
            job.r#type = job.job_type,
            "occurrence starts"
        );
        let (confirmed, end) = self.executor.start(job, message, stop);
        let end = async {
            end.await;
            slot.end();
            self.clerk.end(attempt);
            drop((place, run));
        };
        let acknowledge = async {
            confirmed.await;
            slot.safe();
            faults::point("cp22");
            receipt.ack().await;
            faults::point("cp23");
        };
        tokio::join!(end, acknowledge);
    }

    /// Waits for a delivery's turn and claims it.
    async fn admit(&self, line: usize, message: &JobMessage, may_be_a_copy: bool) -> Turn {
        let priority = message.priority.min(MAX_PRIORITY);
        let mut last_lease = None;
        let is_unguarded = faults::sabotaged("s05");
        loop {
            // A delivery waits here, and nowhere else.
            let place = tokio::select! {
                biased;
                place = self.turn(line, priority) => Some(place),
                () = self.stop.cancelled() => None,
                () = sleep(TURN) => None,
            };
            // A worker that stops starts nothing, whatever became free; and what has waited long enough may find a free
            // place in another instance.
            let Some(place) = place.filter(|_| !self.stop.is_cancelled()) else {
                return Turn::Elsewhere(Verdict::HandBack);
            };
            // Before the claim, which would take the place of the one of whoever runs it.
            if may_be_a_copy
                && !is_unguarded
                && let Some(verdict) = self.check(message).await
            {
                drop(place);
                if matches!(verdict, Verdict::HandBack) {
                    self.pause(PAUSE).await;
                }
                return Turn::Elsewhere(verdict);
            }
            match self.clerk.claim((message.occurrence_id, message.attempt)).await {
                Ok(Answer::Granted { cancel: None }) => return Turn::Begins(place),
                Ok(Answer::Granted { cancel: Some(text) }) => {
                    let wish = Wish::read(&text);
                    return if wish.means(message.attempt) {
                        Turn::Cancelled(wish.reason().to_owned())
                    } else {
                        Turn::Begins(place)
                    };
                }
                Ok(Answer::Ended | Answer::Held { .. }) if is_unguarded => return Turn::Begins(place),
                Ok(Answer::Ended) => {
                    self.tell_of_copy(message, "it has ended");
                    return Turn::Elsewhere(Verdict::Ack);
                }
                Ok(Answer::Held { by, lease }) => {
                    // A copy that came because its holder died must not be dropped: only a renewed lease is a sign of
                    // life, and an unrenewed one ends.
                    let renewed = last_lease.is_some_and(|last| lease > last);
                    if renewed || !may_be_a_copy {
                        self.tell_of_copy(message, &format!("{by} runs it"));
                        return Turn::Elsewhere(Verdict::Ack);
                    }
                    last_lease = Some(lease);
                    drop(place);
                    self.pause(LOOK_AGAIN).await;
                }
                Err(error) if may_be_a_copy && !is_unguarded => {
                    tracing::warn!(occurrence.id = %message.occurrence_id, error = %error, "perhaps a copy, and nobody to ask: handed back");
                    drop(place);
                    self.pause(PAUSE).await;
                    return Turn::Elsewhere(Verdict::HandBack);
                }
                Err(error) => {
                    tracing::warn!(occurrence.id = %message.occurrence_id, error = %error, "starts without a claim");
                    return Turn::Begins(place);
                }
            }
        }
    }

    /// Asks the server about what may be a second copy: Redis may have forgotten the first one. None when it may start,
    /// as far as the server knows.
    async fn check(&self, message: &JobMessage) -> Option<Verdict> {
        let asking = self.inquiry.ask((message.occurrence_id, message.attempt));
        tokio::pin!(asking);
        let answer = tokio::select! {
            answer = &mut asking => answer,
            // A worker that stops starts nothing, but what is known to be a copy need not go round again.
            () = self.stop.cancelled() => match timeout(CANCEL, asking).await {
                Ok(answer) => answer,
                Err(_) => return Some(Verdict::HandBack),
            },
        };
        match answer {
            Ok(reply) if reply.granted => self.stop.is_cancelled().then_some(Verdict::HandBack),
            Ok(reply) => {
                let reason = reply.reason.map_or("the server denies it", Denial::word);
                self.tell_of_copy(message, &reply.by.map_or_else(|| reason.to_owned(), |by| format!("{reason}: {by}")));
                Some(Verdict::Ack)
            }
            Err(error) => {
                tracing::warn!(occurrence.id = %message.occurrence_id, error = %error, "perhaps a copy, and no server to ask: handed back");
                Some(Verdict::HandBack)
            }
        }
    }

    /// Waits until a run could be remembered and has a place.
    async fn turn(&self, line: usize, priority: u8) -> Place {
        self.outbox.open().await;
        self.places.take(line, priority).await
    }

    fn tell_of_copy(&self, message: &JobMessage, reason: &str) {
        self.vitals.copy();
        tracing::info!(
            occurrence.id = %message.occurrence_id,
            occurrence.attempt = message.attempt,
            reason,
            "a copy of a message is dropped"
        );
    }

    async fn pause(&self, time: Duration) {
        tokio::select! {
            () = sleep(time) => {}
            () = self.stop.cancelled() => {}
        }
    }
}

/// Reads a delivery's message.
fn read(delivery: &Delivery, job_type: &str) -> Result<JobMessage, String> {
    if delivery.data.len() > MAX_MESSAGE {
        return Err(format!("it has {} bytes; {MAX_MESSAGE} are the most", delivery.data.len()));
    }
    let message: JobMessage = serde_json::from_slice(&delivery.data).map_err(|error| error.to_string())?;
    // Queues are named in lower case.
    if !message.job_type.eq_ignore_ascii_case(job_type) {
        return Err(format!("its job type is {:?}, this queue's is {job_type:?}", message.job_type));
    }
    if message.attempt == 0 {
        return Err("its attempt is 0; attempts count from 1".to_owned());
    }
    Ok(message)
}

/// Whether another delivery of the same message may have been before this one.
fn may_be_a_copy(delivery: &Delivery) -> bool {
    let republished =
        delivery.properties.headers().as_ref().is_some_and(|headers| headers.inner().contains_key(HEADER_REPUBLISH));
    delivery.redelivered || republished
}
