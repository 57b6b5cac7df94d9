//! What travels over the broker.
//!
//! JSON, camelCase, UTF-8; every message is persistent, confirmed and at most [`MAX_MESSAGE_BYTES`] bytes. Readers ignore
//! fields they do not know and take the default for those that are missing, so that old and new may work side by side.
//!
//! What the server sends unasked stands here; what workers send has a file for each of their queues.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::{JobId, OccurrenceId};

mod claim;
mod log;
mod registration;
mod status;

pub use claim::{ClaimDenial, ClaimReply, ClaimRequest};
pub use log::{LogLevel, LogLine, LogMessage, first_log_seq};
pub use registration::{InstanceHeartbeat, InstanceHello, JobTypeInfo, RegistrationMessage};
pub use status::{RunProgress, StatusMessage, StatusReport};

/// The most bytes one message may have.
pub const MAX_MESSAGE_BYTES: usize = 1024 * 1024;
/// The most bytes of JSON a job's input may have.
pub const MAX_JOB_DATA_BYTES: usize = 64 * 1024;
/// The most bytes of a result or an exception; longer ones are cut with a mark.
pub const MAX_RESULT_BYTES: usize = 64 * 1024;
/// The most bytes of one log line; longer ones are cut with a mark.
pub const MAX_LOG_LINE_BYTES: usize = 8 * 1024;
/// The most bytes of a notice; longer ones are cut with a mark.
pub const MAX_NOTICE_BYTES: usize = 500;
/// How often an instance gives a sign of life, in seconds.
pub const HEARTBEAT_INTERVAL_SECONDS: u64 = 5;
/// After how many seconds without one an instance counts as lost.
pub const INSTANCE_TIMEOUT_SECONDS: i64 = 15;

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

/// Cuts a text to at most `max` bytes at a character boundary and says how much is missing.
#[must_use]
pub fn truncate_text(text: String, max: usize) -> String {
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
        let short = truncate_text(long, MAX_LOG_LINE_BYTES);
        assert!(short.len() <= MAX_LOG_LINE_BYTES);
        assert!(short.ends_with("bytes cut]"));
        assert_eq!(truncate_text(short.clone(), MAX_LOG_LINE_BYTES), short);
    }
}
