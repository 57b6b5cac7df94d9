//! Due times that change without a dispatch: after an edit of a calendar, after a clock that was ahead, and if a user
//! skips one.

use chrono::{DateTime, Duration, Utc};
use milvaion_api::requests::JobInput;
use milvaion_protocol::id::{CalendarId, JobId, OccurrenceId};
use milvaion_schedule::{due::MAX_AHEAD, rules::Rules, schedule::Schedule};
use serde_json::json;
use sqlx::PgExecutor;
use uuid::Uuid;

use super::{
    Result, Store,
    audit::{self, AuditEntry},
    create::{CreatedRun, NewRun, create_runs},
    jobs::{AuditStamp, StoredJob},
    partitions::with_partitions,
    readable,
};

/// The time by which an instant must be after now to come from a clock that was ahead.
pub const MIN_AHEAD: Duration = Duration::minutes(1);

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

    /// Returns true if a job has an occurrence for a due time at which the schedule created it. One that a user has
    /// skipped ahead does not count.
    pub async fn has_scheduled_run(&self, id: JobId, due: DateTime<Utc>) -> Result<bool> {
        has_scheduled_run(self.pool(), id, due, due).await
    }

    /// Returns true if a user has skipped a due time of a job that is after `now`. Returns false if a clock that was ahead
    /// has dispatched it, or was ahead when the user skipped it.
    pub async fn is_skipped(&self, id: JobId, due: DateTime<Utc>, now: DateTime<Utc>) -> Result<bool> {
        is_skipped(self.pool(), id, due, now).await
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

impl StoredJob {
    /// Returns the instant from which an edit to `after` at `now` computes the next due time again: now, or the last due
    /// time of the same schedule if a user has skipped that ahead. Jitter moves all due times, so it counts as another
    /// schedule.
    #[must_use]
    pub fn computed_from(&self, after: &JobInput, now: DateTime<Utc>) -> DateTime<Utc> {
        let before = &self.definition;
        let is_skip = before.schedule == after.schedule
            && before.rules.jitter_seconds == after.rules.jitter_seconds
            && self.last_fire_at < self.next_fire_at;
        self.last_fire_at.filter(|_| is_skip).map_or(now, |last| last.max(now))
    }

    /// Returns the last due time if it is ahead, and if an edit or a resume to `after` has computed the next one, `next`,
    /// from `now` and not from it.
    fn last_left_ahead(
        &self,
        after: &JobInput,
        next: Option<DateTime<Utc>>,
        now: DateTime<Utc>,
    ) -> Option<DateTime<Utc>> {
        let is_kept = self.definition.is_active && next == self.next_fire_at;
        let is_left = after.is_active && !is_kept && self.computed_from(after, now) == now;
        self.last_fire_at.filter(|last| is_left && *last >= now + MAX_AHEAD)
    }
}

/// Returns the last due time that a job must forget when an edit or a resume to `after` makes it due at `next`, because that
/// ends the skip of it. One that a clock that was ahead has dispatched is not forgotten, or the dispatcher would repeat
/// the due times before it.
pub(super) async fn ended_skip(
    executor: impl PgExecutor<'_>,
    before: &StoredJob,
    after: &JobInput,
    next: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
) -> Result<Option<DateTime<Utc>>> {
    let Some(last) = before.last_left_ahead(after, next, now) else { return Ok(None) };
    Ok(is_skipped(executor, before.id, last, now).await?.then_some(last))
}

async fn is_skipped(executor: impl PgExecutor<'_>, id: JobId, due: DateTime<Utc>, now: DateTime<Utc>) -> Result<bool> {
    // An occurrence for a due time that is ahead was created before now if a user has skipped it, and after now if a clock
    // was ahead.
    Ok(!has_scheduled_run(executor, id, due, due.min(now + MIN_AHEAD)).await?)
}

/// Returns true if a job has an occurrence of the schedule for a due time that was created at `since` or later.
async fn has_scheduled_run(
    executor: impl PgExecutor<'_>,
    id: JobId,
    due: DateTime<Utc>,
    since: DateTime<Utc>,
) -> Result<bool> {
    // A due time may be dispatched ahead.
    let first = OccurrenceId::from_parts(since - MAX_AHEAD, [0; 10]);
    Ok(sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT 1 FROM occurrences WHERE job_id = $1 AND id >= $2 AND scheduled_for = $3
                             AND trigger = 'schedule') AS "exists!""#,
        id.0,
        first.0,
        due
    )
    .fetch_one(executor)
    .await?)
}

#[cfg(test)]
mod tests {
    use super::{super::jobs::StoredSource, *};

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().expect("a valid instant")
    }

    /// Returns a job that is due every hour, with its last and its next due time. It is active if it has a next one.
    fn hourly(last: DateTime<Utc>, next: Option<DateTime<Utc>>) -> StoredJob {
        let definition =
            JobInput { is_active: next.is_some(), ..JobInput::schedule_only(Schedule::every(3_600), Rules::default()) };
        StoredJob {
            id: JobId::default(),
            key: None,
            definition,
            unreadable: None,
            next_fire_at: next,
            last_fire_at: Some(last),
            paused_reason: None,
            auto_disabled_at: None,
            source: StoredSource::default(),
            version: 1,
            created_at: last,
            created_by: String::new(),
            modified_at: last,
            modified_by: String::new(),
        }
    }

    #[test]
    fn edit_of_the_same_schedule_keeps_a_skip_and_others_end_it() {
        let (now, nine, ten) = (at("2026-01-01T08:20:00Z"), at("2026-01-01T09:00:00Z"), at("2026-01-01T10:00:00Z"));
        let (early, later) = (now + Duration::milliseconds(500), at("2026-01-01T09:20:00Z"));
        let same = hourly(nine, Some(ten)).definition;
        let ended = JobInput { rules: Rules { end_at: Some(ten), ..Rules::default() }, ..same.clone() };
        let other = JobInput { schedule: Schedule::every(7_200), ..same.clone() };
        let jitter = JobInput { rules: Rules { jitter_seconds: 60, ..Rules::default() }, ..same.clone() };
        let paused = JobInput { is_active: false, ..same.clone() };
        let skipped = || hourly(nine, Some(ten));
        for (case, before, after, next, from, left) in [
            ("another name", skipped(), &same, Some(ten), nine, None),
            ("an end before the next one", skipped(), &ended, None, nine, None),
            ("another schedule", skipped(), &other, Some(later), now, Some(nine)),
            ("another jitter", skipped(), &jitter, Some(later), now, Some(nine)),
            ("a pause", skipped(), &paused, None, nine, None),
            ("a resume", hourly(nine, None), &same, Some(later), now, Some(nine)),
            ("a resume without a due time", hourly(nine, None), &same, None, now, Some(nine)),
            ("a last one that has passed", hourly(now, Some(nine)), &ended, Some(later), now, None),
            ("a last one dispatched early", hourly(early, Some(ten)), &ended, Some(nine), early, None),
            ("a resume after that", hourly(early, None), &same, Some(later), now, None),
            ("a clock that was ahead", hourly(ten, Some(nine)), &ended, Some(later), now, Some(ten)),
        ] {
            assert_eq!(before.computed_from(after, now), from, "{case}");
            assert_eq!(before.last_left_ahead(after, next, now), left, "{case}");
        }
    }
}
