//! Ten million delayed runs: what they cost everything else. Each measurement is made before they are inserted and again
//! beside them, in one database and with the same processes, so that the ratio does not depend on the machine.
//!
//! The delays end a day later, so none of the runs starts. Each has a uniqueness key, as the runs of a program that
//! enqueues one reminder for each user do, and the keys are old enough for the hourly deletion to look at all of them.

use std::time::Instant;

use anyhow::ensure;
use chrono::Duration;
use milvaion_api::page::OccurrenceFilter;
use milvaion_protocol::id::JobId;
use milvaion_server::{
    clock::machine_now,
    store::{Store, create::NewRun},
};
use uuid::Uuid;

use crate::{
    harness::{BenchEnv, BenchHarness, JOB_TYPE, WORKER_ID, occurrence_id},
    job_batch::{self, JobBatch},
    lateness::{self, DuePeriod},
    samples::{RunSample, percentile},
};

/// Jobs that are due every second beside the delayed runs.
const RATE: i64 = 1_000;
/// The period whose due times count, in seconds.
const MEASURED_SECONDS: i64 = 30;
/// The jobs that the delayed runs belong to in turn.
const JOBS: i64 = 20;
/// The delayed runs that one statement inserts.
const CHUNK: i64 = 250_000;
/// The longest time of the inserts.
const FILL_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(3_600);
/// The reads of each kind.
const READS: usize = 200;
/// The reads of the gauges, of which a scrape makes one.
const SCRAPES: usize = 20;
/// The messages that are enqueued one after another, and the occurrences of each, the most that a message may have.
const MESSAGES: usize = 40;
const OCCURRENCES_PER_MESSAGE: usize = 500;
/// The count on the page of a job ends above this.
const COUNT_LIMIT: i64 = 10_001;

/// Inserts the delayed runs with the numbers from `$1` to below `$2`, of the jobs `$3` in turn, and their uniqueness keys.
/// Their ids are as old as the runs.
const DELAYED_RUNS: &str = "WITH made AS MATERIALIZED ( \
         SELECT bench_uuid7(at) AS id, date_trunc('milliseconds', at) AS at, ($3::uuid[])[1 + n % cardinality($3)] AS job, n \
           FROM (SELECT n, now() - interval '3 hours' + n * interval '0.5 milliseconds' AS at \
                   FROM generate_series($1::bigint, $2::bigint - 1) AS n) numbered), \
     keys AS ( \
         INSERT INTO run_uniqueness (job_id, key, run_id, claimed_at) \
         SELECT job, 'reminder-' || n, id, now() - interval '2 hours' FROM made) \
     INSERT INTO runs (id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger, status, \
                       priority, has_slot, not_before) \
     SELECT id, at, job, 'Reminder', 1, $4, $5, now() + interval '1 day', 'enqueue', 'queued', 3, true, \
            now() + interval '1 day' + hashint8(n) % 43200 * interval '1 second' \
       FROM made";

/// Measures the cost of delayed runs.
pub(crate) async fn run(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let mut samples = Vec::new();
    for _ in 0..runs {
        samples.push(once(harness).await?);
    }
    Ok(samples)
}

async fn once(harness: &BenchHarness) -> anyhow::Result<RunSample> {
    let env = BenchEnv::new(harness).await?;
    let store = Store::from_pool(env.pool.clone());
    let jobs = JobBatch { count: JOBS, ..JobBatch::default() }.insert(&env.pool).await?;
    let jobs: Vec<JobId> = jobs.into_iter().map(|(id, _)| id).collect();
    let server = env.server().await?;
    let worker = env.worker().await?;
    job_batch::warm_up(&env).await?;

    let late_without = starts(&env, None).await?;
    let enqueued_without = enqueue(&store, jobs[0]).await?;
    fill(&env, &jobs, harness.settings.delayed).await?;
    let late = starts(&env, Some("ten-million-delayed-lateness")).await?;
    let enqueued = enqueue(&store, jobs[0]).await?;
    let mut counts = counts(&store, jobs[0]).await?;
    let mut lists = lists(&store, jobs[0]).await?;
    let mut scrapes = scrapes(&store).await?;
    let begun = Instant::now();
    let deleted = store.delete_free_uniqueness_keys(machine_now()).await?;
    let keys = begun.elapsed().as_secs_f64();
    ensure!(deleted == 0, "{deleted} uniqueness keys of open runs were deleted");
    println!(
        "    p99 {late_without:.1} ms without, {late:.1} ms with them; {enqueued_without:.0}/s and {enqueued:.0}/s enqueued"
    );

    // Everything else has ended, so that what remains is delayed. Deleting ten million rows would take minutes.
    sqlx::query("TRUNCATE runs, run_uniqueness").execute(&env.pool).await?;
    env.verify(worker.stop_and_count_runs().await?).await?;
    server.stop().await?;
    env.close().await?;
    Ok(vec![
        ("ten-million-delayed-lateness-p99", late),
        ("ten-million-delayed-lateness-ratio", late / late_without),
        ("ten-million-delayed-enqueue", enqueued),
        ("ten-million-delayed-enqueue-ratio", enqueued / enqueued_without),
        ("ten-million-delayed-count-p95", percentile(&mut counts, 0.95)),
        ("ten-million-delayed-list-p95", percentile(&mut lists, 0.95)),
        ("ten-million-delayed-scrape-p95", percentile(&mut scrapes, 0.95)),
        ("ten-million-delayed-keys", keys),
    ])
}

/// Inserts the delayed runs.
async fn fill(env: &BenchEnv, jobs: &[JobId], count: i64) -> anyhow::Result<()> {
    let begun = Instant::now();
    let ids: Vec<Uuid> = jobs.iter().map(|id| id.0).collect();
    for first in (0..count).step_by(usize::try_from(CHUNK)?) {
        let mut transaction = env.pool.begin().await?;
        // A crash loses only data that can be generated again, so commits need not wait for the disk.
        sqlx::query("SET LOCAL synchronous_commit = off").execute(&mut *transaction).await?;
        sqlx::query(DELAYED_RUNS)
            .bind(first)
            .bind((first + CHUNK).min(count))
            .bind(&ids)
            .bind(WORKER_ID)
            .bind(JOB_TYPE)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        ensure!(begun.elapsed() < FILL_TIMEOUT, "{first} of {count} runs took {} s", begun.elapsed().as_secs());
    }
    sqlx::query("VACUUM (ANALYZE) runs, run_uniqueness").execute(&env.pool).await?;
    println!("    {count} delayed runs after {} s", begun.elapsed().as_secs());
    Ok(())
}

/// Makes jobs due every second for a while, and deletes them. Returns the 99th percentile of their lateness in
/// milliseconds.
///
/// PostgreSQL first writes what was inserted before to the disk, which is part of the inserts: a program enqueues ten
/// million runs over hours, while the bench inserts them in minutes.
async fn starts(env: &BenchEnv, figure: Option<&str>) -> anyhow::Result<f64> {
    sqlx::query("CHECKPOINT").execute(&env.pool).await?;
    let DuePeriod { begin, end, jobs } = lateness::make_due(env, RATE, MEASURED_SECONDS).await?;
    let ids: Vec<Uuid> = jobs.iter().map(|id| id.0).collect();
    env.wait_until("the end of the due occurrences", async || {
        let ended = "SELECT NOT EXISTS (SELECT 1 FROM runs WHERE job_id = ANY($1))";
        Ok(sqlx::query_scalar(ended).bind(&ids).fetch_one(&env.pool).await?)
    })
    .await?;
    let [_, p99] = lateness::read(env, begin, end, RATE * MEASURED_SECONDS, figure).await?;
    Ok(p99)
}

/// Enqueues delayed occurrences with uniqueness keys, one message after another. Returns their number in a second.
async fn enqueue(store: &Store, job_id: JobId) -> anyhow::Result<f64> {
    let later = machine_now() + Duration::hours(1);
    let new = || {
        let id = occurrence_id();
        NewRun { id, job_id, not_before: Some(later), uniqueness_key: Some(id.to_string()), ..NewRun::default() }
    };
    let begun = Instant::now();
    for _ in 0..MESSAGES {
        let message: Vec<NewRun> = (0..OCCURRENCES_PER_MESSAGE).map(|_| new()).collect();
        store.enqueue_runs(&message, Some("bench"), machine_now()).await?;
    }
    Ok((MESSAGES * OCCURRENCES_PER_MESSAGE) as f64 / begun.elapsed().as_secs_f64())
}

/// Counts the delayed runs of a job, as its page does. Returns the times in milliseconds.
async fn counts(store: &Store, job: JobId) -> anyhow::Result<Vec<f64>> {
    let mut took = Vec::new();
    for _ in 0..READS {
        let begun = Instant::now();
        store.count_delayed(job, COUNT_LIMIT).await?;
        took.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok(took)
}

/// Reads pages of the delayed runs of a job, each the one after the last. Returns the times in milliseconds.
async fn lists(store: &Store, job: JobId) -> anyhow::Result<Vec<f64>> {
    let mut filter = OccurrenceFilter { job_id: Some(job), delayed: true, ..OccurrenceFilter::default() };
    let mut took = Vec::new();
    for _ in 0..READS {
        let begun = Instant::now();
        let page = store.occurrences(&filter).await?;
        took.push(begun.elapsed().as_secs_f64() * 1e3);
        filter.before = page.next.and_then(|next| next.parse().ok());
    }
    Ok(took)
}

/// Reads the gauges of open and queued runs, as a scrape of the metrics does. Returns the times in milliseconds.
async fn scrapes(store: &Store) -> anyhow::Result<Vec<f64>> {
    let mut took = Vec::new();
    for _ in 0..SCRAPES {
        let begun = Instant::now();
        let counts = store.open_run_counts().await?;
        if counts.has_many_unready() {
            store.queued_runs_at_ends().await?;
        } else {
            store.queued_runs().await?;
        }
        took.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok(took)
}
