//! What keeps a worker registered, observable and stoppable, whatever its jobs do.
//!
//! | File | Content |
//! |---|---|
//! | [`control_thread`] | The operating system thread of heartbeats, reports and cancellations |
//! | [`heartbeat`] | Registration, heartbeats and the renewal of claims |
//! | [`cancel`] | The listener for requests to cancel |
//! | [`shutdown`] | Signals and the draining of runs |
//! | [`metrics`] | Prometheus metrics and the health endpoint |

pub(crate) mod cancel;
pub(crate) mod control_thread;
pub(crate) mod heartbeat;
pub(crate) mod metrics;
pub(crate) mod shutdown;
