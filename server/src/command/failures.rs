//! Failures and dead letters: settle them, run them again.

use milvaion_api::{
    failures::{
        FailureFilter, FailureSelection, MAX_FAILURE_SELECTION, MAX_RESOLUTION_NOTE_CHARS, ResolveFailuresResult,
        RetryFailuresResult,
    },
    requests::parse_input_json,
    views::CurrentUser,
};
pub use milvaion_app::backend::RetryInput;
use milvaion_app::error::AppError;
use milvaion_protocol::id::{DeadLetterId, OccurrenceId};

use super::{jobs::JobCommands, occurrences::reason};
use crate::{
    domain::transition::clean,
    store::{jobs::AuditStamp, manual_runs::CreatedOccurrence},
};

impl JobCommands {
    /// What `which` means at this moment, each one named, for somebody who saw `seen` failures and agreed to those; and
    /// whether a filter finds more than can be taken at once. Nobody is to settle what they have not seen, so a filter that
    /// finds more than a tenth more by now is refused.
    ///
    /// # Errors
    ///
    /// `Fields` for `ids`; `Conflict` when there are many more than were seen.
    pub async fn confirm_selection(
        &self,
        which: &FailureSelection,
        seen: usize,
    ) -> Result<(FailureSelection, bool), AppError> {
        let (ids, more) = self.pick(which).await?;
        if matches!(which, FailureSelection::Filter(_)) && ids.len() > seen + seen / 10 {
            return Err(AppError::Conflict(format!(
                "There are {} by now, and {seen} were there when you looked. Look again before you go on.",
                if more { format!("more than {}", ids.len()) } else { ids.len().to_string() }
            )));
        }
        if ids.is_empty() {
            return Err(AppError::field("ids", "choose at least one that is open"));
        }
        Ok((FailureSelection::Ids(ids), more))
    }

    /// Settles open failures with a note.
    ///
    /// # Errors
    ///
    /// `Fields` for `note` and `ids`.
    pub async fn resolve_failures(
        &self,
        me: &CurrentUser,
        which: &FailureSelection,
        text: &str,
    ) -> Result<ResolveFailuresResult, AppError> {
        let note = note(text)?;
        let (ids, more) = self.pick(which).await?;
        let edit = AuditStamp { by: &me.email, at: self.clock.now() };
        Ok(ResolveFailuresResult { count: self.store.resolve_failures(&ids, note.as_deref(), edit).await?, more })
    }

    /// Runs failures again, each as a new occurrence by its job's present definition. One that was retried already is
    /// left alone, so that asking twice runs nothing twice.
    ///
    /// # Errors
    ///
    /// `Fields` for `ids`, `reason` and `input_json`; `NotFound` for a single failure that there is none of; `Conflict`
    /// for one that was retried already, one whose job is deleted, and while the cluster is paused.
    pub async fn retry_failures(
        &self,
        me: &CurrentUser,
        which: &FailureSelection,
        input: &RetryInput,
    ) -> Result<RetryFailuresResult, AppError> {
        let reason = reason(&input.reason)?;
        let single = match which {
            FailureSelection::Ids(ids) => ids.first().copied().filter(|_| ids.len() == 1),
            FailureSelection::Filter(_) => None,
        };
        let has_input = !input.input_json.trim().is_empty();
        if single.is_none() && (has_input || input.force) {
            let field = if has_input { "input_json" } else { "force" };
            return Err(AppError::field(field, "is for a single failure only: retry them one by one"));
        }
        if let Some(pause) = self.store.cluster_pause().await? {
            return Err(AppError::Conflict(format!(
                "The whole cluster is paused ({}). Wait until it goes on, then retry.",
                pause.reason
            )));
        }
        let data = match single {
            None => None,
            Some(id) => {
                let failure = self.store.failure(id).await?.ok_or_else(no_failure)?;
                let job = self.store.job(failure.job_id).await?.ok_or_else(|| {
                    AppError::Conflict("The job of this failure is deleted, so nothing can be run again.".into())
                })?;
                if let Some(again) = failure.retried_as.filter(|_| !input.force) {
                    return Err(AppError::Conflict(format!("This failure was retried already, as {again}.")));
                }
                let definition = &job.definition;
                // A form comes with the input that failed already in it; only what was changed is another one.
                if has_input && parse_input_json(&input.input_json).as_ref() != Ok(&failure.job_data) {
                    Some(
                        self.parse_input_override(&definition.worker_id, &definition.job_type, &input.input_json)
                            .await?,
                    )
                } else {
                    None
                }
            }
        };
        let (ids, more) = self.pick(which).await?;
        let wanted: Vec<(OccurrenceId, OccurrenceId)> =
            ids.into_iter().map(|id| (id, self.clock.occurrence_id())).collect();
        let edit = AuditStamp { by: &me.email, at: self.clock.now() };
        let made = self.store.retry_failures(&wanted, data.as_ref(), reason.as_deref(), input.force, edit).await?;
        let retried = RetryFailuresResult {
            made: made.iter().map(|(failed, made)| (*failed, made.row.id)).collect(),
            left: wanted.len() - made.len(),
            more,
        };
        let rows: Vec<CreatedOccurrence> = made.into_iter().map(|(_, made)| made).collect();
        if !rows.is_empty() {
            self.send_created(rows);
        }
        Ok(retried)
    }

    /// Settles open dead letters with a note. Returns how many.
    ///
    /// # Errors
    ///
    /// `Fields` for `note` and `ids`.
    pub async fn resolve_dead_letters(
        &self,
        me: &CurrentUser,
        ids: &[DeadLetterId],
        text: &str,
    ) -> Result<usize, AppError> {
        let note = note(text)?;
        if ids.is_empty() {
            return Err(AppError::field("ids", "choose at least one"));
        }
        if ids.len() > MAX_FAILURE_SELECTION {
            return Err(too_many());
        }
        let edit = AuditStamp { by: &me.email, at: self.clock.now() };
        Ok(self.store.resolve_dead_letters(ids, note.as_deref(), edit).await?)
    }

    /// Which failures are meant, each once, and whether there are more. A filter finds open ones.
    async fn pick(&self, which: &FailureSelection) -> Result<(Vec<OccurrenceId>, bool), AppError> {
        match which {
            FailureSelection::Ids(ids) if ids.len() > MAX_FAILURE_SELECTION => Err(too_many()),
            FailureSelection::Ids(ids) => {
                let mut ids = ids.clone();
                ids.sort_unstable();
                ids.dedup();
                Ok((ids, false))
            }
            FailureSelection::Filter(filter) => {
                let filter = FailureFilter { resolved: Some(false), ..filter.clone() };
                let limit = i64::try_from(MAX_FAILURE_SELECTION).unwrap_or(i64::MAX);
                let mut ids = self.store.failure_ids(&filter, limit + 1).await?;
                let more = ids.len() > MAX_FAILURE_SELECTION;
                ids.truncate(MAX_FAILURE_SELECTION);
                Ok((ids, more))
            }
        }
    }
}

fn note(text: &str) -> Result<Option<String>, AppError> {
    let text = clean(text.trim().to_owned());
    if text.chars().count() > MAX_RESOLUTION_NOTE_CHARS {
        return Err(AppError::field("note", "at most 2,000 characters"));
    }
    Ok(Some(text).filter(|text| !text.is_empty()))
}

fn too_many() -> AppError {
    AppError::field("ids", "at most 1,000 at a time: take fewer, or use a filter several times")
}

fn no_failure() -> AppError {
    AppError::NotFound("This failure does not exist, or is no longer kept.".into())
}
