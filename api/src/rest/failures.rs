//! Failures and dead letters.

use chrono::{DateTime, Utc};
use milvaion_protocol::id::{DeadLetterId, JobId, OccurrenceId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::StatusName;
use crate::failures::{DeadLetterRow, FailureCause, FailureSelection, RetryFailuresResult};

/// The filter of the list of failures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct FailureQuery {
    /// Only resolved or only open failures.
    pub resolved: Option<bool>,
    /// Only failures of this job.
    pub job_id: Option<JobId>,
    /// Only failures with this fingerprint.
    #[cfg_attr(feature = "schema", schemars(length(max = 100)))]
    pub fingerprint: Option<String>,
    /// Only failures with this cause.
    pub cause: Option<FailureCause>,
    /// A text that must occur in the job's name or in the exception: at most 200 characters and 8 words.
    #[cfg_attr(feature = "schema", schemars(length(max = 200)))]
    pub text: Option<String>,
    /// The earliest time of the failure.
    pub since: Option<DateTime<Utc>>,
    /// The cursor: the `next` of the previous page.
    #[cfg_attr(feature = "schema", schemars(length(max = 1_000)))]
    pub after: Option<String>,
    /// The maximum number of items; 50 without it.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 200)))]
    pub limit: Option<u32>,
}

/// A request to retry failures, each as a new occurrence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RetryFailures {
    /// The failures.
    pub selection: FailureSelection,
    /// The number of failures that the caller expects a filter to match; needed with a filter. If it matches over a tenth
    /// more, nothing is changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<u32>,
    /// The reason, at most 500 characters.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 500)))]
    pub reason: String,
}

/// A request to resolve failures with a note.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResolveFailures {
    /// The failures.
    pub selection: FailureSelection,
    /// The number of failures that the caller expects a filter to match; needed with a filter. If it matches over a tenth
    /// more, nothing is changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<u32>,
    /// The note, at most 2,000 characters.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 2_000)))]
    pub note: String,
}

/// The result of an action on many objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BulkResult {
    /// The number of objects that the action changed.
    pub done: usize,
    /// The number of requested objects that it left as they were.
    pub skipped: usize,
    /// The reason for which objects are skipped.
    pub skip_reason: Option<String>,
    /// True if the filter matches more objects than one request changes. Repeat the request for the rest.
    pub more: bool,
}

/// The result of retrying failures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RetryResult {
    /// The numbers.
    #[serde(flatten)]
    pub result: BulkResult,
    /// The retried failures.
    pub retried: Vec<RetriedFailure>,
}

/// A failed occurrence with the one that retries it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RetriedFailure {
    /// The failed occurrence.
    pub failed: OccurrenceId,
    /// The new occurrence.
    pub occurrence: OccurrenceId,
}

impl From<RetryFailuresResult> for RetryResult {
    fn from(result: RetryFailuresResult) -> Self {
        let skip_reason =
            "retried before, of a deleted job, with a uniqueness key that another occurrence has, or not a failure";
        Self {
            result: BulkResult {
                done: result.made.len(),
                skipped: result.left,
                skip_reason: (result.left > 0).then(|| skip_reason.to_owned()),
                more: result.more,
            },
            retried: result
                .made
                .into_iter()
                .map(|(failed, occurrence)| RetriedFailure { failed, occurrence })
                .collect(),
        }
    }
}

/// The filter of the list of dead letters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct DeadLetterQuery {
    /// Only resolved or only open dead letters.
    pub resolved: Option<bool>,
    /// The cursor: the `next` of the previous page.
    pub before: Option<DeadLetterId>,
    /// The maximum number of items; 50 without it.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 200)))]
    pub limit: Option<u32>,
}

/// A message from the dead letter queue that belongs to no known occurrence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DeadLetter {
    /// The id.
    pub id: DeadLetterId,
    /// The time at which it was first received.
    pub received_at: DateTime<Utc>,
    /// The reason why it was dead-lettered.
    pub reason: String,
    /// The queue it came from, or the exchange it was sent to.
    pub source: String,
    /// The headers.
    pub headers: Value,
    /// The occurrence that the headers or the body name, whether it exists or not.
    pub occurrence_id: Option<OccurrenceId>,
    /// The present status of that occurrence; null if it does not exist.
    pub occurrence_status: Option<StatusName>,
    /// The start of the body as text. Bytes that are not text are replaced.
    pub body: String,
    /// The size of the body, in bytes.
    pub body_bytes: i64,
    /// The number of times the same message was received.
    pub copies: i32,
    /// The time of the resolution; null while the dead letter is open.
    pub resolved_at: Option<DateTime<Utc>>,
    /// The user who resolved it.
    pub resolved_by: Option<String>,
    /// The note of that user.
    pub resolution_note: Option<String>,
}

impl From<DeadLetterRow> for DeadLetter {
    fn from(row: DeadLetterRow) -> Self {
        Self {
            id: row.id,
            received_at: row.received_at,
            reason: row.reason,
            source: row.source,
            headers: row.headers,
            occurrence_id: row.occurrence_id,
            occurrence_status: row.occurrence_status.map(Into::into),
            body: row.body,
            body_bytes: row.body_bytes,
            copies: row.copies,
            resolved_at: row.resolved_at,
            resolved_by: row.resolved_by,
            resolution_note: row.resolution_note,
        }
    }
}

/// A request to resolve dead letters with a note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResolveDeadLetters {
    /// The dead letters, 1 to 1,000.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1_000)))]
    pub ids: Vec<DeadLetterId>,
    /// The note, at most 2,000 characters.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 2_000)))]
    pub note: String,
}
