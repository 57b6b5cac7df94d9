//! Failures: occurrences that used up their retries, until a user resolves them.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use milvaion_api::{
    failures::{FailureCause, FailureFilter, FailureGroup, FailureRow, MAX_COUNTED_FAILURES, MAX_FAILURE_TEXT_WORDS},
    page::{self, ListPage},
};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    storable::clean_text,
};
use serde_json::Value;
use sqlx::{Postgres, QueryBuilder};
use uuid::Uuid;

use super::{
    Result, Store, StoreError,
    create::{CreatedRun, NewRun, create_runs},
    enqueue::lock_uniqueness_keys,
    jobs::{AuditStamp, like},
    partitions::with_partitions,
    pool::StoreTransaction,
};
use crate::domain::transition::first_line;

/// Maximum number of failures, newest first, that a grouping counts.
const MAX_GROUPED_FAILURES: i64 = 20_000;

/// The result of retrying failures.
#[derive(Clone, Debug, Default)]
pub struct RetriedFailures {
    /// The new occurrence of each failure that was retried.
    pub created: Vec<CreatedRun>,
    /// Each failure whose uniqueness key is taken, with the occurrence that has the key.
    pub held: Vec<(OccurrenceId, OccurrenceId)>,
}

impl Store {
    /// Returns a page of failures, newest first.
    pub async fn failures(&self, filter: &FailureFilter) -> Result<ListPage<FailureRow>> {
        let limit = page::effective_limit(filter.limit);
        let mut query = QueryBuilder::<Postgres>::new("SELECT * FROM failed_occurrences WHERE true");
        narrow(&mut query, filter);
        if let Some((at, id)) = filter.cursor() {
            // The id breaks ties in ascending order, as in the index. The scan of the index starts at the first
            // condition; the second one only removes the failures of that instant that the page before has shown.
            query.push(" AND failed_at <= ").push_bind(at).push(" AND (failed_at < ").push_bind(at);
            query.push(" OR (failed_at = ").push_bind(at).push(" AND occurrence_id > ").push_bind(id.0).push("))");
        }
        query.push(" ORDER BY failed_at DESC, occurrence_id LIMIT ").push_bind(i64::from(limit) + 1);
        let rows: Vec<RawFailure> = query.build_query_as().fetch_all(self.pool()).await?;
        let more = rows.len() > limit as usize;
        let rows: Vec<FailureRow> =
            rows.into_iter().take(limit as usize).map(FailureRow::try_from).collect::<Result<_>>()?;
        let next = rows.last().filter(|_| more).map(FailureRow::cursor);
        Ok(ListPage { rows, next })
    }

    /// Returns a failure, or `None` if there is none for this occurrence.
    pub async fn failure(&self, id: OccurrenceId) -> Result<Option<FailureRow>> {
        let row: Option<RawFailure> = sqlx::query_as("SELECT * FROM failed_occurrences WHERE occurrence_id = $1")
            .bind(id.0)
            .fetch_optional(self.pool())
            .await?;
        row.map(FailureRow::try_from).transpose()
    }

    /// Returns the ids of at most `limit` failures that match a filter, newest first. The filter's own limit and cursor
    /// are ignored.
    pub async fn failure_ids(&self, filter: &FailureFilter, limit: i64) -> Result<Vec<OccurrenceId>> {
        let mut query = QueryBuilder::<Postgres>::new("SELECT occurrence_id FROM failed_occurrences WHERE true");
        narrow(&mut query, filter);
        query.push(" ORDER BY failed_at DESC, occurrence_id LIMIT ").push_bind(limit);
        let ids: Vec<(Uuid,)> = query.build_query_as().fetch_all(self.pool()).await?;
        Ok(ids.into_iter().map(|(id,)| OccurrenceId(id)).collect())
    }

    /// Returns the number of failures that match a filter, counted up to `limit`. The filter's own limit and cursor are
    /// ignored.
    pub async fn count_failures(&self, filter: &FailureFilter, limit: i64) -> Result<i64> {
        let mut query =
            QueryBuilder::<Postgres>::new("SELECT count(*) FROM (SELECT FROM failed_occurrences WHERE true");
        narrow(&mut query, filter);
        query.push(" LIMIT ").push_bind(limit).push(") f");
        Ok(query.build_query_scalar().fetch_one(self.pool()).await?)
    }

    /// Returns the number of unresolved failures, counted up to [`MAX_COUNTED_FAILURES`].
    pub async fn open_failures(&self) -> Result<i64> {
        let count = sqlx::query_scalar!(
            r#"SELECT count(*) AS "count!" FROM (SELECT FROM failed_occurrences WHERE resolved_at IS NULL LIMIT $1) f"#,
            MAX_COUNTED_FAILURES
        )
        .fetch_one(self.pool())
        .await?;
        Ok(count)
    }

    /// Returns a page of the failures since `since` that match a filter, grouped by fingerprint, largest group first.
    /// Only the newest 20,000 failures are counted.
    pub async fn failure_groups(&self, filter: &FailureFilter, since: DateTime<Utc>) -> Result<ListPage<FailureGroup>> {
        let limit = page::effective_limit(filter.limit);
        // The groups are made of short columns only. The long exceptions are read for the groups of the page, one each;
        // the inner limit makes the planner look them up by their key.
        let mut query = QueryBuilder::<Postgres>::new(
            "SELECT g.*, newest.job_id, newest.job_name, newest.cause, newest.exception
               FROM (SELECT fingerprint, count(*) AS count, count(*) FILTER (WHERE resolved_at IS NULL) AS open,
                            count(DISTINCT job_id) AS jobs, min(failed_at) AS first_at, max(failed_at) AS last_at,
                            (array_agg(occurrence_id ORDER BY failed_at DESC, occurrence_id))[1] AS occurrence_id
                       FROM (SELECT fingerprint, resolved_at, job_id, failed_at, occurrence_id
                               FROM failed_occurrences WHERE failed_at >= ",
        );
        query.push_bind(since);
        narrow(&mut query, filter);
        query.push(" ORDER BY failed_at DESC LIMIT ").push_bind(MAX_GROUPED_FAILURES);
        query.push(") f GROUP BY fingerprint");
        if let Some((count, last_at, fingerprint)) = filter.group_cursor() {
            query.push(" HAVING (count(*), max(failed_at), fingerprint) < (").push_bind(count);
            query.push(", ").push_bind(last_at).push(", ").push_bind(fingerprint.to_owned()).push(")");
        }
        query.push(" ORDER BY count(*) DESC, max(failed_at) DESC, fingerprint DESC LIMIT ");
        query.push_bind(i64::from(limit) + 1);
        query.push(
            ") g CROSS JOIN LATERAL (
                    SELECT job_id, job_name, cause, left(exception, 1000) AS exception
                      FROM failed_occurrences o WHERE o.occurrence_id = g.occurrence_id LIMIT 1) newest
              ORDER BY g.count DESC, g.last_at DESC, g.fingerprint DESC",
        );
        let rows: Vec<RawFailureGroup> = query.build_query_as().fetch_all(self.pool()).await?;
        let more = rows.len() > limit as usize;
        let rows: Vec<FailureGroup> = rows
            .into_iter()
            .take(limit as usize)
            .map(|row| {
                Ok(FailureGroup {
                    fingerprint: row.fingerprint,
                    count: row.count,
                    open: row.open,
                    jobs: row.jobs,
                    first_at: row.first_at,
                    last_at: row.last_at,
                    occurrence_id: OccurrenceId(row.occurrence_id),
                    job_id: JobId(row.job_id),
                    job_name: row.job_name,
                    cause: cause(row.cause)?,
                    note: row.exception.as_deref().map(first_line).unwrap_or_default(),
                })
            })
            .collect::<Result<_>>()?;
        let next = rows.last().filter(|_| more).map(FailureGroup::cursor);
        Ok(ListPage { rows, next })
    }

    /// Resolves open failures, with an audit row each. Returns their number.
    pub async fn resolve_failures(
        &self,
        ids: &[OccurrenceId],
        note: Option<&str>,
        edit: AuditStamp<'_>,
    ) -> Result<usize> {
        let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
        let done = sqlx::query!(
            "WITH locked AS (
                SELECT occurrence_id FROM failed_occurrences
                 WHERE occurrence_id = ANY($1) AND resolved_at IS NULL ORDER BY occurrence_id FOR UPDATE
             ),
             changed AS (
                UPDATE failed_occurrences f
                   SET resolved_at = $2, resolved_by = $3, resolution_note = $4, resolution_action = 'resolve'
                  FROM locked l WHERE f.occurrence_id = l.occurrence_id
                RETURNING f.occurrence_id
             )
             INSERT INTO audit_log (at, who, action, object, after, address)
             SELECT $2, $3, 'failure.resolve', 'occurrence:' || occurrence_id::text,
                    jsonb_build_object('reason', $4::text), $5
               FROM changed",
            &ids,
            edit.at,
            edit.by,
            note,
            edit.address.map(|address| address.to_string())
        )
        .execute(self.pool())
        .await?;
        Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
    }

    /// Inserts a new occurrence for each failure, as the `request` says, with its job's present definition and the input of
    /// the failed occurrence, unless the request has one; this resolves the failure. Failures that were retried before are
    /// skipped unless `again`, and failures without a job, or with a uniqueness key that is taken, always.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails; then nothing was inserted.
    pub async fn retry_failures(
        &self,
        wanted: &[(OccurrenceId, OccurrenceId)],
        request: &NewRun,
        again: bool,
        now: DateTime<Utc>,
    ) -> Result<RetriedFailures> {
        with_partitions!(self, now, self.try_retry_failures(wanted, request, again, now))
    }

    async fn try_retry_failures(
        &self,
        wanted: &[(OccurrenceId, OccurrenceId)],
        request: &NewRun,
        again: bool,
        now: DateTime<Utc>,
    ) -> Result<RetriedFailures> {
        let old: Vec<Uuid> = wanted.iter().map(|(old, _)| old.0).collect();
        let new: HashMap<Uuid, OccurrenceId> = wanted.iter().map(|(old, new)| (old.0, *new)).collect();
        let mut tx = self.pool().begin().await?;
        // Of two concurrent retries of one failure, the later one waits here and then finds it retried.
        let failures = sqlx::query!(
            "SELECT occurrence_id, job_id, job_data, uniqueness_key FROM failed_occurrences
              WHERE occurrence_id = ANY($1) AND (retried_as IS NULL OR $2)
              ORDER BY occurrence_id FOR UPDATE",
            &old,
            again
        )
        .fetch_all(&mut tx)
        .await?;
        let keyed: Vec<(Uuid, Uuid, String)> = failures
            .iter()
            .filter_map(|failure| Some((failure.occurrence_id, failure.job_id, failure.uniqueness_key.clone()?)))
            .collect();
        let holders = key_holders(&mut tx, &keyed, now).await?;
        let (mut births, mut held) = (Vec::with_capacity(failures.len()), Vec::new());
        let mut taken: HashMap<(Uuid, String), Uuid> = HashMap::new();
        for failure in failures {
            let Some(id) = new.get(&failure.occurrence_id).copied() else { continue };
            if let Some(key) = failure.uniqueness_key {
                let key = (failure.job_id, key);
                // Of several failures with one key, the first is retried.
                let holder = holders.get(&failure.occurrence_id).or_else(|| taken.get(&key)).copied();
                if let Some(holder) = holder {
                    held.push((OccurrenceId(failure.occurrence_id), OccurrenceId(holder)));
                    continue;
                }
                taken.insert(key, id.0);
            }
            births.push(NewRun {
                id,
                job_id: JobId(failure.job_id),
                input: Some(request.input.clone().unwrap_or(failure.job_data)),
                retry_of: Some(OccurrenceId(failure.occurrence_id)),
                ..request.clone()
            });
        }
        let created = create_runs(&mut tx, &births, false, None, now).await?;
        take_keys(&mut tx, &taken, now).await?;
        let old: Vec<Option<Uuid>> = created.iter().map(|run| run.retry_of.map(|id| id.0)).collect();
        let made: Vec<Uuid> = created.iter().map(|run| run.row.id.0).collect();
        sqlx::query!(
            "WITH m AS (SELECT * FROM unnest($1::uuid[], $2::uuid[]) AS m (old, id)),
             settled AS (
                UPDATE failed_occurrences f
                   SET retried_as = m.id, resolved_at = $3, resolved_by = $4, resolution_action = 'retry',
                       resolution_note = coalesce($5, f.resolution_note)
                  FROM m WHERE f.occurrence_id = m.old
             )
             INSERT INTO audit_log (at, who, action, object, after, address)
             SELECT $3, $4, 'failure.retry', 'occurrence:' || old::text,
                    jsonb_build_object('occurrence', id, 'reason', $5::text, 'edited', $6::boolean), $7
               FROM m",
            &old as &[Option<Uuid>],
            &made,
            now,
            request.by,
            request.reason.as_deref(),
            request.input.is_some(),
            request.address.map(|address| address.to_string())
        )
        .execute(&mut tx)
        .await?;
        tx.commit().await?;
        self.measure_created(&created);
        Ok(RetriedFailures { created, held })
    }
}

/// Locks the uniqueness keys of failures, each given with its job, and returns the occurrences that have them: by failure, of
/// those whose key is taken by another occurrence.
async fn key_holders(
    tx: &mut StoreTransaction,
    keyed: &[(Uuid, Uuid, String)],
    now: DateTime<Utc>,
) -> Result<HashMap<Uuid, Uuid>> {
    if keyed.is_empty() {
        return Ok(HashMap::new());
    }
    let failures: Vec<Uuid> = keyed.iter().map(|(failure, ..)| *failure).collect();
    let jobs: Vec<Uuid> = keyed.iter().map(|(_, job, _)| *job).collect();
    let keys: Vec<String> = keyed.iter().map(|(.., key)| key.clone()).collect();
    // A separate statement, as for enqueued occurrences: the next one sees what the transactions that held the rows before
    // have created.
    lock_uniqueness_keys(&mut *tx, &jobs, &keys, now).await?;
    let taken = sqlx::query!(
        r#"SELECT f.id AS "failure!", u.run_id AS "holder!"
             FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS f (id, job_id, key)
            CROSS JOIN LATERAL (
                  SELECT u.run_id, u.until FROM run_uniqueness u WHERE u.job_id = f.job_id AND u.key = f.key OFFSET 0) u
            WHERE u.run_id <> f.id
              AND (u.until > $4 OR EXISTS (SELECT 1 FROM runs r WHERE r.id = u.run_id OFFSET 0))"#,
        &failures,
        &jobs,
        &keys,
        now
    )
    .fetch_all(&mut *tx)
    .await?;
    Ok(taken.into_iter().map(|row| (row.failure, row.holder)).collect())
}

/// Gives locked uniqueness keys of jobs to new occurrences.
async fn take_keys(tx: &mut StoreTransaction, taken: &HashMap<(Uuid, String), Uuid>, now: DateTime<Utc>) -> Result<()> {
    if taken.is_empty() {
        return Ok(());
    }
    let jobs: Vec<Uuid> = taken.keys().map(|(job, _)| *job).collect();
    let keys: Vec<String> = taken.keys().map(|(_, key)| key.clone()).collect();
    let ids: Vec<Uuid> = taken.values().copied().collect();
    // Every row of a key exists, so the upsert only updates; see enqueue.sql.
    sqlx::query!(
        "WITH k AS (SELECT * FROM unnest($1::uuid[], $2::text[], $3::uuid[]) AS k (job_id, key, id)),
              marked AS (
                  UPDATE runs r SET uniqueness_key = (SELECT k.key FROM k WHERE k.id = r.id) WHERE r.id = ANY($3)
              )
         INSERT INTO run_uniqueness (job_id, key, run_id, claimed_at)
         SELECT job_id, key, id, $4::timestamptz FROM k ORDER BY job_id, key
         ON CONFLICT (job_id, key) DO UPDATE SET run_id = excluded.run_id",
        &jobs,
        &keys,
        &ids,
        now
    )
    .execute(&mut *tx)
    .await?;
    Ok(())
}

/// Adds the conditions of a filter, except for its cursor and limit.
fn narrow(query: &mut QueryBuilder<Postgres>, filter: &FailureFilter) {
    match filter.resolved {
        Some(true) => query.push(" AND resolved_at IS NOT NULL"),
        Some(false) => query.push(" AND resolved_at IS NULL"),
        None => query,
    };
    if let Some(job) = filter.job_id {
        query.push(" AND job_id = ").push_bind(job.0);
    }
    if let Some(fingerprint) = &filter.fingerprint {
        query.push(" AND fingerprint = ").push_bind(fingerprint.clone());
    }
    if let Some(cause) = filter.cause {
        query.push(" AND cause = ").push_bind(cause.as_str());
    }
    if let Some(since) = filter.since {
        query.push(" AND failed_at >= ").push_bind(since);
    }
    for word in filter.text.as_deref().unwrap_or_default().split_whitespace().take(MAX_FAILURE_TEXT_WORDS) {
        let pattern = format!("%{}%", like(&clean_text(word).to_lowercase()));
        query.push(" AND (lower(job_name) LIKE ").push_bind(pattern.clone());
        query.push(" OR lower(exception) LIKE ").push_bind(pattern).push(")");
    }
}

fn cause(word: String) -> Result<FailureCause> {
    FailureCause::parse(&word).ok_or(StoreError::Corrupt { table: "failed_occurrences", column: "cause", detail: word })
}

#[derive(Debug, sqlx::FromRow)]
struct RawFailure {
    occurrence_id: Uuid,
    job_id: Uuid,
    job_name: String,
    job_version: i32,
    worker_id: String,
    job_type: String,
    attempt: i32,
    failed_at: DateTime<Utc>,
    cause: String,
    exception: Option<String>,
    fingerprint: String,
    job_data: Value,
    resolved_at: Option<DateTime<Utc>>,
    resolved_by: Option<String>,
    resolution_note: Option<String>,
    resolution_action: Option<String>,
    retried_as: Option<Uuid>,
}

impl TryFrom<RawFailure> for FailureRow {
    type Error = StoreError;

    fn try_from(row: RawFailure) -> Result<Self> {
        Ok(Self {
            occurrence_id: OccurrenceId(row.occurrence_id),
            job_id: JobId(row.job_id),
            job_name: row.job_name,
            job_version: row.job_version,
            worker_id: row.worker_id,
            job_type: row.job_type,
            attempt: row.attempt,
            failed_at: row.failed_at,
            cause: cause(row.cause)?,
            exception: row.exception,
            fingerprint: row.fingerprint,
            job_data: row.job_data,
            resolved_at: row.resolved_at,
            resolved_by: row.resolved_by,
            resolution_note: row.resolution_note,
            resolution_action: row.resolution_action,
            retried_as: row.retried_as.map(OccurrenceId),
        })
    }
}

#[derive(Debug, sqlx::FromRow)]
struct RawFailureGroup {
    fingerprint: String,
    count: i64,
    open: i64,
    jobs: i64,
    first_at: DateTime<Utc>,
    last_at: DateTime<Utc>,
    occurrence_id: Uuid,
    job_id: Uuid,
    job_name: String,
    cause: String,
    exception: Option<String>,
}
