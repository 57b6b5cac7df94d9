//! The values that runs find, and the statistics of them. The measuring modules share this one, so that none of them
//! depends on the table of figures, which depends on all of them.

use serde::{Deserialize, Serialize};

/// The values of one run, by the names of their figures.
pub(crate) type RunSample = Vec<(&'static str, f64)>;

/// A figure over all runs, as the report stores it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FigureSummary {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) unit: String,
}

impl FigureSummary {
    /// Returns the summary of a figure's values, one from each run, or `None` if there are none.
    pub(crate) fn new(mut values: Vec<f64>, unit: &str) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        Some(Self { median: median(&values), min, max, unit: unit.to_owned() })
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
