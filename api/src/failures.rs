//! What failed and waits for somebody to settle it, and messages that belong to nothing we know.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use milvaion_protocol::id::{DeadLetterId, JobId, OccurrenceId};

/// The most failures one resolve or retry takes.
pub const MAX_FAILURE_SELECTION: usize = 1_000;
/// The most characters of a note.
pub const MAX_RESOLUTION_NOTE_CHARS: usize = 2_000;
/// How far open failures are counted; more than these are told as "10,000+".
pub const MAX_COUNTED_FAILURES: i64 = 10_000;
/// The most days a look at groups reaches back.
pub const MAX_FAILURE_GROUP_DAYS: i64 = 180;

/// Why an occurrence counts as failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureCause {
    /// Its only attempt failed.
    Failed,
    /// The job said that trying again is of no use.
    Permanent,
    /// Every attempt failed.
    Exhausted,
    /// Its time was up.
    TimedOut,
    /// A worker could not make anything of its message.
    Rejected,
    /// Its runs ended their worker's process again and again.
    Poison,
    /// Its worker fell silent, and the job does not want it run again.
    Lost,
}

impl FailureCause {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Failed, Self::Permanent, Self::Exhausted, Self::TimedOut, Self::Rejected, Self::Poison, Self::Lost];

    /// The word in the database, on the wire and in filters.
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

    /// The one behind a [`as_str`](Self::as_str).
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.as_str() == word)
    }
}

/// A failed occurrence in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureRow {
    /// Which occurrence.
    pub occurrence_id: OccurrenceId,
    /// Of which job.
    pub job_id: JobId,
    /// The job's name at the time.
    pub job_name: String,
    /// Which version of the job's definition it followed.
    pub job_version: i32,
    /// The worker it was addressed to.
    pub worker_id: String,
    /// What it ran.
    pub job_type: String,
    /// Its last attempt, from 1.
    pub attempt: i32,
    /// When it failed.
    pub failed_at: DateTime<Utc>,
    /// Why it counts as failed.
    pub cause: FailureCause,
    /// What went wrong.
    pub exception: Option<String>,
    /// Equal for failures of one cause.
    pub fingerprint: String,
    /// The input it was given.
    pub job_data: Value,
    /// When somebody settled it; none while it is open.
    pub resolved_at: Option<DateTime<Utc>>,
    /// Who.
    pub resolved_by: Option<String>,
    /// What they said about it.
    pub resolution_note: Option<String>,
    /// How: `resolve` or `retry`.
    pub resolution_action: Option<String>,
    /// The occurrence that repeats it.
    pub retried_as: Option<OccurrenceId>,
}

impl FailureRow {
    /// Where the page after this row begins: the value for [`FailureFilter::after`].
    #[must_use]
    pub fn cursor(&self) -> String {
        format!("{}~{}", self.failed_at.timestamp_micros(), self.occurrence_id)
    }
}

/// Which failures. Everything that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FailureFilter {
    /// Only settled ones, or only open ones.
    pub resolved: Option<bool>,
    /// Only of this job.
    pub job_id: Option<JobId>,
    /// Only of this kind.
    pub fingerprint: Option<String>,
    /// Only for this reason.
    pub cause: Option<FailureCause>,
    /// Words that must occur in the job's name or the exception.
    pub text: Option<String>,
    /// Not failed before this instant.
    pub since: Option<DateTime<Utc>>,
    /// Only those after this one, in the order of the list: the value of `next`. Failures and their groups have each their
    /// own.
    pub after: Option<String>,
    /// How many rows; 0 means 50, more than [`crate::page::MAX_PAGE_ROWS`] means that many.
    pub limit: u32,
}

impl FailureFilter {
    /// The failure [`after`](Self::after) names: when it failed, and which.
    #[must_use]
    pub fn cursor(&self) -> Option<(DateTime<Utc>, OccurrenceId)> {
        let (at, id) = self.after.as_deref()?.split_once('~')?;
        Some((DateTime::from_timestamp_micros(at.parse().ok()?)?, id.parse().ok()?))
    }

    /// The group [`after`](Self::after) names: how many it had, when its newest failed, and its fingerprint.
    #[must_use]
    pub fn group_cursor(&self) -> Option<(i64, DateTime<Utc>, &str)> {
        let mut parts = self.after.as_deref()?.splitn(3, '~');
        let count = parts.next()?.parse().ok()?;
        let at = DateTime::from_timestamp_micros(parts.next()?.parse().ok()?)?;
        Some((count, at, parts.next()?))
    }
}

/// Which failures something is done to: at most [`MAX_FAILURE_SELECTION`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FailureSelection {
    /// These.
    Ids(Vec<OccurrenceId>),
    /// The open ones a filter finds, newest first; its `limit` and `after` do not count.
    Filter(FailureFilter),
}

/// Failures of one cause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureGroup {
    /// What they share.
    pub fingerprint: String,
    /// How many there are.
    pub count: i64,
    /// How many of those are open.
    pub open: i64,
    /// How many jobs they are of.
    pub jobs: i64,
    /// When the oldest and the newest failed.
    pub first_at: DateTime<Utc>,
    /// See `first_at`.
    pub last_at: DateTime<Utc>,
    /// The newest one's occurrence.
    pub occurrence_id: OccurrenceId,
    /// The newest one's job.
    pub job_id: JobId,
    /// That job's name.
    pub job_name: String,
    /// Why the newest one failed.
    pub cause: FailureCause,
    /// The first line of the newest one's exception.
    pub note: String,
}

impl FailureGroup {
    /// Where the page after this group begins: the value for [`FailureFilter::after`].
    #[must_use]
    pub fn cursor(&self) -> String {
        format!("{}~{}~{}", self.count, self.last_at.timestamp_micros(), self.fingerprint)
    }
}

/// What settling did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolveFailuresResult {
    /// How many were open and are settled now.
    pub count: usize,
    /// Whether a filter finds more than could be taken at once.
    pub more: bool,
}

/// What a retry did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RetryFailuresResult {
    /// What failed and what repeats it.
    pub made: Vec<(OccurrenceId, OccurrenceId)>,
    /// Asked for, but retried before, of a deleted job, or no failure.
    pub left: usize,
    /// Whether a filter finds more than could be taken at once.
    pub more: bool,
}

/// A message that ended in the dead letter queue and belongs to no occurrence we know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetterRow {
    /// Its id.
    pub id: DeadLetterId,
    /// When it came first.
    pub received_at: DateTime<Utc>,
    /// Why it is here.
    pub reason: String,
    /// From which queue, or to which exchange it was sent.
    pub source: String,
    /// Its headers.
    pub headers: Value,
    /// Its beginning as text; what is no text is replaced.
    pub body: String,
    /// How many bytes it has.
    pub body_bytes: i64,
    /// How often the same one came.
    pub copies: i32,
    /// When somebody settled it; none while it is open.
    pub resolved_at: Option<DateTime<Utc>>,
    /// Who.
    pub resolved_by: Option<String>,
    /// What they said about it.
    pub resolution_note: Option<String>,
}

/// Which dead letters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DeadLetterFilter {
    /// Only settled ones, or only open ones.
    pub resolved: Option<bool>,
    /// Only those older than this one: ids sort by time.
    pub before: Option<DeadLetterId>,
    /// How many rows, as in [`FailureFilter::limit`].
    pub limit: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lead_back() {
        for cause in FailureCause::ALL {
            assert_eq!(FailureCause::parse(cause.as_str()), Some(cause));
            assert_eq!(serde_json::to_string(&cause).expect("writes"), format!("{:?}", cause.as_str()));
        }
    }

    #[test]
    fn a_cursor_that_is_none_is_ignored() {
        for text in ["", "~", "1~x", "x~y", "99999999999999999999~0190a0a0-0000-7000-8000-000000000000"] {
            let filter = FailureFilter { after: Some(text.into()), ..FailureFilter::default() };
            assert_eq!(filter.cursor(), None);
            assert_eq!(filter.group_cursor(), None);
        }
    }

    #[test]
    fn a_group_leads_to_the_page_after_it() {
        let group = FailureGroup {
            fingerprint: "0123456789abcdef".into(),
            count: 12,
            open: 3,
            jobs: 1,
            first_at: DateTime::UNIX_EPOCH,
            last_at: DateTime::from_timestamp_micros(1_795_000_123_456_789).expect("in range"),
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
