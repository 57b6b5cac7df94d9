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
//! | may not start, as the [`admission`](crate::admission) finds | what that room says |
//! | was cancelled before it started, or was lost with another instance | acknowledged when the broker has confirmed the report that says so |
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
use milvaion_protocol::{
    message::{JobMessage, MAX_MESSAGE},
    topology::{HEADER_REPUBLISH, Topology},
};
use tokio::time::{sleep, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    admission::{Admission, Turn, Verdict},
    connection::{self, Backoff},
    executor::Executor,
    faults,
    receipts::{Receipt, Receipts},
    registry::Registered,
    running::{Place, Running},
    topology,
    vitals::Vitals,
    watchdog::Watchdog,
};

/// How long the broker may take to answer.
const CANCEL: Duration = Duration::from_secs(2);

/// Everything deliveries share.
pub(crate) struct Consumer {
    pub(crate) worker_id: String,
    pub(crate) instance_id: String,
    pub(crate) topology: Topology,
    /// The job types, each with a queue of its own.
    pub(crate) lines: Vec<Arc<Registered>>,
    pub(crate) admission: Admission,
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
            own.basic_qos(self.admission.places.window(line), BasicQosOptions::default()).await?;
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
                    let full = channels.iter().enumerate().map(|(line, receipts)| {
                        receipts.owed() >= usize::from(self.admission.places.window(line))
                    });
                    match timeout(CANCEL, watchdog.look(full)).await {
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
        let attempt = (message.occurrence_id, message.attempt);
        let origin = self.admission.origin(attempt, delivery.redelivered, is_republished(&delivery));
        drop(delivery);
        faults::point("cp20");
        let slot = match self.running.take(attempt.0, attempt.1) {
            Place::Free(slot) => slot,
            Place::Ended => {
                self.admission.tell_of_copy(&message, "it ended here a moment ago");
                return receipt.ack().await;
            }
            Place::Taken(mut safe) => {
                // Until its start is confirmed, this copy may be the only trace of the run outside this process.
                let is_safe = tokio::select! {
                    safe = safe.wait_for(|safe| *safe) => safe.is_ok(),
                    () = self.stop.cancelled() => false,
                };
                if is_safe {
                    self.admission.tell_of_copy(&message, "it runs here already");
                    return receipt.ack().await;
                }
                return receipt.hand_back().await;
            }
        };

        let place = match self.admission.admit(line, &message, origin).await {
            Turn::Begins(place) => place,
            Turn::Cancelled(reason) => {
                slot.end();
                drop(run);
                self.executor.decline(&message, &reason).await;
                self.admission.end(attempt);
                return receipt.ack().await;
            }
            Turn::Lost(holder) => {
                tracing::warn!(
                    occurrence.id = %message.occurrence_id,
                    occurrence.attempt = message.attempt,
                    holder = holder.as_deref().unwrap_or("not known"),
                    "claimed by an instance from which nobody has heard what became of it; reported as lost"
                );
                slot.end();
                drop(run);
                // The dead one's mark stays: it drops further copies once the server has gone on.
                self.executor.give_up(&message, holder.as_deref()).await;
                return receipt.ack().await;
            }
            Turn::Elsewhere(verdict) => {
                drop((slot, run));
                return match verdict {
                    Verdict::Ack => receipt.ack().await,
                    Verdict::HandBack => {
                        self.vitals.sent_back();
                        receipt.hand_back().await;
                    }
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
            let is_interrupted = end.await;
            slot.end();
            if !is_interrupted {
                self.admission.end(attempt);
            }
            drop((place, run));
            is_interrupted
        };
        let acknowledge = async {
            confirmed.await;
            slot.safe();
            faults::point("cp22");
            receipt.ack().await;
            faults::point("cp23");
        };
        // Until the broker has heard that it began, nobody knows what becomes of one that was interrupted: either its
        // reports get through, or its message goes to somebody who is to begin this very attempt (`shutdown`).
        if let (true, ()) = tokio::join!(end, acknowledge) {
            self.admission.end(attempt);
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

/// Whether its sender has sent the message before, or may have.
fn is_republished(delivery: &Delivery) -> bool {
    delivery.properties.headers().as_ref().is_some_and(|headers| headers.inner().contains_key(HEADER_REPUBLISH))
}
