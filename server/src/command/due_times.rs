//! Due times that are computed again for many jobs, after an edit of a calendar and after a clock that was ahead, and
//! the next due time of one job, which a user skips.
//!
//! Thousands of jobs may use one calendar, so this takes longer than a request may. It is done in pages, each of which
//! may be repeated, and the place that was reached is stored: neither a closed browser nor a stopped server ends it early.
//!
//! A skipped due time is the last one of its job from then on, as if it had been dispatched, so that a later
//! computation does not find it again.

use std::{collections::HashSet, time::Duration};

use chrono::{DateTime, SecondsFormat, Utc};
use milvaion_api::events::LiveEvent;
use milvaion_app::{backend::RequestUser, error::AppError};
use milvaion_protocol::id::JobId;
use milvaion_schedule::{calendar::Calendar, due::EffectiveSchedule};
use tokio::time::Instant;

use super::jobs::{JobCommands, conflict, first_due_in, not_found};
use crate::{
    error::chain,
    store::{
        calendars::CalendarSet,
        create::NewRun,
        due_times::{DueTimeMove, ScheduledJob},
        jobs::{AuditStamp, MIN_AHEAD},
    },
};

/// The number of jobs in a page.
const PAGE: i64 = 500;
/// The longest time for the arithmetic of one page. At least one job is computed.
const MAX_COMPUTING: Duration = Duration::from_secs(1);
/// The most jobs for which browsers get one event each. For more, they read their pages again.
const MAX_JOB_EVENTS: usize = 20;
/// How far back due times are looked for after a clock that was ahead. That the clock was set is noticed within a minute.
const NOTICED_WITHIN: chrono::Duration = chrono::Duration::seconds(60);

/// The result of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageResult {
    /// The jobs that got another due time.
    pub moved: usize,
    /// The last job of the page, or `None` if the page was the last one.
    pub upto: Option<JobId>,
}

impl JobCommands {
    /// Skips the next due time of a job, which must be `due`, so that two requests do not skip two. It is recorded as a
    /// skipped occurrence, and the job is due at the following one.
    ///
    /// # Errors
    ///
    /// Returns `NotFound`, or `Conflict` if the job is not due next at `due`, if it would not be due again, or if the
    /// cluster is paused.
    pub async fn skip_due(&self, me: &RequestUser, id: JobId, due: DateTime<Utc>) -> Result<(), AppError> {
        let mut job = self.store.job(id).await?.ok_or_else(not_found)?;
        if job.next_fire_at == Some(due) {
            let calendars = self.calendars_of(&job.definition).await?;
            let next = first_due_in(id, &job.definition, Some(due), due, &calendars);
            if next.is_none() {
                return Err(AppError::Conflict("This is the last due time of this job. Pause the job instead.".into()));
            }
            let run = NewRun {
                id: self.clock.occurrence_id(),
                job_id: id,
                due: Some(due),
                version: job.version,
                next_fire_at: next,
                is_skipped: true,
                note: Some(format!("Skipped: {} has skipped this due time.", me.email)),
                ..NewRun::default()
            };
            let edit = AuditStamp { by: &me.email, at: self.clock.now(), address: me.address };
            if let Some(skipped) = self.store.insert_skipped_run(&run, edit).await? {
                let events = vec![LiveEvent::Occurrences { rows: vec![skipped.row] }, LiveEvent::Job { id }];
                self.publish_changes(&[(id, next)], events).await;
                return Ok(());
            }
            job = self.store.job(id).await?.ok_or_else(not_found)?;
        }
        let is_cluster_paused = self.store.is_cluster_paused().await?;
        let reason = refusal(job.next_fire_at, due, job.definition.is_active, is_cluster_paused);
        Err(reason.map_or_else(conflict, AppError::Conflict))
    }

    /// Computes the due times of one page of the jobs that use an edited calendar. A job that is edited, or of which a run
    /// is created, in the meantime is skipped: that change has used the new calendar, or the dispatcher will. Returns
    /// `None` if no calendar is left.
    ///
    /// # Errors
    ///
    /// Returns an error if PostgreSQL fails; then nothing was recorded, and the page is computed again.
    pub async fn apply_calendar_edit(&self) -> anyhow::Result<Option<PageResult>> {
        let Some(change) = self.store.edited_calendar().await? else { return Ok(None) };
        let jobs = self.store.jobs_of_calendar(change.id, change.applied_to, PAGE).await?;
        let now = self.clock.now();
        let page = self
            .recompute(jobs, move |job, schedule| {
                // The dispatcher handles a due time that has passed, by the new calendar and the misfire policy. A schedule
                // that counts from the end of a run has none while that run is open.
                let waits = schedule.counts_from_end() && job.next_fire_at.is_none();
                if waits || job.next_fire_at.is_some_and(|due| due <= now) {
                    return job.next_fire_at;
                }
                schedule.after_calendar_change(job.last_fire_at, job.next_fire_at, now)
            })
            .await?;
        self.store.note_applied(change, page.upto).await?;
        self.hub.publish(now, vec![LiveEvent::Calendar { id: change.id }]);
        Ok(Some(page))
    }

    /// Computes the due times of one page of the jobs that a clock that was ahead made silent: their last due time, or
    /// their last edit, is in the future. Each gets the next due time by the present clock, if that is earlier.
    pub async fn wake_silent_jobs(&self, after: JobId) -> anyhow::Result<PageResult> {
        let now = self.clock.now();
        let jobs = self.store.jobs_ahead_of(now + MIN_AHEAD, after, PAGE).await?;
        // A job of which a user has skipped a due time is not silent.
        let mut skipped = HashSet::new();
        for job in &jobs {
            if let Some(last) = job.last_fire_at.filter(|last| *last > now + MIN_AHEAD)
                && self.store.is_skipped(job.id, last, now).await?
            {
                skipped.insert(job.id);
            }
        }
        self.recompute(jobs, move |job, schedule| {
            if skipped.contains(&job.id) || (schedule.counts_from_end() && job.next_fire_at.is_none()) {
                return job.next_fire_at;
            }
            // A due time that was dispatched by the right clock is not looked for again.
            let since = job
                .last_fire_at
                .filter(|last| *last <= now)
                .map_or(now - NOTICED_WITHIN, |last| last.max(now - NOTICED_WITHIN));
            let next = schedule.after_clock_ahead(job.last_fire_at, job.next_fire_at, since);
            match (next, job.next_fire_at) {
                (Some(next), Some(due)) => Some(next.min(due)),
                (next, due) => next.or(due),
            }
        })
        .await
    }

    /// Sets a page of other instants in the future to now; see [`pull_back_instants`](crate::store::Store::pull_back_instants).
    /// Returns the number of rows, and true if there may be more.
    pub async fn pull_back_instants(&self) -> anyhow::Result<(u64, bool)> {
        let now = self.clock.now();
        let rows = self.store.pull_back_instants(now + MIN_AHEAD, now, PAGE).await?;
        Ok((rows, rows >= PAGE.unsigned_abs()))
    }

    /// Moves the due times of a page of jobs to those that `next` returns.
    async fn recompute(
        &self,
        jobs: Vec<ScheduledJob>,
        next: impl Fn(&ScheduledJob, &EffectiveSchedule<'_>) -> Option<DateTime<Utc>> + Send + 'static,
    ) -> anyhow::Result<PageResult> {
        let is_last = jobs.len() < usize::try_from(PAGE).unwrap_or(usize::MAX);
        let ids = jobs.iter().flat_map(|job| job.rules.calendars.iter().copied()).collect();
        let calendars = self.store.calendars_by_id(&ids).await?;
        let until = Instant::now() + MAX_COMPUTING;
        let (moves, computed, upto) = tokio::task::spawn_blocking(move || {
            let mut moves = Vec::new();
            for (n, job) in jobs.iter().enumerate() {
                if n > 0 && Instant::now() > until {
                    return (moves, n, jobs.get(n - 1).map(|job| job.id));
                }
                moves.extend(moved(job, &calendars, &next));
            }
            (moves, jobs.len(), jobs.last().map(|job| job.id).filter(|_| !is_last))
        })
        .await?;
        tracing::debug!(computed, moved = moves.len(), "computed due times again");
        if moves.is_empty() {
            return Ok(PageResult { moved: 0, upto });
        }
        let moved = self.store.move_due_times(&moves).await?;
        self.publish_moves(&moved).await;
        Ok(PageResult { moved: moved.len(), upto })
    }

    /// Notifies Redis, the dispatchers and the browsers of moved due times.
    async fn publish_moves(&self, moved: &[(JobId, Option<DateTime<Utc>>)]) {
        let events = moved.iter().map(|(id, _)| LiveEvent::Job { id: *id }).collect();
        self.publish_changes(moved, events).await;
    }

    /// Notifies Redis and the dispatchers of the due times of changed jobs, and the browsers of events about jobs.
    pub(super) async fn publish_changes(&self, moved: &[(JobId, Option<DateTime<Utc>>)], events: Vec<LiveEvent>) {
        if moved.is_empty() {
            return;
        }
        let noted = self.cache.note_changed(moved, async |ids| anyhow::Ok(self.store.due_times(ids).await?)).await;
        if let Err(error) = noted {
            let reason = chain(error.as_ref());
            tracing::debug!(error = reason, "{} due times were not written to Redis", moved.len());
        }
        self.activate_dispatcher.notify_one();
        if let Err(error) = self.cache.announce_schedule_change().await {
            tracing::debug!(error = %error, "moved due times were not announced to other servers");
        }
        let events = if events.len() > MAX_JOB_EVENTS { vec![LiveEvent::Resync] } else { events };
        self.hub.publish(self.clock.now(), events);
    }
}

/// Returns the move of a job's due time, or `None` if it stays. A job that this version cannot read stays as it is.
fn moved(
    job: &ScheduledJob,
    calendars: &CalendarSet,
    next: impl Fn(&ScheduledJob, &EffectiveSchedule<'_>) -> Option<DateTime<Utc>>,
) -> Option<DueTimeMove> {
    if job.unreadable_rule.is_some() || calendars.unreadable_among(&job.rules.calendars).is_some() {
        return None;
    }
    let blackouts: Vec<&Calendar> = job.rules.calendars.iter().filter_map(|id| calendars.readable.get(id)).collect();
    let schedule = EffectiveSchedule::new(job.id, job.schedule.as_ref()?, &job.rules, &blackouts);
    let next = next(job, &schedule);
    (next != job.next_fire_at).then_some(DueTimeMove { id: job.id, version: job.version, was: job.next_fire_at, next })
}

/// Returns the reason for which the due time `due` of a job, whose next one is `next`, cannot be skipped.
fn refusal(
    next: Option<DateTime<Utc>>,
    due: DateTime<Utc>,
    is_active: bool,
    is_cluster_paused: bool,
) -> Option<String> {
    let text = |at: DateTime<Utc>| at.to_rfc3339_opts(SecondsFormat::AutoSi, true);
    match next {
        Some(next) if next == due => {
            is_cluster_paused.then(|| "All schedules are paused. Resume them, then skip the due time.".into())
        }
        Some(next) => {
            Some(format!("This job is due next at {}, not at {}. Nothing was skipped.", text(next), text(due)))
        }
        None if is_active => Some("This job has no next due time that could be skipped.".into()),
        None => Some("This job is paused, so it has no next due time that could be skipped.".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_next_due_time_can_be_skipped() {
        let due = DateTime::UNIX_EPOCH;
        assert_eq!(refusal(Some(due), due, true, false), None);
        let paused = "All schedules are paused. Resume them, then skip the due time.";
        assert_eq!(refusal(Some(due), due, true, true).as_deref(), Some(paused));
        let later = due + chrono::Duration::milliseconds(86_400_250);
        let reason =
            "This job is due next at 1970-01-02T00:00:00.250Z, not at 1970-01-01T00:00:00Z. Nothing was skipped.";
        assert_eq!(refusal(Some(later), due, true, true).as_deref(), Some(reason));
        for (is_active, part) in [(true, "has no next due time"), (false, "is paused")] {
            assert!(refusal(None, due, is_active, false).is_some_and(|reason| reason.contains(part)), "{part}");
        }
    }
}
