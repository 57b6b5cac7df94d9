//! Jobs that tests of several topics run.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use milvaion_worker::{Job, JobContext, JobError};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::Semaphore;

/// Counts its runs; each takes as long as its gate is shut.
#[derive(Clone)]
pub(crate) struct CountingJob {
    runs: Arc<AtomicU32>,
    gate: Arc<Semaphore>,
}

impl CountingJob {
    pub(crate) fn new(open: bool) -> Self {
        Self { runs: Arc::default(), gate: Arc::new(Semaphore::new(if open { Semaphore::MAX_PERMITS } else { 0 })) }
    }

    pub(crate) fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    pub(crate) fn open(&self) {
        self.gate.add_permits(Semaphore::MAX_PERMITS / 2);
    }
}

/// Counts its runs; each is too early.
#[derive(Clone, Default)]
pub(crate) struct SnoozingJob(Arc<AtomicU32>);

impl SnoozingJob {
    pub(crate) fn runs(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Job for SnoozingJob {
    const TYPE: &'static str = "snooze";
    const DESCRIPTION: &'static str = "Is always too early.";
    const CONCURRENCY: u16 = 1;
    type Input = EmptyInput;
    type Output = ();

    async fn run(&self, _: &JobContext, _: EmptyInput) -> Result<(), JobError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Err(JobError::snooze(std::time::Duration::from_secs(3_600), "the shop is closed"))
    }
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct EmptyInput {}

impl Job for CountingJob {
    const TYPE: &'static str = "count";
    const DESCRIPTION: &'static str = "Counts its runs.";
    const CONCURRENCY: u16 = 1;
    type Input = EmptyInput;
    type Output = ();

    async fn run(&self, ctx: &JobContext, _: EmptyInput) -> Result<(), JobError> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        ctx.info("counted");
        let _pass = self.gate.acquire().await?;
        Ok(())
    }
}
