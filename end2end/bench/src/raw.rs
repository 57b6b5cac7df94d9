//! The single values behind a figure, such as the lateness of each occurrence, in files beside the medians.
//!
//! `target/bench/raw/NAME.csv` has a line for each value, with the columns `run`, `at` and `value`. NAME is the name of
//! the figure without `-p50` or `-p99`, `run` the name with which the logs of the run begin, `at` the instant of the
//! value, such as the due time of the occurrence, and `value` has the unit of the figure.

use std::{fmt::Write as _, fs, io::Write as _, path::PathBuf};

use anyhow::Context;
use chrono::SecondsFormat;

use crate::{harness::BenchHarness, samples::RawValue};

/// Adds the values of one run to the file of a figure.
pub(crate) fn keep(harness: &BenchHarness, figure: &str, run: &str, values: &[RawValue]) -> anyhow::Result<()> {
    let path = path(harness, figure);
    fs::create_dir_all(folder(harness))?;
    let mut text = String::new();
    if !path.exists() {
        text.push_str("run,at,value\n");
    }
    for (at, value) in values {
        writeln!(text, "{run},{},{value:.3}", at.to_rfc3339_opts(SecondsFormat::Micros, true))?;
    }
    let file = fs::OpenOptions::new().create(true).append(true).open(&path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("{} cannot be written", path.display()))
}

/// Deletes the values that an earlier measurement of a figure has left.
pub(crate) fn forget(harness: &BenchHarness, figure: &str) {
    let _ = fs::remove_file(path(harness, figure));
}

fn folder(harness: &BenchHarness) -> PathBuf {
    harness.folder.join("raw")
}

fn path(harness: &BenchHarness, figure: &str) -> PathBuf {
    folder(harness).join(format!("{}.csv", measured_name(figure)))
}

/// Returns the name that the percentiles of the same values share.
fn measured_name(figure: &str) -> &str {
    ["-p50", "-p99"].iter().find_map(|end| figure.strip_suffix(end)).unwrap_or(figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_share_the_file_of_their_values() {
        assert_eq!(["lateness-100-p50", "lateness-100-p99"].map(measured_name), ["lateness-100"; 2]);
        assert_eq!(measured_name("spread"), "spread");
    }
}
