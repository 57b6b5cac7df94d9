//! Job definitions by the thousand, inserted with one statement.

use anyhow::ensure;
use chrono::{DateTime, Duration, Utc};
use milvaion_protocol::id::JobId;
use sqlx::PgPool;

use crate::harness::{BenchEnv, JOB_TYPE, WORKER_ID};

/// A schedule that is due every second.
pub(crate) const EVERY_SECOND: &str = r#"{"kind": "every", "seconds": 1}"#;
/// A schedule that is due once, at the `next_fire_at` of its job.
pub(crate) const ONE_TIME: &str = r#"{"kind": "once", "at": "2000-01-01T00:00:00Z"}"#;
/// A schedule that is due every 30 days: not while a figure is measured.
const EVERY_MONTH: &str = r#"{"kind": "every", "seconds": 2592000}"#;

/// Jobs to insert together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobBatch {
    pub(crate) count: i64,
    pub(crate) schedule: &'static str,
    /// The due time of the first job; `None` inserts paused jobs.
    pub(crate) first: Option<DateTime<Utc>>,
    /// The period over which the due times of the others are spread evenly.
    pub(crate) spread: Duration,
    /// From 1 to 5; 3 is the default of a job.
    pub(crate) priority: i16,
}

impl Default for JobBatch {
    fn default() -> Self {
        Self { count: 1, schedule: ONE_TIME, first: None, spread: Duration::zero(), priority: 3 }
    }
}

/// Defines a function that returns a UUIDv7 with a given instant. PostgreSQL has none before version 18.
pub(crate) const UUID7_FUNCTION: &str = "CREATE OR REPLACE FUNCTION bench_uuid7(at timestamptz) RETURNS uuid LANGUAGE sql VOLATILE AS $$ \
     SELECT (lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0') || '-7' || substr(gen_random_uuid()::text, 16))::uuid $$";

impl JobBatch {
    /// Inserts the jobs and returns their ids and due times.
    pub(crate) async fn insert(self, pool: &PgPool) -> anyhow::Result<Vec<(JobId, Option<DateTime<Utc>>)>> {
        sqlx::query(UUID7_FUNCTION).execute(pool).await?;
        let statement = "WITH wanted AS MATERIALIZED ( \
                 SELECT bench_uuid7(now()) AS id, n, \
                        $4::timestamptz + n * interval '1 microsecond' * ($5::float8 / greatest($6::bigint, 1)) AS due \
                   FROM generate_series(0, $6::bigint - 1) AS n), \
             made AS ( \
                 INSERT INTO jobs (id, display_name, worker_id, job_type, job_data, schedule, priority, \
                                   is_active, created_at, created_by, modified_at, modified_by) \
                 SELECT id, 'Bench ' || n, $1, $2, '{}', $3::jsonb, $7, $4 IS NOT NULL, now(), 'bench', now(), 'bench' \
                   FROM wanted), \
             kept AS ( \
                 INSERT INTO job_versions (job_id, version, definition, changed_at, changed_by) \
                 SELECT id, 1, '{\"jobData\": {}}', now(), 'bench' FROM wanted), \
             due AS ( \
                 INSERT INTO job_due (job_id, priority, next_fire_at, version) SELECT id, $7, due, 1 FROM wanted) \
             SELECT id, due FROM wanted";
        let rows: Vec<(uuid::Uuid, Option<DateTime<Utc>>)> = sqlx::query_as(statement)
            .bind(WORKER_ID)
            .bind(JOB_TYPE)
            .bind(self.schedule)
            .bind(self.first)
            .bind(self.spread.num_microseconds().unwrap_or_default() as f64)
            .bind(self.count)
            .bind(self.priority)
            .fetch_all(pool)
            .await?;
        // A small batch changes no plan, and its first job may be due before the tables are read.
        if self.count >= 1_000 {
            sqlx::query("ANALYZE jobs, job_due").execute(pool).await?;
        }
        Ok(rows.into_iter().map(|(id, at)| (JobId(id), at)).collect())
    }
}

/// Runs 50 occurrences, so that queues are declared, connections open and statements prepared before a measurement.
pub(crate) async fn warm_up(env: &BenchEnv) -> anyhow::Result<()> {
    let first = Some(milvaion_server::clock::machine_now());
    let job_batch = JobBatch { count: 50, first, ..JobBatch::default() };
    let due = job_batch.insert(&env.pool).await?;
    env.notify_due(&due).await?;
    env.wait_until("the warm-up runs", async || {
        let done = "SELECT count(*) FROM occurrences WHERE status = 'completed' AND job_id = ANY($1)";
        let ids: Vec<uuid::Uuid> = due.iter().map(|(id, _)| id.0).collect();
        Ok(sqlx::query_scalar::<_, i64>(done).bind(ids).fetch_one(&env.pool).await? == 50)
    })
    .await
}

/// Returns a batch of jobs that are defined but not due for a day.
pub(crate) fn idle_jobs(count: i64) -> JobBatch {
    let first = Some(milvaion_server::clock::machine_now() + Duration::days(1));
    JobBatch { count, schedule: EVERY_MONTH, first, spread: Duration::days(29), ..JobBatch::default() }
}

/// Removes the due time of every job that is due within an hour.
pub(crate) async fn pause(env: &BenchEnv) -> anyhow::Result<()> {
    let ids: Vec<uuid::Uuid> = sqlx::query_scalar(
        "UPDATE job_due SET next_fire_at = NULL WHERE next_fire_at < now() + interval '1 hour' RETURNING job_id",
    )
    .fetch_all(&env.pool)
    .await?;
    let paused: Vec<_> = ids.into_iter().map(|id| (JobId(id), None)).collect();
    ensure!(paused.len() < 1_000_000, "{} jobs are due within an hour, too many to pause at once", paused.len());
    env.notify_due(&paused).await
}
