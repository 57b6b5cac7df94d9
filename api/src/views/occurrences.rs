//! The views of occurrences.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::{LogLine, RunProgress},
    status::OccurrenceStatus,
};

/// The trigger of an occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum TriggerSource {
    /// A due time of the schedule.
    Schedule,
    /// A manual run by a user.
    Manual,
    /// A manual run by a script.
    Api,
    /// A retry of a failed occurrence.
    Retry,
    /// A program or another occurrence that enqueued it.
    Enqueue,
}

impl TriggerSource {
    /// Returns the word in the database and for display.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::Manual => "manual",
            Self::Api => "api",
            Self::Retry => "retry",
            Self::Enqueue => "enqueue",
        }
    }

    /// Returns the trigger of an [`as_str`](Self::as_str) word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Schedule, Self::Manual, Self::Api, Self::Retry, Self::Enqueue]
            .into_iter()
            .find(|trigger| trigger.as_str() == word)
    }
}

/// An occurrence in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OccurrenceRow {
    /// The id.
    pub id: OccurrenceId,
    /// The id of the job.
    pub job_id: JobId,
    /// The name of the job at the time of creation.
    pub job_name: String,
    /// The status.
    pub status: OccurrenceStatus,
    /// The version, which each change increments. A row with a lower version is older.
    pub version: i32,
    /// The trigger.
    pub trigger: TriggerSource,
    /// The latest attempt, counted from 1.
    pub attempt: i32,
    /// The due time.
    pub scheduled_for: DateTime<Utc>,
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
    /// The time until which a queued occurrence is delayed: by the program that enqueued it, for a retry, or by a delay that
    /// the job asked for.
    #[serde(default)]
    pub waits_until: Option<DateTime<Utc>>,
    /// The time at which a user requested the cancellation of the run. The status changes when its worker ends the run.
    #[serde(default)]
    pub cancel_requested_at: Option<DateTime<Utc>>,
}

impl OccurrenceRow {
    /// Returns true from the cancel request until the occurrence ends.
    #[must_use]
    pub const fn is_cancelling(&self) -> bool {
        self.cancel_requested_at.is_some() && !self.status.is_final()
    }
}

/// A status change in the history of an occurrence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusChange {
    /// The new status.
    pub status: OccurrenceStatus,
    /// The time of the change.
    pub at: DateTime<Utc>,
    /// The attempt, counted from 1.
    pub attempt: i32,
    /// The instance or the user that caused the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Details.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// An occurrence on its own page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OccurrenceView {
    /// The occurrence as in the list.
    pub row: OccurrenceRow,
    /// The worker to which it is addressed.
    pub worker_id: String,
    /// The job type to run.
    pub job_type: String,
    /// The version of the job's definition that it uses.
    pub job_version: i32,
    /// The input.
    pub job_data: Value,
    /// The user who ran it manually.
    pub triggered_by: Option<String>,
    /// The API token of the request that created it, as its name and the last characters of its secret.
    #[serde(default)]
    pub trigger_token: Option<String>,
    /// The reason that the user gave, or the misfires that the occurrence covers as well.
    pub trigger_reason: Option<String>,
    /// The failed occurrence that it retries.
    #[serde(default)]
    pub repeats: Option<OccurrenceId>,
    /// The occurrence that enqueued it.
    #[serde(default)]
    pub parent_id: Option<OccurrenceId>,
    /// The newest 50 occurrences that it has enqueued.
    #[serde(default)]
    pub children: Vec<OccurrenceRow>,
    /// True if it has enqueued more than those.
    #[serde(default)]
    pub has_more_children: bool,
    /// The id of its trace, 32 hexadecimal digits.
    #[serde(default)]
    pub trace_id: String,
    /// The address of its trace in a viewer, if the server knows one.
    #[serde(default)]
    pub trace_url: Option<String>,
    /// The time at which the broker confirmed its message.
    pub published_at: Option<DateTime<Utc>>,
    /// True while it is queued and waits for a slot, because of a concurrency limit or an earlier occurrence.
    #[serde(default)]
    pub is_held: bool,
    /// The return value of the job.
    pub result: Option<String>,
    /// The error.
    pub exception: Option<String>,
    /// The status changes so far, oldest first.
    pub changes: Vec<StatusChange>,
    /// The newest log lines of the requested range, oldest first.
    pub log: Vec<LogLine>,
    /// True if the requested range has earlier log lines.
    pub log_has_earlier: bool,
    /// The number of these earlier lines, if the request named the start of the range; otherwise 0.
    #[serde(default)]
    pub log_skipped: i64,
    /// True if the job still exists.
    pub job_exists: bool,
    /// True if a live worker offers its job type.
    pub worker_alive: bool,
    /// True if the instance of the latest attempt is alive.
    #[serde(default)]
    pub instance_alive: bool,
    /// True if that instance is alive by its heartbeat in Redis and sends none over RabbitMQ.
    #[serde(default)]
    pub instance_unreachable: bool,
    /// True if the timeout of its run has passed for so long that the worker should have ended it.
    #[serde(default)]
    pub is_overdue: bool,
}
