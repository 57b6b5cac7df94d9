//! The [`Backend`] implementation of [`FakeBackend`].

use std::{sync::atomic::Ordering, time::Duration};

use async_trait::async_trait;
use axum::http::request::Parts;
use chrono::{DateTime, Utc};
use milvaion_api::{
    calendar_form::CalendarForm,
    failures::{
        DeadLetterFilter, DeadLetterRow, FailureFilter, FailureGroup, FailureRow, FailureScopePreview,
        FailureSelection, ResolveFailuresResult, RetryFailuresResult,
    },
    page::{JobFilter, ListPage, OccurrenceFilter, TimeWindow},
    permissions::{Permission, Role},
    requests::JobForm,
    rest::CancelDelayedResult,
    team::{LinkForm, LinkInfo, LinkKind},
    versions::{RestoreVersionResult, VersionDiff, VersionStep},
    views::{
        BlackoutView, CalendarRow, CalendarView, ClusterOverview, ClusterStatus, CurrentUser, JobFormContext, JobRow,
        JobView, OccurrenceRow, OccurrenceView, SchedulePreview, WorkerView,
    },
};
use milvaion_app::{
    backend::{Backend, FlashMessage, RequestUser, RetryInput, TriggerInput},
    error::AppError,
};
use milvaion_protocol::{
    id::{CalendarId, DeadLetterId, JobId, OccurrenceId},
    message::{LogLevel, LogLine},
    status::OccurrenceStatus,
};

use super::FakeBackend;
use crate::common::samples;

/// Returns the failures that a selection names; a filter for the sample cause finds two.
fn selected(which: &FailureSelection) -> Result<Vec<OccurrenceId>, AppError> {
    match which {
        FailureSelection::Ids(ids) if ids.is_empty() => Err(AppError::field("ids", "choose at least one open failure")),
        FailureSelection::Ids(ids) => Ok(ids.clone()),
        FailureSelection::Filter(filter) if filter.fingerprint == Some(samples::group().fingerprint) => {
            Ok(vec![samples::occurrence_id(0), samples::occurrence_id(1)])
        }
        FailureSelection::Filter(filter) if *filter == FailureFilter::default() => {
            Err(AppError::field("filter", "all failures cannot be changed at once"))
        }
        FailureSelection::Filter(_) => Err(AppError::Conflict("The number of failures has grown.".into())),
    }
}

/// Yields to the other parts of the page, as a real backend does. Without a delay, code that works only when every
/// response is immediately available would pass.
async fn simulate_latency() {
    tokio::time::sleep(Duration::from_micros(300)).await;
}

#[async_trait]
impl Backend for FakeBackend {
    async fn authorize(&self, _parts: &Parts, action: Permission) -> Result<RequestUser, AppError> {
        self.was_read.store(true, Ordering::Relaxed);
        simulate_latency().await;
        self.check_database()?;
        let me = self.me.clone().ok_or(AppError::SignedOut)?;
        if me.role.allows(action) {
            Ok(RequestUser { user: me, address: None })
        } else {
            let needed = action.required_role().label();
            Err(AppError::Denied(format!("You are {}. Only {needed} may {}.", me.role.label(), action.describe())))
        }
    }

    async fn me(&self, _parts: &Parts) -> Result<Option<CurrentUser>, AppError> {
        self.was_read.store(true, Ordering::Relaxed);
        simulate_latency().await;
        self.check_database()?;
        Ok(self.me.clone())
    }

    async fn sign_in(&self, _parts: &Parts, email: &str, passphrase: &str) -> Result<CurrentUser, AppError> {
        if passphrase == "correct horse battery" {
            self.record(format!("sign in {email}"));
            Ok(samples::me(Role::Admin))
        } else {
            Err(AppError::field("passphrase", "The e-mail address or the passphrase is wrong."))
        }
    }

    async fn sign_out(&self, _parts: &Parts) -> Result<(), AppError> {
        if self.sign_out_fails {
            return Err(AppError::Unavailable("The session cannot be ended. Try again in a moment.".into()));
        }
        self.record("sign out");
        Ok(())
    }

    fn event_position(&self) -> Option<String> {
        (!self.was_read.load(Ordering::Relaxed)).then(|| "5e1-0c".into())
    }

    async fn needs_setup(&self) -> Result<bool, AppError> {
        Ok(self.empty)
    }

    async fn link_info(&self, token: &str) -> Result<Option<LinkInfo>, AppError> {
        let (kind, name, email, role) = match token {
            "good" => (LinkKind::Invite, "Grace", "", Role::Operator),
            "setup" => (LinkKind::Setup, "", "", Role::Admin),
            "reset" => (LinkKind::Reset, "Grace", "grace@example.org", Role::Operator),
            _ => return Ok(None),
        };
        Ok(Some(LinkInfo { kind, name: name.into(), email: email.into(), role }))
    }

    async fn accept_link(&self, _parts: &Parts, form: &LinkForm) -> Result<CurrentUser, AppError> {
        if form.passphrase.chars().count() < 12 {
            return Err(AppError::field("passphrase", "Use at least 12 characters."));
        }
        match self.link_info(&form.token).await? {
            Some(info) if info.kind == LinkKind::Reset => self.record(format!("reset the passphrase of {}", info.name)),
            Some(_) => self.record(format!("accept {}", form.name)),
            None => return Err(AppError::NotFound("This link is no longer valid.".into())),
        }
        Ok(samples::me(Role::Operator))
    }

    async fn put_flash(&self, _parts: &Parts, flash: FlashMessage) -> Result<(), AppError> {
        self.flashes.lock().expect("the mutex is not poisoned").push(flash);
        Ok(())
    }

    async fn take_flash(&self, _parts: &Parts, form: &str) -> Result<Option<FlashMessage>, AppError> {
        let mut flashes = self.flashes.lock().expect("the mutex is not poisoned");
        let position = flashes.iter().position(|flash| flash.form == form);
        Ok(position.map(|position| flashes.remove(position)))
    }

    async fn overview(&self, _me: &RequestUser, window: TimeWindow) -> Result<ClusterOverview, AppError> {
        let mut overview = samples::overview(self.empty, window);
        overview.offers_demo = self.worker_alive;
        Ok(overview)
    }

    async fn run_sample_job(&self, _me: &RequestUser, idempotency_key: &str) -> Result<OccurrenceId, AppError> {
        self.record(format!("sample {idempotency_key}"));
        if self.worker_alive {
            Ok(samples::occurrence_id(0))
        } else {
            Err(AppError::Conflict("The sample job has no live worker.".into()))
        }
    }

    async fn cluster_status(&self, _parts: &Parts) -> Result<ClusterStatus, AppError> {
        simulate_latency().await;
        if self.database_down {
            return Ok(samples::outage_status());
        }
        if self.me.is_none() {
            return Err(AppError::SignedOut);
        }
        let pause = self.paused.lock().expect("the mutex is not poisoned").clone();
        Ok(ClusterStatus { alerts: self.lock_alerts().firing(), ..samples::cluster_status(pause) })
    }

    async fn pause_cluster(&self, _me: &RequestUser, reason: &str) -> Result<(), AppError> {
        if reason.trim().is_empty() {
            return Err(AppError::field("reason", "give a reason"));
        }
        self.record(format!("pause everything: {reason}"));
        *self.paused.lock().expect("the mutex is not poisoned") = Some(samples::pause(reason));
        Ok(())
    }

    async fn resume_cluster(&self, _me: &RequestUser) -> Result<(), AppError> {
        self.record("resume everything");
        *self.paused.lock().expect("the mutex is not poisoned") = None;
        Ok(())
    }

    async fn jobs(&self, _me: &RequestUser, _filter: JobFilter) -> Result<ListPage<JobRow>, AppError> {
        let rows = if self.empty { vec![] } else { vec![samples::job_row()] };
        Ok(ListPage { rows, next: None })
    }

    async fn job(&self, _me: &RequestUser, id: JobId, _viewer_zone: Option<&str>) -> Result<JobView, AppError> {
        self.check_job_exists(id)?;
        Ok(samples::job())
    }

    async fn form_context(&self, _me: &RequestUser, job: Option<JobId>) -> Result<JobFormContext, AppError> {
        if let Some(id) = job {
            self.check_job_exists(id)?;
        }
        let job_types = if self.empty { vec![] } else { vec![samples::job_type()] };
        let zones = vec!["Europe/Warsaw".into(), "UTC".into()];
        let calendars = if self.empty { vec![] } else { vec![samples::calendar_row()] };
        Ok(JobFormContext { job_types, zones, calendars, job: job.map(|_| samples::job()) })
    }

    async fn preview(
        &self,
        _me: &RequestUser,
        form: &JobForm,
        _zone: Option<&str>,
    ) -> Result<SchedulePreview, AppError> {
        form.schedule().map_err(AppError::Fields)?;
        Ok(samples::preview())
    }

    async fn check_job(&self, _me: &RequestUser, form: &JobForm) -> Result<(), AppError> {
        form.check(Some(&samples::schema()), samples::at(0)).map(|_| ()).map_err(AppError::Fields)
    }

    async fn save_job(&self, me: &RequestUser, form: &JobForm) -> Result<JobId, AppError> {
        self.check_job(me, form).await?;
        self.record(format!("save {}", form.display_name));
        Ok(samples::job_id())
    }

    async fn trigger_job(&self, _me: &RequestUser, id: JobId, input: TriggerInput) -> Result<OccurrenceId, AppError> {
        self.check_job_exists(id)?;
        if self.paused.lock().expect("the mutex is not poisoned").is_some() && !input.force {
            return Err(AppError::Conflict("All schedules are paused (upgrade).".into()));
        }
        self.record(format!("trigger {}", input.reason));
        Ok(samples::occurrence_id(0))
    }

    async fn attach_job(&self, _: &RequestUser, _: JobId) -> Result<(), AppError> {
        Ok(())
    }

    async fn delayed_count(&self, _: &RequestUser, _: JobId) -> Result<i64, AppError> {
        Ok(samples::job().delayed)
    }

    async fn cancel_delayed(&self, _: &RequestUser, id: JobId, reason: &str) -> Result<CancelDelayedResult, AppError> {
        self.check_job_exists(id)?;
        self.record(format!("cancel delayed {reason}"));
        Ok(CancelDelayedResult { cancelled: 3, more: false })
    }

    async fn skip_due(&self, _: &RequestUser, id: JobId, due: DateTime<Utc>) -> Result<(), AppError> {
        self.check_job_exists(id)?;
        self.record(format!("skip {due}"));
        Ok(())
    }

    async fn set_job_active(
        &self,
        _me: &RequestUser,
        id: JobId,
        active: bool,
        _reason: &str,
    ) -> Result<Option<String>, AppError> {
        self.check_job_exists(id)?;
        self.record(if active { "resume" } else { "pause" });
        Ok(None)
    }

    async fn delete_job(&self, _me: &RequestUser, id: JobId) -> Result<String, AppError> {
        self.check_job_exists(id)?;
        self.record("delete");
        Ok("nightly report".into())
    }

    async fn calendars(&self, _me: &RequestUser) -> Result<Vec<CalendarRow>, AppError> {
        Ok(if self.empty { vec![] } else { vec![samples::calendar_row()] })
    }

    async fn calendar(&self, _me: &RequestUser, id: CalendarId) -> Result<CalendarView, AppError> {
        if id == samples::calendar_id() {
            return Ok(samples::calendar());
        }
        Err(AppError::NotFound("This calendar does not exist.".into()))
    }

    async fn check_calendar(&self, _me: &RequestUser, form: &CalendarForm) -> Result<Vec<BlackoutView>, AppError> {
        form.check().map(|_| vec![samples::blackout()]).map_err(AppError::Fields)
    }

    async fn save_calendar(&self, _me: &RequestUser, form: &CalendarForm) -> Result<CalendarId, AppError> {
        let calendar = form.check().map_err(AppError::Fields)?;
        self.record(format!("save calendar {}: {}", calendar.name, calendar.describe(samples::at(0).date_naive())));
        Ok(samples::calendar_id())
    }

    async fn delete_calendar(&self, me: &RequestUser, id: CalendarId) -> Result<String, AppError> {
        if self.calendar(me, id).await?.jobs_total > 0 {
            return Err(AppError::Conflict(
                "nightly report still uses Holidays. Remove it from this job first.".into(),
            ));
        }
        Ok("Holidays".into())
    }

    async fn job_history(
        &self,
        _me: &RequestUser,
        id: JobId,
        _before: Option<i32>,
    ) -> Result<ListPage<VersionStep>, AppError> {
        self.check_job_exists(id)?;
        Ok(ListPage { rows: samples::history(), next: None })
    }

    async fn compare_versions(
        &self,
        _me: &RequestUser,
        _id: JobId,
        from: i32,
        to: i32,
    ) -> Result<VersionDiff, AppError> {
        if from.max(to) > 2 {
            return Err(AppError::NotFound("This job has no such version.".into()));
        }
        Ok(if from == to { VersionDiff::default() } else { samples::difference() })
    }

    async fn restore_version(
        &self,
        _me: &RequestUser,
        id: JobId,
        version: i32,
        expected: i32,
    ) -> Result<RestoreVersionResult, AppError> {
        self.check_job_exists(id)?;
        if expected != 2 {
            return Err(AppError::Conflict("This job was changed by another user.".into()));
        }
        self.record(format!("restore {version}"));
        Ok(RestoreVersionResult { version: 3, missing_calendars: vec![] })
    }

    async fn failure_groups(
        &self,
        _me: &RequestUser,
        filter: FailureFilter,
    ) -> Result<ListPage<FailureGroup>, AppError> {
        let is_there = filter.fingerprint.is_none_or(|of| of == samples::group().fingerprint);
        if self.empty || !is_there || filter.cause.is_some_and(|cause| cause != samples::group().cause) {
            return Ok(ListPage { rows: vec![], next: None });
        }
        let next = filter.after.is_none().then(|| samples::group().cursor());
        Ok(ListPage { rows: vec![samples::group()], next })
    }

    async fn failures(&self, _me: &RequestUser, filter: FailureFilter) -> Result<ListPage<FailureRow>, AppError> {
        let mut rows = vec![samples::failure(0), samples::resolved_failure(1)];
        rows.retain(|row| filter.resolved.is_none_or(|resolved| row.resolved_at.is_some() == resolved));
        Ok(ListPage { rows, next: None })
    }

    async fn failure_preview(
        &self,
        _me: &RequestUser,
        _filter: FailureFilter,
    ) -> Result<FailureScopePreview, AppError> {
        Ok(FailureScopePreview { count: 12, samples: vec![samples::failure(0)] })
    }

    async fn failure(&self, _me: &RequestUser, id: OccurrenceId) -> Result<FailureRow, AppError> {
        let known = [samples::failure(0), samples::resolved_failure(1)];
        let found = known.into_iter().find(|failure| failure.occurrence_id == id);
        found.ok_or_else(|| AppError::NotFound("This failure does not exist.".into()))
    }

    async fn retry_failures(
        &self,
        _me: &RequestUser,
        which: &FailureSelection,
        seen: usize,
        how: RetryInput,
    ) -> Result<RetryFailuresResult, AppError> {
        if how.reason.chars().count() > 500 {
            return Err(AppError::field("reason", "at most 500 characters"));
        }
        if how.input_json == "{" {
            return Err(AppError::field("input_json", "the input is not JSON"));
        }
        let ids = selected(which)?;
        self.record(format!("retry {} of {seen}: {} {}", ids.len(), how.reason, how.force));
        Ok(RetryFailuresResult {
            made: ids.into_iter().map(|id| (id, samples::occurrence_id(0))).collect(),
            left: 0,
            more: false,
        })
    }

    async fn resolve_failures(
        &self,
        _me: &RequestUser,
        which: &FailureSelection,
        seen: usize,
        note: &str,
    ) -> Result<ResolveFailuresResult, AppError> {
        if note.chars().count() > 2_000 {
            return Err(AppError::field("note", "at most 2,000 characters"));
        }
        let ids = selected(which)?;
        self.record(format!("resolve {} of {seen}: {note}", ids.len()));
        Ok(ResolveFailuresResult { count: ids.len(), left: 0, more: false })
    }

    async fn dead_letters(
        &self,
        _me: &RequestUser,
        filter: DeadLetterFilter,
    ) -> Result<ListPage<DeadLetterRow>, AppError> {
        let mut rows = if self.empty { vec![] } else { vec![samples::dead_letter()] };
        rows.retain(|row| filter.resolved.is_none_or(|resolved| row.resolved_at.is_some() == resolved));
        Ok(ListPage { rows, next: None })
    }

    async fn resolve_dead_letters(
        &self,
        _me: &RequestUser,
        ids: &[DeadLetterId],
        note: &str,
    ) -> Result<usize, AppError> {
        if ids.is_empty() {
            return Err(AppError::field("ids", "choose at least one dead letter"));
        }
        self.record(format!("resolve {} dead letters: {note}", ids.len()));
        Ok(ids.len())
    }

    async fn occurrences(
        &self,
        _me: &RequestUser,
        filter: OccurrenceFilter,
    ) -> Result<ListPage<OccurrenceRow>, AppError> {
        if self.empty || filter.status.is_some_and(|status| status != self.status) {
            return Ok(ListPage { rows: vec![], next: None });
        }
        let mut rows: Vec<_> = (0..3).rev().map(|second| samples::row(second, self.status)).collect();
        if self.cancelling {
            rows.iter_mut().for_each(|row| row.cancel_requested_at = Some(samples::at(2)));
        }
        let next = filter.before.is_none().then(|| samples::occurrence_id(0).to_string());
        Ok(ListPage { rows, next })
    }

    async fn occurrence(
        &self,
        _me: &RequestUser,
        id: OccurrenceId,
        log_after: Option<i64>,
    ) -> Result<OccurrenceView, AppError> {
        if id != samples::occurrence_id(0) {
            return Err(AppError::NotFound("This occurrence does not exist; occurrences are kept for 30 days.".into()));
        }
        let mut view = samples::occurrence(self.status);
        view.worker_alive = self.worker_alive;
        view.log.retain(|line| log_after.is_none_or(|after| line.seq > after));
        if self.cancelling {
            samples::request_cancellation(&mut view);
        }
        if self.duplicate_starts {
            milvaion_api::duplicates::record_duplicate_start(&mut view.changes, 1, "local-2", samples::at(1));
        }
        if self.started_after_end {
            let at = samples::at(9);
            milvaion_api::duplicates::record_start_after_end(&mut view.changes, self.status, 1, "local-2", at);
        }
        Ok(view)
    }

    async fn cancel_occurrence(
        &self,
        _me: &RequestUser,
        _id: OccurrenceId,
        reason: &str,
    ) -> Result<OccurrenceStatus, AppError> {
        if reason.chars().count() > 500 {
            return Err(AppError::field("reason", "at most 500 characters"));
        }
        if self.status.is_final() {
            return Err(AppError::Conflict(format!(
                "This occurrence has already ended: it is {}.",
                self.status.label()
            )));
        }
        self.record(format!("cancel {reason}"));
        let runs = self.status == OccurrenceStatus::Running;
        Ok(if runs { OccurrenceStatus::Running } else { OccurrenceStatus::Cancelled })
    }

    async fn log_before(
        &self,
        _me: &RequestUser,
        _id: OccurrenceId,
        before_seq: i64,
    ) -> Result<Vec<LogLine>, AppError> {
        Ok(vec![samples::log_line(before_seq - 1, LogLevel::Debug, "an earlier line")])
    }

    async fn log_range(
        &self,
        _me: &RequestUser,
        _id: OccurrenceId,
        after: i64,
        _before: i64,
    ) -> Result<Vec<LogLine>, AppError> {
        Ok(vec![samples::log_line(after + 1, LogLevel::Debug, "a line between")])
    }

    async fn workers(&self, _me: &RequestUser) -> Result<Vec<WorkerView>, AppError> {
        Ok(if self.empty { vec![] } else { vec![samples::worker()] })
    }
}
