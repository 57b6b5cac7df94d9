//! A job with state: settings and a connection that all its runs share, registered once for each region.
//! `cargo run -p milvaion-worker --example state`.
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use milvaion_worker::{Job, JobContext, JobError, Worker, WorkerError};

/// Stands for a pool of database connections. Like a pool, it is cheap to clone and shared by all clones.
#[derive(Clone, Default)]
struct Pool(Arc<AtomicU64>);

struct Import {
    pool: Pool,
    region: &'static str,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct ImportInput {
    /// Number of rows to import.
    rows: u64,
}

impl Job for Import {
    const TYPE: &'static str = "import";
    const DESCRIPTION: &'static str = "Imports the rows of a region.";
    type Input = ImportInput;
    type Output = u64;

    async fn run(&self, ctx: &JobContext, input: ImportInput) -> Result<u64, JobError> {
        let before = self.pool.0.fetch_add(input.rows, Ordering::Relaxed);
        ctx.info(format!("imported {} rows of {}", input.rows, self.region));
        Ok(before + input.rows)
    }
}

#[tokio::main]
async fn main() -> Result<(), WorkerError> {
    let pool = Pool::default();
    Worker::from_env()?
        .job_with(Import { pool: pool.clone(), region: "eu" }, |options| options.named("import-eu"))
        .job_with(Import { pool, region: "us" }, |options| options.named("import-us").concurrency(2))
        .run()
        .await
}
