//! The worker and its builder: assembles all parts, runs them and shuts them down.

use std::{
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex},
    time::Duration,
};

use lapin::uri::AMQPUri;
use milvaion_protocol::{
    message::{FEATURE_CHECKPOINT, FEATURE_CLAIMS, FEATURE_SCHEDULES, InstanceHello, PROTOCOL_VERSION},
    topology::{MAX_TARGET_BYTES, RedisKeys, Topology},
};
use prometheus_client::registry::Registry;
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    api::config::WorkerConfig,
    api::context::JobContext,
    api::error::WorkerError,
    api::events::{Events, RunObservers},
    api::job::Job,
    api::job_fn::FnJob,
    api::layer::Layer,
    api::logging,
    api::options::JobOptions,
    api::outcome::JobError,
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
    faults,
    reporting::outbox::{self, Outbox, OutboxSystem},
    reporting::reporter::{Reporter, ReporterConfig},
    run::executor::Executor,
    run::registry::{self, JobRegistry, RegisteredJob},
    singleton::{
        SingletonLoop,
        builder::NewLoop,
        loop_thread::{self, LoopThreadConfig},
        options,
    },
};
#[cfg(feature = "client")]
use crate::{api::enqueue::JobEnqueuer, client::BrokerClient};

/// Maximum time for the tasks of unanswered deliveries to end with their worker.
const ABANDON_TIMEOUT: Duration = Duration::from_secs(1);

/// A configured worker, ready to run.
pub struct Worker {
    config: WorkerConfig,
    jobs: Vec<Arc<RegisteredJob>>,
    loops: Vec<SingletonLoop>,
    amqp: AMQPUri,
    instance_id: String,
    version: String,
    layers: Arc<[Arc<dyn Layer>]>,
    events: RunObservers,
    metrics: WorkerMetrics,
}

/// Builder of a [`Worker`], with its configuration and its job types.
#[derive(Default)]
pub struct WorkerBuilder {
    config: WorkerConfig,
    registry: JobRegistry,
    loops: Vec<SingletonLoop>,
    errors: Vec<String>,
    version: Option<String>,
    layers: Vec<Arc<dyn Layer>>,
    events: RunObservers,
    metrics: WorkerMetrics,
}

impl Worker {
    /// Returns a builder with the default configuration and no job type.
    #[must_use]
    pub fn builder() -> WorkerBuilder {
        WorkerBuilder::default()
    }

    /// Returns a builder with the configuration of the environment; see [`WorkerConfig::from_env`].
    ///
    /// ```no_run
    /// # use milvaion_worker::{JobContext, JobError, Worker, WorkerError};
    /// # async fn greet(ctx: JobContext, name: String) -> Result<String, JobError> { Ok(name) }
    /// #[tokio::main]
    /// async fn main() -> Result<(), WorkerError> {
    ///     Worker::from_env()?.job_fn("greet", greet).run().await
    /// }
    /// ```
    ///
    /// # Errors
    /// Returns [`WorkerError::Config`] with one sentence for each invalid variable.
    pub fn from_env() -> Result<WorkerBuilder, WorkerError> {
        Ok(Self::builder().config(WorkerConfig::from_env()?))
    }

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
            job_types: registry::announce(&jobs),
            timestamp: clock::now(),
        };
        let mut control_thread = control_thread::start(ControlThreadConfig {
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
        let permits = PrioritySemaphore::new(config.capacity as usize, jobs.iter().map(|job| job.concurrency.into()));
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

impl WorkerBuilder {
    /// Sets the whole configuration, for example the result of [`WorkerConfig::from_env`].
    #[must_use]
    pub fn config(mut self, config: WorkerConfig) -> Self {
        self.config = config;
        self
    }

    /// Adds a job type.
    #[must_use]
    pub fn job<J: Job>(self, job: J) -> Self {
        self.job_with(job, |options| options)
    }

    /// Adds a job type whose own options `change` changes, such as its name, so that one Rust type can be registered more
    /// than once.
    ///
    /// ```
    /// # use milvaion_worker::{Job, JobContext, JobError, Worker};
    /// # struct Import { region: &'static str }
    /// # impl Job for Import {
    /// #     const TYPE: &'static str = "import";
    /// #     type Input = String;
    /// #     type Output = ();
    /// #     async fn run(&self, _: &JobContext, _: String) -> Result<(), JobError> { Ok(()) }
    /// # }
    /// let builder = Worker::builder()
    ///     .job_with(Import { region: "eu" }, |options| options.named("import-eu"))
    ///     .job_with(Import { region: "us" }, |options| options.named("import-us").retries(3));
    /// ```
    #[must_use]
    pub fn job_with<J: Job>(
        mut self,
        job: J,
        change: impl FnOnce(JobOptions<J::Input>) -> JobOptions<J::Input>,
    ) -> Self {
        self.registry.add(RegisteredJob::with_options(job, change));
        self
    }

    /// Adds a job type that is a function of a context and an input, without a type of its own.
    ///
    /// ```
    /// use milvaion_worker::{JobContext, JobError, Worker};
    ///
    /// #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// struct Whom {
    ///     /// Name of the person to greet.
    ///     name: String,
    /// }
    ///
    /// async fn greet(ctx: JobContext, input: Whom) -> Result<String, JobError> {
    ///     ctx.info("greeting");
    ///     Ok(format!("Hello, {}!", input.name))
    /// }
    ///
    /// let builder = Worker::builder()
    ///     .job_fn("hello", greet)
    ///     .job_fn("bye", async |_, input: Whom| Ok(format!("Bye, {}!", input.name)));
    /// ```
    #[must_use]
    pub fn job_fn<Input, Output, Running>(
        self,
        job_type: &str,
        code: impl Fn(JobContext, Input) -> Running + Send + Sync + 'static,
    ) -> Self
    where
        Input: DeserializeOwned + JsonSchema + Send + 'static,
        Output: Serialize + Send + 'static,
        Running: Future<Output = Result<Output, JobError>> + Send + 'static,
    {
        self.job_fn_with(job_type, code, |options| options)
    }

    /// Adds a job type that is a function, with options.
    #[must_use]
    pub fn job_fn_with<Input, Output, Running>(
        mut self,
        job_type: &str,
        code: impl Fn(JobContext, Input) -> Running + Send + Sync + 'static,
        change: impl FnOnce(JobOptions<Input>) -> JobOptions<Input>,
    ) -> Self
    where
        Input: DeserializeOwned + JsonSchema + Send + 'static,
        Output: Serialize + Send + 'static,
        Running: Future<Output = Result<Output, JobError>> + Send + 'static,
    {
        let handler = Arc::new(FnJob::new(code));
        self.registry.add(RegisteredJob::of(job_type, "", change(JobOptions::default()), handler));
        self
    }

    /// Adds a layer around every run; see [`Layer`]. The first layer is the outermost.
    #[must_use]
    pub fn layer(mut self, layer: impl Layer) -> Self {
        self.layers.push(Arc::new(layer));
        self
    }

    /// Adds an observer of all runs; see [`Events`].
    #[must_use]
    pub fn events(mut self, events: impl Events) -> Self {
        self.events.add(Arc::new(events));
        self
    }

    /// Sets the version of the program, such as `env!("CARGO_PKG_VERSION")`, 1 to 100 characters. The page *Workers* shows it.
    /// If instances with different versions run at once, the declared schedules of the highest one apply. Default the version
    /// of this crate.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = Some(version.into());
        self
    }

    /// Builds the worker and [runs](Worker::run) it.
    ///
    /// # Errors
    /// Returns the errors of [`build`](Self::build) and of [`Worker::run`].
    pub async fn run(self) -> Result<(), WorkerError> {
        logging::set_default();
        self.build()?.run().await
    }

    /// Begins the declaration of a singleton loop, which exactly one instance of the fleet runs. All instances that offer the
    /// loop give it the same name: 1 to 100 letters, digits, `-`, `_` and `.`. A worker may have loops and no job type, and
    /// then needs Redis only.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use milvaion_worker::Worker;
    ///
    /// let builder = Worker::builder()
    ///     .singleton("price-feed")
    ///     .every(Duration::from_millis(100))
    ///     .run(|tick| async move {
    ///         println!("price of {} with epoch {}", tick.due(), tick.epoch());
    ///         Ok(())
    ///     });
    /// ```
    pub fn singleton(self, name: impl Into<String>) -> NewLoop {
        NewLoop { worker: self, name: name.into() }
    }

    /// Adds a declared loop.
    pub(crate) fn add_singleton(mut self, spec: SingletonLoop) -> Self {
        self.loops.push(spec);
        self
    }

    /// Adds a mistake in a declaration, which [`build`](Self::build) reports.
    pub(crate) fn add_error(mut self, error: String) -> Self {
        self.errors.push(error);
        self
    }

    /// Returns the declared loops.
    pub(crate) fn loops(self) -> Vec<SingletonLoop> {
        self.loops
    }

    /// Sets the worker id; see [`WorkerConfig::worker_id`].
    #[must_use]
    pub fn worker_id(mut self, worker_id: impl Into<String>) -> Self {
        self.config.worker_id = worker_id.into();
        self
    }

    /// Sets the address of RabbitMQ; see [`WorkerConfig::amqp_url`].
    #[must_use]
    pub fn amqp_url(mut self, url: impl Into<String>) -> Self {
        self.config.amqp_url = url.into();
        self
    }

    /// Sets the address of Redis; see [`WorkerConfig::redis_url`].
    #[must_use]
    pub fn redis_url(mut self, url: impl Into<String>) -> Self {
        self.config.redis_url = url.into();
        self
    }

    /// Sets the prefix of exchanges and queues; see [`WorkerConfig::prefix`].
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.config.prefix = prefix.into();
        self
    }

    /// Sets the prefix of keys in Redis; see [`WorkerConfig::key_prefix`].
    #[must_use]
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.config.key_prefix = prefix.into();
        self
    }

    /// Sets the maximum number of concurrent runs of all job types; see [`WorkerConfig::capacity`].
    #[must_use]
    pub fn capacity(mut self, capacity: u32) -> Self {
        self.config.capacity = capacity;
        self
    }

    /// Sets the concurrency limit of one job type; see [`WorkerConfig::concurrency`].
    #[must_use]
    pub fn concurrency(mut self, job_type: impl Into<String>, concurrency: u16) -> Self {
        self.config.concurrency.insert(job_type.into(), concurrency);
        self
    }

    /// Sets the listen address for health checks and metrics; see [`WorkerConfig::health`].
    #[must_use]
    pub fn health(mut self, address: SocketAddr) -> Self {
        self.config.health = Some(address);
        self
    }

    /// Sets the time for which runs may continue at shutdown; see [`WorkerConfig::shutdown_grace`].
    #[must_use]
    pub fn shutdown_grace(mut self, grace: Duration) -> Self {
        self.config.shutdown_grace = grace;
        self
    }

    /// Sets the location of the outbox; see [`WorkerConfig::outbox`].
    #[must_use]
    pub fn outbox(mut self, outbox: Outbox) -> Self {
        self.config.outbox = outbox;
        self
    }

    /// Sets the maximum number and the maximum size in megabytes of the log lines that wait for the broker; see
    /// [`WorkerConfig::outbox_lines`].
    #[must_use]
    pub fn outbox_bounds(mut self, lines: u32, megabytes: u32) -> Self {
        (self.config.outbox_lines, self.config.outbox_megabytes) = (lines, megabytes);
        self
    }

    /// Adds the metrics of this worker to a registry of the program, so that the program serves them with its own. Their
    /// names begin with `milvaion_worker_`. Programs with several workers give each one a sub-registry with a label.
    ///
    /// ```
    /// use milvaion_worker::{Worker, prometheus_client::registry::Registry};
    ///
    /// let mut registry = Registry::default();
    /// let builder = Worker::builder().register_metrics(&mut registry);
    /// ```
    #[must_use]
    pub fn register_metrics(self, registry: &mut Registry) -> Self {
        self.metrics.register(registry);
        self
    }

    /// Checks the configuration and the job types, and builds the worker.
    ///
    /// # Errors
    /// Returns [`WorkerError::Config`] with one sentence for each mistake.
    pub fn build(self) -> Result<Worker, WorkerError> {
        faults::arm();
        let Self { config, mut registry, mut loops, errors: mistakes, version, layers, events, metrics } = self;
        registry.set_concurrency(&config.concurrency);
        let (jobs, mut errors) = registry.finish();
        if jobs.is_empty() && loops.is_empty() && mistakes.is_empty() {
            errors.add("The worker has no job type and no singleton loop: add one with .job(…), .job_fn(…) or .singleton(…) before .build().");
        }
        mistakes.into_iter().for_each(|mistake| errors.add(mistake));
        config.check(&mut errors);
        let version = version.unwrap_or_else(|| env!("CARGO_PKG_VERSION").to_owned());
        if !(1..=100).contains(&version.chars().count()) || version.contains(char::is_control) {
            errors.add(format!("The version of the worker is {version:?}: give 1 to 100 printable characters."));
        }
        options::apply(&config.singletons, &mut loops, &mut errors);
        options::check(&loops, &mut errors);
        loops.retain(|spec| spec.options.enabled);
        for job in &jobs {
            if !Topology::fits(&config.worker_id, job.job_type) {
                errors.add(format!(
                    "The names of the worker and of job type {:?} have more than {MAX_TARGET_BYTES} bytes together ('_' and '.' count twice): shorten MILVAION_WORKER_ID or the job type.",
                    job.job_type
                ));
            }
        }
        // An invalid URL has been reported by `check`.
        let amqp = config.amqp_url.parse().unwrap_or_default();
        let instance_id = clock::instance_id(&config.worker_id);
        let layers = layers.into();
        errors.into_result(Worker { config, jobs, loops, amqp, instance_id, version, layers, events, metrics })
    }
}
