//! Two builds measured in turns, so that their ratio does not depend on the hour: the programs beside this one, and
//! those in the folder that `AGAINST` names, usually `target/release` in a clone of the commit before.
//!
//! Each run of a group of figures is a process of its own, which is the program `bench` of that build, in a folder of
//! its own below `target/bench/against`. So each build is measured with its own tables and with the bench of its commit.
//! A figure that only one of them has gets no ratio.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, ensure};
use serde::Serialize;
use serde_json::Value;
use tokio::{process::Command, time::timeout};

use crate::{
    figures::FigureGroup,
    harness::BenchHarness,
    report::show,
    samples::{FigureSummary, RunSample},
};

/// The maximum duration of one run of a group.
const RUN_TIMEOUT: Duration = Duration::from_secs(2 * 60 * 60);
/// The name of the program of a build.
const PROGRAM: &str = "bench";

/// A figure of both builds.
#[derive(Debug, Serialize)]
struct PairedFigure {
    /// The figure of the other build, usually that of the commit before.
    before: Option<FigureSummary>,
    /// The figure of this build.
    this: Option<FigureSummary>,
    /// The median of this build divided by that of the other one.
    ratio: Option<f64>,
}

impl PairedFigure {
    fn new(before: Option<FigureSummary>, this: Option<FigureSummary>) -> Self {
        let medians = before.as_ref().zip(this.as_ref()).map(|(before, this)| (before.median, this.median));
        let ratio = medians.filter(|(before, _)| *before > 0.0).map(|(before, this)| this / before);
        Self { before, this, ratio }
    }
}

/// The two builds, and the figures of both so far.
#[derive(Debug)]
pub(crate) struct BuildComparison {
    /// The program of the other build.
    before: PathBuf,
    /// The program of this build.
    this: PathBuf,
    /// The folder of the runs.
    folder: PathBuf,
    /// The file with the figures of both.
    report: PathBuf,
    figures: BTreeMap<&'static str, PairedFigure>,
}

impl BuildComparison {
    /// Prepares a comparison with the build in a folder. Deletes what an earlier comparison has left.
    pub(crate) fn new(harness: &BenchHarness, against: &Path) -> anyhow::Result<Self> {
        let before = std::path::absolute(against)?.join(PROGRAM);
        ensure!(
            before.exists(),
            "AGAINST={}: the folder has no program `{PROGRAM}`; run `make bench` once in the clone that it belongs to",
            against.display()
        );
        let folder = std::path::absolute(harness.folder.join("against"))?;
        let report = harness.folder.join("against.json");
        for old in [fs::remove_dir_all(&folder), fs::remove_file(&report)] {
            old.or_else(|error| if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) })?;
        }
        Ok(Self { before, this: std::env::current_exe()?, folder, report, figures: BTreeMap::new() })
    }

    /// Measures a group as often with each build, in turns. Returns the values of this build.
    pub(crate) async fn measure(&mut self, group: &FigureGroup, runs: usize) -> anyhow::Result<Vec<RunSample>> {
        let (mut before, mut this) = (Vec::new(), Vec::new());
        for run in 1..=runs {
            // The order alternates too: otherwise a machine that becomes slower would favour the same build each time.
            let mut turns = [("before", &self.before, &mut before), ("this", &self.this, &mut this)];
            if run % 2 == 0 {
                turns.reverse();
            }
            for (build, program, samples) in turns {
                let folder = self.folder.join(format!("{}-{run}-{build}", group.name));
                match measure_once(program, group, &folder).await {
                    Ok(sample) => {
                        let values: Vec<_> =
                            sample.iter().map(|(name, value)| format!("{name} {}", show(*value))).collect();
                        println!("  {build} {run}/{runs}: {}", values.join(", "));
                        samples.push(sample);
                    }
                    Err(error) => println!("  {build} {run}/{runs} has no figure: {error:#}"),
                }
            }
        }
        let (mut before_figures, mut figures) = (group.summarise(&before), group.summarise(&this));
        for it in group.figures {
            let pair = PairedFigure::new(before_figures.remove(it.name), figures.remove(it.name));
            if pair.before.is_some() || pair.this.is_some() {
                self.figures.insert(it.name, pair);
            }
        }
        fs::write(&self.report, serde_json::to_string_pretty(&self.figures)? + "\n")
            .with_context(|| format!("{} cannot be written", self.report.display()))?;
        ensure!(this.len() == runs, "not every run of this build has a figure");
        Ok(this)
    }

    /// Prints the figures of both builds and their ratios.
    pub(crate) fn print(&self) {
        println!("\n{:<28} {:>26} {:>26}  {:<12} this / before", "figure", "before", "this", "unit");
        for (name, PairedFigure { before, this, ratio }) in &self.figures {
            let unit = before.as_ref().or(this.as_ref()).map_or("", |figure| figure.unit.as_str());
            let ratio = ratio.map_or_else(|| "none".to_owned(), |ratio| format!("{ratio:.2}"));
            println!("{name:<28} {:>26} {:>26}  {unit:<12} {ratio}", range(before.as_ref()), range(this.as_ref()));
        }
        println!("Written to {}", self.report.display());
    }
}

/// Returns the median, the minimum and the maximum of a figure as text.
fn range(figure: Option<&FigureSummary>) -> String {
    figure.map_or_else(|| "none".to_owned(), |it| format!("{} ({} to {})", show(it.median), show(it.min), show(it.max)))
}

/// Runs a build's bench once for a group, in its own folder, and returns the values that it stored there.
async fn measure_once(program: &Path, group: &FigureGroup, folder: &Path) -> anyhow::Result<RunSample> {
    fs::create_dir_all(folder)?;
    let output = File::create(folder.join("output.log"))?;
    let mut child = Command::new(program)
        .current_dir(folder)
        .env("FIGURE", group.name)
        .env("BENCH_RUNS", "1")
        .env_remove("AGAINST")
        .stdout(output.try_clone()?)
        .stderr(output)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("{} cannot be started", program.display()))?;
    let status = timeout(RUN_TIMEOUT, child.wait())
        .await
        .with_context(|| format!("it did not end within {} s; see {}", RUN_TIMEOUT.as_secs(), folder.display()))??;
    ensure!(status.success(), "{} failed ({status}); see {}/output.log", program.display(), folder.display());
    let report = fs::read_to_string(folder.join("target/bench/latest.json"))?;
    Ok(medians(&serde_json::from_str(&report)?, group))
}

/// Returns the medians of the figures of a group in a report. A figure that the report has not is left out.
fn medians(report: &BTreeMap<String, Value>, group: &FigureGroup) -> RunSample {
    let median = |name: &str| report.get(name)?.get("median")?.as_f64();
    group.figures.iter().filter_map(|it| Some((it.name, median(it.name)?))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::figures::GROUPS;

    #[test]
    fn ratio_needs_both_builds() {
        let figure = |value: f64| FigureSummary::new(vec![value], "/s");
        assert_eq!(PairedFigure::new(figure(100.0), figure(150.0)).ratio, Some(1.5));
        assert_eq!(PairedFigure::new(None, figure(150.0)).ratio, None);
        assert_eq!(PairedFigure::new(figure(100.0), None).ratio, None);
        assert_eq!(PairedFigure::new(figure(0.0), figure(1.0)).ratio, None);
    }

    #[test]
    fn report_of_an_older_build_has_the_figures_it_knew() {
        let group = GROUPS.iter().find(|group| group.name == "drain").expect("a group");
        let report = json!({
            "drain": { "median": 17_000.0, "min": 16_000.0, "max": 18_000.0, "unit": "/s" },
            "celery-drain": { "error": "not installed", "unit": "jobs/s" },
            "throughput": { "median": 9_000.0 }
        });
        assert_eq!(medians(&serde_json::from_value(report).expect("a map"), group), [("drain", 17_000.0)]);
    }
}
