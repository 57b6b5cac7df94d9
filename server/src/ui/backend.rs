//! What the dashboard may ask, answered by the rooms that know.

use std::sync::Arc;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use http::request::Parts;
use milvaion_api::{
    access::{Action, Role},
    calendar_form::CalendarForm,
    failure::{DeadLetterFilter, DeadLetterRow, FailureFilter, FailureGroup, FailureRow, Resolved, Retried, Which},
    page::{JobFilter, OccurrenceFilter, Page},
    request::{JobForm, JobInput},
    versions::{Difference, Restored, VersionStep},
    view::{
        BlackoutView, CalendarName, CalendarRow, CalendarView, ClusterPause, FormContext, InviteInfo, JobRow, JobView,
        Me, OccurrenceRow, OccurrenceView, Overview, SchedulePreview, TeamView, WorkerView,
    },
};
use milvaion_app::{
    backend::{Backend, Flash, RetryInput, TriggerInput},
    error::AppError,
};
use milvaion_protocol::{
    id::{CalendarId, DeadLetterId, JobId, OccurrenceId, UserId},
    message::LogLine,
    status::OccurrenceStatus,
};
use milvaion_schedule::{calendar::Calendar, schedule};

use super::{calendars, failures, preview::preview};
use crate::{
    clock::Clock,
    command::{
        cluster::Cluster,
        invite,
        jobs::Jobs,
        sign_in::{self, Hasher},
    },
    config::http::HttpConfig,
    domain::liveness,
    http::{guard, health::HealthCheck, session},
    store::{Store, audit::AuditEntry, jobs::StoredJob},
};

/// How many log lines a page opens with.
const LOG_LINES: i64 = 500;

/// The server behind the dashboard.
#[derive(Debug)]
pub struct ServerBackend {
    /// The truth.
    pub store: Store,
    /// What time it is.
    pub clock: Clock,
    /// Changing jobs.
    pub jobs: Jobs,
    /// Pausing everything.
    pub cluster: Cluster,
    /// Hashing passphrases.
    pub hasher: Hasher,
    /// How every part is.
    pub health: HealthCheck,
    /// Who reaches us how.
    pub config: Arc<HttpConfig>,
}

impl ServerBackend {
    /// Where a request came from. Behind a proxy everybody has the proxy's address, which tells nothing about anybody and
    /// must not make them share one brake.
    fn address(&self, parts: &Parts) -> Option<std::net::IpAddr> {
        guard::address(parts).filter(|_| self.config.public_url.is_none())
    }

    async fn view(&self, job: StoredJob, viewer_zone: Option<&str>) -> Result<JobView, AppError> {
        let alive = self.store.alive_types(liveness::alive_since(self.clock.now())).await?;
        let mut recent = self.store.recent(&[job.id.0]).await?;
        let definition = job.definition;
        let schema = self.store.schema(&definition.worker_id, &definition.job_type).await?;
        Ok(JobView {
            row: JobRow {
                id: job.id,
                display_name: definition.display_name.clone(),
                worker_id: definition.worker_id.clone(),
                job_type: definition.job_type.clone(),
                schedule_words: definition.schedule.words(),
                next_fire_at: job.next_fire_at,
                is_active: definition.is_active,
                tags: definition.tags.clone(),
                recent: recent.remove(&job.id.0).unwrap_or_default(),
                worker_alive: alive.contains(&(definition.worker_id.clone(), definition.job_type.clone())),
            },
            preview: self.preview_of(job.id, &definition, job.next_fire_at, viewer_zone).await?,
            calendars: self.names_of(&definition).await?,
            version: job.version,
            paused_reason: job.paused_reason,
            created_at: job.created_at,
            created_by: job.created_by,
            modified_at: job.modified_at,
            modified_by: job.modified_by,
            schema,
            definition,
        })
    }
}

impl ServerBackend {
    /// What the schedule and the rules of a job come to.
    async fn preview_of(
        &self,
        id: JobId,
        job: &JobInput,
        next: Option<DateTime<Utc>>,
        viewer_zone: Option<&str>,
    ) -> Result<SchedulePreview, AppError> {
        let calendars = self.jobs.calendars_of(job).await?;
        let kept: Vec<&Calendar> = calendars.values().collect();
        let mut preview = preview(id, job, &kept, next, viewer_zone, self.clock.now());
        if job.rules.jitter_seconds > 0 && id == JobId::default() {
            let at_most = job.rules.jitter_seconds;
            preview.warnings.push(format!("Each fire will come up to {at_most} s later: the job's own jitter."));
        }
        Ok(preview)
    }

    /// The calendars a job keeps to, by name.
    async fn names_of(&self, job: &JobInput) -> Result<Vec<CalendarName>, AppError> {
        let calendars = self.jobs.calendars_of(job).await?;
        let mut names: Vec<_> =
            calendars.into_iter().map(|(id, calendar)| CalendarName { id, name: calendar.name }).collect();
        names.sort_unstable_by_key(|calendar| (calendar.name.to_lowercase(), calendar.id));
        Ok(names)
    }
}

fn no_job() -> AppError {
    AppError::NotFound("This job does not exist, or no longer.".into())
}

#[async_trait]
impl Backend for ServerBackend {
    async fn authorize(&self, parts: &Parts, action: Action) -> Result<Me, AppError> {
        guard::authorize(&self.store, &self.clock, &self.config, parts, action).await
    }

    async fn me(&self, parts: &Parts) -> Result<Option<Me>, AppError> {
        guard::me(&self.store, &self.clock, parts).await
    }

    async fn sign_in(&self, parts: &Parts, email: &str, passphrase: &str) -> Result<Me, AppError> {
        let address = self.address(parts);
        let me = sign_in::sign_in(&self.store, &self.clock, &self.hasher, address, email, passphrase).await?;
        session::sign_in_session(guard::session(parts)?, &me, self.clock.now()).await?;
        Ok(me)
    }

    async fn sign_out(&self, parts: &Parts) -> Result<(), AppError> {
        if let Some(me) = self.me(parts).await? {
            let entry = AuditEntry::new(self.clock.now(), &me.email, "sign-out", format!("user:{}", me.id));
            self.store.audit(&entry.from(self.address(parts).map(|address| address.to_string()))).await?;
        }
        session::sign_out_session(guard::session(parts)?).await
    }

    async fn needs_setup(&self) -> Result<bool, AppError> {
        Ok(self.store.count_users().await? == 0)
    }

    async fn invite(&self, token: &str) -> Result<InviteInfo, AppError> {
        invite::info(&self.store, &self.clock, token).await
    }

    async fn accept_invite(
        &self,
        parts: &Parts,
        token: &str,
        name: &str,
        email: &str,
        passphrase: &str,
    ) -> Result<Me, AppError> {
        let address = self.address(parts);
        let me =
            invite::accept(&self.store, &self.clock, &self.hasher, address, token, name, email, passphrase).await?;
        session::sign_in_session(guard::session(parts)?, &me, self.clock.now()).await?;
        Ok(me)
    }

    async fn put_flash(&self, parts: &Parts, flash: Flash) -> Result<(), AppError> {
        session::put_flash(guard::session(parts)?, flash).await
    }

    async fn take_flash(&self, parts: &Parts, form: &str) -> Result<Option<Flash>, AppError> {
        session::take_flash(guard::session(parts)?, form).await
    }

    async fn overview(&self, _me: &Me) -> Result<Overview, AppError> {
        let now = self.clock.now();
        let (numbers, open_failures, health) = tokio::join!(
            self.store.numbers(now, liveness::alive_since(now)),
            self.store.open_failures(),
            self.health.items()
        );
        let numbers = numbers?;
        Ok(Overview {
            now,
            health,
            last_hour: numbers.last_hour,
            minutes: numbers.minutes,
            workers_alive: numbers.workers_alive,
            workers_known: numbers.workers_known,
            jobs_active: numbers.jobs_active,
            jobs_total: numbers.jobs_total,
            next_due: numbers.next_due,
            failures: numbers.failures,
            open_failures: open_failures?,
        })
    }

    async fn cluster_state(&self, _me: &Me) -> Result<Option<ClusterPause>, AppError> {
        self.cluster.state().await
    }

    async fn pause_cluster(&self, me: &Me, reason: &str) -> Result<(), AppError> {
        self.cluster.pause(me, reason).await
    }

    async fn resume_cluster(&self, me: &Me) -> Result<(), AppError> {
        self.cluster.resume(me).await
    }

    async fn jobs(&self, _me: &Me, filter: JobFilter) -> Result<Page<JobRow>, AppError> {
        Ok(self.store.jobs(&filter, liveness::alive_since(self.clock.now())).await?)
    }

    async fn job(&self, _me: &Me, id: JobId, viewer_zone: Option<&str>) -> Result<JobView, AppError> {
        let job = self.store.job(id).await?.ok_or_else(no_job)?;
        self.view(job, viewer_zone).await
    }

    async fn form_context(&self, _me: &Me, job: Option<JobId>) -> Result<FormContext, AppError> {
        let job = match job {
            Some(id) => {
                let stored = self.store.job(id).await?.ok_or_else(no_job)?;
                Some(self.view(stored, None).await?)
            }
            None => None,
        };
        Ok(FormContext {
            job_types: self.store.job_types(liveness::alive_since(self.clock.now())).await?,
            zones: schedule::zone_names().into_iter().map(str::to_owned).collect(),
            calendars: calendars::rows(self.jobs.calendars().await?, self.clock.now()),
            job,
        })
    }

    async fn preview(&self, _me: &Me, form: &JobForm, viewer_zone: Option<&str>) -> Result<SchedulePreview, AppError> {
        let schedule = form.schedule().map_err(AppError::Fields)?;
        // A wrong rule has its message beside its own field; the schedule can be shown without it.
        let rules = form.rules().unwrap_or_default();
        let id = form.id.parse().unwrap_or_default();
        let job = JobInput::sketch(schedule, rules);
        let next = match self.store.job(id).await? {
            Some(before) => self.jobs.next_after_edit(&before, &job, self.clock.now()).await?,
            None => None,
        };
        self.preview_of(id, &job, next, viewer_zone).await
    }

    async fn check_job(&self, _me: &Me, form: &JobForm) -> Result<(), AppError> {
        self.jobs.check(form).await.map(drop)
    }

    async fn save_job(&self, me: &Me, form: &JobForm) -> Result<JobId, AppError> {
        self.jobs.save(me, form).await
    }

    async fn trigger_job(&self, me: &Me, id: JobId, input: TriggerInput) -> Result<OccurrenceId, AppError> {
        self.jobs.trigger(me, id, input).await
    }

    async fn set_job_active(&self, me: &Me, id: JobId, active: bool, reason: &str) -> Result<(), AppError> {
        self.jobs.set_active(me, id, active, reason).await
    }

    async fn delete_job(&self, me: &Me, id: JobId) -> Result<String, AppError> {
        self.jobs.delete(me, id).await
    }

    async fn calendars(&self, _me: &Me) -> Result<Vec<CalendarRow>, AppError> {
        Ok(calendars::rows(self.jobs.calendars().await?, self.clock.now()))
    }

    async fn calendar(&self, _me: &Me, id: CalendarId) -> Result<CalendarView, AppError> {
        calendars::view(&self.store, id).await
    }

    async fn check_calendar(&self, _me: &Me, form: &CalendarForm) -> Result<Vec<BlackoutView>, AppError> {
        let calendar = form.check().map_err(AppError::Fields)?;
        Ok(calendars::falls(&calendar, self.clock.now()))
    }

    async fn save_calendar(&self, me: &Me, form: &CalendarForm) -> Result<CalendarId, AppError> {
        let calendar = form.check().map_err(AppError::Fields)?;
        self.jobs.save_calendar(me, calendars::edited(form)?, &calendar).await
    }

    async fn delete_calendar(&self, me: &Me, id: CalendarId) -> Result<String, AppError> {
        self.jobs.delete_calendar(me, id).await
    }

    async fn job_history(&self, _me: &Me, id: JobId, before: Option<i32>) -> Result<Page<VersionStep>, AppError> {
        self.jobs.history(id, before).await
    }

    async fn compare_versions(&self, _me: &Me, id: JobId, from: i32, to: i32) -> Result<Difference, AppError> {
        self.jobs.compare_versions(id, from, to).await
    }

    async fn restore_version(&self, me: &Me, id: JobId, version: i32, expected: i32) -> Result<Restored, AppError> {
        self.jobs.restore(me, id, version, expected).await
    }

    async fn failure_groups(&self, _me: &Me, filter: FailureFilter) -> Result<Page<FailureGroup>, AppError> {
        failures::groups(self, &filter).await
    }

    async fn failures(&self, _me: &Me, filter: FailureFilter) -> Result<Page<FailureRow>, AppError> {
        failures::page(self, &filter).await
    }

    async fn failure(&self, _me: &Me, id: OccurrenceId) -> Result<FailureRow, AppError> {
        failures::one(self, id).await
    }

    async fn retry_failures(&self, me: &Me, which: &Which, seen: usize, how: RetryInput) -> Result<Retried, AppError> {
        failures::retry(self, me, which, seen, &how).await
    }

    async fn resolve_failures(&self, me: &Me, which: &Which, seen: usize, note: &str) -> Result<Resolved, AppError> {
        failures::resolve(self, me, which, seen, note).await
    }

    async fn dead_letters(&self, _me: &Me, filter: DeadLetterFilter) -> Result<Page<DeadLetterRow>, AppError> {
        failures::letters(self, &filter).await
    }

    async fn resolve_dead_letters(&self, me: &Me, ids: &[DeadLetterId], note: &str) -> Result<usize, AppError> {
        self.jobs.resolve_dead_letters(me, ids, note).await
    }

    async fn occurrences(&self, _me: &Me, filter: OccurrenceFilter) -> Result<Page<OccurrenceRow>, AppError> {
        Ok(self.store.occurrences(&filter).await?)
    }

    async fn occurrence(&self, _me: &Me, id: OccurrenceId) -> Result<OccurrenceView, AppError> {
        let alive_since = liveness::alive_since(self.clock.now());
        self.store
            .occurrence(id, LOG_LINES, alive_since)
            .await?
            .ok_or_else(|| AppError::NotFound("This occurrence does not exist, or is no longer kept.".into()))
    }

    async fn log_before(&self, _me: &Me, id: OccurrenceId, before_seq: i64) -> Result<Vec<LogLine>, AppError> {
        Ok(self.store.log_before(id, before_seq, LOG_LINES).await?)
    }

    async fn cancel_occurrence(&self, me: &Me, id: OccurrenceId, reason: &str) -> Result<OccurrenceStatus, AppError> {
        self.jobs.cancel(me, id, reason).await
    }

    async fn workers(&self, _me: &Me) -> Result<Vec<WorkerView>, AppError> {
        let now = self.clock.now();
        Ok(self.store.workers(now - chrono::Duration::days(1), now).await?)
    }

    async fn team(&self, _me: &Me) -> Result<TeamView, AppError> {
        let users = self.store.list_users().await?;
        let invites = self.store.list_invites(self.clock.now()).await?;
        Ok(TeamView {
            users: users.iter().map(crate::store::users::UserRow::view).collect(),
            invites: invites.iter().map(crate::store::users::InviteRow::view).collect(),
        })
    }

    async fn invite_user(&self, me: &Me, name: &str, role: Role) -> Result<String, AppError> {
        invite::create(&self.store, &self.clock, me, name, role).await
    }

    async fn revoke_invite(&self, me: &Me, id: UserId) -> Result<(), AppError> {
        invite::revoke(&self.store, &self.clock, me, id).await
    }
}
