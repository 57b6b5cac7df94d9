//! Job types that count their runs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use milvaion_worker::{Job, JobContext, JobError};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::Semaphore;

/// A job that counts its runs, which wait while the gate is closed.
#[derive(Clone, Debug)]
pub struct CountingJob {
    runs: Arc<AtomicU32>,
    gate: Arc<Semaphore>,
}

impl CountingJob {
    /// Returns a job whose gate is open or closed.
    #[must_use]
    pub fn new(open: bool) -> Self {
        Self { runs: Arc::default(), gate: Arc::new(Semaphore::new(if open { Semaphore::MAX_PERMITS } else { 0 })) }
    }

    /// Returns the number of runs that started.
    #[must_use]
    pub fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    /// Opens the gate for all runs.
    pub fn open(&self) {
        self.gate.add_permits(Semaphore::MAX_PERMITS / 2);
    }
}

impl Job for CountingJob {
    const TYPE: &'static str = "count";
    const DESCRIPTION: &'static str = "Counts its runs.";
    const CONCURRENCY: u16 = 1;
    type Input = EmptyInput;
    type Output = ();

    async fn run(&self, ctx: &JobContext, _: EmptyInput) -> Result<(), JobError> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        ctx.info("counted");
        let _permit = self.gate.acquire().await?;
        Ok(())
    }
}

/// A job that counts its runs, each of which snoozes for an hour.
#[derive(Clone, Debug, Default)]
pub struct SnoozingJob(Arc<AtomicU32>);

impl SnoozingJob {
    /// Returns the number of runs that started.
    #[must_use]
    pub fn runs(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Job for SnoozingJob {
    const TYPE: &'static str = "snooze";
    const DESCRIPTION: &'static str = "Snoozes in every attempt.";
    const CONCURRENCY: u16 = 1;
    type Input = EmptyInput;
    type Output = ();

    async fn run(&self, _: &JobContext, _: EmptyInput) -> Result<(), JobError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Err(JobError::snooze(Duration::from_secs(3_600), "the shop is closed"))
    }
}

/// An input without fields.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct EmptyInput {}
