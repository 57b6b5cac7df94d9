//! The server's tests, on real services; a few need none.
//!
//! They are one program. Each file beside this folder would be one more, with the whole server in it, and linking
//! twenty times what is the same server costs a minute and three gigabytes. Nothing is lost by it: nextest runs each
//! test in a process of its own, and each has a database and prefixes of its own (see [`common`]), so that they may
//! share one under plain `cargo test`. What belongs to the whole process is therefore not a test's to change: the
//! global subscriber, say, the environment, or the working directory.
//!
//! One topic is one module: `cargo nextest run -p server -E 'test(/^lease::/)'`.

mod asked;
mod breaker;
mod captured;
mod cron_cli;
mod dispatch;
mod duplicates;
mod engine;
mod failures;
mod growth;
mod invariants;
mod journey;
mod lease;
mod outages;
mod pause;
mod people;
mod python_worker;
mod recovery;
mod refused;
mod retention;
mod status;
mod versions;
mod weak_spots;
mod zombies;
