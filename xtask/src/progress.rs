//! The progress of a build: the crates done and the time that is left.
//!
//! cargo reports each compiled crate as a line of JSON. The total comes from `cargo tree`, which names each package
//! once, so a package counts once too, even if cargo compiles it both for a procedural macro and for the program.
//!
//! The time that is left is the weight of the missing packages, multiplied by the time that one unit of weight took so
//! far. A package of our own takes as long as many dependencies, which its weight expresses.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use serde::Deserialize;

/// The weights of packages that take long to compile. Every other package has the weight 1.
const HEAVY_PACKAGES: [(&str, u32); 4] =
    [("milvaion-app", 90), ("milvaion-server", 110), ("milvaion-worker", 25), ("milvaion-builtin", 20)];

/// The time of one unit of weight on two cores, which is assumed until some packages are compiled.
const ASSUMED_UNIT_TIME: Duration = Duration::from_millis(600);
/// The number of units for which the assumption counts: the first packages are small and are compiled first.
const ASSUMED_UNITS: u32 = 60;

/// The progress of a build of several steps.
pub(crate) struct BuildProgress {
    /// The steps that are not finished. The first one is running.
    steps: VecDeque<StepCrates>,
    /// The weight compiled in this build, without the packages that an earlier build left.
    compiled: u32,
    /// The time at which cargo reported the last compiled package.
    compiled_at: Duration,
}

/// The packages of one step.
struct StepCrates {
    total: usize,
    weight_left: u32,
    done: BTreeSet<String>,
}

/// The parts of cargo's messages that are read here.
#[derive(Deserialize)]
struct CargoMessage {
    reason: String,
    #[serde(default)]
    package_id: String,
    target: Option<CargoTarget>,
    /// True if an earlier build compiled it.
    #[serde(default)]
    fresh: bool,
}

/// The compiled part of a package.
#[derive(Deserialize)]
struct CargoTarget {
    kind: Vec<String>,
}

impl BuildProgress {
    /// Returns the progress at the start of a build. Each step is the output of `cargo tree` with one package per line.
    pub(crate) fn new(trees: &[&str]) -> Self {
        Self {
            steps: trees.iter().map(|tree| StepCrates::new(tree)).collect(),
            compiled: 0,
            compiled_at: Duration::ZERO,
        }
    }

    /// Reads one line of cargo's messages, which arrived `now` after the start of the build.
    pub(crate) fn read(&mut self, line: &str, now: Duration) {
        let Ok(message) = serde_json::from_str::<CargoMessage>(line) else { return };
        // A package with a build script has two artifacts, of which the script is the smaller one.
        let is_script = message.target.is_some_and(|target| target.kind.iter().any(|kind| kind == "custom-build"));
        if message.reason != "compiler-artifact" || is_script {
            return;
        }
        let Some(step) = self.steps.front_mut() else { return };
        let weight = weight(package_name(&message.package_id));
        if !step.done.insert(message.package_id) {
            return;
        }
        step.weight_left = step.weight_left.saturating_sub(weight);
        if !message.fresh {
            self.compiled += weight;
            self.compiled_at = now;
        }
    }

    /// Ends the running step. Packages that cargo did not report no longer count as missing.
    pub(crate) fn finish_step(&mut self) {
        self.steps.pop_front();
    }

    /// Describes the running step and the time that is left for all steps.
    pub(crate) fn describe(&self, now: Duration) -> String {
        let (done, total) = self.steps.front().map_or((0, 0), |step| (step.done.len(), step.total));
        let left = match self.time_left(now).as_secs() {
            0..60 => "less than a minute left".to_owned(),
            seconds => format!("about {} min left", seconds.div_ceil(60)),
        };
        format!("{done} of {} crates, {} elapsed, {left}", total.max(done), duration(now))
    }

    /// Estimates the time until all steps are done. While one large package is compiled, the estimate counts down.
    fn time_left(&self, now: Duration) -> Duration {
        let weight_left: u32 = self.steps.iter().map(|step| step.weight_left).sum();
        let unit = (ASSUMED_UNIT_TIME * ASSUMED_UNITS + self.compiled_at) / (ASSUMED_UNITS + self.compiled);
        (unit * weight_left).saturating_sub(now.saturating_sub(self.compiled_at))
    }
}

impl StepCrates {
    fn new(tree: &str) -> Self {
        // A package that occurs twice has a mark on its second line.
        let packages: BTreeSet<&str> =
            tree.lines().map(|line| line.trim_end_matches(" (*)")).filter(|line| !line.is_empty()).collect();
        let weights = packages.iter().map(|package| weight(package.split(' ').next().unwrap_or_default()));
        Self { total: packages.len(), weight_left: weights.sum(), done: BTreeSet::new() }
    }
}

fn weight(package: &str) -> u32 {
    HEAVY_PACKAGES.iter().find(|(name, _)| *name == package).map_or(1, |(_, weight)| *weight)
}

/// Returns the name in a package id such as `registry+https://…#serde@1.0.0`. The name is missing if the folder of the
/// package has the same name, as in `path+file:///…/serde#1.0.0`.
fn package_name(id: &str) -> &str {
    let (address, fragment) = id.rsplit_once('#').unwrap_or((id, ""));
    match fragment.split_once('@') {
        Some((name, _)) => name,
        None => address.rsplit('/').next().unwrap_or_default(),
    }
}

/// Formats a duration in minutes and seconds.
pub(crate) fn duration(time: Duration) -> String {
    match (time.as_secs() / 60, time.as_secs() % 60) {
        (0, seconds) => format!("{seconds} s"),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(package: &str, kind: &str, fresh: bool) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","package_id":"registry+https://example.org/index#{package}",
                "target":{{"kind":["{kind}"],"name":"x"}},"fresh":{fresh}}}"#
        )
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn each_package_counts_once_and_scripts_do_not() {
        let mut progress = BuildProgress::new(&["serde v1.0.0\nsyn v2.0.0 (proc-macro)\nserde v1.0.0 (*)\n\n"]);
        assert!(progress.describe(seconds(0)).starts_with("0 of 2 crates, 0 s elapsed"));
        progress.read(&artifact("serde@1.0.0", "custom-build", false), seconds(1));
        progress.read(r#"{"reason":"build-script-executed","package_id":"serde"}"#, seconds(1));
        progress.read("a line that is not JSON", seconds(1));
        assert!(progress.describe(seconds(1)).starts_with("0 of 2 crates"));
        progress.read(&artifact("serde@1.0.0", "lib", false), seconds(2));
        progress.read(&artifact("serde@1.0.0", "lib", false), seconds(3));
        assert!(progress.describe(seconds(63)).starts_with("1 of 2 crates, 1 min 3 s elapsed"));
        progress.read(&artifact("syn@2.0.0", "lib", true), seconds(4));
        assert!(progress.describe(seconds(64)).starts_with("2 of 2 crates"));
    }

    #[test]
    fn more_crates_than_expected_raise_the_total() {
        let mut progress = BuildProgress::new(&["serde v1.0.0"]);
        progress.read(&artifact("serde@1.0.0", "lib", false), seconds(1));
        progress.read(&artifact("serde@2.0.0", "lib", false), seconds(1));
        assert!(progress.describe(seconds(1)).starts_with("2 of 2 crates"));
    }

    #[test]
    fn time_left_follows_the_speed_and_the_weights() {
        let tree = "a v1.0.0\nb v1.0.0\nmilvaion-app v0.1.0 (/milvaion/app)";
        let mut progress = BuildProgress::new(&[tree, "milvaion-server v0.1.0 (/milvaion/server)"]);
        let weight_left = 2 + 90 + 110;
        assert_eq!(progress.time_left(seconds(0)), ASSUMED_UNIT_TIME * weight_left);

        // 60 assumed units of 0.6 s and one measured unit of 25 s are 1 s for each unit.
        progress.read(&artifact("a@1.0.0", "lib", false), seconds(25));
        assert_eq!(progress.time_left(seconds(25)), seconds(u64::from(weight_left) - 1));
        assert_eq!(progress.time_left(seconds(35)), seconds(u64::from(weight_left) - 11));
        assert!(progress.describe(seconds(25)).ends_with("about 4 min left"), "{}", progress.describe(seconds(25)));
        assert!(progress.describe(seconds(225)).ends_with("less than a minute left"));
        assert_eq!(progress.time_left(seconds(900)), seconds(0));

        // A package that an earlier build left says nothing about the speed.
        progress.read(&artifact("b@1.0.0", "lib", true), seconds(26));
        assert_eq!(progress.time_left(seconds(25)), seconds(u64::from(weight_left) - 2));
        progress.finish_step();
        assert_eq!(progress.time_left(seconds(25)), seconds(110));
    }

    #[test]
    fn package_names_come_from_the_id_or_the_folder() {
        assert_eq!(package_name("registry+https://example.org/index#syn@2.0.119"), "syn");
        assert_eq!(package_name("path+file:///milvaion/app#milvaion-app@0.1.0"), "milvaion-app");
        assert_eq!(package_name("path+file:///milvaion/schedule#0.1.0"), "schedule");
    }
}
