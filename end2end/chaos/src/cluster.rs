//! The processes that a scenario runs on: two servers and some workers, each with proxied links of its own to the
//! services, jobs that keep them busy, a witness, and a driver that acts as a user of the dashboard.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use milvaion_protocol::topology::{RedisKeys, Topology};
use milvaion_server::embedded::child::LaunchSpec;
use milvaion_test_support::{
    database::TestDatabase,
    http,
    net::free_port,
    private_service::{PrivateService, ServiceKind},
    process::ManagedProcess,
};
use rand::{SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use sqlx::{PgPool, postgres::PgPoolOptions};

use crate::{
    api::ApiClient,
    enqueuer::Enqueuer,
    evidence::{EvidenceWriter, OngoingFault, now},
    harness::ServiceHarness,
    live_stream::LiveStreamListener,
    proxy::ProxyLink,
    witness::Witness,
    workload::{JobPlan, WORKER_ID},
    workload_driver::WorkloadDriver,
};

/// The time a start or a recovery may take before the scenario is aborted.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(120);
/// The interval at which [`ChaosCluster::wait_until`] checks its condition.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The settings of a cluster.
#[derive(Clone, Debug)]
pub(crate) struct ClusterConfig {
    /// The scenario's name for folders and reports, such as `leader_killed`.
    pub(crate) scenario: &'static str,
    pub(crate) seed: u64,
    pub(crate) workers: usize,
    /// The number of runs that one worker executes at once.
    pub(crate) capacity: u32,
    /// Failpoints that are armed in every program at each start, such as a sabotage.
    pub(crate) armed: Option<String>,
    /// Members of `run.json` that replace the defaults of [`ChaosCluster::write_run_json`].
    pub(crate) limits: Value,
}

/// A running cluster.
pub(crate) struct ChaosCluster<'a> {
    pub(crate) harness: &'a mut ServiceHarness,
    pub(crate) evidence: Arc<EvidenceWriter>,
    pub(crate) witness: Witness,
    pub(crate) servers: Vec<ManagedProcess>,
    pub(crate) workers: Vec<ManagedProcess>,
    pub(crate) driver: WorkloadDriver,
    pub(crate) pool: PgPool,
    pub(crate) names: Topology,
    pub(crate) random: StdRng,
    pub(crate) links: Vec<ProxyLink>,
    config: ClusterConfig,
    listener: LiveStreamListener,
    database: TestDatabase,
    began: i64,
    /// The port of each worker's health endpoint.
    health_ports: Vec<u16>,
    /// The URL of RabbitMQ for the program that enqueues.
    client_amqp_url: String,
    /// The prefix of the exchanges and queues.
    prefix: String,
}

impl<'a> ChaosCluster<'a> {
    /// Starts everything. Returns when the servers are ready, the workers are registered and a user is signed in. No
    /// job is defined yet.
    pub(crate) async fn open(harness: &'a mut ServiceHarness, config: ClusterConfig) -> anyhow::Result<Self> {
        let folder = harness.folder.join("runs").join(format!("{}-{}", config.scenario, config.seed));
        let evidence = Arc::new(EvidenceWriter::open(folder)?);
        // The path of a Unix socket is limited to about 100 bytes, so it is not in the evidence folder.
        let socket = std::env::temp_dir().join(format!("milvaion-witness-{}", std::process::id()));
        let witness = Witness::open(socket, evidence.clone())?;
        let prefix = format!("c{:08x}", rand::random::<u32>());
        let database = harness.database(&prefix).await?;
        let mut builder =
            ClusterBuilder { harness, evidence: &evidence, config: &config, prefix: &prefix, links: Vec::new() };
        let mut ports = Vec::new();
        let mut servers = Vec::new();
        for number in 1..=2 {
            let port = free_port()?;
            ports.push(port);
            servers.push(builder.server(&format!("server-{number}"), port).await?);
        }
        let (mut workers, mut health_ports) = (Vec::new(), Vec::new());
        for number in 1..=config.workers {
            let port = free_port()?;
            health_ports.push(port);
            workers.push(builder.worker(&format!("worker-{number}"), port, witness.socket()).await?);
        }
        let client_amqp_url = builder.through("client-1", ServiceKind::RabbitMq).await?;
        let links = std::mem::take(&mut builder.links);
        let pool = PgPoolOptions::new()
            .max_connections(4)
            .acquire_timeout(Duration::from_secs(5))
            .connect_lazy(&database.url)?;

        for server in &mut servers {
            server.start().await?;
        }
        let mut tokens = Vec::new();
        for (server, port) in servers.iter().zip(&ports) {
            wait_until_ready(server, *port).await?;
            tokens.push(setup_token(server).await?);
        }
        let bases = ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
        let api = ApiClient::set_up(bases, &tokens).await?;
        let listener = LiveStreamListener::start(api.clone());
        let mut cluster = Self {
            driver: WorkloadDriver::new(api, evidence.clone()),
            random: StdRng::seed_from_u64(config.seed),
            names: Topology::new(prefix.as_str()),
            harness,
            evidence,
            witness,
            servers,
            workers,
            pool,
            links,
            listener,
            database,
            began: now(),
            health_ports,
            client_amqp_url,
            prefix,
            config,
        };
        // The first leader sets `claims_since` before it leads.
        cluster.wait_for_leader().await?;
        // A Redis that has held its data for long, as that of an installation: in a new one, possible duplicates wait.
        let keys = RedisKeys::new(format!("{}:", cluster.prefix));
        cluster.harness.redis_command(&["SET", &keys.claims_since(), "0"]).await?;
        for worker in &mut cluster.workers {
            worker.start().await?;
        }
        let all = cluster.config.workers;
        cluster
            .wait_until("the workers' registration", async |cluster| Ok(cluster.registered_workers().await? >= all))
            .await?;
        Ok(cluster)
    }

    /// Defines jobs through the first server.
    pub(crate) async fn define(&mut self, plans: Vec<JobPlan>) -> anyhow::Result<()> {
        self.driver.define(plans).await
    }

    /// Returns the index of the server that leads, or none.
    pub(crate) async fn leader(&self) -> anyhow::Result<Option<usize>> {
        let holder: Option<Option<String>> = sqlx::query_scalar("SELECT holder FROM leases WHERE role = 'dispatcher'")
            .fetch_optional(&self.pool)
            .await?;
        let Some(holder) = holder.flatten() else { return Ok(None) };
        // A holder's name ends with its process id and a random number.
        let pid = holder.rsplit('-').nth(1).and_then(|pid| pid.parse().ok());
        Ok(self.servers.iter().position(|server| server.pid() == pid && pid.is_some()))
    }

    /// Waits until a server leads, and returns its index.
    pub(crate) async fn wait_for_leader(&self) -> anyhow::Result<usize> {
        let found = std::cell::Cell::new(None);
        self.wait_until("a leading server", async |cluster| {
            found.set(cluster.leader().await?);
            Ok(found.get().is_some())
        })
        .await?;
        found.get().context("the wait ended without a leader")
    }

    /// Returns a link by its name, such as `worker-1>rabbitmq`.
    pub(crate) fn link(&self, name: &str) -> anyhow::Result<&ProxyLink> {
        self.links.iter().find(|link| link.name() == name).with_context(|| format!("there is no link {name}"))
    }

    /// Waits until a condition holds. An error, such as an unavailable service, counts as not yet.
    pub(crate) async fn wait_until(
        &self,
        what: &str,
        condition: impl AsyncFn(&Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let begun = tokio::time::Instant::now();
        let mut last;
        loop {
            match condition(self).await {
                Ok(true) => return Ok(()),
                Ok(false) => last = None,
                Err(error) => last = Some(error),
            }
            if begun.elapsed() > WAIT_TIMEOUT {
                let why = last.map_or_else(String::new, |error| format!(" ({error:#})"));
                bail!("timed out after {} s waiting for {what}{why}", WAIT_TIMEOUT.as_secs());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until every due job has its occurrence and every occurrence is published.
    pub(crate) async fn wait_until_current(&self) -> anyhow::Result<()> {
        self.wait_until("an up-to-date dispatcher", async |cluster| {
            let behind = "SELECT (SELECT count(*) FROM job_due WHERE next_fire_at < now() - interval '1 second')
                               + (SELECT count(*) FROM runs WHERE publish_after < now() - interval '2 seconds')";
            Ok(sqlx::query_scalar::<_, i64>(behind).fetch_one(&cluster.pool).await? == 0)
        })
        .await
    }

    /// Returns the number of open occurrences.
    pub(crate) async fn open_occurrences(&self) -> anyhow::Result<i64> {
        let open = "SELECT count(*) FROM runs";
        Ok(sqlx::query_scalar(open).fetch_one(&self.pool).await?)
    }

    /// Returns the number of enqueued occurrences, and how many of them are open.
    pub(crate) async fn enqueued(&self) -> anyhow::Result<(i64, i64)> {
        let query = "SELECT count(*), (SELECT count(*) FROM runs WHERE trigger = 'enqueue')
                       FROM occurrences WHERE trigger = 'enqueue'";
        sqlx::query_as(query).fetch_one(&self.pool).await.context("the occurrences cannot be counted")
    }

    /// Returns a program that enqueues over the link `client-1>rabbitmq`, with a connection of its own.
    pub(crate) fn enqueuer(&self) -> anyhow::Result<Enqueuer> {
        Enqueuer::new(&self.client_amqp_url, &self.prefix, self.evidence.clone())
    }

    /// Returns the URL of the database, without a proxy.
    pub(crate) fn database_url(&self) -> &str {
        &self.database.url
    }

    /// Waits for some seconds while everything runs.
    pub(crate) async fn run_for(&self, seconds: f64) {
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    }

    /// Kills a service and starts it again after `outage_seconds`.
    pub(crate) async fn crash(&mut self, kind: ServiceKind, outage_seconds: f64) -> anyhow::Result<()> {
        let fault = self.kill_service(kind).await?;
        self.run_for(outage_seconds).await;
        self.restart_service(kind, fault).await
    }

    /// Kills a service. The fault ends with [`restart_service`](Self::restart_service).
    pub(crate) async fn kill_service(&mut self, kind: ServiceKind) -> anyhow::Result<OngoingFault> {
        let fault = self.evidence.begin_fault("kill", kind.name(), "SIGKILL");
        self.harness.service(kind).kill().await?;
        Ok(fault)
    }

    /// Starts a service that was killed, and records the fault.
    pub(crate) async fn restart_service(&mut self, kind: ServiceKind, fault: OngoingFault) -> anyhow::Result<()> {
        self.harness.service(kind).start().await?;
        self.evidence.end_fault(fault);
        Ok(())
    }

    /// Returns each worker with the port of its health endpoint.
    pub(crate) fn health_ports(&self) -> impl Iterator<Item = (&str, u16)> {
        self.workers.iter().map(ManagedProcess::name).zip(self.health_ports.iter().copied())
    }

    /// Returns the final statuses that the live stream has sent so far.
    pub(crate) fn streamed_ends(&self) -> Value {
        self.listener.ends()
    }

    /// Writes `run.json`: the identity of the run, its instants and the limits that the checker applies.
    pub(crate) fn write_run_json(&self, cut: i64, read: i64) -> anyhow::Result<()> {
        let mut run = json!({
            "scenario": self.config.scenario, "seed": self.config.seed, "round": 1,
            "began": self.began, "cut": cut, "read": read,
            "slo_ms": 1_500, "allowance_ms": 15_000, "dispatch_allowance_ms": 5_000, "recovery_ms": 10_000,
            "early_ms": 100, "heartbeat_timeout_ms": 15_000, "orphan_ms": 20_000, "tolerate": {},
        });
        if let (Some(run), Some(limits)) = (run.as_object_mut(), self.config.limits.as_object()) {
            run.extend(limits.clone());
        }
        self.evidence.write("run.json", &run)
    }

    /// Ends all processes and drops the database. Returns the evidence folder, which stays.
    pub(crate) async fn close(mut self) -> anyhow::Result<PathBuf> {
        self.listener.stop();
        self.pool.close().await;
        // The workers first, because they report to the servers.
        for processes in [&mut self.workers, &mut self.servers] {
            futures::future::join_all(processes.iter_mut().map(ManagedProcess::clean_up)).await;
        }
        self.witness.close();
        self.database.drop_database().await?;
        Ok(self.evidence.folder().to_owned())
    }

    async fn registered_workers(&self) -> anyhow::Result<usize> {
        let known = "SELECT count(*) FROM worker_instances WHERE stopped_at IS NULL";
        Ok(usize::try_from(sqlx::query_scalar::<_, i64>(known).fetch_one(&self.pool).await?)?)
    }
}

/// Builds processes and their links.
struct ClusterBuilder<'b> {
    harness: &'b ServiceHarness,
    evidence: &'b EvidenceWriter,
    config: &'b ClusterConfig,
    prefix: &'b str,
    links: Vec<ProxyLink>,
}

impl ClusterBuilder<'_> {
    async fn server(&mut self, name: &str, port: u16) -> anyhow::Result<ManagedProcess> {
        let database = self.through(name, ServiceKind::Postgres).await?;
        let (base, _) = database.rsplit_once('/').context("the URL names no database")?;
        let launch = self
            .launch(name, "milvaion")
            .await?
            .arg("run")
            .env("DATABASE_URL", format!("{base}/{}", self.prefix))
            .env("MILVAION_DATA", self.evidence.folder().join(name))
            .env("HOST", "127.0.0.1")
            .env("PORT", port.to_string())
            .env("LOG_FORMAT", "json")
            .env("REQUEUE_AFTER_SECONDS", "15");
        Ok(self.process(name, launch))
    }

    async fn worker(&mut self, name: &str, health_port: u16, witness: &Path) -> anyhow::Result<ManagedProcess> {
        let launch = self
            .launch(name, "chaos-worker")
            .await?
            .env("MILVAION_WORKER_ID", WORKER_ID)
            .env("MILVAION_CAPACITY", self.config.capacity.to_string())
            .env("MILVAION_SHUTDOWN_GRACE_SECONDS", "5")
            .env("MILVAION_OUTBOX", self.evidence.folder().join("outbox").join(name))
            .env("MILVAION_HEALTH", format!("127.0.0.1:{health_port}"))
            .env("CHAOS_WITNESS", witness)
            .env("CHAOS_PROCESS", name)
            .env("CHAOS_RELEASE", self.evidence.release_file(name))
            .without_env("DATABASE_URL");
        Ok(self.process(name, launch))
    }

    /// Returns the launch settings that servers and workers share.
    async fn launch(&mut self, name: &str, program: &str) -> anyhow::Result<LaunchSpec> {
        let own = std::env::current_exe()?;
        let program = own.with_file_name(program);
        ensure!(program.exists(), "{} is missing; run this through `make chaos`, which builds it", program.display());
        let launch = LaunchSpec::new(program)
            .env("REDIS_URL", self.through(name, ServiceKind::Redis).await?)
            .env("AMQP_URL", self.through(name, ServiceKind::RabbitMq).await?)
            .env("MILVAION_PREFIX", self.prefix)
            .env("MILVAION_KEY_PREFIX", format!("{}:", self.prefix))
            .without_env("FAILPOINTS");
        Ok(launch)
    }

    fn process(&self, name: &str, launch: LaunchSpec) -> ManagedProcess {
        let log = self.evidence.folder().join(format!("{name}.log"));
        ManagedProcess::new(name.to_owned(), launch, log, self.config.armed.clone())
    }

    /// Opens a link from a process to a service, and returns the service's URL through it.
    async fn through(&mut self, name: &str, kind: ServiceKind) -> anyhow::Result<String> {
        let service: &PrivateService = match kind {
            ServiceKind::Postgres => &self.harness.postgres,
            ServiceKind::Redis => &self.harness.redis,
            ServiceKind::RabbitMq => &self.harness.rabbitmq,
        };
        let link = ProxyLink::open(format!("{name}>{}", kind.name()), service.address()?).await?;
        let url = service.url_through(link.port())?;
        self.links.push(link);
        Ok(url)
    }
}

/// Waits until a server reports that it is ready.
async fn wait_until_ready(server: &ManagedProcess, port: u16) -> anyhow::Result<()> {
    let begun = tokio::time::Instant::now();
    while !http::is_ready(port).await {
        ensure!(
            begun.elapsed() < WAIT_TIMEOUT,
            "{} does not become ready; see {}",
            server.name(),
            server.log().display()
        );
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Returns the token of the setup link that a new server prints.
async fn setup_token(server: &ManagedProcess) -> anyhow::Result<String> {
    let begun = tokio::time::Instant::now();
    loop {
        let text = std::fs::read_to_string(server.log())?;
        // The line is written piece by piece, so its end must be there.
        if let Some((token, _)) = text.split_once("/setup?token=").and_then(|(_, rest)| rest.split_once('\n')) {
            return Ok(token.trim().to_owned());
        }
        ensure!(begun.elapsed() < WAIT_TIMEOUT, "{} prints no setup link", server.name());
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
