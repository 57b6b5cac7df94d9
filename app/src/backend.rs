//! The seam: everything the dashboard may ask of a server.
//!
//! A page never holds more power than the request it was made for. Each method that reads or changes anything takes the
//! [`CurrentUser`] that [`Backend::authorize`] returned for that request, and `authorize` is the one place that looks at the
//! session, the role and the request's origin. There is no other way to get a `CurrentUser` from a request, so a server function
//! cannot forget to ask.

use async_trait::async_trait;
use http::request::Parts;
use milvaion_api::{
    calendar_form::CalendarForm,
    failures::{
        DeadLetterFilter, DeadLetterRow, FailureFilter, FailureGroup, FailureRow, FailureSelection,
        ResolveFailuresResult, RetryFailuresResult,
    },
    page::{JobFilter, ListPage, OccurrenceFilter},
    permissions::{Permission, Role},
    requests::{FieldError, JobForm},
    versions::{RestoreVersionResult, VersionDiff, VersionStep},
    views::{
        BlackoutView, CalendarRow, CalendarView, ClusterOverview, ClusterPause, CurrentUser, InviteInfo,
        JobFormContext, JobRow, JobView, OccurrenceRow, OccurrenceView, SchedulePreview, TeamView, WorkerView,
    },
};
use milvaion_protocol::{
    id::{CalendarId, DeadLetterId, JobId, OccurrenceId, UserId},
    message::LogLine,
    status::OccurrenceStatus,
};
use serde::{Deserialize, Serialize};

use crate::error::AppError;

/// What a plain form post leaves for the page it leads back to: kept with the session, read once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FlashMessage {
    /// Which form left it.
    pub form: String,
    /// What went well.
    pub notice: Option<String>,
    /// What did not, when it belongs to no field.
    pub error: Option<String>,
    /// What did not, field by field.
    pub fields: Vec<FieldError>,
    /// What was typed, without secrets.
    pub typed: serde_json::Value,
}

/// What a person asks when running a job now.
#[derive(Clone, Debug, Default)]
pub struct TriggerInput {
    /// Another input for this occurrence only, as JSON text; empty means the job's own.
    pub input_json: String,
    /// Why; at most 500 characters.
    pub reason: String,
    /// Whether to run it although the job or the whole cluster is paused, or its previous run is still open.
    pub force: bool,
    /// The same key again within a week is the same wish again, and leads to the occurrence it made; at most 200
    /// printable characters. Empty means none.
    pub idempotency_key: Option<String>,
}

/// How a retry is wanted.
#[derive(Clone, Debug, Default)]
pub struct RetryInput {
    /// Another input, as JSON text; empty means the one that failed. For a single failure only.
    pub input_json: String,
    /// Why; at most 500 characters.
    pub reason: String,
    /// Whether one that was retried before is retried again. For a single failure only.
    pub force: bool,
}

/// Everything the dashboard may ask of a server. Implemented once by the server and once by a fake for page tests.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Who asks, if they may do `action` and, for a change, ask from our own pages.
    async fn authorize(&self, parts: &Parts, action: Permission) -> Result<CurrentUser, AppError>;
    /// Who is signed in, if anybody.
    async fn me(&self, parts: &Parts) -> Result<Option<CurrentUser>, AppError>;
    /// Signs in; a new session id is made.
    async fn sign_in(&self, parts: &Parts, email: &str, passphrase: &str) -> Result<CurrentUser, AppError>;
    /// Ends the session.
    async fn sign_out(&self, parts: &Parts) -> Result<(), AppError>;
    /// Whether there is nobody yet, so that the setup link is the only way in.
    async fn needs_setup(&self) -> Result<bool, AppError>;
    /// What a one-time link is good for; `NotFound` when it is used up, too old or wrong.
    async fn invite(&self, token: &str) -> Result<InviteInfo, AppError>;
    /// Uses a one-time link up: makes the person and signs them in.
    async fn accept_invite(
        &self,
        parts: &Parts,
        token: &str,
        name: &str,
        email: &str,
        passphrase: &str,
    ) -> Result<CurrentUser, AppError>;

    /// Leaves a message for the page a plain form post leads back to.
    async fn put_flash(&self, parts: &Parts, flash: FlashMessage) -> Result<(), AppError>;
    /// Reads and forgets what `form` left.
    async fn take_flash(&self, parts: &Parts, form: &str) -> Result<Option<FlashMessage>, AppError>;

    /// The overview page.
    async fn overview(&self, me: &CurrentUser) -> Result<ClusterOverview, AppError>;
    /// Since when, by whom and why everything is paused; none while it is not.
    async fn cluster_state(&self, me: &CurrentUser) -> Result<Option<ClusterPause>, AppError>;
    /// Pauses everything: nothing is fired or released until somebody resumes. Paused twice it stays as it was first.
    async fn pause_cluster(&self, me: &CurrentUser, reason: &str) -> Result<(), AppError>;
    /// Lets everything go on. What is not paused is no mistake.
    async fn resume_cluster(&self, me: &CurrentUser) -> Result<(), AppError>;
    /// A page of jobs by name.
    async fn jobs(&self, me: &CurrentUser, filter: JobFilter) -> Result<ListPage<JobRow>, AppError>;
    /// One job; the preview also speaks `viewer_zone` when that is a zone.
    async fn job(&self, me: &CurrentUser, id: JobId, viewer_zone: Option<&str>) -> Result<JobView, AppError>;
    /// What the job form needs.
    async fn form_context(&self, me: &CurrentUser, job: Option<JobId>) -> Result<JobFormContext, AppError>;
    /// A schedule in words and dates, or what is wrong with it.
    async fn preview(
        &self,
        me: &CurrentUser,
        form: &JobForm,
        viewer_zone: Option<&str>,
    ) -> Result<SchedulePreview, AppError>;
    /// Checks the whole form without saving it.
    async fn check_job(&self, me: &CurrentUser, form: &JobForm) -> Result<(), AppError>;
    /// Creates or changes a job.
    async fn save_job(&self, me: &CurrentUser, form: &JobForm) -> Result<JobId, AppError>;
    /// Runs a job now.
    async fn trigger_job(&self, me: &CurrentUser, id: JobId, input: TriggerInput) -> Result<OccurrenceId, AppError>;
    /// Pauses or resumes a job.
    async fn set_job_active(&self, me: &CurrentUser, id: JobId, active: bool, reason: &str) -> Result<(), AppError>;
    /// Deletes a job; its occurrences stay until retention takes them. Returns its name.
    async fn delete_job(&self, me: &CurrentUser, id: JobId) -> Result<String, AppError>;

    /// Every calendar by name.
    async fn calendars(&self, me: &CurrentUser) -> Result<Vec<CalendarRow>, AppError>;
    /// One calendar with the jobs that keep to it.
    async fn calendar(&self, me: &CurrentUser, id: CalendarId) -> Result<CalendarView, AppError>;
    /// Checks the whole form without saving it; answers the next blackouts it comes to.
    async fn check_calendar(&self, me: &CurrentUser, form: &CalendarForm) -> Result<Vec<BlackoutView>, AppError>;
    /// Makes or changes a calendar.
    async fn save_calendar(&self, me: &CurrentUser, form: &CalendarForm) -> Result<CalendarId, AppError>;
    /// Deletes a calendar that no job keeps to. Returns its name.
    async fn delete_calendar(&self, me: &CurrentUser, id: CalendarId) -> Result<String, AppError>;

    /// A page of the versions a job has had, newest first, those before `before`.
    async fn job_history(
        &self,
        me: &CurrentUser,
        id: JobId,
        before: Option<i32>,
    ) -> Result<ListPage<VersionStep>, AppError>;
    /// What differs between two versions of a job.
    async fn compare_versions(&self, me: &CurrentUser, id: JobId, from: i32, to: i32) -> Result<VersionDiff, AppError>;
    /// Gives a job that has the version `expected` the definition of an earlier one.
    async fn restore_version(
        &self,
        me: &CurrentUser,
        id: JobId,
        version: i32,
        expected: i32,
    ) -> Result<RestoreVersionResult, AppError>;

    /// A page of failures by cause, most numerous first.
    async fn failure_groups(&self, me: &CurrentUser, filter: FailureFilter)
    -> Result<ListPage<FailureGroup>, AppError>;
    /// A page of failures, newest first: of each only the first line of its exception, and not its input.
    async fn failures(&self, me: &CurrentUser, filter: FailureFilter) -> Result<ListPage<FailureRow>, AppError>;
    /// One failure, whole.
    async fn failure(&self, me: &CurrentUser, id: OccurrenceId) -> Result<FailureRow, AppError>;
    /// Runs failures again, for somebody who saw `seen` of them.
    async fn retry_failures(
        &self,
        me: &CurrentUser,
        which: &FailureSelection,
        seen: usize,
        how: RetryInput,
    ) -> Result<RetryFailuresResult, AppError>;
    /// Settles failures with a note, for somebody who saw `seen` of them.
    async fn resolve_failures(
        &self,
        me: &CurrentUser,
        which: &FailureSelection,
        seen: usize,
        note: &str,
    ) -> Result<ResolveFailuresResult, AppError>;
    /// A page of dead letters, newest first: of each body only the beginning.
    async fn dead_letters(
        &self,
        me: &CurrentUser,
        filter: DeadLetterFilter,
    ) -> Result<ListPage<DeadLetterRow>, AppError>;
    /// Settles dead letters with a note. Returns how many were open.
    async fn resolve_dead_letters(&self, me: &CurrentUser, ids: &[DeadLetterId], note: &str)
    -> Result<usize, AppError>;

    /// A page of occurrences, newest first.
    async fn occurrences(
        &self,
        me: &CurrentUser,
        filter: OccurrenceFilter,
    ) -> Result<ListPage<OccurrenceRow>, AppError>;
    /// One occurrence with the newest lines of its log.
    async fn occurrence(&self, me: &CurrentUser, id: OccurrenceId) -> Result<OccurrenceView, AppError>;
    /// At most 500 lines before `before_seq`, oldest first.
    async fn log_before(&self, me: &CurrentUser, id: OccurrenceId, before_seq: i64) -> Result<Vec<LogLine>, AppError>;
    /// Cancels what no worker runs, asks what runs to end. Returns what it is now: Cancelled, or still Running.
    async fn cancel_occurrence(
        &self,
        me: &CurrentUser,
        id: OccurrenceId,
        reason: &str,
    ) -> Result<OccurrenceStatus, AppError>;
    /// Every worker seen in the last day.
    async fn workers(&self, me: &CurrentUser) -> Result<Vec<WorkerView>, AppError>;

    /// The team page.
    async fn team(&self, me: &CurrentUser) -> Result<TeamView, AppError>;
    /// Invites somebody; returns the one-time link's path, shown once.
    async fn invite_user(&self, me: &CurrentUser, name: &str, role: Role) -> Result<String, AppError>;
    /// Takes an invitation back.
    async fn revoke_invite(&self, me: &CurrentUser, id: UserId) -> Result<(), AppError>;
}
