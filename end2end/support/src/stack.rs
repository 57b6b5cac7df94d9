//! A server in this process, and a worker beside it.

use std::{
    net::IpAddr,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use milvaion_api::{
    page::OccurrenceFilter,
    permissions::Role,
    requests::JobForm,
    views::{CurrentUser, OccurrenceView},
};
use milvaion_protocol::{
    id::{OccurrenceId, UserId},
    status::OccurrenceStatus,
};
use milvaion_server::{
    clock::Clock,
    config::{
        ServerConfig, alerts::AlertsConfig, background::BackgroundConfig, broker::BrokerConfig, cache::CacheConfig,
        database::DatabaseConfig, http::HttpConfig,
    },
    domain::liveness,
    lifecycle::Server,
};
use milvaion_worker::{Job, JobContext, JobError, Outbox, Worker, WorkerBuilder};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{database_url, unique, url};

/// How long something may take before a test gives up on it. Generous: the machine may be busy.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// A configuration on fresh names.
pub async fn config() -> ServerConfig {
    let prefix = unique("t");
    ServerConfig {
        database_url: None,
        redis_url: None,
        amqp_url: None,
        data_dir: PathBuf::from("target/test-data"),
        database: DatabaseConfig { url: database_url().await, max_connections: 8 },
        cache: CacheConfig { url: url("REDIS_URL"), key_prefix: format!("{prefix}:") },
        broker: BrokerConfig { url: url("AMQP_URL"), prefix, prefetch: 2_000 },
        http: HttpConfig {
            host: IpAddr::from([127, 0, 0, 1]),
            port: None,
            public_url: None,
            site_root: PathBuf::from("../target/site"),
        },
        alerts: AlertsConfig::default(),
        background: BackgroundConfig {
            dispatch_batch: 500,
            sweep: Duration::from_millis(200),
            rebuild: Duration::from_secs(60),
            republish: Duration::from_secs(1),
        },
        lost_runs: Default::default(),
        retention: Default::default(),
    }
}

/// A server on a configuration.
pub async fn server(config: &ServerConfig) -> Server {
    Server::start(config, Clock::system()).await.expect("the server starts")
}

/// A job that does what its input says, and remembers which occurrences it started.
#[derive(Clone, Default)]
pub struct EchoJob {
    started: Arc<Mutex<Vec<OccurrenceId>>>,
}

/// What it is told.
#[derive(serde::Deserialize, schemars::JsonSchema)]
pub struct EchoInput {
    /// What to answer; `fail` fails.
    pub say: String,
}

impl Job for EchoJob {
    const TYPE: &'static str = "echo";
    const DESCRIPTION: &'static str = "Answers what it is told.";
    type Input = EchoInput;
    type Output = String;

    async fn run(&self, ctx: &JobContext, input: EchoInput) -> Result<String, JobError> {
        self.started.lock().expect("nobody panicked").push(ctx.occurrence_id());
        ctx.info(format!("told: {}", input.say));
        if input.say == "fail" { Err(JobError::permanent("told to fail\nand so it did")) } else { Ok(input.say) }
    }
}

/// A running worker; dropping it leaves it to the end of the test's runtime.
pub struct RunningWorker {
    echo: EchoJob,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl RunningWorker {
    /// Which occurrences it started, in order; one that was started twice is there twice.
    pub fn started(&self) -> Vec<OccurrenceId> {
        self.echo.started.lock().expect("nobody panicked").clone()
    }

    /// The same by id, to compare with what should have been started.
    pub fn sorted(&self) -> Vec<OccurrenceId> {
        let mut started = self.started();
        started.sort();
        started
    }

    /// Stops it in an orderly way.
    pub async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("the worker stops");
    }
}

/// A worker called `w` that can echo.
pub fn worker(config: &ServerConfig) -> RunningWorker {
    let echo = EchoJob::default();
    let stop = CancellationToken::new();
    let task = worker_with(config, &stop, |worker| worker.job(echo.clone()));
    RunningWorker { echo, stop, task }
}

/// A worker called `w` on the names of a configuration, until `stop`. What is special about it is the test's to say: its
/// jobs before all.
pub fn worker_with(
    config: &ServerConfig,
    stop: &CancellationToken,
    special: impl FnOnce(WorkerBuilder) -> WorkerBuilder,
) -> JoinHandle<()> {
    let usual = Worker::builder()
        .worker_id("w")
        .outbox(Outbox::Off)
        .amqp_url(&config.broker.url)
        .redis_url(&config.cache.url)
        .prefix(&config.broker.prefix)
        .key_prefix(&config.cache.key_prefix);
    let worker = special(usual).build().expect("the worker is well configured");
    let until = stop.clone();
    tokio::spawn(async move { worker.run_until(until).await.expect("the worker runs") })
}

/// Somebody who may do everything.
pub fn admin() -> CurrentUser {
    CurrentUser { id: UserId::default(), name: "Ana".into(), email: "ana@example.org".into(), role: Role::Admin }
}

/// A job form for worker `w`'s echo.
pub fn form(name: &str) -> JobForm {
    JobForm {
        display_name: name.into(),
        target: "w/echo".into(),
        input_mode: "json".into(),
        input_json: r#"{"say": "hello"}"#.into(),
        kind: "manual".into(),
        is_active: "on".into(),
        ..JobForm::default()
    }
}

/// Waits for the thing itself: looks until `look` finds it.
///
/// # Panics
///
/// When it does not come within [`WAIT_TIMEOUT`].
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let begun = tokio::time::Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begun.elapsed() < WAIT_TIMEOUT, "{what} did not come within {} s", WAIT_TIMEOUT.as_secs());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until an occurrence has ended.
pub async fn ended(server: &Server, id: OccurrenceId) -> OccurrenceView {
    eventually("the end of the occurrence", || async {
        let view = server.store.occurrence(id, 100, liveness::alive_since(server.clock.now())).await.ok()??;
        view.row.status.is_final().then_some(view)
    })
    .await
}

/// Every occurrence there is, newest first.
pub async fn all(server: &Server, status: Option<OccurrenceStatus>) -> Vec<milvaion_api::views::OccurrenceRow> {
    let mut rows = Vec::new();
    let mut filter = OccurrenceFilter { status, limit: 200, ..OccurrenceFilter::default() };
    loop {
        let page = server.store.occurrences(&filter).await.expect("the list can be read");
        rows.extend(page.rows);
        match page.next {
            Some(next) => filter.before = Some(next.parse().expect("an id")),
            None => return rows,
        }
    }
}
