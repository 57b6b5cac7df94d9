//! Manual runs: inserting an occurrence that a user or an API caller requested, and the reasons to refuse it.

use chrono::{DateTime, Utc};
use milvaion_protocol::id::OccurrenceId;

use super::{
    Result, Store,
    create::{CreatedRun, IDEMPOTENCY_KEY_RETENTION, MAX_OPEN_RUNS_PER_JOB, NewRun, create_runs},
    partitions::with_partitions,
};

/// Maximum number of tries: the reason of a refusal may disappear between the insert and the query for the reason.
const MAX_INSERT_TRIES: usize = 4;

/// The result of a request for a manual run.
#[derive(Clone, Debug)]
pub enum ManualRunOutcome {
    /// The occurrence was inserted.
    Created(Box<CreatedRun>),
    /// An earlier request with the same key had inserted this occurrence.
    Duplicate(OccurrenceId),
    /// The run was refused.
    Refused(ManualRunRefusal),
    /// The job does not exist.
    JobNotFound,
}

impl ManualRunOutcome {
    /// Returns the new occurrence, if one was inserted.
    #[must_use]
    pub fn into_created(self) -> Option<CreatedRun> {
        match self {
            Self::Created(created) => Some(*created),
            _ => None,
        }
    }
}

/// The reason why a manual run was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManualRunRefusal {
    /// The job is paused.
    JobPaused,
    /// The cluster is paused, for this reason.
    ClusterPaused(String),
    /// The job skips overlapping runs, and its previous occurrence is open.
    PreviousRunOpen,
    /// [`MAX_OPEN_RUNS_PER_JOB`] occurrences of the job are open.
    TooManyOpenRuns,
}

impl Store {
    /// Inserts a requested occurrence with its slot, its idempotency key and its audit row, unless it is refused.
    pub async fn insert_manual_run(&self, request: &NewRun, now: DateTime<Utc>) -> Result<ManualRunOutcome> {
        for attempt in 0..MAX_INSERT_TRIES {
            // Only a job that skips overlapping runs needs the lock. The first try finds out whether it is one.
            let created = if attempt == 0 || request.force {
                with_partitions!(self, now, create_runs(self.pool(), std::slice::from_ref(request), false, None, now))?
            } else {
                with_partitions!(self, now, self.create_run_with_lock(request, now))?
            };
            self.measure_created(&created);
            if let Some(run) = created.into_iter().next() {
                return Ok(ManualRunOutcome::Created(Box::new(run)));
            }
            if let Some(outcome) = self.refusal(request, now).await? {
                return Ok(outcome);
            }
        }
        Ok(ManualRunOutcome::Refused(ManualRunRefusal::PreviousRunOpen))
    }

    /// Locks the job, and creates its occurrence.
    async fn create_run_with_lock(&self, request: &NewRun, now: DateTime<Utc>) -> Result<Vec<CreatedRun>> {
        let mut tx = self.pool().begin().await?;
        // A concurrent request waits here and then finds this one's occurrence.
        sqlx::query!("SELECT id FROM jobs WHERE id = $1 FOR NO KEY UPDATE", request.job_id.0)
            .fetch_optional(&mut tx)
            .await?;
        let created = create_runs(&mut tx, std::slice::from_ref(request), true, None, now).await?;
        tx.commit().await?;
        Ok(created)
    }

    /// Returns the reason why nothing was inserted, or `None` if the reason no longer exists.
    async fn refusal(&self, request: &NewRun, now: DateTime<Utc>) -> Result<Option<ManualRunOutcome>> {
        let Some(row) = sqlx::query!(
            r#"SELECT j.is_active,
                      (SELECT k.occurrence_id FROM trigger_keys k
                        WHERE k.job_id = j.id AND k.key = $2 AND k.created_at >= $3) AS before,
                      (SELECT reason FROM cluster_pause) AS stopped,
                      j.overlap_policy = 0 AND EXISTS (SELECT 1 FROM runs r WHERE r.job_id = j.id) AS "is_open!",
                      EXISTS (SELECT 1 FROM runs r WHERE r.job_id = j.id OFFSET $4::bigint - 1)
                      AND EXISTS (SELECT 1 FROM (SELECT r.not_before FROM runs r WHERE r.job_id = j.id
                                                  ORDER BY r.created_at DESC LIMIT 2 * $4::bigint) n
                                   WHERE n.not_before IS NULL OFFSET $4::bigint - 1)
                          AS "is_full!"
                 FROM jobs j WHERE j.id = $1"#,
            request.job_id.0,
            request.key,
            now - IDEMPOTENCY_KEY_RETENTION,
            MAX_OPEN_RUNS_PER_JOB
        )
        .fetch_optional(self.pool())
        .await?
        else {
            return Ok(Some(ManualRunOutcome::JobNotFound));
        };
        Ok(if let Some(before) = row.before {
            Some(ManualRunOutcome::Duplicate(OccurrenceId(before)))
        } else if row.is_full {
            Some(ManualRunOutcome::Refused(ManualRunRefusal::TooManyOpenRuns))
        } else if request.force {
            None
        } else if let Some(reason) = row.stopped {
            Some(ManualRunOutcome::Refused(ManualRunRefusal::ClusterPaused(reason)))
        } else if !row.is_active {
            Some(ManualRunOutcome::Refused(ManualRunRefusal::JobPaused))
        } else if row.is_open {
            Some(ManualRunOutcome::Refused(ManualRunRefusal::PreviousRunOpen))
        } else {
            None
        })
    }
}
