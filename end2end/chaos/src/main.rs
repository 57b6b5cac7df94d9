//! Takes services and processes away from the real programs while jobs are due, and has judged what came of it.
//!
//! ```text
//!  driver ──HTTP──► server-1, server-2 ──proxy──► PostgreSQL, Redis, RabbitMQ
//!                                                          ▲        │
//!  witness ◄──datagrams── jobs in worker-1 … worker-3 ─────┴─proxy──┘
//!     │
//!     ▼
//!  evidence (plain files) ──► checker in Python ──► verdict
//! ```
//!
//! Nothing here is simulated: servers and workers are the programs people run, with real services, and faults are real
//! signals and real broken connections. Only two things are added to the programs, both by a feature that released ones
//! lack: points at which they end on their own, and sabotage, with which the suite is tested itself.
//!
//! The reading order: `scenarios` says what is done; `cluster` what it is done to; `workload`, `workload_driver` and `live_stream` are the
//! people and jobs meanwhile; `proxy`, `process` and `private_service` are what can be broken; `witness`, `evidence` and `final_state` write down
//! what was seen; `verdict` has it judged; `sabotage` tests the suite.

mod api;
mod cluster;
mod evidence;
mod final_state;
mod harness;
mod live_stream;
mod private_service;
mod process;
mod proxy;
mod sabotage;
mod scenarios;
mod tap;
mod verdict;
mod witness;
mod workload;
mod workload_driver;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use anyhow::{Context, bail};
use clap::{Parser, ValueEnum};

use harness::ServiceHarness;
use scenarios::{Scenario, ScenarioConfig};
use verdict::ScenarioVerdict;

/// Every verdict of the last run.
const RESULTS_FILE: &str = "latest.json";

/// Takes services and processes away, and has judged what came of it. Each option can also be given by the environment.
#[derive(Debug, Parser)]
struct ChaosArgs {
    /// Which scenarios, separated by commas, such as redis_flushed,rabbitmq_killed; instead of a set.
    #[arg(long, value_delimiter = ',')]
    scenario: Vec<String>,
    /// Which set: the short one takes about five minutes, the long one about an hour.
    #[arg(long, value_enum, default_value = "short")]
    set: ScenarioSet,
    /// How often the fault happens; instead of what the set says.
    #[arg(long)]
    count: Option<u32>,
    /// The random numbers to begin with; a run prints those it had.
    #[arg(long)]
    seed: Option<u64>,
    /// Take a protection away, such as skip_claim, or `all` one after the other, and see whether that is noticed.
    #[arg(long)]
    sabotage: Option<String>,
    /// Where services, logs and evidence lie.
    #[arg(long, default_value = "target/chaos")]
    folder: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ScenarioSet {
    /// For every change.
    Short,
    /// By hand.
    Long,
}

#[tokio::main]
async fn main() -> ExitCode {
    match carry_out(ChaosArgs::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("chaos: {error:#}");
            ExitCode::from(2)
        }
    }
}

async fn carry_out(arguments: ChaosArgs) -> anyhow::Result<bool> {
    let seed = arguments.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let folder = std::path::absolute(&arguments.folder)?;
    std::fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    println!("Seed {seed}. Evidence and logs: {}", folder.join("runs").display());
    let mut harness = ServiceHarness::open(&folder).await.context("the services cannot be started")?;
    let outcome = tokio::select! {
        outcome = play(&mut harness, &arguments, seed) => outcome,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("stopped from outside")),
    };
    harness.close().await?;
    outcome
}

async fn play(harness: &mut ServiceHarness, arguments: &ChaosArgs, seed: u64) -> anyhow::Result<bool> {
    if let Some(name) = &arguments.sabotage {
        return sabotage::test_the_suite(harness, name, seed).await;
    }
    let chosen = choose(arguments)?;
    let mut verdicts = Vec::new();
    for (scenario, count) in chosen {
        let is_short = arguments.set == ScenarioSet::Short;
        let config = ScenarioConfig { count: arguments.count.unwrap_or(count), seed, is_short, armed: None };
        let verdict = run_scenario(harness, scenario, config).await?;
        verdict.print();
        verdicts.push(verdict);
        // Kept as it grows, so that a run that is stopped leaves what it found.
        report(&harness.folder, &verdicts)?;
    }
    let failed: Vec<_> = verdicts.iter().filter(|verdict| !verdict.passed).map(|verdict| verdict.scenario).collect();
    println!(
        "{} scenarios, {} passed, {} failed{}",
        verdicts.len(),
        verdicts.len() - failed.len(),
        failed.len(),
        if failed.is_empty() { String::new() } else { format!(": {}", failed.join(", ")) }
    );
    Ok(failed.is_empty())
}

/// Plays one scenario. An error is that the harness is in no state for another.
async fn run_scenario(
    harness: &mut ServiceHarness,
    scenario: &Scenario,
    config: ScenarioConfig,
) -> anyhow::Result<ScenarioVerdict> {
    let (begun, seed, count) = (Instant::now(), config.seed, config.count);
    let played = (scenario.play)(harness, config).await;
    let mut verdict = match played.and_then(|played| ScenarioVerdict::from_checker(scenario, seed, count, played)) {
        Ok(verdict) => verdict,
        Err(error) => {
            harness.restart_stopped().await.context("a service that was taken away does not come back")?;
            ScenarioVerdict::aborted(scenario, seed, count, &error)
        }
    };
    verdict.seconds = begun.elapsed().as_secs_f64();
    Ok(verdict)
}

fn choose(arguments: &ChaosArgs) -> anyhow::Result<Vec<(&'static Scenario, u32)>> {
    let count = |scenario: &Scenario| match arguments.set {
        ScenarioSet::Short => scenario.short,
        ScenarioSet::Long => scenario.long,
    };
    if arguments.scenario.is_empty() {
        return Ok(scenarios::SCENARIOS.iter().map(|one| (one, count(one))).filter(|(_, count)| *count > 0).collect());
    }
    let find = |name: &String| {
        let found = scenarios::SCENARIOS.iter().find(|one| one.id.eq_ignore_ascii_case(name.trim()));
        let Some(one) = found else {
            let all: Vec<_> = scenarios::SCENARIOS.iter().map(|one| one.id).collect();
            bail!("there is no scenario {name}: choose from {}", all.join(", "));
        };
        Ok((one, count(one).max(1)))
    };
    arguments.scenario.iter().map(find).collect()
}

fn report(folder: &Path, verdicts: &[ScenarioVerdict]) -> anyhow::Result<()> {
    let path = folder.join(RESULTS_FILE);
    std::fs::write(&path, serde_json::to_vec_pretty(verdicts)?)
        .with_context(|| format!("{} cannot be written", path.display()))
}
