//! The jobs of schedules that the code of workers declares: created, changed and retired as the code says.
//!
//! A job from code belongs to the code, as one from a file belongs to its file. An edit in the dashboard detaches it: from
//! then on the code changes nothing, the page says so, and a user may attach it again. Pausing is no edit, so a job that an
//! operator has paused stays paused through deployments. A retired job is paused and kept with its history, because a
//! deployment that is rolled back declares it again.

use chrono::{DateTime, Utc};
use milvaion_api::{
    events::LiveEvent,
    requests::{FieldError, JobInput, json_field},
    sources::JobSourceKind,
};
use milvaion_app::{backend::RequestUser, error::AppError};
use milvaion_protocol::{id::JobId, message::HelloProblem};

use super::{
    definitions::is_key_taken,
    jobs::{JobCommands, conflict, not_found},
};
use crate::{
    domain::{
        declarations::{self, DeclarationChange, DeclarationKey, DeclaredJob},
        liveness,
    },
    faults,
    store::{
        StoreError,
        jobs::{AuditStamp, StoredJob},
    },
};

/// The reason of the pause of a retired job.
const RETIRED: &str = "The code of its worker no longer declares this schedule.";
/// The most changes that one tick carries out.
const MAX_CHANGES: usize = 200;
/// The maximum length of a key, in characters.
const MAX_KEY_CHARS: usize = 100;

/// The result of a comparison of the code with the jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DeclarationReport {
    /// Jobs that were created.
    pub created: usize,
    /// Jobs that were changed.
    pub updated: usize,
    /// Jobs that were edited since and therefore not changed.
    pub detached: usize,
    /// Jobs that the code no longer declares.
    pub retired: usize,
    /// Declarations that were refused or are in conflict with an edit of this moment.
    pub failed: usize,
    /// True if further changes wait for the next tick.
    pub has_more: bool,
}

impl DeclarationReport {
    /// Returns the number of declarations that no longer differ from their jobs.
    #[must_use]
    pub fn settled(&self) -> usize {
        self.created + self.updated + self.detached + self.retired
    }
}

impl JobCommands {
    /// Makes the jobs of declared schedules be as the live instances declare. Begins behind `last_tried`, where the call
    /// before has ended, and stores there where this one ends.
    ///
    /// # Errors
    ///
    /// Returns an error if PostgreSQL fails. What was changed before stays.
    pub async fn reconcile_declarations(
        &self,
        last_tried: &mut Option<DeclarationKey>,
    ) -> anyhow::Result<DeclarationReport> {
        let now = self.clock.now();
        let mut instances = self.store.declarations(liveness::alive_since(now)).await?;
        if faults::is_sabotaged("trust_any_version") {
            // The instance that started last then decides.
            instances.iter_mut().for_each(|instance| instance.version.clear());
        }
        let known = self.store.declared_jobs().await?;
        let changes = declarations::changes(&instances, &known);
        let mut report = DeclarationReport { has_more: changes.len() > MAX_CHANGES, ..DeclarationReport::default() };
        for change in declarations::next_changes(changes, last_tried.as_ref(), MAX_CHANGES) {
            // Before the attempt: an error of this change keeps no other from being tried.
            *last_tried = Some(change.key().clone());
            self.carry_out(change, &mut report).await?;
        }
        Ok(report)
    }

    async fn carry_out(&self, change: DeclarationChange, report: &mut DeclarationReport) -> anyhow::Result<()> {
        let (key, version, done) = match change {
            DeclarationChange::Create { key, definition, version } => {
                let created = self.create_declared(&key, &definition, &version).await;
                (key, version, created.map(|()| report.created += 1))
            }
            DeclarationChange::Update { job, definition, version } => {
                let done = match self.declared_state(&job).await? {
                    DeclaredState::Attached(stored) => {
                        let updated = self.update_declared(&job.key, *stored, &definition, &version).await;
                        updated.map(|()| report.updated += 1)
                    }
                    DeclaredState::Detached => {
                        self.store.note_declaration(job.job_id, &definition, &version).await?;
                        report.detached += 1;
                        Ok(())
                    }
                    DeclaredState::Gone => Ok(()),
                };
                (job.key, version, done)
            }
            DeclarationChange::Retire { job } => {
                self.retire(&job).await?;
                report.retired += 1;
                return Ok(());
            }
        };
        match done {
            Ok(()) => Ok(()),
            Err(AppError::Fields(fields)) => {
                report.failed += 1;
                let sentence = |error: &FieldError| format!("{}: {}", json_field(&error.field), error.message);
                let text = fields.iter().map(sentence).collect::<Vec<_>>().join("; ");
                let job_type = Some(key.job_type.clone());
                let schedule = Some(key.name.clone()).filter(|name| !name.is_empty());
                let problem = HelloProblem { job_type, schedule, text: text.clone() };
                // Each tick tries again, because an operator may remove the cause. Only the first refusal is news.
                if self.store.add_declaration_problem(&key.worker_id, &version, &problem).await? {
                    tracing::warn!(
                        worker.id = key.worker_id,
                        job.r#type = key.job_type,
                        schedule = key.name,
                        "schedule {} of job type {} of worker {} was refused: {text}; correct its declaration",
                        key.name,
                        key.job_type,
                        key.worker_id
                    );
                }
                Ok(())
            }
            // An edit of this moment; the next tick looks again.
            Err(AppError::Conflict(_) | AppError::NotFound(_)) => {
                report.failed += 1;
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Creates the job of a schedule.
    async fn create_declared(&self, key: &DeclarationKey, job: &JobInput, version: &str) -> Result<(), AppError> {
        let checked = self.check_definition(job, true).await?;
        let (id, now) = (self.clock.job_id(), self.clock.now());
        let next = self.first_due(id, &checked, None, now).await?;
        let author = author(&key.worker_id);
        let edit = AuditStamp { by: &author, at: now, address: None };
        let job_key = job_key(key);
        let mut saved = self.insert_declared(id, job_key.as_deref(), key, (job, &checked), version, next, edit).await;
        if saved.as_ref().is_err_and(is_key_taken) {
            // The job of a user has this key. The declared job is found by its schedule, so it needs none.
            saved = self.insert_declared(id, None, key, (job, &checked), version, next, edit).await;
        }
        if saved.as_ref().is_err_and(|error| error.constraint() == Some("declared_jobs_pkey")) {
            // The leader before this one has created it at this moment.
            return Err(conflict());
        }
        saved?;
        self.publisher.ensure_queue(&checked.worker_id, &checked.job_type).await;
        self.publish_change(id, next, LiveEvent::Job { id }).await;
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "one insert, whose values have no other meaning together")]
    async fn insert_declared(
        &self,
        id: JobId,
        job_key: Option<&str>,
        key: &DeclarationKey,
        (declared, checked): (&JobInput, &JobInput),
        version: &str,
        next: Option<DateTime<Utc>>,
        edit: AuditStamp<'_>,
    ) -> Result<(), StoreError> {
        let mut batch = self.store.begin_definitions().await?;
        batch.insert_job(id, job_key, checked, next, JobSourceKind::Code, edit).await?;
        batch.set_declared(id, key, declared, version).await?;
        batch.commit().await
    }

    /// Makes a job be as the code declares. It stays paused, unless it was paused because the code did not declare it.
    async fn update_declared(
        &self,
        key: &DeclarationKey,
        before: StoredJob,
        declared: &JobInput,
        version: &str,
    ) -> Result<(), AppError> {
        let is_active = before.definition.is_active || before.paused_reason.as_deref() == Some(RETIRED);
        let job = JobInput { is_active, ..self.check_definition(declared, false).await? };
        let author = author(&key.worker_id);
        let edit = AuditStamp { by: &author, at: self.clock.now(), address: None };
        let next = self.next_after_edit(&before, &job, edit.at).await?;
        let mut batch = self.store.begin_definitions().await?;
        batch.lock_jobs(&[before.id]).await?;
        let is_changed = job != before.definition;
        if is_changed && !batch.update_job(&before, &job, next, edit).await? {
            return Err(conflict());
        }
        batch.set_declared(before.id, key, declared, version).await?;
        batch.commit().await?;
        if is_changed {
            self.publisher.ensure_queue(&job.worker_id, &job.job_type).await;
            self.publish_change(before.id, next, LiveEvent::Job { id: before.id }).await;
        }
        Ok(())
    }

    /// Pauses the job of a schedule that the code no longer declares.
    async fn retire(&self, job: &DeclaredJob) -> anyhow::Result<()> {
        if let DeclaredState::Attached(stored) = self.declared_state(job).await?
            && stored.definition.is_active
        {
            let author = author(&job.key.worker_id);
            let edit = AuditStamp { by: &author, at: self.clock.now(), address: None };
            // The reason is stored with the pause, so that a crash before the next statement loses nothing.
            if !self.store.set_active(&stored, false, None, Some(RETIRED), edit).await? {
                return Ok(());
            }
            self.publish_change(job.job_id, None, LiveEvent::Job { id: job.job_id }).await;
        }
        Ok(self.store.note_retirement(job.job_id, self.clock.now()).await?)
    }

    /// Returns whether the code may change a job.
    async fn declared_state(&self, job: &DeclaredJob) -> Result<DeclaredState, StoreError> {
        let stored = match self.store.job(job.job_id).await {
            Ok(Some(stored)) => stored,
            Ok(None) => return Ok(DeclaredState::Gone),
            // A newer server has written a part of it, which a change would destroy.
            Err(StoreError::Unreadable(_)) => return Ok(DeclaredState::Detached),
            Err(error) => return Err(error),
        };
        // Before the first declaration, only the ingest of occurrences has made the job.
        if job.declared.is_none() {
            return Ok(DeclaredState::Attached(Box::new(stored)));
        }
        let is_from_code = stored.source.kind == JobSourceKind::Code;
        let is_edited = stored.source.is_behind(stored.version)
            && self.store.edits_since_source(&[job.job_id]).await?.contains_key(&job.job_id);
        Ok(if is_from_code && !is_edited { DeclaredState::Attached(Box::new(stored)) } else { DeclaredState::Detached })
    }

    /// Makes a detached job be as the code declares again.
    ///
    /// # Errors
    ///
    /// Returns `NotFound` if the job does not exist, `Conflict` if no code declares it or if it is edited at this moment, and
    /// `Fields` if its declaration has become invalid.
    pub async fn attach_to_code(&self, me: &RequestUser, id: JobId) -> Result<(), AppError> {
        let before = self.store.job(id).await?.ok_or_else(not_found)?;
        let job = self.store.declared_job(id).await?.filter(|job| !job.is_retired);
        let declared = job.as_ref().and_then(|job| serde_json::from_value::<JobInput>(job.declared.clone()?).ok());
        let (Some(job), Some(declared)) = (job, declared) else {
            return Err(AppError::Conflict(
                "The code of no live worker declares this job, so it cannot be attached. Deploy a worker that declares it."
                    .to_owned(),
            ));
        };
        let edit = AuditStamp { by: &me.email, at: self.clock.now(), address: me.address };
        let is_active = before.definition.is_active;
        let definition = JobInput { is_active, ..self.check_definition(&declared, false).await? };
        let next = self.next_after_edit(&before, &definition, edit.at).await?;
        let mut batch = self.store.begin_definitions().await?;
        batch.lock_jobs(&[id]).await?;
        if definition != before.definition && !batch.update_job(&before, &definition, next, edit).await? {
            return Err(conflict());
        }
        batch.set_declared(id, &job.key, &declared, &job.version).await?;
        batch.commit().await?;
        self.publisher.ensure_queue(&definition.worker_id, &definition.job_type).await;
        self.publish_change(id, next, LiveEvent::Job { id }).await;
        Ok(())
    }
}

/// Determines who may change a declared job.
#[derive(Debug)]
enum DeclaredState {
    /// The code.
    Attached(Box<StoredJob>),
    /// Users only, because one has edited it or a file has taken it.
    Detached,
    /// The job was deleted meanwhile.
    Gone,
}

/// Returns the author of changes by code.
fn author(worker_id: &str) -> String {
    format!("code of {worker_id}")
}

/// Returns the key of the job of a schedule, if a key can be made of its names.
fn job_key(key: &DeclarationKey) -> Option<String> {
    let job_key = format!("{}.{}.{}", key.worker_id, key.job_type, key.name).to_lowercase();
    let is_valid = job_key.len() <= MAX_KEY_CHARS && job_key.starts_with(|first: char| first.is_ascii_alphanumeric());
    is_valid.then_some(job_key)
}
