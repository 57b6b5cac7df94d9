//! Keeps this server's clock with PostgreSQL's, and notices when either was set.
//!
//! Every server does this for itself: clocks are its own.

use std::time::Duration;

use tokio::time::Instant;

use super::BackgroundTask;
use crate::{clock::Clock, store::Store};

/// How often the machine's clock is looked at; that costs nothing.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How often PostgreSQL is asked.
const DATABASE_CLOCK_INTERVAL: Duration = Duration::from_secs(60);
/// From which difference on people are told to mend a clock.
const MIN_WARNED_DIFFERENCE: chrono::Duration = chrono::Duration::seconds(2);

/// The task.
#[derive(Debug)]
pub struct ClockWatch {
    /// Whose clock counts.
    pub store: Store,
    /// Which follows it.
    pub clock: Clock,
    /// When PostgreSQL was asked last; none means that it is to be asked now.
    pub last_measured: Option<Instant>,
}

/// What one tick saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockWatchReport {
    /// By how many milliseconds this machine's clock was set.
    pub step_ms: i64,
    /// Whether PostgreSQL was asked.
    pub was_measured: bool,
    /// Whether dispatching is held.
    pub is_held: bool,
}

impl BackgroundTask for ClockWatch {
    const NAME: &'static str = "clock";
    type Report = ClockWatchReport;

    fn period(&self) -> Duration {
        CLOCK_CHECK_INTERVAL
    }

    async fn tick(&mut self) -> anyhow::Result<ClockWatchReport> {
        let mut seen = ClockWatchReport::default();
        if let Some(step) = self.clock.machine_step() {
            seen.step_ms = step.num_milliseconds();
            self.last_measured = None;
        }
        if self.last_measured.is_none_or(|at| at.elapsed() >= DATABASE_CLOCK_INTERVAL) {
            let apart = self.store.align(&self.clock).await?;
            if apart.abs() > MIN_WARNED_DIFFERENCE {
                tracing::warn!(
                    difference_ms = apart.num_milliseconds(),
                    "this machine's clock differs from PostgreSQL's, which is the one that counts"
                );
            }
            self.last_measured = Some(Instant::now());
            seen.was_measured = true;
        }
        seen.is_held = self.clock.held_for().is_some();
        Ok(seen)
    }

    fn is_notable(report: &ClockWatchReport) -> bool {
        report.step_ms != 0
    }
}
