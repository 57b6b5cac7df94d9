//! The status reports of a worker, and the body that carries one or more of them.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{id::OccurrenceId, status::OccurrenceStatus};

/// Worker → server: the status of an attempt.
///
/// A worker reports Running and then one end. Completed, Cancelled and a permanent Failed are final. Any other Failed
/// and TimedOut are final only if no retry is left; otherwise the server queues the next attempt after the job's
/// backoff. Queued means that the attempt was handed back without a failure, because the worker stops or the job asked
/// for a delay; the next attempt does not count as a retry. Unknown means that the attempt was lost with its process
/// and that the next process found it; the server handles it like a run whose heartbeats stopped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    /// The occurrence.
    pub occurrence_id: OccurrenceId,
    /// The attempt. A report about an older attempt is ignored.
    #[serde(default = "crate::lenient::one", deserialize_with = "crate::lenient::attempt")]
    pub attempt: u32,
    /// The instance that reports.
    pub instance_id: String,
    /// The new status.
    pub status: OccurrenceStatus,
    /// The instant of the change, by the worker's clock.
    pub timestamp: DateTime<Utc>,
    /// The return value of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// The error, for display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exception: Option<String>,
    /// The duration of the attempt, in milliseconds, by a monotonic clock. A fraction is rounded.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::lenient::rounded")]
    pub duration_ms: Option<u64>,
    /// The progress of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<RunProgress>,
    /// True if a retry is useless, with Failed. No retry follows, even if some are left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not", deserialize_with = "crate::lenient::or_default")]
    pub permanent: bool,
    /// The minimum delay before the next attempt, in milliseconds from now. With Failed and TimedOut it replaces the
    /// job's backoff if a retry is left. With Queued it is the delay that the hand-back asked for; none means no delay. A
    /// fraction is rounded.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::lenient::rounded")]
    pub retry_after_ms: Option<u64>,
    /// The span of the attempt, as the `traceparent` of the W3C Trace Context. A worker that records no span repeats that of
    /// the job message. It belongs in the reports of a start and of an end. A malformed one is ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The checkpoint: a value, at most 32 KiB of JSON, that the next attempt of the occurrence receives. A newer checkpoint
    /// replaces an older one. It may be in any report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Value>,
    /// True if the reader has left out the time, the progress or the checkpoint, because it could not be read or stored.
    /// It is not in the message.
    #[serde(skip)]
    pub is_incomplete: bool,
}

impl StatusReport {
    /// Builds a report with a status and no other details.
    #[must_use]
    pub fn new(
        occurrence_id: OccurrenceId,
        attempt: u32,
        instance_id: impl Into<String>,
        status: OccurrenceStatus,
        timestamp: DateTime<Utc>,
    ) -> Self {
        Self {
            occurrence_id,
            attempt,
            instance_id: instance_id.into(),
            status,
            timestamp,
            result: None,
            exception: None,
            duration_ms: None,
            progress: None,
            permanent: false,
            retry_after_ms: None,
            traceparent: None,
            checkpoint: None,
            is_incomplete: false,
        }
    }

    /// Returns true if this is the report of a start. A report Running with progress or with a checkpoint is sent during the
    /// run, as often as the job sets one. Of an incomplete report it is unknown, so it is not taken for a start.
    #[must_use]
    pub const fn is_start(&self) -> bool {
        matches!(self.status, OccurrenceStatus::Running)
            && self.progress.is_none()
            && self.checkpoint.is_none()
            && !self.is_incomplete
    }
}

/// The progress of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RunProgress {
    /// The percentage, from 0 to 100. A fraction is rounded, and a number outside is taken as the nearest of the two.
    #[serde(deserialize_with = "crate::lenient::percent")]
    pub percent: u8,
    /// The current step.
    #[serde(default, deserialize_with = "crate::lenient::or_default")]
    pub message: String,
}

/// Worker → server, the body on the status queue: reports in the order in which they happened. A single report without
/// the list is accepted too, so that a small worker need not batch.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum StatusMessage {
    /// A batch of reports.
    Batch {
        /// The reports, oldest first.
        reports: Vec<StatusReport>,
    },
    /// A single report.
    One(Box<StatusReport>),
}

impl StatusMessage {
    /// Returns the reports, oldest first.
    #[must_use]
    pub fn into_reports(self) -> Vec<StatusReport> {
        match self {
            Self::Batch { reports } => reports,
            Self::One(report) => vec![*report],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_report_is_a_batch_of_one() {
        let json = r#"{"occurrenceId":"0190a0a0-0000-7000-8000-000000000000","instanceId":"w-1","status":2,"timestamp":"2026-11-21T00:00:00Z"}"#;
        let reports = serde_json::from_str::<StatusMessage>(json).expect("valid JSON").into_reports();
        assert_eq!(reports.len(), 1);
        assert_eq!(reports[0].attempt, 1);
        assert_eq!(reports[0].status, OccurrenceStatus::Completed);
    }
}
