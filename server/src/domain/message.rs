//! What a worker is told about an occurrence: one place, so that a first copy, a second copy and a run by hand say the
//! same.

use chrono::{DateTime, Utc};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::JobMessage,
};
use serde_json::Value;

/// A queued occurrence, as far as its message is concerned.
#[derive(Clone, Debug)]
pub struct QueuedOccurrence {
    /// Which.
    pub id: OccurrenceId,
    /// Of which job.
    pub job_id: JobId,
    /// That job's name.
    pub job_name: String,
    /// Whom it is addressed to.
    pub worker_id: String,
    /// What it runs.
    pub job_type: String,
    /// Its input.
    pub job_data: Value,
    /// When it was due.
    pub scheduled_for: DateTime<Utc>,
    /// The attempt in force, from 1.
    pub attempt: i32,
    /// How many attempts have failed.
    pub failures: i16,
    /// How many failures may be followed by another attempt.
    pub max_retries: i16,
    /// 1 to 5.
    pub priority: i16,
    /// After how many seconds a run is ended.
    pub timeout_seconds: Option<i32>,
}

/// The message, made at `now`.
#[must_use]
pub fn message(queued: QueuedOccurrence, now: DateTime<Utc>) -> JobMessage {
    let attempt = u32::try_from(queued.attempt).unwrap_or(1).max(1);
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
        traceparent: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_that_was_lost_is_no_retry() {
        let now = DateTime::UNIX_EPOCH;
        let queued = QueuedOccurrence {
            id: OccurrenceId::default(),
            job_id: JobId::default(),
            job_name: "x".into(),
            worker_id: "w".into(),
            job_type: "t".into(),
            job_data: Value::Null,
            scheduled_for: now,
            attempt: 3,
            failures: 1,
            max_retries: 5,
            priority: 1,
            timeout_seconds: Some(9),
        };
        let message = message(queued, now);
        assert_eq!((message.attempt, message.retry_count, message.max_retries), (3, 1, 5));
        assert_eq!((message.priority, message.timeout_seconds), (1, Some(9)));
    }
}
