//! Due times that change without a dispatch: after an edit of a calendar, after a clock that was ahead, and if a user
//! skips one.

use chrono::{DateTime, Utc};
use milvaion_protocol::id::{CalendarId, JobId};
use milvaion_schedule::{rules::Rules, schedule::Schedule};
use serde_json::json;
use uuid::Uuid;

use super::{
    Result, Store,
    audit::{self, AuditEntry},
    create::{CreatedRun, NewRun, create_runs},
    jobs::AuditStamp,
    partitions::with_partitions,
    readable,
};

/// An active job with its due times.
#[derive(Clone, Debug)]
pub struct ScheduledJob {
    /// Identifier.
    pub id: JobId,
    /// Version of the definition.
    pub version: i32,
    /// Schedule; none if this version cannot read it.
    pub schedule: Option<Schedule>,
    /// The job's rules.
    pub rules: Rules,
    /// Rule that this version cannot read, in words.
    pub unreadable_rule: Option<String>,
    /// The next due time.
    pub next_fire_at: Option<DateTime<Utc>>,
    /// The due time that was dispatched or skipped last.
    pub last_fire_at: Option<DateTime<Utc>>,
}

/// A move of a job's due time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueTimeMove {
    /// The job.
    pub id: JobId,
    /// The job's version as it was read.
    pub version: i32,
    /// The due time as it was read.
    pub was: Option<DateTime<Utc>>,
    /// The new due time.
    pub next: Option<DateTime<Utc>>,
}

/// Converts a row to a [`ScheduledJob`]. It is a macro because every checked statement has its own row type.
macro_rules! scheduled_job {
    ($row:expr) => {{
        let (rules, unreadable_rule) = readable::rules(&$row.rules);
        ScheduledJob {
            id: JobId($row.id),
            version: $row.version,
            schedule: readable::schedule($row.schedule),
            next_fire_at: $row.next_fire_at,
            last_fire_at: $row.last_fire_at,
            rules,
            unreadable_rule,
        }
    }};
}

impl Store {
    /// Returns at most `limit` active jobs that use a calendar, in the order of ids, after `after`.
    pub async fn jobs_of_calendar(&self, id: CalendarId, after: JobId, limit: i64) -> Result<Vec<ScheduledJob>> {
        let rows = sqlx::query!(
            "SELECT j.*, d.next_fire_at, d.last_fire_at FROM jobs j JOIN job_due d ON d.job_id = j.id
              WHERE cardinality(j.calendars) > 0 AND j.calendars @> ARRAY[$1::uuid] AND j.is_active AND j.id > $2
              ORDER BY j.id LIMIT $3",
            id.0,
            after.0,
            limit
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| scheduled_job!(row)).collect())
    }

    /// Returns at most `limit` active jobs that were dispatched for a due time after `at` or edited after `at`, in the
    /// order of ids, after `after`.
    pub async fn jobs_ahead_of(&self, at: DateTime<Utc>, after: JobId, limit: i64) -> Result<Vec<ScheduledJob>> {
        let rows = sqlx::query!(
            "SELECT j.*, d.next_fire_at, d.last_fire_at FROM jobs j JOIN job_due d ON d.job_id = j.id
              WHERE (d.last_fire_at > $1 OR j.modified_at > $1) AND j.is_active AND j.id > $2
              ORDER BY j.id LIMIT $3",
            at,
            after.0,
            limit
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| scheduled_job!(row)).collect())
    }

    /// Moves due times, each if neither it nor its job has changed since they were read. Returns the jobs that were moved
    /// with their due times.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then none was moved.
    pub async fn move_due_times(&self, moves: &[DueTimeMove]) -> Result<Vec<(JobId, Option<DateTime<Utc>>)>> {
        let ids: Vec<Uuid> = moves.iter().map(|change| change.id.0).collect();
        let versions: Vec<i32> = moves.iter().map(|change| change.version).collect();
        let were: Vec<Option<DateTime<Utc>>> = moves.iter().map(|change| change.was).collect();
        let next: Vec<Option<DateTime<Utc>>> = moves.iter().map(|change| change.next).collect();
        let rows = sqlx::query!(
            r#"WITH locked AS (
                   SELECT d.job_id, m.next
                     FROM unnest($1::uuid[], $2::int[], $3::timestamptz[], $4::timestamptz[]) AS m (id, version, was, next)
                     JOIN job_due d ON d.job_id = m.id AND d.version = m.version
                                   AND d.next_fire_at IS NOT DISTINCT FROM m.was
                     JOIN jobs j ON j.id = m.id AND j.version = m.version AND j.is_active
                    ORDER BY d.job_id FOR UPDATE OF d)
               UPDATE job_due d SET next_fire_at = l.next FROM locked l WHERE d.job_id = l.job_id
            RETURNING d.job_id, d.next_fire_at"#,
            &ids,
            &versions,
            &were as &[Option<DateTime<Utc>>],
            &next as &[Option<DateTime<Utc>>]
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(|row| (JobId(row.job_id), row.next_fire_at)).collect())
    }

    /// Skips a due time: creates its occurrence `run`, which is skipped, moves the job to the next due time as a
    /// dispatch does, and inserts an audit row. Returns `None`, and changes nothing, if the due time or the version of
    /// the job has changed since it was read, or if the cluster is paused.
    pub async fn insert_skipped_run(&self, run: &NewRun, edit: AuditStamp<'_>) -> Result<Option<CreatedRun>> {
        let created = with_partitions!(self, edit.at, self.create_skipped_run(run, edit))?;
        self.measure_created(&created);
        Ok(created.into_iter().next())
    }

    async fn create_skipped_run(&self, run: &NewRun, edit: AuditStamp<'_>) -> Result<Vec<CreatedRun>> {
        let mut tx = self.pool().begin().await?;
        let created = create_runs(&mut tx, std::slice::from_ref(run), false, None, edit.at).await?;
        if !created.is_empty() {
            let entry = AuditEntry::new(edit.at, edit.by, "job.skip", format!("job:{}", run.job_id))
                .change(Some(json!({ "nextDueAt": run.due })), Some(json!({ "nextDueAt": run.next_fire_at })))
                .from(edit.address.map(|address| address.to_string()));
            audit::record(&mut tx, &entry).await?;
        }
        tx.commit().await?;
        Ok(created)
    }

    /// Sets instants that only a clock that was ahead can have written, because they are after `ahead`, to `now`:
    /// heartbeats, and the instants from which messages are sent. A delayed attempt keeps its delay. Changes at most
    /// `limit` runs and as many worker instances, and returns the number of them.
    pub async fn pull_back_instants(&self, ahead: DateTime<Utc>, now: DateTime<Utc>, limit: i64) -> Result<u64> {
        let runs = sqlx::query!(
            "UPDATE runs r
                SET not_before = CASE WHEN r.last_heartbeat > $2 THEN r.not_before - (r.last_heartbeat - $2)
                                      ELSE r.not_before END,
                    last_heartbeat = CASE WHEN r.last_heartbeat > $2 THEN $2 ELSE r.last_heartbeat END,
                    publish_after = CASE WHEN r.publish_after > $2 THEN $2 ELSE r.publish_after END,
                    published_at = CASE WHEN r.published_at > $2 THEN $2 ELSE r.published_at END
               FROM (SELECT id FROM runs WHERE last_heartbeat > $1 OR publish_after > $1 OR published_at > $1
                      ORDER BY id LIMIT $3 FOR UPDATE) o
              WHERE r.id = o.id",
            ahead,
            now,
            limit
        )
        .execute(self.pool())
        .await?;
        let instances = sqlx::query!(
            "UPDATE worker_instances i SET last_heartbeat_at = $2
               FROM (SELECT id FROM worker_instances WHERE last_heartbeat_at > $1 ORDER BY id LIMIT $3 FOR UPDATE) o
              WHERE i.id = o.id",
            ahead,
            now,
            limit
        )
        .execute(self.pool())
        .await?;
        Ok(runs.rows_affected() + instances.rows_affected())
    }
}
