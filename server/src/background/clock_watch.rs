//! Aligns this server's clock with PostgreSQL's and detects clock steps on either side.
//!
//! Every server runs this task, because each has its own clock.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    clock::Clock,
    engine::{Service, context::Context},
    store::Store,
};

/// The time between two checks of the machine's clock for a step. A check needs no query.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The time between two queries of PostgreSQL's clock.
const DATABASE_CLOCK_INTERVAL: Duration = Duration::from_secs(60);
/// The smallest difference between the two clocks that is logged as a warning.
const MIN_WARNED_DIFFERENCE: chrono::Duration = chrono::Duration::seconds(2);

/// The background task that watches the clocks.
#[derive(Debug)]
pub struct ClockWatch {
    /// The PostgreSQL store, whose clock is authoritative.
    pub store: Store,
    /// The server's clock, which is aligned with PostgreSQL's.
    pub clock: Clock,
    /// The instant of the last query of PostgreSQL's clock; `None` queries at the next tick.
    pub last_measured: Option<Instant>,
}

impl ClockWatch {
    /// Creates the watch of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self { store: context.store.clone(), clock: context.clock.clone(), last_measured: None }
    }
}

/// The result of one tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ClockWatchReport {
    /// The step of this machine's clock, in milliseconds; 0 if there was none.
    pub step_ms: i64,
    /// True if PostgreSQL's clock was queried.
    pub was_measured: bool,
    /// True if dispatching is suspended after a clock step.
    pub is_held: bool,
}

impl Service for ClockWatch {
    const NAME: &'static str = "clock";
    type Report = ClockWatchReport;

    fn period(&self) -> Duration {
        CLOCK_CHECK_INTERVAL
    }

    async fn tick(&mut self) -> anyhow::Result<ClockWatchReport> {
        let mut report = ClockWatchReport::default();
        if let Some(step) = self.clock.machine_step() {
            report.step_ms = step.num_milliseconds();
            self.last_measured = None;
        }
        if self.last_measured.is_none_or(|at| at.elapsed() >= DATABASE_CLOCK_INTERVAL) {
            let difference = self.store.align(&self.clock).await?;
            if difference.abs() > MIN_WARNED_DIFFERENCE {
                tracing::warn!(
                    difference_ms = difference.num_milliseconds(),
                    "this machine's clock differs from PostgreSQL's by {} ms; PostgreSQL's clock is used, synchronize both",
                    difference.num_milliseconds()
                );
            }
            self.last_measured = Some(Instant::now());
            report.was_measured = true;
        }
        report.is_held = self.clock.held_for().is_some();
        Ok(report)
    }

    fn is_notable(report: &ClockWatchReport) -> bool {
        report.step_ms != 0
    }
}
