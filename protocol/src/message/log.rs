//! What a job writes while it runs. Lines are many and change no state, so they travel apart from the reports, on a queue
//! of their own.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::OccurrenceId;

/// How loud a log line is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// For whoever debugs the job.
    Debug,
    /// What happens.
    #[default]
    Info,
    /// What should not be so, yet does not stop the run.
    Warn,
    /// What went wrong.
    Error,
}

impl LogLevel {
    /// The wire number in the database.
    #[must_use]
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// The level of a number; unknown ones are `Info`.
    #[must_use]
    pub const fn from_code(code: i16) -> Self {
        match code {
            0 => Self::Debug,
            2 => Self::Warn,
            3 => Self::Error,
            _ => Self::Info,
        }
    }

    /// The word people read.
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

/// One line a job wrote.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LogLine {
    /// Its place within the occurrence: `attempt × 1_000_000 + n`, given by the worker, so that a second copy of the
    /// message stores nothing twice.
    pub seq: i64,
    /// When it was written, by the worker's clock.
    pub at: DateTime<Utc>,
    /// How loud.
    #[serde(default)]
    pub level: LogLevel,
    /// The text; may hold line breaks.
    pub message: String,
    /// Fields beside the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

/// The first `seq` of an attempt's lines.
#[must_use]
pub const fn first_log_seq(attempt: u32) -> i64 {
    attempt as i64 * 1_000_000
}

/// Worker → server, the body on the log queue: lines of one occurrence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LogMessage {
    /// Whose lines.
    pub occurrence_id: OccurrenceId,
    /// In order.
    pub lines: Vec<LogLine>,
}
