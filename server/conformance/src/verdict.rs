//! The verdicts of a run, as lines for a terminal and as JSON for programs.

use std::{fmt, time::Duration};

use serde_json::{Value, json};

use crate::{arguments::ConformanceLevel, failure::CaseFailure};

/// The verdict of one case.
#[derive(Clone, Debug)]
pub struct CaseVerdict {
    /// The level to which the case belongs.
    pub level: ConformanceLevel,
    /// The name of the case.
    pub name: &'static str,
    /// The behaviour that the case tests.
    pub summary: &'static str,
    /// The section of the protocol page.
    pub section: &'static str,
    /// The sentence of that section on which the case rests.
    pub rule: &'static str,
    /// The difference between the expected and the observed behaviour; none if the worker passes.
    pub failure: Option<CaseFailure>,
    /// The reason why the case did not judge; none if it did. Such a case counts neither as passed nor as failed.
    pub skipped: Option<String>,
    /// The duration of the case.
    pub duration: Duration,
}

impl fmt::Display for CaseVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match (&self.failure, &self.skipped) {
            (Some(_), _) => "FAIL",
            (None, Some(_)) => "skip",
            (None, None) => "pass",
        };
        let (level, name, seconds) = (self.level.name(), self.name, self.duration.as_secs_f64());
        write!(f, "{word}  {level:<8} {name:<34} {seconds:>5.1} s  {}", self.summary)?;
        if let Some(reason) = &self.skipped {
            write!(f, "\n      {reason}")?;
        }
        if let Some(failure) = &self.failure {
            write!(f, "\n      expected: {}", failure.expected)?;
            write!(f, "\n      seen:     {}", failure.seen)?;
            write!(f, "\n      rule:     \"{}\" (docs/protocol, {})", self.rule, self.section)?;
        }
        Ok(())
    }
}

/// The verdicts of all cases of a run.
#[derive(Clone, Debug)]
pub struct ConformanceReport {
    /// The level that the worker must pass.
    pub level: ConformanceLevel,
    /// The verdicts, in the order of the catalogue.
    pub verdicts: Vec<CaseVerdict>,
    /// The duration of the whole run.
    pub duration: Duration,
}

impl ConformanceReport {
    /// Returns true if no case has failed.
    #[must_use]
    pub fn is_passed(&self) -> bool {
        self.verdicts.iter().all(|verdict| verdict.failure.is_none())
    }

    /// Returns the summary: one line for each level that has cases, and one for the whole.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut text = String::new();
        for level in ConformanceLevel::ALL {
            let of_level: Vec<_> = self.verdicts.iter().filter(|verdict| verdict.level == level).collect();
            let failed = of_level.iter().filter(|verdict| verdict.failure.is_some()).count();
            let skipped = of_level.iter().filter(|verdict| verdict.skipped.is_some()).count();
            let judged = of_level.len() - skipped;
            if !of_level.is_empty() {
                let left_out = if skipped == 0 { String::new() } else { format!(", {skipped} skipped") };
                let passed = judged - failed;
                text.push_str(&format!("{:<8} {passed} of {judged} cases passed{left_out}\n", level.name()));
            }
        }
        let (level, seconds) = (self.level.name(), self.duration.as_secs_f64());
        let verdict = if self.is_passed() { "passes" } else { "does not pass" };
        text.push_str(&format!("The worker {verdict} the level {level} ({seconds:.0} s).\n"));
        text
    }

    /// Returns the verdicts as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let verdicts: Vec<_> = self.verdicts.iter().map(to_json).collect();
        json!({ "level": self.level.name(), "passed": self.is_passed(), "durationMs": millis(self.duration), "cases": verdicts })
    }
}

fn to_json(verdict: &CaseVerdict) -> Value {
    json!({
        "level": verdict.level.name(),
        "name": verdict.name,
        "summary": verdict.summary,
        "passed": verdict.failure.is_none() && verdict.skipped.is_none(),
        "skipped": verdict.skipped,
        "durationMs": millis(verdict.duration),
        "expected": verdict.failure.as_ref().map(|failure| &failure.expected),
        "seen": verdict.failure.as_ref().map(|failure| &failure.seen),
        "section": verdict.section,
        "rule": verdict.rule,
    })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
