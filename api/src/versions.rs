//! The definitions a job has had, and what differs between two of them.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use milvaion_protocol::id::CalendarId;

/// A version in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VersionRow {
    /// From 1; each edit, pause and resume makes one.
    pub version: i32,
    /// When it was made.
    pub changed_at: DateTime<Utc>,
    /// By whom.
    pub changed_by: String,
}

/// A version in a list with what it changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VersionStep {
    /// Which, when and by whom.
    pub row: VersionRow,
    /// The fields that differ from the version before, by name; none for the first.
    pub fields: Vec<String>,
    /// Whether there are more than these.
    pub more: bool,
}

/// A version with the definition it holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VersionView {
    /// What the list shows.
    pub row: VersionRow,
    /// The definition, as it was stored then.
    pub definition: Value,
}

/// One field that differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FieldChange {
    /// Where: names joined by dots, as in `rules.overlap`.
    pub field: String,
    /// What it was; none when it was not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// What it is; none when it is not there any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}

/// What differs between two versions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VersionDiff {
    /// Field by field, by name.
    pub changes: Vec<FieldChange>,
    /// Whether there are more than these.
    pub more: bool,
}

/// What a restore did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestoreVersionResult {
    /// The version it made.
    pub version: i32,
    /// Calendars the old definition named that no longer exist; the job does not keep to them.
    pub missing_calendars: Vec<CalendarId>,
}
