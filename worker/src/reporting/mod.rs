//! Reports and log lines on their way to the broker.
//!
//! | File | Content |
//! |---|---|
//! | [`reporter`] | The loop that sends reports and log lines in batches |
//! | [`log_buffer`] | Bounded buffer of the log lines the broker has not confirmed |
//! | [`outbox`] | The same on disk, so that it survives the process |

pub(crate) mod log_buffer;
pub(crate) mod outbox;
pub(crate) mod reporter;
