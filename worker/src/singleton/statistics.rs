//! The counters and percentiles of the leader of a loop, and the state that it publishes.

use std::{collections::VecDeque, time::Duration};

use chrono::{DateTime, Utc};
use milvaion_protocol::{
    message::truncate_text,
    singleton::{LoopKind, LoopOutcome, LoopRun, LoopState, MAX_LOOP_ERROR_BYTES, RECENT_RUNS},
};

/// The number of runs from which percentiles are computed: the last 51 seconds of a loop that runs every 100 ms.
const SAMPLES: usize = 512;

/// The end of one run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RunReport {
    /// The time at which the run was due.
    pub(crate) due: DateTime<Utc>,
    /// The time from due to start.
    pub(crate) late: Duration,
    /// The duration.
    pub(crate) took: Duration,
    /// The end.
    pub(crate) outcome: LoopOutcome,
    /// The text of the error.
    pub(crate) error: Option<String>,
}

/// The properties of the leader that do not change.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeaderInfo {
    pub(crate) worker_id: String,
    pub(crate) host: String,
    pub(crate) kind: LoopKind,
    pub(crate) schedule: String,
    pub(crate) lease: Duration,
    pub(crate) heartbeat: Duration,
}

/// The statistics of one term.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoopStatistics {
    pub(crate) since: DateTime<Utc>,
    pub(crate) dropped: u64,
    pub(crate) started: u64,
    runs: u64,
    errors: u64,
    running_since: Option<DateTime<Utc>>,
    last_start: Option<DateTime<Utc>>,
    last_end: Option<DateTime<Utc>>,
    last_error: Option<(String, DateTime<Utc>)>,
    recent: VecDeque<LoopRun>,
    durations: VecDeque<f64>,
    lateness: VecDeque<f64>,
}

impl LoopStatistics {
    /// Begins with zeros.
    pub(crate) fn new(since: DateTime<Utc>) -> Self {
        Self { since, ..Self::default() }
    }

    /// Records the start of a run.
    pub(crate) const fn started(&mut self, now: DateTime<Utc>) {
        self.started += 1;
        self.running_since = Some(now);
    }

    /// Records the end of a run.
    pub(crate) fn ended(&mut self, report: &RunReport, now: DateTime<Utc>) {
        let (took_ms, late_ms) = (milliseconds(report.took), milliseconds(report.late));
        let start = now - chrono::TimeDelta::from_std(report.took).unwrap_or_default();
        self.runs += 1;
        self.running_since = None;
        (self.last_start, self.last_end) = (Some(start), Some(now));
        push(&mut self.durations, took_ms, SAMPLES);
        push(&mut self.lateness, late_ms, SAMPLES);
        let run = LoopRun {
            start: start.timestamp_millis(),
            duration_ms: rounded(took_ms),
            late_ms: rounded(late_ms),
            outcome: report.outcome,
        };
        push(&mut self.recent, run, RECENT_RUNS);
        if report.outcome == LoopOutcome::Error {
            self.errors += 1;
            let text = truncate_text(report.error.clone().unwrap_or_default(), MAX_LOOP_ERROR_BYTES);
            self.last_error = Some((text, now));
        }
    }

    /// Returns the state to publish.
    pub(crate) fn state(&self, info: &LeaderInfo) -> LoopState {
        let [p50_ms, p99_ms] = percentiles(&self.durations);
        let [late_p50_ms, late_p99_ms] = percentiles(&self.lateness);
        LoopState {
            worker_id: info.worker_id.clone(),
            host: info.host.clone(),
            kind: info.kind,
            schedule: info.schedule.clone(),
            lease_ms: whole_milliseconds(info.lease),
            heartbeat_ms: whole_milliseconds(info.heartbeat),
            since: self.since.timestamp_millis(),
            ticks: self.started + self.dropped,
            runs: self.runs,
            dropped: self.dropped,
            errors: self.errors,
            running_since: self.running_since.map(|at| at.timestamp_millis()),
            last_start: self.last_start.map(|at| at.timestamp_millis()),
            last_end: self.last_end.map(|at| at.timestamp_millis()),
            p50_ms,
            p99_ms,
            late_p50_ms,
            late_p99_ms,
            recent: self.recent.iter().copied().collect(),
            last_error: self.last_error.as_ref().map(|(text, _)| text.clone()),
            last_error_at: self.last_error.as_ref().map(|(_, at)| at.timestamp_millis()),
        }
    }
}

/// Appends to a bounded list and drops its oldest entries.
fn push<T>(list: &mut VecDeque<T>, item: T, bound: usize) {
    list.push_back(item);
    while list.len() > bound {
        list.pop_front();
    }
}

/// Returns the median and the 99th percentile (nearest rank), or zeros without samples.
fn percentiles(samples: &VecDeque<f64>) -> [f64; 2] {
    let mut sorted: Vec<f64> = samples.iter().copied().collect();
    sorted.sort_by(f64::total_cmp);
    [50, 99].map(|percent: usize| {
        let rank = (sorted.len() * percent).div_ceil(100);
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    })
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// Rounds milliseconds to microseconds, which keeps the published list short.
fn rounded(milliseconds: f64) -> f64 {
    (milliseconds * 1000.0).round() / 1000.0
}

fn whole_milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(took_ms: u64, outcome: LoopOutcome) -> RunReport {
        RunReport {
            due: DateTime::UNIX_EPOCH,
            late: Duration::from_millis(1),
            took: Duration::from_millis(took_ms),
            outcome,
            error: (outcome == LoopOutcome::Error).then(|| "x".repeat(2 * MAX_LOOP_ERROR_BYTES)),
        }
    }

    #[test]
    fn state_has_counts_and_percentiles() {
        let mut statistics = LoopStatistics::new(DateTime::UNIX_EPOCH);
        for took in 1..=100 {
            statistics.started(DateTime::UNIX_EPOCH);
            statistics.ended(&report(took, LoopOutcome::Ok), DateTime::UNIX_EPOCH);
        }
        statistics.started(DateTime::UNIX_EPOCH);
        statistics.ended(&report(1, LoopOutcome::Error), DateTime::UNIX_EPOCH);
        statistics.dropped += 3;
        let state = statistics.state(&LeaderInfo::default());
        assert_eq!((state.ticks, state.runs, state.dropped, state.errors), (104, 101, 3, 1));
        assert_eq!((state.p50_ms, state.p99_ms), (50.0, 99.0));
        assert_eq!(state.recent.len(), RECENT_RUNS);
        assert_eq!(state.last_error.map(|text| text.len() <= MAX_LOOP_ERROR_BYTES), Some(true));
    }

    #[test]
    fn percentiles_without_samples_are_zero() {
        assert_eq!(percentiles(&VecDeque::new()), [0.0, 0.0]);
        assert_eq!(percentiles(&VecDeque::from([7.0])), [7.0, 7.0]);
    }
}
