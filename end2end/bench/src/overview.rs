//! The overview and the list of jobs with a million jobs and as many occurrences: the time that the server takes for what
//! these pages request, without rendering. The server runs in this process, with its web connections and caches.

use std::time::Instant;

use milvaion_api::page::{JobFilter, TimeWindow};
use milvaion_app::backend::{Backend, RequestUser};
use milvaion_server::{
    background::maintenance::STATS_MINUTES_RETENTION, clock::machine_now, lifecycle::Server, store::MIGRATOR,
};
use milvaion_test_support::{jobs, server_env};
use sqlx::postgres::PgPoolOptions;

use crate::{
    harness::BenchHarness,
    job_batch::idle_jobs,
    samples::{RunSample, percentile},
    seed,
};

/// Requests for each page in a run.
const REQUESTS: usize = 200;
/// The searches in the list of jobs: one that nearly all jobs match, one that some match, one that one matches, and one
/// that none matches.
const SEARCHES: [&str; 4] = ["bench", "77 noop", "99998", "nothing"];

/// Fills a database once and reads from it in every run. Returns milliseconds.
pub(crate) async fn run(harness: &BenchHarness, runs: usize) -> anyhow::Result<Vec<RunSample>> {
    let config = server_env::config().await;
    let pool = PgPoolOptions::new().max_connections(2).connect(&config.database.url).await?;
    MIGRATOR.run(&pool).await?;
    idle_jobs(harness.settings.jobs).insert(&pool).await?;
    // A tenth of them is paused.
    sqlx::query("UPDATE jobs SET is_active = false WHERE display_name LIKE '%7'").execute(&pool).await?;
    seed::fill(&pool, harness.settings.jobs).await?;
    sqlx::query("VACUUM (ANALYZE) jobs, job_due").execute(&pool).await?;
    pool.close().await;
    let server = server_env::start(&config).await;
    // The hourly maintenance of a server that has been running for a while.
    while server.store.merge_old_stats(machine_now() - STATS_MINUTES_RETENTION).await? > 0 {}
    let mut samples = Vec::new();
    // The first round does not count. It fills the caches, as they are on a server that has been running for a while.
    for round in 0..=runs {
        let (mut overviews, mut lists) = (overviews(&server).await?, lists(&server).await?);
        if round > 0 {
            samples.push(vec![
                ("overview-million-p50", percentile(&mut overviews, 0.5)),
                ("overview-million-p95", percentile(&mut overviews, 0.95)),
                ("overview-million-jobs-p50", percentile(&mut lists, 0.5)),
                ("overview-million-jobs-p95", percentile(&mut lists, 0.95)),
            ]);
        }
    }
    server.stop().await;
    Ok(samples)
}

/// Reads the overview with each window in turn. Returns the times.
async fn overviews(server: &Server) -> anyhow::Result<Vec<f64>> {
    let me = jobs::admin();
    let mut took = Vec::new();
    for window in TimeWindow::ALL.into_iter().cycle().take(REQUESTS) {
        let begun = Instant::now();
        server.backend.overview(&me, window).await?;
        took.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok(took)
}

/// Reads pages of the list of jobs: with each filter in turn, and the page after that one. Returns the times.
async fn lists(server: &Server) -> anyhow::Result<Vec<f64>> {
    let me = jobs::admin();
    let mut filters: Vec<JobFilter> = [None, Some(true), Some(false)]
        .map(|active| JobFilter { active, ..JobFilter::default() })
        .into_iter()
        .collect();
    for text in SEARCHES {
        filters.push(JobFilter { text: Some(text.to_owned()), ..JobFilter::default() });
        filters.push(JobFilter { text: Some(text.to_owned()), active: Some(false), ..JobFilter::default() });
    }
    let mut took = Vec::new();
    for filter in filters.iter().cycle() {
        let mut after = Some(None);
        while let Some(cursor) = after.take() {
            if took.len() == REQUESTS {
                return Ok(took);
            }
            let begun = Instant::now();
            let page = list(server, &me, JobFilter { after: cursor.clone(), ..filter.clone() }).await?;
            took.push(begun.elapsed().as_secs_f64() * 1e3);
            after = page.filter(|_| cursor.is_none()).map(Some);
        }
    }
    Ok(took)
}

/// Reads a page of the list of jobs. Returns the cursor of the next one.
async fn list(server: &Server, me: &RequestUser, filter: JobFilter) -> anyhow::Result<Option<String>> {
    Ok(server.backend.jobs(me, filter).await?.next)
}
