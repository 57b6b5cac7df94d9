//! Occurrences: cancel.

use milvaion_api::events::LiveEvent;
use milvaion_app::{backend::RequestUser, error::AppError};
use milvaion_protocol::{id::OccurrenceId, message::CancelMessage, status::OccurrenceStatus};

use super::jobs::JobCommands;
use crate::{
    domain::transition::clean,
    store::{Result, cancel::CancelOutcome, jobs::AuditStamp},
};

/// The maximum length of a reason, in characters.
const MAX_REASON_CHARS: usize = 500;

/// Returns a reason as it is stored, or `None` if it is empty.
///
/// # Errors
///
/// Returns `Fields` for `reason` if it is too long.
pub(super) fn reason(text: &str) -> std::result::Result<Option<String>, AppError> {
    let text = clean(text.trim().to_owned());
    if text.chars().count() > MAX_REASON_CHARS {
        return Err(AppError::field("reason", "at most 500 characters are allowed"));
    }
    Ok(Some(text).filter(|text| !text.is_empty()))
}

impl JobCommands {
    /// Cancels an occurrence. An occurrence that no worker runs becomes Cancelled immediately. A running one gets a
    /// cancel request, which is repeated until the run ends. Returns the new status: Cancelled or Running. Cancelling
    /// twice is not an error.
    ///
    /// # Errors
    ///
    /// Returns `Fields` for an invalid `reason`, `NotFound`, or `Conflict` if the occurrence has already ended.
    pub async fn cancel(
        &self,
        me: &RequestUser,
        id: OccurrenceId,
        reason_text: &str,
    ) -> std::result::Result<OccurrenceStatus, AppError> {
        let reason = reason(reason_text)?;
        let changed = self
            .cancel_all(
                &[id],
                reason.as_deref(),
                AuditStamp { by: &me.email, at: self.clock.now(), address: me.address },
            )
            .await?;
        if let Some(cancelled) = changed.first() {
            return Ok(cancelled.row.status);
        }
        match self.store.occurrence_status(id).await? {
            None => Err(AppError::NotFound("This occurrence does not exist or was deleted by retention.".into())),
            Some((status, _)) if status.is_final() => Err(AppError::Conflict(format!(
                "This occurrence has already ended: it is {}. It cannot be cancelled.",
                status.label()
            ))),
            Some((status, _)) => {
                self.activate_cancellation_repeater.notify_one();
                Ok(status)
            }
        }
    }

    /// Cancels the open ones among `ids`, for a user or for the server itself. Notifies Redis, the background tasks and
    /// the browsers.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](crate::store::StoreError) if PostgreSQL fails. Nothing has changed then.
    pub async fn cancel_all(
        &self,
        ids: &[OccurrenceId],
        reason: Option<&str>,
        edit: AuditStamp<'_>,
    ) -> Result<Vec<CancelOutcome>> {
        let changed = self.store.cancel(ids, reason, edit).await?;
        if changed.is_empty() {
            return Ok(changed);
        }
        let (mut ended, mut requests) = (Vec::new(), Vec::new());
        for CancelOutcome { row, .. } in &changed {
            let attempt = u32::try_from(row.attempt).unwrap_or(1);
            if row.status.is_final() {
                ended.push((row.id, attempt));
            }
            // A worker may have started a queued run since it was read, and an Unknown run may still be running.
            let reason = row.note.clone().unwrap_or_default();
            requests.push(CancelMessage { occurrence_id: row.id, attempt, reason });
        }
        let rows = changed.iter().map(|cancelled| cancelled.row.clone()).collect();
        self.hub.publish(edit.at, vec![LiveEvent::Occurrences { rows }]);
        if changed.iter().any(|cancelled| !cancelled.row.status.is_final()) {
            self.activate_cancellation_repeater.notify_one();
        }
        if !ended.is_empty() {
            let jobs = changed.iter().filter(|cancelled| cancelled.row.status.is_final());
            self.ended_jobs.add(jobs.map(|cancelled| cancelled.row.job_id));
            self.activate_slot_granter.notify_one();
        }
        let notify_workers = async {
            self.cache.end_claims(&ended).await?;
            self.cache.request_cancellations(&requests).await
        };
        if let Err(error) = notify_workers.await {
            tracing::warn!(
                occurrence.count = requests.len(), error = %error,
                "the cancellation of {} occurrences was not written to Redis; a message in flight may still start a \
                 run, whose reports are then ignored", requests.len()
            );
        }
        Ok(changed)
    }
}
