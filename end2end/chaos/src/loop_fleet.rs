//! The processes of a scenario about singleton loops: workers without job types, each with a proxied link to Redis.
//!
//! No server, PostgreSQL or RabbitMQ takes part, because loops use none of them.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use milvaion_protocol::topology::RedisKeys;
use milvaion_server::embedded::child::LaunchSpec;
use milvaion_test_support::process::ManagedProcess;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use redis::AsyncCommands;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    cluster::WAIT_TIMEOUT,
    evidence::{EvidenceWriter, now},
    harness::ServiceHarness,
    proxy::ProxyLink,
    scenarios::ScenarioConfig,
    witness::Witness,
};

/// The number of workers.
pub(crate) const WORKERS: usize = 3;
/// The number of loops, each of which runs every 100 ms.
const LOOPS: usize = 20;
/// The interval at which a condition is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The running workers.
pub(crate) struct LoopFleet<'a> {
    pub(crate) harness: &'a mut ServiceHarness,
    pub(crate) evidence: Arc<EvidenceWriter>,
    pub(crate) workers: Vec<ManagedProcess>,
    pub(crate) links: Vec<ProxyLink>,
    pub(crate) random: StdRng,
    keys: RedisKeys,
    witness: Witness,
    scenario: &'static str,
    seed: u64,
    limits: Value,
    began: i64,
}

impl<'a> LoopFleet<'a> {
    /// Starts the workers, and returns when every loop has a leader. `limits` are members of `run.json`.
    pub(crate) async fn open(
        harness: &'a mut ServiceHarness,
        scenario: &'static str,
        config: &ScenarioConfig,
        limits: Value,
    ) -> anyhow::Result<Self> {
        let folder = harness.folder.join("runs").join(format!("{scenario}-{}", config.seed));
        let evidence = Arc::new(EvidenceWriter::open(folder)?);
        let socket = std::env::temp_dir().join(format!("milvaion-witness-{}", std::process::id()));
        let witness = Witness::open(socket, evidence.clone())?;
        let prefix = format!("l{:08x}:", rand::random::<u32>());
        let program = std::env::current_exe()?.with_file_name("loop-worker");
        ensure!(program.exists(), "{} is missing; run this through `make chaos`, which builds it", program.display());
        let (mut workers, mut links) = (Vec::new(), Vec::new());
        for number in 1..=WORKERS {
            let name = format!("worker-{number}");
            let link = ProxyLink::open(format!("{name}>redis"), harness.redis.address()?).await?;
            let launch = LaunchSpec::new(program.clone())
                .env("REDIS_URL", harness.redis.url_through(link.port())?)
                .env("MILVAION_KEY_PREFIX", &prefix)
                .env("MILVAION_WORKER_ID", &name)
                .env("CHAOS_WITNESS", witness.socket())
                .env("CHAOS_PROCESS", &name)
                .env("CHAOS_LOOPS", LOOPS.to_string())
                .without_env("AMQP_URL")
                .without_env("DATABASE_URL")
                .without_env("FAILPOINTS");
            let log = evidence.folder().join(format!("{name}.log"));
            workers.push(ManagedProcess::new(name, launch, log, config.armed.clone()));
            links.push(link);
        }
        let mut fleet = Self {
            harness,
            evidence,
            workers,
            links,
            random: StdRng::seed_from_u64(config.seed),
            keys: RedisKeys::new(prefix),
            witness,
            scenario,
            seed: config.seed,
            limits,
            began: now(),
        };
        for worker in &mut fleet.workers {
            worker.start().await?;
        }
        fleet.wait_for_leaders().await?;
        fleet.wait_for_instances(WORKERS).await?;
        fleet.began = now();
        Ok(fleet)
    }

    /// Returns the number of loops that each worker leads.
    pub(crate) async fn led(&self) -> anyhow::Result<Vec<usize>> {
        let mut redis = self.connect().await?;
        let mut led = vec![0; self.workers.len()];
        for number in 1..=LOOPS {
            let holder: Option<String> = redis.get(self.keys.singleton_lease(&format!("loop-{number:02}"))).await?;
            let worker = holder.and_then(|holder| {
                self.workers.iter().position(|worker| holder.starts_with(&format!("{}-", worker.name())))
            });
            if let Some(worker) = worker {
                led[worker] += 1;
            }
        }
        Ok(led)
    }

    /// Returns the worker that leads the most loops.
    pub(crate) async fn leader(&self) -> anyhow::Result<usize> {
        let led = self.led().await?;
        led.iter().enumerate().max_by_key(|(_, led)| **led).map(|(worker, _)| worker).context("there are no workers")
    }

    /// Waits until each loop has a leader.
    pub(crate) async fn wait_for_leaders(&self) -> anyhow::Result<()> {
        self.wait_until("a leader of every loop", async || Ok(self.led().await?.iter().sum::<usize>() == LOOPS)).await
    }

    /// Waits until this many instances offer the last loop.
    pub(crate) async fn wait_for_instances(&self, count: usize) -> anyhow::Result<()> {
        let key = self.keys.singleton_instances(&format!("loop-{LOOPS:02}"));
        self.wait_until("the instances of a loop", async || {
            Ok(self.connect().await?.zcard::<_, usize>(&key).await? == count)
        })
        .await
    }

    /// Waits for some seconds while everything runs.
    pub(crate) async fn run_for(&self, seconds: f64) {
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    }

    /// Returns a random duration in seconds.
    pub(crate) fn random_seconds(&mut self, from: f64, to: f64) -> f64 {
        self.random.random_range(from..=to)
    }

    /// Ends all processes. Returns the evidence folder, which stays.
    pub(crate) async fn close(mut self) -> anyhow::Result<PathBuf> {
        let cut = now();
        for worker in &mut self.workers {
            worker.clean_up().await;
        }
        self.witness.close();
        let mut run = json!({
            "scenario": self.scenario, "seed": self.seed, "began": self.began, "cut": cut, "read": now(),
            "loops": LOOPS, "period_ms": 100, "overlap_allowance_ms": 0, "tolerate": {},
        });
        if let (Some(run), Some(limits)) = (run.as_object_mut(), self.limits.as_object()) {
            run.extend(limits.clone());
        }
        self.evidence.write("run.json", &run)?;
        Ok(self.evidence.folder().to_owned())
    }

    async fn connect(&self) -> anyhow::Result<redis::aio::MultiplexedConnection> {
        Ok(redis::Client::open(self.harness.redis.url())?.get_multiplexed_async_connection().await?)
    }

    async fn wait_until(&self, what: &str, condition: impl AsyncFn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
        let begun = Instant::now();
        // An error, such as an unavailable Redis, counts as not yet.
        while !condition().await.unwrap_or(false) {
            ensure!(begun.elapsed() < WAIT_TIMEOUT, "timed out after {} s waiting for {what}", WAIT_TIMEOUT.as_secs());
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}
