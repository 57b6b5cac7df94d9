//! The builder of a worker: its settings, jobs, layers, observers and loops.
//!
//! A mistake does not end the chain of calls: it is kept, and [`WorkerBuilder::build`] returns all mistakes together, one
//! sentence each, so that a user corrects them in one go.

use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

use milvaion_protocol::topology::{MAX_TARGET_BYTES, Topology};
use prometheus_client::registry::Registry;
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};

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
    api::worker::Worker,
    clock,
    control::metrics::WorkerMetrics,
    faults,
    reporting::outbox::Outbox,
    run::registry::{JobRegistry, RegisteredJob},
    singleton::{SingletonLoop, builder::NewLoop, options},
};

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

impl fmt::Debug for WorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerBuilder")
            .field("config", &self.config)
            .field("job_types", &self.registry.names().collect::<Vec<_>>())
            .field("singletons", &self.loops.iter().map(|spec| &spec.name).collect::<Vec<_>>())
            .field("mistakes", &self.errors)
            .finish_non_exhaustive()
    }
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
    ///
    /// A function with state is a closure that gives each run a clone of it. A closure of the form `async move |…|` cannot
    /// do that, because its future borrows from it.
    ///
    /// ```
    /// # use milvaion_worker::{JobContext, JobError, Worker};
    /// # #[derive(Clone, Default)]
    /// # struct Pool;
    /// # impl Pool {
    /// #     async fn load(&self, rows: u64) -> Result<u64, JobError> { Ok(rows) }
    /// # }
    /// let pool = Pool::default();
    /// let builder = Worker::builder().job_fn("import", move |_: JobContext, rows: u64| {
    ///     let pool = pool.clone();
    ///     async move { pool.load(rows).await }
    /// });
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
    /// of this crate, so a worker that declares schedules should set one: otherwise an update of this crate alone makes its
    /// declarations newer, and a change of its own schedules does not. [`build`](Self::build) logs a warning then.
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

    /// Sets the number of concurrent runs that are reserved for critical ones; see [`WorkerConfig::critical_slots`].
    #[must_use]
    pub fn critical_slots(mut self, slots: u32) -> Self {
        self.config.critical_slots = slots;
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
        if version.is_none() && jobs.iter().any(|job| job.declares_schedules()) {
            tracing::warn!(
                worker.id = config.worker_id,
                "worker {} declares schedules and no version: the version of the SDK decides which of two releases is newer; call .version(env!(\"CARGO_PKG_VERSION\")) and raise it with each release",
                config.worker_id
            );
        }
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
