//! Workers, their instances and their job types.

use std::collections::{BTreeMap, HashMap, HashSet};

use chrono::{DateTime, Utc};
use milvaion_api::views::{InstanceView, JobTypeView, WorkerView};
use milvaion_protocol::{
    message::{
        HelloProblem, InstanceHeartbeat, InstanceHello, JobTypeInfo, MAX_BUNDLE_RUNS, MAX_NOTICE_BYTES, truncate_text,
    },
    storable::clean_text,
    topology::MAX_PRIORITY,
};
use serde_json::{Value, json};

use super::{Result, Store, pool::StoreTransaction};
use crate::domain::liveness::{self, InstanceSigns};

impl Store {
    /// Stores the registrations of instances, one for each instance. Repeating them only updates the times and the
    /// announced values.
    ///
    /// Rows are locked in the order of their keys, as by every server that stores other registrations of the same workers.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then none is stored.
    pub async fn store_hellos(&self, hellos: &[InstanceHello], now: DateTime<Utc>) -> Result<()> {
        let column = |field: fn(&InstanceHello) -> String| hellos.iter().map(field).collect::<Vec<String>>();
        let (instances, workers) = (column(|hello| hello.instance_id.clone()), column(|hello| hello.worker_id.clone()));
        let mut tx = self.pool().begin().await?;
        sqlx::query!(
            "INSERT INTO workers (id, first_seen_at, last_seen_at)
             SELECT DISTINCT id, $2::timestamptz, $2::timestamptz FROM unnest($1::text[]) AS id ORDER BY id
             ON CONFLICT (id) DO UPDATE SET last_seen_at = excluded.last_seen_at",
            &workers,
            now
        )
        .execute(&mut tx)
        .await?;
        sqlx::query!(
            "INSERT INTO worker_instances (id, worker_id, host, pid, version, capacity, started_at, last_heartbeat_at,
                    protocol, features, declared, critical_slots)
             SELECT id, worker_id, host, pid, version, capacity, $7, $7, protocol,
                    ARRAY(SELECT jsonb_array_elements_text(features)), declared, critical_slots
               FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::text[], $6::int[], $8::int[], $9::jsonb[],
                           $10::jsonb[], $11::int[])
                 AS hello(id, worker_id, host, pid, version, capacity, protocol, features, declared, critical_slots)
              ORDER BY id
             ON CONFLICT (id) DO UPDATE SET last_heartbeat_at = excluded.last_heartbeat_at, stopped_at = NULL,
                    version = excluded.version, capacity = excluded.capacity, protocol = excluded.protocol,
                    features = excluded.features, declared = excluded.declared, problems = '[]',
                    critical_slots = excluded.critical_slots",
            &instances,
            &workers,
            &column(|hello| clean_text(&hello.host)),
            &hellos.iter().map(|hello| i32::try_from(hello.pid).unwrap_or(0)).collect::<Vec<_>>(),
            &column(|hello| clean_text(&hello.version)),
            &hellos.iter().map(|hello| i32::try_from(hello.capacity).unwrap_or(i32::MAX)).collect::<Vec<_>>(),
            now,
            &hellos.iter().map(|hello| i32::try_from(hello.protocol).unwrap_or(i32::MAX)).collect::<Vec<_>>(),
            &hellos.iter().map(|hello| json!(hello.features)).collect::<Vec<_>>(),
            &hellos.iter().map(declarations).collect::<Vec<_>>(),
            &hellos.iter().map(|hello| i32::try_from(hello.critical_slots).unwrap_or(i32::MAX)).collect::<Vec<_>>()
        )
        .execute(&mut tx)
        .await?;
        sqlx::query!("DELETE FROM instance_job_types WHERE instance_id = ANY($1)", &instances).execute(&mut tx).await?;
        store_job_types(&mut tx, hellos, now).await?;
        let offers: Vec<(&InstanceHello, &JobTypeInfo)> =
            hellos.iter().flat_map(|hello| hello.job_types.iter().map(move |info| (hello, info))).collect();
        sqlx::query!(
            "INSERT INTO instance_job_types (instance_id, job_type, bundle_size)
             SELECT instance_id, job_type, bundle_size
               FROM unnest($1::text[], $2::text[], $3::int[]) AS offer(instance_id, job_type, bundle_size)
             ON CONFLICT DO NOTHING",
            &offers.iter().map(|(hello, _)| hello.instance_id.clone()).collect::<Vec<_>>(),
            &offers.iter().map(|(_, info)| info.job_type.clone()).collect::<Vec<_>>(),
            &offers.iter().map(|(_, info)| bundle_size(info)).collect::<Vec<_>>()
        )
        .execute(&mut tx)
        .await?;
        tx.commit().await?;
        Ok(())
    }

    /// Stores the parts of registrations that were refused, each list with its instance. A registration removes those of
    /// the one before it.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then none is stored.
    pub async fn store_hello_problems(&self, problems: &[(String, Vec<HelloProblem>)]) -> Result<()> {
        let (ids, lists): (Vec<String>, Vec<Value>) =
            problems.iter().map(|(instance, list)| (instance.clone(), json!(list))).unzip();
        sqlx::query!(
            "WITH found AS (
                SELECT i.id, p.problems FROM unnest($1::text[], $2::jsonb[]) AS p (id, problems)
                  JOIN worker_instances i ON i.id = p.id ORDER BY i.id FOR NO KEY UPDATE OF i
             )
             UPDATE worker_instances i SET problems = f.problems FROM found f WHERE i.id = f.id",
            &ids,
            &lists
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Stores heartbeats, one for each instance, with one statement. Returns the instances that are registered, each with
    /// true if its notice has changed or if it begins to stop.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then none is stored.
    pub async fn store_heartbeats(
        &self,
        heartbeats: &[InstanceHeartbeat],
        now: DateTime<Utc>,
    ) -> Result<BTreeMap<String, bool>> {
        let ids: Vec<String> = heartbeats.iter().map(|beat| beat.instance_id.clone()).collect();
        let counts: Vec<i32> =
            heartbeats.iter().map(|beat| i32::try_from(beat.running.len()).unwrap_or(i32::MAX)).collect();
        // PostgreSQL has no arrays of arrays of different lengths, so each list is sent as the text of an array.
        let running: Vec<String> = heartbeats
            .iter()
            .map(|beat| format!("{{{}}}", beat.running.iter().map(|id| id.0.to_string()).collect::<Vec<_>>().join(",")))
            .collect();
        let priorities: Vec<Value> = heartbeats
            .iter()
            .map(|beat| {
                let known = beat.priorities.iter().filter(|load| (1..=MAX_PRIORITY).contains(&load.priority));
                json!(known.take(MAX_PRIORITY.into()).collect::<Vec<_>>())
            })
            .collect();
        let notices: Vec<Option<String>> = heartbeats
            .iter()
            .map(|beat| {
                let notice = beat.notice.as_ref().filter(|text| !text.trim().is_empty());
                // Truncated last, because a replacement character is longer than NUL.
                notice.map(|text| truncate_text(clean_text(text), MAX_NOTICE_BYTES))
            })
            .collect();
        let stopping: Vec<bool> = heartbeats.iter().map(|beat| beat.stopping).collect();
        let rows = sqlx::query!(
            r#"WITH before AS (
                SELECT id, notice, stopping FROM worker_instances WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE
             )
             UPDATE worker_instances i
                SET last_heartbeat_at = $2, running = beat.running, running_ids = beat.running_ids::uuid[],
                    stopped_at = NULL, notice = beat.notice, stopping = beat.stopping, priorities = beat.priorities
               FROM before b
               JOIN unnest($1::text[], $3::int[], $4::text[], $5::text[], $6::boolean[], $7::jsonb[])
                    AS beat(id, running, running_ids, notice, stopping, priorities)
                 ON beat.id = b.id
              WHERE i.id = b.id
             RETURNING i.id, i.notice IS DISTINCT FROM b.notice OR i.stopping <> b.stopping AS "is_new!""#,
            &ids,
            now,
            &counts,
            &running,
            &notices as &[Option<String>],
            &stopping,
            &priorities
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| (row.id, row.is_new)).collect())
    }

    /// Stores the shutdown of instances.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then none is stored.
    pub async fn store_goodbyes(&self, instances: &[String], now: DateTime<Utc>) -> Result<()> {
        sqlx::query!(
            "WITH stopped AS (SELECT id FROM worker_instances WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE)
             UPDATE worker_instances i SET stopped_at = $2, running = 0, running_ids = '{}', priorities = '[]'
               FROM stopped s WHERE i.id = s.id",
            instances,
            now
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Sets the last announcement of the job types that instances offer to the last heartbeat of these, if it is twelve hours
    /// older. An instance may run for longer than job types are kept, and announces its own once.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then nothing changed.
    pub async fn extend_announcements(&self) -> Result<()> {
        sqlx::query!(
            "WITH offered AS (
                SELECT i.worker_id, o.job_type, max(i.last_heartbeat_at) AS at
                  FROM worker_instances i JOIN instance_job_types o ON o.instance_id = i.id GROUP BY 1, 2
             ),
             older AS (
                SELECT t.worker_id, t.job_type, o.at
                  FROM offered o JOIN worker_job_types t ON t.worker_id = o.worker_id AND t.job_type = o.job_type
                 WHERE t.announced_at < o.at - interval '12 hours'
                 ORDER BY t.worker_id, t.job_type FOR UPDATE OF t SKIP LOCKED
             )
             UPDATE worker_job_types t SET announced_at = o.at
               FROM older o WHERE t.worker_id = o.worker_id AND t.job_type = o.job_type"
        )
        .execute(self.pool())
        .await?;
        sqlx::query!(
            "WITH seen AS (
                SELECT worker_id, max(last_heartbeat_at) AS at FROM worker_instances GROUP BY 1
             ),
             older AS (
                SELECT w.id, s.at FROM seen s JOIN workers w ON w.id = s.worker_id
                 WHERE w.last_seen_at < s.at - interval '12 hours'
                 ORDER BY w.id FOR UPDATE OF w SKIP LOCKED
             )
             UPDATE workers w SET last_seen_at = o.at FROM older o WHERE w.id = o.id"
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// Returns the JSON Schema that a worker announced for a job type.
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
    /// first. Their rules are those that the instance declared which started last.
    pub async fn job_types(&self, alive_since: DateTime<Utc>) -> Result<Vec<JobTypeView>> {
        let rows = sqlx::query!(
            r#"SELECT w.worker_id, w.job_type, w.description, w.schema, w.concurrency, w.timeout_seconds, w.bundle_size,
                      (SELECT count(*) FROM worker_instances i JOIN instance_job_types t ON t.instance_id = i.id
                        WHERE i.worker_id = w.worker_id AND t.job_type = w.job_type AND i.stopped_at IS NULL
                          AND i.last_heartbeat_at >= $1) AS "alive!",
                      (SELECT i.declared -> w.job_type -> 'defaults' FROM worker_instances i
                        WHERE i.worker_id = w.worker_id AND i.declared ? w.job_type
                        ORDER BY i.started_at DESC LIMIT 1) AS declared
                 FROM worker_job_types w ORDER BY 8 DESC, 1, 2 LIMIT 500"#,
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
                    bundle_size: u32::try_from(row.bundle_size).ok().filter(|size| *size > 1),
                    // A form without what a newer server has stored is better than no form.
                    defaults: row.declared.and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default(),
                    ..JobTypeInfo::default()
                },
                alive: row.alive,
            })
            .collect())
    }

    /// Returns the number of running occurrences of each of these instances that has some.
    async fn open_runs(&self, instances: &[String]) -> Result<HashMap<String, i64>> {
        if instances.is_empty() {
            return Ok(HashMap::new());
        }
        let rows = sqlx::query!(
            r#"SELECT instance_id AS "instance_id!", count(*) AS "count!" FROM runs
                WHERE status = 'running' AND instance_id = ANY($1) GROUP BY instance_id"#,
            instances
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| (row.instance_id, row.count)).collect())
    }

    /// Returns workers with the instances that sent a heartbeat since `since`, live instances first.
    pub async fn workers(&self, since: DateTime<Utc>, now: DateTime<Utc>) -> Result<Vec<WorkerView>> {
        let instances = sqlx::query!(
            "SELECT * FROM worker_instances WHERE last_heartbeat_at >= $1 ORDER BY started_at DESC LIMIT 500",
            since
        )
        .fetch_all(self.pool())
        .await?;
        let silent = instances.iter().filter(|row| row.last_heartbeat_at < liveness::alive_since(now));
        let open_runs = self.open_runs(&silent.map(|row| row.id.clone()).collect::<Vec<_>>()).await?;
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
            let left = open_runs.get(&row.id).copied().unwrap_or_default();
            let signs = InstanceSigns {
                last_heartbeat_at: row.last_heartbeat_at,
                seen_in_redis_at: row.seen_in_redis_at,
                is_stopping: row.stopping,
                is_stopped: row.stopped_at.is_some(),
                has_runs: left > 0,
            };
            let state = liveness::instance_state(signs, now);
            // The counts are as of the last heartbeat; without a process nothing runs.
            let (running, critical_slots, priorities) = if state.has_process() {
                (row.running, row.critical_slots, serde_json::from_value(row.priorities).unwrap_or_default())
            } else {
                (i32::try_from(left).unwrap_or(i32::MAX), 0, Vec::new())
            };
            view.instances.push(InstanceView {
                id: row.id,
                host: row.host,
                version: row.version,
                capacity: row.capacity,
                critical_slots,
                state,
                running,
                priorities,
                started_at: row.started_at,
                last_heartbeat_at: row.last_heartbeat_at,
                stopped_at: row.stopped_at,
                notice: row.notice,
                protocol: row.protocol,
                features: row.features,
                problems: registration_problems(row.problems),
                unreadable: row.unreadable,
                unreadable_at: row.unreadable_at,
                unreadable_reason: row.unreadable_reason,
            });
        }
        for job_type in self.job_types(liveness::alive_since(now)).await? {
            if let Some(view) = workers.get_mut(&job_type.worker_id) {
                view.job_types.push(job_type);
            }
        }
        let mut workers: Vec<WorkerView> = workers.into_values().collect();
        for view in &mut workers {
            view.instances.sort_by_key(|instance| instance.state);
        }
        Ok(workers)
    }
}

/// Returns the rules and schedules that the code of an instance declares, by job type. A job type that declares nothing is
/// there too: an earlier release may have declared something.
fn declarations(hello: &InstanceHello) -> Value {
    let declared = hello
        .job_types
        .iter()
        .map(|info| (info.job_type.clone(), json!({ "defaults": info.defaults, "schedules": info.schedules })));
    declared.collect::<serde_json::Map<String, Value>>().into()
}

/// Stores the announced job types. Of two announcements of one type of a worker, the later one counts.
async fn store_job_types(tx: &mut StoreTransaction, hellos: &[InstanceHello], now: DateTime<Utc>) -> Result<()> {
    let announced: BTreeMap<(&str, &str), &JobTypeInfo> = hellos
        .iter()
        .flat_map(|hello| hello.job_types.iter().map(|info| ((hello.worker_id.as_str(), info.job_type.as_str()), info)))
        .collect();
    let (workers, job_types): (Vec<String>, Vec<String>) =
        announced.keys().map(|(worker, job_type)| ((*worker).to_owned(), (*job_type).to_owned())).unzip();
    let infos: Vec<&JobTypeInfo> = announced.into_values().collect();
    sqlx::query!(
        "INSERT INTO worker_job_types (worker_id, job_type, description, schema, concurrency, timeout_seconds, bundle_size,
                announced_at)
         SELECT worker_id, job_type, description, schema::json, concurrency, timeout_seconds, bundle_size, $7
           FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::int[], $6::int[], $8::int[])
             AS offer(worker_id, job_type, description, schema, concurrency, timeout_seconds, bundle_size)
          ORDER BY worker_id, job_type
         ON CONFLICT (worker_id, job_type) DO UPDATE SET description = excluded.description, schema = excluded.schema,
                concurrency = excluded.concurrency, timeout_seconds = excluded.timeout_seconds,
                bundle_size = excluded.bundle_size, announced_at = excluded.announced_at",
        &workers,
        &job_types,
        &infos.iter().map(|info| clean_text(&info.description)).collect::<Vec<_>>(),
        // As text: a value would be sent as jsonb, which sorts the properties.
        &infos.iter().map(|info| info.schema.to_string()).collect::<Vec<_>>(),
        &infos.iter().map(|info| i32::try_from(info.concurrency).unwrap_or(i32::MAX)).collect::<Vec<_>>(),
        &infos.iter().map(|info| info.timeout_seconds.and_then(|s| i32::try_from(s).ok())).collect::<Vec<_>>()
            as &[Option<i32>],
        now,
        &infos.iter().map(|info| bundle_size(info)).collect::<Vec<_>>()
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Returns the largest bundle of a job type. A later version may announce more than this one sends.
fn bundle_size(info: &JobTypeInfo) -> i32 {
    let largest = info.bundle_size.unwrap_or(1).clamp(1, MAX_BUNDLE_RUNS as u32);
    i32::try_from(largest).unwrap_or(1)
}

/// Returns the stored problems of a registration as sentences. One that cannot be read is left out: it is for display only.
fn registration_problems(stored: Value) -> Vec<String> {
    let problems: Vec<HelloProblem> = serde_json::from_value(stored).unwrap_or_default();
    problems.iter().map(HelloProblem::to_string).collect()
}
