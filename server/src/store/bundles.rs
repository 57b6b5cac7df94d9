//! Messages with several runs: what workers take, how large the sent ones were, and those that came back. What workers take
//! includes the slots that they reserve for critical runs.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use milvaion_protocol::id::OccurrenceId;
use uuid::Uuid;

use super::{Result, Store};
use crate::domain::{bundles::BundleOffer, liveness};

/// A worker id and a job type.
pub type TypeKey = (String, String);

impl Store {
    /// Returns what the instances of these job types take at `now`; a job type that no worker has announced is left out.
    pub async fn bundle_offers(&self, keys: &[TypeKey], now: DateTime<Utc>) -> Result<Vec<(TypeKey, BundleOffer)>> {
        let (workers, job_types): (Vec<String>, Vec<String>) = keys.iter().cloned().unzip();
        // Each is looked up by its key; see docs/ARCHITECTURE.md about plans. Running occurrences are counted once for all
        // types, and only if every instance of one runs at least its concurrency. Names of job types are compared without
        // case, as in the names of queues.
        let rows = sqlx::query!(
            r#"WITH running AS MATERIALIZED (
                      SELECT worker_id, job_type, count(*) AS number FROM runs
                       WHERE status = 'running' AND job_type = ANY($2) GROUP BY worker_id, job_type)
               SELECT t.worker_id AS "worker_id!", t.job_type AS "job_type!", t.bundle_size AS "announced!",
                      t.concurrency AS "concurrency!", l.instances AS "instances!", l.smallest_live, l.is_full AS "is_full!",
                      l.critical_instances AS "critical_instances!", l.critical_slots,
                      coalesce(CASE WHEN l.least_running >= t.concurrency THEN (
                          SELECT r.number FROM running r WHERE r.worker_id = t.worker_id AND r.job_type = t.job_type)
                      END, 0) AS "running!"
                 FROM unnest($1::text[], $2::text[]) AS k (worker_id, job_type)
                CROSS JOIN LATERAL (
                      SELECT w.worker_id, w.job_type, w.bundle_size, w.concurrency FROM worker_job_types w
                       WHERE w.worker_id = k.worker_id AND w.job_type = k.job_type OFFSET 0) t
                CROSS JOIN LATERAL (
                      SELECT count(*) AS instances, min(o.bundle_size) AS smallest_live, min(i.running) AS least_running,
                             coalesce(bool_and(i.running >= i.capacity), false) AS is_full,
                             count(*) FILTER (WHERE i.critical_slots > 0 AND NOT i.stopping) AS critical_instances,
                             min(i.critical_slots) FILTER (WHERE i.critical_slots > 0 AND NOT i.stopping) AS critical_slots
                        FROM worker_instances i
                        JOIN instance_job_types o ON o.instance_id = i.id AND lower(o.job_type) = lower(k.job_type)
                       WHERE i.worker_id = k.worker_id AND i.stopped_at IS NULL AND i.last_heartbeat_at >= $3) l"#,
            &workers,
            &job_types,
            liveness::alive_since(now)
        )
        .fetch_all(self.pool())
        .await?;
        let number = |value: i32| usize::try_from(value).unwrap_or(0);
        let count = |value: i64| usize::try_from(value).unwrap_or(usize::MAX);
        Ok(rows
            .into_iter()
            .map(|row| {
                let offer = BundleOffer {
                    announced: number(row.announced),
                    smallest_live: row.smallest_live.map(number),
                    concurrency: number(row.concurrency),
                    instances: count(row.instances),
                    is_full: row.is_full,
                    running: count(row.running),
                    critical_instances: count(row.critical_instances),
                    critical_slots: row.critical_slots.map_or(0, number),
                };
                ((row.worker_id, row.job_type), offer)
            })
            .collect())
    }

    /// Records that messages with as many runs may be sent from `now` on. Keeps a larger number.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then no such message may be sent.
    pub async fn raise_sent_bundles(&self, sizes: &BTreeMap<TypeKey, usize>, now: DateTime<Utc>) -> Result<()> {
        let (workers, job_types): (Vec<String>, Vec<String>) = sizes.keys().cloned().unzip();
        let sizes: Vec<i32> = sizes.values().map(|size| i32::try_from(*size).unwrap_or(i32::MAX)).collect();
        sqlx::query!(
            "INSERT INTO sent_bundles AS s (worker_id, job_type, size, sent_at)
             SELECT worker_id, job_type, size, $4
               FROM unnest($1::text[], $2::text[], $3::int[]) AS b (worker_id, job_type, size)
              ORDER BY worker_id, job_type
             ON CONFLICT (worker_id, job_type) DO UPDATE
                SET size = greatest(s.size, excluded.size), sent_at = greatest(s.sent_at, excluded.sent_at)",
            &workers,
            &job_types,
            &sizes,
            now
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Returns the largest number of runs in a message, for the job types of which it is more than one.
    pub async fn sent_bundle_sizes(&self) -> Result<BTreeMap<TypeKey, i64>> {
        let rows = sqlx::query!("SELECT worker_id, job_type, size FROM sent_bundles").fetch_all(self.pool()).await?;
        Ok(rows.into_iter().map(|row| ((row.worker_id, row.job_type), i64::from(row.size))).collect())
    }

    /// Forgets the sizes of the job types of which no bundle was sent since `before` and no run waits for a worker. A run
    /// whose confirm is not stored yet waits too. A size that is stored meanwhile stays: its row is locked, or has a later
    /// time then.
    pub async fn forget_sent_bundles(&self, before: DateTime<Utc>) -> Result<()> {
        // Those that wait are read once, by the indexes of what is sent and of what is unsent: without DISTINCT, PostgreSQL
        // does not hash a million of them, but reads them again for each job type.
        sqlx::query!(
            "WITH idle AS (
                SELECT worker_id, job_type FROM sent_bundles
                 WHERE sent_at < $1
                   AND (worker_id, job_type) NOT IN (
                        SELECT DISTINCT worker_id, job_type FROM runs WHERE status = 'queued' AND published_at IS NOT NULL
                        UNION ALL
                        SELECT DISTINCT worker_id, job_type FROM runs WHERE publish_after IS NOT NULL)
                 ORDER BY worker_id, job_type FOR UPDATE SKIP LOCKED
             )
             DELETE FROM sent_bundles s USING idle i WHERE s.worker_id = i.worker_id AND s.job_type = i.job_type",
            before
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Marks those runs of rejected bundles as unsent that are queued in the attempt of the bundle, so that each gets a
    /// message of its own. Returns them. `runs` has each occurrence with its attempt.
    ///
    /// The confirm of a bundle may not be stored yet. The row of such a run has a time in `published_at` until the confirm of
    /// its next message is stored, so that the one of the bundle does not count as that. It is unsent all the same.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then nothing changed.
    pub async fn return_bundled(
        &self,
        mut runs: Vec<(OccurrenceId, i32)>,
        now: DateTime<Utc>,
    ) -> Result<Vec<OccurrenceId>> {
        // Rows are locked in the order of ids.
        runs.sort_unstable();
        let (ids, attempts): (Vec<Uuid>, Vec<i32>) = runs.into_iter().map(|(id, attempt)| (id.0, attempt)).unzip();
        let returned = sqlx::query_scalar!(
            "UPDATE runs SET publish_after = coalesce(publish_after, published_at),
                    published_at = CASE WHEN publish_after IS NOT NULL THEN $3::timestamptz END
              WHERE id = ANY (ARRAY (
                    SELECT l.id FROM unnest($1::uuid[], $2::int[]) AS b (id, attempt)
                     CROSS JOIN LATERAL (
                        SELECT o.id FROM runs o
                         WHERE o.id = b.id AND o.attempt = b.attempt AND o.status = 'queued'
                           AND coalesce(o.published_at, o.publish_after) IS NOT NULL
                           FOR UPDATE) l))
             RETURNING id",
            &ids,
            &attempts,
            now
        )
        .fetch_all(self.pool())
        .await?;
        Ok(returned.into_iter().map(OccurrenceId).collect())
    }
}
