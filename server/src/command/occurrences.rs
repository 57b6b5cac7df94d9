//! Occurrences: cancel them.

use milvaion_api::{events::LiveEvent, views::CurrentUser};
use milvaion_app::error::AppError;
use milvaion_protocol::{id::OccurrenceId, message::CancelMessage, status::OccurrenceStatus};

use super::jobs::JobCommands;
use crate::{
    domain::transition::clean,
    store::{Result, cancel::CancelOutcome, jobs::AuditStamp},
};

/// The most characters of a reason.
const MAX_REASON_CHARS: usize = 500;

/// A reason as it is stored: none when it is empty.
///
/// # Errors
///
/// `Fields` for `reason`.
pub(super) fn reason(text: &str) -> std::result::Result<Option<String>, AppError> {
    let text = clean(text.trim().to_owned());
    if text.chars().count() > MAX_REASON_CHARS {
        return Err(AppError::field("reason", "at most 500 characters"));
    }
    Ok(Some(text).filter(|text| !text.is_empty()))
}

impl JobCommands {
    /// Cancels an occurrence. What no worker runs is Cancelled at once; what runs is asked to end, and asked again until
    /// it has. Returns what it is now: Cancelled, or Running. Asking twice is no mistake.
    ///
    /// # Errors
    ///
    /// `Fields` for `reason`, `NotFound`, or `Conflict` when it has ended already.
    pub async fn cancel(
        &self,
        me: &CurrentUser,
        id: OccurrenceId,
        why: &str,
    ) -> std::result::Result<OccurrenceStatus, AppError> {
        let why = reason(why)?;
        let changed =
            self.cancel_all(&[id], why.as_deref(), AuditStamp { by: &me.email, at: self.clock.now() }).await?;
        if let Some(cancelled) = changed.first() {
            return Ok(cancelled.row.status);
        }
        match self.store.occurrence_status(id).await? {
            None => Err(AppError::NotFound("This occurrence does not exist, or is no longer kept.".into())),
            Some((status, _)) if status.is_final() => Err(AppError::Conflict(format!(
                "This occurrence has ended already: it is {}. There is nothing left to cancel.",
                status.label()
            ))),
            Some((status, _)) => {
                self.activate_cancellation_repeater.notify_one();
                Ok(status)
            }
        }
    }

    /// Cancels what is open among `ids`, for a person or for the system itself, and tells everybody.
    ///
    /// # Errors
    ///
    /// When the database does not answer; then nothing changed.
    pub async fn cancel_all(
        &self,
        ids: &[OccurrenceId],
        why: Option<&str>,
        edit: AuditStamp<'_>,
    ) -> Result<Vec<CancelOutcome>> {
        let changed = self.store.cancel(ids, why, edit).await?;
        if changed.is_empty() {
            return Ok(changed);
        }
        let (mut ended, mut wishes) = (Vec::new(), Vec::new());
        for CancelOutcome { row, .. } in &changed {
            let attempt = u32::try_from(row.attempt).unwrap_or(1);
            if row.status.is_final() {
                ended.push((row.id, attempt));
            }
            // One that was Queued a moment ago may have been started since; one that was Unknown may run on.
            let reason = row.note.clone().unwrap_or_default();
            wishes.push(CancelMessage { occurrence_id: row.id, attempt, reason });
        }
        let rows = changed.iter().map(|cancelled| cancelled.row.clone()).collect();
        self.hub.publish(edit.at, vec![LiveEvent::Occurrences { rows }]);
        if changed.iter().any(|cancelled| !cancelled.row.status.is_final()) {
            self.activate_cancellation_repeater.notify_one();
        }
        if !ended.is_empty() {
            self.activate_slot_granter.notify_one();
        }
        let told = async {
            self.cache.end_claims(&ended).await?;
            self.cache.request_cancellations(&wishes).await
        };
        if let Err(error) = told.await {
            tracing::warn!(
                error = %error,
                "Redis did not hear of a cancellation; a message that is still on its way may start, and its reports will change nothing"
            );
        }
        Ok(changed)
    }
}
