//! The views of jobs, and the data of the job form.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{CalendarName, CalendarRow, JobTypeView};
use crate::{requests::JobInput, sources::JobSource};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    status::OccurrenceStatus,
};

/// A job in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobRow {
    /// The id.
    pub id: JobId,
    /// The key, by which scripts and files identify the job.
    #[serde(default)]
    pub key: Option<String>,
    /// The name.
    pub display_name: String,
    /// The worker to which the job is addressed.
    pub worker_id: String,
    /// The job type to run.
    pub job_type: String,
    /// The schedule in words.
    pub schedule_words: String,
    /// The next due time; none while the job is paused or if no due time is left.
    pub next_fire_at: Option<DateTime<Utc>>,
    /// False while the job is paused.
    pub is_active: bool,
    /// The tags.
    pub tags: Vec<String>,
    /// The latest occurrences, newest first, at most ten: their ids and statuses.
    pub recent: Vec<(OccurrenceId, OccurrenceStatus)>,
    /// True if a live worker offers its job type.
    pub worker_alive: bool,
}

/// A job on its own page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobView {
    /// The job as in the list.
    pub row: JobRow,
    /// The definition.
    pub definition: JobInput,
    /// The version, which each edit increments. An edit sends it back, so that users do not overwrite each other's
    /// edits.
    pub version: i32,
    /// The part of the job that this server cannot read, because a newer server has saved it, such as `the schedule`. This
    /// server starts none of its scheduled runs then.
    pub unreadable: Option<String>,
    /// The reason of a pause, if the job is paused and a reason was given.
    pub paused_reason: Option<String>,
    /// The door through which the job was defined.
    #[serde(default)]
    pub source: JobSource,
    /// The next due times, at most five.
    pub preview: SchedulePreview,
    /// The number of delayed occurrences, at most [`MAX_COUNTED_OPEN`](super::MAX_COUNTED_OPEN) + 1.
    #[serde(default)]
    pub delayed: i64,
    /// The time of creation.
    pub created_at: DateTime<Utc>,
    /// The user who created it.
    pub created_by: String,
    /// The time of the last change.
    pub modified_at: DateTime<Utc>,
    /// The user who made the last change.
    pub modified_by: String,
    /// The JSON Schema of the input, if a worker has announced the job type.
    pub schema: Option<Value>,
    /// The calendars of the job, by name.
    pub calendars: Vec<CalendarName>,
}

/// A schedule in words, with its next due times.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SchedulePreview {
    /// The schedule as a sentence.
    pub words: String,
    /// The time zone of the schedule.
    pub zone: String,
    /// The time zone of the viewer, if it differs.
    pub viewer_zone: Option<String>,
    /// The next due times, and between them those in blackouts.
    pub runs: Vec<PreviewRun>,
    /// The warnings about the schedule.
    pub warnings: Vec<String>,
}

/// One of the next due times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreviewRun {
    /// The instant.
    pub at: DateTime<Utc>,
    /// The local time in the schedule's zone, with the zone's abbreviation.
    pub in_zone: String,
    /// The local time in the viewer's zone, with the zone's abbreviation.
    pub in_viewer_zone: Option<String>,
    /// The effect of a blackout on this due time: skipped or postponed, the number of further due times with the same
    /// effect, and the calendars. None means that the job runs.
    pub blackout: Option<String>,
}

/// The data of the job form beside the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobFormContext {
    /// The job types of live and known workers, live ones first.
    pub job_types: Vec<JobTypeView>,
    /// The names of all time zones.
    pub zones: Vec<String>,
    /// All calendars, by name.
    pub calendars: Vec<CalendarRow>,
    /// The job to edit; none for a new job.
    pub job: Option<JobView>,
}
