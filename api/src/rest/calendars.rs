//! Blackout calendars.

use chrono::{DateTime, Utc};
use milvaion_protocol::id::{CalendarId, JobId};
use milvaion_schedule::calendar::Calendar;
use serde::{Deserialize, Serialize};

use crate::views::{BlackoutView, CalendarView};

/// A calendar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CalendarDetail {
    /// The id.
    pub id: CalendarId,
    /// The version, which each change increments. The header `ETag` has it too.
    pub version: i32,
    /// The definition. A request that changes the calendar sends the whole of it.
    pub definition: Calendar,
    /// The next blackouts.
    pub upcoming: Vec<BlackoutView>,
    /// Some of the jobs with this calendar, by name.
    pub jobs: Vec<CalendarJob>,
    /// The number of all jobs with this calendar.
    pub jobs_total: i64,
    /// The number of jobs to whose due times the last change is still being applied; null if it is applied.
    pub pending_jobs: Option<i64>,
    /// The time of the last change.
    pub modified_at: DateTime<Utc>,
    /// The user who made the last change.
    pub modified_by: String,
}

/// A job with a calendar.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CalendarJob {
    /// The id.
    pub id: JobId,
    /// The name.
    pub display_name: String,
}

impl CalendarDetail {
    /// Builds the document of a calendar with its next blackouts.
    #[must_use]
    pub fn new(view: CalendarView, upcoming: Vec<BlackoutView>) -> Self {
        Self {
            id: view.id,
            version: view.version,
            definition: view.calendar,
            upcoming,
            jobs: view.jobs.into_iter().map(|(id, display_name)| CalendarJob { id, display_name }).collect(),
            jobs_total: view.jobs_total,
            pending_jobs: view.pending_jobs,
            modified_at: view.modified_at,
            modified_by: view.modified_by,
        }
    }
}
