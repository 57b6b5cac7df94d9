//! The execution of one attempt, without broker and Redis.
//!
//! | File | Content |
//! |---|---|
//! | [`registry`] | The job types of a worker, with their types erased |
//! | [`executor`] | The pipeline of one attempt, from its message to its final report |
//! | [`input`] | Decoding of the input, with the path of a field that does not fit |
//! | [`panics`] | Panics turned into failures, with location and backtrace |
//! | [`stop_signal`] | The signal that ends one run from outside |
//! | [`log_writer`] | Numbering and bounding of the log lines of an attempt |
//! | [`capture`] | `tracing` events copied into the log of their run |
//! | [`report_sink`] | The trait reports and log lines go to |

pub(crate) mod capture;
pub(crate) mod executor;
pub(crate) mod input;
pub(crate) mod log_writer;
pub(crate) mod panics;
pub(crate) mod registry;
pub(crate) mod report_sink;
pub(crate) mod stop_signal;
