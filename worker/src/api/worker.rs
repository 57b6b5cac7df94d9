//! Puts a worker together, runs it, and takes it down.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use lapin::uri::AMQPUri;
use milvaion_protocol::{
    message::InstanceHello,
    topology::{RedisKeys, Topology},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    api::config::WorkerConfig,
    api::error::WorkerError,
    api::job::Job,
    clock,
    control::control_thread::{ControlThread, ControlThreadConfig},
    control::heartbeat,
    control::metrics::{self, WorkerMetrics},
    control::shutdown::{self, DrainContext, ShutdownSignals},
    delivery::admission::Admission,
    delivery::claim::ClaimStore,
    delivery::claim_batcher::ClaimBatcher,
    delivery::claim_check::ClaimChecker,
    delivery::consumer::DeliveryConsumer,
    delivery::permits::PrioritySemaphore,
    delivery::run_table::RunTable,
    faults,
    reporting::outbox::{self, Outbox},
    reporting::reporter::{Reporter, ReporterConfig},
    run::executor::Executor,
    run::registry::{self, JobRegistry, RegisteredJob},
};

/// The longest name AMQP has for a queue, in bytes.
const MAX_QUEUE_NAME: usize = 255;

/// A worker, ready to run.
pub struct Worker {
    config: WorkerConfig,
    jobs: Vec<Arc<RegisteredJob>>,
    amqp: AMQPUri,
    instance_id: String,
}

/// Gathers what a worker is made of.
#[derive(Default)]
pub struct WorkerBuilder {
    config: WorkerConfig,
    registry: JobRegistry,
}

impl Worker {
    /// Begins with the default configuration and no job.
    #[must_use]
    pub fn builder() -> WorkerBuilder {
        WorkerBuilder::default()
    }

    /// The name of this process among its group: the worker id and eight random hex digits.
    #[must_use]
    pub fn instance_id(&self) -> &str {
        &self.instance_id
    }

    /// Runs until SIGTERM or SIGINT, then ends in good order: nothing new is taken, runs may go on for the grace, what
    /// still runs then is interrupted, everything is reported. A second signal ends the grace.
    ///
    /// # Errors
    /// When signals cannot be listened to, the outbox cannot be opened, or the thread of the reports cannot be kept.
    /// Services that are away are no error; they are waited for.
    pub async fn run(self) -> Result<(), WorkerError> {
        let signals = ShutdownSignals::from_signals()?;
        self.serve(signals).await
    }

    /// As [`run`](Self::run), until `stop` fires instead of a signal.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn run_until(self, stop: CancellationToken) -> Result<(), WorkerError> {
        self.serve(ShutdownSignals { stop, ..ShutdownSignals::default() }).await
    }

    async fn serve(self, signals: ShutdownSignals) -> Result<(), WorkerError> {
        let Self { config, jobs, amqp, instance_id } = self;
        let (topology, keys) = (Topology::new(config.prefix.as_str()), RedisKeys::new(config.key_prefix.as_str()));
        let (running, interrupt) = (RunTable::default(), CancellationToken::new());
        let (reporter, report_receiver) = Reporter::new();
        let metrics = WorkerMetrics::default();
        let health = config.health.map(metrics::open).transpose()?;
        tracing::info!(worker.id = config.worker_id, worker.instance = instance_id, "worker starts");
        let outbox = outbox::open(&config.outbox, &config.worker_id)
            .await
            .map_err(|error| WorkerError::Outbox(error.to_string()))?;

        let hello = InstanceHello {
            worker_id: config.worker_id.clone(),
            instance_id: instance_id.clone(),
            host: heartbeat::host_name(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            capacity: config.capacity,
            job_types: registry::announce(&jobs),
            timestamp: clock::now(),
        };
        let mut control_thread = ControlThread::start(ControlThreadConfig {
            amqp: amqp.clone(),
            redis_url: config.redis_url.clone(),
            topology: topology.clone(),
            keys: keys.clone(),
            hello,
            running: running.clone(),
            report_receiver,
            reporter_config: ReporterConfig {
                journal: outbox.journal,
                recovered: outbox.recovered,
                bounds: config.log_bounds(),
                metrics: metrics.clone(),
            },
            warning: outbox.warning,
            health: health.map(|listener| (listener, metrics.clone(), outbox.gate.clone())),
        })?;
        let claims = ClaimStore::new(&config.redis_url, keys, &instance_id).map_err(WorkerError::Redis)?;
        claims.warm_up().await;
        let (claim_batcher, at_work) = ClaimBatcher::new(claims);
        tokio::spawn(at_work);
        let permits = PrioritySemaphore::new(config.capacity as usize, jobs.iter().map(|job| job.concurrency.into()));
        // A child, so that a dead control thread can end this worker without cancelling a token that belongs to the caller.
        let stop = signals.stop.child_token();
        let claim_checker = ClaimChecker::new(amqp.clone(), topology.clone(), instance_id.clone());
        let consumer = Arc::new(DeliveryConsumer {
            worker_id: config.worker_id,
            instance_id: instance_id.clone(),
            topology,
            job_types: jobs,
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
                instance_id,
                default_timeout: config.default_timeout,
                interrupt: interrupt.clone(),
            },
            deliveries: TaskTracker::new(),
            runs: TaskTracker::new(),
            stop: stop.clone(),
        });
        let consuming = consumer.clone().run(amqp);
        tokio::pin!(consuming);
        let (still_open, lost) = tokio::select! {
            still_open = &mut consuming => (still_open, false),
            () = control_thread.died() => {
                stop.cancel();
                (consuming.await, true)
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
        if !lost {
            control_thread.stop().await;
        }
        if let Some(still_open) = still_open {
            still_open.close().await;
        }
        if lost {
            return Err(WorkerError::ControlThreadDied);
        }
        tracing::info!("worker has stopped");
        Ok(())
    }
}

impl WorkerBuilder {
    /// Takes a whole configuration, such as [`WorkerConfig::from_env`] gives.
    #[must_use]
    pub fn config(mut self, config: WorkerConfig) -> Self {
        self.config = config;
        self
    }

    /// Adds a job type.
    #[must_use]
    pub fn job<J: Job>(mut self, job: J) -> Self {
        self.registry.add(RegisteredJob::new(job));
        self
    }

    /// The group this process belongs to; see [`WorkerConfig::worker_id`].
    #[must_use]
    pub fn worker_id(mut self, worker_id: impl Into<String>) -> Self {
        self.config.worker_id = worker_id.into();
        self
    }

    /// The broker; see [`WorkerConfig::amqp_url`].
    #[must_use]
    pub fn amqp_url(mut self, url: impl Into<String>) -> Self {
        self.config.amqp_url = url.into();
        self
    }

    /// Redis; see [`WorkerConfig::redis_url`].
    #[must_use]
    pub fn redis_url(mut self, url: impl Into<String>) -> Self {
        self.config.redis_url = url.into();
        self
    }

    /// What exchanges and queues begin with; see [`WorkerConfig::prefix`].
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.config.prefix = prefix.into();
        self
    }

    /// What keys in Redis begin with; see [`WorkerConfig::key_prefix`].
    #[must_use]
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.config.key_prefix = prefix.into();
        self
    }

    /// How many occurrences run at once; see [`WorkerConfig::capacity`].
    #[must_use]
    pub fn capacity(mut self, capacity: u32) -> Self {
        self.config.capacity = capacity;
        self
    }

    /// How many occurrences of one job type run at once; see [`WorkerConfig::concurrency`].
    #[must_use]
    pub fn concurrency(mut self, job_type: impl Into<String>, concurrency: u16) -> Self {
        self.config.concurrency.insert(job_type.into(), concurrency);
        self
    }

    /// Where health and metrics are answered; see [`WorkerConfig::health`].
    #[must_use]
    pub fn health(mut self, address: SocketAddr) -> Self {
        self.config.health = Some(address);
        self
    }

    /// How long runs may go on at the end; see [`WorkerConfig::shutdown_grace`].
    #[must_use]
    pub fn shutdown_grace(mut self, grace: Duration) -> Self {
        self.config.shutdown_grace = grace;
        self
    }

    /// Where reports wait for the broker that outlive the process; see [`WorkerConfig::outbox`].
    #[must_use]
    pub fn outbox(mut self, outbox: Outbox) -> Self {
        self.config.outbox = outbox;
        self
    }

    /// How many log lines, and how many megabytes of them, wait for the broker; see [`WorkerConfig::outbox_lines`].
    #[must_use]
    pub fn outbox_bounds(mut self, lines: u32, megabytes: u32) -> Self {
        (self.config.outbox_lines, self.config.outbox_megabytes) = (lines, megabytes);
        self
    }

    /// Checks everything.
    ///
    /// # Errors
    /// [`WorkerError::Config`] with one sentence for each mistake.
    pub fn build(self) -> Result<Worker, WorkerError> {
        faults::arm();
        let Self { config, mut registry } = self;
        registry.set_concurrency(&config.concurrency);
        let (jobs, mut errors) = registry.finish();
        config.check(&mut errors);
        let topology = Topology::new(config.prefix.as_str());
        for job in &jobs {
            let name = topology.job_queue(&config.worker_id, job.job_type);
            if name.len() > MAX_QUEUE_NAME {
                errors.add(format!(
                    "the queue of job type {:?} would have a name of {} bytes, {MAX_QUEUE_NAME} are the most: shorten MILVAION_PREFIX, MILVAION_WORKER_ID or the type.",
                    job.job_type,
                    name.len()
                ));
            }
        }
        // What cannot be read has been noted above.
        let amqp = config.amqp_url.parse().unwrap_or_default();
        let instance_id = clock::instance_id(&config.worker_id);
        errors.into_result(Worker { config, jobs, amqp, instance_id })
    }
}
