//! The log lines of a run. Lines are frequent and change no state, so they have a queue of their own, apart from the
//! status reports.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize};
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

    /// Returns the level for a name of pino, bunyan, winston, syslog or Python's logging, in any case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name.trim().to_ascii_lowercase().as_str() {
            "debug" | "trace" | "verbose" | "silly" => Self::Debug,
            "info" | "information" | "notice" | "http" | "log" | "success" => Self::Info,
            "warn" | "warning" => Self::Warn,
            "error" | "err" | "fatal" | "critical" | "crit" | "alert" | "emerg" | "emergency" | "panic" => Self::Error,
            _ => return None,
        })
    }

    /// Returns the level for a number of pino and bunyan: 10 trace, 20 debug, 30 info, 40 warn, 50 error, 60 fatal. A number
    /// between two of them is the lower one.
    #[must_use]
    pub fn from_number(number: f64) -> Option<Self> {
        match number {
            n if n < 10.0 => None,
            n if n < 30.0 => Some(Self::Debug),
            n if n < 40.0 => Some(Self::Info),
            n if n < 50.0 => Some(Self::Warn),
            _ => Some(Self::Error),
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
    #[serde(deserialize_with = "crate::lenient::number")]
    pub seq: i64,
    /// The instant at which the line was written, by the worker's clock. If it is missing or cannot be read, the time of
    /// arrival.
    pub at: DateTime<Utc>,
    /// The level: `debug`, `info`, `warn` or `error`. The names and numbers of common log libraries are taken too, in any
    /// case; any other is `info`.
    #[serde(default, deserialize_with = "read_level")]
    pub level: LogLevel,
    /// The text, which may contain line breaks. The server takes the JSON of a value that is no text.
    pub message: String,
    /// Structured fields beside the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

/// Reads a level in the words or numbers of common log libraries. One that cannot be read is `Info`.
fn read_level<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LogLevel, D::Error> {
    let level = match Value::deserialize(deserializer)? {
        Value::String(name) => LogLevel::from_name(&name),
        Value::Number(number) => number.as_f64().and_then(LogLevel::from_number),
        _ => None,
    };
    Ok(level.unwrap_or_default())
}

/// The number of `seq` values of an attempt, and so of its lines.
pub const MAX_ATTEMPT_LINES: i64 = 1_000_000;

/// Returns the first `seq` of the lines of an attempt.
#[must_use]
pub const fn first_log_seq(attempt: u32) -> i64 {
    attempt as i64 * MAX_ATTEMPT_LINES
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
