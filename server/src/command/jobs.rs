//! Jobs: save, run now, pause, resume, delete.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use chrono::{DateTime, Utc};
use milvaion_api::{
    events::LiveEvent,
    requests::{FieldError, JobForm, JobInput},
    views::CurrentUser,
};
use milvaion_app::error::AppError;
use milvaion_protocol::id::{CalendarId, JobId};
use milvaion_schedule::calendar::Calendar;
use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use crate::{
    broker::publisher::Publisher,
    cache::Cache,
    clock::Clock,
    live::Hub,
    store::{
        Store,
        jobs::{AuditStamp, StoredJob},
    },
};
use milvaion_schedule::due::EffectiveSchedule;

/// How often an edit is made anew because the job was fired meanwhile. A job that is due each second is fired between
/// reading and writing once in hundreds of edits.
const MAX_EDIT_ATTEMPTS: usize = 5;

/// What changing a job needs.
#[derive(Clone, Debug)]
pub struct JobCommands {
    /// The truth.
    pub store: Store,
    /// The fast clock.
    pub cache: Cache,
    /// The way to workers.
    pub publisher: Publisher,
    /// The way to browsers.
    pub hub: Hub,
    /// What time it is.
    pub clock: Clock,
    /// Wakes this server's dispatcher.
    pub activate_dispatcher: Arc<Notify>,
    /// Wakes this server's republisher.
    pub activate_republisher: Arc<Notify>,
    /// Wakes whoever hands out slots.
    pub activate_slot_granter: Arc<Notify>,
    /// Wakes whoever repeats cancellations.
    pub activate_cancellation_repeater: Arc<Notify>,
    /// What is on its way to the broker; waited for when the server stops.
    pub in_flight: TaskTracker,
}

impl JobCommands {
    /// Checks the whole form: its own rules, and the input against the schema its job type announced.
    ///
    /// # Errors
    ///
    /// The wrong fields.
    pub async fn check(&self, form: &JobForm) -> Result<JobInput, AppError> {
        let schema = match form.target.split_once('/') {
            Some((worker, job_type)) => self.store.schema(worker, job_type).await?,
            None => None,
        };
        let mut job = form.check(schema.as_ref(), self.clock.now()).map_err(AppError::Fields)?;
        if let Some(schema) = &schema {
            let as_json = form.input_mode == "json";
            check_input(schema, &job.job_data, as_json).map_err(AppError::Fields)?;
        }
        let calendars = self.calendars_of(&job).await?;
        if job.rules.calendars.iter().any(|id| !calendars.contains_key(id)) {
            return Err(AppError::field(
                "rules.calendars",
                "a chosen calendar does not exist, or no longer: choose again",
            ));
        }
        strip_nul(&mut job);
        Ok(job)
    }

    /// Creates or changes a job.
    ///
    /// # Errors
    ///
    /// `Fields`, `NotFound`, or `Conflict` when somebody else changed it since the form was drawn.
    pub async fn save(&self, me: &CurrentUser, form: &JobForm) -> Result<JobId, AppError> {
        let job = self.check(form).await?;
        let now = self.clock.now();
        let edit = AuditStamp { by: &me.email, at: now };
        let (id, next) = if form.id.is_empty() {
            let id = self.clock.job_id();
            let next = if job.is_active { self.first_due(id, &job, None, now).await? } else { None };
            self.store.insert_job(id, &job, next, edit).await?;
            (id, next)
        } else {
            let id: JobId = form.id.parse().map_err(|_| gone())?;
            let version: i32 = form.version.parse().map_err(|_| conflict())?;
            let before = self.store.job(id).await?.ok_or_else(gone)?;
            if before.version != version {
                return Err(conflict());
            }
            let (_, next) = self.replace(before, &job, edit).await?;
            (id, next)
        };
        self.publisher.ensure_queue(&job.worker_id, &job.job_type).await;
        self.publish_change(id, next, LiveEvent::Job { id }).await;
        Ok(id)
    }

    /// Pauses or resumes a job. What it is already is no mistake.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Conflict`, or `Fields` for `reason`.
    pub async fn set_active(&self, me: &CurrentUser, id: JobId, active: bool, reason: &str) -> Result<(), AppError> {
        let reason = reason.trim().replace('\0', "");
        if reason.chars().count() > 500 {
            return Err(AppError::field("reason", "at most 500 characters"));
        }
        let job = self.store.job(id).await?.ok_or_else(gone)?;
        // Whoever pauses what was disabled with a cool-down means that it stays so.
        let is_so = job.definition.is_active == active && (active || job.auto_disabled_at.is_none());
        if is_so {
            return Ok(());
        }
        let now = self.clock.now();
        let next = if active { self.first_due(id, &job.definition, job.last_fire_at, now).await? } else { None };
        let reason = Some(reason.as_str()).filter(|reason| !reason.is_empty());
        if !self.store.set_active(&job, active, next, reason, AuditStamp { by: &me.email, at: now }).await? {
            return Err(conflict());
        }
        self.publish_change(id, next, LiveEvent::Job { id }).await;
        Ok(())
    }

    /// Deletes a job. Returns its name.
    ///
    /// # Errors
    ///
    /// `NotFound`.
    pub async fn delete(&self, me: &CurrentUser, id: JobId) -> Result<String, AppError> {
        let name =
            self.store.delete_job(id, AuditStamp { by: &me.email, at: self.clock.now() }).await?.ok_or_else(gone)?;
        self.publish_change(id, None, LiveEvent::JobDeleted { id }).await;
        Ok(name)
    }

    /// Replaces the definition of the job that was read as `before`. Returns the new version, and when the job is due next.
    ///
    /// # Errors
    ///
    /// `Conflict` when somebody else edited it meanwhile, `NotFound` when it is gone.
    pub(super) async fn replace(
        &self,
        before: StoredJob,
        job: &JobInput,
        edit: AuditStamp<'_>,
    ) -> Result<(i32, Option<DateTime<Utc>>), AppError> {
        let (version, mut before) = (before.version, before);
        for _ in 0..MAX_EDIT_ATTEMPTS {
            let next = self.next_after_edit(&before, job, edit.at).await?;
            if let Some(version) = self.store.update_job(&before, job, next, edit).await? {
                return Ok((version, next));
            }
            // Fired or edited since it was read. The first is no reason to bother anybody.
            before = self.store.job(before.id).await?.ok_or_else(gone)?;
            if before.version != version {
                break;
            }
        }
        Err(conflict())
    }

    /// When a job is due first, after what it `fired` last. None also when it is due so long after the end of a run that
    /// is open: the releaser makes it due then.
    pub(crate) async fn first_due(
        &self,
        id: JobId,
        job: &JobInput,
        fired: Option<DateTime<Utc>>,
        now: DateTime<Utc>,
    ) -> Result<Option<DateTime<Utc>>, AppError> {
        if job.schedule.delay_after_end().is_some() && self.store.has_open_run(id).await? {
            return Ok(None);
        }
        let calendars = self.calendars_of(job).await?;
        let kept: Vec<&Calendar> = calendars.values().collect();
        Ok(EffectiveSchedule::new(id, &job.schedule, &job.rules, &kept).first(fired, now))
    }

    /// The calendars a job keeps to.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn calendars_of(&self, job: &JobInput) -> Result<HashMap<CalendarId, Calendar>, AppError> {
        let named = job.rules.calendars.iter().copied().collect::<HashSet<_>>();
        if named.is_empty() {
            return Ok(HashMap::new());
        }
        Ok(self.store.calendars_by_id(&named).await?)
    }

    /// When a job is due next after an edit: one that leaves the schedule alone leaves the rhythm alone too; any other
    /// starts it anew.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn next_after_edit(
        &self,
        before: &StoredJob,
        job: &JobInput,
        now: DateTime<Utc>,
    ) -> Result<Option<DateTime<Utc>>, AppError> {
        if !job.is_active {
            return Ok(None);
        }
        // A pause that waits for the end of a run is kept too, though nothing is due then.
        let waits_for_end = job.schedule.delay_after_end().is_some();
        if is_due_alike(&before.definition, job) && (before.next_fire_at.is_some() || waits_for_end) {
            return Ok(before.next_fire_at);
        }
        self.first_due(before.id, job, before.last_fire_at, now).await
    }

    /// Tells Redis, the dispatchers and the browsers.
    pub(crate) async fn publish_change(&self, id: JobId, next: Option<DateTime<Utc>>, event: LiveEvent) {
        let noted = self.cache.note_due(&[(id, next)]).await;
        if let Err(error) = noted {
            tracing::debug!(error = %error, "Redis did not hear of a changed job");
        }
        self.activate_dispatcher.notify_one();
        if let Err(error) = self.cache.announce_schedule_change().await {
            tracing::debug!(error = %error, "other servers did not hear of a changed job");
        }
        self.hub.publish(self.clock.now(), vec![event]);
    }
}

/// Whether two definitions are due at the same instants, so that an edit need not start the rhythm anew.
fn is_due_alike(before: &JobInput, after: &JobInput) -> bool {
    let when = |job: &JobInput| {
        let rules = &job.rules;
        (rules.start_at, rules.end_at, rules.jitter_seconds, rules.calendars.clone(), rules.blackout)
    };
    before.is_active && before.schedule == after.schedule && when(before) == when(after)
}

/// Judges an input by its schema: at most ten complaints, each beside its field.
pub(super) fn check_input(schema: &Value, data: &Value, as_json: bool) -> Result<(), Vec<FieldError>> {
    let Ok(validator) = jsonschema::validator_for(schema) else {
        // A worker announced something that is no schema; its own decoding stays the judge.
        return Ok(());
    };
    let errors: Vec<FieldError> = validator
        .iter_errors(data)
        .take(10)
        .map(|error| {
            let path = error.instance_path().to_string();
            let first = path.trim_start_matches('/').split('/').next().unwrap_or_default().to_owned();
            let message = error.to_string();
            match (as_json, first.is_empty()) {
                (false, false) => FieldError::new(format!("input.{first}"), message),
                (_, true) => FieldError::new("input_json", message),
                (true, false) => FieldError::new("input_json", format!("{path}: {message}")),
            }
        })
        .collect();
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// PostgreSQL's text and jsonb cannot hold NUL.
fn strip_nul(job: &mut JobInput) {
    for text in [&mut job.display_name, &mut job.description] {
        if text.contains('\0') {
            *text = text.replace('\0', "");
        }
    }
    for tag in &mut job.tags {
        *tag = tag.replace('\0', "");
    }
    strip_json(&mut job.job_data);
}

fn strip_json(value: &mut Value) {
    match value {
        Value::String(text) if text.contains('\0') => *text = text.replace('\0', ""),
        Value::Array(items) => items.iter_mut().for_each(strip_json),
        Value::Object(map) => map.values_mut().for_each(strip_json),
        _ => {}
    }
}

pub(super) fn gone() -> AppError {
    AppError::NotFound("This job does not exist, or no longer.".into())
}

pub(super) fn conflict() -> AppError {
    AppError::Conflict("Somebody else changed this job meanwhile. Load the page again and repeat your change.".into())
}

#[cfg(test)]
mod tests {
    use milvaion_schedule::rules::Rules;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_complains_beside_the_field() {
        let schema =
            json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]});
        let errors = check_input(&schema, &json!({"n": 0}), false).expect_err("wrong");
        assert_eq!(errors[0].field, "input.n");
        let errors = check_input(&schema, &json!({"n": 0}), true).expect_err("wrong");
        assert_eq!(errors[0].field, "input_json");
        let errors = check_input(&schema, &json!({}), false).expect_err("wrong");
        assert_eq!(errors[0].field, "input_json");
        assert!(check_input(&schema, &json!({"n": 1}), false).is_ok());
    }

    #[test]
    fn an_edit_keeps_the_rhythm_unless_it_changes_it() {
        let now = DateTime::UNIX_EPOCH + chrono::Duration::days(1);
        let job = |seconds| JobInput {
            display_name: "x".into(),
            description: String::new(),
            tags: Vec::new(),
            worker_id: "w".into(),
            job_type: "t".into(),
            job_data: Value::Null,
            schedule: milvaion_schedule::schedule::Schedule::every(seconds),
            is_active: true,
            priority: 3,
            timeout_seconds: None,
            rules: Rules::default(),
        };
        assert!(is_due_alike(&job(10), &JobInput { display_name: "y".into(), ..job(10) }));
        assert!(!is_due_alike(&job(10), &job(20)));
        assert!(!is_due_alike(&JobInput { is_active: false, ..job(10) }, &job(10)));
        let later = Rules { start_at: Some(now), ..Rules::default() };
        assert!(!is_due_alike(&job(10), &JobInput { rules: later, ..job(10) }));
    }
}
