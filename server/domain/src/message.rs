//! The job message for an occurrence. It is built in one place, so that a first message, a republished message and a
//! manual run carry the same content.

use chrono::{DateTime, Utc};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::{CancelMessage, JobMessage},
    trace::trace_id_text,
};
use serde_json::Value;

/// The key under which the message id of a dead letter is kept among its headers. It is a property of the message and no
/// header, but it may name the occurrence of a message whose body is unreadable.
pub const MESSAGE_ID_KEY: &str = "message-id";

/// What the message of a queued occurrence needs, whichever statement returned it: the one that created it, granted it a
/// slot, ended its delay or found it unsent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueuedRun {
    /// The occurrence.
    pub id: OccurrenceId,
    /// Its job.
    pub job_id: JobId,
    /// The display name of its job.
    pub job_name: String,
    /// The worker it is addressed to.
    pub worker_id: String,
    /// The job type it runs.
    pub job_type: String,
    /// Its input.
    pub job_data: Value,
    /// Its due time.
    pub scheduled_for: DateTime<Utc>,
    /// The attempt in force, from 1.
    pub attempt: i32,
    /// Number of failed attempts. Lost or handed-back attempts do not count.
    pub failures: i16,
    /// Maximum number of retries after failures.
    pub max_retries: i16,
    /// Priority, from 1 (idle) to 5 (critical).
    pub priority: i16,
    /// Run timeout in seconds; none means the job type's default.
    pub timeout_seconds: Option<i32>,
    /// Position in the trace that it continues; none for a trace of its own.
    pub traceparent: Option<String>,
    /// The occurrence that enqueued it.
    pub parent_id: Option<OccurrenceId>,
    /// The last checkpoint of an earlier attempt.
    pub checkpoint: Option<Value>,
    /// True while it waits for a slot or is delayed: its message must not be sent yet.
    pub is_held: bool,
    /// True if its message may have been sent before, so that the worker must check the claim first.
    pub may_be_sent: bool,
}

/// A run whose message the broker has confirmed. If the occurrence is in a later attempt by now, that attempt has a message
/// of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfirmedMessage {
    /// The occurrence.
    pub id: OccurrenceId,
    /// The attempt.
    pub attempt: i32,
    /// True if it is in the queue of critical runs.
    pub is_critical: bool,
}

/// Returns the number that a stored attempt has in messages: at least 1.
#[must_use]
pub fn attempt_number(stored: i32) -> u32 {
    u32::try_from(stored).unwrap_or(1).max(1)
}

/// Builds the request to end a stored attempt and earlier ones.
#[must_use]
pub fn cancel_message(occurrence_id: OccurrenceId, attempt: i32, reason: String) -> CancelMessage {
    CancelMessage { occurrence_id, attempt: Some(attempt_number(attempt)), reason }
}

/// Builds the message at `now`.
#[must_use]
pub fn message(queued: QueuedRun, now: DateTime<Utc>) -> JobMessage {
    let attempt = attempt_number(queued.attempt);
    JobMessage {
        occurrence_id: queued.id,
        job_id: queued.job_id,
        job_name: queued.job_name,
        job_type: queued.job_type,
        job_data: queued.job_data,
        correlation_id: queued.id,
        scheduled_for: queued.scheduled_for,
        timestamp: now,
        attempt,
        retry_count: u32::try_from(queued.failures).unwrap_or(0),
        max_retries: u32::try_from(queued.max_retries).unwrap_or(0),
        timeout_seconds: queued.timeout_seconds.and_then(|s| u32::try_from(s).ok()),
        priority: u8::try_from(queued.priority).unwrap_or(3),
        traceparent: queued.traceparent,
        checkpoint: queued.checkpoint,
        parent_id: queued.parent_id,
    }
}

/// Returns the id of the trace to which a message belongs.
#[must_use]
pub fn trace_id(message: &JobMessage) -> String {
    trace_id_text(message.occurrence_id, message.traceparent.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_attempt_is_not_a_retry() {
        let now = DateTime::UNIX_EPOCH;
        let queued = QueuedRun {
            attempt: 3,
            failures: 1,
            max_retries: 5,
            priority: 1,
            timeout_seconds: Some(9),
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
            checkpoint: Some(Value::from(7)),
            ..QueuedRun::default()
        };
        let message = message(queued, now);
        assert_eq!((message.attempt, message.retry_count, message.max_retries), (3, 1, 5));
        assert_eq!((message.priority, message.timeout_seconds), (1, Some(9)));
        assert!(message.traceparent.is_some(), "a later attempt continues the trace");
        assert_eq!(message.checkpoint, Some(Value::from(7)));
    }
}
