//! Failures, and dead letters that belong to no known occurrence.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use milvaion_protocol::{
    id::{DeadLetterId, JobId, OccurrenceId},
    status::OccurrenceStatus,
};

/// The maximum number of failures that one resolve or retry request changes.
pub const MAX_FAILURE_SELECTION: usize = 1_000;
/// The maximum length of a resolution note, in characters.
pub const MAX_RESOLUTION_NOTE_CHARS: usize = 2_000;
/// The maximum count of open failures. Pages show a larger number as "10,000+".
pub const MAX_COUNTED_FAILURES: i64 = 10_000;
/// The number of failures shown as samples of a selection.
pub const FAILURE_SAMPLES: u32 = 5;
/// The maximum length of a search text, in characters.
pub const MAX_FAILURE_TEXT_CHARS: usize = 200;
/// The maximum number of words in a search text. All of them must occur.
pub const MAX_FAILURE_TEXT_WORDS: usize = 8;
/// The maximum age of failures in the list of groups, in days. The group of a single fingerprint has no such limit.
pub const MAX_FAILURE_GROUP_DAYS: i64 = 180;

/// The reason why an occurrence counts as failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FailureCause {
    /// The only attempt failed.
    Failed,
    /// The job reported that a retry is useless.
    Permanent,
    /// All attempts failed.
    Exhausted,
    /// The attempt exceeded its timeout.
    TimedOut,
    /// A worker could not read the message.
    Rejected,
    /// A poison run: its attempts crashed the worker's process repeatedly.
    Poison,
    /// The run was lost, and the job's policy is not to run it again.
    Lost,
}

impl FailureCause {
    /// All causes.
    pub const ALL: [Self; 7] =
        [Self::Failed, Self::Permanent, Self::Exhausted, Self::TimedOut, Self::Rejected, Self::Poison, Self::Lost];

    /// Returns the word in the database, on the wire and in filters.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Permanent => "permanent",
            Self::Exhausted => "exhausted",
            Self::TimedOut => "timed_out",
            Self::Rejected => "rejected",
            Self::Poison => "poison",
            Self::Lost => "lost",
        }
    }

    /// Returns the cause of an [`as_str`](Self::as_str) word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.as_str() == word)
    }
}

/// A failed occurrence in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FailureRow {
    /// The failed occurrence.
    pub occurrence_id: OccurrenceId,
    /// Its job.
    pub job_id: JobId,
    /// The name of the job at that time.
    pub job_name: String,
    /// The version of the job's definition that the occurrence used.
    pub job_version: i32,
    /// The worker to which it was addressed.
    pub worker_id: String,
    /// The job type that it ran.
    pub job_type: String,
    /// The last attempt, counted from 1.
    pub attempt: i32,
    /// The time of the failure.
    pub failed_at: DateTime<Utc>,
    /// The reason why it counts as failed.
    pub cause: FailureCause,
    /// The error.
    pub exception: Option<String>,
    /// The fingerprint, equal for failures of the same kind.
    pub fingerprint: String,
    /// The input.
    pub job_data: Value,
    /// The time of the resolution; none while the failure is open.
    pub resolved_at: Option<DateTime<Utc>>,
    /// The user who resolved it.
    pub resolved_by: Option<String>,
    /// The note of that user.
    pub resolution_note: Option<String>,
    /// The action that resolved it: `resolve` or `retry`.
    pub resolution_action: Option<String>,
    /// The occurrence that retries it.
    pub retried_as: Option<OccurrenceId>,
}

impl FailureRow {
    /// Returns the cursor of the page after this row: the value for [`FailureFilter::after`].
    #[must_use]
    pub fn cursor(&self) -> String {
        format!("{}~{}", self.failed_at.timestamp_micros(), self.occurrence_id)
    }
}

/// A filter for failures. All given conditions must match. A condition with an unknown name is refused, because a filter
/// without it would match more than was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct FailureFilter {
    /// Only resolved or only open failures.
    pub resolved: Option<bool>,
    /// Only failures of this job.
    pub job_id: Option<JobId>,
    /// Only failures with this fingerprint.
    pub fingerprint: Option<String>,
    /// Only failures with this cause.
    pub cause: Option<FailureCause>,
    /// A text that must occur in the job's name or in the exception.
    pub text: Option<String>,
    /// The earliest time of the failure.
    pub since: Option<DateTime<Utc>>,
    /// The cursor: only failures after this one, in the order of the list. It is the `next` of the previous page.
    /// Failures and their groups have different cursors.
    pub after: Option<String>,
    /// The maximum number of rows, at most [`crate::page::MAX_PAGE_ROWS`]; 0 means 50.
    pub limit: u32,
}

impl FailureFilter {
    /// Returns true if [`text`](Self::text) can be searched: a longer one would be searched only in part.
    #[must_use]
    pub fn has_valid_text(&self) -> bool {
        self.text.as_deref().is_none_or(|text| {
            text.chars().count() <= MAX_FAILURE_TEXT_CHARS && text.split_whitespace().count() <= MAX_FAILURE_TEXT_WORDS
        })
    }

    /// Parses [`after`](Self::after) as the cursor of a failure: its time and its occurrence.
    #[must_use]
    pub fn cursor(&self) -> Option<(DateTime<Utc>, OccurrenceId)> {
        let (at, id) = self.after.as_deref()?.split_once('~')?;
        Some((DateTime::from_timestamp_micros(at.parse().ok()?)?, id.parse().ok()?))
    }

    /// Parses [`after`](Self::after) as the cursor of a group: its count, the time of its newest failure, its
    /// fingerprint.
    #[must_use]
    pub fn group_cursor(&self) -> Option<(i64, DateTime<Utc>, &str)> {
        let mut parts = self.after.as_deref()?.splitn(3, '~');
        let count = parts.next()?.parse().ok()?;
        let at = DateTime::from_timestamp_micros(parts.next()?.parse().ok()?)?;
        Some((count, at, parts.next()?))
    }
}

/// The failures that a request changes, at most [`MAX_FAILURE_SELECTION`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum FailureSelection {
    /// The failures of these occurrences.
    Ids(Vec<OccurrenceId>),
    /// The open failures that match a filter, newest first. The filter needs a fingerprint, a job, a cause or a text;
    /// its `limit` and `after` are ignored.
    Filter(FailureFilter),
}

/// The open failures that match a filter, as a dialog shows them before it changes all of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureScopePreview {
    /// The number of failures, counted up to [`MAX_COUNTED_FAILURES`].
    pub count: i64,
    /// The newest of them, at most [`FAILURE_SAMPLES`], without their inputs.
    pub samples: Vec<FailureRow>,
}

/// The failures with one fingerprint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FailureGroup {
    /// The fingerprint.
    pub fingerprint: String,
    /// The number of failures.
    pub count: i64,
    /// The number of open failures.
    pub open: i64,
    /// The number of jobs with such failures.
    pub jobs: i64,
    /// The time of the oldest failure.
    pub first_at: DateTime<Utc>,
    /// The time of the newest failure.
    pub last_at: DateTime<Utc>,
    /// The occurrence of the newest failure.
    pub occurrence_id: OccurrenceId,
    /// The job of the newest failure.
    pub job_id: JobId,
    /// The name of that job.
    pub job_name: String,
    /// The cause of the newest failure.
    pub cause: FailureCause,
    /// The first line of the newest failure's exception.
    pub note: String,
}

impl FailureGroup {
    /// Returns the cursor of the page after this group: the value for [`FailureFilter::after`].
    #[must_use]
    pub fn cursor(&self) -> String {
        format!("{}~{}~{}", self.count, self.last_at.timestamp_micros(), self.fingerprint)
    }
}

/// The result of resolving failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolveFailuresResult {
    /// The number of failures that were open and are now resolved.
    pub count: usize,
    /// The number of requested failures that were not changed: resolved before, or not a failure.
    pub left: usize,
    /// True if the filter matches more failures than one request changes.
    pub more: bool,
}

/// The result of retrying failures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RetryFailuresResult {
    /// The retried failures: each failed occurrence with the new one.
    pub made: Vec<(OccurrenceId, OccurrenceId)>,
    /// The number of requested failures that were not retried: retried before, of a deleted job, with a uniqueness key that
    /// another occurrence has, or not a failure.
    pub left: usize,
    /// True if the filter matches more failures than one request changes.
    pub more: bool,
}

/// A message from the dead letter queue that belongs to no known occurrence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetterRow {
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
    /// The present status of that occurrence; none if it does not exist.
    pub occurrence_status: Option<OccurrenceStatus>,
    /// The start of the body as text. Bytes that are not text are replaced.
    pub body: String,
    /// The size of the body, in bytes.
    pub body_bytes: i64,
    /// The number of times the same message was received.
    pub copies: i32,
    /// The time of the resolution; none while the dead letter is open.
    pub resolved_at: Option<DateTime<Utc>>,
    /// The user who resolved it.
    pub resolved_by: Option<String>,
    /// The note of that user.
    pub resolution_note: Option<String>,
}

/// A filter for dead letters. A condition with an unknown name is refused, as in [`FailureFilter`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct DeadLetterFilter {
    /// Only resolved or only open dead letters.
    pub resolved: Option<bool>,
    /// The cursor: only dead letters older than this one. Ids sort by time.
    pub before: Option<DeadLetterId>,
    /// The maximum number of rows, as in [`FailureFilter::limit`].
    pub limit: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_words_round_trip() {
        for cause in FailureCause::ALL {
            assert_eq!(FailureCause::parse(cause.as_str()), Some(cause));
            assert_eq!(serde_json::to_string(&cause).expect("the value serializes"), format!("{:?}", cause.as_str()));
        }
    }

    #[test]
    fn unknown_condition_is_refused() {
        let known = serde_json::json!({ "fingerprint": "f", "limit": 5 });
        assert!(serde_json::from_value::<FailureFilter>(known).is_ok());
        let misspelled = serde_json::json!({ "fingreprint": "f" });
        assert!(serde_json::from_value::<FailureFilter>(misspelled).is_err());
        assert!(serde_json::from_value::<DeadLetterFilter>(serde_json::json!({ "state": "open" })).is_err());
    }

    #[test]
    fn text_is_bounded_in_characters_and_words() {
        let text = |text: String| FailureFilter { text: Some(text), ..FailureFilter::default() }.has_valid_text();
        assert!(FailureFilter::default().has_valid_text());
        assert!(text("ä".repeat(200)) && text("a b c d e f g h".into()));
        assert!(!text("ä".repeat(201)) && !text("a b c d e f g h i".into()));
    }

    #[test]
    fn invalid_cursor_has_no_value() {
        for text in ["", "~", "1~x", "x~y", "99999999999999999999~0190a0a0-0000-7000-8000-000000000000"] {
            let filter = FailureFilter { after: Some(text.into()), ..FailureFilter::default() };
            assert_eq!(filter.cursor(), None);
            assert_eq!(filter.group_cursor(), None);
        }
    }

    #[test]
    fn group_cursor_round_trips() {
        let group = FailureGroup {
            fingerprint: "0123456789abcdef".into(),
            count: 12,
            open: 3,
            jobs: 1,
            first_at: DateTime::UNIX_EPOCH,
            last_at: DateTime::from_timestamp_micros(1_795_000_123_456_789).expect("the timestamp is in range"),
            occurrence_id: OccurrenceId::default(),
            job_id: JobId::default(),
            job_name: "report".into(),
            cause: FailureCause::Failed,
            note: String::new(),
        };
        let filter = FailureFilter { after: Some(group.cursor()), ..FailureFilter::default() };
        assert_eq!(filter.group_cursor(), Some((12, group.last_at, "0123456789abcdef")));
    }
}
