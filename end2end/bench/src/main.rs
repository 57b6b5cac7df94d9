//! Measures the figures of docs/PERFORMANCE.md. `make bench` measures all of them, `make bench FIGURE=name` some.
//!
//! The server and the worker are the released programs, each in its own process and with default settings. Only figures
//! of calls inside the server (`trigger`, the lists) are measured in this process. The services are private ones that
//! sync their writes. Each run has its own database and prefixes, and is verified: a run counts only if every due time
//! has exactly one occurrence and none is lost. A figure is the median of at least three runs, with the minimum, the
//! maximum and the values of the runs beside it. With `AGAINST`, another build is measured in turns with this one.
//!
//! Reading order: [`figures`] is the table of all figures, [`settings`] has the environment variables, [`harness`] the
//! environment of a run, [`job_batch`] the jobs, [`samples`] the statistics and [`raw`] the files of single values. One
//! module for each kind of figure follows. [`stage_times`] and [`process_stats`] break down time and processor use;
//! [`report`], [`peers`] and [`against`] print and compare the results. The modules that measure depend on the harness
//! and on each other's helpers, and never on the table, the report or this file. docs/PERFORMANCE.md explains each figure.

mod figures;
mod settings;

mod harness;
mod job_batch;
mod process_stats;
mod publisher;
mod raw;
mod samples;

mod burst;
mod ceiling;
mod cron;
mod enqueue;
mod held_open;
mod idle;
mod ingest;
mod lateness;
mod lists;
mod million;
mod million_waiting;
mod overview;
mod seed;
mod stage_times;
mod ten_million_delayed;
mod throughput;
mod trigger;

mod against;
mod peers;
mod report;

use std::{process::ExitCode, time::Instant};

use against::BuildComparison;
use anyhow::ensure;
use figures::{FigureGroup, GROUPS, Measured};
use harness::BenchHarness;
use report::{BenchReport, show};

/// The figure name that selects the other job systems.
const PEERS_FIGURE: &str = "peers";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.first().map(String::as_str) {
        None => measure().await,
        Some("seed") => seed::command(&arguments[1..]).await.map(|()| true),
        Some(other) => Err(anyhow::anyhow!("unknown argument {other}: give none, or `seed --rows 10000000`")),
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

/// Measures the selected figures. Returns false if one of them failed; the figures of the others are kept.
async fn measure() -> anyhow::Result<bool> {
    let harness = BenchHarness::new()?;
    let wanted = &harness.settings.wanted;
    for name in wanted {
        let is_known = name == PEERS_FIGURE || GROUPS.iter().any(|group| group.matches(name));
        ensure!(is_known, "FIGURE={name} is not the name of a figure: {}", known());
    }
    let is_wanted = |group: &FigureGroup| {
        if wanted.is_empty() {
            match group.measured {
                Measured::Always => true,
                Measured::WithLists => harness.settings.lists,
                Measured::ByName => false,
            }
        } else {
            wanted.iter().any(|name| group.matches(name))
        }
    };
    if harness.settings.runs < 3 {
        println!("Fewer than three runs: use these figures for trying things out, not for a report.");
    }
    let (begun, mut report, mut all_found) = (Instant::now(), BenchReport::open(&harness), true);
    let against = harness.settings.against.as_deref();
    let mut comparison = against.map(|folder| BuildComparison::new(&harness, folder)).transpose()?;
    for group in GROUPS.iter().filter(|group| is_wanted(group)) {
        println!("{} …", group.name);
        let begun = Instant::now();
        let measured = if let Some(comparison) = &mut comparison {
            comparison.measure(group, harness.settings.runs).await
        } else {
            group.figures.iter().for_each(|it| raw::forget(&harness, it.name));
            (group.run)(&harness, harness.settings.runs).await
        };
        match measured {
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
    if let Some(comparison) = comparison {
        comparison.print();
    }
    println!("The measurement took {} s.", begun.elapsed().as_secs());
    Ok(all_found)
}

/// Returns the names that `FIGURE` accepts, for an error message.
fn known() -> String {
    let names: Vec<&str> = GROUPS.iter().map(|group| group.name).chain([PEERS_FIGURE]).collect();
    format!("give one or more of {}, or the name of a single figure", names.join(", "))
}
