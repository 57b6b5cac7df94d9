//! The execution of one attempt.
//!
//! Everything that happens between the message of an attempt and its final report belongs here: type erasure of jobs,
//! decoding of the input, the timeout, cancellation, panics and the log of the run. Nothing here depends on AMQP or
//! Redis. Reports and log lines go to the trait [`report_sink::ReportSink`], so the same pipeline runs in a worker and
//! in [`testing`](crate::testing).
//!
//! | File | Content |
//! |---|---|
//! | [`registry`] | The job types of a worker, with their types erased |
//! | [`executor`] | The pipeline of one attempt, from its message to its final report |
//! | [`attempt_span`] | The span of one attempt, and its position in the trace of the occurrence |
//! | [`input`] | Decoding of the input, with the path of a field that does not fit |
//! | [`panics`] | Panics turned into failures, with location and backtrace |
//! | [`stop_signal`] | The signal that ends one run from outside |
//! | [`log_writer`] | Numbering and bounding of the log lines of an attempt |
//! | [`capture`] | `tracing` events copied into the log of their run |
//! | [`report_sink`] | The trait reports and log lines go to |

pub(crate) mod attempt_span;
pub(crate) mod capture;
pub(crate) mod executor;
pub(crate) mod input;
pub(crate) mod log_writer;
pub(crate) mod panics;
pub(crate) mod registry;
pub(crate) mod report_sink;
pub(crate) mod stop_signal;
