//! The thread that keeps a worker alive for the server and for other instances.
//!
//! Jobs are foreign code. A job that never yields blocks every other task of its runtime thread. Heartbeats, the
//! renewal of claims and the reports therefore have their own operating system thread, with its own runtime and its own
//! connections. A worker whose jobs block is slow, but its runs do not count as lost, and none of them is started a
//! second time. The thread also listens for cancel requests, writes the outbox and serves health checks.

use std::{net::TcpListener, time::Duration};

use lapin::uri::AMQPUri;
use milvaion_protocol::{
    message::InstanceHello,
    topology::{RedisKeys, Topology},
};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{
    api::error::WorkerError,
    control::cancel,
    control::heartbeat::Heartbeater,
    control::metrics::{BrokerState, HealthServer, WorkerMetrics},
    control::own_thread::OwnThread,
    control::task_supervisor::TaskSupervisor,
    delivery::claim::ClaimStore,
    delivery::permits::PrioritySemaphore,
    delivery::refused_queues::RefusedQueues,
    delivery::run_table::RunTable,
    net::publisher::WorkerPublisher,
    reporting::outbox::{OutboxWarning, WriteGate},
    reporting::reporter,
    reporting::reporter::ReporterConfig,
    reporting::reporter_inbox::ReporterReceiver,
};

/// Maximum time for each task of the thread to close; the outbox is written during this time.
const TASK_CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The parts of a worker that the thread needs.
pub(crate) struct ControlThreadConfig {
    pub(crate) amqp: AMQPUri,
    pub(crate) redis_url: String,
    pub(crate) topology: Topology,
    pub(crate) keys: RedisKeys,
    pub(crate) hello: InstanceHello,
    pub(crate) running: RunTable,
    pub(crate) permits: PrioritySemaphore,
    pub(crate) report_receiver: ReporterReceiver,
    pub(crate) reporter_config: ReporterConfig,
    pub(crate) warning: OutboxWarning,
    pub(crate) refused_queues: RefusedQueues,
    /// Fires as soon as the worker takes no new work, which heartbeats announce.
    pub(crate) stopping: CancellationToken,
    /// Receives the failures of the tasks of the thread.
    pub(crate) tasks: TaskSupervisor,
    /// The listener of the health endpoint and the states it shows, if an address is configured.
    pub(crate) health: Option<(TcpListener, WorkerMetrics, WriteGate)>,
}

/// Starts the thread.
///
/// # Errors
/// Returns [`WorkerError::ControlThread`] if the operating system refuses the thread or its runtime.
pub(crate) fn start(config: ControlThreadConfig) -> Result<OwnThread, WorkerError> {
    let tasks = config.tasks.clone();
    OwnThread::start("worker-control", move |stop| async move {
        // Reports should have been flushed before the stop; those that could not be sent stay in the outbox.
        if let Err(error) = run(config, stop).await {
            tasks.fail("control thread", format!("REDIS_URL cannot be used ({error})"));
        }
    })
    .map_err(WorkerError::ControlThread)
}

async fn run(config: ControlThreadConfig, stop: CancellationToken) -> redis::RedisResult<()> {
    let ControlThreadConfig {
        amqp,
        redis_url,
        topology,
        keys,
        hello,
        running,
        permits,
        report_receiver,
        reporter_config,
        warning,
        refused_queues,
        stopping,
        tasks,
        health,
    } = config;
    let claims = ClaimStore::new(&redis_url, keys.clone(), &hello.instance_id)?;
    let cancel = cancel::listen(keys, claims.clone(), running.clone());
    let listener = tokio::spawn(tasks.guard("cancel listener", &stop, cancel));
    let close = CancellationToken::new();
    let (publisher, keep_open) = WorkerPublisher::new(amqp, topology.clone(), hello.instance_id.clone(), close.clone());
    let publisher_task = tokio::spawn(tasks.guard("publisher", &close, keep_open));
    if let Some((listener, metrics, gate)) = health {
        let health = HealthServer { metrics, broker: Some(BrokerState { publisher: publisher.clone(), gate }) };
        tokio::spawn(tasks.guard("health server", &stop, health.serve(listener)));
    }
    let unconfirmed_ends = report_receiver.unconfirmed_ends();
    let reporting = reporter::run(report_receiver, publisher.clone(), topology.clone(), reporter_config, close.clone());
    let reporter_task = tokio::spawn(tasks.guard("reporter", &close, reporting));
    let heartbeater = Heartbeater {
        hello,
        claims,
        running,
        permits,
        unconfirmed_ends,
        publisher,
        exchange: topology.registration(),
        warning,
        refused_queues,
        stopping,
        refused_parts: std::sync::Mutex::default(),
    };
    tasks.guard("heartbeat", &stop, heartbeater.run(stop.clone())).await;
    // After a failure of the heartbeat, the reports of ending runs are still sent.
    stop.cancelled().await;
    listener.abort();
    close.cancel();
    let _ = timeout(TASK_CLOSE_TIMEOUT, publisher_task).await;
    let _ = timeout(TASK_CLOSE_TIMEOUT, reporter_task).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::id::OccurrenceId;

    use super::*;
    use crate::{
        reporting::{
            log_buffer::LogBounds,
            outbox::{self, Outbox},
            reporter_inbox::Reporter,
        },
        run::report_sink::ReportSink,
    };

    #[tokio::test]
    async fn early_end_of_the_reporter_is_a_failure_that_names_it() {
        let bounds = LogBounds { lines: 100, bytes: 1_000_000 };
        let (reporter, report_receiver) = Reporter::new(bounds);
        let outbox = outbox::open(&Outbox::Off, "w", &outbox::OutboxSystem::default()).await.expect("off");
        let tasks = TaskSupervisor::default();
        let thread = start(ControlThreadConfig {
            // Nothing listens on these ports.
            amqp: "amqp://127.0.0.1:1/%2f".parse().expect("valid"),
            redis_url: "redis://127.0.0.1:1/0".to_owned(),
            topology: Topology::new("t"),
            keys: RedisKeys::default(),
            hello: InstanceHello::default(),
            running: RunTable::default(),
            permits: PrioritySemaphore::new(1, [1]),
            report_receiver,
            reporter_config: ReporterConfig {
                journal: outbox.journal,
                recovered: outbox.recovered,
                bounds,
                metrics: WorkerMetrics::default(),
            },
            warning: outbox.warning,
            refused_queues: RefusedQueues::default(),
            stopping: CancellationToken::new(),
            tasks: tasks.clone(),
            health: None,
        })
        .expect("started");
        reporter.log(
            OccurrenceId::default(),
            milvaion_protocol::message::LogLine {
                seq: 1,
                at: chrono::DateTime::UNIX_EPOCH,
                level: milvaion_protocol::message::LogLevel::Info,
                message: String::new(),
                data: None,
            },
        );
        assert_eq!(tasks.failure(), None);
        // Its loop ends when no sender is left.
        drop(reporter);
        timeout(TASK_CLOSE_TIMEOUT, tasks.failed()).await.expect("the failure is detected");
        assert_eq!(tasks.failure().expect("a failure").task, "reporter");
        thread.stop().await;
    }
}
