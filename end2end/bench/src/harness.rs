//! Where measurements are made: the services, and for each run an environment on them with a database and prefixes of its own.

use std::{fs, net::TcpListener, path::PathBuf, time::Duration};

use anyhow::{Context, bail, ensure};
use chrono::{DateTime, Utc};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    topology::Topology,
};
use milvaion_server::{
    cache::Cache,
    clock::machine_now,
    config::cache::CacheConfig,
    embedded::child::{ChildProcess, LaunchSpec},
    store::MIGRATOR,
};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, PgPool, postgres::PgPoolOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    process_stats::{self, ProcessGroup},
    settings::{self, BenchSettings},
};

/// The worker that all jobs of a measurement are addressed to, and what they run there.
pub(crate) const WORKER_ID: &str = "bench";
/// See [`WORKER_ID`].
pub(crate) const JOB_TYPE: &str = "noop";
/// How long anything that is waited for may take.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(120);
/// How often it is looked for. Seldom, for looking costs processor time that is being measured.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long a program may take to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// The services and what to run on them.
#[derive(Clone, Debug)]
pub(crate) struct BenchHarness {
    pub(crate) settings: BenchSettings,
    database_url: String,
    redis_url: String,
    pub(crate) amqp_url: String,
    /// Where results and logs go.
    pub(crate) folder: PathBuf,
    /// Where the server's program lies.
    programs: PathBuf,
    services: Vec<ProcessGroup>,
}

impl BenchHarness {
    /// Reads the environment, and finds the services' processes.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let own = std::env::current_exe()?;
        let programs = own.parent().context("this program lies in no folder")?.to_owned();
        let folder = PathBuf::from("target/bench");
        fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
        // Those of the measurement before.
        let _ = fs::remove_dir_all(folder.join("logs"));
        let _ = fs::remove_dir_all(folder.join("outbox"));
        let (database_url, redis_url, amqp_url) =
            (settings::url("DATABASE_URL")?, settings::url("REDIS_URL")?, settings::url("AMQP_URL")?);
        let services = [("postgres", &database_url), ("redis", &redis_url), ("rabbitmq", &amqp_url)]
            .into_iter()
            .filter_map(|(name, url)| Some(ProcessGroup { name, pid: process_stats::listener(url).ok()? }))
            .collect();
        Ok(Self { settings: BenchSettings::from_env()?, database_url, redis_url, amqp_url, folder, programs, services })
    }

    /// The processes of the services.
    pub(crate) fn services(&self) -> anyhow::Result<&[ProcessGroup]> {
        ensure!(self.services.len() == 3, "not all services can be seen: run this where they run");
        Ok(&self.services)
    }

    /// A worker on some prefixes. Returns when its program runs; see [`BenchEnv::worker`].
    pub(crate) async fn worker(&self, prefix: &str, key_prefix: &str) -> anyhow::Result<BenchProcess> {
        let outbox =
            std::path::absolute(self.folder.join("outbox").join(prefix)).context("where is the outbox to lie?")?;
        let launch = LaunchSpec::new(self.program("bench-worker")?)
            .env("MILVAION_OUTBOX", outbox)
            .env("AMQP_URL", &self.amqp_url)
            .env("REDIS_URL", &self.redis_url)
            .env("MILVAION_PREFIX", prefix)
            .env("MILVAION_KEY_PREFIX", key_prefix)
            .env("MILVAION_WORKER_ID", WORKER_ID)
            .env("MILVAION_CAPACITY", self.settings.capacity.to_string())
            .env("MILVAION_SHUTDOWN_GRACE_SECONDS", "5")
            .without_env("DATABASE_URL");
        self.spawn("worker", launch, prefix).await
    }

    fn program(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.programs.join(name);
        ensure!(path.exists(), "{} is missing: run this through `make bench`, which builds it", path.display());
        Ok(path)
    }

    async fn spawn(&self, name: &'static str, launch: LaunchSpec, prefix: &str) -> anyhow::Result<BenchProcess> {
        let log = self.folder.join("logs").join(format!("{prefix}-{name}.log"));
        let child = ChildProcess::spawn(name, launch, &log).await?;
        Ok(BenchProcess { process_group: ProcessGroup { name, pid: child.pid() }, child })
    }

    /// Does something to the cluster that cannot be done inside the database it is about.
    async fn administer(&self, statement: String) -> anyhow::Result<()> {
        let mut connection = PgConnection::connect(&self.database_url).await?;
        connection.execute(AssertSqlSafe(statement)).await?;
        connection.close().await?;
        Ok(())
    }
}

/// A process of ours.
#[derive(Debug)]
pub(crate) struct BenchProcess {
    pub(crate) process_group: ProcessGroup,
    child: ChildProcess,
}

impl BenchProcess {
    /// Ends it in an orderly way.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        ensure!(self.child.stop(STOP_TIMEOUT).await, "the {} did not end by itself", self.process_group.name);
        Ok(())
    }

    /// Ends a worker and tells how many runs it started.
    pub(crate) async fn stop_and_count_runs(self) -> anyhow::Result<i64> {
        let log = self.child.log().to_owned();
        self.stop().await?;
        let text = fs::read_to_string(&log)?;
        let runs =
            text.lines().rev().find_map(|line| line.strip_prefix("runs ")).context("the worker told no count")?;
        Ok(runs.parse()?)
    }
}

/// A database, a prefix on the broker and one in Redis, of one measurement alone.
#[derive(Debug)]
pub(crate) struct BenchEnv {
    pub(crate) harness: BenchHarness,
    pub(crate) pool: PgPool,
    pub(crate) cache: Cache,
    pub(crate) prefix: String,
    pub(crate) key_prefix: String,
    database_url: String,
}

impl BenchEnv {
    /// A new one with all tables and nothing in them.
    pub(crate) async fn new(harness: &BenchHarness) -> anyhow::Result<Self> {
        Self::made(harness, "").await
    }

    /// One whose database is a copy of this one's, which must not be in use.
    pub(crate) async fn copy(&self) -> anyhow::Result<Self> {
        self.pool.close().await;
        Self::made(&self.harness, &format!(" TEMPLATE {} STRATEGY file_copy", self.prefix)).await
    }

    async fn made(harness: &BenchHarness, how: &str) -> anyhow::Result<Self> {
        let prefix = format!("bench_{:08x}", rand::random::<u32>());
        harness.administer(format!("CREATE DATABASE {prefix}{how}")).await?;
        let (base, rest) = harness.database_url.rsplit_once('/').context("DATABASE_URL names no database")?;
        let settings = rest.split_once('?').map_or(String::new(), |(_, settings)| format!("?{settings}"));
        let database_url = format!("{base}/{prefix}{settings}");
        let pool = PgPoolOptions::new().max_connections(12).connect(&database_url).await?;
        MIGRATOR.run(&pool).await?;
        let today = machine_now().date_naive();
        sqlx::query("SELECT ensure_partitions($1 - 1, $1 + 2)").bind(today).execute(&pool).await?;
        let key_prefix = format!("{prefix}:");
        let cache = Cache::new(&CacheConfig { url: harness.redis_url.clone(), key_prefix: key_prefix.clone() })?;
        Ok(Self { harness: harness.clone(), pool, cache, prefix, key_prefix, database_url })
    }

    /// Starts a server, with the settings that hold when nobody sets any. Returns when it says that it is ready.
    pub(crate) async fn server(&self) -> anyhow::Result<BenchProcess> {
        let (program, port) = self.launch_server().await?;
        self.wait_until("the server's readiness", async || Ok(is_ready(port).await)).await?;
        Ok(program)
    }

    /// Starts a server and returns at once, with the port it will listen on.
    pub(crate) async fn launch_server(&self) -> anyhow::Result<(BenchProcess, u16)> {
        // Free now, and hardly anybody's a moment later.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let launch = LaunchSpec::new(self.harness.program("milvaion")?)
            .arg("run")
            .env("DATABASE_URL", &self.database_url)
            .env("REDIS_URL", &self.harness.redis_url)
            .env("AMQP_URL", &self.harness.amqp_url)
            .env("MILVAION_PREFIX", &self.prefix)
            .env("MILVAION_KEY_PREFIX", &self.key_prefix)
            .env("MILVAION_DATA", self.harness.folder.join("data"))
            .env("HOST", "127.0.0.1")
            .env("PORT", port.to_string());
        Ok((self.harness.spawn("server", launch, &self.prefix).await?, port))
    }

    /// Starts a worker; needs a running server. Returns when the server knows it and it has run something.
    pub(crate) async fn worker(&self) -> anyhow::Result<BenchProcess> {
        let worker = self.harness.worker(&self.prefix, &self.key_prefix).await?;
        self.wait_until("the worker's registration", async || {
            let known = "SELECT EXISTS (SELECT 1 FROM worker_instances WHERE worker_id = $1 AND stopped_at IS NULL)";
            Ok(sqlx::query_scalar(known).bind(WORKER_ID).fetch_one(&self.pool).await?)
        })
        .await?;
        Ok(worker)
    }

    /// Tells a running server when jobs are due.
    pub(crate) async fn notify_due(&self, due: &[(JobId, Option<DateTime<Utc>>)]) -> anyhow::Result<()> {
        for some in due.chunks(2_000) {
            self.cache.note_due(some).await?;
        }
        self.cache.announce_schedule_change().await?;
        Ok(())
    }

    /// Waits for something, looking ten times a second.
    pub(crate) async fn wait_until(
        &self,
        what: &str,
        look: impl AsyncFn() -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let begun = tokio::time::Instant::now();
        while !look().await? {
            if begun.elapsed() > WAIT_TIMEOUT {
                let logs = self.harness.folder.join("logs").join(format!("{}-server.log", self.prefix));
                bail!("{what} did not come within {} s; see {}", WAIT_TIMEOUT.as_secs(), logs.display());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Waits until nothing is open any more.
    pub(crate) async fn wait_until_drained(&self) -> anyhow::Result<()> {
        self.wait_until("the end of all occurrences", async || {
            let open = "SELECT NOT EXISTS (SELECT 1 FROM occurrences WHERE status IN (0, 1, 6))";
            Ok(sqlx::query_scalar(open).fetch_one(&self.pool).await?)
        })
        .await
    }

    /// Checks that every due instant of every job was run once and to its end, and tells how many there were. `runs` is
    /// how many the worker counted.
    pub(crate) async fn verify(&self, runs: i64) -> anyhow::Result<i64> {
        let counts = "SELECT count(*), count(*) FILTER (WHERE status = 2), \
                             (SELECT count(*) FROM (SELECT FROM occurrences WHERE trigger = 'schedule' \
                                                     GROUP BY job_id, scheduled_for HAVING count(*) > 1) d) \
                        FROM occurrences";
        let (all, completed, twice): (i64, i64, i64) = sqlx::query_as(counts).fetch_one(&self.pool).await?;
        ensure!(completed == all, "{} of {all} occurrences did not complete", all - completed);
        ensure!(twice == 0, "{twice} due instants were fired more than once");
        ensure!(runs == all, "{all} occurrences completed, but the worker started {runs} runs");
        Ok(all)
    }

    /// Removes it: the database, and the queues with what is in them.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        self.pool.close().await;
        self.harness.administer(format!("DROP DATABASE {} WITH (FORCE)", self.prefix)).await?;
        let connection = crate::ceiling::connect(&self.harness.amqp_url).await?;
        let channel = connection.create_channel().await?;
        let names = Topology::new(self.prefix.as_str());
        let queues = [names.status(), names.logs(), names.registration(), names.dead_letter_queue()];
        for queue in queues.into_iter().chain([names.job_queue(WORKER_ID, JOB_TYPE)]) {
            channel.queue_delete(queue.into(), Default::default()).await?;
        }
        crate::ceiling::close(connection).await;
        Ok(())
    }
}

/// Whether a server says that it is ready.
async fn is_ready(port: u16) -> bool {
    let ask = async {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        let request = "GET /health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.ok()?;
        Some(answer == *b"HTTP/1.1 200")
    };
    tokio::time::timeout(Duration::from_secs(2), ask).await.ok().flatten().unwrap_or(false)
}

/// An id of now.
pub(crate) fn occurrence_id() -> OccurrenceId {
    OccurrenceId::from_parts(machine_now(), rand::random())
}
