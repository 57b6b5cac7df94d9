//! What a scenario is played on: two servers and some workers, each with lines of its own to the services, jobs that keep
//! them busy, a witness, and somebody who goes on using the dashboard meanwhile.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use milvaion_protocol::topology::Topology;
use milvaion_server::embedded::child::LaunchSpec;
use rand::{SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use sqlx::{PgPool, postgres::PgPoolOptions};

use crate::{
    api::ApiClient,
    evidence::{EvidenceWriter, now},
    harness::ServiceHarness,
    live_stream::LiveStreamListener,
    private_service::{ChaosService, ServiceKind},
    process::ManagedProcess,
    proxy::ProxyLink,
    witness::Witness,
    workload::{JobPlan, WORKER_ID},
    workload_driver::WorkloadDriver,
};

/// How long a start or a healing may take before the scenario is given up.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(120);
/// How often is looked.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// What is to be set up.
#[derive(Clone, Debug)]
pub(crate) struct ClusterConfig {
    /// `leader_killed`, for folders and reports.
    pub(crate) scenario: &'static str,
    pub(crate) seed: u64,
    pub(crate) workers: usize,
    /// What runs at once in one worker.
    pub(crate) capacity: u32,
    /// What is armed in every program from its start, such as a sabotage.
    pub(crate) armed: Option<String>,
    /// What the checker is told in `run.json` beside what it is told always.
    pub(crate) judge: Value,
}

/// A defined job.
#[derive(Clone, Debug)]
pub(crate) struct DefinedJob {
    pub(crate) id: String,
    pub(crate) plan: JobPlan,
}

/// Everything a scenario is played on.
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
    setup: ClusterConfig,
    listener: LiveStreamListener,
    database: String,
    began: i64,
    /// Where each worker answers for its health.
    health_ports: Vec<u16>,
}

impl<'a> ChaosCluster<'a> {
    /// Sets everything up. Returns when the servers are ready, the workers are known and somebody is signed in; no job is
    /// defined yet.
    pub(crate) async fn open(harness: &'a mut ServiceHarness, setup: ClusterConfig) -> anyhow::Result<Self> {
        let folder = harness.folder.join("runs").join(format!("{}-{}", setup.scenario, setup.seed));
        let evidence = Arc::new(EvidenceWriter::open(folder)?);
        // The name of a socket must be short.
        let socket = std::env::temp_dir().join(format!("milvaion-witness-{}", std::process::id()));
        let witness = Witness::open(socket, evidence.clone())?;
        let prefix = format!("c{:08x}", rand::random::<u32>());
        let database = harness.database(&prefix).await?;
        let mut builder =
            ClusterBuilder { harness, evidence: &evidence, setup: &setup, prefix: &prefix, links: Vec::new() };
        let mut ports = Vec::new();
        let mut servers = Vec::new();
        for number in 1..=2 {
            let port = free_port()?;
            ports.push(port);
            servers.push(builder.server(&format!("server-{number}"), port).await?);
        }
        let (mut workers, mut health_ports) = (Vec::new(), Vec::new());
        for number in 1..=setup.workers {
            let port = free_port()?;
            health_ports.push(port);
            workers.push(builder.worker(&format!("worker-{number}"), port, witness.socket()).await?);
        }
        let links = std::mem::take(&mut builder.links);
        let pool =
            PgPoolOptions::new().max_connections(4).acquire_timeout(Duration::from_secs(5)).connect_lazy(&database)?;

        // The first one alone: it migrates, and the link it prints is good until another server prints one.
        servers[0].start().await?;
        ready(&servers[0], ports[0]).await?;
        let token = token(&servers[0]).await?;
        let bases = ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
        let api = ApiClient::set_up(bases, &token).await?;
        servers[1].start().await?;
        ready(&servers[1], ports[1]).await?;
        for worker in &mut workers {
            worker.start().await?;
        }
        let listener = LiveStreamListener::start(api.clone());
        let cluster = Self {
            driver: WorkloadDriver::new(api, evidence.clone()),
            random: StdRng::seed_from_u64(setup.seed),
            names: Topology::new(prefix.as_str()),
            harness,
            evidence,
            witness,
            servers,
            workers,
            pool,
            links,
            listener,
            database: prefix,
            began: now(),
            health_ports,
            setup,
        };
        let all = cluster.setup.workers;
        cluster
            .wait_until("the workers' registration", async |cluster| Ok(cluster.known_workers().await? >= all))
            .await?;
        Ok(cluster)
    }

    /// Defines jobs, one after the other, through the first server.
    pub(crate) async fn define(&mut self, plans: Vec<JobPlan>) -> anyhow::Result<()> {
        self.driver.define(plans).await
    }

    /// Which of the servers leads, if one does.
    pub(crate) async fn leader(&self) -> anyhow::Result<Option<usize>> {
        let holder: Option<Option<String>> = sqlx::query_scalar("SELECT holder FROM leases WHERE role = 'dispatcher'")
            .fetch_optional(&self.pool)
            .await?;
        let Some(holder) = holder.flatten() else { return Ok(None) };
        // A holder's name ends with its process and a draw.
        let pid = holder.rsplit('-').nth(1).and_then(|pid| pid.parse().ok());
        Ok(self.servers.iter().position(|server| server.pid() == pid && pid.is_some()))
    }

    /// Waits until one of the servers leads.
    pub(crate) async fn wait_for_leader(&self) -> anyhow::Result<usize> {
        let found = std::cell::Cell::new(None);
        self.wait_until("a server that leads", async |cluster| {
            found.set(cluster.leader().await?);
            Ok(found.get().is_some())
        })
        .await?;
        found.get().context("it was found")
    }

    /// A line by its name: `worker-1>rabbitmq`.
    pub(crate) fn link(&self, name: &str) -> anyhow::Result<&ProxyLink> {
        self.links.iter().find(|link| link.name() == name).with_context(|| format!("there is no line {name}"))
    }

    /// Waits for something. A service that is away just now is asked again.
    pub(crate) async fn wait_until(
        &self,
        what: &str,
        look: impl AsyncFn(&Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let begun = tokio::time::Instant::now();
        let mut last;
        loop {
            match look(self).await {
                Ok(true) => return Ok(()),
                Ok(false) => last = None,
                Err(error) => last = Some(error),
            }
            if begun.elapsed() > WAIT_TIMEOUT {
                let why = last.map_or_else(String::new, |error| format!(" ({error:#})"));
                bail!("{what} did not come within {} s{why}", WAIT_TIMEOUT.as_secs());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until nothing is due that has not been fired, and nothing fired that has not been sent.
    pub(crate) async fn wait_until_current(&self) -> anyhow::Result<()> {
        self.wait_until("a dispatcher that is up to date", async |cluster| {
            let behind = "SELECT (SELECT count(*) FROM jobs WHERE next_fire_at < now() - interval '1 second')
                               + (SELECT count(*) FROM occurrences WHERE published_at IS NULL AND status = 0
                                     AND created_at < now() - interval '2 seconds'
                                     AND waits_until IS NULL)";
            Ok(sqlx::query_scalar::<_, i64>(behind).fetch_one(&cluster.pool).await? == 0)
        })
        .await
    }

    /// How many occurrences are open.
    pub(crate) async fn open_occurrences(&self) -> anyhow::Result<i64> {
        let open = "SELECT count(*) FROM occurrences WHERE status IN (0, 1, 6)";
        Ok(sqlx::query_scalar(open).fetch_one(&self.pool).await?)
    }

    /// Lets things go on for so long.
    pub(crate) async fn run_for(&self, seconds: f64) {
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    }

    /// A crash of a service and its start after a while.
    pub(crate) async fn crash(&mut self, kind: ServiceKind, seconds_away: f64) -> anyhow::Result<()> {
        let fault = self.evidence.begin_fault("kill", kind.name(), "SIGKILL");
        self.harness.service(kind).kill().await?;
        self.run_for(seconds_away).await;
        self.harness.service(kind).start().await?;
        self.evidence.end_fault(fault);
        Ok(())
    }

    /// Where a worker answers for its health.
    pub(crate) fn health_ports(&self) -> impl Iterator<Item = (&str, u16)> {
        self.workers.iter().map(ManagedProcess::name).zip(self.health_ports.iter().copied())
    }

    /// Which ends the listener has been told of so far.
    pub(crate) fn streamed_ends(&self) -> Value {
        self.listener.ends()
    }

    /// `run.json`.
    pub(crate) fn write_run_json(&self, cut: i64, read: i64) -> anyhow::Result<()> {
        let mut run = json!({
            "scenario": self.setup.scenario, "seed": self.setup.seed, "round": 1,
            "began": self.began, "cut": cut, "read": read,
            "slo_ms": 1_500, "allowance_ms": 15_000, "dispatch_allowance_ms": 5_000, "recovery_ms": 10_000,
            "early_ms": 100, "heartbeat_timeout_ms": 15_000, "orphan_ms": 20_000, "tolerate": {},
        });
        if let (Some(run), Some(more)) = (run.as_object_mut(), self.setup.judge.as_object()) {
            run.extend(more.clone());
        }
        self.evidence.write("run.json", &run)
    }

    /// Ends everything. What the checker needs stays.
    pub(crate) async fn close(mut self) -> anyhow::Result<PathBuf> {
        self.listener.stop();
        self.pool.close().await;
        for process in self.workers.iter_mut().chain(&mut self.servers) {
            process.clean_up().await;
        }
        self.witness.close();
        self.harness.drop_database(&self.database).await?;
        Ok(self.evidence.folder().to_owned())
    }

    async fn known_workers(&self) -> anyhow::Result<usize> {
        let known = "SELECT count(*) FROM worker_instances WHERE stopped_at IS NULL";
        Ok(usize::try_from(sqlx::query_scalar::<_, i64>(known).fetch_one(&self.pool).await?)?)
    }
}

/// Puts processes together.
struct ClusterBuilder<'b> {
    harness: &'b ServiceHarness,
    evidence: &'b EvidenceWriter,
    setup: &'b ClusterConfig,
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
            .env("MILVAION_CAPACITY", self.setup.capacity.to_string())
            .env("MILVAION_SHUTDOWN_GRACE_SECONDS", "5")
            .env("MILVAION_OUTBOX", self.evidence.folder().join("outbox").join(name))
            .env("MILVAION_HEALTH", format!("127.0.0.1:{health_port}"))
            .env("CHAOS_WITNESS", witness)
            .env("CHAOS_PROCESS", name)
            .without_env("DATABASE_URL");
        Ok(self.process(name, launch))
    }

    /// What servers and workers have in common.
    async fn launch(&mut self, name: &str, program: &str) -> anyhow::Result<LaunchSpec> {
        let own = std::env::current_exe()?;
        let program = own.with_file_name(program);
        ensure!(program.exists(), "{} is missing: run this through `make chaos`, which builds it", program.display());
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
        ManagedProcess::new(name.to_owned(), launch, log, self.setup.armed.clone())
    }

    /// A service's URL by a line of the process's own.
    async fn through(&mut self, name: &str, kind: ServiceKind) -> anyhow::Result<String> {
        let service: &ChaosService = match kind {
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

/// A port that is free. Not of the system's choice: its range is that of outgoing connections, one of which might have
/// the port when a program that was killed starts again.
fn free_port() -> anyhow::Result<u16> {
    for _ in 0..1_000 {
        let port = rand::random_range(12_000..20_000);
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port between 12000 and 20000 is free")
}

/// Waits until a server says that it is ready.
async fn ready(server: &ManagedProcess, port: u16) -> anyhow::Result<()> {
    let begun = tokio::time::Instant::now();
    let client = reqwest::Client::builder().timeout(Duration::from_secs(2)).build()?;
    loop {
        let answer = client.get(format!("http://127.0.0.1:{port}/health/ready")).send().await;
        if answer.is_ok_and(|answer| answer.status().is_success()) {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < WAIT_TIMEOUT,
            "{} does not become ready; see {}",
            server.name(),
            server.log().display()
        );
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The setup link that a new server prints.
async fn token(server: &ManagedProcess) -> anyhow::Result<String> {
    let begun = tokio::time::Instant::now();
    loop {
        let text = std::fs::read_to_string(server.log())?;
        // All of it: the line is written piece by piece.
        if let Some((token, _)) = text.split_once("/setup?token=").and_then(|(_, rest)| rest.split_once('\n')) {
            return Ok(token.trim().to_owned());
        }
        ensure!(begun.elapsed() < WAIT_TIMEOUT, "{} prints no setup link", server.name());
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// One figure of a worker's `/metrics`, summed over its labels; none when it does not answer.
pub(crate) async fn metric(port: u16, name: &str) -> Option<f64> {
    let client = reqwest::Client::builder().timeout(Duration::from_secs(2)).build().ok()?;
    let text = client.get(format!("http://127.0.0.1:{port}/metrics")).send().await.ok()?.text().await.ok()?;
    Some(
        text.lines()
            .filter(|line| line.starts_with(name))
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum(),
    )
}
