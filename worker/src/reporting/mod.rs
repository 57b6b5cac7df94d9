//! Reports and log lines on their way to the broker.
//!
//! Everything between a run that reports something and the broker's confirmation belongs here: ordering, batching,
//! bounds, retries and the durable copy on disk. Runs hand in their reports without waiting, and no report is lost
//! while the broker is unavailable. The content of reports is determined in [`api::outcome`](crate::api::outcome), and
//! publishing itself is in [`net::publisher`](crate::net::publisher).
//!
//! | File | Content |
//! |---|---|
//! | [`reporter`] | The loop that sends reports and log lines in batches |
//! | [`reporter_inbox`] | What runs hand in, until the loop takes it |
//! | [`status_queue`] | The reports that wait, in their order |
//! | [`log_buffer`] | Bounded buffer of the log lines the broker has not confirmed |
//! | [`outbox`] | The durable copy on disk, which survives the process |

pub(crate) mod log_buffer;
pub(crate) mod outbox;
pub(crate) mod reporter;
pub(crate) mod reporter_inbox;
mod status_queue;
