//! A server in this process, and Python workers as processes beside it.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    sync::OnceLock,
    time::Duration,
};

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
use milvaion_server::{config::ServerConfig, domain::liveness, lifecycle::Server, store::jobs::AuditStamp};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use sqlx::Connection as _;
use tokio::process::Child;

use milvaion_test_support::{self as common, stack};

/// A file of the examples.
pub(crate) fn example(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/python-worker").join(name)
}

/// A server without workers.
pub(crate) struct PythonWorkerHarness {
    pub(crate) config: ServerConfig,
    pub(crate) server: Server,
}

/// A worker's process; it ends with its handle.
pub(crate) struct PythonWorker(Child);

impl PythonWorkerHarness {
    pub(crate) async fn open() -> Self {
        let config = stack::config().await;
        let server = stack::server(&config).await;
        Self { config, server }
    }

    pub(crate) async fn close(self) {
        self.server.stop().await;
    }

    /// Starts the whole worker.
    pub(crate) fn worker(&self, with_redis: bool) -> PythonWorker {
        self.start("worker.py", if with_redis { &self.config.cache.url } else { "" })
    }

    /// Starts the least one.
    pub(crate) fn minimal(&self) -> PythonWorker {
        self.start("minimal.py", "")
    }

    fn start(&self, file: &str, redis_url: &str) -> PythonWorker {
        let child = tokio::process::Command::new(PythonWorker::check())
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

    /// Waits until a worker has announced itself.
    pub(crate) async fn announced(&self, worker: &str) -> Vec<JobTypeView> {
        stack::eventually("the worker", || async {
            let types = self.server.store.job_types(self.alive_since()).await.ok()?;
            types.iter().any(|one| one.worker_id == worker && one.alive > 0).then_some(types)
        })
        .await
    }

    fn alive_since(&self) -> chrono::DateTime<chrono::Utc> {
        liveness::alive_since(self.server.clock.now())
    }

    /// Runs a job of the whole worker.
    pub(crate) async fn run(&self, job_type: &str, input: Value, retries: u16) -> OccurrenceId {
        self.run_on("python", job_type, input, retries).await
    }

    /// Runs a job.
    pub(crate) async fn run_on(&self, worker: &str, job_type: &str, input: Value, retries: u16) -> OccurrenceId {
        let job = JobInput {
            worker_id: worker.into(),
            job_type: job_type.into(),
            job_data: input,
            rules: Rules { max_retries: retries, base_retry_delay_seconds: 1, ..Rules::default() },
            ..common::job(Schedule::Manual)
        };
        let id = self.server.clock.job_id();
        let edit = AuditStamp { by: "test", at: self.server.clock.now() };
        self.server.store.insert_job(id, &job, None, edit).await.expect("the job is stored");
        self.server.jobs.run_now(&stack::admin(), id, TriggerInput::default()).await.expect("triggered")
    }

    /// Waits until an attempt runs.
    pub(crate) async fn runs(&self, id: OccurrenceId, attempt: i32) -> OccurrenceView {
        stack::eventually("the start of the attempt", || async {
            let view = self.server.store.occurrence(id, 100, self.alive_since()).await.ok()??;
            (view.row.status == OccurrenceStatus::Running && view.row.attempt == attempt).then_some(view)
        })
        .await
    }

    /// Why an occurrence is among the failures, if it is.
    pub(crate) async fn cause(&self, id: OccurrenceId) -> Option<FailureCause> {
        self.server.store.failure(id).await.expect("answered").map(|failure| failure.cause)
    }

    /// A number the database tells.
    pub(crate) async fn count(&self, sql: &'static str) -> i64 {
        let mut connection = sqlx::PgConnection::connect(&self.config.database.url).await.expect("PostgreSQL answers");
        sqlx::query_scalar(sql).fetch_one(&mut connection).await.expect("answered")
    }

    /// Publishes a body to the exchange of job messages; a queue must take it.
    pub(crate) async fn publish(&self, key: &str, body: &[u8]) {
        let amqp = Connection::connect(&self.config.broker.url, ConnectionProperties::default());
        let amqp = amqp.await.expect("the broker answers");
        let channel = amqp.create_channel().await.expect("a channel");
        channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
        let exchange = Topology::new(self.config.broker.prefix.clone()).jobs_exchange();
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        // A worker introduces itself on one connection and declares its queues on another.
        stack::eventually("a queue that takes it", async || {
            let (exchange, key, as_is) = (exchange.as_str().into(), key.into(), BasicProperties::default());
            let sent = channel.basic_publish(exchange, key, options, body, as_is).await.ok()?;
            matches!(sent.await.ok()?, Confirmation::Ack(None)).then_some(())
        })
        .await;
        amqp.close(200, "published".into()).await.expect("closed");
    }
}

impl PythonWorker {
    /// The Python that has the packages. Debian's own comes first: the packages are installed for that one.
    pub(crate) fn check() -> &'static str {
        static FOUND: OnceLock<&str> = OnceLock::new();
        FOUND.get_or_init(|| {
            let has_all = |python: &&str| {
                let asked = Command::new(python).args(["-c", "import pika, redis"]).stderr(Stdio::null()).status();
                asked.is_ok_and(|status| status.success())
            };
            ["/usr/bin/python3", "python3"]
                .into_iter()
                .find(has_all)
                .expect("no Python with the packages pika and redis: `sh xtask/install.sh test` installs them")
        })
    }

    fn signal(&self, signal: Signal) {
        let pid = self.0.id().and_then(|pid| i32::try_from(pid).ok()).expect("it runs");
        kill(Pid::from_raw(pid), signal).expect("it is ours");
    }

    /// Tells it to stop, and waits until it has.
    pub(crate) async fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        let end = tokio::time::timeout(Duration::from_secs(30), self.0.wait()).await;
        let status = end.expect("it stops in time").expect("it can be waited for");
        assert!(status.success(), "it ended with {status}");
    }

    /// Ends it as a crash would.
    pub(crate) async fn kill(mut self) {
        self.signal(Signal::SIGKILL);
        self.0.wait().await.expect("it can be waited for");
    }
}
