//! The interface between the dashboard and the server.
//!
//! A page never has more rights than the request it was rendered for. Each method that reads or changes data takes the
//! [`RequestUser`] that [`Backend::authorize`] returned for that request, and `authorize` is the only place that checks
//! the session, the role and the request's origin. A request yields a `RequestUser` in no other way, so a server
//! function cannot skip the check. [`Backend::cluster_status`] alone checks the request itself, because it must answer
//! while the session cannot be read.

mod account;
mod alerts;
mod audit;
mod singletons;
mod team;
mod tokens;

use std::{net::IpAddr, ops::Deref};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use http::request::Parts;
use milvaion_api::{
    calendar_form::CalendarForm,
    failures::{
        DeadLetterFilter, DeadLetterRow, FailureFilter, FailureGroup, FailureRow, FailureScopePreview,
        FailureSelection, ResolveFailuresResult, RetryFailuresResult,
    },
    page::{JobFilter, ListPage, OccurrenceFilter, TimeWindow},
    permissions::Permission,
    requests::{FieldError, JobForm},
    rest::CancelDelayedResult,
    team::{LinkForm, LinkInfo},
    versions::{RestoreVersionResult, VersionDiff, VersionStep},
    views::{
        BlackoutView, CalendarRow, CalendarView, ClusterOverview, ClusterStatus, CurrentUser, JobFormContext, JobRow,
        JobView, OccurrenceRow, OccurrenceView, SchedulePreview, WorkerView,
    },
};
use milvaion_protocol::{
    id::{CalendarId, DeadLetterId, JobId, OccurrenceId},
    message::LogLine,
    status::OccurrenceStatus,
};
use serde::{Deserialize, Serialize};

pub use self::{
    account::AccountBackend, alerts::AlertBackend, audit::AuditBackend, singletons::SingletonBackend,
    team::TeamBackend, tokens::TokenBackend,
};
use crate::error::AppError;

/// The user who sent a request, with the network address for the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestUser {
    /// The user.
    pub user: CurrentUser,
    /// The address of the client, if it is known.
    pub address: Option<IpAddr>,
}

impl Deref for RequestUser {
    type Target = CurrentUser;

    fn deref(&self) -> &CurrentUser {
        &self.user
    }
}

/// The result of a plain form post, kept with the session for the next page and read once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FlashMessage {
    /// Name of the form that was posted.
    pub form: String,
    /// Success message.
    pub notice: Option<String>,
    /// Error that belongs to no field.
    pub error: Option<String>,
    /// Errors by field.
    pub fields: Vec<FieldError>,
    /// Values that were typed, without secrets.
    pub typed: serde_json::Value,
}

/// Options of a manual run.
#[derive(Clone, Debug, Default)]
pub struct TriggerInput {
    /// Input for this occurrence only, as JSON text; empty means the job's own input.
    pub input_json: String,
    /// Reason given by the user, at most 500 characters.
    pub reason: String,
    /// True to run the job even if it or the cluster is paused, or its previous run is still open.
    pub force: bool,
    /// True if a program requested the run with a token.
    pub is_script: bool,
    /// Idempotency key, at most 200 printable characters; `None` or empty means none. A repeated key returns the
    /// occurrence that its first use created, for one week.
    pub idempotency_key: Option<String>,
}

/// Options of a retry.
#[derive(Clone, Debug, Default)]
pub struct RetryInput {
    /// Replacement input as JSON text; empty means the input that failed. Only for a single failure.
    pub input_json: String,
    /// Reason given by the user, at most 500 characters.
    pub reason: String,
    /// True to retry a failure that was retried before. Only for a single failure.
    pub force: bool,
}

/// The operations that the dashboard may request from a server. Implemented by the server, and by a fake for page
/// tests.
#[async_trait]
pub trait Backend:
    TeamBackend + AccountBackend + AuditBackend + TokenBackend + AlertBackend + SingletonBackend
{
    /// Returns the user who sent the request if they have `permission` and, for a change, sent it from our own pages.
    async fn authorize(&self, parts: &Parts, permission: Permission) -> Result<RequestUser, AppError>;
    /// Returns the signed-in user, if any.
    async fn me(&self, parts: &Parts) -> Result<Option<CurrentUser>, AppError>;
    /// Signs a user in under a new session id.
    async fn sign_in(&self, parts: &Parts, email: &str, passphrase: &str) -> Result<CurrentUser, AppError>;
    /// Ends the session.
    async fn sign_out(&self, parts: &Parts) -> Result<(), AppError>;
    /// Returns the id of the newest event of the stream, if there is one. What is read afterwards is not older.
    fn event_position(&self) -> Option<String>;
    /// Returns true while no user exists, so that only the setup link grants access.
    async fn needs_setup(&self) -> Result<bool, AppError>;
    /// Returns the contents of a one-time link; `None` if it is used, replaced, revoked, expired or unknown.
    async fn link_info(&self, token: &str) -> Result<Option<LinkInfo>, AppError>;
    /// Consumes a one-time link: creates the user, or stores the new passphrase and ends all sessions of the user, and
    /// signs the user in. `Fields` for `name`, `email` and `passphrase`; `NotFound` if the link is no longer valid.
    async fn accept_link(&self, parts: &Parts, form: &LinkForm) -> Result<CurrentUser, AppError>;

    /// Stores a message for the page that a plain form post redirects to.
    async fn put_flash(&self, parts: &Parts, flash: FlashMessage) -> Result<(), AppError>;
    /// Takes the message that `form` stored.
    async fn take_flash(&self, parts: &Parts, form: &str) -> Result<Option<FlashMessage>, AppError>;

    /// Returns the data of the overview page, with what ended in `window`.
    async fn overview(&self, me: &RequestUser, window: TimeWindow) -> Result<ClusterOverview, AppError>;
    /// Runs the sample job, which is created if it does not exist. A repeated key returns the same occurrence.
    async fn run_sample_job(&self, me: &RequestUser, idempotency_key: &str) -> Result<OccurrenceId, AppError>;
    /// Returns the cluster pause and the health of every part to a signed-in user. While PostgreSQL is down, no session
    /// can be read; the status then contains only the health, which is public.
    async fn cluster_status(&self, parts: &Parts) -> Result<ClusterStatus, AppError>;
    /// Pauses the cluster: no occurrence is dispatched or released until a user resumes it. A second call changes
    /// nothing.
    async fn pause_cluster(&self, me: &RequestUser, reason: &str) -> Result<(), AppError>;
    /// Resumes the cluster. Succeeds if it is not paused.
    async fn resume_cluster(&self, me: &RequestUser) -> Result<(), AppError>;
    /// Returns a page of jobs, ordered by name.
    async fn jobs(&self, me: &RequestUser, filter: JobFilter) -> Result<ListPage<JobRow>, AppError>;
    /// Returns one job. Its schedule preview also uses `viewer_zone` if that is a valid zone.
    async fn job(&self, me: &RequestUser, id: JobId, viewer_zone: Option<&str>) -> Result<JobView, AppError>;
    /// Returns the choices of the job form.
    async fn form_context(&self, me: &RequestUser, job: Option<JobId>) -> Result<JobFormContext, AppError>;
    /// Describes a schedule in words and dates, or returns its errors.
    async fn preview(
        &self,
        me: &RequestUser,
        form: &JobForm,
        viewer_zone: Option<&str>,
    ) -> Result<SchedulePreview, AppError>;
    /// Validates the whole form without saving it.
    async fn check_job(&self, me: &RequestUser, form: &JobForm) -> Result<(), AppError>;
    /// Creates or changes a job.
    async fn save_job(&self, me: &RequestUser, form: &JobForm) -> Result<JobId, AppError>;
    /// Runs a job now.
    async fn trigger_job(&self, me: &RequestUser, id: JobId, input: TriggerInput) -> Result<OccurrenceId, AppError>;
    /// Makes a job be as the code of a worker declares again, after an edit has detached it.
    async fn attach_job(&self, me: &RequestUser, id: JobId) -> Result<(), AppError>;
    /// Counts the delayed occurrences of a job, up to [`MAX_COUNTED_OPEN`](milvaion_api::views::MAX_COUNTED_OPEN) + 1.
    async fn delayed_count(&self, me: &RequestUser, id: JobId) -> Result<i64, AppError>;
    /// Cancels delayed occurrences of a job, as many as one request may. The result says whether some may be left.
    async fn cancel_delayed(&self, me: &RequestUser, id: JobId, reason: &str) -> Result<CancelDelayedResult, AppError>;
    /// Skips the next due time of a job, which must be `due`.
    async fn skip_due(&self, me: &RequestUser, id: JobId, due: DateTime<Utc>) -> Result<(), AppError>;
    /// Pauses or resumes a job. Returns the reason of the pause that a resume has ended.
    async fn set_job_active(
        &self,
        me: &RequestUser,
        id: JobId,
        active: bool,
        reason: &str,
    ) -> Result<Option<String>, AppError>;
    /// Deletes a job and returns its name. Its occurrences are kept for their retention.
    async fn delete_job(&self, me: &RequestUser, id: JobId) -> Result<String, AppError>;

    /// Returns every calendar, ordered by name.
    async fn calendars(&self, me: &RequestUser) -> Result<Vec<CalendarRow>, AppError>;
    /// Returns one calendar with the jobs that use it.
    async fn calendar(&self, me: &RequestUser, id: CalendarId) -> Result<CalendarView, AppError>;
    /// Validates the whole form without saving it and returns its next blackouts.
    async fn check_calendar(&self, me: &RequestUser, form: &CalendarForm) -> Result<Vec<BlackoutView>, AppError>;
    /// Creates or changes a calendar.
    async fn save_calendar(&self, me: &RequestUser, form: &CalendarForm) -> Result<CalendarId, AppError>;
    /// Deletes a calendar that no job uses and returns its name.
    async fn delete_calendar(&self, me: &RequestUser, id: CalendarId) -> Result<String, AppError>;

    /// Returns a page of a job's versions before `before`, newest first.
    async fn job_history(
        &self,
        me: &RequestUser,
        id: JobId,
        before: Option<i32>,
    ) -> Result<ListPage<VersionStep>, AppError>;
    /// Compares two versions of a job.
    async fn compare_versions(&self, me: &RequestUser, id: JobId, from: i32, to: i32) -> Result<VersionDiff, AppError>;
    /// Restores an earlier definition of a job whose current version is `expected`.
    async fn restore_version(
        &self,
        me: &RequestUser,
        id: JobId,
        version: i32,
        expected: i32,
    ) -> Result<RestoreVersionResult, AppError>;

    /// Returns a page of failures grouped by cause, most numerous first.
    async fn failure_groups(&self, me: &RequestUser, filter: FailureFilter)
    -> Result<ListPage<FailureGroup>, AppError>;
    /// Returns a page of failures, newest first, each with only the first line of its exception and without its input.
    async fn failures(&self, me: &RequestUser, filter: FailureFilter) -> Result<ListPage<FailureRow>, AppError>;
    /// Returns the number and the newest of the open failures that match a filter.
    async fn failure_preview(&self, me: &RequestUser, filter: FailureFilter) -> Result<FailureScopePreview, AppError>;
    /// Returns one complete failure.
    async fn failure(&self, me: &RequestUser, id: OccurrenceId) -> Result<FailureRow, AppError>;
    /// Retries failures, for a user who saw `seen` of them.
    async fn retry_failures(
        &self,
        me: &RequestUser,
        selection: &FailureSelection,
        seen: usize,
        options: RetryInput,
    ) -> Result<RetryFailuresResult, AppError>;
    /// Resolves failures with a note, for a user who saw `seen` of them.
    async fn resolve_failures(
        &self,
        me: &RequestUser,
        selection: &FailureSelection,
        seen: usize,
        note: &str,
    ) -> Result<ResolveFailuresResult, AppError>;
    /// Returns a page of dead letters, newest first, each with only the start of its body.
    async fn dead_letters(
        &self,
        me: &RequestUser,
        filter: DeadLetterFilter,
    ) -> Result<ListPage<DeadLetterRow>, AppError>;
    /// Resolves dead letters with a note. Returns the number of open ones among them.
    async fn resolve_dead_letters(&self, me: &RequestUser, ids: &[DeadLetterId], note: &str)
    -> Result<usize, AppError>;

    /// Returns a page of occurrences, newest first.
    async fn occurrences(
        &self,
        me: &RequestUser,
        filter: OccurrenceFilter,
    ) -> Result<ListPage<OccurrenceRow>, AppError>;
    /// Returns one occurrence with at most 500 lines of its log: the newest ones after `log_after`.
    async fn occurrence(
        &self,
        me: &RequestUser,
        id: OccurrenceId,
        log_after: Option<i64>,
    ) -> Result<OccurrenceView, AppError>;
    /// Returns at most 500 log lines before `before_seq`, oldest first.
    async fn log_before(&self, me: &RequestUser, id: OccurrenceId, before_seq: i64) -> Result<Vec<LogLine>, AppError>;
    /// Returns at most 500 log lines: the oldest ones between `after` and `before`, both excluded.
    async fn log_range(
        &self,
        me: &RequestUser,
        id: OccurrenceId,
        after: i64,
        before: i64,
    ) -> Result<Vec<LogLine>, AppError>;
    /// Cancels an occurrence: at once if no worker runs it, else by a request to its worker. Returns the resulting
    /// status, Cancelled or still Running.
    async fn cancel_occurrence(
        &self,
        me: &RequestUser,
        id: OccurrenceId,
        reason: &str,
    ) -> Result<OccurrenceStatus, AppError>;
    /// Returns every worker seen in the last day.
    async fn workers(&self, me: &RequestUser) -> Result<Vec<WorkerView>, AppError>;
}
