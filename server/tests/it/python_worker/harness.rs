//! A server in the test's process, and Python workers as child processes.

use std::{path::PathBuf, process::Stdio, sync::OnceLock, time::Duration};

use lapin::{
    BasicProperties, Confirmation, Connection, ConnectionProperties,
    options::{BasicPublishOptions, ConfirmSelectOptions},
};
use milvaion_api::{
    failures::FailureCause,
    requests::JobInput,
    views::{JobTypeView, OccurrenceView},
};
use milvaion_app::backend::TriggerInput;
use milvaion_protocol::{id::OccurrenceId, status::OccurrenceStatus, topology::Topology};
use milvaion_schedule::{rules::Rules, schedule::Schedule};
use milvaion_server::{config::ServerConfig, domain::liveness, lifecycle::Server};
use milvaion_test_support::{database::TestConnection, jobs, paths, python, server_env, wait};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tokio::process::Child;

/// Returns the path of a file of the examples.
pub(crate) fn example(name: &str) -> PathBuf {
    paths::repository_root().join("examples/python-worker").join(name)
}

/// A server, whose workers the test starts.
pub(crate) struct PythonWorkerHarness {
    pub(crate) config: ServerConfig,
    pub(crate) server: Server,
}

/// A worker process, which is killed when this is dropped.
pub(crate) struct PythonWorker(Child);

impl PythonWorkerHarness {
    pub(crate) async fn open() -> Self {
        let config = server_env::config().await;
        let server = server_env::start(&config).await;
        Self { config, server }
    }

    pub(crate) async fn close(self) {
        self.server.stop().await;
    }

    /// Starts the complete worker, `worker.py`.
    pub(crate) fn worker(&self, with_redis: bool) -> PythonWorker {
        self.start("worker.py", if with_redis { &self.config.cache.url } else { "" })
    }

    /// Starts the minimal worker, `minimal.py`.
    pub(crate) fn minimal(&self) -> PythonWorker {
        self.start("minimal.py", "")
    }

    fn start(&self, file: &str, redis_url: &str) -> PythonWorker {
        let child = tokio::process::Command::new(PythonWorker::python())
            .arg(example(file))
            .env("AMQP_URL", &self.config.broker.url)
            .env("REDIS_URL", redis_url)
            .env("MILVAION_PREFIX", &self.config.broker.prefix)
            .env("MILVAION_KEY_PREFIX", &self.config.cache.key_prefix)
            .env("MILVAION_SHUTDOWN_GRACE_SECONDS", "0.5")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("Python starts");
        PythonWorker(child)
    }

    /// Waits until a worker has registered. Returns all job types.
    pub(crate) async fn registered(&self, worker: &str) -> Vec<JobTypeView> {
        wait::eventually("the worker's registration", || async {
            let types = self.server.store.job_types(self.alive_since()).await.ok()?;
            types.iter().any(|one| one.worker_id == worker && one.alive > 0).then_some(types)
        })
        .await
    }

    fn alive_since(&self) -> chrono::DateTime<chrono::Utc> {
        liveness::alive_since(self.server.clock.now())
    }

    /// Starts a run on the complete worker.
    pub(crate) async fn run(&self, job_type: &str, input: Value, retries: u16) -> OccurrenceId {
        self.run_on("python", job_type, input, retries).await
    }

    /// Inserts a job of a worker and starts a manual run of it.
    pub(crate) async fn run_on(&self, worker: &str, job_type: &str, input: Value, retries: u16) -> OccurrenceId {
        let job = JobInput {
            worker_id: worker.into(),
            job_type: job_type.into(),
            job_data: input,
            rules: Rules { max_retries: retries, base_retry_delay_seconds: 1, ..Rules::default() },
            ..jobs::echo_job(Schedule::Manual)
        };
        let id = jobs::insert_job(&self.server.store, &self.server.clock, &job, None).await;
        self.server.jobs.run_now(&jobs::admin(), id, TriggerInput::default()).await.expect("triggered")
    }

    /// Waits until an attempt has started.
    pub(crate) async fn starts(&self, id: OccurrenceId, attempt: i32) -> OccurrenceView {
        wait::eventually("the start of the attempt", || async {
            let view = self.server.store.occurrence(id, 100, self.alive_since()).await.ok()??;
            (view.row.status == OccurrenceStatus::Running && view.row.attempt == attempt).then_some(view)
        })
        .await
    }

    /// Returns the cause of an occurrence's failure; none if it has no failure.
    pub(crate) async fn cause(&self, id: OccurrenceId) -> Option<FailureCause> {
        self.server.store.failure(id).await.expect("the query succeeds").map(|failure| failure.cause)
    }

    /// Returns the number that a query selects.
    pub(crate) async fn count(&self, sql: &str) -> i64 {
        TestConnection::open(&self.config.database.url).await.count(sql).await
    }

    /// Publishes a body to the exchange of job messages, until it is routed to a queue.
    pub(crate) async fn publish(&self, key: &str, body: &[u8]) {
        let amqp = Connection::connect(&self.config.broker.url, ConnectionProperties::default());
        let amqp = amqp.await.expect("the broker responds");
        let channel = amqp.create_channel().await.expect("a channel");
        channel.confirm_select(ConfirmSelectOptions::default()).await.expect("publisher confirms");
        let exchange = Topology::new(self.config.broker.prefix.clone()).jobs_exchange();
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        // A worker registers on one connection and declares its queues on another one.
        wait::eventually("a queue for the message", async || {
            let (exchange, key, as_is) = (exchange.as_str().into(), key.into(), BasicProperties::default());
            let sent = channel.basic_publish(exchange, key, options, body, as_is).await.ok()?;
            matches!(sent.await.ok()?, Confirmation::Ack(None)).then_some(())
        })
        .await;
        amqp.close(200, "published".into()).await.expect("closed");
    }
}

impl PythonWorker {
    /// Returns the Python that has the packages of the workers.
    pub(crate) fn python() -> &'static str {
        static FOUND: OnceLock<&str> = OnceLock::new();
        FOUND.get_or_init(|| python::with_packages("pika, redis"))
    }

    fn signal(&self, signal: Signal) {
        let pid = self.0.id().and_then(|pid| i32::try_from(pid).ok()).expect("it is running");
        kill(Pid::from_raw(pid), signal).expect("the signal is sent");
    }

    /// Stops it gracefully.
    pub(crate) async fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        let end = tokio::time::timeout(Duration::from_secs(30), self.0.wait()).await;
        let status = end.expect("it stops within 30 s").expect("an exit status");
        assert!(status.success(), "it ended with {status}");
    }

    /// Kills it with SIGKILL.
    pub(crate) async fn kill(mut self) {
        self.signal(Signal::SIGKILL);
        self.0.wait().await.expect("an exit status");
    }
}
