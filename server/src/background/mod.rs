//! The background tasks of the server.
//!
//! Every task has the same structure, which separates *working* from *waiting*. Working is a tick: an ordinary function
//! without input that reads the current state, moves it one step towards the wanted state, and returns a report of what
//! it did. A tick is safe to run at any moment, twice in a row, or on two servers at once. A test therefore calls it
//! directly and does not wait for time to pass. Waiting is done by the driver: it ticks when an activator is notified,
//! and otherwise once per period. The period is the safety net and carries jitter, so that servers do not tick in step.
//! An activation is only a hint that there is work; it never carries the work itself.
//!
//! The dispatcher computes the instant of its next tick itself, so it has its own loop. Its tick follows the same
//! rules.
//!
//! To add a task, write a file with a struct that implements [`BackgroundTask`], test its tick against a real database,
//! and start it in `lifecycle`. The driver then logs it, restarts it after a panic and reports it in the server's
//! health.

pub mod activators;
pub mod auto_disable;
pub mod cancellations;
pub mod clock_watch;
pub mod dispatcher;
pub mod driver;
pub mod due_index;
pub mod lease;
pub mod lost_messages;
pub mod lost_runs;
pub mod maintenance;
pub mod partition_analyze;
pub mod presence;
pub mod republisher;
pub mod sender;
pub mod slot_granter;
pub mod task_status;

use std::{fmt::Debug, time::Duration};

/// A periodic task of the server.
pub trait BackgroundTask: Send + 'static {
    /// The task's name in logs and in the health report.
    const NAME: &'static str;
    /// The report that a tick returns.
    type Report: Debug + Send;

    /// Returns the longest time between two ticks. The driver adds jitter.
    fn period(&self) -> Duration;

    /// Returns the time until the next tick, if it is known and shorter than a period. The driver adds no jitter to it.
    fn next_tick_in(&self) -> Option<Duration> {
        None
    }

    /// Runs one tick.
    fn tick(&mut self) -> impl Future<Output = anyhow::Result<Self::Report>> + Send;

    /// Returns true if a report is logged at info level.
    fn is_notable(report: &Self::Report) -> bool;
}
