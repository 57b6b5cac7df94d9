//! The views of the installation: workers, health and statistics.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::OccurrenceRow;
use crate::{alerts::FiringAlerts, page::TimeWindow};
use milvaion_protocol::{
    id::JobId,
    message::{JobTypeInfo, PriorityLoad},
    status::OccurrenceStatus,
};

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

/// The state of a worker instance. It follows from the heartbeats, the goodbye and the open runs of the instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum InstanceState {
    /// Its heartbeats arrive, and it takes new work.
    Active,
    /// It has received SIGTERM: it takes no new work, and ends or hands back what it runs.
    Completing,
    /// No heartbeat arrives over RabbitMQ, while the one in Redis shows that the instance is alive.
    Unreachable,
    /// It no longer runs, and its open runs are being requeued.
    Draining,
    /// No heartbeat arrives, it reported no stop, and none of its runs is open.
    Lost,
    /// It reported a graceful stop.
    Gone,
}

impl InstanceState {
    /// Returns true if the heartbeats of the instance arrive.
    #[must_use]
    pub const fn is_alive(self) -> bool {
        matches!(self, Self::Active | Self::Completing)
    }

    /// Returns true if the process exists by its last sign of life.
    #[must_use]
    pub const fn has_process(self) -> bool {
        matches!(self, Self::Active | Self::Completing | Self::Unreachable)
    }
}

/// The names of the priorities from 1 to 5.
const PRIORITY_NAMES: [&str; 5] = ["idle", "low", "normal", "high", "critical"];

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
    /// The number of concurrent runs that the instance reserves for the priority 5 (critical).
    #[serde(default)]
    pub critical_slots: i32,
    /// The state.
    pub state: InstanceState,
    /// The number of runs at the last heartbeat. While the instance is draining, the number of runs that are not requeued
    /// yet. Otherwise 0 without a process.
    pub running: i32,
    /// The runs and the deliveries that wait for a permit at the last heartbeat, by priority, the highest first. Empty if
    /// there are none, if the instance does not report them, or without a process.
    #[serde(default)]
    pub priorities: Vec<PriorityLoad>,
    /// The time of the first registration.
    pub started_at: DateTime<Utc>,
    /// The time of the last heartbeat.
    pub last_heartbeat_at: DateTime<Utc>,
    /// The time at which the instance reported a graceful stop.
    #[serde(default)]
    pub stopped_at: Option<DateTime<Utc>>,
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

impl InstanceView {
    /// Returns the number of runs, and the capacity of a process: `3 of 10`, `2 left`.
    #[must_use]
    pub fn running_text(&self) -> String {
        match self.state {
            state if state.has_process() => format!("{} of {}", self.running, self.capacity),
            InstanceState::Draining => format!("{} left", self.running),
            _ => "–".into(),
        }
    }

    /// Returns the runs by priority and the reserved slots: `critical 1 (2 waiting), normal 3, 2 reserved for critical`.
    #[must_use]
    pub fn priorities_text(&self) -> String {
        let loads = self.priorities.iter().filter_map(|load| {
            let name = PRIORITY_NAMES.get(usize::from(load.priority).checked_sub(1)?)?;
            let waiting = if load.waiting > 0 { format!(" ({} waiting)", load.waiting) } else { String::new() };
            Some(format!("{name} {}{waiting}", load.running))
        });
        let reserved = (self.critical_slots > 0).then(|| format!("{} reserved for critical", self.critical_slots));
        let texts: Vec<String> = loads.chain(reserved).collect();
        if texts.is_empty() { "–".into() } else { texts.join(", ") }
    }
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

    #[test]
    fn texts_of_an_instance_follow_its_state() {
        let mut instance: InstanceView = serde_json::from_value(serde_json::json!({
            "id": "w-1", "host": "h", "version": "1", "capacity": 10, "state": "active", "running": 4,
            "priorities": [
                { "priority": 5, "running": 1, "waiting": 2 }, { "priority": 3, "running": 3, "waiting": 0 },
                { "priority": 0, "running": 1, "waiting": 0 },
            ],
            "startedAt": "2026-11-25T12:00:00Z", "lastHeartbeatAt": "2026-11-25T12:00:00Z",
        }))
        .expect("an instance");
        assert_eq!(instance.running_text(), "4 of 10");
        assert_eq!(instance.priorities_text(), "critical 1 (2 waiting), normal 3");
        instance.critical_slots = 2;
        assert_eq!(instance.priorities_text(), "critical 1 (2 waiting), normal 3, 2 reserved for critical");
        (instance.state, instance.critical_slots, instance.priorities) = (InstanceState::Draining, 0, Vec::new());
        assert_eq!((instance.running_text().as_str(), instance.priorities_text().as_str()), ("4 left", "–"));
        instance.state = InstanceState::Lost;
        assert_eq!(instance.running_text(), "–");
    }

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
