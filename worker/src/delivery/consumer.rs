//! Consumes the job queues and passes deliveries to the executor.
//!
//! Each job type has its own queue, channel and consumer, so that a slow type delays only itself, and a queue that the
//! broker refuses stops only its own type. With reserved slots, it has a second queue for its critical runs, with a channel
//! and a consumer of its own. Deliveries are handled as follows:
//!
//! | Delivery | Answer to the broker |
//! |---|---|
//! | cannot be decoded, or is of another job type | rejected: it becomes a dead letter |
//! | duplicate of an attempt that runs here, or ran here recently | acknowledged once the start of the first delivery is confirmed |
//! | duplicate of an attempt that has ended, or that a live instance runs | acknowledged |
//! | has not started at shutdown, or waits for a permit or a writable outbox for two seconds, and longer each time | returned to its queue |
//! | may not start, according to [`admission`](crate::delivery::admission) | the answer that admission gives |
//! | was cancelled before its start, or was lost with another instance | acknowledged when that report is confirmed |
//! | runs | acknowledged when the report of its start is confirmed |
//! | bundle | the runs are handled one by one, and [answered together](crate::delivery::run_ack) |
//! | bundle that was delivered before | rejected unread: one of its runs may have ended the process that read it |
//!
//! The acknowledgement comes early, so the broker's delivery timeout never affects a long run. From then on, only the
//! lease of its claim protects the run.

use std::{sync::Arc, time::Duration};

use futures::{
    FutureExt, StreamExt,
    stream::{self, BoxStream},
};
use lapin::{
    Channel, Connection,
    message::Delivery,
    options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
    uri::AMQPUri,
};
use milvaion_protocol::{backoff::Backoff, message::JobMessage, topology::Topology};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

use crate::{
    api::error::log_text,
    clock,
    control::metrics::WorkerMetrics,
    control::task_supervisor::TaskSupervisor,
    delivery::acks::{AckTracker, PendingAck},
    delivery::admission::{Admission, AdmissionDecision, DeliveryAnswer, DeliveryOrigin, RunBegin},
    delivery::reading::{MessageError, is_bundle, is_old, is_republished, read, read_bundle},
    delivery::refused_queues::RefusedQueues,
    delivery::run_ack::RunAck,
    delivery::run_table::{RunReservation, RunTable},
    delivery::watchdog::ConsumerWatchdog,
    faults,
    net::connection,
    net::topology,
    run::executor::{Executor, RunEnd},
    run::registry::RegisteredJob,
};

/// Maximum time for the broker to answer a request.
const BROKER_REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which refused queues are tried again.
const REFUSED_QUEUE_INTERVAL: Duration = Duration::from_secs(10);

/// A queue of a job type.
#[derive(Clone, Copy)]
struct ConsumedQueue {
    type_index: usize,
    /// True for the queue of critical runs.
    is_critical: bool,
}

/// The deliveries of one queue with its index. `None` is the end of the consumer.
type DeliveryStream = BoxStream<'static, (usize, Option<lapin::Result<Delivery>>)>;

/// The channel for requests that belong to no queue, the channel of each queue, and the deliveries of all of them. A queue
/// that the broker refuses has no channel.
type OpenConsumers = (Channel, Vec<Option<AckTracker>>, stream::SelectAll<DeliveryStream>);

/// The consumers of one worker, and the parts that all deliveries share.
pub(crate) struct DeliveryConsumer {
    pub(crate) worker_id: String,
    pub(crate) instance_id: String,
    pub(crate) topology: Topology,
    /// The job types, each with its own queue.
    pub(crate) job_types: Vec<Arc<RegisteredJob>>,
    /// The number of slots that are reserved for critical runs. Above 0, each job type has a second queue.
    pub(crate) critical_slots: u16,
    pub(crate) admission: Admission,
    pub(crate) running: RunTable,
    pub(crate) metrics: WorkerMetrics,
    pub(crate) executor: Executor,
    /// Tasks of deliveries that are not answered yet.
    pub(crate) deliveries: TaskTracker,
    /// Tasks among `deliveries` whose run has not ended: it waits or runs.
    pub(crate) runs: TaskTracker,
    pub(crate) stop: CancellationToken,
    /// Ends the tasks of deliveries that are still not answered when the worker has ended.
    pub(crate) abandon: CancellationToken,
    /// Receives the panics of the tasks of deliveries.
    pub(crate) tasks: TaskSupervisor,
    /// The queues that the broker refuses, for the notice of the heartbeats.
    pub(crate) refused_queues: RefusedQueues,
}

/// The consuming connection after its consumers were cancelled. A channel closes when its last handle is dropped, which
/// returns its unacknowledged deliveries to their queues. The handles are therefore kept.
pub(crate) struct DrainingConnection {
    connection: Connection,
    _channels: Vec<AckTracker>,
}

impl DrainingConnection {
    /// Closes the connection. Unacknowledged deliveries return to their queues.
    pub(crate) async fn close(self) {
        connection::close(&self.connection).await;
    }
}

/// The error that ended consuming although the worker is not stopping.
#[derive(Debug, thiserror::Error)]
enum ConsumeError {
    #[error("an AMQP operation failed")]
    Broker(#[from] lapin::Error),
    #[error("the broker cancelled a consumer; check whether its queue was deleted")]
    ConsumerCancelled,
    #[error("messages wait in queue {0} and none is delivered")]
    Stalled(String),
    #[error("the broker does not answer on this connection")]
    Unresponsive,
}

impl DeliveryConsumer {
    /// Consumes until the worker stops. Returns the connection, which is still needed to acknowledge the current runs.
    pub(crate) async fn run(self: Arc<Self>, uri: AMQPUri) -> Option<DrainingConnection> {
        let name = format!("{} consume", self.instance_id);
        let mut backoff = Backoff::default();
        loop {
            let connection = tokio::select! {
                connection = connection::open(&uri, &name, &mut backoff) => connection,
                () = self.stop.cancelled() => return None,
            };
            let opened_at = Instant::now();
            let ended = self.consume(&connection).await;
            self.metrics.consuming(false);
            match ended {
                Ok(channels) => return Some(DrainingConnection { connection, _channels: channels }),
                Err(error) => {
                    tracing::warn!(
                        error = log_text(&error),
                        "consuming has failed; the worker reconnects to the broker"
                    );
                }
            }
            backoff.reset_after(opened_at.elapsed());
            connection::close(&connection).await;
            tokio::select! {
                () = sleep(backoff.next_delay(clock::jitter())) => {}
                () = self.stop.cancelled() => return None,
            }
        }
    }

    /// Consumes on one connection. `Ok` means that the worker stops, and holds the channels of the deliveries.
    async fn consume(self: &Arc<Self>, connection: &Connection) -> Result<Vec<AckTracker>, ConsumeError> {
        // A broker that accepts the connection and answers nothing must not delay the stop of the worker.
        let Some(opened) = self.stop.run_until_cancelled(self.open_consumers(connection)).await else {
            return Ok(Vec::new());
        };
        let (channel, mut channels, mut deliveries) = opened?;
        self.metrics.consuming(channels.iter().any(Option::is_some));
        let job_types = channels[..self.job_types.len()].iter().flatten().count();
        tracing::info!(
            worker.id = self.worker_id,
            job_types,
            "worker {} consumes {job_types} job types",
            self.worker_id
        );
        let queues = self.queues();
        let mut watchdog = ConsumerWatchdog::new(channel, queues.iter().map(|queue| self.queue_name(*queue)).collect());
        let mut retries = interval(REFUSED_QUEUE_INTERVAL);
        retries.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is immediate.
        retries.tick().await;
        loop {
            let next = tokio::select! {
                biased;
                () = self.stop.cancelled() => {
                    self.return_the_rest(&channels, deliveries).await;
                    return Ok(channels.into_iter().flatten().collect());
                }
                next = deliveries.next(), if !deliveries.is_empty() => next,
                _ = retries.tick(), if channels.iter().any(Option::is_none) => {
                    for (index, acks) in channels.iter_mut().enumerate().filter(|(_, acks)| acks.is_none()) {
                        let consuming = self.consume_queue(connection, index, queues[index]);
                        let Some(consumed) = self.stop.run_until_cancelled(consuming).await else { break };
                        if let Some((tracker, stream)) = consumed? {
                            *acks = Some(tracker);
                            deliveries.push(stream);
                            watchdog.delivery_received(index);
                        }
                    }
                    self.metrics.consuming(channels.iter().any(Option::is_some));
                    continue;
                }
                () = watchdog.wait() => {
                    let full = channels.iter().zip(&queues).map(|(acks, queue)| {
                        // A refused queue is not watched, like one that may deliver nothing more.
                        acks.as_ref().is_none_or(|acks| acks.unacked() >= usize::from(self.prefetch(*queue)))
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
                Some((index, Some(Ok(delivery)))) => {
                    watchdog.delivery_received(index);
                    self.metrics.delivered();
                    let Some(acks) = &channels[index] else { continue };
                    let pending_ack = acks.open(delivery.delivery_tag);
                    self.spawn(self.clone().handle(queues[index].type_index, delivery, pending_ack));
                }
                Some((_, Some(Err(error)))) => return Err(error.into()),
                Some((_, None)) | None => return Err(ConsumeError::ConsumerCancelled),
            }
        }
    }

    /// Spawns a part of the handling of a delivery, which ends with the worker.
    fn spawn(&self, handling: impl Future<Output = ()> + Send + 'static) {
        let handling = self.abandon.clone().run_until_cancelled_owned(handling).map(drop);
        self.deliveries.spawn(self.tasks.guard_panics("delivery", handling));
    }

    /// Returns the queues of all job types, and after them those of their critical runs.
    fn queues(&self) -> Vec<ConsumedQueue> {
        let types = 0..self.job_types.len();
        let job_queues = types.clone().map(|type_index| ConsumedQueue { type_index, is_critical: false });
        let critical = types.map(|type_index| ConsumedQueue { type_index, is_critical: true });
        job_queues.chain(critical.filter(|_| self.critical_slots > 0)).collect()
    }

    fn queue_name(&self, ConsumedQueue { type_index, is_critical }: ConsumedQueue) -> String {
        let job_type = self.job_types[type_index].job_type;
        if is_critical {
            self.topology.critical_queue(&self.worker_id, job_type)
        } else {
            self.topology.job_queue(&self.worker_id, job_type)
        }
    }

    fn prefetch(&self, ConsumedQueue { type_index, is_critical }: ConsumedQueue) -> u16 {
        if is_critical { self.critical_slots } else { self.admission.permits.prefetch(type_index) }
    }

    /// Declares what all workers share, and consumes all queues.
    async fn open_consumers(&self, connection: &Connection) -> Result<OpenConsumers, lapin::Error> {
        let channel = connection.create_channel().await?;
        topology::declare_shared(&channel, &self.topology).await?;
        let queues = self.queues();
        let mut channels = Vec::with_capacity(queues.len());
        let mut deliveries = stream::SelectAll::new();
        for (index, queue) in queues.into_iter().enumerate() {
            let consumed = self.consume_queue(connection, index, queue).await?;
            channels.push(consumed.map(|(acks, stream)| {
                deliveries.push(stream);
                acks
            }));
        }
        Ok((channel, channels, deliveries))
    }

    /// Declares and consumes one queue. Returns `None` if the broker refuses the queue, which is recorded.
    async fn consume_queue(
        &self,
        connection: &Connection,
        index: usize,
        queue: ConsumedQueue,
    ) -> Result<Option<(AckTracker, DeliveryStream)>, lapin::Error> {
        let job_type = self.job_types[queue.type_index].job_type;
        // A refusal closes this channel, and only this one.
        let channel = connection.create_channel().await?;
        let consuming = async {
            let declaring =
                topology::declare_job_queue(&channel, &self.topology, &self.worker_id, job_type, queue.is_critical);
            let name = declaring.await?;
            channel.basic_qos(self.prefetch(queue), BasicQosOptions::default()).await?;
            let (tag, options) = (self.instance_id.as_str().into(), BasicConsumeOptions::default());
            channel.basic_consume(name.as_str().into(), tag, options, FieldTable::default()).await
        };
        match consuming.await {
            Ok(consumer) => {
                self.refused_queues.remove((job_type, queue.is_critical));
                // The end of a consumer (its queue was deleted) must be detected, so it is an item of the stream too.
                let deliveries = consumer.map(Some).chain(stream::iter([None]));
                let deliveries = deliveries.map(move |delivery| (index, delivery)).boxed();
                Ok(Some((AckTracker::new(channel), deliveries)))
            }
            Err(error) if error.is_amqp_soft_error() => {
                let (name, reason) = (self.queue_name(queue), log_text(&error));
                let what = if queue.is_critical { "critical messages" } else { "messages" };
                if self.refused_queues.insert((job_type, queue.is_critical), name.clone(), reason.clone()) {
                    tracing::error!(
                        job.r#type = job_type,
                        queue = name,
                        error = reason,
                        "job type {job_type} receives no {what}: the broker refuses queue {name}; delete the queue, or permit its use"
                    );
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Cancels the consumers and returns the deliveries that have not been handled to their queues.
    async fn return_the_rest<S>(&self, channels: &[Option<AckTracker>], mut deliveries: S)
    where
        S: futures::Stream<Item = (usize, Option<lapin::Result<Delivery>>)> + Unpin,
    {
        let cancelling = async {
            for acks in channels.iter().flatten() {
                let (name, options) = (self.instance_id.as_str().into(), BasicCancelOptions::default());
                if acks.channel().basic_cancel(name, options).await.is_err() {
                    return;
                }
            }
            while let Some((index, delivery)) = deliveries.next().await {
                let (Some(Ok(delivery)), Some(acks)) = (delivery, &channels[index]) else { continue };
                let pending_ack = acks.open(delivery.delivery_tag);
                if is_bundle(&delivery) {
                    pending_ack.dead_letter().await;
                } else {
                    pending_ack.return_to_queue().await;
                }
            }
        };
        let _ = timeout(BROKER_REPLY_TIMEOUT, cancelling).await;
    }

    async fn handle(self: Arc<Self>, type_index: usize, delivery: Delivery, pending_ack: PendingAck) {
        let run = self.runs.token();
        if is_bundle(&delivery) {
            return self.handle_bundle(type_index, &delivery, pending_ack).await;
        }
        let message = match read(&delivery, self.job_types[type_index].job_type) {
            Ok(message) => message,
            Err(error) => return self.reject(type_index, &error, pending_ack).await,
        };
        let origin = self.origin(&message, &delivery);
        drop(delivery);
        self.handle_run(type_index, message, origin, RunAck::Single(pending_ack), run).await;
    }

    /// Handles each run of a bundle as if it had a message of its own.
    async fn handle_bundle(self: &Arc<Self>, type_index: usize, delivery: &Delivery, pending_ack: PendingAck) {
        // A bundle is delivered once: one of its runs may have ended the process that received it first.
        if delivery.redelivered {
            self.metrics.returned();
            return pending_ack.dead_letter().await;
        }
        let runs = match read_bundle(delivery, self.job_types[type_index].job_type) {
            Ok(runs) => runs,
            Err(error) => return self.reject(type_index, &error, pending_ack).await,
        };
        let acks = RunAck::of_bundle(pending_ack, runs.len());
        for (message, ack) in runs.into_iter().zip(acks) {
            let origin = self.origin(&message, delivery);
            self.spawn(self.clone().handle_run(type_index, message, origin, ack, self.runs.token()));
        }
    }

    fn origin(&self, message: &JobMessage, delivery: &Delivery) -> DeliveryOrigin {
        let is_doubtful = is_republished(delivery) || is_old(message, clock::now());
        self.admission.origin((message.occurrence_id, message.attempt), delivery.redelivered, is_doubtful)
    }

    async fn reject(&self, type_index: usize, error: &MessageError, pending_ack: PendingAck) {
        let job_type = self.job_types[type_index].job_type;
        tracing::warn!(
            job.r#type = job_type,
            error = log_text(error),
            "a message of job type {job_type} cannot run and becomes a dead letter"
        );
        pending_ack.dead_letter().await;
    }

    async fn handle_run(
        self: Arc<Self>,
        type_index: usize,
        message: JobMessage,
        origin: DeliveryOrigin,
        run_ack: RunAck,
        run: TaskTrackerToken,
    ) {
        let job = &self.job_types[type_index];
        let attempt = (message.occurrence_id, message.attempt);
        faults::crash_point("delivery.before_claim");
        let guard = match self.running.reserve(attempt.0, attempt.1) {
            RunReservation::Reserved(guard) => guard,
            RunReservation::Ended => {
                self.admission.log_duplicate(&message, "it ended here recently");
                return run_ack.ack().await;
            }
            RunReservation::Duplicate(mut safe) => {
                // Until the start is confirmed, this duplicate may be the only trace of the run outside this process.
                let is_safe = tokio::select! {
                    safe = safe.wait_for(|safe| *safe) => safe.is_ok(),
                    () = self.stop.cancelled() => false,
                };
                if is_safe {
                    self.admission.log_duplicate(&message, "it runs here already");
                    return run_ack.ack().await;
                }
                return run_ack.give_back().await;
            }
        };

        let (permit, begin) = match self.admission.admit(type_index, &message, origin).await {
            AdmissionDecision::Start(permit, begin) => (permit, begin),
            AdmissionDecision::Cancelled(reason) => {
                guard.end();
                drop(run);
                self.executor.report_cancelled(&message, &reason).await;
                self.admission.end(attempt);
                return run_ack.ack().await;
            }
            AdmissionDecision::Lost(holder) => {
                tracing::warn!(
                    occurrence.id = %message.occurrence_id,
                    occurrence.attempt = message.attempt,
                    holder = holder.as_deref().unwrap_or("unknown"),
                    "occurrence {} was claimed by an instance that has not reported it; reporting attempt {} as lost",
                    message.occurrence_id,
                    message.attempt
                );
                guard.end();
                drop(run);
                // The claim of the lost instance stays. It lets further duplicates be dropped once the server has
                // decided.
                self.executor.report_lost(&message, holder.as_deref()).await;
                return run_ack.ack().await;
            }
            AdmissionDecision::Refuse(answer) => {
                drop((guard, run));
                return match answer {
                    DeliveryAnswer::Ack => run_ack.ack().await,
                    DeliveryAnswer::ReturnToQueue => {
                        self.metrics.returned();
                        run_ack.give_back().await;
                    }
                };
            }
        };
        faults::crash_point("delivery.after_claim");
        let stop = self.executor.stop_signal();
        guard.begin(stop.clone());
        tracing::debug!(
            occurrence.id = %message.occurrence_id,
            occurrence.attempt = message.attempt,
            job.name = message.job_name,
            job.r#type = job.job_type,
            "occurrence {} starts", message.occurrence_id
        );
        let (confirmed, end) = self.executor.start(job, message, stop.clone(), begin == RunBegin::AfterConfirm);
        let end = async {
            let RunEnd { is_interrupted, kept } = end.await;
            let is_given_back = is_interrupted && stop.is_revoked();
            if is_given_back {
                guard.end();
                // The server waits for this release, and then gives the run to another instance.
                self.admission.claim_batcher.release(attempt);
            } else {
                guard.end_unreported();
            }
            drop((permit, run));
            if is_interrupted {
                return (!is_given_back).then_some(kept);
            }
            // Not earlier: if this process dies before, the claim expires and the run is found lost within seconds. An end
            // in Redis without a report would drop every further message for minutes.
            kept.await;
            self.admission.end(attempt);
            None
        };
        let acknowledge = async {
            confirmed.await;
            guard.confirm();
            faults::crash_point("delivery.before_ack");
            run_ack.ack().await;
            faults::crash_point("delivery.after_ack");
        };
        // Until the broker has confirmed the start, the outcome of an interrupted run is unknown: either its reports
        // arrive, or its message is redelivered and another instance starts this very attempt (see `shutdown`).
        if let (Some(kept), ()) = tokio::join!(end, acknowledge) {
            kept.await;
            self.admission.end(attempt);
        }
    }
}
