//! Workers, their instances and their job types.

use std::collections::{BTreeMap, HashSet};

use chrono::{DateTime, Utc};
use milvaion_api::views::{InstanceView, JobTypeView, WorkerView};
use milvaion_protocol::message::{InstanceHeartbeat, InstanceHello, JobTypeInfo, MAX_NOTICE_BYTES, truncate_text};
use serde_json::Value;
use uuid::Uuid;

use super::{Result, Store};
use crate::domain::{liveness, transition::clean};

impl Store {
    /// Stores the registration of an instance. Repeating it only updates the times and the announced values.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn hello(&self, hello: &InstanceHello, now: DateTime<Utc>) -> Result<()> {
        let mut tx = self.pool().begin().await?;
        sqlx::query!(
            "INSERT INTO workers (id, first_seen_at, last_seen_at) VALUES ($1, $2, $2)
             ON CONFLICT (id) DO UPDATE SET last_seen_at = excluded.last_seen_at",
            hello.worker_id,
            now
        )
        .execute(&mut tx)
        .await?;
        sqlx::query!(
            "INSERT INTO worker_instances (id, worker_id, host, pid, version, capacity, started_at, last_heartbeat_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $7)
             ON CONFLICT (id) DO UPDATE SET last_heartbeat_at = excluded.last_heartbeat_at, stopped_at = NULL,
                    version = excluded.version, capacity = excluded.capacity",
            hello.instance_id,
            hello.worker_id,
            clean(hello.host.clone()),
            i32::try_from(hello.pid).unwrap_or(0),
            clean(hello.version.clone()),
            i32::try_from(hello.capacity).unwrap_or(i32::MAX),
            now
        )
        .execute(&mut tx)
        .await?;
        sqlx::query!("DELETE FROM instance_job_types WHERE instance_id = $1", hello.instance_id)
            .execute(&mut tx)
            .await?;
        for info in &hello.job_types {
            sqlx::query!(
                "INSERT INTO worker_job_types (worker_id, job_type, description, schema, concurrency, timeout_seconds, announced_at)
                 VALUES ($1, $2, $3, $4::text::json, $5, $6, $7)
                 ON CONFLICT (worker_id, job_type) DO UPDATE SET description = excluded.description, schema = excluded.schema,
                        concurrency = excluded.concurrency, timeout_seconds = excluded.timeout_seconds,
                        announced_at = excluded.announced_at",
                hello.worker_id,
                info.job_type,
                clean(info.description.clone()),
                // As text: a value would be sent as jsonb, which sorts the properties.
                info.schema.to_string(),
                i32::try_from(info.concurrency).unwrap_or(i32::MAX),
                info.timeout_seconds.and_then(|s| i32::try_from(s).ok()),
                now
            )
            .execute(&mut tx)
            .await?;
            sqlx::query!(
                "INSERT INTO instance_job_types (instance_id, job_type) VALUES ($1, $2) ON CONFLICT DO NOTHING",
                hello.instance_id,
                info.job_type
            )
            .execute(&mut tx)
            .await?;
        }
        tx.commit().await?;
        Ok(())
    }

    /// Stores a heartbeat. Returns true if the instance's notice changed, and `None` if the instance is not registered.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn heartbeat(&self, beat: &InstanceHeartbeat, now: DateTime<Utc>) -> Result<Option<bool>> {
        let running: Vec<Uuid> = beat.running.iter().map(|id| id.0).collect();
        let notice = beat.notice.as_ref().filter(|text| !text.trim().is_empty());
        Ok(sqlx::query_scalar!(
            r#"WITH before AS (SELECT id, notice FROM worker_instances WHERE id = $1)
             UPDATE worker_instances i
                SET last_heartbeat_at = $2, running = $3, running_ids = $4, stopped_at = NULL, notice = $5
               FROM before b WHERE i.id = b.id
             RETURNING i.notice IS DISTINCT FROM b.notice AS "is_new!""#,
            beat.instance_id,
            now,
            i32::try_from(running.len()).unwrap_or(i32::MAX),
            &running,
            // Truncated last, because the replacement characters that `clean` inserts are longer than what they
            // replace.
            notice.map(|text| truncate_text(clean(text.clone()), MAX_NOTICE_BYTES))
        )
        .fetch_optional(self.pool())
        .await?)
    }

    /// Stores the shutdown of an instance.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn goodbye(&self, instance_id: &str, now: DateTime<Utc>) -> Result<()> {
        sqlx::query!(
            "UPDATE worker_instances SET stopped_at = $2, running = 0, running_ids = '{}' WHERE id = $1",
            instance_id,
            now
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Returns the JSON Schema that a worker announced for a job type.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn schema(&self, worker_id: &str, job_type: &str) -> Result<Option<Value>> {
        Ok(sqlx::query_scalar!(
            "SELECT schema FROM worker_job_types WHERE worker_id = $1 AND job_type = $2",
            worker_id,
            job_type
        )
        .fetch_optional(self.pool())
        .await?)
    }

    /// Returns all pairs of worker and job type that a live instance offers.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn alive_types(&self, alive_since: DateTime<Utc>) -> Result<HashSet<(String, String)>> {
        let rows = sqlx::query!(
            "SELECT DISTINCT i.worker_id, t.job_type FROM worker_instances i JOIN instance_job_types t ON t.instance_id = i.id
              WHERE i.stopped_at IS NULL AND i.last_heartbeat_at >= $1",
            alive_since
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| (row.worker_id, row.job_type)).collect())
    }

    /// Returns all known job types with the number of live instances that offer each, at most 500, most instances
    /// first.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn job_types(&self, alive_since: DateTime<Utc>) -> Result<Vec<JobTypeView>> {
        let rows = sqlx::query!(
            r#"SELECT w.worker_id, w.job_type, w.description, w.schema, w.concurrency, w.timeout_seconds,
                      (SELECT count(*) FROM worker_instances i JOIN instance_job_types t ON t.instance_id = i.id
                        WHERE i.worker_id = w.worker_id AND t.job_type = w.job_type AND i.stopped_at IS NULL
                          AND i.last_heartbeat_at >= $1) AS "alive!"
                 FROM worker_job_types w ORDER BY 7 DESC, 1, 2 LIMIT 500"#,
            alive_since
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| JobTypeView {
                worker_id: row.worker_id,
                info: JobTypeInfo {
                    job_type: row.job_type,
                    description: row.description,
                    schema: row.schema,
                    concurrency: u32::try_from(row.concurrency).unwrap_or(0),
                    timeout_seconds: row.timeout_seconds.and_then(|s| u32::try_from(s).ok()),
                },
                alive: row.alive,
            })
            .collect())
    }

    /// Returns workers with the instances that sent a heartbeat since `since`, live instances first.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn workers(&self, since: DateTime<Utc>, now: DateTime<Utc>) -> Result<Vec<WorkerView>> {
        let instances = sqlx::query!(
            "SELECT * FROM worker_instances WHERE last_heartbeat_at >= $1 ORDER BY started_at DESC LIMIT 500",
            since
        )
        .fetch_all(self.pool())
        .await?;
        let mut workers: BTreeMap<String, WorkerView> = BTreeMap::new();
        let worker = |workers: &mut BTreeMap<String, WorkerView>, id: &str| {
            if !workers.contains_key(id) {
                workers.insert(
                    id.to_owned(),
                    WorkerView { id: id.to_owned(), instances: Vec::new(), job_types: Vec::new() },
                );
            }
        };
        for row in instances {
            worker(&mut workers, &row.worker_id);
            let Some(view) = workers.get_mut(&row.worker_id) else { continue };
            let alive = liveness::is_alive(row.last_heartbeat_at, row.stopped_at.is_some(), now);
            let in_redis = row.seen_in_redis_at.is_some_and(|at| liveness::is_alive(at, row.stopped_at.is_some(), now));
            view.instances.push(InstanceView {
                alive,
                unreachable: in_redis && !alive,
                stopped: row.stopped_at.is_some(),
                id: row.id,
                host: row.host,
                version: row.version,
                capacity: row.capacity,
                // The count is as of the last heartbeat; without a process nothing runs.
                running: if alive || in_redis { row.running } else { 0 },
                started_at: row.started_at,
                last_heartbeat_at: row.last_heartbeat_at,
                notice: row.notice,
            });
        }
        for job_type in self.job_types(liveness::alive_since(now)).await? {
            if let Some(view) = workers.get_mut(&job_type.worker_id) {
                view.job_types.push(job_type);
            }
        }
        let mut workers: Vec<WorkerView> = workers.into_values().collect();
        for view in &mut workers {
            view.instances.sort_by_key(|instance| (!instance.alive, instance.stopped));
        }
        Ok(workers)
    }

    /// Deletes the worker instances that have sent no heartbeat since `before`, with their job types; the job types of
    /// their workers stay. Returns the number.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then none was deleted.
    pub async fn delete_old_instances(&self, before: DateTime<Utc>) -> Result<u64> {
        Ok(sqlx::query!("DELETE FROM worker_instances WHERE last_heartbeat_at < $1", before)
            .execute(self.pool())
            .await?
            .rows_affected())
    }
}
