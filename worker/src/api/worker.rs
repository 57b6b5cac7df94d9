//! The worker: assembles all parts, runs them and shuts them down.

use std::{
    fmt,
    net::TcpListener,
    sync::{Arc, Mutex},
    time::Duration,
};

use lapin::uri::AMQPUri;
use milvaion_protocol::{
    message::{FEATURE_CHECKPOINT, FEATURE_CLAIMS, FEATURE_SCHEDULES, InstanceHello, PROTOCOL_VERSION},
    topology::{RedisKeys, Topology},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    api::config::WorkerConfig,
    api::error::WorkerError,
    api::events::RunObservers,
    api::layer::Layer,
    api::logging,
    clock,
    control::control_thread::{self, ControlThreadConfig},
    control::heartbeat,
    control::metrics::{self, WorkerMetrics},
    control::own_thread::OwnThread,
    control::shutdown::{self, DrainContext, ShutdownSignals},
    control::task_supervisor::{TaskFailure, TaskSupervisor},
    delivery::admission::Admission,
    delivery::claim::ClaimStore,
    delivery::claim_batcher::ClaimBatcher,
    delivery::claim_check::ClaimChecker,
    delivery::consumer::DeliveryConsumer,
    delivery::permits::PrioritySemaphore,
    delivery::refused_queues::RefusedQueues,
    delivery::run_table::RunTable,
    reporting::outbox::{self, OutboxSystem},
    reporting::reporter::ReporterConfig,
    reporting::reporter_inbox::Reporter,
    run::executor::Executor,
    run::registry::{self, RegisteredJob},
    singleton::{
        SingletonLoop,
        loop_thread::{self, LoopThreadConfig},
    },
};
#[cfg(feature = "client")]
use crate::{api::context::enqueue::JobEnqueuer, client::BrokerClient};

/// Maximum time for the tasks of unanswered deliveries to end with their worker.
const ABANDON_TIMEOUT: Duration = Duration::from_secs(1);

/// A configured worker, ready to run.
pub struct Worker {
    pub(super) config: WorkerConfig,
    pub(super) jobs: Vec<Arc<RegisteredJob>>,
    pub(super) loops: Vec<SingletonLoop>,
    pub(super) amqp: AMQPUri,
    pub(super) instance_id: String,
    pub(super) version: String,
    pub(super) layers: Arc<[Arc<dyn Layer>]>,
    pub(super) events: RunObservers,
    pub(super) metrics: WorkerMetrics,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("instance_id", &self.instance_id)
            .field("version", &self.version)
            .field("config", &self.config)
            .field("job_types", &self.jobs.iter().map(|job| job.job_type).collect::<Vec<_>>())
            .field("singletons", &self.loops.iter().map(|spec| &spec.name).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl Worker {
    /// Returns the instance id of this process: the worker id and eight random hex digits.
    #[must_use]
    pub fn instance_id(&self) -> &str {
        &self.instance_id
    }

    /// Runs until SIGTERM or SIGINT, then shuts down in an orderly way: takes no new work, lets runs continue for the
    /// shutdown grace, interrupts those that remain, and reports everything. A second signal ends the grace. When this has
    /// returned, both signals end the process again, as by default. A program that handles signals itself uses
    /// [`run_until`](Self::run_until).
    ///
    /// If the program has set no subscriber of `tracing`, this function sets one that writes to standard error, with the
    /// level `info` or the filter in `RUST_LOG`, so that a first worker shows what it does.
    ///
    /// # Errors
    /// Returns a [`WorkerError`] if signal handlers cannot be installed, `REDIS_URL` cannot be used, the health address
    /// cannot be bound, the outbox cannot be opened, the control thread cannot be started, or an inner task of the worker
    /// fails. Unavailable services are no error: the worker waits for them.
    pub async fn run(self) -> Result<(), WorkerError> {
        logging::set_default();
        let (signals, _guard) = ShutdownSignals::from_signals()?;
        self.serve(signals).await
    }

    /// Runs like [`run`](Self::run), but until `stop` fires instead of a signal. When this has returned, nothing of the
    /// worker is left in the program, except for jobs that block their thread.
    ///
    /// # Errors
    /// Returns the same errors as [`run`](Self::run), except for signal handlers.
    pub async fn run_until(self, stop: CancellationToken) -> Result<(), WorkerError> {
        self.serve(ShutdownSignals { stop, ..ShutdownSignals::default() }).await
    }

    async fn serve(mut self, signals: ShutdownSignals) -> Result<(), WorkerError> {
        let loops = std::mem::take(&mut self.loops);
        if self.jobs.is_empty() {
            return self.serve_loops(loops, &signals).await;
        }
        let tasks = TaskSupervisor::default();
        if loops.is_empty() {
            return self.serve_jobs(signals, tasks).await;
        }
        let mut thread = self.start_loops(loops, None)?;
        let (stop, jobs_ended) = (signals.stop.clone(), CancellationToken::new());
        let serve_jobs = async {
            let _ends_loops = jobs_ended.clone().drop_guard();
            self.serve_jobs(signals, tasks.clone()).await
        };
        // The loops stop beside the runs, so that their successors need not wait for the shutdown grace.
        let stop_loops = async {
            tokio::select! {
                () = stop.cancelled() => {}
                () = jobs_ended.cancelled() => {}
                () = thread.ended() => return tasks.fail("thread of singleton loops", "it has ended".to_owned()),
            }
            thread.stop().await;
        };
        let (result, ()) = tokio::join!(serve_jobs, stop_loops);
        result
    }

    /// Starts the thread of the singleton loops.
    fn start_loops(&self, loops: Vec<SingletonLoop>, health: Option<TcpListener>) -> Result<OwnThread, WorkerError> {
        loop_thread::start(LoopThreadConfig {
            loops,
            redis_url: self.config.redis_url.clone(),
            keys: RedisKeys::new(self.config.key_prefix.as_str()),
            worker_id: self.config.worker_id.clone(),
            instance_id: self.instance_id.clone(),
            metrics: self.metrics.clone(),
            health,
        })
    }

    /// Runs a worker without job types, which opens no connection to the broker and no outbox.
    async fn serve_loops(&self, loops: Vec<SingletonLoop>, signals: &ShutdownSignals) -> Result<(), WorkerError> {
        let health = self.config.health.map(metrics::open).transpose()?;
        let (worker, instance) = (&self.config.worker_id, &self.instance_id);
        tracing::info!(
            worker.id = worker,
            worker.instance = instance,
            loops = loops.len(),
            "worker starts without job types"
        );
        let mut thread = self.start_loops(loops, health)?;
        tokio::select! {
            () = signals.stop.cancelled() => thread.stop().await,
            () = thread.ended() => return Err(WorkerError::LoopThreadDied),
        }
        tracing::info!("worker has stopped");
        Ok(())
    }

    /// Runs the job types of a worker.
    async fn serve_jobs(self, signals: ShutdownSignals, tasks: TaskSupervisor) -> Result<(), WorkerError> {
        let Self { config, jobs, amqp, instance_id, version, layers, events, metrics, loops: _ } = self;
        let (topology, keys) = (Topology::new(config.prefix.as_str()), RedisKeys::new(config.key_prefix.as_str()));
        let (running, interrupt) = (RunTable::default(), CancellationToken::new());
        // A child token, so that a failed task can end this worker without cancelling a token of the caller.
        let stop = signals.stop.child_token();
        // Fires when this function returns, however it does, and ends what remains of the worker.
        let abandon = CancellationToken::new();
        let _abandons_rest = abandon.clone().drop_guard();
        let refused_queues = RefusedQueues::default();
        let (reporter, report_receiver) = Reporter::new(config.log_bounds());
        let health = config.health.map(metrics::open).transpose()?;
        tracing::info!(
            worker.id = config.worker_id,
            worker.instance = instance_id,
            "worker {} starts as instance {instance_id}: it offers {} over the broker at {}:{} and Redis at {}",
            config.worker_id,
            registry::names(&jobs),
            amqp.authority.host,
            amqp.authority.port,
            logging::redis_address(&config.redis_url)
        );
        let outbox = outbox::open(&config.outbox, &config.worker_id, &OutboxSystem::new(&amqp, &config.prefix)).await?;

        let hello = InstanceHello {
            worker_id: config.worker_id.clone(),
            instance_id: instance_id.clone(),
            host: heartbeat::host_name(),
            pid: std::process::id(),
            version,
            protocol: PROTOCOL_VERSION,
            features: [FEATURE_CLAIMS, FEATURE_CHECKPOINT, FEATURE_SCHEDULES].map(str::to_owned).to_vec(),
            capacity: config.capacity,
            critical_slots: config.critical_slots,
            job_types: registry::announce(&jobs, config.capacity),
            timestamp: clock::now(),
        };
        let permits = PrioritySemaphore::new(config.capacity as usize, jobs.iter().map(|job| job.concurrency.into()))
            .reserve(config.critical_slots as usize);
        let mut control_thread = control_thread::start(ControlThreadConfig {
            amqp: amqp.clone(),
            redis_url: config.redis_url.clone(),
            topology: topology.clone(),
            keys: keys.clone(),
            hello,
            running: running.clone(),
            permits: permits.clone(),
            report_receiver,
            reporter_config: ReporterConfig {
                journal: outbox.journal,
                recovered: outbox.recovered,
                bounds: config.log_bounds(),
                metrics: metrics.clone(),
            },
            warning: outbox.warning,
            refused_queues: refused_queues.clone(),
            stopping: stop.clone(),
            tasks: tasks.clone(),
            health: health.map(|listener| (listener, metrics.clone(), outbox.gate.clone())),
        })?;
        let claims = ClaimStore::new(&config.redis_url, keys, &instance_id).map_err(WorkerError::Redis)?;
        // A worker that is stopped before it is connected ends at once.
        signals.stop.run_until_cancelled(claims.warm_up()).await;
        let (claim_batcher, batching) = ClaimBatcher::new(claims);
        tokio::spawn(tasks.guard("claim batcher", &abandon, batching));
        let claim_checker = ClaimChecker::new(amqp.clone(), topology.clone(), instance_id.clone());
        #[cfg(feature = "client")]
        let enqueuer = JobEnqueuer {
            worker_id: config.worker_id.as_str().into(),
            unique: Arc::new(registry::unique_types(&jobs)),
            transport: Arc::new(
                BrokerClient::new(&config.amqp_url, &config.prefix)
                    .map_err(WorkerError::Enqueue)?
                    .with_producer(&config.worker_id),
            ),
        };
        let (worker_id, log_bounds): (Arc<str>, _) = (config.worker_id.as_str().into(), config.attempt_log_bounds());
        let consumer = Arc::new(DeliveryConsumer {
            worker_id: config.worker_id,
            instance_id: instance_id.clone(),
            topology,
            job_types: jobs,
            critical_slots: u16::try_from(config.critical_slots).unwrap_or(u16::MAX),
            admission: Admission {
                permits,
                outbox: outbox.gate,
                claim_batcher,
                claim_checker,
                metrics: metrics.clone(),
                stop: stop.clone(),
                state: Mutex::default(),
            },
            running,
            metrics: metrics.clone(),
            executor: Executor {
                metrics,
                sink: Arc::new(reporter.clone()),
                worker_id,
                instance_id,
                default_timeout: config.default_timeout,
                log_bounds,
                interrupt: interrupt.clone(),
                layers,
                events,
                #[cfg(feature = "client")]
                enqueuer,
            },
            deliveries: TaskTracker::new(),
            runs: TaskTracker::new(),
            stop: stop.clone(),
            abandon: abandon.clone(),
            tasks: tasks.clone(),
            refused_queues,
        });
        let consuming = consumer.clone().run(amqp);
        tokio::pin!(consuming);
        let mut has_died = false;
        let draining = tokio::select! {
            draining = &mut consuming => draining,
            () = tasks.failed() => {
                stop.cancel();
                consuming.await
            }
            () = control_thread.ended() => {
                has_died = true;
                stop.cancel();
                consuming.await
            }
        };

        let end = DrainContext {
            grace: config.shutdown_grace,
            skip_grace: &signals.skip_grace,
            interrupt: &interrupt,
            reporter: &reporter,
            is_durable: outbox.is_durable,
            claim_batcher: &consumer.admission.claim_batcher,
            running: &consumer.running,
        };
        shutdown::drain(&consumer.runs, &consumer.deliveries, &end).await;
        if !has_died {
            control_thread.stop().await;
        }
        if let Some(draining) = draining {
            draining.close().await;
        }
        // Deliveries whose reports were never confirmed would otherwise wait for ever, and keep the jobs of the program.
        abandon.cancel();
        // A job that blocks a thread of the program can hold one of them up.
        let _ = tokio::time::timeout(ABANDON_TIMEOUT, consumer.deliveries.wait()).await;
        if let Some(TaskFailure { task, reason }) = tasks.failure() {
            return Err(WorkerError::TaskFailed { task, reason });
        }
        if has_died {
            return Err(WorkerError::ControlThreadDied);
        }
        tracing::info!("worker has stopped");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::status::OccurrenceStatus;
    use milvaion_test_support::{
        broker_env::{WorkerTestEnv, no_input},
        wait::{WAIT_TIMEOUT, until},
    };
    use serde_json::Value;

    use super::*;
    use crate::{JobContext, JobError};

    async fn wait_for_ever(_: JobContext, _: Value) -> Result<(), JobError> {
        std::future::pending().await
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn failed_task_stops_the_worker_with_an_error() {
        let env = WorkerTestEnv::new().await;
        let variables = env.variables();
        let lookup = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone());
        let config = WorkerConfig::from_lookup(lookup).expect("valid");
        let builder = Worker::builder().config(config).shutdown_grace(Duration::ZERO).job_fn("wait", wait_for_ever);
        let (worker, tasks) = (builder.build().expect("valid"), TaskSupervisor::default());
        let serving = tokio::spawn(worker.serve_jobs(ShutdownSignals::default(), tasks.clone()));
        env.wait_for_consumer("wait").await;
        let message = env.message("wait", no_input());
        env.publish(&message).await;
        until("the start of the run", async || {
            env.reports().await.iter().any(|report| report.occurrence_id == message.occurrence_id)
        })
        .await;
        tasks.fail("claim batcher", "it has ended".to_owned());
        let result = tokio::time::timeout(WAIT_TIMEOUT, serving).await.expect("it stops").expect("no panic");
        let Err(WorkerError::TaskFailed { task, reason }) = &result else { panic!("no failure: {result:?}") };
        assert_eq!((*task, reason.as_str()), ("claim batcher", "it has ended"));
        let reports = env.ended(message.occurrence_id).await;
        assert_eq!(reports.last().map(|report| report.status), Some(OccurrenceStatus::Queued), "it is handed back");
        env.clean(&["wait"]).await;
    }
}
