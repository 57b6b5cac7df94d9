//! Failures, dead letters, calendars, the cluster, statistics, the audit log, users and tokens.

use chrono::{DateTime, NaiveDate, Utc};
use milvaion_protocol::{
    id::{CalendarId, DeadLetterId, JobId, OccurrenceId},
    status::OccurrenceStatus,
};
use milvaion_schedule::calendar::Calendar;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Occurrence, StatusName};
use crate::{
    audit::AuditResult,
    failures::{DeadLetterRow, FailureCause, FailureSelection, RetryFailuresResult},
    page::TimeWindow,
    permissions::Role,
    team::UserState,
    views::{BarCount, BlackoutView, CalendarView, ClusterOverview, ClusterPause, HealthItem, UpcomingJob},
};

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
        let skip_reason = "retried before, of a deleted job, or not a failure";
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

/// The filter of the list of workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct WorkerQuery {
    /// Only workers with a live instance.
    pub alive: bool,
}

/// A calendar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CalendarDetail {
    /// The id.
    pub id: CalendarId,
    /// The version, which each change increments. The header `ETag` has it too.
    pub version: i32,
    /// The definition. A request that changes the calendar sends the whole of it.
    pub definition: Calendar,
    /// The next blackouts.
    pub upcoming: Vec<BlackoutView>,
    /// Some of the jobs with this calendar, by name.
    pub jobs: Vec<CalendarJob>,
    /// The number of all jobs with this calendar.
    pub jobs_total: i64,
    /// The number of jobs to whose due times the last change is still being applied; null if it is applied.
    pub pending_jobs: Option<i64>,
    /// The time of the last change.
    pub modified_at: DateTime<Utc>,
    /// The user who made the last change.
    pub modified_by: String,
}

/// A job with a calendar.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CalendarJob {
    /// The id.
    pub id: JobId,
    /// The name.
    pub display_name: String,
}

impl CalendarDetail {
    /// Builds the document of a calendar with its next blackouts.
    #[must_use]
    pub fn new(view: CalendarView, upcoming: Vec<BlackoutView>) -> Self {
        Self {
            id: view.id,
            version: view.version,
            definition: view.calendar,
            upcoming,
            jobs: view.jobs.into_iter().map(|(id, display_name)| CalendarJob { id, display_name }).collect(),
            jobs_total: view.jobs_total,
            pending_jobs: view.pending_jobs,
            modified_at: view.modified_at,
            modified_by: view.modified_by,
        }
    }
}

/// The state of the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Cluster {
    /// The server's time.
    pub now: DateTime<Utc>,
    /// The cluster pause; null while the cluster is not paused.
    pub pause: Option<ClusterPause>,
    /// The health of every part.
    pub health: Vec<HealthItem>,
}

/// A request to pause the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct PauseRequest {
    /// The reason, at most 500 characters.
    #[cfg_attr(feature = "schema", schemars(length(max = 500)))]
    pub reason: String,
}

/// The window of the statistics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct StatisticsQuery {
    /// The window; one hour without it.
    pub window: Option<TimeWindow>,
}

/// A number of occurrences by status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OpenCount {
    /// The status.
    pub status: StatusName,
    /// The number of occurrences.
    pub count: i64,
}

fn counts(counts: Vec<(OccurrenceStatus, i64)>) -> Vec<OpenCount> {
    counts.into_iter().map(|(status, count)| OpenCount { status: status.into(), count }).collect()
}

/// The occurrences that ended in one period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StatisticsBar {
    /// The start of the period.
    pub start: DateTime<Utc>,
    /// The numbers by status.
    pub ended: Vec<OpenCount>,
}

impl From<BarCount> for StatisticsBar {
    fn from(bar: BarCount) -> Self {
        Self { start: bar.start, ended: counts(bar.counts) }
    }
}

/// The statistics of the installation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Statistics {
    /// The server's time.
    pub now: DateTime<Utc>,
    /// The window of `ended` and `bars`.
    pub window: TimeWindow,
    /// The number of open occurrences by status, counted up to 10,001 each.
    pub open: Vec<OpenCount>,
    /// The number of occurrences that ended in the window, by status.
    pub ended: Vec<OpenCount>,
    /// The same by period, oldest first, without empty periods.
    pub bars: Vec<StatisticsBar>,
    /// The number of live worker instances.
    pub workers_alive: i64,
    /// The number of active jobs.
    pub jobs_active: i64,
    /// The number of all jobs.
    pub jobs_total: i64,
    /// The number of open failures, counted up to 10,000.
    pub open_failures: i64,
    /// The next ten due jobs.
    pub next_due: Vec<UpcomingJob>,
    /// The newest five occurrences that failed or timed out in the last seven days.
    pub latest_failures: Vec<Occurrence>,
}

impl From<ClusterOverview> for Statistics {
    fn from(overview: ClusterOverview) -> Self {
        Self {
            now: overview.now,
            window: overview.window,
            open: counts(overview.open),
            ended: counts(overview.ended),
            bars: overview.bars.into_iter().map(Into::into).collect(),
            workers_alive: overview.workers_alive,
            jobs_active: overview.jobs_active,
            jobs_total: overview.jobs_total,
            open_failures: overview.open_failures,
            next_due: overview.next_due,
            latest_failures: overview.failures.into_iter().map(Into::into).collect(),
        }
    }
}

/// The filter of the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct AuditQuery {
    /// Only actions of this author: an e-mail address, `system` or `unknown`.
    #[cfg_attr(feature = "schema", schemars(length(max = 254)))]
    pub who: Option<String>,
    /// Only this action, as in `job.pause`, or with a dot at the end all actions of a kind, as in `job.`.
    #[cfg_attr(feature = "schema", schemars(length(max = 100)))]
    pub action: Option<String>,
    /// Only actions on this object, as `kind:id`.
    #[cfg_attr(feature = "schema", schemars(length(max = 200)))]
    pub object: Option<String>,
    /// Only actions with this result.
    pub result: Option<AuditResult>,
    /// Only actions on or after this day in UTC.
    pub since: Option<NaiveDate>,
    /// Only actions on or before this day in UTC.
    pub until: Option<NaiveDate>,
    /// The cursor: the `next` of the previous page.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[0-9]{1,16}-[0-9]{1,18}$")))]
    pub before: Option<String>,
}

/// The cursor of the audit log of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct JobAuditQuery {
    /// The cursor: the `next` of the previous page.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[0-9]{1,16}-[0-9]{1,18}$")))]
    pub before: Option<String>,
}

/// The cursor of the versions of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct VersionQuery {
    /// Only versions before this one: the `next` of the previous page.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub before: Option<i32>,
}

/// The versions to compare.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CompareQuery {
    /// The earlier version.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub from: i32,
    /// The later version.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub to: i32,
}

/// The filter of the list of users.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct TeamQuery {
    /// A text that must occur in the name or the e-mail address.
    #[cfg_attr(feature = "schema", schemars(length(max = 100)))]
    pub text: Option<String>,
    /// Only users with this role.
    pub role: Option<Role>,
    /// Only users in this state.
    pub state: Option<UserState>,
}

/// A request to invite a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct InviteUser {
    /// The name, at most 100 characters.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 100)))]
    pub name: String,
    /// The role.
    pub role: Role,
}

/// A request to change the role of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ChangeRole {
    /// The new role.
    pub role: Role,
}

/// A link that works once. It is shown only in this answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OneTimeLink {
    /// The path of the link, relative to the address of the dashboard.
    pub path: String,
}

/// The filter of the list of tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct TokenQuery {
    /// True for the tokens of all users and services, for Admins.
    pub all: bool,
}

/// The filter of the stream of events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct EventQuery {
    /// Only events of this job and its occurrences.
    pub job_id: Option<JobId>,
    /// Only events of this occurrence, and its log lines.
    pub occurrence_id: Option<OccurrenceId>,
    /// The id of the last event that the caller received. The header `Last-Event-ID` takes precedence.
    #[cfg_attr(feature = "schema", schemars(length(max = 100)))]
    pub last: Option<String>,
}
