//! Registration, observability and shutdown of a worker.
//!
//! Everything that must keep working while jobs run, block or hang belongs here: heartbeats, cancel requests, health
//! checks and metrics, and the orderly shutdown. Most of it runs on a thread of its own, the [`control_thread`], which
//! also hosts the reporter. Modules of this folder observe runs and end them, but they neither start runs nor interpret
//! their results.
//!
//! | File | Content |
//! |---|---|
//! | [`control_thread`] | The operating system thread that runs heartbeats, reports and cancellations |
//! | [`own_thread`] | An operating system thread with a runtime of its own |
//! | [`task_supervisor`] | Detects inner tasks that end although the worker runs |
//! | [`heartbeat`] | Registration, heartbeats and the renewal of claims |
//! | [`cancel`] | The listener for cancel requests |
//! | [`shutdown`] | Signals and the draining of runs |
//! | [`metrics`] | Prometheus metrics and the health endpoint |

pub(crate) mod cancel;
pub(crate) mod control_thread;
pub(crate) mod heartbeat;
pub(crate) mod metrics;
pub(crate) mod own_thread;
pub(crate) mod shutdown;
pub(crate) mod task_supervisor;
