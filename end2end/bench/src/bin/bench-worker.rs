//! The worker that `make bench` measures with. Its only job type does nothing, and only the worker's capacity limits
//! its concurrency.
//!
//! With `BENCH_LOOPS`, it also has this many singleton loops, which run every 100 ms and do nothing either. When it stops, it
//! then prints the number of their runs, and the median and the 99th percentile of their lateness in milliseconds, as
//! `loops 12345 0.61 1.22`.
//!
//! When it stops, it prints the number of runs it started as `runs 12345`. If every occurrence is completed and there
//! are as many runs as occurrences, none ran twice. `MILVAION_CAPACITY` sets its concurrency; its other settings are
//! those of any worker.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use milvaion_worker::{Job, JobContext, JobError, Worker, WorkerConfig, WorkerError};

#[derive(Clone, Default)]
struct NoopJob {
    runs: Arc<AtomicU64>,
}

/// An input without fields.
#[derive(serde::Deserialize, schemars::JsonSchema)]
struct EmptyInput {}

impl Job for NoopJob {
    const TYPE: &'static str = "noop";
    const DESCRIPTION: &'static str = "Does nothing.";
    // The maximum, so that the worker's capacity is the limit.
    const CONCURRENCY: u16 = 1000;
    type Input = EmptyInput;
    type Output = ();

    async fn run(&self, _: &JobContext, _: EmptyInput) -> Result<(), JobError> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), WorkerError> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,lapin=error,redis=error"));
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(std::io::stderr).init();
    let noop = NoopJob::default();
    let mut worker = Worker::builder().config(WorkerConfig::from_env()?).job(noop.clone());
    let loops: u32 = std::env::var("BENCH_LOOPS").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let lateness = Arc::<Mutex<Vec<f64>>>::default();
    for number in 1..=loops {
        let samples = lateness.clone();
        let period = Duration::from_millis(100);
        worker = worker.singleton(format!("bench-{number:02}")).fixed_rate(period).run(move |tick| {
            let late = tick.elapsed().as_secs_f64() * 1000.0;
            samples.lock().unwrap_or_else(PoisonError::into_inner).push(late);
            async { Ok(()) }
        });
    }
    worker.build()?.run().await?;
    let mut samples = std::mem::take(&mut *lateness.lock().unwrap_or_else(PoisonError::into_inner));
    samples.sort_by(f64::total_cmp);
    let percentile = |percent: usize| samples.get((samples.len() * percent).div_ceil(100).saturating_sub(1));
    if let (Some(p50), Some(p99)) = (percentile(50), percentile(99)) {
        println!("loops {} {p50:.3} {p99:.3}", samples.len());
    }
    println!("runs {}", noop.runs.load(Ordering::Relaxed));
    Ok(())
}
