//! What the server does by itself.
//!
//! Every loop has the same anatomy, and it separates *waiting* from *working*. Working is a tick: an ordinary function
//! that takes no input, looks at the world, moves it one step towards what it should be, and says in a struct what it
//! did. A tick may be run at any moment, twice, or on two servers at once, and nothing breaks; so a test calls it
//! directly, without time passing. Waiting is the driver's: a wake-up from somebody who knows that there is work, and a
//! period as the safety net, jittered so that servers do not march in step. A wake-up is a hint; it says *look*, never
//! *what to do*.
//!
//! The dispatcher waits differently, for an instant that it works out itself, so it has its own loop; its tick is the
//! same kind of thing.
//!
//! To add a task: a file with a struct that implements [`BackgroundTask`], its tick tested on a real database, a line in
//! `lifecycle`, and nothing else: the driver logs it, watches over it and shows it in the health of the server.

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

/// One thing the server does again and again.
pub trait BackgroundTask: Send + 'static {
    /// What it is called in logs and on the board.
    const NAME: &'static str;
    /// What a tick says it did.
    type Report: Debug + Send;

    /// How long the driver waits at most between ticks.
    fn period(&self) -> Duration;

    /// How soon the next tick is wanted, where that is known and sooner than a period. It is kept exactly.
    fn next_tick_in(&self) -> Option<Duration> {
        None
    }

    /// Does it once.
    fn tick(&mut self) -> impl Future<Output = anyhow::Result<Self::Report>> + Send;

    /// Whether a report is worth a line in the log.
    fn is_notable(report: &Self::Report) -> bool;
}
