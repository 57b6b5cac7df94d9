//! The log lines of a run. Lines are frequent and change no state, so they have a queue of their own, apart from the
//! status reports.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::OccurrenceId;

/// The level of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Details for debugging the job.
    Debug,
    /// Normal progress.
    #[default]
    Info,
    /// An unexpected condition that does not stop the run.
    Warn,
    /// An error.
    Error,
}

impl LogLevel {
    /// Returns the number of the level in the database.
    #[must_use]
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// Returns the level of a number. Unknown numbers are `Info`.
    #[must_use]
    pub const fn from_code(code: i16) -> Self {
        match code {
            0 => Self::Debug,
            2 => Self::Warn,
            3 => Self::Error,
            _ => Self::Info,
        }
    }

    /// Returns the name of the level for display.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// One line in the log of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LogLine {
    /// The sequence number within the occurrence: `attempt × 1_000_000 + n`. The worker assigns it, so that a duplicate
    /// delivery stores no line twice.
    pub seq: i64,
    /// The instant at which the line was written, by the worker's clock.
    pub at: DateTime<Utc>,
    /// The level.
    #[serde(default)]
    pub level: LogLevel,
    /// The text, which may contain line breaks.
    pub message: String,
    /// Structured fields beside the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

/// Returns the first `seq` of the lines of an attempt.
#[must_use]
pub const fn first_log_seq(attempt: u32) -> i64 {
    attempt as i64 * 1_000_000
}

/// Worker → server, the body on the log queue: log lines of one occurrence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LogMessage {
    /// The occurrence that wrote the lines.
    pub occurrence_id: OccurrenceId,
    /// The lines, oldest first.
    pub lines: Vec<LogLine>,
}
