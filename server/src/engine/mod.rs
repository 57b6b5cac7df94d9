//! The engine: what every part of the server shares, and the supervisor that runs its services.
//!
//! A *service* is everything that the server does by itself: a loop with a period, a consumer of a queue, a connection
//! that is kept open. Nothing else is spawned when the server starts, except the thread of the timer, which only wakes
//! tasks; so the supervisor knows every one of them. It times them, restarts them after a panic, counts what went wrong for
//! the server's health, and stops them in order.
//!
//! A service with a period separates *working* from *waiting*. Working is a tick: an ordinary function without input that
//! reads the current state, moves it one step towards the wanted state, and returns a report of what it did. A tick is
//! safe to run at any moment, twice in a row, or on two servers at once, and it may be dropped at any await point, as if
//! the process had crashed there. A test therefore calls it directly and does not wait for time to pass. Waiting is done
//! by the driver: it ticks when an activator is notified, and otherwise once per period. The period is the safety net and
//! carries jitter, so that servers do not tick in step. An activation is only a hint that there is work; it never carries
//! the work itself.
//!
//! Logs and pages call a service a background task, because to an operator PostgreSQL, Redis and RabbitMQ are services.
//!
//! To add a service, write a file with a struct that implements [`Service`], test its tick against a real database, and
//! add a line to the list in `lifecycle`. The log, the restart and the health follow from that line.

pub mod activators;
mod bundle_planner;
pub mod context;
pub mod delivery_log;
pub mod dispatch_pulse;
pub mod driver;
pub mod leadership;
pub mod observations;
mod report_text;
pub mod sender;
pub mod status;
pub mod supervisor;
pub mod thread;

use std::{fmt::Debug, time::Duration};

use serde::Serialize;
use tokio::time::Instant;

/// The servers that run a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunsOn {
    /// Every server.
    EveryServer,
    /// The server that leads, and every server while none can lead.
    Leader,
}

/// A service with a period.
pub trait Service: Send + 'static {
    /// The service's name in logs and in the health report.
    const NAME: &'static str;
    /// The servers that run it.
    const RUNS_ON: RunsOn = RunsOn::EveryServer;
    /// The longest time for a tick. A longer one is dropped and counts as failed.
    const TIME_LIMIT: Duration = Duration::from_secs(20);
    /// The report that a tick returns. The log has its fields that are not zero, false or empty.
    type Report: Debug + Serialize + Send;

    /// Returns the longest time between two ticks. The driver adds jitter.
    fn period(&self) -> Duration;

    /// Returns the time until the next tick, if it is known and shorter than a period. The driver adds no jitter to it.
    fn next_tick_in(&self) -> Option<Duration> {
        None
    }

    /// Runs one tick.
    fn tick(&mut self) -> impl Future<Output = anyhow::Result<Self::Report>> + Send;

    /// Returns the end of a slice that begins now, after a quarter of the time limit. A tick that may have much to do
    /// returns then, with [`has_more`](Self::has_more), so that a large backlog does not exceed the limit.
    fn slice_end() -> Instant {
        Instant::now() + Self::TIME_LIMIT / 4
    }

    /// Returns true if a tick left work, so that the next one follows at once.
    fn has_more(_report: &Self::Report) -> bool {
        false
    }

    /// Returns true if a report is logged at info level.
    fn is_notable(report: &Self::Report) -> bool;
}
