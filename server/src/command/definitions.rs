//! Jobs as whole definitions, as programs send them: create, replace, and create or replace by key.
//!
//! The dashboard saves a form, which carries the version that the user saw. A program usually wants a job to be as its
//! file says, whatever it was before. It may name a version too, and then nothing is overwritten unseen.

use chrono::{DateTime, Utc};
use milvaion_api::{
    events::LiveEvent,
    requests::{FieldError, JobInput},
    rest::PutJob,
    sources::JobSourceKind,
};
use milvaion_app::{backend::RequestUser, error::AppError};
use milvaion_protocol::id::{CalendarId, JobId};
use milvaion_schedule::instant::stored;
use serde_json::Value;

use super::jobs::{JobCommands, check_input, clean, not_found};
use crate::store::{StoreError, jobs::AuditStamp};

/// The result of making a job be as its definition says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavedDefinition {
    /// The job was created.
    Created(JobId),
    /// The job was changed.
    Changed(JobId),
    /// The job was so already; it keeps its version.
    Unchanged(JobId),
}

impl SavedDefinition {
    /// Returns the job.
    #[must_use]
    pub const fn id(self) -> JobId {
        match self {
            Self::Created(id) | Self::Changed(id) | Self::Unchanged(id) => id,
        }
    }
}

impl JobCommands {
    /// Checks a definition completely and returns it as it is stored.
    ///
    /// # Errors
    ///
    /// Returns `Fields` with all invalid fields.
    pub async fn check_definition(&self, job: &JobInput, is_new: bool) -> Result<JobInput, AppError> {
        let schema = self.store.schema(&job.worker_id, &job.job_type).await?;
        let calendars = self.calendars_of(job).await?;
        let is_known = |id| calendars.readable.contains_key(&id) || calendars.unreadable.contains_key(&id);
        checked_definition(job, is_new.then(|| self.clock.now()), schema.as_ref(), is_known).map_err(AppError::Fields)
    }

    /// Creates a job, with a key if one is given.
    ///
    /// # Errors
    ///
    /// Returns `Fields` for invalid fields, and `Conflict` if another job has the key.
    pub async fn create_definition(
        &self,
        me: &RequestUser,
        key: Option<&str>,
        job: &JobInput,
    ) -> Result<JobId, AppError> {
        let job = self.check_definition(job, true).await?;
        let now = self.clock.now();
        let id = self.clock.job_id();
        let next = if job.is_active { self.first_due(id, &job, None, now).await? } else { None };
        let edit = AuditStamp { by: &me.email, at: now, address: me.address };
        match self.store.insert_keyed_job(id, key, &job, next, JobSourceKind::Api, edit).await {
            Err(error) if is_key_taken(&error) => {
                return Err(AppError::Conflict(format!(
                    "Another job has the key {}. Change that job, or choose another key.",
                    key.unwrap_or_default()
                )));
            }
            done => done?,
        }
        self.publisher.ensure_queue(&job.worker_id, &job.job_type).await;
        self.publish_change(id, next, LiveEvent::Job { id }).await;
        Ok(id)
    }

    /// Replaces the definition of a job. An equal definition changes nothing, so that a repetition creates no version.
    /// Occurrences that wait for a slot keep their limits if `keeps_limits` is true.
    ///
    /// # Errors
    ///
    /// Returns `Fields` for invalid fields, `NotFound`, and `Conflict` if the job is not at the version `expected` or is
    /// edited meanwhile.
    pub async fn replace_definition(
        &self,
        me: &RequestUser,
        id: JobId,
        expected: Option<i32>,
        job: &PutJob,
        keeps_limits: bool,
    ) -> Result<SavedDefinition, AppError> {
        let before = self.store.job(id).await?.ok_or_else(not_found)?;
        if let Some(expected) = expected.filter(|expected| *expected != before.version) {
            return Err(AppError::Conflict(format!(
                "This job is at version {}, not {expected}. Read it again and repeat your change.",
                before.version
            )));
        }
        let job = self.check_definition(&job.complete(Some(&before.definition)), false).await?;
        if job == before.definition {
            return Ok(SavedDefinition::Unchanged(id));
        }
        let edit = AuditStamp { by: &me.email, at: self.clock.now(), address: me.address };
        let (_, next) = self.replace(JobSourceKind::Api, before, &job, edit, keeps_limits).await?;
        self.publisher.ensure_queue(&job.worker_id, &job.job_type).await;
        self.publish_change(id, next, LiveEvent::Job { id }).await;
        Ok(SavedDefinition::Changed(id))
    }

    /// Makes the job with this key be as the definition says: creates it if there is none, and else replaces it as
    /// [`replace_definition`](Self::replace_definition).
    ///
    /// # Errors
    ///
    /// Returns `Fields` for invalid fields, and `Conflict` as
    /// [`replace_definition`](Self::replace_definition), also if a version is expected and there is no job.
    pub async fn put_definition(
        &self,
        me: &RequestUser,
        key: &str,
        expected: Option<i32>,
        job: &PutJob,
        keeps_limits: bool,
    ) -> Result<SavedDefinition, AppError> {
        if let Some(id) = self.store.job_id_of_key(key).await? {
            return self.replace_definition(me, id, expected, job, keeps_limits).await;
        }
        if let Some(expected) = expected {
            return Err(AppError::Conflict(format!(
                "There is no job with the key {key}, so it is not at version {expected}. Leave the version out to create it."
            )));
        }
        match self.create_definition(me, Some(key), &job.complete(None)).await {
            Ok(id) => Ok(SavedDefinition::Created(id)),
            // Another request has created it in this moment.
            Err(AppError::Conflict(reason)) => match self.store.job_id_of_key(key).await? {
                Some(id) => self.replace_definition(me, id, None, job, keeps_limits).await,
                None => Err(AppError::Conflict(reason)),
            },
            Err(error) => Err(error),
        }
    }

    /// Creates a paused copy of a job.
    ///
    /// # Errors
    ///
    /// Returns `NotFound`, `Fields` for an invalid name, and `Conflict` if another job has the key.
    pub async fn duplicate(
        &self,
        me: &RequestUser,
        id: JobId,
        display_name: Option<&str>,
        key: Option<&str>,
    ) -> Result<JobId, AppError> {
        let original = self.store.job(id).await?.ok_or_else(not_found)?.definition;
        let copied: String = format!("Copy of {}", original.display_name).chars().take(200).collect();
        let display_name = display_name.map_or(copied, str::to_owned);
        self.create_definition(me, key, &JobInput { display_name, is_active: false, ..original }).await
    }
}

/// Checks a definition completely and returns it as it is stored. `new_at` is now, if a single instant must be in the future;
/// `schema` is that of the input, if it is known; `is_known` returns true for calendars that exist.
pub(super) fn checked_definition(
    job: &JobInput,
    new_at: Option<DateTime<Utc>>,
    schema: Option<&Value>,
    is_known: impl Fn(CalendarId) -> bool,
) -> Result<JobInput, Vec<FieldError>> {
    let mut job = job.clone();
    job.display_name = job.display_name.trim().to_owned();
    job.description = job.description.trim().to_owned();
    let mut tags = Vec::with_capacity(job.tags.len());
    for tag in job.tags.iter().map(|tag| tag.trim()) {
        if !tags.iter().any(|known| known == tag) {
            tags.push(tag.to_owned());
        }
    }
    job.tags = tags;
    // With more digits than are stored, the same definition would look like a change each time. The form reads them.
    for at in [&mut job.rules.start_at, &mut job.rules.end_at] {
        *at = at.map(stored);
    }
    let mut errors = job.check(new_at).err().unwrap_or_default();
    if let Some(schema) = schema
        && let Err(wrong) = check_input(schema, &job.job_data, None)
    {
        if job.job_data.is_null() {
            // A definition without the field has null, which a user of files or of the API has not written.
            let message = "is missing, and the job type needs an input: write {} for one without values";
            errors.push(FieldError::new("input_json", message));
        } else {
            errors.extend(wrong);
        }
    }
    if let Some(unknown) = job.rules.calendars.iter().find(|id| !is_known(**id)) {
        errors.push(FieldError::new("rules.calendars", format!("there is no calendar {unknown}")));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    clean(&mut job);
    Ok(job)
}

pub(super) fn is_key_taken(error: &StoreError) -> bool {
    error.constraint() == Some("jobs_key_key")
}
