//! The figures that a scrape of the metrics reads.
//!
//! A scrape comes every few seconds from every Prometheus, so no statement here grows with the history or with the length
//! of a queue: counts stop at a limit, and every read goes through an index of open work or through a small table.

use chrono::{DateTime, Utc};

use super::{Result, Store};
use crate::metrics::labels::{MAX_JOB_TYPES, MAX_WORKERS};

/// The limit of counts of open occurrences.
pub const MAX_COUNTED_RUNS: i64 = 100_000;
/// The number of queued occurrences, the oldest ones, that are told apart by job type.
pub const MAX_QUEUED_RUNS: i64 = 20_000;
/// The number of queued occurrences that are read at each end of the queue, the oldest and the newest, if many of them are
/// not ready. Reading all to find the ready ones among ten million delayed ones would take longer than a scrape may.
const MAX_READ_AT_END: i64 = 50_000;
/// The limit of the count of open failures.
pub const MAX_COUNTED_FAILURES: i64 = 10_000;

/// What is open now.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenRunCounts {
    /// Queued occurrences.
    pub queued: i64,
    /// Running occurrences.
    pub running: i64,
    /// Occurrences with an unknown outcome.
    pub unknown: i64,
    /// Queued occurrences that wait for a slot.
    pub waiting: i64,
    /// Queued occurrences that are delayed.
    pub delayed: i64,
    /// Queued occurrences whose message is unsent.
    pub unsent: i64,
    /// The time at which the oldest unsent message became ready.
    pub unsent_since: Option<DateTime<Utc>>,
}

/// The queued occurrences of a job type.
#[derive(Clone, Debug, PartialEq)]
pub struct QueuedRuns {
    /// The worker.
    pub worker_id: String,
    /// The job type.
    pub job_type: String,
    /// Their number.
    pub count: i64,
    /// The earliest due time.
    pub oldest_due: DateTime<Utc>,
}

/// The live instances of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerPermits {
    /// The worker.
    pub worker_id: String,
    /// The number of live instances.
    pub instances: i64,
    /// The runs that they may run at once.
    pub permits: i64,
    /// The runs at their last heartbeat.
    pub used: i64,
}

/// A job type, with the live instances that offer it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedJobType {
    /// The worker.
    pub worker_id: String,
    /// The job type.
    pub job_type: String,
    /// The number of live instances.
    pub instances: i64,
    /// True if one of them reserves slots for critical runs, which then have a queue of their own.
    pub has_critical_queue: bool,
}

/// What the scheduler has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleState {
    /// True while the cluster is paused.
    pub is_paused: bool,
    /// The earliest due time.
    pub earliest_due: Option<DateTime<Utc>>,
    /// Failures that no user has resolved, at most [`MAX_COUNTED_FAILURES`].
    pub open_failures: i64,
}

impl OpenRunCounts {
    /// Returns true if so many queued occurrences are delayed or wait for a slot that the ready ones are not sought among
    /// all.
    #[must_use]
    pub const fn has_many_unready(&self) -> bool {
        self.delayed + self.waiting >= MAX_COUNTED_RUNS
    }
}

impl Store {
    /// Counts open occurrences, each kind up to [`MAX_COUNTED_RUNS`].
    pub async fn open_run_counts(&self) -> Result<OpenRunCounts> {
        Ok(sqlx::query_as!(
            OpenRunCounts,
            r#"SELECT (SELECT count(*) FROM (SELECT FROM runs WHERE status = 'queued' LIMIT $1) r) AS "queued!",
                      (SELECT count(*) FROM (SELECT FROM runs WHERE status = 'running' LIMIT $1) r) AS "running!",
                      (SELECT count(*) FROM (SELECT FROM runs WHERE status = 'unknown' LIMIT $1) r) AS "unknown!",
                      (SELECT count(*) FROM (SELECT FROM runs WHERE NOT has_slot AND slot_group IS NOT NULL LIMIT $1) r)
                          AS "waiting!",
                      (SELECT count(*) FROM (SELECT FROM runs WHERE not_before IS NOT NULL LIMIT $1) r) AS "delayed!",
                      (SELECT count(*) FROM (SELECT FROM runs WHERE publish_after IS NOT NULL LIMIT $1) r) AS "unsent!",
                      (SELECT min(publish_after) FROM runs WHERE publish_after IS NOT NULL) AS unsent_since"#,
            MAX_COUNTED_RUNS
        )
        .fetch_one(self.pool())
        .await?)
    }

    /// Returns the job types of the queued occurrences that wait for neither a slot nor a delay, of the oldest
    /// [`MAX_QUEUED_RUNS`]; the types with the most first.
    pub async fn queued_runs(&self) -> Result<Vec<QueuedRuns>> {
        Ok(sqlx::query_as!(
            QueuedRuns,
            r#"SELECT worker_id, job_type, count(*) AS "count!", min(scheduled_for) AS "oldest_due!"
                 FROM (SELECT worker_id, job_type, scheduled_for FROM runs
                        WHERE status = 'queued' AND has_slot AND not_before IS NULL
                        ORDER BY id LIMIT $1) oldest
                GROUP BY worker_id, job_type
                ORDER BY 3 DESC"#,
            MAX_QUEUED_RUNS
        )
        .fetch_all(self.pool())
        .await?)
    }

    /// Returns the same as [`queued_runs`](Self::queued_runs), of the ready ones among the oldest and the newest
    /// `MAX_READ_AT_END` queued occurrences. It misses the ready ones between the two.
    pub async fn queued_runs_at_ends(&self) -> Result<Vec<QueuedRuns>> {
        Ok(sqlx::query_as!(
            QueuedRuns,
            r#"SELECT worker_id AS "worker_id!", job_type AS "job_type!", count(*) AS "count!",
                      min(scheduled_for) AS "oldest_due!"
                 FROM (SELECT DISTINCT ON (id) id, worker_id, job_type, scheduled_for
                         FROM ((SELECT id, worker_id, job_type, scheduled_for, has_slot AND not_before IS NULL AS is_ready
                                  FROM runs WHERE status = 'queued' ORDER BY id LIMIT $2)
                               UNION ALL
                               (SELECT id, worker_id, job_type, scheduled_for, has_slot AND not_before IS NULL
                                  FROM runs WHERE status = 'queued' ORDER BY id DESC LIMIT $2)) ends
                        WHERE is_ready ORDER BY id LIMIT $1) oldest
                GROUP BY worker_id, job_type
                ORDER BY 3 DESC"#,
            MAX_QUEUED_RUNS,
            MAX_READ_AT_END
        )
        .fetch_all(self.pool())
        .await?)
    }

    /// Returns the workers with live instances.
    pub async fn worker_permits(&self, alive_since: DateTime<Utc>) -> Result<Vec<WorkerPermits>> {
        Ok(sqlx::query_as!(
            WorkerPermits,
            r#"SELECT worker_id, count(*) AS "instances!", sum(capacity)::bigint AS "permits!", sum(running)::bigint AS "used!"
                 FROM worker_instances
                WHERE stopped_at IS NULL AND last_heartbeat_at >= $1
                GROUP BY worker_id ORDER BY worker_id LIMIT $2"#,
            alive_since,
            i64::try_from(MAX_WORKERS).unwrap_or(i64::MAX)
        )
        .fetch_all(self.pool())
        .await?)
    }

    /// Returns the job types that workers have announced, the newest announcements first.
    pub async fn offered_job_types(&self, alive_since: DateTime<Utc>) -> Result<Vec<OfferedJobType>> {
        Ok(sqlx::query_as!(
            OfferedJobType,
            r#"SELECT w.worker_id, w.job_type, coalesce(live.instances, 0) AS "instances!",
                      coalesce(live.slots > 0, false) AS "has_critical_queue!"
                 FROM worker_job_types w
                 LEFT JOIN (SELECT i.worker_id, t.job_type, count(*) AS instances, max(i.critical_slots) AS slots
                              FROM worker_instances i JOIN instance_job_types t ON t.instance_id = i.id
                             WHERE i.stopped_at IS NULL AND i.last_heartbeat_at >= $1
                             GROUP BY i.worker_id, t.job_type) live
                   ON live.worker_id = w.worker_id AND live.job_type = w.job_type
                ORDER BY w.announced_at DESC, w.worker_id, w.job_type LIMIT $2"#,
            alive_since,
            i64::try_from(MAX_JOB_TYPES).unwrap_or(i64::MAX)
        )
        .fetch_all(self.pool())
        .await?)
    }

    /// Returns what the scheduler has to do.
    pub async fn schedule_state(&self) -> Result<ScheduleState> {
        let earliest_due = self.earliest_due_time(&[]).await?;
        let row = sqlx::query!(
            r#"SELECT EXISTS (SELECT 1 FROM cluster_pause) AS "is_paused!",
                      (SELECT count(*) FROM (SELECT FROM failed_occurrences WHERE resolved_at IS NULL LIMIT $1) f)
                          AS "open_failures!""#,
            MAX_COUNTED_FAILURES
        )
        .fetch_one(self.pool())
        .await?;
        Ok(ScheduleState { is_paused: row.is_paused, earliest_due, open_failures: row.open_failures })
    }
}
