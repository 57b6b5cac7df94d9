//! What is done to the product, scenario by scenario.
//!
//! Each one has jobs due all the time, a fault that happens some number of times at moments drawn from the seed, a
//! healing, and a rest. What must hold afterwards is the same for all and is the checker's business; what a scenario
//! promises besides, such as how soon somebody else leads, it looks at itself.

mod broker;
mod cache;
mod copies;
mod database;
mod points;
mod servers;
mod workers;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::Context;
use futures::future::LocalBoxFuture;
use rand::{Rng, RngExt};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{
    house::House,
    stand::{Setup, Stand},
    workload::{self, Plan},
};

/// How a scenario is to be played.
#[derive(Clone, Debug)]
pub(crate) struct Dials {
    /// How often its fault happens.
    pub(crate) count: u32,
    pub(crate) seed: u64,
    /// Whether pauses are the short ones.
    pub(crate) is_short: bool,
    /// What is armed in every program from its start.
    pub(crate) armed: Option<String>,
}

impl Dials {
    /// One of two durations.
    pub(crate) fn either(&self, short: f64, long: f64) -> f64 {
        if self.is_short { short } else { long }
    }
}

/// What a scenario says besides the checker.
#[derive(Debug, Default)]
pub(crate) struct Extra {
    /// What was measured.
    pub(crate) figures: BTreeMap<&'static str, f64>,
    /// What did not hold, as sentences.
    pub(crate) failures: Vec<String>,
    /// For when the checker has spoken: figures of `verdict.json` by pointer, and how much they may be.
    pub(crate) bounds: Vec<(&'static str, f64)>,
}

impl Extra {
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
pub(crate) struct Played {
    pub(crate) folder: PathBuf,
    /// From the last job's end in the schedule to the end of the last run.
    pub(crate) rest: Duration,
    pub(crate) extra: Extra,
}

type Play = for<'a> fn(&'a mut House, Dials) -> LocalBoxFuture<'a, anyhow::Result<Played>>;

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
    pub(crate) play: Play,
}

/// All of them, in the order they are played.
pub(crate) const ALL: &[Scenario] = &[
    servers::C01,
    servers::C02,
    servers::C04,
    cache::C10,
    cache::C11,
    database::C14,
    broker::C18,
    broker::C20,
    broker::C22,
    broker::C23,
    workers::C25,
    workers::C26,
    workers::C27,
    workers::C28,
    workers::C30,
    workers::C31,
    copies::C32,
    copies::C33,
    workers::C35,
    workers::C44,
    points::CP,
];

/// What one scenario has of its own.
struct Script {
    scenario: &'static str,
    workers: usize,
    /// Jobs beside the usual ones.
    more: Vec<Plan>,
    /// How long the usual single runs are spread over, in seconds.
    window: u64,
    /// What the checker is told besides.
    judge: Value,
}

impl Script {
    fn new(scenario: &'static str, judge: Value) -> Self {
        Self { scenario, workers: 3, more: Vec::new(), window: 30, judge }
    }

    /// Plays it: the usual jobs, somebody who goes on asking, `faults`, healing and rest.
    async fn play(
        self,
        house: &mut House,
        dials: Dials,
        faults: impl AsyncFnOnce(&mut Stand<'_>, &Dials, &mut Extra) -> anyhow::Result<()>,
    ) -> anyhow::Result<Played> {
        let setup = Setup {
            scenario: self.scenario,
            seed: dials.seed,
            workers: self.workers,
            capacity: 300,
            armed: dials.armed.clone(),
            judge: self.judge,
        };
        let mut stand = Stand::open(house, setup).await?;
        let mut extra = Extra::default();
        let played = async {
            let mut plans = workload::usual(&mut stand.random, self.window);
            plans.extend(self.more);
            if dials.is_short {
                // Long enough to be hit by a fault, short enough to be waited for.
                for plan in plans.iter_mut().filter(|plan| plan.kind == "long" && plan.milliseconds.is_none()) {
                    plan.milliseconds = Some(5_000);
                }
            }
            stand.define(plans).await?;
            let stop = CancellationToken::new();
            let asking = [
                stand.driver.keep_asking("quick", Duration::from_secs(1), &stop)?,
                stand.driver.keep_asking("obedient", Duration::from_secs(5), &stop)?,
            ];
            stand.go_on(dials.either(3.0, 10.0)).await;
            faults(&mut stand, &dials, &mut extra).await?;
            stand.go_on(dials.either(2.0, 6.0)).await;
            stop.cancel();
            for asking in asking {
                asking.await.context("somebody at the dashboard panicked")?;
            }
            stand.settle().await
        }
        .await;
        // A stand that is not taken down would be in the next scenario's way.
        let folder = stand.close().await?;
        Ok(Played { folder, rest: played?, extra })
    }
}

/// A pause between two bounds, in seconds.
fn pause(random: &mut impl Rng, from: f64, to: f64) -> f64 {
    random.random_range(from..=to)
}
