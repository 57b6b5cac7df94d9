//! The budget of the tests: what they may start, create and load, and how long one test may take.
//!
//! A suite becomes slow through many changes of a few seconds each, which remain unnoticed: `make test` once took 92
//! minutes. A limit on that time would either fail by chance or be too generous, because the time of the same run
//! varies by half with the machine and its load. So the limits are on what takes the time: servers, databases, test
//! executables, browser tests, page loads. They are counted, and a count is the same on every machine. The time of a
//! step is printed, and a time above its budget is a warning. Only the time of a single test is limited, far above the
//! time that such a test needs: a test exceeds it by waiting for a timeout or by handling too much data. If the whole
//! step takes longer than its budget, the machine is slow or busy, and the limit of its tests grows by the same factor.
//!
//! Each step leaves files in `target`, and this task reads them at the end. A missing file and a count of zero are
//! failures: otherwise the tests would always keep the budget once a step has stopped reporting.

use std::{collections::BTreeMap, fmt, path::Path, sync::LazyLock};

use anyhow::{Context, Result, bail, ensure};
use cargo_metadata::MetadataCommand;
use regex::Regex;
use serde_json::Value;

use crate::files;

#[cfg(test)]
mod tests;

/// All limits. Before raising one, try the remedy that its failure prints. A commit that raises one gives the reason in
/// its message and adds a line to `CHANGELOG.md`. A commit that reduces a count lowers its limit.
const BUDGET: TestBudget = TestBudget {
    steps: &[(&["install", "lints and build"], 900.0), (&["rust"], 360.0), (&["chaos"], 150.0), (&["browser"], 390.0)],
    total_seconds: 2_100.0,
    counts: &[
        ("server", "servers of Rust tests", 180, "share a server among tests, or move rare ones to `mod exhaustive`"),
        ("database", "databases of Rust tests", 480, "test without one, or move rare cases to `mod exhaustive`"),
        ("test-executable", "test executables", 28, "add to the target `it`, or set `test = false` where no test is"),
        ("browser-test", "browser tests", 110, "test in Rust what needs no browser, or tag rare cases with `@all`"),
        ("page-load", "page loads of browser tests", 260, "check more on one page, or tag rare cases with `@all`"),
        ("axe-scan", "axe scans of browser tests", 36, "scan each page in one variant, and tag the others with `@all`"),
        ("stack", "stacks of browser tests", 12, "add the tests to a file that has a stack, or tag them with `@all`"),
        ("chaos-second", "nominal seconds of chaos", 140, "inject fewer faults in the set `smoke`, or only in `short`"),
    ],
    rust_test: (10.0, "move it to `mod exhaustive`"),
    browser_test: (15.0, "tag it with `@all`"),
};
const STEPS_FILE: &str = "target/budget/steps.tsv";
const COUNTS_FILE: &str = "target/budget/counts";
const BROWSER_FILE: &str = "target/budget/browser.json";
const CHAOS_FILE: &str = "target/chaos/latest.json";
/// The packages whose tests are not built with the others.
const SEPARATE_PACKAGES: [&str; 2] = ["milvaion-xtask", "milvaion-bench"];
const SLOWEST_TESTS: usize = 20;

/// A test in nextest's report, which writes the attributes in this order and escapes `<` and `"` in names and output.
static TEST_CASE: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r#"<testcase name="([^"]*)" classname="([^"]*)"[^>]* time="([^"]*)""#;
    Regex::new(pattern).expect("the pattern is valid")
});

/// The limits of one run of `make test`.
struct TestBudget {
    /// Steps, and the seconds that they may take together on the slowest machine in use.
    steps: &'static [(&'static [&'static str], f64)],
    total_seconds: f64,
    /// The word in the file of counts or the name that this module gives to its own count, the thing that is counted,
    /// the highest count that passes, and the remedy.
    counts: &'static [(&'static str, &'static str, u64, &'static str)],
    /// The highest number of seconds that passes while the step keeps its budget, and the remedy.
    rust_test: (f64, &'static str),
    /// The same for a browser test.
    browser_test: (f64, &'static str),
}

/// Prints the times and counts of the last `make test`, and fails if a limit is exceeded.
///
/// # Errors
/// Returns an error if an input is missing or unreadable, or a limit is exceeded; the message has a line for each.
pub(crate) fn check(root: &Path) -> Result<()> {
    let report = TestRunReport::read(root, true)?;
    println!("{report}");
    for warning in report.warnings() {
        println!("warning: {warning}");
    }
    let failures = report.failures();
    ensure!(
        failures.is_empty(),
        "the tests exceed their budget; xtask/src/budget.rs describes how to raise a limit\n  {}",
        failures.join("\n  ")
    );
    Ok(())
}

/// Prints the times and counts of the last `make test-all`, which runs more tests than the limits allow.
///
/// # Errors
/// Returns an error if an input is missing or unreadable.
pub(crate) fn print(root: &Path) -> Result<()> {
    println!("{}", TestRunReport::read(root, false)?);
    Ok(())
}

/// The measurements of one run.
struct TestRunReport {
    /// True if the limits apply.
    is_limited: bool,
    steps: Vec<StepTime>,
    counts: BTreeMap<String, u64>,
    tests: Vec<TestTime>,
}

/// The seconds of one step.
struct StepTime {
    name: String,
    wall: f64,
    /// The time of all processors, services and browsers included.
    busy: f64,
}

/// The time of one test.
struct TestTime {
    name: String,
    seconds: f64,
    is_browser: bool,
}

impl TestRunReport {
    fn read(root: &Path, is_limited: bool) -> Result<Self> {
        let (profile, command) = if is_limited { ("default", "make test") } else { ("all", "make test-all") };
        let input = |path: &str, writer: &str| -> Result<String> {
            ensure!(root.join(path).is_file(), "{path} is missing: run `{command}`, in which {writer} writes it");
            files::read(&root.join(path))
        };
        let steps = parse_steps(&input(STEPS_FILE, "each step")?)?;
        let mut counts = parse_counts(&input(COUNTS_FILE, "each test that starts a server")?);
        let mut tests = parse_browser_tests(&input(BROWSER_FILE, "`npx playwright test`")?)?;
        counts.insert("browser-test".into(), tests.len() as u64);
        tests.extend(parse_rust_tests(&input(&format!("target/nextest/{profile}/junit.xml"), "`cargo nextest run`")?)?);
        counts.insert("chaos-second".into(), parse_nominal_seconds(&input(CHAOS_FILE, "`target/debug/chaos`")?)?);
        counts.insert("test-executable".into(), count_test_executables(root)?);
        Ok(Self { is_limited, steps, counts, tests })
    }

    /// Returns the wall time and the busy time of all steps.
    fn total(&self) -> (f64, f64) {
        self.steps.iter().fold((0.0, 0.0), |(wall, busy), step| (wall + step.wall, busy + step.busy))
    }

    fn count(&self, key: &str) -> u64 {
        self.counts.get(key).copied().unwrap_or_default()
    }

    /// Returns the seconds that the steps took together.
    fn wall(&self, names: &[&str]) -> f64 {
        self.steps.iter().filter(|step| names.contains(&step.name.as_str())).map(|step| step.wall).sum()
    }

    /// Returns how many times as long as its budget a step took, and 1 if it kept it.
    fn slowness(&self, name: &str) -> f64 {
        let budget = BUDGET.steps.iter().find(|(names, _)| *names == [name]);
        budget.map_or(1.0, |(names, seconds)| (self.wall(names) / seconds).max(1.0))
    }

    /// Returns a sentence for each exceeded time of steps, and one if there is no time of a Rust test.
    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut compare = |name: &str, wall: f64, budget: f64| {
            if wall > budget {
                warnings.push(format!("{name} took {wall:.0} s, the budget is {budget:.0} s"));
            }
        };
        for (names, budget) in BUDGET.steps {
            compare(&names.join(" + "), self.wall(names), *budget);
        }
        compare("all steps together", self.total().0, BUDGET.total_seconds);
        if self.tests.iter().all(|test| test.is_browser) {
            warnings.push("the time of each Rust test is unknown: install cargo-nextest to measure it".into());
        }
        warnings
    }

    /// Returns a sentence for each exceeded limit and each missing measurement.
    fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for step in BUDGET.steps.iter().flat_map(|(names, _)| names.iter()) {
            if !self.steps.iter().any(|time| time.name == *step) {
                failures.push(format!("{STEPS_FILE} has no time of {step}: record it where `make test` runs the step"));
            }
        }
        for (key, thing, limit, remedy) in BUDGET.counts {
            let count = self.count(key);
            if count > *limit {
                failures.push(format!("{count} {thing}, the limit is {limit}: {remedy}"));
            } else if count == 0 {
                failures.push(format!("0 {thing}, so the limit of {limit} has no effect: repair the count of `{key}`"));
            }
        }
        for test in &self.tests {
            let ((limit, remedy), step) =
                if test.is_browser { (BUDGET.browser_test, "browser") } else { (BUDGET.rust_test, "rust") };
            let limit = limit * self.slowness(step);
            if test.seconds > limit {
                let (name, seconds) = (&test.name, test.seconds);
                failures.push(format!(
                    "{name} took {seconds:.1} s, the limit is {limit:.0} s: shorten its waits or its data, or {remedy}"
                ));
            }
        }
        failures
    }
}

impl fmt::Display for TestRunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "budget: seconds of each step\n  {:<30}{:>7}{:>7}  budget", "step", "wall", "busy")?;
        for StepTime { name, wall, busy } in &self.steps {
            let budget = BUDGET.steps.iter().find(|(names, _)| self.is_limited && names.contains(&name.as_str()));
            let budget = budget.map_or_else(String::new, |(names, seconds)| match names.len() {
                1 => format!("{seconds:>8.0}"),
                _ => format!("{seconds:>8.0} for {}", names.join(" + ")),
            });
            writeln!(f, "  {name:<30}{wall:>7.0}{busy:>7.0}{budget}")?;
        }
        let (wall, busy) = self.total();
        let budget = if self.is_limited { format!("{:>8.0}", BUDGET.total_seconds) } else { String::new() };
        writeln!(f, "  {:<30}{wall:>7.0}{busy:>7.0}{budget}\nbudget: counts", "total")?;
        for (key, thing, limit, _) in BUDGET.counts {
            let limit = if self.is_limited { format!(" of {limit}") } else { String::new() };
            writeln!(f, "  {thing:<30}{:>7}{limit}", self.count(key))?;
        }
        for (key, count) in &self.counts {
            if !BUDGET.counts.iter().any(|(limited, ..)| limited == key) {
                writeln!(f, "  {key:<30}{count:>7} without a limit")?;
            }
        }
        let mut tests: Vec<&TestTime> = self.tests.iter().collect();
        tests.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
        write!(f, "budget: seconds of the slowest tests")?;
        for test in tests.into_iter().take(SLOWEST_TESTS) {
            write!(f, "\n  {:>7.1}  {}", test.seconds, test.name)?;
        }
        Ok(())
    }
}

/// Reads lines of the form `name<TAB>wall seconds<TAB>busy processor seconds`.
fn parse_steps(text: &str) -> Result<Vec<StepTime>> {
    let mut steps: Vec<StepTime> = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, wall, busy] = fields[..] else {
            bail!("{STEPS_FILE} has the line {line:?}: write a name and two times with tabs between them");
        };
        let is_new = !steps.iter().any(|step| step.name == name);
        ensure!(is_new, "{STEPS_FILE} names {name} twice: delete target/budget at the start of `make test`");
        steps.push(StepTime { name: name.into(), wall: parse_seconds(wall)?, busy: parse_seconds(busy)? });
    }
    Ok(steps)
}

fn parse_seconds(text: &str) -> Result<f64> {
    text.trim().parse::<f64>().with_context(|| format!("{text:?} is not a number of seconds"))
}

/// Counts each word, one in a line.
fn parse_counts(text: &str) -> BTreeMap<String, u64> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for word in text.split_whitespace() {
        *counts.entry(word.to_owned()).or_default() += 1;
    }
    counts
}

/// Reads the report of nextest. It is empty if `cargo test`, which measures no single test, ran them instead.
fn parse_rust_tests(junit: &str) -> Result<Vec<TestTime>> {
    let mut tests = Vec::new();
    for case in TEST_CASE.captures_iter(junit) {
        let name = format!("{} {}", &case[2], &case[1]);
        tests.push(TestTime { name, seconds: parse_seconds(&case[3])?, is_browser: false });
    }
    let (read, written) = (tests.len(), junit.matches("<testcase ").count());
    ensure!(read == written, "nextest's junit.xml has {written} tests, of which {read} are readable");
    Ok(tests)
}

/// Reads the report of Playwright's reporter `json`. A skipped test is left out.
fn parse_browser_tests(json: &str) -> Result<Vec<TestTime>> {
    let report: Value = serde_json::from_str(json).with_context(|| format!("{BROWSER_FILE} is not JSON"))?;
    let mut tests = Vec::new();
    for file in list(&report, "suites") {
        add_browser_tests(file, "", &mut tests);
    }
    Ok(tests)
}

/// Adds the tests of a file or a `describe`, and of those nested in it.
fn add_browser_tests(suite: &Value, path: &str, tests: &mut Vec<TestTime>) {
    let path = format!("{path}{} › ", suite["title"].as_str().unwrap_or_default());
    for spec in list(suite, "specs") {
        let name = format!("{path}{}", spec["title"].as_str().unwrap_or_default());
        for test in list(spec, "tests") {
            let attempts = list(test, "results").filter(|attempt| attempt["status"] != "skipped");
            let milliseconds: Vec<f64> = attempts.filter_map(|attempt| attempt["duration"].as_f64()).collect();
            if !milliseconds.is_empty() {
                let seconds = milliseconds.iter().sum::<f64>() / 1_000.0;
                tests.push(TestTime { name: name.clone(), seconds, is_browser: true });
            }
        }
    }
    for nested in list(suite, "suites") {
        add_browser_tests(nested, &path, tests);
    }
}

/// Returns the elements of a list, or none if the field is missing.
fn list<'a>(value: &'a Value, field: &str) -> std::slice::Iter<'a, Value> {
    value[field].as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

/// Returns the sum of the planned times of the scenarios, which no load of the machine changes.
fn parse_nominal_seconds(json: &str) -> Result<u64> {
    let verdicts: Vec<Value> = serde_json::from_str(json).with_context(|| format!("{CHAOS_FILE} is not a list"))?;
    let nominal = |verdict: &Value| {
        let seconds = verdict["nominal_seconds"].as_f64();
        seconds.with_context(|| format!("{CHAOS_FILE} has no nominal_seconds for {}", verdict["scenario"]))
    };
    Ok(verdicts.iter().map(nominal).sum::<Result<f64>>()?.ceil() as u64)
}

/// Counts the programs that `cargo nextest run` builds from targets with tests.
fn count_test_executables(root: &Path) -> Result<u64> {
    let manifest = root.join("Cargo.toml");
    let metadata = MetadataCommand::new().manifest_path(manifest).no_deps().exec().context("cargo metadata failed")?;
    let packages = metadata.workspace_packages().into_iter();
    let tested = packages.filter(|package| !SEPARATE_PACKAGES.contains(&package.name.as_str()));
    Ok(tested.flat_map(|package| &package.targets).filter(|target| target.test).count() as u64)
}
