//! What the fake backend answers: the trait, and with it every question a page may ask. What it holds is one level up.

use std::time::Duration;

use async_trait::async_trait;
use axum::http::request::Parts;
use milvaion_api::{
    access::{Action, Role},
    calendar_form::CalendarForm,
    failure::{DeadLetterFilter, DeadLetterRow, FailureFilter, FailureGroup, FailureRow, Resolved, Retried, Which},
    page::{JobFilter, OccurrenceFilter, Page},
    request::JobForm,
    versions::{Difference, Restored, VersionStep},
    view::{
        BlackoutView, CalendarRow, CalendarView, ClusterPause, FormContext, InviteInfo, JobRow, JobView, Me,
        OccurrenceRow, OccurrenceView, Overview, SchedulePreview, TeamView, UserView, WorkerView,
    },
};
use milvaion_app::{
    backend::{Backend, Flash, RetryInput, TriggerInput},
    error::AppError,
};
use milvaion_protocol::{
    id::{CalendarId, DeadLetterId, JobId, OccurrenceId, UserId},
    message::{LogLevel, LogLine},
    status::OccurrenceStatus,
};

use super::Fake;
use crate::common::samples;

/// The failures that are meant; a filter finds the two samples.
fn meant(which: &Which) -> Result<Vec<OccurrenceId>, AppError> {
    match which {
        Which::Ids(ids) if ids.is_empty() => Err(AppError::field("ids", "choose at least one that is open")),
        Which::Ids(ids) => Ok(ids.clone()),
        Which::Filter(filter) if filter.fingerprint == Some(samples::group().fingerprint) => {
            Ok(vec![samples::occurrence_id(0), samples::occurrence_id(1)])
        }
        Which::Filter(_) => Err(AppError::Conflict("There are many more by now.".into())),
    }
}

/// Lets the page's other parts go on, as a real answer would: what only works when every answer is there at once would
/// pass unseen otherwise.
async fn as_slow_as_a_database() {
    tokio::time::sleep(Duration::from_micros(300)).await;
}

#[async_trait]
impl Backend for Fake {
    async fn authorize(&self, _parts: &Parts, action: Action) -> Result<Me, AppError> {
        as_slow_as_a_database().await;
        let me = self.me.clone().ok_or(AppError::SignedOut)?;
        if me.role.may(action) {
            Ok(me)
        } else {
            let needed = action.needs().word();
            Err(AppError::Denied(format!("You are {}. Only {needed} may {}.", me.role.word(), action.words())))
        }
    }

    async fn me(&self, _parts: &Parts) -> Result<Option<Me>, AppError> {
        as_slow_as_a_database().await;
        Ok(self.me.clone())
    }

    async fn sign_in(&self, _parts: &Parts, email: &str, passphrase: &str) -> Result<Me, AppError> {
        if passphrase == "correct horse battery" {
            self.note(format!("sign in {email}"));
            Ok(samples::me(Role::Admin))
        } else {
            Err(AppError::field("passphrase", "The e-mail address or the passphrase is wrong."))
        }
    }

    async fn sign_out(&self, _parts: &Parts) -> Result<(), AppError> {
        self.note("sign out");
        Ok(())
    }

    async fn needs_setup(&self) -> Result<bool, AppError> {
        Ok(self.empty)
    }

    async fn invite(&self, token: &str) -> Result<InviteInfo, AppError> {
        match token {
            "good" => Ok(InviteInfo { is_setup: false, name: "Grace".into(), role: Role::Operator }),
            "setup" => Ok(InviteInfo { is_setup: true, name: String::new(), role: Role::Admin }),
            _ => Err(AppError::NotFound("This link is no longer good.".into())),
        }
    }

    async fn accept_invite(
        &self,
        _parts: &Parts,
        _token: &str,
        name: &str,
        _email: &str,
        passphrase: &str,
    ) -> Result<Me, AppError> {
        if passphrase.chars().count() < 12 {
            return Err(AppError::field("passphrase", "Use at least 12 characters."));
        }
        self.note(format!("accept {name}"));
        Ok(samples::me(Role::Operator))
    }

    async fn put_flash(&self, _parts: &Parts, flash: Flash) -> Result<(), AppError> {
        self.flashes.lock().expect("no test panics inside").push(flash);
        Ok(())
    }

    async fn take_flash(&self, _parts: &Parts, form: &str) -> Result<Option<Flash>, AppError> {
        let mut flashes = self.flashes.lock().expect("no test panics inside");
        let place = flashes.iter().position(|flash| flash.form == form);
        Ok(place.map(|place| flashes.remove(place)))
    }

    async fn overview(&self, _me: &Me) -> Result<Overview, AppError> {
        Ok(samples::overview(self.empty))
    }

    async fn cluster_state(&self, _me: &Me) -> Result<Option<ClusterPause>, AppError> {
        as_slow_as_a_database().await;
        Ok(self.paused.lock().expect("no test panics inside").clone())
    }

    async fn pause_cluster(&self, _me: &Me, reason: &str) -> Result<(), AppError> {
        if reason.trim().is_empty() {
            return Err(AppError::field("reason", "say why"));
        }
        self.note(format!("pause everything: {reason}"));
        *self.paused.lock().expect("no test panics inside") = Some(samples::pause(reason));
        Ok(())
    }

    async fn resume_cluster(&self, _me: &Me) -> Result<(), AppError> {
        self.note("resume everything");
        *self.paused.lock().expect("no test panics inside") = None;
        Ok(())
    }

    async fn jobs(&self, _me: &Me, _filter: JobFilter) -> Result<Page<JobRow>, AppError> {
        let rows = if self.empty { vec![] } else { vec![samples::job_row()] };
        Ok(Page { rows, next: None })
    }

    async fn job(&self, _me: &Me, id: JobId, _viewer_zone: Option<&str>) -> Result<JobView, AppError> {
        self.known(id)?;
        Ok(samples::job())
    }

    async fn form_context(&self, _me: &Me, job: Option<JobId>) -> Result<FormContext, AppError> {
        if let Some(id) = job {
            self.known(id)?;
        }
        let job_types = if self.empty { vec![] } else { vec![samples::job_type()] };
        let zones = vec!["Europe/Warsaw".into(), "UTC".into()];
        let calendars = if self.empty { vec![] } else { vec![samples::calendar_row()] };
        Ok(FormContext { job_types, zones, calendars, job: job.map(|_| samples::job()) })
    }

    async fn preview(&self, _me: &Me, form: &JobForm, _zone: Option<&str>) -> Result<SchedulePreview, AppError> {
        form.schedule().map_err(AppError::Fields)?;
        Ok(samples::preview())
    }

    async fn check_job(&self, _me: &Me, form: &JobForm) -> Result<(), AppError> {
        form.check(Some(&samples::schema()), samples::at(0)).map(|_| ()).map_err(AppError::Fields)
    }

    async fn save_job(&self, me: &Me, form: &JobForm) -> Result<JobId, AppError> {
        self.check_job(me, form).await?;
        self.note(format!("save {}", form.display_name));
        Ok(samples::job_id())
    }

    async fn trigger_job(&self, _me: &Me, id: JobId, input: TriggerInput) -> Result<OccurrenceId, AppError> {
        self.known(id)?;
        self.note(format!("trigger {}", input.reason));
        Ok(samples::occurrence_id(0))
    }

    async fn set_job_active(&self, _me: &Me, id: JobId, active: bool, _reason: &str) -> Result<(), AppError> {
        self.known(id)?;
        self.note(if active { "resume" } else { "pause" });
        Ok(())
    }

    async fn delete_job(&self, _me: &Me, id: JobId) -> Result<String, AppError> {
        self.known(id)?;
        self.note("delete");
        Ok("nightly report".into())
    }

    async fn calendars(&self, _me: &Me) -> Result<Vec<CalendarRow>, AppError> {
        Ok(if self.empty { vec![] } else { vec![samples::calendar_row()] })
    }

    async fn calendar(&self, _me: &Me, id: CalendarId) -> Result<CalendarView, AppError> {
        if id == samples::calendar_id() {
            return Ok(samples::calendar());
        }
        Err(AppError::NotFound("There is no such calendar.".into()))
    }

    async fn check_calendar(&self, _me: &Me, form: &CalendarForm) -> Result<Vec<BlackoutView>, AppError> {
        form.check().map(|_| vec![samples::blackout()]).map_err(AppError::Fields)
    }

    async fn save_calendar(&self, _me: &Me, form: &CalendarForm) -> Result<CalendarId, AppError> {
        let calendar = form.check().map_err(AppError::Fields)?;
        self.note(format!("save calendar {}: {}", calendar.name, calendar.words(samples::at(0).date_naive())));
        Ok(samples::calendar_id())
    }

    async fn delete_calendar(&self, me: &Me, id: CalendarId) -> Result<String, AppError> {
        if self.calendar(me, id).await?.jobs_total > 0 {
            return Err(AppError::Conflict("nightly report still keeps to Holidays: take it out there first.".into()));
        }
        Ok("Holidays".into())
    }

    async fn job_history(&self, _me: &Me, id: JobId, _before: Option<i32>) -> Result<Page<VersionStep>, AppError> {
        self.known(id)?;
        Ok(Page { rows: samples::history(), next: None })
    }

    async fn compare_versions(&self, _me: &Me, _id: JobId, from: i32, to: i32) -> Result<Difference, AppError> {
        if from.max(to) > 2 {
            return Err(AppError::NotFound("This job has no such version.".into()));
        }
        Ok(if from == to { Difference::default() } else { samples::difference() })
    }

    async fn restore_version(&self, _me: &Me, id: JobId, version: i32, expected: i32) -> Result<Restored, AppError> {
        self.known(id)?;
        if expected != 2 {
            return Err(AppError::Conflict("Somebody else changed this job meanwhile.".into()));
        }
        self.note(format!("restore {version}"));
        Ok(Restored { version: 3, missing_calendars: vec![] })
    }

    async fn failure_groups(&self, _me: &Me, filter: FailureFilter) -> Result<Page<FailureGroup>, AppError> {
        let is_there = filter.fingerprint.is_none_or(|of| of == samples::group().fingerprint);
        if self.empty || !is_there || filter.cause.is_some_and(|cause| cause != samples::group().cause) {
            return Ok(Page { rows: vec![], next: None });
        }
        let next = filter.after.is_none().then(|| samples::group().cursor());
        Ok(Page { rows: vec![samples::group()], next })
    }

    async fn failures(&self, _me: &Me, filter: FailureFilter) -> Result<Page<FailureRow>, AppError> {
        let mut rows = vec![samples::failure(0), samples::resolved_failure(1)];
        rows.retain(|row| filter.resolved.is_none_or(|resolved| row.resolved_at.is_some() == resolved));
        Ok(Page { rows, next: None })
    }

    async fn failure(&self, _me: &Me, id: OccurrenceId) -> Result<FailureRow, AppError> {
        let known = [samples::failure(0), samples::resolved_failure(1)];
        let found = known.into_iter().find(|failure| failure.occurrence_id == id);
        found.ok_or_else(|| AppError::NotFound("This failure does not exist.".into()))
    }

    async fn retry_failures(&self, _me: &Me, which: &Which, seen: usize, how: RetryInput) -> Result<Retried, AppError> {
        if how.reason.chars().count() > 500 {
            return Err(AppError::field("reason", "at most 500 characters"));
        }
        if how.input_json == "{" {
            return Err(AppError::field("input_json", "this is not JSON"));
        }
        let ids = meant(which)?;
        self.note(format!("retry {} of {seen}: {} {}", ids.len(), how.reason, how.force));
        Ok(Retried { made: ids.into_iter().map(|id| (id, samples::occurrence_id(0))).collect(), left: 0, more: false })
    }

    async fn resolve_failures(&self, _me: &Me, which: &Which, seen: usize, note: &str) -> Result<Resolved, AppError> {
        if note.chars().count() > 2_000 {
            return Err(AppError::field("note", "at most 2,000 characters"));
        }
        let ids = meant(which)?;
        self.note(format!("resolve {} of {seen}: {note}", ids.len()));
        Ok(Resolved { count: ids.len(), more: false })
    }

    async fn dead_letters(&self, _me: &Me, filter: DeadLetterFilter) -> Result<Page<DeadLetterRow>, AppError> {
        let mut rows = if self.empty { vec![] } else { vec![samples::dead_letter()] };
        rows.retain(|row| filter.resolved.is_none_or(|resolved| row.resolved_at.is_some() == resolved));
        Ok(Page { rows, next: None })
    }

    async fn resolve_dead_letters(&self, _me: &Me, ids: &[DeadLetterId], note: &str) -> Result<usize, AppError> {
        if ids.is_empty() {
            return Err(AppError::field("ids", "choose at least one"));
        }
        self.note(format!("resolve {} letters: {note}", ids.len()));
        Ok(ids.len())
    }

    async fn occurrences(&self, _me: &Me, filter: OccurrenceFilter) -> Result<Page<OccurrenceRow>, AppError> {
        if self.empty || filter.status.is_some_and(|status| status != self.status) {
            return Ok(Page { rows: vec![], next: None });
        }
        let rows = (0..3).rev().map(|second| samples::row(second, self.status)).collect();
        let next = filter.before.is_none().then(|| samples::occurrence_id(0).to_string());
        Ok(Page { rows, next })
    }

    async fn occurrence(&self, _me: &Me, id: OccurrenceId) -> Result<OccurrenceView, AppError> {
        if id != samples::occurrence_id(0) {
            return Err(AppError::NotFound("There is no such occurrence; they are kept for 30 days.".into()));
        }
        let mut view = samples::occurrence(self.status);
        view.worker_alive = self.worker_alive;
        if self.doubled {
            milvaion_api::duplicates::note(&mut view.changes, 1, "local-2", samples::at(1));
        }
        Ok(view)
    }

    async fn cancel_occurrence(&self, _me: &Me, _id: OccurrenceId, reason: &str) -> Result<OccurrenceStatus, AppError> {
        if reason.chars().count() > 500 {
            return Err(AppError::field("reason", "at most 500 characters"));
        }
        if self.status.is_final() {
            return Err(AppError::Conflict(format!(
                "This occurrence has ended already: it is {}.",
                self.status.word()
            )));
        }
        self.note(format!("cancel {reason}"));
        let runs = self.status == OccurrenceStatus::Running;
        Ok(if runs { OccurrenceStatus::Running } else { OccurrenceStatus::Cancelled })
    }

    async fn log_before(&self, _me: &Me, _id: OccurrenceId, before_seq: i64) -> Result<Vec<LogLine>, AppError> {
        Ok(vec![samples::log_line(before_seq - 1, LogLevel::Debug, "a line further back")])
    }

    async fn workers(&self, _me: &Me) -> Result<Vec<WorkerView>, AppError> {
        Ok(if self.empty { vec![] } else { vec![samples::worker()] })
    }

    async fn team(&self, me: &Me) -> Result<TeamView, AppError> {
        let user = UserView { me: me.clone(), created_at: samples::at(0), last_sign_in_at: None };
        Ok(TeamView { users: vec![user], invites: vec![] })
    }

    async fn invite_user(&self, _me: &Me, name: &str, role: Role) -> Result<String, AppError> {
        self.note(format!("invite {name} as {}", role.slug()));
        Ok("/invite?token=good".into())
    }

    async fn revoke_invite(&self, _me: &Me, _id: UserId) -> Result<(), AppError> {
        self.note("revoke");
        Ok(())
    }
}
