//! The faults that are injected, scenario by scenario.
//!
//! In each scenario jobs are due all the time. A fault is injected some number of times, at moments drawn from the
//! seed. Then everything is restored, and the system must become idle. The invariants that must hold afterwards are the
//! same for all scenarios, and the checker verifies them. A scenario itself measures only its additional bounds, such
//! as the time until another server leads. The scenarios in `loops` have singleton loops instead of jobs, and a checker of
//! their own.

mod broker;
mod crash_points;
mod database;
mod declared;
mod duplicates;
mod enqueueing;
mod everyday;
mod loops;
mod redis_faults;
mod runs;
mod servers;
mod silence;
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

/// The parameters of one scenario's run.
#[derive(Clone, Debug)]
pub(crate) struct ScenarioConfig {
    /// The number of faults.
    pub(crate) count: u32,
    pub(crate) seed: u64,
    /// True if pauses are short, as in the smoke and the short set.
    pub(crate) is_short: bool,
    /// Failpoints that are armed in every program at each start.
    pub(crate) armed: Option<String>,
}

impl ScenarioConfig {
    /// Returns the duration for the smoke and the short set, or the one for the long set.
    pub(crate) fn either(&self, short: f64, long: f64) -> f64 {
        if self.is_short { short } else { long }
    }
}

/// The measurements of a scenario, besides the checker's.
#[derive(Debug, Default)]
pub(crate) struct ScenarioMeasurements {
    /// The measured figures by name.
    pub(crate) figures: BTreeMap<&'static str, f64>,
    /// The bounds that were exceeded, one sentence each.
    pub(crate) failures: Vec<String>,
    /// Upper bounds for figures of `verdict.json`, by JSON pointer; checked after the checker has run.
    pub(crate) bounds: Vec<(&'static str, f64)>,
}

impl ScenarioMeasurements {
    /// Records the greatest of several measurements, and a failure if one exceeds the bound.
    pub(crate) fn at_most(&mut self, name: &'static str, measured: f64, bound: f64) {
        let figure = self.figures.entry(name).or_insert(0.0);
        *figure = figure.max(measured);
        if measured > bound {
            self.failures.push(format!("{name} is {measured:.2}, more than {bound}"));
        }
    }

    /// Records a measurement, and a failure if it is below the bound.
    pub(crate) fn at_least(&mut self, name: &'static str, measured: f64, bound: f64) {
        self.figures.insert(name, measured);
        if measured < bound {
            self.failures.push(format!("{name} is {measured:.2}, less than {bound}"));
        }
    }
}

/// The result of a scenario that was run to its end.
#[derive(Debug)]
pub(crate) struct ScenarioResult {
    pub(crate) folder: PathBuf,
    /// The time from the last disabled job to the end of the last occurrence.
    pub(crate) rest: Duration,
    pub(crate) measurements: ScenarioMeasurements,
    /// The file name of the checker.
    pub(crate) checker: &'static str,
}

type ScenarioFn =
    for<'a> fn(&'a mut ServiceHarness, ScenarioConfig) -> LocalBoxFuture<'a, anyhow::Result<ScenarioResult>>;

/// The run of a scenario in the smoke set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SmokeRun {
    /// The number of faults.
    pub(crate) count: u32,
    /// The duration in seconds on two cores, added up from the waits of the scenario. The sum over the smoke set is
    /// limited by the budget of `make test`, because a measured time varies too much to be limited.
    pub(crate) nominal_seconds: f64,
}

/// A scenario.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    /// The name on the command line.
    pub(crate) id: &'static str,
    /// A short description of the fault.
    pub(crate) title: &'static str,
    /// Its run in the smoke set; `None` if the scenario is not in it.
    pub(crate) smoke: Option<SmokeRun>,
    /// The number of faults in the short set; 0 if the scenario is not in it.
    pub(crate) short: u32,
    /// The number of faults in the long set.
    pub(crate) long: u32,
    pub(crate) run: ScenarioFn,
}

/// All scenarios, in the order they are run.
pub(crate) const SCENARIOS: &[Scenario] = &[
    everyday::EVERYDAY_FAULTS,
    servers::NO_FAULT,
    servers::LEADER_KILLED,
    servers::LEADER_FROZEN,
    redis_faults::REDIS_FLUSHED,
    redis_faults::REDIS_OUTAGE,
    database::POSTGRES_KILLED,
    database::CONNECTIONS_LOST,
    database::TASK_FAILING,
    database::SNAPSHOT_HELD,
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
    silence::BROKER_ALARM,
    silence::WORKER_UNREACHABLE,
    silence::DEAD_WORKER_IN_REDIS,
    duplicates::MESSAGES_DUPLICATED,
    duplicates::REPORTS_REPLAYED,
    enqueueing::ENQUEUE_REDELIVERED,
    enqueueing::ENQUEUE_FAULTS,
    declared::DECLARED_SCHEDULES,
    runs::POISON_RUN,
    runs::RUNS_CANCELLED,
    crash_points::CRASH_POINTS,
    loops::LOOP_LEADER_KILLED,
    loops::LOOP_LEADER_FROZEN,
    loops::LOOP_LEADER_PARTITIONED,
    loops::LOOP_REDIS_FLUSHED,
    loops::LOOP_REDIS_RESTARTED,
    loops::LOOP_REDIS_STALE,
    loops::LOOP_ROLLING_RESTART,
];

/// The time in seconds for which the workload runs before the first fault, in the smoke and the short set.
const SHORT_WARM_UP_SECONDS: f64 = 3.0;
/// The time in seconds for which it runs after the last fault.
const SHORT_COOL_DOWN_SECONDS: f64 = 2.0;
/// The nominal time in seconds to start a cluster and to define the default workload.
const CLUSTER_START_SECONDS: f64 = 7.0;
/// The nominal time in seconds to disable the jobs, to wait for the last run, to read and judge the evidence, and to stop
/// the cluster.
const CLUSTER_END_SECONDS: f64 = 18.0;

/// The settings of one scenario.
struct ScenarioScript {
    scenario: &'static str,
    workers: usize,
    /// Jobs besides those of the default workload.
    more_jobs: Vec<JobPlan>,
    /// The number of seconds within which the default workload's one-time jobs are due.
    window: u64,
    /// True if there is no default workload and no user: only what the faults define is at work.
    is_idle: bool,
    /// True if a program enqueues occurrences all the time.
    enqueues: bool,
    /// Members of `run.json` that replace the default limits of the checker.
    limits: Value,
}

impl ScenarioScript {
    fn new(scenario: &'static str, limits: Value) -> Self {
        Self { scenario, workers: 3, more_jobs: Vec::new(), window: 30, is_idle: false, enqueues: false, limits }
    }

    /// Runs the scenario: starts the cluster, the workload and two users, injects `faults`, and waits until the system
    /// is idle.
    async fn run(
        self,
        harness: &mut ServiceHarness,
        config: ScenarioConfig,
        faults: impl AsyncFnOnce(&mut ChaosCluster<'_>, &ScenarioConfig, &mut ScenarioMeasurements) -> anyhow::Result<()>,
    ) -> anyhow::Result<ScenarioResult> {
        let cluster_config = ClusterConfig {
            scenario: self.scenario,
            seed: config.seed,
            workers: self.workers,
            capacity: 300,
            armed: config.armed.clone(),
            limits: self.limits,
        };
        let mut cluster = ChaosCluster::open(harness, cluster_config).await?;
        let mut measurements = ScenarioMeasurements::default();
        let result = async {
            let mut plans = self.more_jobs;
            if !self.is_idle {
                plans.splice(0..0, workload::default_workload(&mut cluster.random, self.window));
            }
            if config.is_short {
                // A run of 5 s is long enough to be hit by a fault, and ends soon enough for the short set.
                for plan in plans.iter_mut().filter(|plan| plan.kind == "long" && plan.milliseconds.is_none()) {
                    plan.milliseconds = Some(5_000);
                }
            }
            cluster.define(plans).await?;
            let stop = CancellationToken::new();
            let mut request_loops = Vec::new();
            if !self.is_idle {
                for (kind, seconds) in [("quick", 1), ("obedient", 5)] {
                    request_loops.push(cluster.driver.spawn_request_loop(kind, Duration::from_secs(seconds), &stop)?);
                }
            }
            if self.enqueues {
                request_loops.push(cluster.enqueuer()?.spawn_loop(Duration::from_millis(500), &stop));
            }
            cluster.run_for(config.either(SHORT_WARM_UP_SECONDS, 10.0)).await;
            faults(&mut cluster, &config, &mut measurements).await?;
            cluster.run_for(config.either(SHORT_COOL_DOWN_SECONDS, 6.0)).await;
            stop.cancel();
            for request_loop in request_loops {
                request_loop.await.context("a request loop panicked")?;
            }
            cluster.settle().await
        }
        .await;
        // The cluster is closed even after an error, so that it does not disturb the next scenario.
        let folder = cluster.close().await?;
        Ok(ScenarioResult { folder, rest: result?, measurements, checker: "check.py" })
    }
}

/// Returns a random duration between two bounds, in seconds.
fn random_seconds(random: &mut impl Rng, from: f64, to: f64) -> f64 {
    random.random_range(from..=to)
}
