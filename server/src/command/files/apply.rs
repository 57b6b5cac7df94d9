//! The apply: carries out a plan, one transaction for each file.
//!
//! Between the plan and the transaction, a job may be edited or dispatched. The jobs are locked first: an edit makes the
//! file be planned again, and a dispatch only moves the due time from which the next one is computed.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use milvaion_api::{
    events::LiveEvent,
    rest::{ApplyFiles, FilesPlan, PlannedOutcome},
    sources::JobSourceKind,
};
use milvaion_app::error::AppError;
use milvaion_protocol::id::{CalendarId, JobId};

use super::{FilesCaller, FilesError, PlannedCalendar, PlannedFile, PlannedJob, rules::PlannedRule};
use crate::{
    command::{
        definitions::is_key_taken,
        jobs::{JobCommands, first_due_in, kept_due},
    },
    error::chain,
    store::{
        DefinitionBatch, LockedJob, StoreError,
        alerts::SaveOutcome,
        calendars::CalendarSet,
        jobs::{AuditStamp, StoredJob},
        sources::JobOfFile,
    },
};

/// The most attempts to apply a file. An attempt fails if an object of the file is edited at the same moment.
const MAX_ATTEMPTS: usize = 5;

/// A job with its next due time.
type DueTime = (JobId, Option<DateTime<Utc>>);

/// What transactions have changed, for Redis, the broker and the browsers.
#[derive(Debug, Default)]
struct Changes {
    due_times: Vec<DueTime>,
    events: Vec<LiveEvent>,
    calendars: Vec<CalendarId>,
    /// True if alert rules were saved.
    has_rules: bool,
    targets: HashSet<(String, String)>,
}

impl JobCommands {
    /// Makes jobs and calendars be as files say. Returns what was changed.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`plan_files`](Self::plan_files), and then nothing was changed. Returns `Conflict` if an
    /// object is edited again and again meanwhile; its text names the files that were applied.
    pub async fn apply_files(&self, caller: FilesCaller<'_>, request: &ApplyFiles) -> Result<FilesPlan, FilesError> {
        let mut plan = self.prepare_files(caller, request).await?;
        let mut reports: Vec<_> = plan.files.iter().map(|file| file.report.clone()).collect();
        let mut applied: Vec<&str> = Vec::new();
        let order = plan.order.clone();
        for index in order {
            let mut attempts = 0;
            loop {
                let outcome = self.apply_file(caller, &plan.files[index], &plan.calendars).await;
                if outcome.map_err(|error| interrupted(error, &applied))? {
                    break;
                }
                attempts += 1;
                if attempts == MAX_ATTEMPTS {
                    let text = format!("Objects of {} are being edited at this moment.", request.files[index].name);
                    return Err(interrupted(AppError::Conflict(text).into(), &applied));
                }
                plan = self.prepare_files(caller, request).await.map_err(|error| interrupted(error, &applied))?;
                reports[index] = plan.files[index].report.clone();
            }
            applied.push(&request.files[index].name);
        }
        let deleted = self.prune(caller, request, &plan.deleted).await.map_err(|error| interrupted(error, &applied))?;
        let report = plan.into_report();
        let deleted = report.deleted.into_iter().filter(|_| deleted).collect();
        Ok(FilesPlan { files: reports, deleted, warnings: report.warnings })
    }

    /// Applies one file, completely or not at all. Returns false if it must be planned again.
    async fn apply_file(
        &self,
        caller: FilesCaller<'_>,
        file: &PlannedFile,
        calendars: &CalendarSet,
    ) -> Result<bool, FilesError> {
        let now = self.clock.now();
        let edit = AuditStamp { by: &caller.me.email, at: now, address: caller.me.address };
        let mut due_times = HashMap::new();
        for planned in file.jobs.iter().filter(|planned| planned.outcome != PlannedOutcome::Unchanged) {
            due_times.insert(planned.id, self.next_due(planned, calendars, now).await?);
            tokio::task::yield_now().await;
        }
        let mut changes = Changes::default();
        let saved = self.save_file(file, calendars, &due_times, edit, &mut changes).await;
        match saved {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) if is_race(&error) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        self.publish_files(changes).await;
        Ok(true)
    }

    /// Saves the objects of a file in one transaction. Returns false, and saves nothing, if one is not as it was planned.
    async fn save_file(
        &self,
        file: &PlannedFile,
        calendars: &CalendarSet,
        due_times: &HashMap<JobId, Option<DateTime<Utc>>>,
        edit: AuditStamp<'_>,
        changes: &mut Changes,
    ) -> Result<bool, StoreError> {
        let ids: Vec<JobId> = file.jobs.iter().map(|job| job.id).collect();
        if ids.is_empty() && file.calendars.is_empty() && file.rules.is_empty() {
            return Ok(true);
        }
        // In one order, because a transaction waits for another one that inserts the same key or name.
        let mut jobs: Vec<&PlannedJob> = file.jobs.iter().collect();
        jobs.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        let mut named: Vec<&PlannedCalendar> = file.calendars.iter().collect();
        named.sort_unstable_by(|a, b| a.calendar.name.cmp(&b.calendar.name));
        let mut batch = self.store.begin_definitions().await?;
        for calendar in named {
            if !batch.save_calendar(calendar.id, calendar.version, &calendar.calendar, edit).await? {
                return Ok(false);
            }
            changes.calendars.push(calendar.id);
        }
        let mut rules: Vec<&PlannedRule> = file.rules.iter().collect();
        rules.sort_unstable_by(|a, b| a.rule.name.cmp(&b.rule.name));
        for planned in rules {
            let PlannedRule { id, version, rule, channels } = planned;
            if batch.save_alert_rule(*id, *version, rule, channels, edit).await? != SaveOutcome::Saved {
                return Ok(false);
            }
            changes.has_rules = true;
        }
        let locked = batch.lock_jobs(&ids).await?;
        for planned in jobs {
            let next = due_times.get(&planned.id).copied().flatten();
            let lock = locked.get(&planned.id);
            let Some(next) = save_job(&mut batch, planned, lock, next, calendars, edit).await? else {
                return Ok(false);
            };
            if planned.outcome != PlannedOutcome::Unchanged {
                changes.targets.insert((planned.job.worker_id.clone(), planned.job.job_type.clone()));
                changes.due_times.push((planned.id, next));
                changes.events.push(LiveEvent::Job { id: planned.id });
            }
        }
        batch.set_file(&ids, &file.report.name, edit).await?;
        batch.commit().await?;
        Ok(true)
    }

    /// Returns the next due time of a new or changed job.
    async fn next_due(
        &self,
        planned: &PlannedJob,
        calendars: &CalendarSet,
        now: DateTime<Utc>,
    ) -> Result<Option<DateTime<Utc>>, FilesError> {
        let job = &planned.job;
        let Some(before) = &planned.before else {
            return Ok(job.is_active.then(|| first_due_in(planned.id, job, None, now, calendars)).flatten());
        };
        if let Some(kept) = kept_due(before, job) {
            return Ok(kept);
        }
        // The slot granter sets the due time when that run ends.
        if job.schedule.delay_after_end().is_some() && self.store.has_open_run(planned.id).await? {
            return Ok(None);
        }
        Ok(first_due_in(planned.id, job, before.last_fire_at, before.computed_from(job, now), calendars))
    }

    /// Deletes the jobs that no file has any more, all or none. Returns false if there are none.
    async fn prune(
        &self,
        caller: FilesCaller<'_>,
        request: &ApplyFiles,
        jobs: &[JobOfFile],
    ) -> Result<bool, FilesError> {
        if request.prune.is_none() || jobs.is_empty() {
            return Ok(false);
        }
        let edit = AuditStamp { by: &caller.me.email, at: self.clock.now(), address: caller.me.address };
        let mut batch = self.store.begin_definitions().await?;
        let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
        batch.lock_jobs(&ids).await?;
        let mut changes = Changes::default();
        for job in jobs {
            if !batch.delete_job(job.id, job.version, edit).await? {
                let text = format!("The job {:?} is being edited, so no job was deleted.", job.display_name);
                return Err(AppError::Conflict(text).into());
            }
            changes.due_times.push((job.id, None));
            changes.events.push(LiveEvent::JobDeleted { id: job.id });
        }
        batch.commit().await?;
        self.publish_files(changes).await;
        Ok(true)
    }

    /// Notifies the broker, Redis, the dispatchers and the browsers of what was saved.
    async fn publish_files(&self, changes: Changes) {
        for (worker_id, job_type) in &changes.targets {
            self.publisher.ensure_queue(worker_id, job_type).await;
        }
        self.publish_changes(&changes.due_times, changes.events).await;
        if changes.has_rules {
            self.hub.publish(self.clock.now(), vec![LiveEvent::Alerts]);
        }
        if changes.calendars.is_empty() {
            return;
        }
        let events = changes.calendars.into_iter().map(|id| LiveEvent::Calendar { id }).collect();
        self.hub.publish(self.clock.now(), events);
        // The calendars are saved. What this request does not come to, the background task does.
        if let Err(error) = self.apply_calendar_edit().await {
            tracing::warn!(error = chain(error.as_ref()), "the due times of a calendar's jobs are computed later");
        }
    }
}

/// Returns true if another request has created an object with the same key or name, or if the two have locked each other.
fn is_race(error: &StoreError) -> bool {
    let names = ["calendars_name_key", "alert_rules_name_key", "alert_rule_channels_channel_id_fkey"];
    is_key_taken(error) || error.constraint().is_some_and(|name| names.contains(&name)) || error.is_deadlock()
}

/// Saves a job in a transaction and returns its next due time, or none if the job is not as it was planned.
async fn save_job(
    batch: &mut DefinitionBatch,
    planned: &PlannedJob,
    lock: Option<&LockedJob>,
    next: Option<DateTime<Utc>>,
    calendars: &CalendarSet,
    edit: AuditStamp<'_>,
) -> Result<Option<Option<DateTime<Utc>>>, StoreError> {
    let Some(before) = &planned.before else {
        batch.insert_job(planned.id, Some(&planned.key), &planned.job, next, JobSourceKind::File, edit).await?;
        return Ok(Some(next));
    };
    let Some(lock) = lock.filter(|lock| lock.version == before.version) else { return Ok(None) };
    if before.key.is_none() && !batch.set_key(planned.id, &planned.key).await? {
        return Ok(None);
    }
    if planned.outcome == PlannedOutcome::Unchanged {
        return Ok(Some(lock.next_fire_at));
    }
    let mut next = next;
    let mut before = before.clone();
    if (before.next_fire_at, before.last_fire_at) != (lock.next_fire_at, lock.last_fire_at) {
        // Whether a run is open is known to another statement only.
        if planned.job.schedule.delay_after_end().is_some() {
            return Ok(None);
        }
        before = StoredJob { next_fire_at: lock.next_fire_at, last_fire_at: lock.last_fire_at, ..before };
        let job = &planned.job;
        next = kept_due(&before, job).unwrap_or_else(|| {
            first_due_in(planned.id, job, lock.last_fire_at, before.computed_from(job, edit.at), calendars)
        });
    }
    Ok(batch.update_job(&before, &planned.job, next, edit).await?.then_some(next))
}

/// Adds the files that were applied to the error that stopped a request.
fn interrupted(error: FilesError, applied: &[&str]) -> FilesError {
    if applied.is_empty() {
        return error;
    }
    let reason = match error {
        FilesError::Other(AppError::Conflict(reason) | AppError::Failed(reason)) => reason,
        FilesError::Other(other) => return FilesError::Other(other),
        FilesError::Documents(_) => "A document became invalid meanwhile.".into(),
    };
    FilesError::Other(AppError::Conflict(format!(
        "{reason} These files are applied completely: {}. Repeat the request for the others.",
        applied.join(", ")
    )))
}
