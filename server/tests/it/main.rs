//! The server's tests, on real services; a few need none.
//!
//! They are one program. Each file beside this folder would be one more, with the whole server in it, and linking
//! twenty times what is the same server costs a minute and three gigabytes. Nothing is lost by it: nextest runs each
//! test in a process of its own, and each has a database and prefixes of its own (see [`common`]), so that they may
//! share one under plain `cargo test`. What belongs to the whole process is therefore not a test's to change: the
//! global subscriber, say, the environment, or the working directory.
//!
//! One topic is one module: `cargo nextest run -p server -E 'test(/^lease::/)'`.

mod auto_disable;
mod cluster_pause;
mod cron_cli;
mod dispatch;
mod duplicates;
mod engine;
mod failures;
mod invariants;
mod journey;
mod lease;
mod log_capture;
mod lost_runs;
mod manual_run;
mod outages;
mod partition_analyze;
mod python_worker;
mod recovery;
mod regressions;
mod rejected_messages;
mod retention;
mod status;
mod users;
mod versions;
