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
//! | has not started when the worker stops, or has waited for two seconds: for a permit, or for an outbox that can be written | handed back |
//! | may not start, as the [`admission`](crate::delivery::admission) finds | what that room says |
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
    message::{JobMessage, MAX_MESSAGE_BYTES},
    topology::{HEADER_REPUBLISH, Topology},
};
use tokio::time::{sleep, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    control::metrics::WorkerMetrics,
    delivery::acks::{AckTracker, PendingAck},
    delivery::admission::{Admission, AdmissionDecision, DeliveryAnswer},
    delivery::run_table::{RunReservation, RunTable},
    delivery::watchdog::ConsumerWatchdog,
    faults,
    net::connection::{self, JitteredBackoff},
    net::topology,
    run::executor::Executor,
    run::registry::RegisteredJob,
};

/// How long the broker may take to answer.
const BROKER_REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// Everything deliveries share.
pub(crate) struct DeliveryConsumer {
    pub(crate) worker_id: String,
    pub(crate) instance_id: String,
    pub(crate) topology: Topology,
    /// The job types, each with a queue of its own.
    pub(crate) job_types: Vec<Arc<RegisteredJob>>,
    pub(crate) admission: Admission,
    pub(crate) running: RunTable,
    pub(crate) metrics: WorkerMetrics,
    pub(crate) executor: Executor,
    /// Deliveries that are not answered yet.
    pub(crate) deliveries: TaskTracker,
    /// Those among them that are not over: they wait or run.
    pub(crate) runs: TaskTracker,
    pub(crate) stop: CancellationToken,
}

/// The consuming connection after its consumers were cancelled. A channel closes when its last handle is dropped, and
/// takes the unacknowledged deliveries with it; so the handles are kept.
pub(crate) struct DrainingConnection {
    connection: Connection,
    _channels: Vec<AckTracker>,
}

impl DrainingConnection {
    /// Closes it. Whatever is not acknowledged goes back to its queue.
    pub(crate) async fn close(self) {
        connection::close(&self.connection).await;
    }
}

/// Why consuming ended though the worker does not stop.
#[derive(Debug, thiserror::Error)]
enum ConsumeError {
    #[error("{0}")]
    Broker(#[from] lapin::Error),
    #[error("the broker has cancelled a consumer; was its queue deleted?")]
    ConsumerCancelled,
    #[error("messages wait in {0}, and none is delivered")]
    Stalled(String),
    #[error("the broker does not answer on this connection")]
    Unresponsive,
}

impl DeliveryConsumer {
    /// Consumes until the worker is to stop; answers what is still needed to acknowledge what runs.
    pub(crate) async fn run(self: Arc<Self>, uri: AMQPUri) -> Option<DrainingConnection> {
        let name = format!("{} consume", self.instance_id);
        let mut backoff = JitteredBackoff::new();
        loop {
            let connection = tokio::select! {
                connection = connection::open(&uri, &name, &mut backoff) => connection,
                () = self.stop.cancelled() => return None,
            };
            let ended = self.consume(&connection).await;
            self.metrics.consuming(false);
            match ended {
                Ok(channels) => return Some(DrainingConnection { connection, _channels: channels }),
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
    async fn consume(self: &Arc<Self>, connection: &Connection) -> Result<Vec<AckTracker>, ConsumeError> {
        let channel = connection.create_channel().await?;
        topology::declare_shared(&channel, &self.topology).await?;
        let mut channels = Vec::new();
        let mut streams = Vec::new();
        let mut queues = Vec::new();
        for (type_index, job) in self.job_types.iter().enumerate() {
            let job_type = job.job_type;
            let queue = topology::declare_job_queue(&channel, &self.topology, &self.worker_id, job_type).await?;
            let own = connection.create_channel().await?;
            own.basic_qos(self.admission.permits.prefetch(type_index), BasicQosOptions::default()).await?;
            let consumer = own
                .basic_consume(
                    queue.as_str().into(),
                    self.instance_id.as_str().into(),
                    BasicConsumeOptions::default(),
                    FieldTable::default(),
                )
                .await?;
            channels.push(AckTracker::new(own));
            queues.push(queue);
            // A consumer that ends by itself (its queue was deleted) must be noticed, so its end is an item too.
            streams.push(consumer.map(Some).chain(stream::iter([None])).map(move |delivery| (type_index, delivery)));
        }
        self.metrics.consuming(true);
        tracing::info!(worker.id = self.worker_id, job_types = self.job_types.len(), "waiting for work");
        let mut deliveries = stream::select_all(streams);
        let mut watchdog = ConsumerWatchdog::new(channel, queues);
        loop {
            let next = tokio::select! {
                biased;
                () = self.stop.cancelled() => {
                    self.hand_back_the_rest(&channels, deliveries).await;
                    return Ok(channels);
                }
                next = deliveries.next() => next,
                () = watchdog.wait() => {
                    let full = channels.iter().enumerate().map(|(type_index, acks)| {
                        acks.unacked() >= usize::from(self.admission.permits.prefetch(type_index))
                    });
                    match timeout(BROKER_REPLY_TIMEOUT, watchdog.check(full)).await {
                        Ok(Ok(None)) => continue,
                        Ok(Ok(Some(queue))) => return Err(ConsumeError::Stalled(queue.to_owned())),
                        Ok(Err(error)) => return Err(error.into()),
                        Err(_) => return Err(ConsumeError::Unresponsive),
                    }
                }
            };
            match next {
                Some((type_index, Some(Ok(delivery)))) => {
                    watchdog.delivery_received(type_index);
                    self.metrics.delivered();
                    let pending_ack = channels[type_index].open(delivery.delivery_tag);
                    self.deliveries.spawn(self.clone().handle(type_index, delivery, pending_ack));
                }
                Some((_, Some(Err(error)))) => return Err(error.into()),
                Some((_, None)) | None => return Err(ConsumeError::ConsumerCancelled),
            }
        }
    }

    async fn hand_back_the_rest<S>(&self, channels: &[AckTracker], mut deliveries: S)
    where
        S: futures::Stream<Item = (usize, Option<lapin::Result<Delivery>>)> + Unpin,
    {
        let cancelling = async {
            for acks in channels {
                let (name, options) = (self.instance_id.as_str().into(), BasicCancelOptions::default());
                if acks.channel().basic_cancel(name, options).await.is_err() {
                    return;
                }
            }
            while let Some((type_index, delivery)) = deliveries.next().await {
                if let Some(Ok(delivery)) = delivery {
                    channels[type_index].open(delivery.delivery_tag).hand_back().await;
                }
            }
        };
        let _ = timeout(BROKER_REPLY_TIMEOUT, cancelling).await;
    }

    async fn handle(self: Arc<Self>, type_index: usize, delivery: Delivery, pending_ack: PendingAck) {
        let job = &self.job_types[type_index];
        let run = self.runs.token();
        let message = match read(&delivery, job.job_type) {
            Ok(message) => message,
            Err(reason) => {
                tracing::warn!(
                    job.r#type = job.job_type,
                    error = reason,
                    "a message cannot be run; it goes to the dead letters"
                );
                return pending_ack.dead_letter().await;
            }
        };
        let attempt = (message.occurrence_id, message.attempt);
        let origin = self.admission.origin(attempt, delivery.redelivered, is_republished(&delivery));
        drop(delivery);
        faults::point("delivery.before_claim");
        let slot = match self.running.reserve(attempt.0, attempt.1) {
            RunReservation::Reserved(slot) => slot,
            RunReservation::Ended => {
                self.admission.log_duplicate(&message, "it ended here a moment ago");
                return pending_ack.ack().await;
            }
            RunReservation::Duplicate(mut safe) => {
                // Until its start is confirmed, this copy may be the only trace of the run outside this process.
                let is_safe = tokio::select! {
                    safe = safe.wait_for(|safe| *safe) => safe.is_ok(),
                    () = self.stop.cancelled() => false,
                };
                if is_safe {
                    self.admission.log_duplicate(&message, "it runs here already");
                    return pending_ack.ack().await;
                }
                return pending_ack.hand_back().await;
            }
        };

        let permit = match self.admission.admit(type_index, &message, origin).await {
            AdmissionDecision::Start(permit) => permit,
            AdmissionDecision::Cancelled(reason) => {
                slot.end();
                drop(run);
                self.executor.report_cancelled(&message, &reason).await;
                self.admission.end(attempt);
                return pending_ack.ack().await;
            }
            AdmissionDecision::Lost(holder) => {
                tracing::warn!(
                    occurrence.id = %message.occurrence_id,
                    occurrence.attempt = message.attempt,
                    holder = holder.as_deref().unwrap_or("not known"),
                    "claimed by an instance from which nobody has heard what became of it; reported as lost"
                );
                slot.end();
                drop(run);
                // The dead one's mark stays: it drops further copies once the server has gone on.
                self.executor.report_lost(&message, holder.as_deref()).await;
                return pending_ack.ack().await;
            }
            AdmissionDecision::Refuse(verdict) => {
                drop((slot, run));
                return match verdict {
                    DeliveryAnswer::Ack => pending_ack.ack().await,
                    DeliveryAnswer::HandBack => {
                        self.metrics.sent_back();
                        pending_ack.hand_back().await;
                    }
                };
            }
        };
        faults::point("delivery.after_claim");
        let stop = self.executor.stop_signal();
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
            drop((permit, run));
            is_interrupted
        };
        let acknowledge = async {
            confirmed.await;
            slot.confirm();
            faults::point("delivery.before_ack");
            pending_ack.ack().await;
            faults::point("delivery.after_ack");
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
    if delivery.data.len() > MAX_MESSAGE_BYTES {
        return Err(format!("it has {} bytes; {MAX_MESSAGE_BYTES} are the most", delivery.data.len()));
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
