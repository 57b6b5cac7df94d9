//! Singleton loops: code that exactly one instance of the fleet runs, again and again, at intervals down to milliseconds.
//!
//! A job is due at most once a second, and each of its runs is a row in PostgreSQL and a message on the broker. For a loop
//! that polls a queue or refreshes a price ten times a second, that history has no readers and its cost is most of the
//! work. A singleton loop has neither. Every instance that offers the loop competes for one lease in Redis; the holder, the
//! leader, runs the loop in its own process, and the others wait. RabbitMQ, PostgreSQL and the server are not involved, so
//! a worker with loops and without job types needs Redis only.
//!
//! Two instances must not run the loop at once, and four rules serve that:
//!
//! - The lease counts on the monotonic clock of this process, from *before* the request that renewed it. It therefore ends
//!   here before it ends in Redis, whatever the network does.
//! - A run is cancelled after two thirds of the lease without a renewal, and dropped after five sixths. The check is part of
//!   each poll of the run, so a process that was frozen past its lease does not continue the run when it is thawed.
//! - At shutdown, and when a user disables the loop or asks for a hand-over, the lease is released only after the run has
//!   ended, and renewed until then.
//! - A leader that cannot reach Redis retries at once instead of backing off, because its own backoff could cost it the
//!   lease. Followers back off with jitter, so that they do not meet at a Redis that has just started.
//!
//! A lease in one Redis is best effort all the same: a Redis that lost its data grants it again while the former leader may
//! run until its next heartbeat. The epoch of the [`Tick`](crate::Tick) is the guard for code that must not tolerate even
//! that.
//!
//! The election and the timers of all loops have an operating system thread of their own, so that code that blocks the
//! runtime of the program does not cost the lease. The runs themselves are tasks of the program's runtime.
//!
//! | File | Content |
//! |---|---|
//! | [`builder`] | The declaration of a loop in code |
//! | [`options`] | The options of a loop, their bounds, and their overrides by name |
//! | [`pace`] | The due times of a loop, without I/O and without a clock |
//! | [`term`] | The deadlines of a lease, and the check that ends a run at its deadline |
//! | [`tick`] | The context of one run |
//! | [`statistics`] | The counters and percentiles of the leader |
//! | [`lease_store`] | The lease in Redis |
//! | [`loop_clock`], [`loop_timer`] | The clock of a loop, and its timer |
//! | [`loop_runner`] | One loop: heartbeats, ticks and runs |
//! | [`loop_thread`] | The thread of all loops of a worker |

pub(crate) mod builder;
pub(crate) mod lease_store;
pub(crate) mod loop_clock;
pub(crate) mod loop_runner;
pub(crate) mod loop_thread;
pub(crate) mod loop_timer;
pub(crate) mod options;
pub(crate) mod pace;
pub(crate) mod statistics;
pub(crate) mod term;
pub(crate) mod tick;

use std::sync::Arc;

use futures::future::BoxFuture;

use crate::{JobError, Tick};

/// The code of a loop, with its Rust types erased.
pub(crate) type LoopBody = Arc<dyn Fn(Tick) -> BoxFuture<'static, Result<(), JobError>> + Send + Sync>;

/// A declared loop.
#[derive(Clone)]
pub(crate) struct SingletonLoop {
    /// The name, which all instances that offer the loop share.
    pub(crate) name: Arc<str>,
    /// The rhythm.
    pub(crate) pace: pace::LoopPace,
    /// The options.
    pub(crate) options: options::LoopOptions,
    /// The code.
    pub(crate) body: LoopBody,
}
