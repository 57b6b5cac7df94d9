//! Occurrences and their logs.

use chrono::{DateTime, Utc};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::{IngestResult, LogLine, NewOccurrence, RunProgress},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::StatusName;
use crate::{
    page::TimeWindow,
    views::{OccurrenceRow, OccurrenceView, StatusChange, TriggerSource},
};

/// The filter of the list of occurrences.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct OccurrenceQuery {
    /// Only occurrences of this job.
    pub job_id: Option<JobId>,
    /// Only occurrences with this status.
    pub status: Option<StatusName>,
    /// Only occurrences that are delayed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub delayed: bool,
    /// Only occurrences that this one has enqueued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<OccurrenceId>,
    /// Only occurrences that are open or ended in this window.
    pub window: Option<TimeWindow>,
    /// The earliest time of creation.
    pub since: Option<DateTime<Utc>>,
    /// The cursor: the `next` of the previous page. Only occurrences older than this id are returned.
    pub before: Option<OccurrenceId>,
    /// The maximum number of items; 50 without it.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 200)))]
    pub limit: Option<u32>,
}

/// An occurrence in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Occurrence {
    /// The id.
    pub id: OccurrenceId,
    /// The id of the job.
    pub job_id: JobId,
    /// The name of the job at the time of creation.
    pub job_name: String,
    /// The status.
    pub status: StatusName,
    /// The version, which each change increments.
    pub version: i32,
    /// The trigger.
    pub trigger: TriggerSource,
    /// The latest attempt, counted from 1.
    pub attempt: i32,
    /// The due time.
    pub scheduled_for: DateTime<Utc>,
    /// The time until which it is delayed: by the program that enqueued it, for a retry, or by a delay that the job asked for.
    pub delayed_until: Option<DateTime<Utc>>,
    /// The start of the latest attempt.
    pub started_at: Option<DateTime<Utc>>,
    /// The end.
    pub ended_at: Option<DateTime<Utc>>,
    /// The duration of the latest attempt, in milliseconds.
    pub duration_ms: Option<i64>,
    /// The worker instance of the latest attempt.
    pub instance_id: Option<String>,
    /// The progress.
    pub progress: Option<RunProgress>,
    /// The first line of the exception, or the reason of a skip.
    pub note: Option<String>,
    /// The time at which a user requested the cancellation.
    pub cancel_requested_at: Option<DateTime<Utc>>,
}

impl From<OccurrenceRow> for Occurrence {
    fn from(row: OccurrenceRow) -> Self {
        Self {
            id: row.id,
            job_id: row.job_id,
            job_name: row.job_name,
            status: row.status.into(),
            version: row.version,
            trigger: row.trigger,
            attempt: row.attempt,
            scheduled_for: row.scheduled_for,
            delayed_until: row.waits_until,
            started_at: row.started_at,
            ended_at: row.ended_at,
            duration_ms: row.duration_ms,
            instance_id: row.instance_id,
            progress: row.progress,
            note: row.note,
            cancel_requested_at: row.cancel_requested_at,
        }
    }
}

/// A status change of an occurrence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StatusChangeEntry {
    /// The new status.
    pub status: StatusName,
    /// The time of the change.
    pub at: DateTime<Utc>,
    /// The attempt, counted from 1.
    pub attempt: i32,
    /// The instance or the user that caused the change.
    pub by: Option<String>,
    /// Details.
    pub note: Option<String>,
}

impl From<StatusChange> for StatusChangeEntry {
    fn from(change: StatusChange) -> Self {
        Self { status: change.status.into(), at: change.at, attempt: change.attempt, by: change.by, note: change.note }
    }
}

/// An occurrence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OccurrenceDetail {
    /// The occurrence as in the list.
    #[serde(flatten)]
    pub summary: Occurrence,
    /// The worker to which it is addressed.
    pub worker_id: String,
    /// The job type to run.
    pub job_type: String,
    /// The version of the job's definition that it uses.
    pub job_version: i32,
    /// The input.
    pub input: Value,
    /// The user who ran it manually.
    pub triggered_by: Option<String>,
    /// The API token of the request that created it, as its name and the last characters of its secret.
    #[serde(default)]
    pub trigger_token: Option<String>,
    /// The reason that the user gave, or the misfires that the occurrence covers as well.
    pub trigger_reason: Option<String>,
    /// The failed occurrence that it retries.
    pub retry_of: Option<OccurrenceId>,
    /// The occurrence that enqueued it.
    #[serde(default)]
    pub parent_id: Option<OccurrenceId>,
    /// The id of its trace, 32 hexadecimal digits.
    pub trace_id: String,
    /// The address of its trace in a viewer, if the server has the setting `TRACE_URL_TEMPLATE`.
    pub trace_url: Option<String>,
    /// The time at which the broker confirmed its message.
    pub published_at: Option<DateTime<Utc>>,
    /// True while it waits for a slot, because of a concurrency limit or an earlier occurrence.
    pub waits_for_slot: bool,
    /// The return value of the job.
    pub result: Option<String>,
    /// The error.
    pub exception: Option<String>,
    /// The status changes so far, oldest first.
    pub changes: Vec<StatusChangeEntry>,
    /// True if the job still exists.
    pub job_exists: bool,
    /// True if a live worker offers its job type.
    pub worker_alive: bool,
    /// True if the instance of the latest attempt is alive.
    pub instance_alive: bool,
    /// True if that instance is alive and sends nothing over RabbitMQ.
    pub instance_unreachable: bool,
    /// True if its timeout has passed for so long that the worker should have ended it.
    pub is_overdue: bool,
}

impl From<OccurrenceView> for OccurrenceDetail {
    fn from(view: OccurrenceView) -> Self {
        Self {
            summary: view.row.into(),
            worker_id: view.worker_id,
            job_type: view.job_type,
            job_version: view.job_version,
            input: view.job_data,
            triggered_by: view.triggered_by,
            trigger_token: view.trigger_token,
            trigger_reason: view.trigger_reason,
            retry_of: view.repeats,
            parent_id: view.parent_id,
            trace_id: view.trace_id,
            trace_url: view.trace_url,
            published_at: view.published_at,
            waits_for_slot: view.is_held,
            result: view.result,
            exception: view.exception,
            changes: view.changes.into_iter().map(Into::into).collect(),
            job_exists: view.job_exists,
            worker_alive: view.worker_alive,
            instance_alive: view.instance_alive,
            instance_unreachable: view.instance_unreachable,
            is_overdue: view.is_overdue,
        }
    }
}

/// The range of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct LogQuery {
    /// Only lines with a higher sequence number: the oldest of them come first. Without `after`, the newest lines are
    /// returned.
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub after: Option<i64>,
    /// Only lines with a lower sequence number.
    #[cfg_attr(feature = "schema", schemars(range(min = 0)))]
    pub before: Option<i64>,
}

/// A part of a log: at most 500 lines, oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct LogPage {
    /// The lines.
    pub lines: Vec<LogLine>,
    /// The status of the occurrence, read before the lines: once it is final, a page without lines is the end.
    pub status: StatusName,
}

/// A request to cancel an occurrence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct CancelOccurrence {
    /// The reason, at most 500 characters.
    #[cfg_attr(feature = "schema", schemars(length(max = 500)))]
    pub reason: String,
}

/// A request to cancel the delayed occurrences of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct CancelDelayed {
    /// The reason, at most 500 characters.
    #[cfg_attr(feature = "schema", schemars(length(max = 500)))]
    pub reason: String,
}

/// The result of cancelling the delayed occurrences of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CancelDelayedResult {
    /// The number of occurrences that this request cancelled.
    pub cancelled: u32,
    /// True if more of them may be delayed: repeat the request.
    pub more: bool,
}

/// A request to create occurrences.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct EnqueueOccurrences {
    /// The occurrences, 1 to 500.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 500)))]
    pub occurrences: Vec<EnqueueOccurrence>,
}

/// An occurrence to create. It names a job, or a worker and one of its job types. A value out of its bounds is a result and
/// fails no other occurrence.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct EnqueueOccurrence {
    /// The id, a UUIDv7 that is at most seven days old; an id that was accepted before creates nothing. Without one, the server
    /// makes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<OccurrenceId>,
    /// The key of the job to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_key: Option<String>,
    /// The worker whose job type runs, if no job is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// The job type to run, if no job is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_type: Option<String>,
    /// The input, at most 64 KiB. Without one, the input of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// The time before which the occurrence does not start, at most 366 days ahead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<DateTime<Utc>>,
    /// The priority, from 1 (idle) to 5 (critical). Without one, that of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// The uniqueness key, at most 200 characters: nothing is created while an occurrence of the same job with the same key is
    /// open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uniqueness_key: Option<String>,
    /// The time for which the key applies after the creation even if the occurrence has ended, in seconds, at most 30 days.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique_for_seconds: Option<u32>,
    /// The occurrence that creates this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<OccurrenceId>,
    /// The position in a trace that the occurrence continues, as a `traceparent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

impl EnqueueOccurrence {
    /// Returns the new occurrence with the id `made` if the request has none.
    #[must_use]
    pub fn into_new(self, made: OccurrenceId) -> NewOccurrence {
        NewOccurrence {
            id: self.id.unwrap_or(made),
            job_key: self.job_key,
            worker_id: self.worker_id,
            job_type: self.job_type,
            input: self.input,
            not_before: self.not_before,
            priority: self.priority,
            uniqueness_key: self.uniqueness_key,
            unique_for_seconds: self.unique_for_seconds,
            parent_id: self.parent_id,
            traceparent: self.traceparent,
        }
    }
}

impl From<NewOccurrence> for EnqueueOccurrence {
    fn from(new: NewOccurrence) -> Self {
        Self {
            id: Some(new.id),
            job_key: new.job_key,
            worker_id: new.worker_id,
            job_type: new.job_type,
            input: new.input,
            not_before: new.not_before,
            priority: new.priority,
            uniqueness_key: new.uniqueness_key,
            unique_for_seconds: new.unique_for_seconds,
            parent_id: new.parent_id,
            traceparent: new.traceparent,
        }
    }
}

/// The results of a request to create occurrences, one for each in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EnqueueResults {
    /// The results.
    pub results: Vec<IngestResult>,
}

/// A request to retry a failed occurrence as a new one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct RetryOccurrence {
    /// The input of the retry; without it, the input that failed. At most 64 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// The reason, at most 500 characters.
    #[cfg_attr(feature = "schema", schemars(length(max = 500)))]
    pub reason: String,
    /// True to retry a failure that was retried before.
    pub force: bool,
}
