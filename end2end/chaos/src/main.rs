//! A chaos suite: injects faults into real servers, workers and services while jobs are due, and checks the result.
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
//! # Construction
//!
//! - **Nothing is simulated.** Servers and workers are the programs that users run, the services are real, and faults
//!   are real signals and real broken connections. The cargo feature `faults`, which released programs lack, adds two
//!   things to the programs: crash points, at which a program ends or freezes, and sabotages, which disable a
//!   protection.
//! - **Faults are seeded.** The seed determines the jobs, the processes that a fault hits, and the pauses between
//!   faults. A run prints its seed, and the same seed draws the same faults. They need not hit the programs at the same
//!   instants.
//! - **A witness outside the product** receives the start and the end of each run over a socket that no fault affects.
//!   What really ran is known without trusting the product's own records.
//! - **Evidence is a folder of plain files**: the jobs, the requests, the faults, what the witness received, and the
//!   final state, read from the database and from a server's interface. `EVIDENCE.md` specifies each file. A verdict
//!   can be recomputed from the folder at any time.
//! - **The checker is independent.** It is written in Python and shares no code with the product or with this harness,
//!   so a defect in the scheduling code cannot hide itself. It computes from the definitions of the jobs which
//!   occurrences were owed, and compares them with the evidence.
//! - **Sabotage tests the suite itself.** A suite that always passes may not detect anything. Each sabotage disables
//!   one protection, and the scenario that depends on it must then fail with a finding that belongs to it.
//!
//! # Reading order
//!
//! 1. `scenarios` defines the faults, scenario by scenario.
//! 2. `cluster` starts the servers and workers that they hit, and `loop_fleet` the workers with singleton loops.
//! 3. `workload`, `workload_driver`, `enqueuer` and `live_stream` define the jobs, and act as users, as a program that
//!    enqueues, and as an open page.
//! 4. `proxy`, and `process` and `private_service` of the test support crate, inject faults.
//! 5. `witness`, `evidence` and `final_state` record the result.
//! 6. `verdict` runs the checker.
//! 7. `sabotage` tests the suite.

mod api;
mod cluster;
mod enqueuer;
mod evidence;
mod final_state;
mod harness;
mod live_stream;
mod loop_fleet;
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

/// The file with the verdicts of the last run.
const RESULTS_FILE: &str = "latest.json";

/// Injects faults into servers, workers and services, and checks that nothing is lost, duplicated or stuck.
#[derive(Debug, Parser)]
struct ChaosArgs {
    /// Scenarios to run instead of a set, separated by commas, such as redis_flushed,rabbitmq_killed.
    #[arg(long, value_delimiter = ',')]
    scenario: Vec<String>,
    /// Set of scenarios to run: smoke takes about two and a half minutes, short about twelve, long about two hours.
    #[arg(long, value_enum, default_value = "short")]
    set: ScenarioSet,
    /// Number of faults in each scenario, instead of the number of the set.
    #[arg(long)]
    count: Option<u32>,
    /// Seed of the random numbers; by default a random one, which is printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Protection to disable, such as skip_claim, or `all` in turn; the run fails if the suite does not detect it.
    #[arg(long)]
    sabotage: Option<String>,
    /// Folder for services, logs and evidence.
    #[arg(long, default_value = "target/chaos")]
    folder: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ScenarioSet {
    /// For every change: about two and a half minutes.
    Smoke,
    /// For a change that affects much: about twelve minutes.
    Short,
    /// Before a release: about two hours.
    Long,
}

impl ScenarioSet {
    /// Returns its name on the command line.
    fn name(self) -> &'static str {
        match self {
            Self::Smoke => "smoke",
            Self::Short => "short",
            Self::Long => "long",
        }
    }

    /// Returns the number of faults of a scenario; 0 if the scenario is not in this set.
    fn count(self, scenario: &Scenario) -> u32 {
        match self {
            Self::Smoke => scenario.smoke.map_or(0, |smoke| smoke.count),
            Self::Short => scenario.short,
            Self::Long => scenario.long,
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run_suite(ChaosArgs::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("chaos: {error:#}");
            ExitCode::from(2)
        }
    }
}

async fn run_suite(arguments: ChaosArgs) -> anyhow::Result<bool> {
    let seed = arguments.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let folder = std::path::absolute(&arguments.folder)?;
    std::fs::create_dir_all(&folder).with_context(|| format!("{} cannot be created", folder.display()))?;
    println!("Seed {seed}. Evidence and logs: {}", folder.join("runs").display());
    let mut harness = ServiceHarness::open(&folder).await.context("the services cannot be started")?;
    let outcome = tokio::select! {
        outcome = run_scenarios(&mut harness, &arguments, seed) => outcome,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted by Ctrl-C")),
    };
    harness.close().await?;
    outcome
}

async fn run_scenarios(harness: &mut ServiceHarness, arguments: &ChaosArgs, seed: u64) -> anyhow::Result<bool> {
    if let Some(name) = &arguments.sabotage {
        return sabotage::test_the_suite(harness, name, seed).await;
    }
    let chosen = choose_scenarios(arguments)?;
    let set = arguments.scenario.is_empty().then_some(arguments.set);
    let mut verdicts = Vec::new();
    for (scenario, count) in chosen {
        let is_short = arguments.set != ScenarioSet::Long;
        let config = ScenarioConfig { count: arguments.count.unwrap_or(count), seed, is_short, armed: None };
        let mut verdict = run_scenario(harness, scenario, config).await?;
        verdict.set = set.map(ScenarioSet::name);
        if set == Some(ScenarioSet::Smoke) {
            verdict.nominal_seconds = scenario.smoke.map_or(0.0, |smoke| smoke.nominal_seconds);
        }
        verdict.print();
        verdicts.push(verdict);
        // Written after each scenario, so that an interrupted run keeps its results.
        write_results(&harness.folder, &verdicts)?;
    }
    let failed: Vec<_> = verdicts.iter().filter(|verdict| !verdict.passed).collect();
    // Once more, because a record of a test run often keeps only its last lines.
    for verdict in &failed {
        println!("{} failed, seed {}:", verdict.scenario, verdict.seed);
        verdict.print_failures();
    }
    let names: Vec<_> = failed.iter().map(|verdict| verdict.scenario).collect();
    println!(
        "{} scenarios, {} passed, {} failed{}",
        verdicts.len(),
        verdicts.len() - failed.len(),
        failed.len(),
        if failed.is_empty() { String::new() } else { format!(": {}", names.join(", ")) }
    );
    Ok(failed.is_empty())
}

/// Runs one scenario. A scenario that cannot be completed is a failed verdict.
///
/// # Errors
///
/// Returns an error if the services cannot be restored for the next scenario.
async fn run_scenario(
    harness: &mut ServiceHarness,
    scenario: &Scenario,
    config: ScenarioConfig,
) -> anyhow::Result<ScenarioVerdict> {
    let (begun, seed, count) = (Instant::now(), config.seed, config.count);
    let result = (scenario.run)(harness, config).await;
    let mut verdict = match result.and_then(|result| ScenarioVerdict::from_checker(scenario, seed, count, result)) {
        Ok(verdict) => verdict,
        Err(error) => {
            harness.restart_stopped().await.context("a stopped service cannot be started again")?;
            ScenarioVerdict::aborted(scenario, seed, count, &error)
        }
    };
    verdict.seconds = begun.elapsed().as_secs_f64();
    Ok(verdict)
}

fn choose_scenarios(arguments: &ChaosArgs) -> anyhow::Result<Vec<(&'static Scenario, u32)>> {
    let count = |scenario: &Scenario| arguments.set.count(scenario);
    if arguments.scenario.is_empty() {
        return Ok(scenarios::SCENARIOS.iter().map(|one| (one, count(one))).filter(|(_, count)| *count > 0).collect());
    }
    let find = |name: &String| {
        let found = scenarios::SCENARIOS.iter().find(|one| one.id.eq_ignore_ascii_case(name.trim()));
        let Some(one) = found else {
            let all: Vec<_> = scenarios::SCENARIOS.iter().map(|one| one.id).collect();
            bail!("there is no scenario {name}; choose from {}", all.join(", "));
        };
        Ok((one, count(one).max(1)))
    };
    arguments.scenario.iter().map(find).collect()
}

fn write_results(folder: &Path, verdicts: &[ScenarioVerdict]) -> anyhow::Result<()> {
    let path = folder.join(RESULTS_FILE);
    std::fs::write(&path, serde_json::to_vec_pretty(verdicts)?)
        .with_context(|| format!("{} cannot be written", path.display()))
}
