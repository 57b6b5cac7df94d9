//! The harness of measurements: the services, and for each run an environment on them with its own database and
//! prefixes, so that runs do not affect each other.

use std::{fs, io, path::PathBuf, time::Duration};

use anyhow::{Context, bail, ensure};
use chrono::{DateTime, Utc};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    topology::{RedisKeys, Topology},
};
use milvaion_server::{
    cache::Cache,
    clock::machine_now,
    config::cache::CacheConfig,
    embedded::child::LaunchSpec,
    store::{MIGRATOR, Store},
};
use milvaion_test_support::{database::TestDatabase, http, net::free_port, process::ManagedProcess, services};
use sqlx::{PgPool, postgres::PgPoolOptions};

use crate::{
    process_stats::{self, ProcessGroup},
    publisher,
    settings::{self, BenchSettings},
};

/// The worker of all jobs of a measurement.
pub(crate) const WORKER_ID: &str = "bench";
/// The job type of all jobs of a measurement.
pub(crate) const JOB_TYPE: &str = "noop";
/// The maximum time to wait for a condition.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(120);
/// The interval between two checks of a condition. It is long, because checks cost processor time that is measured.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The services, the settings and the programs of a measurement.
#[derive(Clone, Debug)]
pub(crate) struct BenchHarness {
    pub(crate) settings: BenchSettings,
    database_url: String,
    redis_url: String,
    pub(crate) amqp_url: String,
    /// The folder of results and logs.
    pub(crate) folder: PathBuf,
    /// The folder of the server's and the worker's executables.
    programs: PathBuf,
    services: Vec<ProcessGroup>,
}

impl BenchHarness {
    /// Reads the environment variables and finds the processes of the services. Deletes the logs and outboxes of the
    /// previous measurement.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let own = std::env::current_exe()?;
        let programs = own.parent().context("the path of this program has no parent folder")?.to_owned();
        let folder = PathBuf::from("target/bench");
        fs::create_dir_all(&folder).with_context(|| format!("{} cannot be created", folder.display()))?;
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

    /// Returns the processes of the services.
    pub(crate) fn services(&self) -> anyhow::Result<&[ProcessGroup]> {
        ensure!(self.services.len() == 3, "not all processes of the services are visible: run this on their machine");
        Ok(&self.services)
    }

    /// Starts a worker on these prefixes and returns at once; [`BenchEnv::worker`] waits for its registration. Each
    /// instance has an outbox and a log of its own.
    pub(crate) async fn worker(&self, prefix: &str, key_prefix: &str, loops: u32) -> anyhow::Result<BenchProcess> {
        let label = format!("{prefix}-{:04x}", rand::random::<u16>());
        let outbox = std::path::absolute(self.folder.join("outbox").join(&label))
            .context("the path of the outbox cannot be made absolute")?;
        let launch = LaunchSpec::new(self.program("bench-worker")?)
            .env("MILVAION_OUTBOX", outbox)
            .env("AMQP_URL", &self.amqp_url)
            .env("REDIS_URL", &self.redis_url)
            .env("MILVAION_PREFIX", prefix)
            .env("MILVAION_KEY_PREFIX", key_prefix)
            .env("MILVAION_WORKER_ID", WORKER_ID)
            .env("MILVAION_CAPACITY", self.settings.capacity.to_string())
            .env("MILVAION_SHUTDOWN_GRACE_SECONDS", "5")
            .env("BENCH_LOOPS", loops.to_string())
            .without_env("DATABASE_URL");
        self.spawn("worker", launch, &label).await
    }

    /// Returns the path of an executable.
    fn program(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.programs.join(name);
        ensure!(path.exists(), "{} is missing: run this through `make bench`, which builds it", path.display());
        Ok(path)
    }

    async fn spawn(&self, name: &'static str, launch: LaunchSpec, label: &str) -> anyhow::Result<BenchProcess> {
        let log = self.folder.join("logs").join(format!("{label}-{name}.log"));
        let mut process = ManagedProcess::new(name.to_owned(), launch, log, None);
        process.start().await?;
        let pid = process.pid().with_context(|| format!("{name} did not start"))?;
        Ok(BenchProcess { process_group: ProcessGroup { name, pid }, process })
    }
}

/// A started server or worker.
#[derive(Debug)]
pub(crate) struct BenchProcess {
    pub(crate) process_group: ProcessGroup,
    process: ManagedProcess,
}

impl BenchProcess {
    /// Terminates the process and waits for its end.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.process.terminate().await?;
        Ok(())
    }

    /// Returns what the process has logged so far.
    pub(crate) fn log(&self) -> io::Result<String> {
        fs::read_to_string(self.process.log())
    }

    /// Stops a worker and returns the number of runs it started.
    pub(crate) async fn stop_and_count_runs(self) -> anyhow::Result<i64> {
        Ok(self.stop_and_read("runs ").await?.parse()?)
    }

    /// Stops a worker and returns the last line that it printed with this prefix, without the prefix.
    pub(crate) async fn stop_and_read(self, prefix: &str) -> anyhow::Result<String> {
        let log = self.process.log().to_owned();
        self.stop().await?;
        let text = fs::read_to_string(&log)?;
        let line = text.lines().rev().find_map(|line| line.strip_prefix(prefix));
        Ok(line.with_context(|| format!("the worker printed no line that begins with {prefix:?}"))?.to_owned())
    }
}

/// The environment of one run: a database, a prefix on the broker and a key prefix in Redis.
#[derive(Debug)]
pub(crate) struct BenchEnv {
    pub(crate) harness: BenchHarness,
    pub(crate) pool: PgPool,
    pub(crate) cache: Cache,
    pub(crate) prefix: String,
    pub(crate) key_prefix: String,
    database: TestDatabase,
}

impl BenchEnv {
    /// Creates an environment with all tables and no rows.
    pub(crate) async fn new(harness: &BenchHarness) -> anyhow::Result<Self> {
        let name = unique_name();
        let database = TestDatabase::create(&harness.database_url, &name).await?;
        Self::open(harness, database).await
    }

    /// Creates an environment with a copy of this one's database, which must not be in use.
    pub(crate) async fn copy(&self) -> anyhow::Result<Self> {
        self.pool.close().await;
        Self::open(&self.harness, self.database.copy(&unique_name()).await?).await
    }

    async fn open(harness: &BenchHarness, database: TestDatabase) -> anyhow::Result<Self> {
        let pool = PgPoolOptions::new().max_connections(12).connect(&database.url).await?;
        MIGRATOR.run(&pool).await?;
        Store::from_pool(pool.clone()).ensure_partitions(machine_now()).await?;
        let prefix = database.name.clone();
        let key_prefix = format!("{prefix}:");
        let cache = Cache::new(&CacheConfig { url: harness.redis_url.clone(), key_prefix: key_prefix.clone() })?;
        services::keep_claims(&RedisKeys::new(key_prefix.as_str())).await;
        Ok(Self { harness: harness.clone(), pool, cache, prefix, key_prefix, database })
    }

    /// Returns the URL of its database.
    pub(crate) fn database_url(&self) -> &str {
        &self.database.url
    }

    /// Starts a server with default settings. Returns when it is ready.
    pub(crate) async fn server(&self) -> anyhow::Result<BenchProcess> {
        Ok(self.server_with_port().await?.0)
    }

    /// Starts a server with default settings. Returns it with its port when it is ready.
    pub(crate) async fn server_with_port(&self) -> anyhow::Result<(BenchProcess, u16)> {
        let (program, port) = self.launch_server().await?;
        self.wait_until("the server's readiness", async || Ok(http::is_ready(port).await)).await?;
        Ok((program, port))
    }

    /// Starts a server and returns at once, with its port.
    pub(crate) async fn launch_server(&self) -> anyhow::Result<(BenchProcess, u16)> {
        let port = free_port()?;
        let launch = LaunchSpec::new(self.harness.program("milvaion")?)
            .arg("run")
            .env("DATABASE_URL", &self.database.url)
            .env("REDIS_URL", &self.harness.redis_url)
            .env("AMQP_URL", &self.harness.amqp_url)
            .env("MILVAION_PREFIX", &self.prefix)
            .env("MILVAION_KEY_PREFIX", &self.key_prefix)
            .env("MILVAION_DATA", self.harness.folder.join("data"))
            .env("HOST", "127.0.0.1")
            .env("PORT", port.to_string());
        Ok((self.harness.spawn("server", launch, &self.prefix).await?, port))
    }

    /// Starts a worker. Returns when a running server has registered it.
    pub(crate) async fn worker(&self) -> anyhow::Result<BenchProcess> {
        self.worker_with_loops(0).await
    }

    /// Starts a worker that also has singleton loops, and waits until it is registered.
    pub(crate) async fn worker_with_loops(&self, loops: u32) -> anyhow::Result<BenchProcess> {
        let worker = self.harness.worker(&self.prefix, &self.key_prefix, loops).await?;
        self.wait_until_registered(1).await?;
        Ok(worker)
    }

    /// Starts several instances of the worker. Returns when a running server has registered all of them.
    pub(crate) async fn workers(&self, count: usize) -> anyhow::Result<Vec<BenchProcess>> {
        let mut workers = Vec::with_capacity(count);
        for _ in 0..count {
            workers.push(self.harness.worker(&self.prefix, &self.key_prefix, 0).await?);
        }
        self.wait_until_registered(i64::try_from(count)?).await?;
        Ok(workers)
    }

    async fn wait_until_registered(&self, instances: i64) -> anyhow::Result<()> {
        self.wait_until("the worker's registration", async || {
            let exist = "SELECT count(*) >= $2 FROM worker_instances WHERE worker_id = $1 AND stopped_at IS NULL";
            Ok(sqlx::query_scalar(exist).bind(WORKER_ID).bind(instances).fetch_one(&self.pool).await?)
        })
        .await
    }

    /// Notifies the running server of new due times, or of none for paused jobs.
    pub(crate) async fn notify_due(&self, due: &[(JobId, Option<DateTime<Utc>>)]) -> anyhow::Result<()> {
        for chunk in due.chunks(2_000) {
            self.cache.note_due(chunk).await?;
        }
        self.cache.announce_schedule_change().await?;
        Ok(())
    }

    /// Waits until a condition holds and checks it ten times a second. `what` names the condition in the error.
    ///
    /// # Errors
    /// Returns an error if the check fails or the condition does not hold within [`WAIT_TIMEOUT`].
    pub(crate) async fn wait_until(
        &self,
        what: &str,
        holds: impl AsyncFn() -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let begun = tokio::time::Instant::now();
        while !holds().await? {
            if begun.elapsed() > WAIT_TIMEOUT {
                let logs = self.harness.folder.join("logs").join(format!("{}-server.log", self.prefix));
                bail!("timed out after {} s waiting for {what}; see {}", WAIT_TIMEOUT.as_secs(), logs.display());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Waits until no occurrence is open.
    pub(crate) async fn wait_until_drained(&self) -> anyhow::Result<()> {
        self.wait_until("the end of all occurrences", async || {
            let open = "SELECT NOT EXISTS (SELECT 1 FROM runs)";
            Ok(sqlx::query_scalar(open).fetch_one(&self.pool).await?)
        })
        .await
    }

    /// Checks that every occurrence is Completed, that no due time of a job has two occurrences, and that the worker
    /// counted as many `runs`. Returns the number of occurrences.
    pub(crate) async fn verify(&self, runs: i64) -> anyhow::Result<i64> {
        let counts = "SELECT count(*), count(*) FILTER (WHERE status = 'completed'), \
                             (SELECT count(*) FROM (SELECT FROM occurrences WHERE trigger = 'schedule' \
                                                     GROUP BY job_id, scheduled_for HAVING count(*) > 1) d) \
                        FROM occurrences";
        let (all, completed, twice): (i64, i64, i64) = sqlx::query_as(counts).fetch_one(&self.pool).await?;
        ensure!(completed == all, "{} of {all} occurrences did not complete", all - completed);
        ensure!(twice == 0, "{twice} due times have more than one occurrence");
        ensure!(runs == all, "{all} occurrences completed, but the worker started {runs} runs");
        Ok(all)
    }

    /// Deletes the database, and the queues with their messages.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        self.pool.close().await;
        self.database.drop_database().await?;
        let connection = publisher::connect(&self.harness.amqp_url).await?;
        let channel = connection.create_channel().await?;
        let names = Topology::new(self.prefix.as_str());
        let queues = [names.status(), names.logs(), names.registration(), names.claims(), names.ingest()];
        for queue in queues.into_iter().chain([names.dead_letter_queue(), names.job_queue(WORKER_ID, JOB_TYPE)]) {
            channel.queue_delete(queue.into(), Default::default()).await?;
        }
        publisher::close(connection).await;
        Ok(())
    }
}

/// Returns the name of a new database, which is also its prefix on the broker.
fn unique_name() -> String {
    format!("bench_{:08x}", rand::random::<u32>())
}

/// Returns a new id with the current time.
pub(crate) fn occurrence_id() -> OccurrenceId {
    OccurrenceId::from_parts(machine_now(), rand::random())
}
