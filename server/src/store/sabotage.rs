//! The sabotages of the store: what a fault test has behind a disabled protection; see [`faults`](crate::faults).
//!
//! Their statements are not checked when the server is compiled, so that they need no record.

use chrono::{DateTime, Utc};
use milvaion_api::failures::FailureCause;
use milvaion_protocol::id::OccurrenceId;

use super::{Result, Store, create::NewRun, dead_letters::DeadLetteredRun};
use crate::{domain::transition::AttemptChange, faults::is_sabotaged};

impl Store {
    /// Writes back the due times that were read, so that every compare matches.
    pub(super) async fn sabotage_swap(&self, runs: &[NewRun]) -> Result<()> {
        if !is_sabotaged("skip_compare_and_swap") {
            return Ok(());
        }
        for run in runs {
            sqlx::query(
                "UPDATE job_due d SET next_fire_at = $3 FROM jobs j
                  WHERE j.id = $1 AND d.job_id = $1 AND d.version = $2 AND j.is_active
                    AND d.next_fire_at IS DISTINCT FROM $3",
            )
            .bind(run.job_id.0)
            .bind(run.version)
            .bind(run.due)
            .execute(self.pool())
            .await?;
        }
        Ok(())
    }

    /// Deletes the receipts of earlier deliveries, so that nothing shows that an occurrence exists.
    pub(crate) async fn sabotage_receipts(&self, runs: &[NewRun]) -> Result<()> {
        if is_sabotaged("skip_receipts") {
            let ids: Vec<uuid::Uuid> = runs.iter().map(|run| run.id.0).collect();
            sqlx::query("DELETE FROM receipts WHERE run_id = ANY($1)").bind(ids).execute(self.pool()).await?;
        }
        Ok(())
    }

    /// Applies each report to the attempt in force.
    pub(crate) async fn sabotage_attempts(&self, changes: &mut [AttemptChange]) -> Result<()> {
        if !is_sabotaged("skip_attempt_check") {
            return Ok(());
        }
        let ids: Vec<_> = changes.iter().map(|change| change.occurrence_id).collect();
        let recorded = self.recorded_attempts(&ids).await?;
        for change in changes {
            if let Some(recorded) = recorded.get(&change.occurrence_id) {
                change.attempt = recorded.attempt;
            }
        }
        Ok(())
    }

    /// Fails occurrences whose messages the broker has not confirmed. `unsent` has each with its attempt.
    pub(crate) async fn sabotage_unsent(&self, unsent: Vec<(OccurrenceId, u32)>, now: DateTime<Utc>) {
        if !is_sabotaged("fail_unpublished") {
            return;
        }
        for (id, attempt) in unsent {
            let run = DeadLetteredRun {
                id,
                attempt: i32::try_from(attempt).unwrap_or(i32::MAX),
                cause: FailureCause::Rejected,
                reason: "Its message could not be published.".to_owned(),
                fingerprint: "unpublished".to_owned(),
                by_worker: false,
            };
            if let Err(error) = self.fail_dead_lettered(&run, now).await {
                tracing::warn!(error = %error, "the sabotage fail_unpublished could not fail occurrence {id}");
            }
        }
    }
}
