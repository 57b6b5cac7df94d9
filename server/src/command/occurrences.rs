//! Occurrences: cancel.
//!
//! All delayed occurrences of a job are cancelled in statements of bounded size, and a request ends after a bounded number
//! of them: a million would otherwise be locked at once, and their request would be cut off without a result.

use std::time::{Duration, Instant};

use milvaion_api::{events::LiveEvent, rest::CancelDelayedResult};
use milvaion_app::{backend::RequestUser, error::AppError};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    status::OccurrenceStatus,
};

use super::{jobs::JobCommands, reason};
use crate::{
    domain::message::{attempt_number, cancel_message},
    store::{Result, cancel::CancelOutcome, jobs::AuditStamp},
};

/// The most delayed occurrences that one statement cancels.
const DELAYED_BATCH: i64 = 500;
/// The most delayed occurrences that one request cancels.
const MAX_CANCELLED_PER_REQUEST: u32 = 10_000;
/// The time after which a request begins no further batch.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

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
        self.announce_cancellations(&changed, edit).await;
        Ok(changed)
    }

    /// Cancels delayed occurrences of a job, oldest first, at most `MAX_CANCELLED_PER_REQUEST`. The result says whether some
    /// may be left, for another request. A repeated request finds nothing to cancel, which is not an error.
    ///
    /// # Errors
    ///
    /// Returns `Fields` for an invalid `reason`, and `NotFound` if neither the job nor a delayed occurrence of it exists.
    /// After another error, the occurrences of the batches before stay cancelled.
    pub async fn cancel_delayed(
        &self,
        me: &RequestUser,
        job: JobId,
        reason_text: &str,
    ) -> std::result::Result<CancelDelayedResult, AppError> {
        let reason = reason(reason_text)?;
        let begun = Instant::now();
        let mut result = CancelDelayedResult { cancelled: 0, more: true };
        while result.more && result.cancelled < MAX_CANCELLED_PER_REQUEST && begun.elapsed() < CANCEL_TIMEOUT {
            let edit = AuditStamp { by: &me.email, at: self.clock.now(), address: me.address };
            let changed = self.store.cancel_delayed(job, DELAYED_BATCH, reason.as_deref(), edit).await?;
            self.announce_cancellations(&changed, edit).await;
            result.more = !changed.is_empty();
            result.cancelled += u32::try_from(changed.len()).unwrap_or(u32::MAX);
        }
        if result.cancelled == 0 && self.store.job_to_show(job).await?.is_none() {
            return Err(super::jobs::not_found());
        }
        Ok(result)
    }

    /// Notifies Redis, the background tasks and the browsers of cancellations.
    async fn announce_cancellations(&self, changed: &[CancelOutcome], edit: AuditStamp<'_>) {
        if changed.is_empty() {
            return;
        }
        let (mut ended, mut requests) = (Vec::new(), Vec::new());
        for CancelOutcome { row, .. } in changed {
            if row.status.is_final() {
                ended.push((row.id, attempt_number(row.attempt)));
            }
            // A worker may have started a queued run since it was read, and an Unknown run may still be running.
            let reason = row.note.clone().unwrap_or_default();
            requests.push(cancel_message(row.id, row.attempt, reason));
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
    }
}
