//! The sustained throughput: occurrences per second, from due to stored as Completed, over a minute, with one server
//! and one worker.
//!
//! Offering more than the system can do would measure a growing backlog, and offering a guess would measure the guess.
//! So a controller checks twice a second the number of open occurrences and the dispatcher's lateness. While both are
//! small, it makes a few more jobs due each second; while one is not, it pauses some. The occurrences completed in one
//! second were then due in one second, a second or two earlier, and no backlog is left over.

use std::{ops::Range, time::Duration};

use chrono::{DateTime, Utc};
use milvaion_protocol::id::JobId;
use milvaion_server::clock::machine_now;
use uuid::Uuid;

use crate::{
    harness::{BenchEnv, BenchHarness},
    job_batch::{self, EVERY_SECOND, JobBatch},
    process_stats,
    samples::RunSample,
    stage_times,
};

/// The maximum number of jobs due each second.
const MAX_JOBS_PER_SECOND: i64 = 60_000;
/// The number of jobs due each second at the start.
const INITIAL_JOBS_PER_SECOND: i64 = 400;
/// The maximum duration of the search for the rate.
const RAMP_TIMEOUT: Duration = Duration::from_secs(60);
/// The duration of the search after the first decrease.
const SETTLE_TIME: Duration = Duration::from_secs(15);
/// The minimum time between two decreases, so that the effect of one is visible before the next.
const DECREASE_COOLDOWN: Duration = Duration::from_millis(1_500);
/// The interval between two checks.
const CONTROL_INTERVAL: Duration = Duration::from_millis(500);

/// The figures of the processor time, in the order of [`stage_times::print_cpu`].
const CPU_FIGURES: [&str; 6] = [
    "throughput-cpu",
    "throughput-cpu-server",
    "throughput-cpu-worker",
    "throughput-cpu-postgres",
    "throughput-cpu-redis",
    "throughput-cpu-rabbitmq",
];

/// Measures the sustained rate, and the processor time of each process.
pub(crate) async fn run(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        samples.push(once(harness).await?);
    }
    Ok(samples)
}

async fn once(harness: &BenchHarness) -> anyhow::Result<RunSample> {
    let env = BenchEnv::new(harness).await?;
    JobBatch { count: MAX_JOBS_PER_SECOND, schedule: EVERY_SECOND, ..JobBatch::default() }.insert(&env.pool).await?;
    sqlx::query("CREATE TABLE bench_jobs AS SELECT row_number() OVER (ORDER BY id) - 1 AS n, id FROM jobs")
        .execute(&env.pool)
        .await?;
    sqlx::query("CREATE UNIQUE INDEX ON bench_jobs (n)").execute(&env.pool).await?;
    sqlx::query("VACUUM ANALYZE jobs, bench_jobs").execute(&env.pool).await?;
    let server = env.server().await?;
    let worker = env.worker().await?;
    job_batch::warm_up(&env).await?;
    let mut process_groups = vec![server.process_group.clone(), worker.process_group.clone()];
    process_groups.extend(harness.services()?.iter().cloned());

    let mut controller = RateController { env: &env, due: 0, saturated: None, cut: None };
    let begun = tokio::time::Instant::now();
    controller.set(INITIAL_JOBS_PER_SECOND).await?;
    while begun.elapsed() < RAMP_TIMEOUT && controller.saturated.is_none_or(|at| at.elapsed() < SETTLE_TIME) {
        controller.adjust().await?;
    }
    let (from, before) = (machine_now(), process_stats::seconds(&process_groups));
    let begun = tokio::time::Instant::now();
    while begun.elapsed() < harness.settings.seconds {
        controller.adjust().await?;
    }
    let (upto, after) = (machine_now(), process_stats::seconds(&process_groups));
    let offered = controller.due;

    job_batch::pause(&env).await?;
    env.wait_until_drained().await?;
    let all = env.verify(worker.stop_and_count_runs().await?).await?;
    let window = stage_times::MeasurementWindow { from, upto };
    let completed = window.completed(&env.pool).await?;
    let rate = completed as f64 / ((upto - from).num_milliseconds() as f64 / 1e3);
    println!("    {rate:.0}/s of {offered}/s offered at the end; {all} in all, each once, none lost");
    window.print_stages(&env.pool, None).await?;
    let costs = stage_times::print_cpu(&process_groups, &before, &after, completed);
    server.stop().await?;
    env.close().await?;
    let mut sample = vec![("throughput", rate)];
    sample.extend(CPU_FIGURES.into_iter().zip(costs));
    Ok(sample)
}

/// Controls the number of jobs due each second.
struct RateController<'a> {
    env: &'a BenchEnv,
    /// Jobs due each second.
    due: i64,
    /// The time of the first decrease.
    saturated: Option<tokio::time::Instant>,
    /// The time of the last decrease.
    cut: Option<tokio::time::Instant>,
}

impl RateController<'_> {
    /// Waits for the next check, and changes the rate if backlog or lateness call for it.
    async fn adjust(&mut self) -> anyhow::Result<()> {
        tokio::time::sleep(CONTROL_INTERVAL).await;
        let statement = "SELECT coalesce(sum(count) FILTER (WHERE status = 'queued'), 0)::bigint \
                              - coalesce(sum(count) FILTER (WHERE status IN ('completed', 'failed', 'cancelled', 'timed-out', 'skipped')), 0)::bigint, \
                                (SELECT min(next_fire_at) FROM job_due WHERE priority = 3 AND next_fire_at IS NOT NULL) \
                           FROM stats_minute";
        let (open, earliest): (i64, Option<DateTime<Utc>>) =
            sqlx::query_as(statement).fetch_one(&self.env.pool).await?;
        let backlog = open as f64 / self.due.max(1) as f64;
        let late = earliest.map_or(0.0, |at| (machine_now() - at).num_milliseconds() as f64 / 1e3).max(0.0);
        let wanted = if backlog > 2.0 || late > 0.9 {
            if self.cut.is_some_and(|at| at.elapsed() < DECREASE_COOLDOWN) {
                return Ok(());
            }
            let now = tokio::time::Instant::now();
            self.saturated.get_or_insert(now);
            self.cut = Some(now);
            self.due * 9 / 10
        } else if backlog < 1.0 && late < 0.5 {
            match self.saturated {
                None => self.due * 115 / 100,
                Some(_) => self.due * 103 / 100,
            }
        } else {
            return Ok(());
        };
        self.set(wanted.clamp(INITIAL_JOBS_PER_SECOND / 4, MAX_JOBS_PER_SECOND)).await
    }

    /// Makes exactly this many jobs due each second, at due times that are spread over it.
    async fn set(&mut self, wanted: i64) -> anyhow::Result<()> {
        let changed = if wanted > self.due {
            self.update(self.due..wanted, "next_fire_at = date_trunc('second', now()) + interval '1 second' + b.n * 7919 % 1000 * interval '1 millisecond'")
                .await?
        } else {
            self.update(wanted..self.due, "next_fire_at = NULL").await?
        };
        self.due = wanted;
        self.env.notify_due(&changed).await
    }

    /// Updates a range of the jobs with these SQL assignments (`changes`). Returns their ids and new due times.
    async fn update(&self, range: Range<i64>, changes: &str) -> anyhow::Result<Vec<(JobId, Option<DateTime<Utc>>)>> {
        let statement = format!(
            "UPDATE job_due j SET {changes} FROM bench_jobs b WHERE b.id = j.job_id AND b.n >= $1 AND b.n < $2 \
             RETURNING j.job_id, j.next_fire_at"
        );
        let rows: Vec<(Uuid, Option<DateTime<Utc>>)> = sqlx::query_as(sqlx::AssertSqlSafe(statement))
            .bind(range.start)
            .bind(range.end)
            .fetch_all(&self.env.pool)
            .await?;
        Ok(rows.into_iter().map(|(id, at)| (JobId(id), at)).collect())
    }
}
