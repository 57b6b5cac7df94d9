//! The installation as pages show it: its workers, its health, and how it goes.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::OccurrenceRow;
use milvaion_protocol::{id::JobId, message::JobTypeInfo, status::OccurrenceStatus};

/// A job type and who announced it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobTypeView {
    /// The worker.
    pub worker_id: String,
    /// The type.
    pub info: JobTypeInfo,
    /// How many live instances offer it.
    pub alive: i64,
}

/// A worker and its instances.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerView {
    /// Its id.
    pub id: String,
    /// Its processes, live ones first.
    pub instances: Vec<InstanceView>,
    /// What it can run.
    pub job_types: Vec<JobTypeView>,
}

/// One worker process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceView {
    /// Its id.
    pub id: String,
    /// Where it runs.
    pub host: String,
    /// Its program's version.
    pub version: String,
    /// How many occurrences it takes at once.
    pub capacity: i32,
    /// How many it had at its last heartbeat.
    pub running: i32,
    /// When it first said hello.
    pub started_at: DateTime<Utc>,
    /// Its last sign of life.
    pub last_heartbeat_at: DateTime<Utc>,
    /// Whether that is recent enough.
    pub alive: bool,
    /// Whether it said goodbye.
    pub stopped: bool,
    /// What is wrong with it, in its own words, at its last heartbeat.
    #[serde(default)]
    pub notice: Option<String>,
}

/// The state of one part of the installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HealthState {
    /// As it should be.
    Ok,
    /// Works, but not as it should.
    Warn,
    /// Does not work.
    Down,
}

/// One line of the health strip.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthItem {
    /// Of what.
    pub name: String,
    /// How it is.
    pub state: HealthState,
    /// In a few words.
    pub detail: String,
}

/// One minute of the roll-up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MinuteCount {
    /// The minute's start.
    pub minute: DateTime<Utc>,
    /// How many occurrences became what.
    pub counts: Vec<(OccurrenceStatus, i64)>,
}

/// A job that is due soon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpcomingJob {
    /// The job.
    pub job_id: JobId,
    /// Its name.
    pub job_name: String,
    /// When.
    pub at: DateTime<Utc>,
}

/// The overview page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterOverview {
    /// The server's clock when this was made; countdowns run on it.
    pub now: DateTime<Utc>,
    /// The state of every part.
    pub health: Vec<HealthItem>,
    /// How many occurrences became what in the last hour, from the roll-up.
    pub last_hour: Vec<(OccurrenceStatus, i64)>,
    /// The same by minute, oldest first, only minutes with something in them.
    pub minutes: Vec<MinuteCount>,
    /// Live worker instances.
    pub workers_alive: i64,
    /// Instances seen in the last day.
    pub workers_known: i64,
    /// Active jobs and all jobs.
    pub jobs_active: i64,
    /// See `jobs_active`.
    pub jobs_total: i64,
    /// The next ten.
    pub next_due: Vec<UpcomingJob>,
    /// The last five failures.
    pub failures: Vec<OccurrenceRow>,
    /// How many failures nobody has settled, counted up to [`MAX_COUNTED_FAILURES`](crate::failures::MAX_COUNTED_FAILURES).
    pub open_failures: i64,
}

/// Everything stands still: nothing is fired or released until somebody resumes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterPause {
    /// Since when.
    pub since: DateTime<Utc>,
    /// Who threw the switch.
    pub by: String,
    /// Why, in their words.
    pub reason: String,
}
