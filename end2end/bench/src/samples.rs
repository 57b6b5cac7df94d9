//! The values that runs find, and the statistics of them. The measuring modules share this one, so that none of them
//! depends on the table of figures, which depends on all of them.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// The values of one run, by the names of their figures.
pub(crate) type RunSample = Vec<(&'static str, f64)>;

/// A single value behind a figure, such as the lateness of one occurrence, and the instant that it belongs to.
pub(crate) type RawValue = (DateTime<Utc>, f64);

/// A figure over all runs, as the report stores it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FigureSummary {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) unit: String,
    /// The values of the runs, in their order. Older reports have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) runs: Vec<f64>,
}

impl FigureSummary {
    /// Returns the summary of a figure's values, one from each run, or `None` if there are none.
    pub(crate) fn new(runs: Vec<f64>, unit: &str) -> Option<Self> {
        let mut sorted = runs.clone();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        Some(Self { median: median(&sorted), min, max, unit: unit.to_owned(), runs })
    }
}

/// Returns the middle one of sorted values, or the mean of the two in the middle.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

/// Sorts the values and returns the smallest one that at least this share of them does not exceed, or 0 if there are
/// none.
pub(crate) fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() as f64 * share).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

/// Returns the median and the 99th percentile of raw values.
pub(crate) fn p50_and_p99(values: &[RawValue]) -> [f64; 2] {
    let mut values: Vec<f64> = values.iter().map(|(_, value)| *value).collect();
    [0.5, 0.99].map(|share| percentile(&mut values, share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_keeps_the_order_of_the_runs() {
        let summary = FigureSummary::new(vec![3.0, 1.0, 2.0], "ms").expect("there are runs");
        assert_eq!((summary.median, summary.min, summary.max), (2.0, 1.0, 3.0));
        assert_eq!(summary.runs, [3.0, 1.0, 2.0]);
        assert_eq!(FigureSummary::new(vec![4.0, 1.0], "ms").map(|summary| summary.median), Some(2.5));
        assert!(FigureSummary::new(Vec::new(), "ms").is_none());
    }

    #[test]
    fn report_without_runs_is_readable() {
        let text = r#"{"median": 2.0, "min": 1.0, "max": 3.0, "unit": "ms"}"#;
        let summary: FigureSummary = serde_json::from_str(text).expect("readable");
        assert_eq!(
            serde_json::to_value(summary).expect("JSON"),
            serde_json::from_str::<serde_json::Value>(text).expect("JSON")
        );
    }

    #[test]
    fn percentile_is_a_value_that_was_measured() {
        let values: Vec<RawValue> = (1..=200).rev().map(|value| (DateTime::UNIX_EPOCH, f64::from(value))).collect();
        assert_eq!(p50_and_p99(&values), [100.0, 198.0]);
        assert_eq!(p50_and_p99(&values[..1]), [200.0, 200.0]);
        assert_eq!(p50_and_p99(&[]), [0.0, 0.0]);
    }
}
