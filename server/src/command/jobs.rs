//! Jobs: save, pause, resume and delete.

use std::{collections::HashSet, sync::Arc};

use chrono::{DateTime, Utc};
use jsonschema::{ValidationError, error::ValidationErrorKind};
use milvaion_api::{
    events::LiveEvent,
    requests::{FieldError, JobForm, JobInput},
    schema_form::BuiltInput,
    sources::JobSourceKind,
};
use milvaion_app::{backend::RequestUser, error::AppError};
use milvaion_protocol::{
    id::JobId,
    storable::{clean_text, clean_value},
};
use milvaion_schedule::calendar::Calendar;
use serde_json::Value;
use tokio::sync::Notify;

use crate::{
    broker::publisher::Publisher,
    cache::Cache,
    clock::Clock,
    engine::{activators::EndedJobs, context::Context, sender::MessageSender},
    error::chain,
    live::Hub,
    store::{
        Store,
        calendars::CalendarSet,
        jobs::{AuditStamp, StoredJob},
    },
};
use milvaion_schedule::due::EffectiveSchedule;

/// The most attempts of an edit. An attempt fails if a run of the job is created between reading and writing, which
/// happens once in hundreds of edits to a job that is due every second.
const MAX_EDIT_ATTEMPTS: usize = 5;

/// The commands that change jobs, calendars, occurrences, failures and dead letters.
#[derive(Clone, Debug)]
pub struct JobCommands {
    /// Access to PostgreSQL.
    pub store: Store,
    /// Access to Redis.
    pub cache: Cache,
    /// The publisher of messages to workers.
    pub publisher: Publisher,
    /// The sender of new occurrences.
    pub sender: MessageSender,
    /// The live events for browsers.
    pub hub: Hub,
    /// The clock of this server.
    pub clock: Clock,
    /// The activator of this server's dispatcher.
    pub activate_dispatcher: Arc<Notify>,
    /// The activator of this server's slot granter.
    pub activate_slot_granter: Arc<Notify>,
    /// The jobs of which a run has ended, for the slot granter.
    pub ended_jobs: EndedJobs,
    /// The activator of this server's cancellation repeater.
    pub activate_cancellation_repeater: Arc<Notify>,
    /// Held while this server looks for the sample job.
    pub sample_job: Arc<tokio::sync::Mutex<()>>,
}

impl JobCommands {
    /// Creates the commands that the services of a server use.
    #[must_use]
    pub fn of(context: &Context) -> Self {
        Self {
            store: context.store.clone(),
            cache: context.cache.clone(),
            publisher: context.publisher.clone(),
            sender: context.sender.clone(),
            hub: context.hub.clone(),
            clock: context.clock.clone(),
            activate_dispatcher: context.activators.dispatcher.clone(),
            activate_slot_granter: context.activators.slot_granter.clone(),
            ended_jobs: context.activators.ended_jobs.clone(),
            activate_cancellation_repeater: context.activators.cancellation_repeater.clone(),
            sample_job: Arc::default(),
        }
    }

    /// Checks a whole form: its own rules, the input against the schema that its job type announced, and the calendars.
    ///
    /// # Errors
    ///
    /// Returns `Fields` with all invalid fields.
    pub async fn check(&self, form: &JobForm) -> Result<JobInput, AppError> {
        let schema = match form.target.split_once('/') {
            Some((worker, job_type)) => self.store.schema(worker, job_type).await?,
            None => None,
        };
        let as_json = form.is_json_input(schema.as_ref());
        let validate = |input: &BuiltInput| match &schema {
            Some(schema) => check_input(schema, &input.data, (!as_json).then_some(input)).err().unwrap_or_default(),
            None => Vec::new(),
        };
        let mut job = form.check_with(schema.as_ref(), self.clock.now(), &validate).map_err(AppError::Fields)?;
        let calendars = self.calendars_of(&job).await?;
        let is_known = |id| calendars.readable.contains_key(id) || calendars.unreadable.contains_key(id);
        if !job.rules.calendars.iter().all(is_known) {
            return Err(AppError::field("rules.calendars", "a selected calendar was deleted: select again"));
        }
        clean(&mut job);
        Ok(job)
    }

    /// Creates or changes a job. An equal definition changes nothing.
    ///
    /// # Errors
    ///
    /// Returns `Fields` for invalid fields, `NotFound` if the job does not exist, and `Conflict` if it was changed
    /// after the form was rendered.
    pub async fn save(&self, me: &RequestUser, form: &JobForm) -> Result<JobId, AppError> {
        let job = self.check(form).await?;
        let now = self.clock.now();
        let edit = AuditStamp { by: &me.email, at: now, address: me.address };
        let (id, next) = if form.id.is_empty() {
            let id = self.clock.job_id();
            let next = if job.is_active { self.first_due(id, &job, None, now).await? } else { None };
            self.store.insert_job(id, &job, next, edit).await?;
            (id, next)
        } else {
            let id: JobId = form.id.parse().map_err(|_| not_found())?;
            let version: i32 = form.version.parse().map_err(|_| conflict())?;
            let before = self.store.job(id).await?.ok_or_else(not_found)?;
            if before.version != version {
                return Err(conflict());
            }
            if job == before.definition {
                return Ok(id);
            }
            let (_, next) = self.replace(JobSourceKind::Dashboard, before, &job, edit, false).await?;
            (id, next)
        };
        self.publisher.ensure_queue(&job.worker_id, &job.job_type).await;
        self.publish_change(id, next, LiveEvent::Job { id }).await;
        Ok(id)
    }

    /// Pauses or resumes a job. Returns the reason of the pause that a resume has ended. Succeeds if the job is in that
    /// state already.
    ///
    /// # Errors
    ///
    /// Returns `NotFound`, `Conflict`, or `Fields` for an invalid `reason`.
    pub async fn set_active(
        &self,
        me: &RequestUser,
        id: JobId,
        active: bool,
        reason: &str,
    ) -> Result<Option<String>, AppError> {
        let reason = super::reason(reason)?;
        let job = self.store.job(id).await?.ok_or_else(not_found)?;
        // A user who pauses a job that was auto-disabled with a cool-down wants it to stay paused.
        let is_unchanged = job.definition.is_active == active && (active || job.auto_disabled_at.is_none());
        if is_unchanged {
            return Ok(None);
        }
        let now = self.clock.now();
        let next = if active { self.first_due(id, &job.definition, job.last_fire_at, now).await? } else { None };
        let stamp = AuditStamp { by: &me.email, at: now, address: me.address };
        if !self.store.set_active(&job, active, next, reason.as_deref(), stamp).await? {
            return Err(conflict());
        }
        self.publish_change(id, next, LiveEvent::Job { id }).await;
        Ok(job.paused_reason.filter(|_| active))
    }

    /// Deletes a job, of which `expected` is the version if it is given. Returns its name.
    ///
    /// # Errors
    ///
    /// Returns `NotFound` if the job does not exist, and `Conflict` if it is at another version.
    pub async fn delete(&self, me: &RequestUser, id: JobId, expected: Option<i32>) -> Result<String, AppError> {
        let edit = AuditStamp { by: &me.email, at: self.clock.now(), address: me.address };
        let Some(name) = self.store.delete_job(id, expected, edit).await? else {
            let job = self.store.job_to_show(id).await?.ok_or_else(not_found)?;
            return Err(AppError::Conflict(format!(
                "This job is at version {}. Read it again before you delete it.",
                job.version
            )));
        };
        self.publish_change(id, None, LiveEvent::JobDeleted { id }).await;
        Ok(name)
    }

    /// Replaces the definition of the job that was read as `before`, through the door `source`. Occurrences that wait for a
    /// slot keep their limits if `keeps_limits` is true. Returns the new version and the next due time.
    ///
    /// # Errors
    ///
    /// Returns `Conflict` if the job was edited in the meantime, and `NotFound` if it was deleted.
    pub(super) async fn replace(
        &self,
        source: JobSourceKind,
        before: StoredJob,
        job: &JobInput,
        edit: AuditStamp<'_>,
        keeps_limits: bool,
    ) -> Result<(i32, Option<DateTime<Utc>>), AppError> {
        let (version, mut before) = (before.version, before);
        for _ in 0..MAX_EDIT_ATTEMPTS {
            let next = self.next_after_edit(&before, job, edit.at).await?;
            if let Some(version) = self.store.update_job_from(source, &before, job, next, edit, keeps_limits).await? {
                return Ok((version, next));
            }
            // A run of the job was created, or the job was edited, since it was read. In the first case the edit is
            // tried again.
            before = self.store.job(before.id).await?.ok_or_else(not_found)?;
            if before.version != version {
                break;
            }
        }
        Err(conflict())
    }

    /// Returns the next due time of a job whose last one was `last_due`. Returns `None` also if the schedule counts
    /// from the end of a run and a run is open. The slot granter then sets the due time when that run ends.
    pub(crate) async fn first_due(
        &self,
        id: JobId,
        job: &JobInput,
        last_due: Option<DateTime<Utc>>,
        now: DateTime<Utc>,
    ) -> Result<Option<DateTime<Utc>>, AppError> {
        if job.schedule.delay_after_end().is_some() && self.store.has_open_run(id).await? {
            return Ok(None);
        }
        let calendars = self.calendars_of(job).await?;
        Ok(first_due_in(id, job, last_due, now, &calendars))
    }

    /// Returns the calendars that a job uses.
    pub async fn calendars_of(&self, job: &JobInput) -> Result<CalendarSet, AppError> {
        let ids = job.rules.calendars.iter().copied().collect::<HashSet<_>>();
        if ids.is_empty() {
            return Ok(CalendarSet::default());
        }
        Ok(self.store.calendars_by_id(&ids).await?)
    }

    /// Returns the next due time of a job after an edit. An edit that does not change the due times keeps the next one.
    /// Any other edit computes it again.
    pub async fn next_after_edit(
        &self,
        before: &StoredJob,
        job: &JobInput,
        now: DateTime<Utc>,
    ) -> Result<Option<DateTime<Utc>>, AppError> {
        match kept_due(before, job) {
            Some(kept) => Ok(kept),
            None => self.first_due(before.id, job, before.last_fire_at, before.computed_from(job, now)).await,
        }
    }

    /// Notifies Redis, the dispatchers, this server's slot granter and the browsers of a changed job.
    pub(crate) async fn publish_change(&self, id: JobId, next: Option<DateTime<Utc>>, event: LiveEvent) {
        let noted =
            self.cache.note_changed(&[(id, next)], async |ids| anyhow::Ok(self.store.due_times(ids).await?)).await;
        if let Err(error) = noted {
            tracing::debug!(job.id = %id, error = chain(error.as_ref()), "the due time of job {id} was not written to Redis");
        }
        self.activate_dispatcher.notify_one();
        // The edit may have raised or removed a limit for which occurrences wait.
        self.activate_slot_granter.notify_one();
        if let Err(error) = self.cache.announce_schedule_change().await {
            tracing::debug!(job.id = %id, error = %error, "the change of job {id} was not announced to other servers");
        }
        self.hub.publish(self.clock.now(), vec![event]);
    }
}

/// Returns the next due time of a job after an edit, if it does not have to be computed: none for a paused job, and the
/// present one if the edit does not change the due times.
#[expect(clippy::option_option, reason = "the outer one says if the due time is known, the inner one if there is one")]
pub(super) fn kept_due(before: &StoredJob, job: &JobInput) -> Option<Option<DateTime<Utc>>> {
    if !job.is_active {
        return Some(None);
    }
    // A schedule that counts from the end of a run keeps its state as well, although it has no due time during the run.
    let waits_for_end = job.schedule.delay_after_end().is_some();
    let is_kept = has_same_due_times(&before.definition, job) && (before.next_fire_at.is_some() || waits_for_end);
    is_kept.then_some(before.next_fire_at)
}

/// Returns the next due time of a job whose last one was `last_due`, with these calendars. No run of the job may be open if
/// its schedule counts from the end of a run.
pub(super) fn first_due_in(
    id: JobId,
    job: &JobInput,
    last_due: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
    calendars: &CalendarSet,
) -> Option<DateTime<Utc>> {
    // The dispatcher of a newer server applies a calendar that this one cannot read.
    let calendars: Vec<&Calendar> =
        job.rules.calendars.iter().filter_map(|calendar| calendars.readable.get(calendar)).collect();
    EffectiveSchedule::new(id, &job.schedule, &job.rules, &calendars).first(last_due, now)
}

/// Returns true if two definitions have the same due times, so that an edit can keep the next one.
fn has_same_due_times(before: &JobInput, after: &JobInput) -> bool {
    let bounds = |job: &JobInput| {
        let rules = &job.rules;
        (rules.start_at, rules.end_at, rules.jitter_seconds, rules.calendars.clone(), rules.blackout)
    };
    before.is_active && before.schedule == after.schedule && bounds(before) == bounds(after)
}

/// The maximum number of schema errors that are reported at once.
const MAX_SCHEMA_ERRORS: usize = 50;

/// Validates an input against its schema. `fields` are the form's fields that it was built from; without them all errors
/// belong to the JSON editor.
pub(super) fn check_input(schema: &Value, data: &Value, fields: Option<&BuiltInput>) -> Result<(), Vec<FieldError>> {
    let Ok(validator) = jsonschema::validator_for(schema) else {
        // A worker announced an invalid schema. The worker itself still checks the input when it decodes it.
        return Ok(());
    };
    let mut errors = Vec::new();
    for error in validator.iter_errors(data).take(MAX_SCHEMA_ERRORS) {
        collect_schema_errors(&error, "", fields, &mut errors);
    }
    errors.truncate(MAX_SCHEMA_ERRORS);
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Adds the field errors of one schema error. A union reports the errors of its chosen variant instead of "not valid
/// under any of the schemas". `base` is the pointer of the union around the error.
fn collect_schema_errors(
    error: &ValidationError<'_>,
    base: &str,
    fields: Option<&BuiltInput>,
    errors: &mut Vec<FieldError>,
) {
    let path = error.instance_path().to_string();
    // The errors in the context of a union may have paths that start at the union.
    let pointer = if path.starts_with(base) { path } else { format!("{base}{path}") };
    let message = error.to_string();
    let Some(fields) = fields else {
        let text = if pointer.is_empty() { message } else { format!("{pointer}: {message}") };
        errors.push(FieldError::new("input_json", text));
        return;
    };
    match error.kind() {
        ValidationErrorKind::OneOfNotValid { context } | ValidationErrorKind::AnyOf { context } => {
            let is_here = |error: &ValidationError<'_>| error.instance_path().to_string().len() <= pointer.len();
            let is_union = |error: &ValidationError<'_>| {
                use ValidationErrorKind::{AnyOf, OneOfNotValid};
                is_here(error) && matches!(error.kind(), AnyOf { .. } | OneOfNotValid { .. })
            };
            // "This or null" has no choice in the form: the branch that is not null counts. It may be a union itself,
            // and then the choice belongs to that one.
            let chosen = context
                .iter()
                .find(|branch| branch.iter().any(is_union))
                .or_else(|| fields.variant_at(&pointer).and_then(|index| context.get(index)))
                .or_else(|| {
                    let is_type = |error: &ValidationError<'_>| {
                        is_here(error) && matches!(error.kind(), ValidationErrorKind::Type { .. })
                    };
                    context.iter().find(|branch| !branch.iter().any(is_type))
                });
            let branch = chosen.filter(|branch| !branch.is_empty() && !pointer.is_empty());
            match branch {
                Some(branch) => {
                    branch.iter().for_each(|error| collect_schema_errors(error, &pointer, Some(fields), errors))
                }
                None => errors.push(FieldError::new(fields.field_at(&pointer), message)),
            }
        }
        ValidationErrorKind::Required { property } => {
            let name = property.as_str().unwrap_or_default().replace('~', "~0").replace('/', "~1");
            errors.push(FieldError::new(fields.field_at(&format!("{pointer}/{name}")), message));
        }
        _ => errors.push(FieldError::new(fields.field_at(&pointer), message)),
    }
}

/// Replaces the characters that PostgreSQL cannot store.
pub(super) fn clean(job: &mut JobInput) {
    for text in [&mut job.display_name, &mut job.description].into_iter().chain(&mut job.tags) {
        *text = clean_text(std::mem::take(text));
    }
    job.job_data = clean_value(job.job_data.take());
}

pub(super) fn not_found() -> AppError {
    AppError::NotFound("This job does not exist or was deleted.".into())
}

pub(super) fn conflict() -> AppError {
    AppError::Conflict("This job was changed in the meantime. Reload the page and repeat your change.".into())
}

#[cfg(test)]
mod tests {
    use milvaion_schedule::rules::Rules;
    use serde_json::json;

    use super::*;

    /// Builds an input from texts and returns the fields of its schema errors.
    fn invalid_fields(schema: &Value, typed: &[(&str, &str)]) -> Vec<String> {
        let typed = typed.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        let built = milvaion_api::schema_form::build_partial(schema, &typed);
        let errors = check_input(schema, &built.data, Some(&built)).err().unwrap_or_default();
        errors.into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn schema_errors_name_their_field() {
        let schema =
            json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]});
        assert_eq!(invalid_fields(&schema, &[("n", "0")]), ["input.n"]);
        assert_eq!(invalid_fields(&schema, &[]), ["input.n"]);
        assert!(invalid_fields(&schema, &[("n", "1")]).is_empty());
        let errors = check_input(&schema, &json!({"n": 0}), None).expect_err("the input is invalid");
        assert_eq!(errors[0].field, "input_json");
        assert!(errors[0].message.starts_with("/n: "), "{}", errors[0].message);
    }

    #[test]
    fn errors_of_a_chosen_variant_name_nested_fields() {
        let schema = json!({"type": "object", "properties": {"auth": {"anyOf": [{"oneOf": [
            {"type": "object", "properties": {"type": {"const": "basic"}, "user": {"type": "string", "minLength": 3}},
             "required": ["type", "user"]},
            {"type": "object", "properties": {"type": {"const": "bearer"}, "ports": {"type": "array", "items":
             {"type": "integer", "minimum": 1}}}, "required": ["type"]}
        ]}, {"type": "null"}]}}});
        assert_eq!(invalid_fields(&schema, &[("auth~v", "0"), ("auth/user", "ab")]), ["input.auth/user"]);
        let typed = [("auth~v", "1"), ("auth/ports/0", "5"), ("auth/ports/2", "0")];
        assert_eq!(invalid_fields(&schema, &typed), ["input.auth/ports/2"]);
        assert!(invalid_fields(&schema, &[("auth~v", "0"), ("auth/user", "abc")]).is_empty());
    }

    #[test]
    fn one_check_reports_text_and_schema_errors() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer",
            "minimum": 0}, "c": {"type": "string"}}, "required": ["a", "c"]});
        let input = [("a", "x"), ("b", "-1")].map(|(name, text)| (name.to_owned(), text.to_owned()));
        let form = JobForm { input_mode: "form".into(), input: input.into(), ..JobForm::default() };
        let validate = |input: &BuiltInput| check_input(&schema, &input.data, Some(input)).err().unwrap_or_default();
        let errors = form.check_with(Some(&schema), DateTime::UNIX_EPOCH, &validate).expect_err("invalid");
        let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        for field in ["input.a", "input.b", "input.c", "display_name", "kind"] {
            assert_eq!(fields.iter().filter(|name| **name == field).count(), 1, "{field} in {fields:?}");
        }
    }

    #[test]
    fn only_a_schedule_edit_changes_the_due_times() {
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
        assert!(has_same_due_times(&job(10), &JobInput { display_name: "y".into(), ..job(10) }));
        assert!(!has_same_due_times(&job(10), &job(20)));
        assert!(!has_same_due_times(&JobInput { is_active: false, ..job(10) }, &job(10)));
        let later = Rules { start_at: Some(now), ..Rules::default() };
        assert!(!has_same_due_times(&job(10), &JobInput { rules: later, ..job(10) }));
    }
}
