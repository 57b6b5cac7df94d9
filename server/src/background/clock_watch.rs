//! Keeps this server's clock with PostgreSQL's, and notices when either was set.
//!
//! Every server does this for itself: clocks are its own.

use std::time::Duration;

use tokio::time::Instant;

use super::Task;
use crate::{clock::Clock, store::Store};

/// How often the machine's clock is looked at; that costs nothing.
const LOOK: Duration = Duration::from_secs(1);
/// How often PostgreSQL is asked.
const MEASURE: Duration = Duration::from_secs(60);
/// From which difference on people are told to mend a clock.
const WORTH_TELLING: chrono::Duration = chrono::Duration::seconds(2);

/// The task.
#[derive(Debug)]
pub struct ClockWatch {
    /// Whose clock counts.
    pub store: Store,
    /// Which follows it.
    pub clock: Clock,
    /// When PostgreSQL was asked last; none means that it is to be asked now.
    pub measured: Option<Instant>,
}

/// What one tick saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// By how many milliseconds this machine's clock was set.
    pub step_ms: i64,
    /// Whether PostgreSQL was asked.
    pub asked: bool,
    /// Whether dispatching is held.
    pub is_held: bool,
}

impl Task for ClockWatch {
    const NAME: &'static str = "clock";
    type Report = Measured;

    fn period(&self) -> Duration {
        LOOK
    }

    async fn tick(&mut self) -> anyhow::Result<Measured> {
        let mut seen = Measured::default();
        if let Some(step) = self.clock.machine_step() {
            seen.step_ms = step.num_milliseconds();
            self.measured = None;
        }
        if self.measured.is_none_or(|at| at.elapsed() >= MEASURE) {
            let apart = self.store.align(&self.clock).await?;
            if apart.abs() > WORTH_TELLING {
                tracing::warn!(
                    difference_ms = apart.num_milliseconds(),
                    "this machine's clock differs from PostgreSQL's, which is the one that counts"
                );
            }
            self.measured = Some(Instant::now());
            seen.asked = true;
        }
        seen.is_held = self.clock.held_for().is_some();
        Ok(seen)
    }

    fn is_news(report: &Measured) -> bool {
        report.step_ms != 0
    }
}
