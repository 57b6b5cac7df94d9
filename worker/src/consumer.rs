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
//! | has not started when the worker stops | handed back |
//! | perhaps a copy, and Redis does not answer | handed back after a pause |
//! | runs | acknowledged when the broker has confirmed the report that says so |
//!
//! The acknowledgement comes early, so the broker's delivery timeout never ends a long run; from then on the run is
//! guarded by its lease alone.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use lapin::{
    Channel, Connection,
    message::Delivery,
    options::{BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions},
    types::FieldTable,
    uri::AMQPUri,
};
use protocol::{
    message::{JobMessage, MAX_MESSAGE},
    topology::{HEADER_REPUBLISH, Topology},
};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    claim::{Answer, Claims},
    connection::{self, Backoff},
    executor::Executor,
    registry::Registered,
    running::{Place, Running},
    topology,
};

/// How long a delivery stays away after it was handed back for lack of Redis.
const REDIS_PAUSE: Duration = Duration::from_secs(1);
/// How often a copy looks whether the holder of its claim is alive.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long the broker may take to answer a cancelled consumer.
const CANCEL: Duration = Duration::from_secs(2);

/// Everything deliveries share.
pub(crate) struct Consumer {
    pub(crate) worker_id: String,
    pub(crate) instance_id: String,
    pub(crate) topology: Topology,
    pub(crate) lines: Vec<Line>,
    pub(crate) capacity: Semaphore,
    pub(crate) claims: Claims,
    pub(crate) running: Running,
    pub(crate) executor: Executor,
    /// Deliveries that are not answered yet.
    pub(crate) deliveries: TaskTracker,
    /// Those among them that are not over: they wait or run.
    pub(crate) runs: TaskTracker,
    pub(crate) stop: CancellationToken,
}

/// One job type and its places.
pub(crate) struct Line {
    job: Arc<Registered>,
    places: Semaphore,
}

impl Line {
    pub(crate) fn new(job: Arc<Registered>) -> Self {
        Self { places: Semaphore::new(job.concurrency.into()), job }
    }
}

/// A place of the job type and one of the worker.
type Permits<'a> = (Option<SemaphorePermit<'a>>, Option<SemaphorePermit<'a>>);

/// The consuming connection after its consumers were cancelled. A channel closes when its last handle is dropped, and
/// takes the unacknowledged deliveries with it; so the handles are kept.
pub(crate) struct StillOpen {
    connection: Connection,
    _channels: Vec<Channel>,
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
}

/// What to tell the broker about a delivery.
enum Verdict {
    Ack,
    HandBack,
    DeadLetter,
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
            match self.consume(&connection).await {
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
    async fn consume(self: &Arc<Self>, connection: &Connection) -> Result<Vec<Channel>, Lost> {
        let channel = connection.create_channel().await?;
        topology::declare_shared(&channel, &self.topology).await?;
        let mut channels = Vec::new();
        let mut streams = Vec::new();
        for (place, line) in self.lines.iter().enumerate() {
            let job_type = line.job.job_type;
            let queue = topology::declare_job_queue(&channel, &self.topology, &self.worker_id, job_type).await?;
            let own = connection.create_channel().await?;
            own.basic_qos(line.job.concurrency, BasicQosOptions::default()).await?;
            let consumer = own
                .basic_consume(
                    queue.as_str().into(),
                    self.instance_id.as_str().into(),
                    BasicConsumeOptions::default(),
                    FieldTable::default(),
                )
                .await?;
            channels.push(own);
            // A consumer that ends by itself (its queue was deleted) must be noticed, so its end is an item too.
            streams.push(consumer.map(Some).chain(stream::iter([None])).map(move |delivery| (place, delivery)));
        }
        tracing::info!(worker.id = self.worker_id, job_types = self.lines.len(), "waiting for work");
        let mut deliveries = stream::select_all(streams);
        loop {
            let next = tokio::select! {
                biased;
                () = self.stop.cancelled() => {
                    self.hand_back_the_rest(&channels, deliveries).await;
                    return Ok(channels);
                }
                next = deliveries.next() => next,
            };
            match next {
                Some((place, Some(Ok(delivery)))) => {
                    self.deliveries.spawn(self.clone().handle(place, delivery));
                }
                Some((_, Some(Err(error)))) => return Err(error.into()),
                Some((_, None)) | None => return Err(Lost::Consumer),
            }
        }
    }

    async fn hand_back_the_rest<S>(&self, channels: &[Channel], mut deliveries: S)
    where
        S: futures::Stream<Item = (usize, Option<lapin::Result<Delivery>>)> + Unpin,
    {
        let cancelling = async {
            for channel in channels {
                if channel.basic_cancel(self.instance_id.as_str().into(), BasicCancelOptions::default()).await.is_err()
                {
                    return;
                }
            }
            while let Some((_, delivery)) = deliveries.next().await {
                if let Some(Ok(delivery)) = delivery {
                    answer(&delivery, Verdict::HandBack).await;
                }
            }
        };
        let _ = timeout(CANCEL, cancelling).await;
    }

    async fn handle(self: Arc<Self>, place: usize, delivery: Delivery) {
        let line = &self.lines[place];
        let run = self.runs.token();
        let message = match read(&delivery, line.job.job_type) {
            Ok(message) => message,
            Err(reason) => {
                tracing::warn!(
                    job.r#type = line.job.job_type,
                    error = reason,
                    "a message cannot be run; it goes to the dead letters"
                );
                return answer(&delivery, Verdict::DeadLetter).await;
            }
        };
        let (occurrence, attempt) = (message.occurrence_id, message.attempt);
        let slot = match self.running.take(occurrence, attempt) {
            Place::Free(slot) => slot,
            Place::Ended => return self.drop_copy(&delivery, &message, "it ended here a moment ago").await,
            Place::Taken(mut safe) => {
                // Until its start is confirmed, this copy may be the only trace of the run outside this process.
                let is_safe = tokio::select! {
                    safe = safe.wait_for(|safe| *safe) => safe.is_ok(),
                    () = self.stop.cancelled() => false,
                };
                if is_safe {
                    return self.drop_copy(&delivery, &message, "it runs here already").await;
                }
                return answer(&delivery, Verdict::HandBack).await;
            }
        };

        let Some(permits) = self.admit(line, &message, &delivery).await else {
            drop(slot);
            return;
        };
        slot.begin();
        tracing::info!(
            occurrence.id = %occurrence,
            occurrence.attempt = attempt,
            job.name = message.job_name,
            job.r#type = line.job.job_type,
            "occurrence starts"
        );
        let (confirmed, end) = self.executor.start(&line.job, message);
        let end = async {
            end.await;
            slot.end();
            drop((permits, run));
            if let Err(error) = self.claims.finish(occurrence, attempt).await {
                tracing::warn!(occurrence.id = %occurrence, error = %error, "the end could not be noted in Redis");
            }
        };
        let acknowledge = async {
            confirmed.await;
            slot.safe();
            answer(&delivery, Verdict::Ack).await;
        };
        tokio::join!(end, acknowledge);
    }

    /// Waits for a delivery's moment and claims it. None means that it does not run here and was answered.
    async fn admit<'a>(&'a self, line: &'a Line, message: &JobMessage, delivery: &Delivery) -> Option<Permits<'a>> {
        let (occurrence, attempt) = (message.occurrence_id, message.attempt);
        let may_be_a_copy = may_be_a_copy(delivery);
        let mut last_lease = None;
        loop {
            // A delivery waits here, and nowhere else: for a place of its type and for one of the worker's.
            let permits = tokio::select! {
                biased;
                () = self.stop.cancelled() => None,
                permits = async { (line.places.acquire().await.ok(), self.capacity.acquire().await.ok()) } => Some(permits),
            };
            let Some(permits) = permits else {
                answer(delivery, Verdict::HandBack).await;
                return None;
            };
            // What may be a second copy is to be checked with the server as well, once the server answers claims.
            match self.claims.claim(occurrence, attempt).await {
                Ok(Answer::Granted) => return Some(permits),
                Ok(Answer::Ended) => {
                    self.drop_copy(delivery, message, "it has ended").await;
                    return None;
                }
                Ok(Answer::Held { by, lease }) => {
                    // A copy that came because its holder died must not be dropped: only a renewed lease is a sign of
                    // life, and an unrenewed one ends.
                    let renewed = last_lease.is_some_and(|last| lease > last);
                    if renewed || !may_be_a_copy {
                        self.drop_copy(delivery, message, &format!("{by} runs it")).await;
                        return None;
                    }
                    last_lease = Some(lease);
                    drop(permits);
                    self.pause(LOOK_AGAIN).await;
                }
                Err(error) if may_be_a_copy => {
                    tracing::warn!(occurrence.id = %occurrence, error = %error, "perhaps a copy, and nobody to ask: handed back");
                    drop(permits);
                    self.pause(REDIS_PAUSE).await;
                    answer(delivery, Verdict::HandBack).await;
                    return None;
                }
                Err(error) => {
                    tracing::warn!(occurrence.id = %occurrence, error = %error, "starts without a claim");
                    return Some(permits);
                }
            }
        }
    }

    async fn drop_copy(&self, delivery: &Delivery, message: &JobMessage, reason: &str) {
        tracing::info!(
            occurrence.id = %message.occurrence_id,
            occurrence.attempt = message.attempt,
            reason,
            "a copy of a message is dropped"
        );
        answer(delivery, Verdict::Ack).await;
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

async fn answer(delivery: &Delivery, verdict: Verdict) {
    let told = match verdict {
        Verdict::Ack => delivery.ack(BasicAckOptions::default()).await,
        Verdict::HandBack => delivery.nack(BasicNackOptions { requeue: true, ..BasicNackOptions::default() }).await,
        Verdict::DeadLetter => delivery.nack(BasicNackOptions { requeue: false, ..BasicNackOptions::default() }).await,
    };
    if !matches!(told, Ok(true)) {
        // The broker delivers it again, and the claim recognises it.
        tracing::debug!(delivery.tag = delivery.delivery_tag, "a delivery could not be answered: its channel is gone");
    }
}
