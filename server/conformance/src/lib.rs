//! The conformance kit: judges whether a worker in any language follows `docs/protocol`.
//!
//! The kit plays the server's side of the protocol against a real worker process, on a real RabbitMQ and a real Redis, with a
//! prefix of its own for each case. It sends deliveries and injects faults, and judges what the worker reports, runs,
//! acknowledges and claims. It does not depend on the server: a rule that both had misread in the same way could not be
//! found by comparing them.
//!
//! A worker under test offers a few job types with known behaviour, and writes a line to a file as each run begins
//! (`docs/conformance.md`). The file proves what reports cannot: a run that started twice, or that started and was never
//! reported.
//!
//! Reading order: `context` is everything that one case uses, with `broker` as the server's side, `proxy` as the network with
//! its faults, and `worker_process`. `cases` has the catalogue, and one module for each group of cases. `runner` runs them
//! side by side, and `verdict` prints the verdicts.

mod arguments;
mod broker;
mod cases;
mod clock;
mod context;
mod failure;
mod proxy;
mod reading;
mod record;
mod runner;
mod settings;
mod verdict;
mod worker_process;

pub use arguments::{ConformanceArguments, ConformanceLevel};
pub use failure::{CaseFailure, ConformanceError};
pub use runner::{list, run, run_and_print};
pub use settings::{ConformanceSettings, KitService, RestartFuture, ServiceControl};
pub use verdict::{CaseVerdict, ConformanceReport};
