//! Jobs as pages show them, and what the form that defines one is drawn from.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{CalendarName, CalendarRow, JobTypeView};
use crate::requests::JobInput;
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    status::OccurrenceStatus,
};

/// A job in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobRow {
    /// Its id.
    pub id: JobId,
    /// Its name.
    pub display_name: String,
    /// The worker it is addressed to.
    pub worker_id: String,
    /// What it runs.
    pub job_type: String,
    /// When, in words.
    pub schedule_words: String,
    /// When next; none while paused or when nothing is left.
    pub next_fire_at: Option<DateTime<Utc>>,
    /// False while paused.
    pub is_active: bool,
    /// For finding it.
    pub tags: Vec<String>,
    /// The latest occurrences, newest first, at most ten: their ids and states.
    pub recent: Vec<(OccurrenceId, OccurrenceStatus)>,
    /// Whether a live worker announced its type.
    pub worker_alive: bool,
}

/// A job on its own page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobView {
    /// What the list shows.
    pub row: JobRow,
    /// Its definition.
    pub definition: JobInput,
    /// Counts its edits; sent back with an edit so that two people cannot overwrite each other unseen.
    pub version: i32,
    /// Why it is paused, when it is and somebody said so.
    pub paused_reason: Option<String>,
    /// The next fires, at most five.
    pub preview: SchedulePreview,
    /// When it was created and by whom.
    pub created_at: DateTime<Utc>,
    /// See `created_at`.
    pub created_by: String,
    /// When it was last changed and by whom.
    pub modified_at: DateTime<Utc>,
    /// See `modified_at`.
    pub modified_by: String,
    /// The input's JSON Schema, if the type was ever announced.
    pub schema: Option<Value>,
    /// The calendars it keeps to, by name.
    pub calendars: Vec<CalendarName>,
}

/// A schedule in words and dates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SchedulePreview {
    /// The sentence.
    pub words: String,
    /// The schedule's own zone.
    pub zone: String,
    /// The reader's zone, when it is another.
    pub viewer_zone: Option<String>,
    /// The next fires, and between them what calendars keep from firing.
    pub runs: Vec<PreviewRun>,
    /// What one should know.
    pub warnings: Vec<String>,
}

/// One coming fire.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreviewRun {
    /// The instant.
    pub at: DateTime<Utc>,
    /// In the schedule's zone, with its abbreviation.
    pub in_zone: String,
    /// In the reader's zone, with its abbreviation.
    pub in_viewer_zone: Option<String>,
    /// What becomes of it instead, when it falls into a blackout: whether it is left out or comes later, how many more
    /// fires share its fate, and which calendars say so. None: it runs.
    pub blackout: Option<String>,
}

/// What the job form needs beside the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobFormContext {
    /// What live and known workers can run, live ones first.
    pub job_types: Vec<JobTypeView>,
    /// Every zone name.
    pub zones: Vec<String>,
    /// Every calendar by name.
    pub calendars: Vec<CalendarRow>,
    /// The job to edit, if it is an edit.
    pub job: Option<JobView>,
}
