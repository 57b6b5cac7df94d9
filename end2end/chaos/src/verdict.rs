//! Runs the checker, and combines its findings with a scenario's own measurements into a verdict.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use serde::Serialize;
use serde_json::Value;

use crate::scenarios::ScenarioResult;

/// One scenario's verdict, as an entry of `latest.json`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ScenarioVerdict {
    pub(crate) scenario: &'static str,
    pub(crate) title: &'static str,
    pub(crate) seed: u64,
    /// The number of faults.
    pub(crate) count: u32,
    pub(crate) passed: bool,
    /// The set that the run belongs to; `None` if scenarios were named.
    pub(crate) set: Option<&'static str>,
    pub(crate) seconds: f64,
    /// The nominal duration in seconds in the set `smoke`, and 0 in every other run.
    pub(crate) nominal_seconds: f64,
    /// The number of the checker's findings, by verdict; verdicts without findings are left out.
    pub(crate) findings: BTreeMap<String, u64>,
    /// The reasons why the scenario failed, one sentence each.
    pub(crate) failures: Vec<String>,
    /// The figures that the scenario and the checker measured.
    pub(crate) figures: BTreeMap<String, f64>,
    /// The evidence folder.
    pub(crate) folder: PathBuf,
}

impl ScenarioVerdict {
    /// Returns the verdict of a scenario that could not be completed.
    pub(crate) fn aborted(scenario: &crate::scenarios::Scenario, seed: u64, count: u32, error: &anyhow::Error) -> Self {
        Self {
            scenario: scenario.id,
            title: scenario.title,
            seed,
            count,
            passed: false,
            set: None,
            seconds: 0.0,
            nominal_seconds: 0.0,
            findings: BTreeMap::new(),
            failures: vec![format!("the scenario was aborted: {error:#}")],
            figures: BTreeMap::new(),
            folder: PathBuf::new(),
        }
    }

    /// Runs the checker on a scenario's evidence and returns the verdict.
    ///
    /// # Errors
    ///
    /// Returns an error if the checker cannot read the evidence, or does not report a figure that the scenario bounds.
    pub(crate) fn from_checker(
        scenario: &crate::scenarios::Scenario,
        seed: u64,
        count: u32,
        result: ScenarioResult,
    ) -> anyhow::Result<Self> {
        let ScenarioResult { folder, rest, measurements, checker } = result;
        let report = check(checker, &folder)?;
        let mut failures = measurements.failures;
        let mut figures: BTreeMap<String, f64> =
            measurements.figures.into_iter().map(|(name, figure)| (name.to_owned(), figure)).collect();
        figures.insert("rest_s".into(), rest.as_secs_f64());
        for (pointer, bound) in measurements.bounds {
            let figure = report.pointer(pointer).and_then(Value::as_f64);
            let figure = figure.with_context(|| format!("the checker reports no figure at {pointer}"))?;
            if figure > bound {
                failures.push(format!("{pointer} is {figure:.1}, more than {bound}"));
            }
        }
        for (name, pointer) in [
            ("occurrences", "/totals/occurrences"),
            ("starts", "/totals/starts"),
            ("late_p99_ms_before", "/lateness/before/p99_ms"),
            ("late_p99_ms_during", "/lateness/during/p99_ms"),
            ("late_max_ms_during", "/lateness/during/max_ms"),
            ("late_p99_ms_after", "/lateness/after/p99_ms"),
            ("late_p99_ms", "/lateness/all/p99_ms"),
            ("hand_overs", "/totals/hand_overs"),
            ("gap_max_ms", "/gaps/max_ms"),
        ] {
            if let Some(figure) = report.pointer(pointer).and_then(Value::as_f64) {
                figures.insert(name.into(), figure);
            }
        }
        let recoveries = report["recovery"].as_array().map(Vec::as_slice).unwrap_or_default();
        for name in ["dispatch_ms", "orphans", "orphan_max_ms", "drained_ms"] {
            let greatest = recoveries
                .iter()
                .filter_map(|one| one[name].as_f64())
                .fold(None, |most: Option<f64>, one| Some(most.map_or(one, |most| most.max(one))));
            if let Some(greatest) = greatest {
                figures.insert(name.into(), greatest);
            }
        }
        let tolerated = report["tolerated"].clone();
        let mut findings = BTreeMap::new();
        for (name, count) in report["counts"].as_object().into_iter().flatten() {
            let count = count.as_u64().unwrap_or_default();
            if count > 0 {
                findings.insert(name.clone(), count);
                if tolerated.get(name).is_none() {
                    let first = report["verdicts"][name][0].as_str().unwrap_or_default();
                    failures.push(format!("{name} ({count}): {first}"));
                }
            }
        }
        let passed = failures.is_empty() && report["passed"].as_bool().unwrap_or(false);
        Ok(Self {
            scenario: scenario.id,
            title: scenario.title,
            seed,
            count,
            passed,
            set: None,
            seconds: 0.0,
            nominal_seconds: 0.0,
            findings,
            failures,
            figures,
            folder,
        })
    }

    /// Prints the verdict for users.
    pub(crate) fn print(&self) {
        let result = if self.passed { "passed" } else { "FAILED" };
        println!(
            "{:<26} {result}  count {:>3}, seed {}, {:.0} s  {}",
            self.scenario, self.count, self.seed, self.seconds, self.title
        );
        self.print_failures();
        let figures: Vec<String> = self.figures.iter().map(|(name, figure)| format!("{name} {figure:.1}")).collect();
        println!("       {}", figures.join(", "));
        if !self.passed && self.folder.as_os_str() != "" {
            println!("       evidence in {}", self.folder.display());
        }
    }

    /// Prints the reasons why the scenario failed, one in a line.
    pub(crate) fn print_failures(&self) {
        for failure in &self.failures {
            println!("       {failure}");
        }
    }
}

/// Runs the checker and returns its `verdict.json`. Exit codes 0 and 1 are verdicts; any other code is an error.
fn check(checker: &str, folder: &Path) -> anyhow::Result<Value> {
    let checker = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/checker")).join(checker);
    let output =
        std::process::Command::new("python3").arg(checker).arg(folder).output().context("python3 is missing")?;
    ensure!(
        matches!(output.status.code(), Some(0 | 1)),
        "the checker cannot read {}: {}{}",
        folder.display(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let path = folder.join("verdict.json");
    let text = fs::read_to_string(&path).with_context(|| format!("{} is missing", path.display()))?;
    Ok(serde_json::from_str(&text)?)
}
