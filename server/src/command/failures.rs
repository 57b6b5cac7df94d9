//! Failures and dead letters: resolve and retry.

use milvaion_api::{
    failures::{
        FailureFilter, FailureSelection, MAX_COUNTED_FAILURES, MAX_FAILURE_SELECTION, MAX_RESOLUTION_NOTE_CHARS,
        ResolveFailuresResult, RetryFailuresResult,
    },
    requests::parse_input_json,
};
pub use milvaion_app::backend::RetryInput;
use milvaion_app::{backend::RequestUser, error::AppError};
use milvaion_protocol::{
    id::{DeadLetterId, OccurrenceId},
    storable::clean_text,
};
use milvaion_telemetry::occurrences::SpanStart;

use super::{jobs::JobCommands, manual_run::requested, reason};
use crate::store::{create::NewRun, failures::RetriedFailures, jobs::AuditStamp};

impl JobCommands {
    /// Replaces a filter by the failures that it matches now. Returns true with it if the filter matches more than one
    /// request may hold. The user saw `seen` failures before confirming. A filter that now matches over a tenth more is
    /// refused, so that users do not resolve or retry failures they have not seen. A count of [`MAX_COUNTED_FAILURES`]
    /// was shown as "10,000+" and is not compared.
    ///
    /// # Errors
    ///
    /// Returns `Fields` for invalid `ids`, an invalid filter or one without a condition, and `Conflict` if there are many
    /// more failures than the user saw.
    pub async fn confirm_selection(
        &self,
        selection: &FailureSelection,
        seen: usize,
    ) -> Result<(FailureSelection, bool), AppError> {
        let shown = i64::try_from(seen).unwrap_or(i64::MAX);
        if let FailureSelection::Filter(filter) = selection
            && shown < MAX_COUNTED_FAILURES
        {
            check_scope(filter)?;
            let most = shown + shown / 10;
            let now = self.store.count_failures(&open(filter), MAX_COUNTED_FAILURES.max(most + 1)).await?;
            if now > most {
                let now = if now < MAX_COUNTED_FAILURES { now.to_string() } else { format!("at least {now}") };
                return Err(AppError::Conflict(format!(
                    "The filter now matches {now} failures; you saw {seen}. Nothing was changed. Reopen the dialog, or \
                     reload the page, before you continue."
                )));
            }
        }
        let (ids, more) = self.select(selection).await?;
        if ids.is_empty() {
            return Err(no_selection());
        }
        Ok((FailureSelection::Ids(ids), more))
    }

    /// Resolves open failures with a note.
    ///
    /// # Errors
    ///
    /// Returns `Fields` for an invalid `note` or `ids`.
    pub async fn resolve_failures(
        &self,
        me: &RequestUser,
        selection: &FailureSelection,
        text: &str,
    ) -> Result<ResolveFailuresResult, AppError> {
        let note = note(text)?;
        let (ids, more) = self.select(selection).await?;
        let edit = AuditStamp { by: &me.email, at: self.clock.now(), address: me.address };
        let count = self.store.resolve_failures(&ids, note.as_deref(), edit).await?;
        Ok(ResolveFailuresResult { count, left: ids.len().saturating_sub(count), more })
    }

    /// Retries failures, each as a new occurrence with the current definition of its job. A failure that was retried
    /// before is skipped, so that a repeated request creates no second run, and so is one whose uniqueness key is taken.
    ///
    /// # Errors
    ///
    /// Returns `Fields` for invalid `ids`, `reason` or `input_json`. A single failure returns `NotFound` if it does not
    /// exist, and `Conflict` if it was retried before, its job is deleted or its uniqueness key is taken. Returns `Conflict`
    /// while the cluster is paused.
    pub async fn retry_failures(
        &self,
        me: &RequestUser,
        selection: &FailureSelection,
        input: &RetryInput,
    ) -> Result<RetryFailuresResult, AppError> {
        let reason = reason(&input.reason)?;
        let single = match selection {
            FailureSelection::Ids(ids) => ids.first().copied().filter(|_| ids.len() == 1),
            FailureSelection::Filter(_) => None,
        };
        let has_input = !input.input_json.trim().is_empty();
        if single.is_none() && (has_input || input.force) {
            let field = if has_input { "input_json" } else { "force" };
            return Err(AppError::field(field, "applies to a single failure only: retry the failures one by one"));
        }
        if let Some(pause) = self.store.cluster_pause().await? {
            return Err(AppError::Conflict(format!(
                "All schedules are paused ({}). Retry after they are resumed.",
                pause.reason
            )));
        }
        let data = match single {
            None => None,
            Some(id) => {
                let failure = self.store.failure(id).await?.ok_or_else(no_failure)?;
                let job = self.store.job_to_show(failure.job_id).await?.ok_or_else(|| {
                    AppError::Conflict("The job of this failure was deleted, so it cannot be retried.".into())
                })?;
                if let Some(again) = failure.retried_as.filter(|_| !input.force) {
                    return Err(AppError::Conflict(format!("This failure was already retried as occurrence {again}.")));
                }
                let definition = &job.definition;
                // The form is prefilled with the input of the failed run. Only a changed input counts as an override.
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
        let (ids, more) = self.select(selection).await?;
        let wanted: Vec<(OccurrenceId, OccurrenceId)> =
            ids.into_iter().map(|id| (id, self.clock.occurrence_id())).collect();
        let request = NewRun { input: data, ..requested(me, reason) };
        let start = SpanStart::now();
        let RetriedFailures { created, held } =
            self.store.retry_failures(&wanted, &request, input.force, self.clock.now()).await?;
        if let (Some(_), [(_, holder)]) = (single, &held[..]) {
            return Err(AppError::Conflict(format!(
                "Occurrence {holder} has the uniqueness key of this failure. Retry when the key is free."
            )));
        }
        let retried = RetryFailuresResult {
            made: created.iter().filter_map(|run| Some((run.retry_of?, run.row.id))).collect(),
            left: wanted.len() - created.len(),
            more,
        };
        self.send_created(created, start);
        Ok(retried)
    }

    /// Resolves open dead letters with a note. Returns their number.
    ///
    /// # Errors
    ///
    /// Returns `Fields` for an invalid `note` or `ids`.
    pub async fn resolve_dead_letters(
        &self,
        me: &RequestUser,
        ids: &[DeadLetterId],
        text: &str,
    ) -> Result<usize, AppError> {
        let note = note(text)?;
        if ids.is_empty() {
            return Err(AppError::field("ids", "choose at least one dead letter"));
        }
        if ids.len() > MAX_FAILURE_SELECTION {
            return Err(too_many());
        }
        let edit = AuditStamp { by: &me.email, at: self.clock.now(), address: me.address };
        Ok(self.store.resolve_dead_letters(ids, note.as_deref(), edit).await?)
    }

    /// Returns the selected failures without duplicates, and true if a filter matches more than the limit. A filter
    /// selects only open failures.
    async fn select(&self, selection: &FailureSelection) -> Result<(Vec<OccurrenceId>, bool), AppError> {
        match selection {
            FailureSelection::Ids(ids) if ids.is_empty() => Err(no_selection()),
            FailureSelection::Ids(ids) if ids.len() > MAX_FAILURE_SELECTION => Err(too_many()),
            FailureSelection::Ids(ids) => {
                let mut ids = ids.clone();
                ids.sort_unstable();
                ids.dedup();
                Ok((ids, false))
            }
            FailureSelection::Filter(filter) => {
                check_scope(filter)?;
                let filter = open(filter);
                let limit = i64::try_from(MAX_FAILURE_SELECTION).unwrap_or(i64::MAX);
                let mut ids = self.store.failure_ids(&filter, limit + 1).await?;
                let more = ids.len() > MAX_FAILURE_SELECTION;
                ids.truncate(MAX_FAILURE_SELECTION);
                Ok((ids, more))
            }
        }
    }
}

/// Refuses a search text that would be searched only in part.
///
/// # Errors
///
/// Returns `Fields` for `text`.
pub(crate) fn check_text(filter: &FailureFilter) -> Result<(), AppError> {
    if filter.has_valid_text() {
        return Ok(());
    }
    Err(AppError::field("text", "at most 200 characters and 8 words are searched: shorten the text"))
}

/// Refuses a filter that does not narrow the failures: an empty filter never means all of them.
///
/// # Errors
///
/// Returns `Fields` for `filter`, and for `text` as [`check_text`].
fn check_scope(filter: &FailureFilter) -> Result<(), AppError> {
    let has_text = filter.text.as_deref().is_some_and(|text| !text.trim().is_empty());
    if filter.fingerprint.is_none() && filter.job_id.is_none() && filter.cause.is_none() && !has_text {
        return Err(AppError::field(
            "filter",
            "all failures cannot be changed at once: name a fingerprint, a job, a cause or a text, or select the \
             failures",
        ));
    }
    check_text(filter)
}

/// Returns the filter for the open ones among the failures that it matches.
fn open(filter: &FailureFilter) -> FailureFilter {
    FailureFilter { resolved: Some(false), ..filter.clone() }
}

fn no_selection() -> AppError {
    AppError::field("ids", "choose at least one open failure")
}

fn note(text: &str) -> Result<Option<String>, AppError> {
    let text = clean_text(text.trim());
    if text.chars().count() > MAX_RESOLUTION_NOTE_CHARS {
        return Err(AppError::field("note", "at most 2,000 characters are allowed"));
    }
    Ok(Some(text).filter(|text| !text.is_empty()))
}

fn too_many() -> AppError {
    AppError::field("ids", "at most 1,000 can be selected at a time: select fewer, and repeat the action for the rest")
}

fn no_failure() -> AppError {
    AppError::NotFound("This failure does not exist or was deleted by retention.".into())
}
