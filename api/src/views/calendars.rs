//! Calendars as pages show them.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use milvaion_protocol::id::{CalendarId, JobId};
use milvaion_schedule::calendar::Calendar;

/// A calendar by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CalendarName {
    /// Its id.
    pub id: CalendarId,
    /// Its name.
    pub name: String,
}

/// A calendar in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CalendarRow {
    /// Its id.
    pub id: CalendarId,
    /// Its name.
    pub name: String,
    /// Where its days and times are meant.
    pub zone: String,
    /// What it blacks out, in words.
    pub words: String,
    /// How many jobs keep to it.
    pub jobs: i64,
    /// The blackout that goes on, or the next one; none when none is left.
    pub next: Option<BlackoutView>,
}

/// A blackout as it falls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BlackoutView {
    /// When it begins; the instant of the answer when it goes on.
    pub from: DateTime<Utc>,
    /// The first instant after it; none when it has no end.
    pub to: Option<DateTime<Utc>>,
    /// From when until when, in the calendar's zone.
    pub in_zone: String,
    /// Whether it goes on.
    pub is_now: bool,
}

/// A calendar on the page that changes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CalendarView {
    /// Its id.
    pub id: CalendarId,
    /// Counts its edits; sent back with an edit so that two people cannot overwrite each other unseen.
    pub version: i32,
    /// What it says.
    pub calendar: Calendar,
    /// Some of the jobs that keep to it, by name.
    pub jobs: Vec<(JobId, String)>,
    /// How many there are in all.
    pub jobs_total: i64,
    /// When it was changed last.
    pub modified_at: DateTime<Utc>,
    /// By whom.
    pub modified_by: String,
}
