//! The report: a table for readers, a JSON file for tools, and a comparison with the ceiling and the peers.

use std::{collections::BTreeMap, fs, path::PathBuf};

use anyhow::Context;
use serde_json::{Value, json};

use crate::{
    figures::{FigureSpec, GROUPS},
    harness::BenchHarness,
    samples::FigureSummary,
};

/// Our figures, the suffix of the peers' figures that each is compared with, and true if more is better.
const PEER_COMPARISONS: [(&str, &str, bool); 3] =
    [("drain", "-drain", true), ("throughput", "-drain", true), ("trigger-p50", "-latency-p50", false)];
/// Our throughput as a share of what the services alone achieve.
const CEILING_SHARE: FigureSpec =
    FigureSpec { name: "share-of-ceiling", unit: "%", meaning: "throughput as a share of ceiling-both" };

/// All figures measured so far, in this run and in earlier ones.
pub(crate) struct BenchReport {
    path: PathBuf,
    figures: BTreeMap<String, Value>,
}

impl BenchReport {
    /// Reads the figures of earlier runs.
    pub(crate) fn open(harness: &BenchHarness) -> Self {
        let path = harness.folder.join("latest.json");
        let figures =
            fs::read_to_string(&path).ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        Self { path, figures }
    }

    /// Adds figures, replaces older ones of the same names, and writes the file. The share of the ceiling is computed
    /// from both figures, and its bounds from the worst and the best pair of runs.
    pub(crate) fn merge(&mut self, found: impl IntoIterator<Item = (String, Value)>) -> anyhow::Result<()> {
        self.figures.extend(found);
        if let (Some(ours), Some(ceiling)) = (self.figure("throughput"), self.figure("ceiling-both")) {
            let share = |ours: f64, ceiling: f64| ours / ceiling.max(1.0) * 100.0;
            let (median, min, max) =
                (share(ours.median, ceiling.median), share(ours.min, ceiling.max), share(ours.max, ceiling.min));
            let share = json!({"median": median, "min": min, "max": max, "unit": CEILING_SHARE.unit});
            self.figures.insert(CEILING_SHARE.name.to_owned(), share);
        }
        let text = serde_json::to_string_pretty(&self.figures)?;
        fs::write(&self.path, text + "\n").with_context(|| format!("{} cannot be written", self.path.display()))
    }

    fn figure(&self, name: &str) -> Option<FigureSummary> {
        self.figures.get(name).and_then(|value| serde_json::from_value(value.clone()).ok())
    }

    /// Prints our figures that have been measured, and the comparison with the peers.
    pub(crate) fn print(&self) {
        println!("\n{:<26} {:>10} {:>10} {:>10}  {:<12} what", "figure", "median", "min", "max", "unit");
        for it in GROUPS.iter().flat_map(|group| group.figures).chain([&CEILING_SHARE]) {
            if let Some(FigureSummary { median, min, max, unit, .. }) = self.figure(it.name) {
                let (median, min, max) = (show(median), show(min), show(max));
                println!("{:<26} {median:>10} {min:>10} {max:>10}  {unit:<12} {}", it.name, it.meaning);
            }
        }
        self.print_peers();
        println!("\nWritten to {}", self.path.display());
    }

    /// Prints the comparison with the peers.
    fn print_peers(&self) {
        let mut is_first = true;
        for (ours, suffix, more_is_better) in PEER_COMPARISONS {
            let Some(own) = self.figure(ours) else { continue };
            for name in self.figures.keys().filter(|name| name.ends_with(suffix)) {
                let Some(peer) = self.figure(name).filter(|peer| peer.median > 0.0) else {
                    println!("{name:<26} has no figure");
                    continue;
                };
                if std::mem::take(&mut is_first) {
                    println!("\n{:<14} {:>10}   {:<24} {:>10}  {:>12}", "ours", "", "peer", "", "ours / peer");
                }
                let (a, b, ratio) = (show(own.median), show(peer.median), own.median / peer.median);
                let better = if more_is_better { "more is better" } else { "less is better" };
                println!("{ours:<14} {a:>10}   {name:<24} {b:>10}  {ratio:>12.2}  {better}");
            }
        }
    }
}

/// Formats a number with about three significant digits.
pub(crate) fn show(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
