//! The view of one job: its definition, its schedule preview, its recent runs and its worker.

use chrono::{DateTime, Utc};
use milvaion_api::{
    requests::JobInput,
    sources::{CodeSource, JobSource, JobSourceKind},
    views::{CalendarName, JobRow, JobView, MAX_COUNTED_OPEN, SchedulePreview},
};
use milvaion_app::error::AppError;
use milvaion_protocol::id::JobId;
use milvaion_schedule::calendar::Calendar;

use super::{backend::ServerBackend, preview::preview};
use crate::{
    domain::liveness,
    store::{
        calendars::CalendarSet,
        jobs::{StoredJob, UNREADABLE_SCHEDULE},
    },
};

impl ServerBackend {
    /// Builds the view of a stored job. Due times are also given in `viewer_zone`.
    pub(super) async fn view(&self, job: StoredJob, viewer_zone: Option<&str>) -> Result<JobView, AppError> {
        let alive = self.store.alive_types(liveness::alive_since(self.clock.now())).await?;
        let mut recent = self.store.recent_statuses(&[job.id.0]).await?;
        let edited = match job.source.is_behind(job.version) {
            true => self.store.edits_since_source(&[job.id]).await?.remove(&job.id),
            false => None,
        };
        let declared = match job.source.kind {
            JobSourceKind::Code => self.store.declared_job(job.id).await?,
            _ => None,
        };
        let declared = declared.map(|declared| CodeSource {
            worker_id: declared.key.worker_id,
            job_type: declared.key.job_type,
            schedule: declared.key.name,
            is_retired: declared.is_retired,
        });
        let source = JobSource { kind: job.source.kind, file: job.source.file, edited, declared };
        let definition = job.definition;
        let calendars = self.jobs.calendars_of(&definition).await?;
        let unreadable = job
            .unreadable
            .or_else(|| calendars.unreadable_among(&definition.rules.calendars))
            .or_else(|| definition.schedule.check().is_err().then(|| UNREADABLE_SCHEDULE.to_owned()));
        let has_schedule = unreadable.as_deref() != Some(UNREADABLE_SCHEDULE);
        let schedule_words =
            if has_schedule { definition.schedule.describe() } else { "Unreadable: upgrade this server".into() };
        let preview = if has_schedule {
            self.preview_of(job.id, &definition, job.next_fire_at, viewer_zone).await?
        } else {
            SchedulePreview { words: schedule_words.clone(), ..SchedulePreview::default() }
        };
        let schema = self.store.schema(&definition.worker_id, &definition.job_type).await?;
        Ok(JobView {
            row: JobRow {
                id: job.id,
                key: job.key,
                display_name: definition.display_name.clone(),
                worker_id: definition.worker_id.clone(),
                job_type: definition.job_type.clone(),
                schedule_words,
                next_fire_at: job.next_fire_at,
                is_active: definition.is_active,
                tags: definition.tags.clone(),
                recent: recent.remove(&job.id.0).unwrap_or_default(),
                worker_alive: alive.contains(&(definition.worker_id.clone(), definition.job_type.clone())),
            },
            preview,
            delayed: self.store.count_delayed(job.id, MAX_COUNTED_OPEN + 1).await?,
            calendars: names_of(calendars),
            version: job.version,
            unreadable,
            paused_reason: job.paused_reason,
            source,
            created_at: job.created_at,
            created_by: job.created_by,
            modified_at: job.modified_at,
            modified_by: job.modified_by,
            schema,
            definition,
        })
    }

    /// Builds the preview of a schedule with its rules and calendars.
    pub(super) async fn preview_of(
        &self,
        id: JobId,
        job: &JobInput,
        next: Option<DateTime<Utc>>,
        viewer_zone: Option<&str>,
    ) -> Result<SchedulePreview, AppError> {
        let calendars = self.jobs.calendars_of(job).await?;
        let (shown, zone, now) = (job.clone(), viewer_zone.map(str::to_owned), self.clock.now());
        // With full calendars, it takes up to a second.
        let mut preview = tokio::task::spawn_blocking(move || {
            let calendars: Vec<&Calendar> = calendars.readable.values().collect();
            preview(id, &shown, &calendars, next, zone.as_deref(), now)
        })
        .await
        .map_err(|error| AppError::Failed(error.to_string()))?;
        if job.rules.jitter_seconds > 0 && id == JobId::default() {
            let max_delay = job.rules.jitter_seconds;
            preview.warnings.push(format!("Each run starts up to {max_delay} s later, because the job has jitter."));
        }
        Ok(preview)
    }
}

/// Returns the names of calendars, in their order.
fn names_of(calendars: CalendarSet) -> Vec<CalendarName> {
    let CalendarSet { readable, unreadable } = calendars;
    let readable = readable.into_iter().map(|(id, calendar)| (id, calendar.name));
    let mut names: Vec<_> = readable.chain(unreadable).map(|(id, name)| CalendarName { id, name }).collect();
    names.sort_unstable_by_key(|calendar| (calendar.name.to_lowercase(), calendar.id));
    names
}
