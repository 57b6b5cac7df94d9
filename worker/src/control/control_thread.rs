//! The thread that keeps a worker alive in the eyes of others.
//!
//! Jobs are other people's code: one that never yields holds up every task beside it. Heartbeats, the renewal of claims
//! and the reports therefore have an operating system thread and a runtime of their own, with their own connections.
//! A worker whose jobs block is slow; it is not taken for dead, and nothing it runs is started a second time. Here it
//! also listens for cancellations, keeps its outbox and says how it is.

use std::{net::TcpListener, thread, time::Duration};

use lapin::uri::AMQPUri;
use milvaion_protocol::{
    message::InstanceHello,
    topology::{RedisKeys, Topology},
};
use tokio::{runtime, sync::oneshot, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    api::error::WorkerError,
    control::cancel,
    control::heartbeat::Heartbeater,
    control::metrics::{HealthServer, WorkerMetrics},
    delivery::claim::ClaimStore,
    delivery::run_table::RunTable,
    net::publisher::WorkerPublisher,
    reporting::outbox::{OutboxWarning, WriteGate},
    reporting::reporter,
    reporting::reporter::{ReporterConfig, ReporterReceiver},
};

/// How long the outbox may take to be closed.
const TASK_CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// What the thread needs to begin.
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
    /// Where health is answered, if anywhere.
    pub(crate) health: Option<(TcpListener, WorkerMetrics, WriteGate)>,
}

/// The running thread.
pub(crate) struct ControlThread {
    leave: CancellationToken,
    ended: oneshot::Receiver<()>,
}

impl ControlThread {
    /// Starts the thread.
    pub(crate) fn start(needs: ControlThreadConfig) -> Result<Self, WorkerError> {
        let runtime =
            runtime::Builder::new_current_thread().enable_all().build().map_err(WorkerError::ControlThread)?;
        let leave = CancellationToken::new();
        let (end, ended) = oneshot::channel();
        let theirs = leave.clone();
        thread::Builder::new()
            .name("worker-control".to_owned())
            .spawn(move || {
                if let Err(error) = runtime.block_on(live(needs, theirs)) {
                    tracing::error!(error = %error, "the control thread cannot start");
                }
                drop(end);
            })
            .map_err(WorkerError::ControlThread)?;
        Ok(Self { leave, ended })
    }

    /// Ends when the thread does, which it should not before [`stop`](Self::stop).
    pub(crate) async fn died(&mut self) {
        let _ = (&mut self.ended).await;
    }

    /// Says goodbye and closes what the thread has open. Reports should have been flushed; what was not stays in the outbox.
    pub(crate) async fn stop(self) {
        self.leave.cancel();
        let _ = self.ended.await;
    }
}

async fn live(needs: ControlThreadConfig, leave: CancellationToken) -> redis::RedisResult<()> {
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
    } = needs;
    let claims = ClaimStore::new(&redis_url, keys.clone(), &hello.instance_id)?;
    let listener = tokio::spawn(cancel::listen(redis::Client::open(redis_url)?, keys, claims.clone(), running.clone()));
    let close = CancellationToken::new();
    let (publisher, keep_open) = WorkerPublisher::new(amqp, topology.clone(), hello.instance_id.clone(), close.clone());
    let keeper = tokio::spawn(keep_open);
    if let Some((listener, metrics, gate)) = health {
        let health = HealthServer { metrics, publisher: publisher.clone(), gate };
        tokio::spawn(health.serve(listener));
    }
    let reporter_task = tokio::spawn(reporter::run(
        report_receiver,
        publisher.clone(),
        topology.clone(),
        reporter_config,
        close.clone(),
    ));
    Heartbeater::new(hello, claims, running, publisher, &topology, warning).run(leave).await;
    listener.abort();
    close.cancel();
    let _ = timeout(TASK_CLOSE_TIMEOUT, keeper).await;
    let _ = timeout(TASK_CLOSE_TIMEOUT, reporter_task).await;
    Ok(())
}
