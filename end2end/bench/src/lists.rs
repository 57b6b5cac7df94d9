//! Lists over a month of history: the time that the store takes for one page, with the queries of the dashboard.

use std::time::Instant;

use chrono::Duration;
use milvaion_api::page::OccurrenceFilter;
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    status::OccurrenceStatus,
};
use milvaion_server::{clock::machine_now, store::Store};

use crate::{
    harness::{BenchEnv, BenchHarness},
    samples::{RunSample, percentile},
    seed,
};

/// Pages of each list that a run reads.
const PAGES_PER_LIST: usize = 200;
/// Rows per page.
const ROWS_PER_PAGE: u32 = 50;

/// Fills a database once and reads from it in every run. Returns milliseconds.
pub(crate) async fn run(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let env = BenchEnv::new(harness).await?;
    seed::fill(&env.pool, harness.settings.rows).await?;
    let jobs: Vec<uuid::Uuid> = sqlx::query_scalar("SELECT id FROM jobs").fetch_all(&env.pool).await?;
    let store = Store::from_pool(env.pool.clone());
    let mut samples = Vec::new();
    // The first round does not count. It fills the caches, as they are on a server that has been running for a while.
    for round in 0..=runs {
        let mut sample = Vec::new();
        for name in ["list-newest-p95", "list-job-p95", "list-status-p95", "list-status-job-time-p95"] {
            let mut took = Vec::new();
            for number in 0..PAGES_PER_LIST {
                let filter = filter(name, &jobs, number);
                let begun = Instant::now();
                store.occurrences(&filter).await?;
                took.push(begun.elapsed().as_secs_f64() * 1e3);
            }
            sample.push((name, percentile(&mut took, 0.95)));
        }
        if round > 0 {
            samples.push(sample);
        }
    }
    env.close().await?;
    Ok(samples)
}

/// Returns the filter of a page: alternately the first page and one from a random instant of the month.
fn filter(name: &str, jobs: &[uuid::Uuid], number: usize) -> OccurrenceFilter {
    let mut filter = OccurrenceFilter { limit: ROWS_PER_PAGE, ..OccurrenceFilter::default() };
    let job = jobs.get(rand::random::<u32>() as usize % jobs.len().max(1)).map(|id| JobId(*id));
    match name {
        "list-job-p95" => filter.job_id = job,
        "list-status-p95" => filter.status = Some(OccurrenceStatus::Failed),
        "list-status-job-time-p95" => {
            (filter.job_id, filter.status) = (job, Some(OccurrenceStatus::Failed));
            filter.since = Some(machine_now() - Duration::days(7));
        }
        _ => {}
    }
    if number % 2 == 1 {
        let days = if filter.since.is_some() { 6 } else { seed::SEED_DAYS - 1 };
        let back = Duration::seconds(i64::from(rand::random::<u32>()) % (days * 86_400));
        filter.before = Some(OccurrenceId::from_parts(machine_now() - back, rand::random()));
    }
    filter
}
