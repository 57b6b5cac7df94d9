//! The views of calendars.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use milvaion_protocol::id::{CalendarId, JobId};
use milvaion_schedule::calendar::Calendar;

/// The id and the name of a calendar.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CalendarName {
    /// The id.
    pub id: CalendarId,
    /// The name.
    pub name: String,
}

/// A calendar in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CalendarRow {
    /// The id.
    pub id: CalendarId,
    /// The name.
    pub name: String,
    /// The time zone of its days and times.
    pub zone: String,
    /// The blackouts in words.
    pub words: String,
    /// The number of jobs with this calendar.
    pub jobs: i64,
    /// The number of jobs to whose due times the last change is still being applied; none if it is applied.
    pub pending_jobs: Option<i64>,
    /// The current or the next blackout; none if no blackout is left.
    pub next: Option<BlackoutView>,
}

/// A blackout as one period of time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BlackoutView {
    /// The start; for a current blackout, the time of the request.
    pub from: DateTime<Utc>,
    /// The first instant after it; none if it has no end.
    pub to: Option<DateTime<Utc>>,
    /// The start and the end as text, in the calendar's zone.
    pub in_zone: String,
    /// True for a current blackout.
    pub is_now: bool,
}

/// A calendar on its own page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CalendarView {
    /// The id.
    pub id: CalendarId,
    /// The version, which each edit increments. An edit sends it back, so that users do not overwrite each other's
    /// edits.
    pub version: i32,
    /// The definition.
    pub calendar: Calendar,
    /// Some of the jobs with this calendar, by name.
    pub jobs: Vec<(JobId, String)>,
    /// The number of all jobs with this calendar.
    pub jobs_total: i64,
    /// The number of jobs to whose due times the last change is still being applied; none if it is applied.
    pub pending_jobs: Option<i64>,
    /// The time of the last change.
    pub modified_at: DateTime<Utc>,
    /// The user who made the last change.
    pub modified_by: String,
}
