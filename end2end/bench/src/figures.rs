//! The table of figures: their names, units and meanings, and the functions that measure them.

use std::collections::BTreeMap;

use futures::future::LocalBoxFuture;

use crate::{
    burst, ceiling, cron, enqueue,
    harness::BenchHarness,
    held_open, idle, ingest, lateness, lists, million, million_waiting, overview,
    samples::{FigureSummary, RunSample},
    ten_million_delayed, throughput, trigger,
};

/// A figure's name, unit and meaning.
pub(crate) struct FigureSpec {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) meaning: &'static str,
}

const fn named(name: &'static str, unit: &'static str, meaning: &'static str) -> FigureSpec {
    FigureSpec { name, unit, meaning }
}

/// The runs that include a group.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Measured {
    /// Every full run.
    Always,
    /// Full runs with the lists.
    WithLists,
    /// Only runs that name it, because it takes long.
    ByName,
}

/// Figures that one run measures together.
pub(crate) struct FigureGroup {
    pub(crate) name: &'static str,
    pub(crate) figures: &'static [FigureSpec],
    /// The runs that include the group.
    pub(crate) measured: Measured,
    /// Measures the group this many times.
    pub(crate) run: for<'a> fn(&'a BenchHarness, usize) -> LocalBoxFuture<'a, anyhow::Result<Vec<RunSample>>>,
}

/// All groups, in the order of a full run.
pub(crate) static GROUPS: &[FigureGroup] = &[
    FigureGroup {
        name: "throughput",
        figures: &[
            named("throughput", "/s", "occurrences from due to stored as Completed, sustained, history kept"),
            named("throughput-cpu", "s/1,000", "processor seconds for 1,000 occurrences, all processes"),
            named("throughput-cpu-server", "s/1,000", "of these, the server"),
            named("throughput-cpu-worker", "s/1,000", "of these, the worker"),
            named("throughput-cpu-postgres", "s/1,000", "of these, PostgreSQL"),
            named("throughput-cpu-redis", "s/1,000", "of these, Redis"),
            named("throughput-cpu-rabbitmq", "s/1,000", "of these, RabbitMQ"),
        ],
        measured: Measured::Always,
        run: |harness, runs| Box::pin(throughput::run(harness, runs)),
    },
    FigureGroup {
        name: "ceiling-broker",
        figures: &[named("ceiling-broker", "/s", "messages published with confirm, consumed, acknowledged")],
        measured: Measured::Always,
        run: |harness, runs| Box::pin(ceiling::broker(harness, runs)),
    },
    FigureGroup {
        name: "ceiling-database",
        figures: &[named("ceiling-database", "/s", "rows inserted and updated twice, in batches of 500")],
        measured: Measured::Always,
        run: |harness, runs| Box::pin(ceiling::database(harness, runs)),
    },
    FigureGroup {
        name: "ceiling-both",
        figures: &[named("ceiling-both", "/s", "both of these for each occurrence, and nothing else")],
        measured: Measured::Always,
        run: |harness, runs| Box::pin(ceiling::both(harness, runs)),
    },
    FigureGroup {
        name: "lateness-100",
        figures: &[
            named("lateness-100-p50", "ms", "due time to start, 100 runs a second"),
            named("lateness-100-p99", "ms", "due time to start, 100 runs a second"),
        ],
        measured: Measured::Always,
        run: |harness, runs| Box::pin(lateness::hundred(harness, runs)),
    },
    FigureGroup {
        name: "lateness-1000",
        figures: &[
            named("lateness-1000-p50", "ms", "due time to start, 1,000 runs a second, 100,000 jobs defined"),
            named("lateness-1000-p99", "ms", "due time to start, 1,000 runs a second, 100,000 jobs defined"),
        ],
        measured: Measured::Always,
        run: |harness, runs| Box::pin(lateness::thousand(harness, runs)),
    },
    FigureGroup {
        name: "loop-lateness",
        figures: &[
            named(
                "loop-lateness-p50",
                "ms",
                "due time to start, 20 singleton loops of 100 ms beside 1,000 runs a second",
            ),
            named(
                "loop-lateness-p99",
                "ms",
                "due time to start, 20 singleton loops of 100 ms beside 1,000 runs a second",
            ),
        ],
        measured: Measured::Always,
        run: |harness, runs| Box::pin(lateness::loops(harness, runs)),
    },
    FigureGroup {
        name: "trigger",
        figures: &[named("trigger-p50", "ms", "manual run, from the request to the start")],
        measured: Measured::Always,
        run: |harness, runs| Box::pin(trigger::run(harness, runs)),
    },
    FigureGroup {
        name: "burst-10000",
        figures: &[named("burst-10000", "s", "10,000 jobs due at one instant, until all are dispatched")],
        measured: Measured::Always,
        run: |harness, runs| Box::pin(burst::burst(harness, runs)),
    },
    FigureGroup {
        name: "drain",
        figures: &[
            named("drain", "/s", "20,000 occurrences waiting in the broker, then a worker starts"),
            named("drain-cpu", "s/1,000", "processor seconds for 1,000 occurrences, all processes"),
            named("drain-cpu-server", "s/1,000", "of these, the server"),
            named("drain-cpu-worker", "s/1,000", "of these, the worker"),
            named("drain-cpu-postgres", "s/1,000", "of these, PostgreSQL"),
            named("drain-cpu-redis", "s/1,000", "of these, Redis"),
            named("drain-cpu-rabbitmq", "s/1,000", "of these, RabbitMQ"),
        ],
        measured: Measured::Always,
        run: |harness, runs| Box::pin(burst::drain(harness, runs)),
    },
    FigureGroup {
        name: "flood",
        figures: &[
            named("flood-critical-p50", "ms", "due time to start, highest priority, beside 100,000 of the lowest"),
            named("flood-critical-p99", "ms", "due time to start, highest priority, beside 100,000 of the lowest"),
        ],
        measured: Measured::Always,
        run: |harness, runs| Box::pin(burst::flood(harness, runs)),
    },
    FigureGroup {
        name: "spread",
        figures: &[named("spread", "runs", "the most of 20 runs due at once that one of ten idle instances starts")],
        measured: Measured::Always,
        run: |harness, runs| Box::pin(burst::spread(harness, runs)),
    },
    FigureGroup {
        name: "ingest",
        figures: &[
            named("ingest", "/s", "new occurrences stored, over the broker, 500 in a message"),
            named("ingest-rest", "/s", "new occurrences stored, over the REST API, 500 in a request"),
        ],
        measured: Measured::Always,
        run: |harness, runs| Box::pin(enqueue::run(harness, runs)),
    },
    FigureGroup {
        name: "held-open",
        figures: &[
            named(
                "held-open",
                "/s",
                "1,000 due a second, in the end of ten minutes in which a session holds a snapshot",
            ),
            named("held-open-p99", "ms", "due time to start, in the end of that session"),
            named("held-open-warning", "s", "from the begin of that session to the server's warning"),
            named("held-open-after", "times", "p99 from 60 s after its end, compared with the p99 before it"),
        ],
        measured: Measured::ByName,
        run: |harness, runs| Box::pin(held_open::run(harness, runs)),
    },
    FigureGroup {
        name: "cron-worst",
        figures: &[named("cron-worst", "ms", "to parse an expression and find its next due time, longest case")],
        measured: Measured::Always,
        run: |_, runs| Box::pin(async move { cron::worst(runs) }),
    },
    FigureGroup {
        name: "million",
        figures: &[
            named("million-start", "s", "process start to first dispatch, a million jobs defined"),
            named("million-memory", "MB", "resident memory of that server with a complete index"),
            named("million-lateness-1000-p99", "ms", "due time to start on that server, 1,000 runs a second"),
        ],
        measured: Measured::Always,
        run: |harness, runs| Box::pin(million::run(harness, runs)),
    },
    FigureGroup {
        name: "million-waiting",
        figures: &[
            named("million-waiting-grant-p50", "ms", "end of a run to start of the next, a million wait for its slot"),
            named("million-waiting-grant-p99", "ms", "end of a run to start of the next, a million wait for its slot"),
            named("million-waiting-lateness-p99", "ms", "due time to start beside them, 100 runs a second"),
            named("million-delayed-release-p99", "ms", "end of a delay to start, a million runs delayed"),
            named("million-delayed-lateness-p99", "ms", "due time to start beside them, 100 runs a second"),
        ],
        measured: Measured::Always,
        run: |harness, runs| Box::pin(million_waiting::run(harness, runs)),
    },
    FigureGroup {
        name: "ten-million-delayed",
        figures: &[
            named("ten-million-delayed-lateness-p99", "ms", "due time to start beside them, 1,000 runs a second"),
            named("ten-million-delayed-lateness-ratio", "times", "that p99, compared with the p99 before them"),
            named("ten-million-delayed-enqueue", "/s", "delayed occurrences with keys, 500 in a message, until stored"),
            named("ten-million-delayed-enqueue-ratio", "times", "that rate, compared with the rate before them"),
            named("ten-million-delayed-count-p95", "ms", "the count of delayed occurrences on the page of a job"),
            named("ten-million-delayed-list-p95", "ms", "a page of the delayed occurrences of a job"),
            named("ten-million-delayed-scrape-p95", "ms", "the gauges of open and queued runs, for one scrape"),
            named("ten-million-delayed-keys", "s", "the hourly look for uniqueness keys that are free, none is"),
        ],
        measured: Measured::ByName,
        run: |harness, runs| Box::pin(ten_million_delayed::run(harness, runs)),
    },
    FigureGroup {
        name: "overview-million",
        figures: &[
            named("overview-million-p50", "ms", "the data of the overview, a million jobs"),
            named("overview-million-p95", "ms", "the data of the overview, a million jobs"),
            named("overview-million-jobs-p50", "ms", "a page of the list of jobs, all filters in turn"),
            named("overview-million-jobs-p95", "ms", "a page of the list of jobs, all filters in turn"),
        ],
        measured: Measured::Always,
        run: |harness, runs| Box::pin(overview::run(harness, runs)),
    },
    FigureGroup {
        name: "idle-100k",
        figures: &[
            named("idle-100k", "% of a core", "all processes together, 100,000 jobs, none due"),
            named("idle-100k-ours", "% of a core", "the server and the worker alone"),
        ],
        measured: Measured::Always,
        run: |harness, runs| Box::pin(idle::run(harness, runs)),
    },
    FigureGroup {
        name: "status-ingest",
        figures: &[named("status-ingest", "/s", "reports, from published to stored")],
        measured: Measured::Always,
        run: |harness, runs| Box::pin(ingest::status(harness, runs)),
    },
    FigureGroup {
        name: "log-ingest",
        figures: &[
            named("log-ingest", "/s", "log lines, from published to stored, 100 in a message"),
            named("status-beside-logs-p99", "ms", "a report sent meanwhile, until stored"),
        ],
        measured: Measured::Always,
        run: |harness, runs| Box::pin(ingest::logs(harness, runs)),
    },
    FigureGroup {
        name: "lists",
        figures: &[
            named("list-newest-p95", "ms", "a page of the newest occurrences"),
            named("list-job-p95", "ms", "a page of one job's occurrences"),
            named("list-status-p95", "ms", "a page of failed occurrences"),
            named("list-status-job-time-p95", "ms", "a page of one job's failed occurrences of the last week"),
        ],
        measured: Measured::WithLists,
        run: |harness, runs| Box::pin(lists::run(harness, runs)),
    },
];

impl FigureGroup {
    /// Returns true if `wanted` selects this group: the group's name, a figure's name, or the part of one before a `-`.
    pub(crate) fn matches(&self, wanted: &str) -> bool {
        let begins = format!("{wanted}-");
        self.name == wanted || self.figures.iter().any(|it| it.name == wanted || it.name.starts_with(&begins))
    }

    /// Returns the summary of each figure of the group that has values, by name.
    pub(crate) fn summarise(&self, samples: &[RunSample]) -> BTreeMap<String, FigureSummary> {
        let summary = |it: &FigureSpec| {
            let values = samples.iter().flatten().filter(|(name, _)| *name == it.name).map(|(_, value)| *value);
            FigureSummary::new(values.collect(), it.unit)
        };
        self.figures.iter().filter_map(|it| Some((it.name.to_owned(), summary(it)?))).collect()
    }
}
