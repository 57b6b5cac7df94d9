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
    delivery::claim::ClaimStore,
    delivery::run_table::RunTable,
    net::publisher::WorkerPublisher,
    reporting::outbox::{OutboxWarning, WriteGate},
    reporting::reporter,
    reporting::reporter::{ReporterConfig, ReporterReceiver},
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
    pub(crate) report_receiver: ReporterReceiver,
    pub(crate) reporter_config: ReporterConfig,
    pub(crate) warning: OutboxWarning,
    /// The listener of the health endpoint and the states it shows, if an address is configured.
    pub(crate) health: Option<(TcpListener, WorkerMetrics, WriteGate)>,
}

/// Starts the thread.
///
/// # Errors
/// Returns [`WorkerError::ControlThread`] if the operating system refuses the thread or its runtime.
pub(crate) fn start(config: ControlThreadConfig) -> Result<OwnThread, WorkerError> {
    OwnThread::start("worker-control", move |stop| async move {
        // Reports should have been flushed before the stop; those that could not be sent stay in the outbox.
        if let Err(error) = run(config, stop).await {
            tracing::error!(error = %error, "cannot start the control thread; check REDIS_URL");
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
        report_receiver,
        reporter_config,
        warning,
        health,
    } = config;
    let claims = ClaimStore::new(&redis_url, keys.clone(), &hello.instance_id)?;
    let listener = tokio::spawn(cancel::listen(keys, claims.clone(), running.clone()));
    let close = CancellationToken::new();
    let (publisher, keep_open) = WorkerPublisher::new(amqp, topology.clone(), hello.instance_id.clone(), close.clone());
    let publisher_task = tokio::spawn(keep_open);
    if let Some((listener, metrics, gate)) = health {
        let health = HealthServer { metrics, broker: Some(BrokerState { publisher: publisher.clone(), gate }) };
        tokio::spawn(health.serve(listener));
    }
    let reporter_task = tokio::spawn(reporter::run(
        report_receiver,
        publisher.clone(),
        topology.clone(),
        reporter_config,
        close.clone(),
    ));
    Heartbeater::new(hello, claims, running, publisher, &topology, warning).run(stop).await;
    listener.abort();
    close.cancel();
    let _ = timeout(TASK_CLOSE_TIMEOUT, publisher_task).await;
    let _ = timeout(TASK_CLOSE_TIMEOUT, reporter_task).await;
    Ok(())
}
