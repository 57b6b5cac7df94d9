//! A month of history: any number of occurrences of 2,000 jobs in daily partitions. The database generates the rows,
//! because sending millions of them would take longer.

use std::time::Instant;

use anyhow::ensure;
use chrono::{DateTime, Duration, NaiveTime, Utc};
use milvaion_server::{clock::machine_now, store::Store};
use sqlx::{PgPool, postgres::PgPoolOptions};

use crate::{
    harness::{JOB_TYPE, WORKER_ID},
    job_batch::{UUID7_FUNCTION, idle_jobs},
    settings,
};

/// Jobs that the occurrences belong to.
pub(crate) const SEED_JOBS: i64 = 2_000;
/// Days that the occurrences are spread over, today included.
pub(crate) const SEED_DAYS: i64 = 30;
/// Occurrences of today that are still open.
const OPEN_OCCURRENCES: i64 = 200;

/// Runs `bench seed --rows N`: migrates and fills the database that `DATABASE_URL` names.
pub(crate) async fn command(arguments: &[String]) -> anyhow::Result<()> {
    let rows = match arguments {
        [] => settings::BenchSettings::from_env()?.rows,
        [flag, rows] if flag == "--rows" => rows.parse()?,
        _ => anyhow::bail!("usage: bench seed [--rows 10000000]"),
    };
    ensure!((10_000..=100_000_000).contains(&rows), "--rows takes a whole number from 10000 to 100000000: got {rows}");
    let pool = PgPoolOptions::new().max_connections(2).connect(&settings::url("DATABASE_URL")?).await?;
    milvaion_server::store::MIGRATOR.run(&pool).await?;
    fill(&pool, rows).await?;
    pool.close().await;
    Ok(())
}

/// Fills a migrated database with this many occurrences.
pub(crate) async fn fill(pool: &PgPool, rows: i64) -> anyhow::Result<()> {
    let begun = Instant::now();
    idle_jobs(SEED_JOBS).insert(pool).await?;
    sqlx::query(UUID7_FUNCTION).execute(pool).await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS bench_seed AS SELECT row_number() OVER (ORDER BY id) - 1 AS n, id, display_name FROM jobs")
        .execute(pool)
        .await?;
    sqlx::query("ANALYZE bench_seed").execute(pool).await?;
    let now = machine_now();
    let today = now.date_naive();
    let store = Store::from_pool(pool.clone());
    for back in (0..SEED_DAYS).rev() {
        store.ensure_partitions(now - Duration::days(back)).await?;
    }
    let each = rows / SEED_DAYS;
    for back in (0..SEED_DAYS).rev() {
        let from = (today - Duration::days(back)).and_time(NaiveTime::MIN).and_utc();
        // The rows of today end five seconds ago.
        let upto = (from + Duration::days(1)).min(now - Duration::seconds(5));
        let count = if back == 0 { rows - each * (SEED_DAYS - 1) } else { each };
        day(pool, from, upto, count, if back == 0 { OPEN_OCCURRENCES.min(count) } else { 0 }).await?;
        let done = each * (SEED_DAYS - 1 - back) + count;
        println!("    {:>3} % of {rows} rows after {} s", done * 100 / rows, begun.elapsed().as_secs());
    }
    sqlx::query("INSERT INTO stats_folded (minute, status, count, duration_ms) \
                 SELECT date_trunc('minute', coalesce(ended_at, created_at)), status, count(*), coalesce(sum(duration_ms), 0) \
                   FROM occurrences GROUP BY 1, 2 ON CONFLICT DO NOTHING")
        .execute(pool)
        .await?;
    sqlx::query("DROP TABLE bench_seed").execute(pool).await?;
    sqlx::query("VACUUM (ANALYZE) runs, history").execute(pool).await?;
    println!("    {rows} rows in {} s", begun.elapsed().as_secs());
    Ok(())
}

/// Inserts one day's rows in the order of time. Of 100 ended ones 97 are Completed; the last `open` have not ended.
async fn day(pool: &PgPool, from: DateTime<Utc>, upto: DateTime<Utc>, count: i64, open: i64) -> anyhow::Result<()> {
    let mut transaction = pool.begin().await?;
    // A crash loses only data that can be generated again, so commits need not wait for the disk.
    sqlx::query("SET LOCAL synchronous_commit = off").execute(&mut *transaction).await?;
    sqlx::query("SET LOCAL statement_timeout = 0").execute(&mut *transaction).await?;
    let statement = "
        WITH told AS MATERIALIZED (
        SELECT bench_uuid7(at) AS id, date_trunc('milliseconds', at) AS created_at, job.id AS job_id,
               job.display_name AS job_name, at AS scheduled_for, status,
               CASE WHEN status <> 'queued' AND status <> 'skipped' THEN $5 || '-0000000' || told.n % 8 END AS instance_id,
               CASE WHEN status <> 'queued' AND status <> 'skipped' THEN started END AS started_at,
               ended AS ended_at, CASE WHEN status <> 'skipped' THEN took END AS duration_ms,
               CASE WHEN status = 'failed' THEN 'the answer was 503\n  where it was asked for' END AS exception,
               CASE status WHEN 'failed' THEN 'the answer was 503' WHEN 'timed-out' THEN 'its time was up'
                           WHEN 'skipped' THEN 'the one before still ran' END AS note,
               CASE status
                   WHEN 'queued' THEN jsonb_build_array(jsonb_build_object('status', 0, 'at', at, 'attempt', 1))
                   WHEN 'skipped' THEN jsonb_build_array(jsonb_build_object('status', 7, 'at', at, 'attempt', 1))
                   WHEN 'running' THEN jsonb_build_array(jsonb_build_object('status', 0, 'at', at, 'attempt', 1),
                                                         jsonb_build_object('status', 1, 'at', started, 'attempt', 1))
                   ELSE jsonb_build_array(
                       jsonb_build_object('status', 0, 'at', at, 'attempt', 1),
                       jsonb_build_object('status', 1, 'at', started, 'attempt', 1),
                       jsonb_build_object('status', CASE status WHEN 'completed' THEN 2 WHEN 'failed' THEN 3
                                                                WHEN 'timed-out' THEN 5 ELSE 4 END,
                                          'at', ended, 'attempt', 1))
               END AS status_changes
          FROM (SELECT n, at, took, at + interval '3 milliseconds' AS started,
                       at + interval '3 milliseconds' + took * interval '1 millisecond' AS ended,
                       CASE WHEN n >= $3 - $4 THEN CASE n % 2 WHEN 0 THEN 'queued' ELSE 'running' END
                            WHEN dice < 9700 THEN 'completed' WHEN dice < 9850 THEN 'failed'
                            WHEN dice < 9900 THEN 'timed-out' WHEN dice < 9950 THEN 'cancelled'
                            ELSE 'skipped' END::run_status AS status,
                       pick
                  FROM (SELECT n, $1::timestamptz + ($2::timestamptz - $1::timestamptz) * (n::float8 / $3::bigint) AS at,
                               1 + n * 7919 % 4000 AS took,
                               (hashint8extended(n, $8) & 2147483647) % 10000 AS dice,
                               (hashint8extended(n, $8 + 1) & 2147483647) % $7::bigint AS pick
                          FROM generate_series(0, $3::bigint - 1) AS n) drawn) told
          JOIN bench_seed job ON job.n = told.pick
         ORDER BY told.n),
        open AS (
            INSERT INTO runs (id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger, status,
                              priority, instance_id, started_at, last_heartbeat, status_changes, published_at)
            SELECT id, created_at, job_id, job_name, 1, $5, $6, scheduled_for, 'schedule', status, 3, instance_id, started_at,
                   started_at, status_changes, scheduled_for + interval '2 milliseconds'
              FROM told WHERE status IN ('queued', 'running'))
        INSERT INTO history (id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger, status,
                             version, priority, attempt, max_retries, instance_id, started_at, ended_at, duration_ms, exception,
                             note, status_changes, published_at, filed_at)
        SELECT id, created_at, job_id, job_name, 1, $5, $6, scheduled_for, 'schedule', status, 3, 3, 1, 0, instance_id,
               started_at, ended_at, duration_ms, exception, note, status_changes,
               scheduled_for + interval '2 milliseconds', ended_at
          FROM told WHERE status NOT IN ('queued', 'running')";
    sqlx::query(statement)
        .bind(from)
        .bind(upto)
        .bind(count)
        .bind(open)
        .bind(WORKER_ID)
        .bind(JOB_TYPE)
        .bind(SEED_JOBS)
        // A seed that differs from day to day.
        .bind(from.timestamp())
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(())
}
