//! The views of the installation: workers, health and statistics.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::OccurrenceRow;
use crate::{alerts::FiringAlerts, page::TimeWindow};
use milvaion_protocol::{id::JobId, message::JobTypeInfo, status::OccurrenceStatus};

/// A job type with the worker that announced it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct JobTypeView {
    /// The worker.
    pub worker_id: String,
    /// The job type.
    pub info: JobTypeInfo,
    /// The number of live instances that offer it.
    pub alive: i64,
}

impl JobTypeView {
    /// Returns `worker/type`, the value that the job form posts for this type.
    #[must_use]
    pub fn target(&self) -> String {
        format!("{}/{}", self.worker_id, self.info.job_type)
    }
}

/// A worker and its instances.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WorkerView {
    /// The id.
    pub id: String,
    /// The instances, live ones first.
    pub instances: Vec<InstanceView>,
    /// The job types that it can run.
    pub job_types: Vec<JobTypeView>,
}

/// A worker instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InstanceView {
    /// The id.
    pub id: String,
    /// The name of the host.
    pub host: String,
    /// The version of the worker program.
    pub version: String,
    /// The maximum number of concurrent runs.
    pub capacity: i32,
    /// The number of runs at the last heartbeat; 0 unless the instance is alive.
    pub running: i32,
    /// The time of the first registration.
    pub started_at: DateTime<Utc>,
    /// The time of the last heartbeat.
    pub last_heartbeat_at: DateTime<Utc>,
    /// True if the last heartbeat is recent enough.
    pub alive: bool,
    /// True if no heartbeat arrives over RabbitMQ, while the one in Redis shows that the instance is alive.
    #[serde(default)]
    pub unreachable: bool,
    /// True if the instance reported a graceful stop.
    pub stopped: bool,
    /// The problem that the instance reported with its last heartbeat.
    #[serde(default)]
    pub notice: Option<String>,
    /// The version of the protocol that the program implements.
    #[serde(default)]
    pub protocol: i32,
    /// The optional parts of the protocol that the program implements.
    #[serde(default)]
    pub features: Vec<String>,
    /// The parts of its registration that the server refused, as sentences.
    #[serde(default)]
    pub problems: Vec<String>,
    /// The number of its messages, or parts of messages, that the server could not read.
    #[serde(default)]
    pub unreadable: i64,
    /// The time of the last one that could not be read.
    #[serde(default)]
    pub unreadable_at: Option<DateTime<Utc>>,
    /// The field and the reason of the last one that could not be read.
    #[serde(default)]
    pub unreadable_reason: Option<String>,
}

/// The health of one part of the installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum HealthState {
    /// Works.
    Ok,
    /// Works with restrictions.
    Warn,
    /// Does not work.
    Down,
}

/// One entry of the health list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HealthItem {
    /// The name of the part.
    pub name: String,
    /// The state.
    pub state: HealthState,
    /// The state in a few words.
    pub detail: String,
    /// The time of the first check since which the part has not worked without restrictions. The trouble may have begun
    /// before that check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<DateTime<Utc>>,
}

/// The state of the cluster, which every page shows. It can be read while PostgreSQL is down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// The server's time of this status.
    pub now: DateTime<Utc>,
    /// The health of every part.
    pub health: Vec<HealthItem>,
    /// True if the cluster pause could be read.
    pub is_pause_known: bool,
    /// The cluster pause; `None` while the cluster is not paused, or if the pause is unknown.
    pub pause: Option<ClusterPause>,
    /// The number of alerts that fire; zeros if it is unknown.
    #[serde(default)]
    pub alerts: FiringAlerts,
}

/// The name of PostgreSQL in the health list. Without it, no page can be read.
pub const DATABASE_PART: &str = "PostgreSQL";
/// The name of the dispatcher in the health list.
pub const DISPATCHER_PART: &str = "Dispatcher";
/// The name of the other background tasks in the health list.
pub const TASKS_PART: &str = "Background tasks";

impl ClusterStatus {
    /// Returns true if PostgreSQL responded.
    #[must_use]
    pub fn is_database_up(&self) -> bool {
        !self.health.iter().any(|item| item.name == DATABASE_PART && item.state == HealthState::Down)
    }

    /// Returns the parts that do not work without restrictions. The dispatcher is left out while PostgreSQL is down,
    /// because it cannot work then. The other background tasks are left out while a service or the dispatcher does not
    /// work, which is then the cause.
    #[must_use]
    pub fn troubles(&self) -> Vec<HealthItem> {
        let is_database_up = self.is_database_up();
        let items = self.health.iter().filter(|item| item.state != HealthState::Ok);
        let mut troubles: Vec<HealthItem> =
            items.filter(|item| is_database_up || item.name != DISPATCHER_PART).cloned().collect();
        let is_cause = |item: &HealthItem| {
            item.name != TASKS_PART && (item.name != DATABASE_PART || item.state == HealthState::Down)
        };
        if troubles.iter().any(is_cause) {
            troubles.retain(|item| item.name != TASKS_PART);
        }
        troubles
    }
}

/// The ended occurrences of one bar of the chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BarCount {
    /// The start of the bar's period.
    pub start: DateTime<Utc>,
    /// The number of occurrences that ended in it, by status.
    pub counts: Vec<(OccurrenceStatus, i64)>,
}

/// A job that is due soon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct UpcomingJob {
    /// The id of the job.
    pub job_id: JobId,
    /// The name of the job.
    pub job_name: String,
    /// The due time.
    pub at: DateTime<Utc>,
}

/// The maximum number of open occurrences that the overview counts, for each status.
pub const MAX_COUNTED_OPEN: i64 = 10_000;

/// The built-in job type of the sample job.
pub const DEMO_JOB_TYPE: &str = "demo";

/// The overview page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterOverview {
    /// The server's time of this view, on which countdowns are based.
    pub now: DateTime<Utc>,
    /// The window of `ended` and `bars`.
    pub window: TimeWindow,
    /// The number of occurrences that have each open status now, at most [`MAX_COUNTED_OPEN`] + 1.
    pub open: Vec<(OccurrenceStatus, i64)>,
    /// The number of occurrences that ended in the window, by status.
    pub ended: Vec<(OccurrenceStatus, i64)>,
    /// The same by bar of the chart, oldest first, without empty bars.
    pub bars: Vec<BarCount>,
    /// The number of live worker instances.
    pub workers_alive: i64,
    /// The number of instances with a heartbeat in the last day.
    pub workers_known: i64,
    /// The number of active jobs.
    pub jobs_active: i64,
    /// The number of all jobs.
    pub jobs_total: i64,
    /// The next ten due jobs.
    pub next_due: Vec<UpcomingJob>,
    /// True if a live worker offers the job type [`DEMO_JOB_TYPE`].
    pub offers_demo: bool,
    /// The newest five occurrences that failed or timed out in the last seven days.
    pub failures: Vec<OccurrenceRow>,
    /// The number of open failures, at most [`MAX_COUNTED_FAILURES`](crate::failures::MAX_COUNTED_FAILURES).
    pub open_failures: i64,
}

/// A cluster pause. While it lasts, nothing is dispatched and no slot is granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClusterPause {
    /// The start of the pause.
    pub since: DateTime<Utc>,
    /// The user who paused the cluster.
    pub by: String,
    /// The reason given by that user.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(database: HealthState, dispatcher: HealthState, tasks: HealthState) -> ClusterStatus {
        let item = |name: &str, state| HealthItem { name: name.into(), state, detail: String::new(), since: None };
        ClusterStatus {
            now: DateTime::UNIX_EPOCH,
            health: vec![item(DATABASE_PART, database), item(DISPATCHER_PART, dispatcher), item(TASKS_PART, tasks)],
            is_pause_known: true,
            pause: None,
            alerts: FiringAlerts::default(),
        }
    }

    fn troubles(database: HealthState, dispatcher: HealthState, tasks: HealthState) -> Vec<String> {
        status(database, dispatcher, tasks).troubles().into_iter().map(|item| item.name).collect()
    }

    #[test]
    fn consequences_of_a_trouble_are_not_reported_beside_it() {
        use HealthState::{Down, Ok, Warn};
        assert!(troubles(Ok, Ok, Ok).is_empty());
        assert_eq!(troubles(Down, Warn, Warn), [DATABASE_PART]);
        assert_eq!(troubles(Ok, Down, Warn), [DISPATCHER_PART]);
        assert_eq!(troubles(Ok, Ok, Warn), [TASKS_PART]);
        assert_eq!(troubles(Warn, Ok, Warn), [DATABASE_PART, TASKS_PART], "an old snapshot makes no task fail");
        assert!(!status(Down, Ok, Ok).is_database_up());
    }
}
