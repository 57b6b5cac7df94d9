//! What is done to the product, scenario by scenario.
//!
//! Each one has jobs due all the time, a fault that happens some number of times at moments drawn from the seed, a
//! healing, and a rest. What must hold afterwards is the same for all and is the checker's business; what a scenario
//! promises besides, such as how soon somebody else leads, it looks at itself.

mod broker;
mod crash_points;
mod database;
mod duplicates;
mod redis_faults;
mod servers;
mod workers;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::Context;
use futures::future::LocalBoxFuture;
use rand::{Rng, RngExt};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::{ChaosCluster, ClusterConfig},
    harness::ServiceHarness,
    workload::{self, JobPlan},
};

/// How a scenario is to be played.
#[derive(Clone, Debug)]
pub(crate) struct ScenarioConfig {
    /// How often its fault happens.
    pub(crate) count: u32,
    pub(crate) seed: u64,
    /// Whether pauses are the short ones.
    pub(crate) is_short: bool,
    /// What is armed in every program from its start.
    pub(crate) armed: Option<String>,
}

impl ScenarioConfig {
    /// One of two durations.
    pub(crate) fn either(&self, short: f64, long: f64) -> f64 {
        if self.is_short { short } else { long }
    }
}

/// What a scenario says besides the checker.
#[derive(Debug, Default)]
pub(crate) struct ScenarioMeasurements {
    /// What was measured.
    pub(crate) figures: BTreeMap<&'static str, f64>,
    /// What did not hold, as sentences.
    pub(crate) failures: Vec<String>,
    /// For when the checker has spoken: figures of `verdict.json` by pointer, and how much they may be.
    pub(crate) bounds: Vec<(&'static str, f64)>,
}

impl ScenarioMeasurements {
    /// Keeps the greatest of several measurements, and what it may be.
    pub(crate) fn at_most(&mut self, name: &'static str, measured: f64, bound: f64) {
        let figure = self.figures.entry(name).or_insert(0.0);
        *figure = figure.max(measured);
        if measured > bound {
            self.failures.push(format!("{name} is {measured:.2}, more than {bound}"));
        }
    }

    /// Keeps a measurement, and what it must be.
    pub(crate) fn at_least(&mut self, name: &'static str, measured: f64, bound: f64) {
        self.figures.insert(name, measured);
        if measured < bound {
            self.failures.push(format!("{name} is {measured:.2}, less than {bound}"));
        }
    }
}

/// A scenario that was played.
#[derive(Debug)]
pub(crate) struct ScenarioResult {
    pub(crate) folder: PathBuf,
    /// From the last job's end in the schedule to the end of the last run.
    pub(crate) rest: Duration,
    pub(crate) measurements: ScenarioMeasurements,
}

type ScenarioFn =
    for<'a> fn(&'a mut ServiceHarness, ScenarioConfig) -> LocalBoxFuture<'a, anyhow::Result<ScenarioResult>>;

/// A scenario.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    /// As it is called on the command line.
    pub(crate) id: &'static str,
    /// What is done.
    pub(crate) title: &'static str,
    /// How often in the short set; 0: not in it.
    pub(crate) short: u32,
    /// How often in the long set.
    pub(crate) long: u32,
    pub(crate) play: ScenarioFn,
}

/// All of them, in the order they are played.
pub(crate) const SCENARIOS: &[Scenario] = &[
    servers::NO_FAULT,
    servers::LEADER_KILLED,
    servers::LEADER_FROZEN,
    redis_faults::REDIS_FLUSHED,
    redis_faults::REDIS_OUTAGE,
    database::POSTGRES_KILLED,
    broker::RABBITMQ_KILLED,
    broker::RABBITMQ_WIPED,
    broker::QUEUE_REMOVED,
    broker::CONFIRMS_LOST,
    workers::WORKER_KILLED,
    workers::WORKER_FROZEN,
    workers::WORKER_PARTITIONED,
    workers::PARTITIONED_WORKER_KILLED,
    workers::WORKER_TERMINATED,
    workers::ALL_WORKERS_KILLED,
    duplicates::MESSAGES_DUPLICATED,
    duplicates::REPORTS_REPLAYED,
    workers::POISON_RUN,
    workers::RUNS_CANCELLED,
    crash_points::CRASH_POINTS,
];

/// What one scenario has of its own.
struct ScenarioScript {
    scenario: &'static str,
    workers: usize,
    /// Jobs beside the usual ones.
    more: Vec<JobPlan>,
    /// How long the usual single runs are spread over, in seconds.
    window: u64,
    /// What the checker is told besides.
    judge: Value,
}

impl ScenarioScript {
    fn new(scenario: &'static str, judge: Value) -> Self {
        Self { scenario, workers: 3, more: Vec::new(), window: 30, judge }
    }

    /// Plays it: the usual jobs, somebody who goes on asking, `faults`, healing and rest.
    async fn play(
        self,
        harness: &mut ServiceHarness,
        config: ScenarioConfig,
        faults: impl AsyncFnOnce(&mut ChaosCluster<'_>, &ScenarioConfig, &mut ScenarioMeasurements) -> anyhow::Result<()>,
    ) -> anyhow::Result<ScenarioResult> {
        let setup = ClusterConfig {
            scenario: self.scenario,
            seed: config.seed,
            workers: self.workers,
            capacity: 300,
            armed: config.armed.clone(),
            judge: self.judge,
        };
        let mut cluster = ChaosCluster::open(harness, setup).await?;
        let mut measurements = ScenarioMeasurements::default();
        let played = async {
            let mut plans = workload::default_workload(&mut cluster.random, self.window);
            plans.extend(self.more);
            if config.is_short {
                // Long enough to be hit by a fault, short enough to be waited for.
                for plan in plans.iter_mut().filter(|plan| plan.kind == "long" && plan.milliseconds.is_none()) {
                    plan.milliseconds = Some(5_000);
                }
            }
            cluster.define(plans).await?;
            let stop = CancellationToken::new();
            let asking = [
                cluster.driver.spawn_request_loop("quick", Duration::from_secs(1), &stop)?,
                cluster.driver.spawn_request_loop("obedient", Duration::from_secs(5), &stop)?,
            ];
            cluster.run_for(config.either(3.0, 10.0)).await;
            faults(&mut cluster, &config, &mut measurements).await?;
            cluster.run_for(config.either(2.0, 6.0)).await;
            stop.cancel();
            for asking in asking {
                asking.await.context("somebody at the dashboard panicked")?;
            }
            cluster.settle().await
        }
        .await;
        // A cluster that is not taken down would be in the next scenario's way.
        let folder = cluster.close().await?;
        Ok(ScenarioResult { folder, rest: played?, measurements })
    }
}

/// A pause between two bounds, in seconds.
fn pause(random: &mut impl Rng, from: f64, to: f64) -> f64 {
    random.random_range(from..=to)
}
