//! Workers, the cluster and its statistics.

use chrono::{DateTime, Utc};
use milvaion_protocol::status::OccurrenceStatus;
use serde::{Deserialize, Serialize};

use super::{Occurrence, StatusName};
use crate::{
    page::TimeWindow,
    views::{BarCount, ClusterOverview, ClusterPause, HealthItem, UpcomingJob},
};

/// The filter of the list of workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct WorkerQuery {
    /// Only workers with a live instance.
    pub alive: bool,
}

/// The state of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Cluster {
    /// The server's time.
    pub now: DateTime<Utc>,
    /// The cluster pause; null while the cluster is not paused.
    pub pause: Option<ClusterPause>,
    /// The health of every part.
    pub health: Vec<HealthItem>,
}

/// A request to pause the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct PauseRequest {
    /// The reason, at most 500 characters.
    #[cfg_attr(feature = "schema", schemars(length(max = 500)))]
    pub reason: String,
}

/// The window of the statistics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct StatisticsQuery {
    /// The window; one hour without it.
    pub window: Option<TimeWindow>,
}

/// A number of occurrences by status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OpenCount {
    /// The status.
    pub status: StatusName,
    /// The number of occurrences.
    pub count: i64,
}

fn counts(counts: Vec<(OccurrenceStatus, i64)>) -> Vec<OpenCount> {
    counts.into_iter().map(|(status, count)| OpenCount { status: status.into(), count }).collect()
}

/// The occurrences that ended in one period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StatisticsBar {
    /// The start of the period.
    pub start: DateTime<Utc>,
    /// The numbers by status.
    pub ended: Vec<OpenCount>,
}

impl From<BarCount> for StatisticsBar {
    fn from(bar: BarCount) -> Self {
        Self { start: bar.start, ended: counts(bar.counts) }
    }
}

/// The statistics of the installation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Statistics {
    /// The server's time.
    pub now: DateTime<Utc>,
    /// The window of `ended` and `bars`.
    pub window: TimeWindow,
    /// The number of open occurrences by status, counted up to 10,001 each.
    pub open: Vec<OpenCount>,
    /// The number of occurrences that ended in the window, by status.
    pub ended: Vec<OpenCount>,
    /// The same by period, oldest first, without empty periods.
    pub bars: Vec<StatisticsBar>,
    /// The number of live worker instances.
    pub workers_alive: i64,
    /// The number of active jobs.
    pub jobs_active: i64,
    /// The number of all jobs.
    pub jobs_total: i64,
    /// The number of open failures, counted up to 10,000.
    pub open_failures: i64,
    /// The next ten due jobs.
    pub next_due: Vec<UpcomingJob>,
    /// The newest five occurrences that failed or timed out in the last seven days.
    pub latest_failures: Vec<Occurrence>,
}

impl From<ClusterOverview> for Statistics {
    fn from(overview: ClusterOverview) -> Self {
        Self {
            now: overview.now,
            window: overview.window,
            open: counts(overview.open),
            ended: counts(overview.ended),
            bars: overview.bars.into_iter().map(Into::into).collect(),
            workers_alive: overview.workers_alive,
            jobs_active: overview.jobs_active,
            jobs_total: overview.jobs_total,
            open_failures: overview.open_failures,
            next_due: overview.next_due,
            latest_failures: overview.failures.into_iter().map(Into::into).collect(),
        }
    }
}
