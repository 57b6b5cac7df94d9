//! A million open runs that do not run: first they wait for one concurrency limit, then they are delayed. Measured are how
//! soon a slot that becomes free is used again, how soon a run whose delay has ended starts, and the lateness of 100 jobs
//! a second beside them.

use chrono::{DateTime, Duration, Utc};
use milvaion_server::clock::machine_now;

use crate::{
    harness::{BenchEnv, BenchHarness, BenchProcess, JOB_TYPE, WORKER_ID},
    job_batch::{self, EVERY_SECOND, JobBatch},
    lateness::{self, sleep_until},
    raw,
    samples::{RawValue, RunSample, p50_and_p99},
};

/// Jobs that are due every second beside the open runs.
const RATE: i64 = 100;
/// The period whose due times count, in seconds.
const MEASURED_SECONDS: i64 = 30;
/// The open runs of each job, of which a server allows no more.
const RUNS_PER_JOB: i64 = 10_000;
/// The delayed runs that become due each second.
const RELEASES_PER_SECOND: i64 = 20;

/// Inserts open runs: `$1` of them, of the jobs `$2` in turn. They are marked as requested, and so told from those of the
/// jobs that are due every second.
const OPEN_RUNS: &str = "INSERT INTO runs (id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger, \
                           status, priority, has_slot, slot_group, slot_key, slot_key_limit, not_before) \
     SELECT bench_uuid7(at), date_trunc('milliseconds', at), job, 'Waiting', 1, $3, $4, coalesce(delayed_until, at), 'manual', \
            'queued', 3, delayed_until IS NOT NULL, CASE WHEN delayed_until IS NULL THEN job END, \
            CASE WHEN delayed_until IS NULL THEN 'bench' END, CASE WHEN delayed_until IS NULL THEN 1 END, delayed_until \
       FROM (SELECT now() - interval '1 hour' + n * interval '1 millisecond' AS at, \
                    ($2::uuid[])[1 + n % cardinality($2)] AS job, \
                    $5::timestamptz + n / $6::float8 * interval '1 second' AS delayed_until \
               FROM generate_series(0, $1::bigint - 1) AS n) open";

/// Measures both kinds of open runs.
pub(crate) async fn run(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        let mut sample = waiting(harness).await?;
        sample.extend(delayed(harness).await?);
        samples.push(sample);
    }
    Ok(samples)
}

/// Measures runs that wait for one slot. The worker's job does nothing, so the slot is always free again.
async fn waiting(harness: &BenchHarness) -> anyhow::Result<RunSample> {
    let env = fill(harness, None).await?;
    let measured = Measurement::run(env, "million-waiting-lateness").await?;
    let statement = "SELECT started_at, gap FROM ( \
                         SELECT started_at, \
                                extract(epoch FROM started_at - lag(ended_at) OVER (ORDER BY started_at))::float8 * 1000 \
                           FROM history WHERE trigger = 'manual') AS granted (started_at, gap) \
                      WHERE gap IS NOT NULL ORDER BY started_at";
    let gaps: Vec<RawValue> = sqlx::query_as(statement).fetch_all(&measured.env.pool).await?;
    println!("    {} slots were granted while runs waited", gaps.len());
    raw::keep(harness, "million-waiting-grant", &measured.env.prefix, &gaps)?;
    let [p50, p99] = p50_and_p99(&gaps);
    let sample = vec![
        ("million-waiting-grant-p50", p50),
        ("million-waiting-grant-p99", p99),
        ("million-waiting-lateness-p99", measured.late),
    ];
    measured.close().await?;
    Ok(sample)
}

/// Measures delayed runs, of which some become due while the others stay delayed for hours.
async fn delayed(harness: &BenchHarness) -> anyhow::Result<RunSample> {
    let env = fill(harness, Some(machine_now() + Duration::minutes(5))).await?;
    // The delays were chosen before the time that the server needs to start was known.
    let shift = "UPDATE runs SET not_before = not_before - $1, scheduled_for = scheduled_for - $1 \
                  WHERE id IN (SELECT id FROM runs WHERE not_before IS NOT NULL ORDER BY not_before LIMIT $2)";
    let first: DateTime<Utc> = sqlx::query_scalar("SELECT min(not_before) FROM runs").fetch_one(&env.pool).await?;
    // PostgreSQL's intervals have no nanoseconds.
    let earlier = Duration::milliseconds((first - machine_now()).num_milliseconds()) - Duration::seconds(20);
    sqlx::query(shift).bind(earlier).bind(RELEASES_PER_SECOND * (MEASURED_SECONDS + 20)).execute(&env.pool).await?;
    let measured = Measurement::run(env, "million-delayed-lateness").await?;
    let statement = "SELECT scheduled_for, extract(epoch FROM started_at - scheduled_for)::float8 * 1000 \
                       FROM history WHERE trigger = 'manual' ORDER BY scheduled_for";
    let late: Vec<RawValue> = sqlx::query_as(statement).fetch_all(&measured.env.pool).await?;
    println!("    {} delayed runs became due", late.len());
    raw::keep(harness, "million-delayed-release", &measured.env.prefix, &late)?;
    let [_, p99] = p50_and_p99(&late);
    let sample = vec![("million-delayed-release-p99", p99), ("million-delayed-lateness-p99", measured.late)];
    measured.close().await?;
    Ok(sample)
}

/// Creates an environment with open runs that wait for one slot, or that are delayed until `from` and later.
async fn fill(harness: &BenchHarness, from: Option<DateTime<Utc>>) -> anyhow::Result<BenchEnv> {
    let env = BenchEnv::new(harness).await?;
    let count = harness.settings.jobs;
    let jobs = JobBatch { count: (count / RUNS_PER_JOB).max(1), ..JobBatch::default() }.insert(&env.pool).await?;
    let jobs: Vec<uuid::Uuid> = jobs.into_iter().map(|(id, _)| id.0).collect();
    sqlx::query(OPEN_RUNS)
        .bind(count)
        .bind(jobs)
        .bind(WORKER_ID)
        .bind(JOB_TYPE)
        .bind(from)
        .bind(RELEASES_PER_SECOND as f64)
        .execute(&env.pool)
        .await?;
    sqlx::query("VACUUM (ANALYZE) runs, jobs, job_due").execute(&env.pool).await?;
    Ok(env)
}

/// An environment after a measurement: nothing is open, and every occurrence is verified.
struct Measurement {
    env: BenchEnv,
    server: BenchProcess,
    /// The 99th percentile of the lateness of the jobs that were due every second, in milliseconds.
    late: f64,
}

impl Measurement {
    /// Runs the jobs that are due every second beside the open runs, and deletes those that are still open afterwards.
    /// `figure` is the name of the lateness.
    async fn run(env: BenchEnv, figure: &str) -> anyhow::Result<Self> {
        let server = env.server().await?;
        let worker = env.worker().await?;
        job_batch::warm_up(&env).await?;
        let begin = machine_now() + Duration::seconds(3);
        let due = JobBatch {
            count: RATE,
            schedule: EVERY_SECOND,
            first: Some(begin),
            spread: Duration::seconds(1),
            ..JobBatch::default()
        };
        env.notify_due(&due.insert(&env.pool).await?).await?;
        let end = begin + Duration::seconds(MEASURED_SECONDS);
        sleep_until(end + Duration::seconds(1)).await;
        job_batch::pause(&env).await?;
        let open = "DELETE FROM runs WHERE trigger = 'manual' AND (NOT has_slot OR not_before IS NOT NULL)";
        sqlx::query(open).execute(&env.pool).await?;
        env.wait_until_drained().await?;
        env.verify(worker.stop_and_count_runs().await?).await?;
        let [_, late] = lateness::read(&env, begin, end, RATE * MEASURED_SECONDS, Some(figure)).await?;
        Ok(Self { env, server, late })
    }

    async fn close(self) -> anyhow::Result<()> {
        self.server.stop().await?;
        self.env.close().await
    }
}
