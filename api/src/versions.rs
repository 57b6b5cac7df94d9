//! The versions of a job's definition, and the differences between two of them.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use milvaion_protocol::id::CalendarId;

/// A version in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct VersionRow {
    /// The version number, from 1. Each edit, pause and resume creates one.
    pub version: i32,
    /// The time of the change.
    pub changed_at: DateTime<Utc>,
    /// The user who made the change.
    pub changed_by: String,
}

/// A version in a list, with the fields that it changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct VersionStep {
    /// The version.
    pub row: VersionRow,
    /// The names of the fields that differ from the previous version; none for the first.
    pub fields: Vec<String>,
    /// True if there are further changed fields.
    pub more: bool,
}

/// A version with its definition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VersionView {
    /// The version.
    pub row: VersionRow,
    /// The definition as it was stored.
    pub definition: Value,
}

/// The change of one field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FieldChange {
    /// The path of the field: names joined by dots, such as `rules.overlap`.
    pub field: String,
    /// The value before; none if the field was absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// The value after; none if the field is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}

/// The differences between two versions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct VersionDiff {
    /// The changed fields, by name.
    pub changes: Vec<FieldChange>,
    /// True if there are further changed fields.
    pub more: bool,
}

/// The result of restoring a version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RestoreVersionResult {
    /// The version that the restore created.
    pub version: i32,
    /// The calendars of the old definition that no longer exist. The restored job does not have them.
    pub missing_calendars: Vec<CalendarId>,
}
