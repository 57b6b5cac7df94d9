//! The list of figures: every name, unit and meaning there is, in one table.

use std::collections::BTreeMap;

use futures::future::LocalBoxFuture;
use serde::{Deserialize, Serialize};

use crate::{burst, ceiling, cron, harness::BenchHarness, idle, ingest, lateness, lists, million, throughput, trigger};

/// What one run found: values by the names of their figures.
pub(crate) type RunSample = Vec<(&'static str, f64)>;

/// A figure's name, unit and meaning.
pub(crate) struct FigureSpec {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) meaning: &'static str,
}

const fn named(name: &'static str, unit: &'static str, meaning: &'static str) -> FigureSpec {
    FigureSpec { name, unit, meaning }
}

/// Figures that are found by the same run.
pub(crate) struct FigureGroup {
    pub(crate) name: &'static str,
    pub(crate) figures: &'static [FigureSpec],
    /// Whether a full run includes it only when asked to.
    pub(crate) opt_in: bool,
    /// Measures it so many times.
    pub(crate) run: for<'a> fn(&'a BenchHarness, usize) -> LocalBoxFuture<'a, anyhow::Result<Vec<RunSample>>>,
}

/// Everything that is measured. The order is that of a full run.
pub(crate) static GROUPS: &[FigureGroup] = &[
    FigureGroup {
        name: "throughput",
        figures: &[named("throughput", "/s", "occurrences, due to stored as Completed, sustained, history kept")],
        opt_in: false,
        run: |harness, runs| Box::pin(throughput::run(harness, runs)),
    },
    FigureGroup {
        name: "ceiling-broker",
        figures: &[named("ceiling-broker", "/s", "messages published with confirm, consumed, acknowledged")],
        opt_in: false,
        run: |harness, runs| Box::pin(ceiling::broker(harness, runs)),
    },
    FigureGroup {
        name: "ceiling-database",
        figures: &[named("ceiling-database", "/s", "rows inserted and updated twice, by 500")],
        opt_in: false,
        run: |harness, runs| Box::pin(ceiling::database(harness, runs)),
    },
    FigureGroup {
        name: "ceiling-both",
        figures: &[named("ceiling-both", "/s", "both of these for each occurrence, and nothing else")],
        opt_in: false,
        run: |harness, runs| Box::pin(ceiling::both(harness, runs)),
    },
    FigureGroup {
        name: "lateness-100",
        figures: &[
            named("lateness-100-p50", "ms", "due to start, 100 a second"),
            named("lateness-100-p99", "ms", "due to start, 100 a second"),
        ],
        opt_in: false,
        run: |harness, runs| Box::pin(lateness::hundred(harness, runs)),
    },
    FigureGroup {
        name: "lateness-1000",
        figures: &[
            named("lateness-1000-p50", "ms", "due to start, 1,000 a second, 100,000 jobs defined"),
            named("lateness-1000-p99", "ms", "due to start, 1,000 a second, 100,000 jobs defined"),
        ],
        opt_in: false,
        run: |harness, runs| Box::pin(lateness::thousand(harness, runs)),
    },
    FigureGroup {
        name: "trigger",
        figures: &[named("trigger-p50", "ms", "asked to run now, to start")],
        opt_in: false,
        run: |harness, runs| Box::pin(trigger::run(harness, runs)),
    },
    FigureGroup {
        name: "burst-10000",
        figures: &[named("burst-10000", "s", "10,000 jobs due in one second, until all are dispatched")],
        opt_in: false,
        run: |harness, runs| Box::pin(burst::burst(harness, runs)),
    },
    FigureGroup {
        name: "drain",
        figures: &[named("drain", "/s", "20,000 occurrences wait in the broker, then a worker starts")],
        opt_in: false,
        run: |harness, runs| Box::pin(burst::drain(harness, runs)),
    },
    FigureGroup {
        name: "flood",
        figures: &[
            named("flood-critical-p50", "ms", "due to start of the highest priority, amid 40,000 of the lowest"),
            named("flood-critical-p99", "ms", "due to start of the highest priority, amid 40,000 of the lowest"),
        ],
        opt_in: false,
        run: |harness, runs| Box::pin(burst::flood(harness, runs)),
    },
    FigureGroup {
        name: "cron-worst",
        figures: &[named("cron-worst", "ms", "to read an expression and find its next instant, the longest of all")],
        opt_in: false,
        run: |_, runs| Box::pin(async move { cron::worst(runs) }),
    },
    FigureGroup {
        name: "million",
        figures: &[
            named("million-start", "s", "process start to first dispatch, a million jobs defined"),
            named("million-memory", "MB", "resident memory of that server, its index built"),
            named("million-lateness-1000-p99", "ms", "due to start there, 1,000 a second"),
        ],
        opt_in: false,
        run: |harness, runs| Box::pin(million::run(harness, runs)),
    },
    FigureGroup {
        name: "idle-100k",
        figures: &[
            named("idle-100k", "% of a core", "all processes together, 100,000 jobs none of them due"),
            named("idle-100k-ours", "% of a core", "the server and the worker alone"),
        ],
        opt_in: false,
        run: |harness, runs| Box::pin(idle::run(harness, runs)),
    },
    FigureGroup {
        name: "status-intake",
        figures: &[named("status-intake", "/s", "reports published to stored")],
        opt_in: false,
        run: |harness, runs| Box::pin(ingest::status(harness, runs)),
    },
    FigureGroup {
        name: "log-intake",
        figures: &[
            named("log-intake", "/s", "log lines published to stored, 100 in a message"),
            named("status-beside-logs-p99", "ms", "a report sent meanwhile, to stored"),
        ],
        opt_in: false,
        run: |harness, runs| Box::pin(ingest::logs(harness, runs)),
    },
    FigureGroup {
        name: "lists",
        figures: &[
            named("list-newest-p95", "ms", "a page of the newest"),
            named("list-job-p95", "ms", "a page of one job's"),
            named("list-status-p95", "ms", "a page of the failed"),
            named("list-status-job-time-p95", "ms", "a page of one job's failed of the last week"),
        ],
        opt_in: true,
        run: |harness, runs| Box::pin(lists::run(harness, runs)),
    },
];

/// A figure as it is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FigureSummary {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) unit: String,
}

impl FigureGroup {
    /// Whether somebody who asks for `wanted` means this group: its name, a figure's, or how some of them begin.
    pub(crate) fn matches(&self, wanted: &str) -> bool {
        let begins = format!("{wanted}-");
        self.name == wanted || self.figures.iter().any(|it| it.name == wanted || it.name.starts_with(&begins))
    }

    /// One figure out of all runs, for each of the group's.
    pub(crate) fn summarise(&self, samples: &[RunSample]) -> BTreeMap<String, FigureSummary> {
        let mut found = BTreeMap::new();
        for it in self.figures {
            let mut values: Vec<f64> =
                samples.iter().flatten().filter(|(name, _)| *name == it.name).map(|(_, value)| *value).collect();
            values.sort_by(f64::total_cmp);
            if let (Some(min), Some(max)) = (values.first(), values.last()) {
                let figure = FigureSummary { median: median(&values), min: *min, max: *max, unit: it.unit.to_owned() };
                found.insert(it.name.to_owned(), figure);
            }
        }
        found
    }
}

/// The middle of sorted values, or of the two in the middle.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

/// Of values, the one that this share of them does not exceed. 0 when there are none.
pub(crate) fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let place = (values.len() as f64 * share).ceil() as usize;
    values.get(place.saturating_sub(1)).copied().unwrap_or_default()
}
