//! Late starts: starts of attempts that another instance had started already, or whose occurrence had ended.
//!
//! No status changes here: the first end that is reported counts, whichever instance reports it. A late start often
//! becomes known after the end, when the row is in the history, which never changes. It is therefore a row of its own, and
//! the page of the occurrence reads both.
//!
//! The run of a late start whose occurrence has ended is a *late run*: its result counts for nothing, and its worker is
//! asked to stop it. Its worker may also be one that was counted as lost and has come back.

use chrono::{DateTime, Duration, Utc};
use milvaion_api::{
    duplicates,
    views::{OccurrenceRow, StatusChange},
};
use milvaion_protocol::{id::OccurrenceId, status::OccurrenceStatus};
use uuid::Uuid;

use super::{
    Result, Store,
    occurrences::{RunRow, filed_since, status, status_history},
    pool::StoreTransaction,
};
use crate::domain::duplicates::{LateRun, RecordedEnd, ReportedStart};

/// Maximum number of starts that one transaction examines.
const LATE_START_BATCH_SIZE: usize = 1_000;
/// The time by which a heartbeat must be newer than an end to show that the run goes on. A heartbeat that waited in its
/// queue for a moment lists runs that have ended meanwhile.
const HEARTBEAT_DELAY: Duration = Duration::seconds(5);

/// The starts that a batch of reports has added to occurrences.
#[derive(Clone, Debug, Default)]
pub struct LateStarts {
    /// The occurrences with a new late start, as they are now.
    pub rows: Vec<OccurrenceRow>,
    /// The runs among them whose occurrence has ended. Contains those whose start was recorded before, too.
    pub late_runs: Vec<LateRun>,
}

/// The recorded state of an occurrence with a suspicious start.
struct RecordedRun {
    id: OccurrenceId,
    changes: Vec<StatusChange>,
    end: Option<RecordedEnd>,
}

impl Store {
    /// Records the starts that were not the first start of their attempt, and those of occurrences that had ended. A start
    /// that is recorded already changes nothing.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then the starts found so far are recorded, and the rest is not.
    pub async fn record_late_starts(&self, starts: &[ReportedStart]) -> Result<LateStarts> {
        let mut found = LateStarts::default();
        for chunk in starts.chunks(LATE_START_BATCH_SIZE) {
            let LateStarts { rows, late_runs } = self.record_chunk(chunk).await?;
            found.rows.extend(rows);
            found.late_runs.extend(late_runs);
        }
        Ok(found)
    }

    async fn record_chunk(&self, starts: &[ReportedStart]) -> Result<LateStarts> {
        let mut ids: Vec<Uuid> = starts.iter().map(|start| start.occurrence_id.0).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut tx = self.pool().begin().await?;
        // Open occurrences are locked in the order of ids, as everywhere: a report of another server cannot add the first
        // start between this look and the insert.
        sqlx::query!("SELECT id FROM runs WHERE id = ANY($1) ORDER BY id FOR UPDATE", &ids).fetch_all(&mut tx).await?;
        let (mut late_ids, mut attempts, mut instances, mut times) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut late_runs = Vec::new();
        for RecordedRun { id, changes: before, end } in recorded_runs(&mut tx, &ids).await? {
            let mut history = before.clone();
            for start in starts.iter().filter(|start| start.occurrence_id == id) {
                let (attempt, instance) = (start.attempt, start.instance_id.as_str());
                if let Some(end) = end.as_ref().filter(|end| end.was_not_started_by(start)) {
                    duplicates::record_start_after_end(&mut history, end.status, attempt, instance, start.at);
                }
                duplicates::record_duplicate_start(&mut history, attempt, instance, start.at);
                if start.is_start {
                    duplicates::record_second_start(&mut history, attempt, instance, start.at);
                }
            }
            let before_len = late_ids.len();
            for step in history.into_iter().filter(|step| !before.contains(step)) {
                late_ids.push(id.0);
                attempts.push(step.attempt);
                instances.push(step.by.unwrap_or_default());
                times.push(step.at);
            }
            if late_ids.len() > before_len {
                late_runs.extend(end.map(|end| LateRun { id, attempt: end.attempt, status: end.status }));
            }
        }
        if late_ids.is_empty() {
            return Ok(LateStarts::default());
        }
        let mut changed: Vec<Uuid> = sqlx::query_scalar!(
            "INSERT INTO late_starts (run_id, attempt, instance_id, at, is_after_end)
             SELECT s.*, NOT EXISTS (SELECT 1 FROM runs r WHERE r.id = s.run_id)
               FROM unnest($1::uuid[], $2::int[], $3::text[], $4::timestamptz[]) AS s (run_id, attempt, instance_id, at)
              ORDER BY run_id, attempt, instance_id
             ON CONFLICT DO NOTHING RETURNING run_id",
            &late_ids,
            &attempts,
            &instances,
            &times
        )
        .fetch_all(&mut tx)
        .await?;
        changed.sort_unstable();
        changed.dedup();
        sqlx::query!("UPDATE runs SET version = version + 1 WHERE id = ANY($1)", &changed).execute(&mut tx).await?;
        let rows = sqlx::query_as!(
            RunRow,
            r#"SELECT o.id AS "id!", o.job_id AS "job_id!", o.job_name AS "job_name!", o.status::text AS "status!",
                      o.version + (SELECT count(*) FROM late_starts l WHERE l.run_id = o.id AND l.is_after_end)::int
                          AS "version!",
                      o.trigger AS "trigger!", o.attempt AS "attempt!", o.scheduled_for AS "scheduled_for!", o.started_at,
                      o.ended_at, o.duration_ms, o.instance_id, o.progress, o.note, o.not_before AS waits_until,
                      o.cancel_requested_at
                 FROM occurrences o WHERE o.id = ANY($1) AND o.filed_at >= $2"#,
            &changed,
            filed_since_first(&changed)
        )
        .fetch_all(&mut tx)
        .await?;
        tx.commit().await?;
        let rows = rows.into_iter().map(OccurrenceRow::try_from).collect::<Result<_>>()?;
        Ok(LateStarts { rows, late_runs })
    }

    /// Returns the runs that live instances list in their heartbeats although their occurrence has ended. The run that
    /// brought the end is not among them: its instance has just not sent its next heartbeat. An instance without a
    /// heartbeat since `alive_since` does not count.
    pub async fn late_runs(&self, alive_since: DateTime<Utc>) -> Result<Vec<LateRun>> {
        let listed = sqlx::query!(
            r#"SELECT i.id AS instance_id, i.last_heartbeat_at, run_id AS "run_id!"
                 FROM worker_instances i, unnest(i.running_ids) AS run_id
                WHERE i.stopped_at IS NULL AND i.last_heartbeat_at >= $1
                  AND NOT EXISTS (SELECT 1 FROM runs o WHERE o.id = run_id)"#,
            alive_since
        )
        .fetch_all(self.pool())
        .await?;
        if listed.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<Uuid> = listed.iter().map(|one| one.run_id).collect();
        let created: Vec<DateTime<Utc>> = ids.iter().map(|id| OccurrenceId(*id).created_at()).collect();
        let instances: Vec<&str> = listed.iter().map(|one| one.instance_id.as_str()).collect();
        let ended_before: Vec<DateTime<Utc>> =
            listed.iter().map(|one| one.last_heartbeat_at - HEARTBEAT_DELAY).collect();
        let rows = sqlx::query!(
            r#"SELECT h.id, h.attempt, h.status::text AS "status!"
                 FROM unnest($1::uuid[], $2::timestamptz[], $3::text[], $4::timestamptz[])
                          AS l (id, created_at, instance_id, ended_before)
                CROSS JOIN LATERAL (
                      SELECT * FROM history h
                       WHERE h.id = l.id AND h.filed_at >= l.created_at - interval '1 hour'
                         AND h.filed_at < l.ended_before
                         AND (h.status_changes -> -1 ->> 'by') IS DISTINCT FROM l.instance_id) h"#,
            &ids,
            &created,
            &instances as &[&str],
            &ended_before
        )
        .fetch_all(self.pool())
        .await?;
        rows.into_iter()
            .map(|row| Ok(LateRun { id: OccurrenceId(row.id), attempt: row.attempt, status: status(&row.status)? }))
            .collect()
    }

    /// Returns the late starts of an occurrence as status changes, oldest first.
    pub(super) async fn late_starts(&self, id: OccurrenceId) -> Result<Vec<(i32, String, DateTime<Utc>)>> {
        let rows = sqlx::query!("SELECT attempt, instance_id, at FROM late_starts WHERE run_id = $1 ORDER BY at", id.0)
            .fetch_all(self.pool())
            .await?;
        Ok(rows.into_iter().map(|row| (row.attempt, row.instance_id, row.at)).collect())
    }
}

/// Returns the status histories and the ends of occurrences.
async fn recorded_runs(connection: &mut StoreTransaction, ids: &[Uuid]) -> Result<Vec<RecordedRun>> {
    let rows = sqlx::query!(
        r#"SELECT id AS "id!", status::text AS "status!", attempt AS "attempt!", instance_id,
                  status_changes AS "status_changes!"
             FROM occurrences WHERE id = ANY($1) AND filed_at >= $2"#,
        ids,
        filed_since_first(ids)
    )
    .fetch_all(connection)
    .await?;
    rows.into_iter()
        .map(|row| {
            let status: OccurrenceStatus = status(&row.status)?;
            let end = RecordedEnd { status, attempt: row.attempt, instance_id: row.instance_id };
            Ok(RecordedRun {
                id: OccurrenceId(row.id),
                changes: status_history(row.status_changes)?,
                end: status.is_final().then_some(end),
            })
        })
        .collect()
}

/// Returns the instant before which none of these occurrences was filed.
fn filed_since_first(ids: &[Uuid]) -> DateTime<Utc> {
    ids.iter().min().map_or(DateTime::UNIX_EPOCH, |first| filed_since(OccurrenceId(*first)))
}
