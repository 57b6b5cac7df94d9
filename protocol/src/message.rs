//! What travels over the broker.
//!
//! JSON, camelCase, UTF-8; every message is persistent, confirmed and at most [`MAX_MESSAGE`] bytes. Readers ignore
//! fields they do not know and take the default for those that are missing, so that old and new may work side by side.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    id::{JobId, OccurrenceId},
    status::OccurrenceStatus,
};

/// The most bytes one message may have.
pub const MAX_MESSAGE: usize = 1024 * 1024;
/// The most bytes of JSON a job's input may have.
pub const MAX_JOB_DATA: usize = 64 * 1024;
/// The most bytes of a result or an exception; longer ones are cut with a mark.
pub const MAX_RESULT: usize = 64 * 1024;
/// The most bytes of one log line; longer ones are cut with a mark.
pub const MAX_LOG_LINE: usize = 8 * 1024;
/// The most bytes of a notice; longer ones are cut with a mark.
pub const MAX_NOTICE: usize = 500;
/// How often an instance gives a sign of life, in seconds.
pub const HEARTBEAT_SECONDS: u64 = 5;
/// After how many seconds without one an instance counts as lost.
pub const LOST_AFTER_SECONDS: i64 = 15;

/// Server → worker: run this.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct JobMessage {
    /// The occurrence to run.
    pub occurrence_id: OccurrenceId,
    /// The job it belongs to.
    pub job_id: JobId,
    /// The job's name, for people who read logs.
    #[serde(default)]
    pub job_name: String,
    /// Which of the worker's job types.
    pub job_type: String,
    /// The input, as the job type's JSON Schema describes it.
    #[serde(default)]
    pub job_data: Value,
    /// Equal to `occurrence_id`.
    pub correlation_id: OccurrenceId,
    /// When it was due.
    pub scheduled_for: DateTime<Utc>,
    /// When this message was made.
    pub timestamp: DateTime<Utc>,
    /// Which attempt this is, from 1.
    #[serde(default = "one")]
    pub attempt: u32,
    /// How many attempts have failed before this one. Those that were lost or handed back are not among them.
    #[serde(default)]
    pub retry_count: u32,
    /// How many retries there may be.
    #[serde(default)]
    pub max_retries: u32,
    /// After how many seconds the run is to be ended; none means the worker's own default.
    #[serde(default)]
    pub timeout_seconds: Option<u32>,
    /// 1 (idle) to 5 (critical).
    #[serde(default = "middle")]
    pub priority: u8,
    /// W3C trace context, if the server traces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

const fn one() -> u32 {
    1
}

const fn middle() -> u8 {
    3
}

/// Worker → server: what became of an attempt.
///
/// A worker reports Running, then one end. Completed, Cancelled and a permanent Failed are final. Any other Failed and
/// TimedOut are final only when the job's retries are used up; until then the server queues the next attempt, after the
/// job's backoff. Queued says that the attempt was handed back without having failed: the worker stops, or the job asked
/// for more time; the next attempt counts as no retry. Unknown says that the attempt was lost with its worker's process,
/// as the next process found: the server decides as about a run whose worker fell silent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    /// The occurrence.
    pub occurrence_id: OccurrenceId,
    /// The attempt this is about; a report about an older one changes nothing.
    #[serde(default = "one")]
    pub attempt: u32,
    /// Who says so.
    pub instance_id: String,
    /// What it is now.
    pub status: OccurrenceStatus,
    /// When it became so, by the worker's clock.
    pub timestamp: DateTime<Utc>,
    /// What the job returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// What went wrong, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exception: Option<String>,
    /// How long the attempt ran, in milliseconds, by a monotonic clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// How far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// With Failed: another attempt is useless, whatever retries are left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub permanent: bool,
    /// When the next attempt is to begin at the earliest, in milliseconds from now. With Failed and TimedOut it takes the
    /// place of the job's backoff, if there is a retry left; with Queued it says for how long the attempt was handed
    /// back, none meaning at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

/// How far a run is, in its own words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// 0 to 100.
    pub percent: u8,
    /// What it is doing.
    #[serde(default)]
    pub message: String,
}

/// Worker → server, the body on the status queue: several reports in the order they happened. A lone report outside the
/// list is understood too, so that a small worker need not batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum StatusMessage {
    /// Several.
    Batch {
        /// In order.
        reports: Vec<StatusReport>,
    },
    /// One.
    One(StatusReport),
}

impl StatusMessage {
    /// The reports in order.
    #[must_use]
    pub fn into_reports(self) -> Vec<StatusReport> {
        match self {
            Self::Batch { reports } => reports,
            Self::One(report) => vec![report],
        }
    }
}

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
    pub const fn word(self) -> &'static str {
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
pub const fn first_seq(attempt: u32) -> i64 {
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

/// Worker → server, on the registration queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum RegistrationMessage {
    /// Sent when the worker starts and after each reconnect.
    Hello(Hello),
    /// Sent every five seconds.
    Heartbeat(Heartbeat),
    /// Sent by a worker that stops in an orderly way.
    Goodbye {
        /// Who goes.
        #[serde(rename = "instanceId")]
        instance_id: String,
    },
}

/// Who I am and what I can run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Hello {
    /// The group this process belongs to; jobs are addressed to it.
    pub worker_id: String,
    /// This process.
    pub instance_id: String,
    /// Where it runs.
    #[serde(default)]
    pub host: String,
    /// Its process id.
    #[serde(default)]
    pub pid: u32,
    /// The worker program's version.
    #[serde(default)]
    pub version: String,
    /// How many occurrences it runs at once, over all types.
    #[serde(default)]
    pub capacity: u32,
    /// What it can run.
    pub job_types: Vec<JobTypeInfo>,
    /// By the worker's clock.
    pub timestamp: DateTime<Utc>,
}

/// A job type as a worker announces it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct JobTypeInfo {
    /// Its name: 1 to 100 letters, digits, `-`, `_` and `.`.
    pub job_type: String,
    /// What it does, in a sentence.
    #[serde(default)]
    pub description: String,
    /// JSON Schema of its input.
    #[serde(default)]
    pub schema: Value,
    /// How many at once in one instance.
    #[serde(default)]
    pub concurrency: u32,
    /// After how many seconds a run is ended unless the job says otherwise.
    #[serde(default)]
    pub timeout_seconds: Option<u32>,
}

/// A sign of life.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Heartbeat {
    /// The group.
    pub worker_id: String,
    /// This process.
    pub instance_id: String,
    /// What it runs right now.
    #[serde(default)]
    pub running: Vec<OccurrenceId>,
    /// What is wrong with this process that people should see, at most 500 bytes. The next heartbeat takes its place, or
    /// takes it away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
    /// By the worker's clock.
    pub timestamp: DateTime<Utc>,
}

/// Server → workers, on the cancellation channel and in the key of the occurrence: end this attempt. It is repeated until
/// the occurrence has ended, so a worker hears it more than once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CancelMessage {
    /// The occurrence to end.
    pub occurrence_id: OccurrenceId,
    /// Which attempt; a later one is not meant.
    #[serde(default = "one")]
    pub attempt: u32,
    /// Who wishes it and why, for people.
    #[serde(default)]
    pub reason: String,
}

/// Worker → server, on the claims queue, with `reply_to` and `correlation_id` set: may this attempt start? Asked about a
/// message that may be a second copy, before anything of it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClaimRequest {
    /// The occurrence.
    pub occurrence_id: OccurrenceId,
    /// The attempt the message names.
    #[serde(default = "one")]
    pub attempt: u32,
    /// Who asks.
    pub instance_id: String,
}

/// Server → worker, to the queue that the request named in `reply_to`, with the request's `correlation_id`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClaimReply {
    /// The occurrence.
    pub occurrence_id: OccurrenceId,
    /// The attempt that was asked about.
    pub attempt: u32,
    /// Whether it may start.
    pub granted: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Denial>,
    /// The instance that runs it, where that is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// Why an attempt must not start. In each case its message can be acknowledged and forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Denial {
    /// An instance has reported that it runs it; if that one has died, a next attempt follows.
    Running,
    /// It has ended.
    Ended,
    /// Somebody cancelled it.
    Cancelled,
    /// A later attempt has taken its place.
    Superseded,
    /// It waits for a slot or for its retry; its message is sent when that is over.
    Waiting,
    /// There is no such occurrence, or not this attempt of it.
    Unknown,
}

impl Denial {
    /// Why, for a log.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Running => "somebody else runs it",
            Self::Ended => "it has ended",
            Self::Cancelled => "it was cancelled",
            Self::Superseded => "a later attempt has taken its place",
            Self::Waiting => "it is not its turn yet",
            Self::Unknown => "the server does not know it",
        }
    }
}

/// Cuts a text to at most `max` bytes at a character boundary and says how much is missing.
#[must_use]
pub fn cut(text: String, max: usize) -> String {
    if text.len() <= max {
        return text;
    }
    let whole = text.len();
    // The mark itself must fit, or cutting twice would cut again.
    let end = text.floor_char_boundary(max.saturating_sub(40));
    let mut text = text;
    text.truncate(end);
    text.push_str(&format!("… [{} bytes cut]", whole - end));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_text_fits_and_says_so() {
        let long = "ü".repeat(10_000);
        let short = cut(long, MAX_LOG_LINE);
        assert!(short.len() <= MAX_LOG_LINE);
        assert!(short.ends_with("bytes cut]"));
        assert_eq!(cut(short.clone(), MAX_LOG_LINE), short);
    }

    #[test]
    fn a_lone_report_is_understood_as_a_batch_of_one() {
        let json = r#"{"occurrenceId":"0190a0a0-0000-7000-8000-000000000000","instanceId":"w-1","status":2,"timestamp":"2026-11-21T00:00:00Z"}"#;
        let reports = serde_json::from_str::<StatusMessage>(json).expect("parses").into_reports();
        assert_eq!(reports.len(), 1);
        assert_eq!(reports[0].attempt, 1);
        assert_eq!(reports[0].status, OccurrenceStatus::Completed);
    }
}
