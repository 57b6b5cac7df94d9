//! The backend of the dashboard: each operation of the pages, implemented by the commands and the store.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use http::request::Parts;
use milvaion_api::{
    calendar_form::CalendarForm,
    events::LiveEvent,
    failures::{
        DeadLetterFilter, DeadLetterRow, FailureFilter, FailureGroup, FailureRow, FailureScopePreview,
        FailureSelection, ResolveFailuresResult, RetryFailuresResult,
    },
    page::{JobFilter, ListPage, OccurrenceFilter, TimeWindow},
    permissions::Permission,
    requests::{JobForm, JobInput},
    rest::CancelDelayedResult,
    team::{LinkForm, LinkInfo},
    versions::{RestoreVersionResult, VersionDiff, VersionStep},
    views::{
        BlackoutView, CalendarRow, CalendarView, ClusterOverview, ClusterStatus, CurrentUser, JobFormContext, JobRow,
        JobView, MAX_COUNTED_OPEN, OccurrenceRow, OccurrenceView, SchedulePreview, WorkerView,
    },
};
use milvaion_app::{
    backend::{Backend, FlashMessage, RequestUser, RetryInput, TriggerInput},
    error::AppError,
};
use milvaion_protocol::{
    id::{CalendarId, DeadLetterId, JobId, OccurrenceId, UserId},
    message::LogLine,
    status::OccurrenceStatus,
};
use milvaion_schedule::schedule;

use super::{calendars, failures, job_counts::JobCounter};
use crate::{
    clock::Clock,
    command::{
        alerts::AlertCommands,
        cluster::ClusterCommands,
        jobs::JobCommands,
        one_time_links,
        sign_in::{self, PassphraseHasher, SignInOrigin, device},
        singletons::SingletonCommands,
    },
    config::http::HttpConfig,
    domain::liveness,
    error::chain,
    http::{
        client_address::client_address,
        device_cookie, guard,
        health::HealthCheck,
        session::{self, SessionOrigin},
    },
    store::{Store, audit::AuditEntry},
};

/// The number of log lines that a page loads at once.
const MAX_LOG_LINES: i64 = 500;

/// The longest time for reading the cluster pause. It exceeds the time limit of a session, so that the failure of a
/// session is recorded.
const PAUSE_READ_TIMEOUT: Duration = Duration::from_secs(4);

/// The server-side implementation of [`Backend`].
#[derive(Debug)]
pub struct ServerBackend {
    /// Access to PostgreSQL, with the connections of requests.
    pub store: Store,
    /// The numbers of jobs for the overview.
    pub job_counts: JobCounter,
    /// The clock of this server.
    pub clock: Clock,
    /// The commands that change jobs, calendars, occurrences and failures.
    pub jobs: JobCommands,
    /// The commands that pause and resume the cluster.
    pub cluster: ClusterCommands,
    /// The commands that change alert rules and channels.
    pub alerts: AlertCommands,
    /// The commands that control singleton loops.
    pub singletons: SingletonCommands,
    /// The hasher of passphrases.
    pub hasher: PassphraseHasher,
    /// The health checks of the services and of the dispatcher.
    pub health: HealthCheck,
    /// The addresses at which browsers reach this server.
    pub config: Arc<HttpConfig>,
}

impl ServerBackend {
    /// Returns the address of the client, or `None` if it is unknown.
    pub(super) fn address(&self, parts: &Parts) -> Option<std::net::IpAddr> {
        client_address(&self.config, parts)
    }

    /// Makes the browser that sent a request a known device of `user_id`, who has just signed in with it.
    pub(super) async fn remember_device(&self, parts: &Parts, user_id: UserId) {
        let presented = device_cookie::device_token(&self.config, parts);
        match device::remember(&self.store, &self.clock, user_id, presented.as_deref()).await {
            Ok(token) => device_cookie::set_device_token(&self.config, parts, token),
            // The user is signed in. The next sign-in tries again.
            Err(error) => tracing::error!(
                user.id = %user_id, error = %chain(&error),
                "the device of user {user_id} could not be stored; its next sign-in counts as one of a stranger"
            ),
        }
    }

    /// Makes every server check its event streams of this user, because a session of the user has ended.
    pub(super) fn check_streams_of(&self, user_id: UserId) {
        self.jobs.hub.publish(self.clock.now(), vec![LiveEvent::Session { user_id }]);
    }
}

fn job_not_found() -> AppError {
    AppError::NotFound("This job does not exist or was deleted.".into())
}

#[async_trait]
impl Backend for ServerBackend {
    async fn authorize(&self, parts: &Parts, action: Permission) -> Result<RequestUser, AppError> {
        let user = guard::authorize(&self.store, &self.clock, &self.config, parts, action).await?;
        Ok(RequestUser { user, address: self.address(parts) })
    }

    async fn me(&self, parts: &Parts) -> Result<Option<CurrentUser>, AppError> {
        guard::me(&self.store, &self.clock, parts).await
    }

    async fn sign_in(&self, parts: &Parts, email: &str, passphrase: &str) -> Result<CurrentUser, AppError> {
        let device = device_cookie::device_token(&self.config, parts);
        let origin = SignInOrigin { address: self.address(parts), device: device.as_deref() };
        let before = self.me(parts).await.ok().flatten();
        let since = self.clock.now();
        let me = sign_in::sign_in(&self.store, &self.clock, &self.hasher, origin, email, passphrase).await?;
        let origin = SessionOrigin::of(parts, self.address(parts));
        session::sign_in_session(guard::session(parts)?, &me, since, origin).await?;
        self.remember_device(parts, me.id).await;
        // The new session replaced the one that other tabs of this browser still use.
        if let Some(before) = before {
            self.check_streams_of(before.id);
        }
        Ok(me)
    }

    async fn sign_out(&self, parts: &Parts) -> Result<(), AppError> {
        let me = self.me(parts).await?;
        if let Some(me) = &me {
            let entry = AuditEntry::new(self.clock.now(), &me.email, "sign-out", format!("user:{}", me.id));
            self.store.audit(&entry.from(self.address(parts).map(|address| address.to_string()))).await?;
        }
        session::sign_out_session(guard::session(parts)?).await?;
        if let Some(me) = me {
            self.check_streams_of(me.id);
        }
        Ok(())
    }

    fn event_position(&self) -> Option<String> {
        self.jobs.hub.position()
    }

    async fn needs_setup(&self) -> Result<bool, AppError> {
        Ok(self.store.count_users().await? == 0)
    }

    async fn link_info(&self, token: &str) -> Result<Option<LinkInfo>, AppError> {
        one_time_links::info(&self.store, &self.clock, token).await
    }

    async fn accept_link(&self, parts: &Parts, form: &LinkForm) -> Result<CurrentUser, AppError> {
        let address = self.address(parts);
        let before = self.me(parts).await.ok().flatten();
        let me = one_time_links::accept(&self.store, &self.clock, &self.hasher, address, form).await?;
        let origin = SessionOrigin::of(parts, address);
        let signed_in = session::sign_in_session(guard::session(parts)?, &me, self.clock.now(), origin).await;
        self.check_streams_of(me.id);
        self.remember_device(parts, me.id).await;
        // This browser may have been signed in as another user.
        if let Some(before) = before.filter(|before| before.id != me.id) {
            self.check_streams_of(before.id);
        }
        signed_in.map(|()| me)
    }

    async fn put_flash(&self, parts: &Parts, flash: FlashMessage) -> Result<(), AppError> {
        session::put_flash(guard::session(parts)?, flash).await
    }

    async fn take_flash(&self, parts: &Parts, form: &str) -> Result<Option<FlashMessage>, AppError> {
        session::take_flash(guard::session(parts)?, form).await
    }

    async fn overview(&self, _me: &RequestUser, window: TimeWindow) -> Result<ClusterOverview, AppError> {
        let now = self.clock.now();
        let (numbers, jobs, open_failures) = tokio::try_join!(
            self.store.overview_snapshot(now, window, liveness::alive_since(now)),
            self.job_counts.get(&self.store),
            self.store.open_failures()
        )?;
        Ok(ClusterOverview {
            now,
            window,
            open: numbers.open,
            ended: numbers.ended,
            bars: numbers.bars,
            workers_alive: numbers.workers_alive,
            workers_known: numbers.workers_known,
            jobs_active: jobs.active,
            jobs_total: jobs.total,
            next_due: numbers.next_due,
            offers_demo: numbers.offers_demo,
            failures: numbers.failures,
            open_failures,
        })
    }

    async fn run_sample_job(&self, me: &RequestUser, idempotency_key: &str) -> Result<OccurrenceId, AppError> {
        self.jobs.run_sample_job(me, idempotency_key).await
    }

    async fn cluster_status(&self, parts: &Parts) -> Result<ClusterStatus, AppError> {
        let pause = async {
            guard::authorize(&self.store, &self.clock, &self.config, parts, Permission::Read).await?;
            let (pause, alerts) = tokio::join!(self.cluster.state(), self.store.firing_alerts());
            // The number of alerts is shown beside the pause, and must not hide it.
            Ok((pause?, alerts.unwrap_or_default()))
        };
        let (pause, health) =
            tokio::join!(tokio::time::timeout(PAUSE_READ_TIMEOUT, pause), self.health.items(self.clock.now()));
        let pause = match pause {
            Ok(Ok(pause)) => Some(pause),
            Ok(Err(error @ (AppError::SignedOut | AppError::Denied(_)))) => return Err(error),
            // PostgreSQL holds the session and the pause. Without it, only the health remains, which is public.
            Ok(Err(_)) | Err(_) => None,
        };
        let is_pause_known = pause.is_some();
        let (pause, alerts) = pause.unwrap_or_default();
        Ok(ClusterStatus { now: self.clock.now(), health, is_pause_known, pause, alerts })
    }

    async fn pause_cluster(&self, me: &RequestUser, reason: &str) -> Result<(), AppError> {
        self.cluster.pause(me, reason).await
    }

    async fn resume_cluster(&self, me: &RequestUser) -> Result<(), AppError> {
        self.cluster.resume(me).await
    }

    async fn jobs(&self, _me: &RequestUser, filter: JobFilter) -> Result<ListPage<JobRow>, AppError> {
        Ok(self.store.jobs(&filter, liveness::alive_since(self.clock.now())).await?)
    }

    async fn job(&self, _me: &RequestUser, id: JobId, viewer_zone: Option<&str>) -> Result<JobView, AppError> {
        let job = self.store.job_to_show(id).await?.ok_or_else(job_not_found)?;
        self.view(job, viewer_zone).await
    }

    async fn form_context(&self, _me: &RequestUser, job: Option<JobId>) -> Result<JobFormContext, AppError> {
        let job = match job {
            Some(id) => {
                let stored = self.store.job(id).await?.ok_or_else(job_not_found)?;
                Some(self.view(stored, None).await?)
            }
            None => None,
        };
        Ok(JobFormContext {
            job_types: self.store.job_types(liveness::alive_since(self.clock.now())).await?,
            zones: schedule::zone_names().into_iter().map(str::to_owned).collect(),
            calendars: calendars::rows(self.jobs.calendars().await?, self.clock.now()),
            job,
        })
    }

    async fn preview(
        &self,
        _me: &RequestUser,
        form: &JobForm,
        viewer_zone: Option<&str>,
    ) -> Result<SchedulePreview, AppError> {
        let schedule = form.schedule().map_err(AppError::Fields)?;
        // The form shows the error of an invalid rule at its field. The preview works without the rules.
        let rules = form.rules().unwrap_or_default();
        let id = form.id.parse().unwrap_or_default();
        let job = JobInput::schedule_only(schedule, rules);
        let next = match self.store.job(id).await? {
            Some(before) => self.jobs.next_after_edit(&before, &job, self.clock.now()).await?,
            None => None,
        };
        self.preview_of(id, &job, next, viewer_zone).await
    }

    async fn check_job(&self, _me: &RequestUser, form: &JobForm) -> Result<(), AppError> {
        self.jobs.check(form).await.map(drop)
    }

    async fn save_job(&self, me: &RequestUser, form: &JobForm) -> Result<JobId, AppError> {
        self.jobs.save(me, form).await
    }

    async fn trigger_job(&self, me: &RequestUser, id: JobId, input: TriggerInput) -> Result<OccurrenceId, AppError> {
        self.jobs.run_now(me, id, input).await
    }

    async fn attach_job(&self, me: &RequestUser, id: JobId) -> Result<(), AppError> {
        self.jobs.attach_to_code(me, id).await
    }

    async fn delayed_count(&self, _me: &RequestUser, id: JobId) -> Result<i64, AppError> {
        Ok(self.store.count_delayed(id, MAX_COUNTED_OPEN + 1).await?)
    }

    async fn cancel_delayed(&self, me: &RequestUser, id: JobId, reason: &str) -> Result<CancelDelayedResult, AppError> {
        self.jobs.cancel_delayed(me, id, reason).await
    }

    async fn skip_due(&self, me: &RequestUser, id: JobId, due: DateTime<Utc>) -> Result<(), AppError> {
        self.jobs.skip_due(me, id, due).await
    }

    async fn set_job_active(
        &self,
        me: &RequestUser,
        id: JobId,
        active: bool,
        reason: &str,
    ) -> Result<Option<String>, AppError> {
        self.jobs.set_active(me, id, active, reason).await
    }

    async fn delete_job(&self, me: &RequestUser, id: JobId) -> Result<String, AppError> {
        self.jobs.delete(me, id, None).await
    }

    async fn calendars(&self, _me: &RequestUser) -> Result<Vec<CalendarRow>, AppError> {
        Ok(calendars::rows(self.jobs.calendars().await?, self.clock.now()))
    }

    async fn calendar(&self, _me: &RequestUser, id: CalendarId) -> Result<CalendarView, AppError> {
        calendars::view(&self.store, id).await
    }

    async fn check_calendar(&self, _me: &RequestUser, form: &CalendarForm) -> Result<Vec<BlackoutView>, AppError> {
        let calendar = form.check().map_err(AppError::Fields)?;
        Ok(calendars::upcoming_blackouts(&calendar, self.clock.now()))
    }

    async fn save_calendar(&self, me: &RequestUser, form: &CalendarForm) -> Result<CalendarId, AppError> {
        let calendar = form.check().map_err(AppError::Fields)?;
        self.jobs.save_calendar(me, calendars::edited_version(form)?, &calendar).await
    }

    async fn delete_calendar(&self, me: &RequestUser, id: CalendarId) -> Result<String, AppError> {
        self.jobs.delete_calendar(me, id).await
    }

    async fn job_history(
        &self,
        _me: &RequestUser,
        id: JobId,
        before: Option<i32>,
    ) -> Result<ListPage<VersionStep>, AppError> {
        self.jobs.history(id, before).await
    }

    async fn compare_versions(
        &self,
        _me: &RequestUser,
        id: JobId,
        from: i32,
        to: i32,
    ) -> Result<VersionDiff, AppError> {
        self.jobs.compare_versions(id, from, to).await
    }

    async fn restore_version(
        &self,
        me: &RequestUser,
        id: JobId,
        version: i32,
        expected: i32,
    ) -> Result<RestoreVersionResult, AppError> {
        self.jobs.restore(me, id, version, expected).await
    }

    async fn failure_groups(
        &self,
        _me: &RequestUser,
        filter: FailureFilter,
    ) -> Result<ListPage<FailureGroup>, AppError> {
        failures::groups(&self.store, &filter, self.clock.now()).await
    }

    async fn failures(&self, _me: &RequestUser, filter: FailureFilter) -> Result<ListPage<FailureRow>, AppError> {
        failures::page(&self.store, &filter).await
    }

    async fn failure_preview(&self, _me: &RequestUser, filter: FailureFilter) -> Result<FailureScopePreview, AppError> {
        failures::preview(&self.store, &filter).await
    }

    async fn failure(&self, _me: &RequestUser, id: OccurrenceId) -> Result<FailureRow, AppError> {
        failures::one(&self.store, id).await
    }

    async fn retry_failures(
        &self,
        me: &RequestUser,
        which: &FailureSelection,
        seen: usize,
        how: RetryInput,
    ) -> Result<RetryFailuresResult, AppError> {
        failures::retry(&self.jobs, me, which, seen, &how).await
    }

    async fn resolve_failures(
        &self,
        me: &RequestUser,
        which: &FailureSelection,
        seen: usize,
        note: &str,
    ) -> Result<ResolveFailuresResult, AppError> {
        failures::resolve(&self.jobs, me, which, seen, note).await
    }

    async fn dead_letters(
        &self,
        _me: &RequestUser,
        filter: DeadLetterFilter,
    ) -> Result<ListPage<DeadLetterRow>, AppError> {
        failures::dead_letters(&self.store, &filter).await
    }

    async fn resolve_dead_letters(
        &self,
        me: &RequestUser,
        ids: &[DeadLetterId],
        note: &str,
    ) -> Result<usize, AppError> {
        self.jobs.resolve_dead_letters(me, ids, note).await
    }

    async fn occurrences(
        &self,
        _me: &RequestUser,
        mut filter: OccurrenceFilter,
    ) -> Result<ListPage<OccurrenceRow>, AppError> {
        filter.ended_since = filter.window.map(|window| window.start(self.clock.now()));
        Ok(self.store.occurrences(&filter).await?)
    }

    async fn occurrence(
        &self,
        _me: &RequestUser,
        id: OccurrenceId,
        log_after: Option<i64>,
    ) -> Result<OccurrenceView, AppError> {
        let alive_since = liveness::alive_since(self.clock.now());
        let view = self.store.occurrence_with_log(id, log_after, MAX_LOG_LINES, alive_since).await?;
        let view = view
            .ok_or_else(|| AppError::NotFound("This occurrence does not exist or was deleted by retention.".into()))?;
        Ok(OccurrenceView { trace_url: self.config.trace_url(&view.trace_id), ..view })
    }

    async fn log_before(&self, _me: &RequestUser, id: OccurrenceId, before_seq: i64) -> Result<Vec<LogLine>, AppError> {
        Ok(self.store.log_before(id, before_seq, MAX_LOG_LINES).await?)
    }

    async fn log_range(
        &self,
        _me: &RequestUser,
        id: OccurrenceId,
        after: i64,
        before: i64,
    ) -> Result<Vec<LogLine>, AppError> {
        Ok(self.store.oldest_log_lines(id, after, before, MAX_LOG_LINES).await?)
    }

    async fn cancel_occurrence(
        &self,
        me: &RequestUser,
        id: OccurrenceId,
        reason: &str,
    ) -> Result<OccurrenceStatus, AppError> {
        self.jobs.cancel(me, id, reason).await
    }

    async fn workers(&self, _me: &RequestUser) -> Result<Vec<WorkerView>, AppError> {
        let now = self.clock.now();
        Ok(self.store.workers(now - chrono::Duration::days(1), now).await?)
    }
}
