//! The messages that the server and its workers exchange.
//!
//! A message is JSON in camelCase and UTF-8 with at most [`MAX_MESSAGE_BYTES`] bytes. Messages on the broker are
//! persistent and confirmed. A reader ignores unknown fields and uses the default for a missing field, so that old and
//! new versions can run side by side.
//!
//! This file defines the messages that the server sends on its own. The messages of workers have one file per queue.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::{JobId, OccurrenceId};

mod bundle;
mod claim;
mod ingest;
mod log;
mod registration;
mod status;

pub use crate::log_bounds::AttemptLogBounds;
pub use bundle::{JobBundle, MAX_BUNDLE_BYTES, MAX_BUNDLE_RUNS, bundle_body, bundle_bytes};
pub use claim::{ClaimDenial, ClaimReply, ClaimRequest};
pub use ingest::{
    IngestMessage, IngestOutcome, IngestReply, IngestResult, MAX_INGEST_ID_AGE_DAYS, MAX_INGEST_OCCURRENCES,
    MAX_UNIQUENESS_KEY_CHARS, NewOccurrence, uniqueness_key_of_input,
};
pub use log::{LogLevel, LogLine, LogMessage, MAX_ATTEMPT_LINES, first_log_seq};
pub use registration::{
    DeclaredSchedule, DeclaredTiming, FEATURE_CHECKPOINT, FEATURE_CLAIMS, FEATURE_INGEST, FEATURE_SCHEDULES,
    HelloProblem, HelloReply, InstanceHeartbeat, InstanceHello, JobDefaults, JobTypeInfo, PROTOCOL_VERSION,
    PriorityLoad, RegistrationMessage, UniqueRule,
};
pub use status::{RunProgress, StatusMessage, StatusReport};

/// The maximum size of a message, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 1024 * 1024;
/// The maximum size of a job's input, in bytes of JSON.
pub const MAX_JOB_DATA_BYTES: usize = 64 * 1024;
/// The maximum size of a result or an exception, in bytes. Longer texts are truncated with a mark.
pub const MAX_RESULT_BYTES: usize = 64 * 1024;
/// The maximum size of a log line, in bytes. Longer lines are truncated with a mark.
pub const MAX_LOG_LINE_BYTES: usize = 8 * 1024;
/// The maximum size of an instance's notice, in bytes. Longer texts are truncated with a mark.
pub const MAX_NOTICE_BYTES: usize = 500;
/// The maximum size of a checkpoint, in bytes of JSON.
pub const MAX_CHECKPOINT_BYTES: usize = 32 * 1024;
/// The line after which an exception quotes the last output of a program. Quoted lines differ between failures with one
/// cause, so the server groups failures without them, except for stack traces.
pub const LAST_OUTPUT_HEADING: &str = "its last output:";
/// The interval between two heartbeats of an instance, in seconds.
pub const HEARTBEAT_INTERVAL_SECONDS: u64 = 5;
/// The time without a heartbeat after which an instance counts as lost, in seconds.
pub const INSTANCE_TIMEOUT_SECONDS: i64 = 15;

/// Server → worker: run one attempt of an occurrence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct JobMessage {
    /// The occurrence to run.
    pub occurrence_id: OccurrenceId,
    /// The job of the occurrence.
    pub job_id: JobId,
    /// The name of the job, for logs.
    #[serde(default, deserialize_with = "crate::lenient::or_default")]
    pub job_name: String,
    /// The job type to run, one of those that the worker announced.
    pub job_type: String,
    /// The input, which matches the JSON Schema of the job type.
    #[serde(default)]
    pub job_data: Value,
    /// The correlation id, equal to `occurrence_id`.
    pub correlation_id: OccurrenceId,
    /// The due time.
    pub scheduled_for: DateTime<Utc>,
    /// The instant at which this message was created.
    pub timestamp: DateTime<Utc>,
    /// The attempt, counted from 1.
    #[serde(default = "crate::lenient::one", deserialize_with = "crate::lenient::attempt")]
    pub attempt: u32,
    /// The number of earlier attempts that failed. Lost and handed back attempts do not count.
    #[serde(default, deserialize_with = "crate::lenient::number_or_default")]
    pub retry_count: u32,
    /// The maximum number of retries.
    #[serde(default, deserialize_with = "crate::lenient::number_or_default")]
    pub max_retries: u32,
    /// The timeout of the run, in seconds. None means the worker's default.
    #[serde(default, deserialize_with = "crate::lenient::optional")]
    pub timeout_seconds: Option<u32>,
    /// The priority, from 1 (idle) to 5 (critical).
    #[serde(default = "middle", deserialize_with = "crate::lenient::priority")]
    pub priority: u8,
    /// The position in the trace of the occurrence, as the `traceparent` of the W3C Trace Context: the span that sent this
    /// message. A malformed one is ignored. None if the occurrence is not traced.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::lenient::readable")]
    pub traceparent: Option<String>,
    /// The last checkpoint that an earlier attempt reported. None at the first attempt, and if none was reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Value>,
    /// The occurrence that enqueued this one, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<OccurrenceId>,
}

const fn middle() -> u8 {
    3
}

/// Server → workers, on the cancellation channel and in the occurrence's Redis key: end this attempt. The request is
/// repeated until the occurrence has ended, so a worker receives it more than once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CancelMessage {
    /// The occurrence to cancel.
    pub occurrence_id: OccurrenceId,
    /// The attempt to cancel, and earlier ones. Later attempts are not affected. Without it, every attempt.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::lenient::optional_attempt")]
    pub attempt: Option<u32>,
    /// The user and the reason, for display.
    #[serde(default, deserialize_with = "crate::lenient::or_default")]
    pub reason: String,
}

/// Truncates a text to at most `max` bytes at a character boundary and appends the number of removed bytes.
#[must_use]
pub fn truncate_text(text: String, max: usize) -> String {
    if text.len() <= max {
        return text;
    }
    let whole = text.len();
    // The mark counts towards `max`, so that a second truncation changes nothing.
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
    fn truncated_text_fits_and_names_the_cut() {
        let long = "ü".repeat(10_000);
        let short = truncate_text(long, MAX_LOG_LINE_BYTES);
        assert!(short.len() <= MAX_LOG_LINE_BYTES);
        assert!(short.ends_with("bytes cut]"));
        assert_eq!(truncate_text(short.clone(), MAX_LOG_LINE_BYTES), short);
    }
}
