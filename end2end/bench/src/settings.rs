//! The settings of a measurement, read from environment variables.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, bail};

/// The settings that make a measurement longer, shorter, larger or smaller. Each number has bounds.
#[derive(Clone, Debug)]
pub(crate) struct BenchSettings {
    /// `BENCH_RUNS`: runs of each figure, 1 to 20. Default 3; use fewer only to try things out.
    pub(crate) runs: usize,
    /// `BENCH_SECONDS`: seconds for which the throughput is sustained, 5 to 3,600. Default 60.
    pub(crate) seconds: Duration,
    /// `BENCH_CAPACITY`: the worker's concurrency limit, 1 to 1,000. Default 500.
    pub(crate) capacity: u32,
    /// `BENCH_JOBS`: jobs in the groups `million` and `overview-million`, and open runs in the group
    /// `million-waiting`, 10,000 to 10,000,000. Default 1,000,000.
    pub(crate) jobs: i64,
    /// `BENCH_DELAYED`: delayed runs in the group `ten-million-delayed`, 10,000 to 100,000,000. Default 10,000,000.
    pub(crate) delayed: i64,
    /// `BENCH_HELD_SECONDS`: seconds for which the group `held-open` holds a snapshot, 120 to 3,600. Default 600.
    pub(crate) held: Duration,
    /// `SEED_ROWS`: occurrences that the lists are read from, 10,000 to 100,000,000. Default 10,000,000.
    pub(crate) rows: i64,
    /// `BENCH_LISTS=1`: include the lists in a full run. Their database takes minutes to fill.
    pub(crate) lists: bool,
    /// `BENCH_PEERS=0`: leave the other job systems out of a full run.
    pub(crate) peers: bool,
    /// `FIGURE`: names of figures or groups, separated by commas. Empty means all.
    pub(crate) wanted: Vec<String>,
    /// `AGAINST`: the folder of another build's programs, which are measured in turns with those of this one.
    pub(crate) against: Option<PathBuf>,
}

impl BenchSettings {
    /// Reads the settings from the environment.
    pub(crate) fn from_env() -> anyhow::Result<Self> {
        let wanted = text("FIGURE").unwrap_or_default();
        Ok(Self {
            runs: usize::try_from(number("BENCH_RUNS", 3, 1, 20)?)?,
            seconds: Duration::from_secs(number("BENCH_SECONDS", 60, 5, 3_600)?.unsigned_abs()),
            capacity: u32::try_from(number("BENCH_CAPACITY", 500, 1, 1_000)?)?,
            jobs: number("BENCH_JOBS", 1_000_000, 10_000, 10_000_000)?,
            delayed: number("BENCH_DELAYED", 10_000_000, 10_000, 100_000_000)?,
            held: Duration::from_secs(number("BENCH_HELD_SECONDS", 600, 120, 3_600)?.unsigned_abs()),
            rows: number("SEED_ROWS", 10_000_000, 10_000, 100_000_000)?,
            lists: text("BENCH_LISTS").is_some_and(|value| value == "1"),
            peers: text("BENCH_PEERS").is_none_or(|value| value != "0"),
            wanted: wanted.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect(),
            against: text("AGAINST").map(|folder| PathBuf::from(folder.trim())),
        })
    }
}

/// Returns a variable that is set and not blank.
pub(crate) fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// Returns the URL of a service.
pub(crate) fn url(name: &str) -> anyhow::Result<String> {
    text(name).with_context(|| format!("{name} is not set: run this through `make bench`"))
}

/// Reads a whole number within bounds.
fn number(name: &str, default: i64, low: i64, high: i64) -> anyhow::Result<i64> {
    let Some(text) = text(name) else { return Ok(default) };
    match text.trim().parse() {
        Ok(value) if (low..=high).contains(&value) => Ok(value),
        _ => bail!("{name} takes a whole number from {low} to {high}: got {text}"),
    }
}
