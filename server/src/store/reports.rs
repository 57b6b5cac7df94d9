//! The one guarded transition: every change of an occurrence's status after its birth goes through this statement.

use chrono::{DateTime, Utc};
use protocol::view::OccurrenceRow;
use serde_json::Value;
use uuid::Uuid;

use super::{Result, Store, StoreError, occurrences::RawRow};
use crate::domain::transition::Change;

impl Store {
    /// Applies changes where the row's present state allows them, and counts what was reached. Returns the rows as they
    /// are now; a change that is late, repeated or about something unknown is simply not among them.
    ///
    /// # Errors
    ///
    /// When the database does not answer; then nothing was applied.
    pub async fn apply(&self, changes: &[Change], now: DateTime<Utc>) -> Result<Vec<OccurrenceRow>> {
        let Some(newest) = changes.iter().map(|change| change.occurrence_id.created_at()).max() else {
            return Ok(Vec::new());
        };
        let oldest = changes.iter().map(|change| change.occurrence_id.created_at()).min().unwrap_or(newest);
        let ids: Vec<Uuid> = changes.iter().map(|change| change.occurrence_id.0).collect();
        let created: Vec<DateTime<Utc>> = changes.iter().map(|change| change.occurrence_id.created_at()).collect();
        let attempts: Vec<i32> = changes.iter().map(|change| change.attempt).collect();
        let statuses: Vec<i16> = changes.iter().map(|change| change.status.code()).collect();
        let instances: Vec<String> = changes.iter().map(|change| change.instance_id.clone()).collect();
        let started: Vec<Option<DateTime<Utc>>> = changes.iter().map(|change| change.started_at).collect();
        let ended: Vec<Option<DateTime<Utc>>> = changes.iter().map(|change| change.ended_at).collect();
        let durations: Vec<Option<i64>> = changes.iter().map(|change| change.duration_ms).collect();
        let results: Vec<Option<String>> = changes.iter().map(|change| change.result.clone()).collect();
        let exceptions: Vec<Option<String>> = changes.iter().map(|change| change.exception.clone()).collect();
        let notes: Vec<Option<String>> = changes.iter().map(|change| change.note.clone()).collect();
        let progress: Vec<Option<Value>> = changes
            .iter()
            .map(|change| change.progress.as_ref().and_then(|progress| serde_json::to_value(progress).ok()))
            .collect();
        let steps: Vec<Value> =
            changes.iter().map(|change| serde_json::to_value(&change.steps).unwrap_or_default()).collect();
        let rows = sqlx::query_as!(
            RawRow,
            r#"
            WITH r AS (
                SELECT * FROM unnest($1::uuid[], $2::timestamptz[], $3::int[], $4::smallint[], $5::text[], $6::timestamptz[],
                                     $7::timestamptz[], $8::bigint[], $9::text[], $10::text[], $11::text[], $12::jsonb[],
                                     $13::jsonb[])
                           AS r (id, created_at, attempt, status, instance_id, started_at, ended_at, duration_ms, result,
                                 exception, note, progress, steps)
            ),
            -- Locked in the order of ids, so that two servers with overlapping batches cannot wait for each other.
            -- The guard: only these states may become those. Running may be told again, for progress.
            locked AS (
                SELECT o.id, o.created_at, o.status AS was
                  FROM occurrences o JOIN r ON r.id = o.id AND r.created_at = o.created_at AND r.attempt = o.attempt
                 WHERE o.created_at BETWEEN $14 AND $15
                   AND CASE WHEN r.status IN (2, 3, 4, 5) THEN o.status IN (0, 1, 6)
                            WHEN r.status = 1 THEN o.status IN (0, 6) OR (o.status = 1 AND r.progress IS NOT NULL)
                            WHEN r.status = 6 THEN o.status = 1
                            ELSE false END
                 ORDER BY o.id
                   FOR UPDATE OF o
            ),
            changed AS (
                UPDATE occurrences o
                   SET status = r.status,
                       version = o.version + 1,
                       instance_id = r.instance_id,
                       started_at = coalesce(r.started_at, o.started_at),
                       ended_at = r.ended_at,
                       duration_ms = coalesce(r.duration_ms, o.duration_ms),
                       result = coalesce(r.result, o.result),
                       exception = coalesce(r.exception, o.exception),
                       note = coalesce(r.note, o.note),
                       progress = coalesce(r.progress, o.progress),
                       last_heartbeat = $16,
                       published_at = coalesce(o.published_at, $16),
                       -- A step that is already there is not told twice.
                       status_changes = o.status_changes ||
                           CASE WHEN l.was = 1 AND r.started_at IS NOT NULL THEN r.steps - 0 ELSE r.steps END
                  FROM r JOIN locked l ON l.id = r.id AND l.created_at = r.created_at
                 WHERE o.id = r.id AND o.created_at = r.created_at AND o.attempt = r.attempt
                RETURNING o.id, o.job_id, o.job_name, o.status, o.version, o.trigger, o.attempt, o.scheduled_for,
                          o.started_at, o.ended_at, o.duration_ms, o.instance_id, o.progress, o.note, l.was,
                          r.started_at AS told_start
            ),
            reached AS (
                SELECT status, coalesce(duration_ms, 0) AS duration FROM changed WHERE status <> was
                UNION ALL
                SELECT 1, 0 FROM changed WHERE was <> 1 AND status <> 1 AND told_start IS NOT NULL
            ),
            counted AS (
                INSERT INTO stats_minute AS s (minute, status, shard, count, duration_ms)
                SELECT date_trunc('minute', $16::timestamptz), status, $17, count(*), sum(duration)
                  FROM reached GROUP BY status ORDER BY status
                ON CONFLICT (minute, status, shard) DO UPDATE
                   SET count = s.count + excluded.count, duration_ms = s.duration_ms + excluded.duration_ms
            )
            SELECT id AS "id!", job_id AS "job_id!", job_name AS "job_name!", status AS "status!", version AS "version!",
                   trigger AS "trigger!", attempt AS "attempt!", scheduled_for AS "scheduled_for!", started_at, ended_at,
                   duration_ms, instance_id, progress, note
              FROM changed
            "#,
            &ids,
            &created,
            &attempts,
            &statuses,
            &instances,
            &started as &[Option<DateTime<Utc>>],
            &ended as &[Option<DateTime<Utc>>],
            &durations as &[Option<i64>],
            &results as &[Option<String>],
            &exceptions as &[Option<String>],
            &notes as &[Option<String>],
            &progress as &[Option<Value>],
            &steps,
            oldest,
            newest,
            now,
            self.shard()
        )
        .fetch_all(self.pool())
        .await
        .map_err(StoreError::from)?;
        rows.into_iter().map(OccurrenceRow::try_from).collect()
    }
}
