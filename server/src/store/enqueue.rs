//! Enqueued occurrences: the transaction that creates those of one message, and the jobs that they belong to.
//!
//! Nothing here counts the open occurrences of a job, so the cost of a message depends on its length alone.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Duration, Utc};
use milvaion_api::{requests::JobInput, sources::JobSourceKind};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::JobDefaults,
};
use sqlx::{Executor, Postgres};
use uuid::Uuid;

use super::{
    Result, Store,
    create::{EnqueueOutcome, NewRun, enqueue_runs},
    jobs::{AuditStamp, insert_job},
};

/// The age from which on the partitions of an occurrence's creation day may never have been created.
const MAX_FIRST_PARTITION_AGE: Duration = Duration::days(1);
/// The time after the last request for a uniqueness key from which on its row may be deleted.
const UNIQUENESS_KEY_GRACE: Duration = Duration::hours(1);

/// A job that occurrences are enqueued for.
#[derive(Clone, Debug, PartialEq)]
pub struct EnqueueTarget {
    /// The job; none if the job of a job type does not exist yet.
    pub job_id: Option<JobId>,
    /// Its worker.
    pub worker_id: String,
    /// Its job type.
    pub job_type: String,
    /// False while the job is paused.
    pub is_active: bool,
    /// The rules that the code declares for the job type, if the occurrence names it.
    pub defaults: JobDefaults,
}

impl Store {
    /// Returns the jobs with these keys. Keys without a job are left out.
    pub async fn enqueue_targets_by_key(&self, keys: &[String]) -> Result<HashMap<String, EnqueueTarget>> {
        let rows = sqlx::query!(
            r#"SELECT key AS "key!", id, worker_id, job_type, is_active FROM jobs WHERE key = ANY($1)"#,
            keys
        )
        .fetch_all(self.pool())
        .await?;
        let target = |job_id, worker_id, job_type, is_active| EnqueueTarget {
            job_id: Some(JobId(job_id)),
            worker_id,
            job_type,
            is_active,
            defaults: JobDefaults::default(),
        };
        Ok(rows.into_iter().map(|row| (row.key, target(row.id, row.worker_id, row.job_type, row.is_active))).collect())
    }

    /// Returns the job types of workers that are registered, with the jobs of their enqueued occurrences and the rules that the
    /// instance declared which started last. Unknown ones are left out.
    pub async fn enqueue_targets_by_type(
        &self,
        wanted: &[(String, String)],
    ) -> Result<HashMap<(String, String), EnqueueTarget>> {
        let (workers, types): (Vec<String>, Vec<String>) = wanted.iter().cloned().unzip();
        let rows = sqlx::query!(
            r#"SELECT t.worker_id, t.job_type, j.id AS "job_id?", coalesce(j.is_active, true) AS "is_active!",
                      (SELECT i.declared -> t.job_type -> 'defaults' FROM worker_instances i
                        WHERE i.worker_id = t.worker_id AND i.declared ? t.job_type
                        ORDER BY i.started_at DESC LIMIT 1) AS defaults
                 FROM unnest($1::text[], $2::text[]) AS w (worker_id, job_type)
                 JOIN worker_job_types t ON t.worker_id = w.worker_id AND t.job_type = w.job_type
                 LEFT JOIN declared_jobs d ON d.worker_id = t.worker_id AND d.job_type = t.job_type AND d.name = ''
                 LEFT JOIN jobs j ON j.id = d.job_id"#,
            &workers,
            &types
        )
        .fetch_all(self.pool())
        .await?;
        let targets = rows.into_iter().map(|row| {
            let target = EnqueueTarget {
                job_id: row.job_id.map(JobId),
                worker_id: row.worker_id.clone(),
                job_type: row.job_type.clone(),
                is_active: row.is_active,
                // What a newer server has stored in another form counts as no rule.
                defaults: row.defaults.and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default(),
            };
            ((row.worker_id, row.job_type), target)
        });
        Ok(targets.collect())
    }

    /// Creates the job for the enqueued occurrences of a job type, unless another request has created it meanwhile. Returns
    /// the job, and true if this call has created it.
    pub async fn create_enqueue_job(&self, id: JobId, job: &JobInput, edit: AuditStamp<'_>) -> Result<(JobId, bool)> {
        let mut tx = self.pool().begin().await?;
        // Concurrent requests for the first occurrence of a type are rare, and wait for each other here.
        sqlx::query!("SELECT pg_advisory_xact_lock(hashtext('milvaion.enqueue_jobs'))").execute(&mut tx).await?;
        let before = sqlx::query_scalar!(
            "SELECT job_id FROM declared_jobs WHERE worker_id = $1 AND job_type = $2 AND name = ''",
            job.worker_id,
            job.job_type
        )
        .fetch_optional(&mut tx)
        .await?;
        if let Some(before) = before {
            return Ok((JobId(before), false));
        }
        insert_job(&mut tx, id, None, job, None, JobSourceKind::Code, edit).await?;
        sqlx::query!(
            "INSERT INTO declared_jobs (worker_id, job_type, name, job_id) VALUES ($1, $2, '', $3)",
            job.worker_id,
            job.job_type,
            id.0
        )
        .execute(&mut tx)
        .await?;
        tx.commit().await?;
        Ok((id, true))
    }

    /// Returns those of the ids that an earlier request has created.
    pub async fn known_ids(&self, wanted: &[OccurrenceId]) -> Result<HashSet<OccurrenceId>> {
        if wanted.is_empty() {
            return Ok(HashSet::new());
        }
        let ids: Vec<Uuid> = wanted.iter().map(|id| id.0).collect();
        let created: Vec<DateTime<Utc>> = wanted.iter().map(|id| id.created_at()).collect();
        let known = sqlx::query_scalar!(
            r#"SELECT r.run_id AS "id!" FROM unnest($1::uuid[], $2::timestamptz[]) AS w (id, created_at)
                CROSS JOIN LATERAL (
                      SELECT r.run_id FROM receipts r WHERE r.run_id = w.id AND r.created_at = w.created_at OFFSET 0) r"#,
            &ids,
            &created
        )
        .fetch_all(self.pool())
        .await?;
        Ok(known.into_iter().map(OccurrenceId).collect())
    }

    /// Creates occurrences, each at most once, in one transaction. Returns one outcome for each, in their order. `by` is the
    /// author. No id may be there twice.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then none was created.
    pub async fn enqueue_runs(
        &self,
        runs: &[NewRun],
        by: Option<&str>,
        now: DateTime<Utc>,
    ) -> Result<Vec<EnqueueOutcome>> {
        match self.try_enqueue_runs(runs, by, now).await {
            Err(error) if error.is_missing_partition() => {
                // A new installation has no partitions for ids that were made days ago.
                let oldest = runs.iter().map(|run| run.id.created_at()).min().unwrap_or(now);
                if oldest < now - MAX_FIRST_PARTITION_AGE {
                    self.ensure_partitions(oldest).await?;
                }
                self.ensure_partitions(now).await?;
                self.try_enqueue_runs(runs, by, now).await
            }
            done => done,
        }
    }

    async fn try_enqueue_runs(
        &self,
        runs: &[NewRun],
        by: Option<&str>,
        now: DateTime<Utc>,
    ) -> Result<Vec<EnqueueOutcome>> {
        let outcomes = if runs.iter().all(|run| run.uniqueness_key.is_none()) {
            // The statement is a transaction by itself.
            enqueue_runs(self.pool(), runs, by, now).await?
        } else {
            let mut tx = self.pool().begin().await?;
            // A separate statement: the next one sees what the transactions that held the rows before have created.
            let (jobs, keys): (Vec<Uuid>, Vec<String>) =
                runs.iter().filter_map(|run| Some((run.job_id.0, run.uniqueness_key.clone()?))).unzip();
            lock_uniqueness_keys(&mut tx, &jobs, &keys, now).await?;
            let outcomes = enqueue_runs(&mut tx, runs, by, now).await?;
            tx.commit().await?;
            outcomes
        };
        self.measure_created(outcomes.iter().filter_map(|outcome| match outcome {
            EnqueueOutcome::Created(run) => Some(&**run),
            _ => None,
        }));
        Ok(outcomes)
    }

    /// Deletes uniqueness keys that are free for an hour or longer. Returns their number.
    ///
    /// Each statement looks at a bounded number of keys, in their order: millions of them may be taken by delayed
    /// occurrences, and a search for free ones among all would take longer than a statement may.
    pub async fn delete_free_uniqueness_keys(&self, now: DateTime<Utc>) -> Result<u64> {
        let (mut deleted, mut job_id, mut key) = (0, Uuid::nil(), String::new());
        loop {
            // OFFSET 0 makes the planner look up each occurrence. The age is compared again when the row is locked, and a
            // row that was changed meanwhile is elsewhere, so a request that has just taken the key keeps it.
            let page = sqlx::query!(
                r#"WITH page AS MATERIALIZED (
                       SELECT ctid AS place, job_id, key, run_id, until, claimed_at FROM run_uniqueness
                        WHERE (job_id, key) > ($1, $2) ORDER BY job_id, key LIMIT 2000),
                   deleted AS (
                       DELETE FROM run_uniqueness WHERE claimed_at < $3 AND ctid = ANY (ARRAY (
                           SELECT p.place FROM page p
                            WHERE p.claimed_at < $3 AND coalesce(p.until, '-infinity') < $4
                              AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.id = p.run_id OFFSET 0)))
                       RETURNING 1)
                   SELECT p.job_id, p.key, (SELECT count(*) FROM deleted) AS "deleted!"
                     FROM page p ORDER BY p.job_id DESC, p.key DESC LIMIT 1"#,
                job_id,
                key,
                now - UNIQUENESS_KEY_GRACE,
                now
            )
            .fetch_optional(self.pool())
            .await?;
            let Some(last) = page else { return Ok(deleted) };
            deleted += last.deleted.unsigned_abs();
            (job_id, key) = (last.job_id, last.key);
        }
    }
}

/// Locks the rows of uniqueness keys of jobs until the transaction ends, and creates those that are missing.
pub(super) async fn lock_uniqueness_keys<'c>(
    executor: impl Executor<'c, Database = Postgres>,
    jobs: &[Uuid],
    keys: &[String],
    now: DateTime<Utc>,
) -> Result<()> {
    sqlx::query!(
        "INSERT INTO run_uniqueness (job_id, key, claimed_at)
         SELECT DISTINCT job_id, key, $3::timestamptz FROM unnest($1::uuid[], $2::text[]) AS w (job_id, key) ORDER BY 1, 2
         ON CONFLICT (job_id, key) DO UPDATE SET claimed_at = excluded.claimed_at",
        jobs,
        keys,
        now
    )
    .execute(executor)
    .await?;
    Ok(())
}
