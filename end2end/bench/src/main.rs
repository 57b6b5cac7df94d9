//! What the scheduler can do, in figures. `make bench` measures all, `make bench FIGURE=name` one or some.
//!
//! The server and the worker are the programs that people run, each a process of its own, with the settings that hold
//! when nobody sets any; only what is asked inside the server (`trigger`, the lists) is measured in this process. The
//! services are private ones that sync their writes. Each run has a database and prefixes of its own, and is checked:
//! every due instant once, none lost, or there is no figure. A figure is the median of at least three runs, with the
//! least and the greatest beside it.
//!
//! Reading order: [`figures`] is the table of everything; [`settings`] what can be set; [`harness`] the place, [`job_batch`] the
//! jobs; then one file for each kind of figure; [`stage_times`] and [`process_stats`] say where time goes, [`report`] and [`peers`] how
//! it is told and compared. docs/PERFORMANCE.md explains each figure.

mod figures;
mod settings;

mod harness;
mod job_batch;
mod process_stats;

mod burst;
mod ceiling;
mod cron;
mod idle;
mod ingest;
mod lateness;
mod lists;
mod million;
mod seed;
mod stage_times;
mod throughput;
mod trigger;

mod peers;
mod report;

use std::{process::ExitCode, time::Instant};

use anyhow::ensure;
use figures::{FigureGroup, GROUPS};
use harness::BenchHarness;
use report::{BenchReport, show};

/// What asks for the other job systems.
const PEERS_FIGURE: &str = "peers";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.first().map(String::as_str) {
        None => measure().await,
        Some("seed") => seed::command(&arguments[1..]).await.map(|()| true),
        Some(other) => Err(anyhow::anyhow!("there is no {other}: say nothing to measure, or `seed --rows 10000000`")),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures what is wanted. False when something could not be measured; the rest is kept.
async fn measure() -> anyhow::Result<bool> {
    let harness = BenchHarness::new()?;
    let wanted = &harness.settings.wanted;
    for name in wanted {
        let is_known = name == PEERS_FIGURE || GROUPS.iter().any(|group| group.matches(name));
        ensure!(is_known, "FIGURE={name} is none: {}", known());
    }
    let is_wanted = |group: &FigureGroup| {
        if wanted.is_empty() {
            !group.opt_in || harness.settings.lists
        } else {
            wanted.iter().any(|name| group.matches(name))
        }
    };
    if harness.settings.runs < 3 {
        println!("Fewer than three runs: good for trying out, not for telling.");
    }
    let (begun, mut report, mut all_found) = (Instant::now(), BenchReport::open(&harness), true);
    for group in GROUPS.iter().filter(|group| is_wanted(group)) {
        println!("{} …", group.name);
        let begun = Instant::now();
        match (group.run)(&harness, harness.settings.runs).await {
            Ok(samples) => {
                let found = group.summarise(&samples);
                for (name, it) in &found {
                    let (median, min, max) = (show(it.median), show(it.min), show(it.max));
                    println!("  {name}: {median} {} ({min} to {max}), after {} s", it.unit, begun.elapsed().as_secs());
                }
                report
                    .merge(found.into_iter().filter_map(|(name, it)| Some((name, serde_json::to_value(it).ok()?))))?;
            }
            Err(error) => {
                all_found = false;
                println!("  {} has no figure: {error:#}", group.name);
            }
        }
    }
    if (wanted.is_empty() && harness.settings.peers) || wanted.iter().any(|name| name == PEERS_FIGURE) {
        println!("{PEERS_FIGURE} …");
        match peers::run(&harness).await {
            Ok(found) => report.merge(found)?,
            Err(error) => {
                all_found = false;
                println!("  the peers have no figures: {error:#}");
            }
        }
    }
    report.print();
    println!("All of it took {} s.", begun.elapsed().as_secs());
    Ok(all_found)
}

fn known() -> String {
    let names: Vec<&str> = GROUPS.iter().map(|group| group.name).chain([PEERS_FIGURE]).collect();
    format!("give some of {}, or a figure's own name", names.join(", "))
}
