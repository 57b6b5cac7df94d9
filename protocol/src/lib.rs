//! Words that cross a process boundary.
//!
//! Three kinds of reader meet in this crate: the server, the workers (in any language), and the browser. What is
//! written here is therefore a promise to somebody else's program, and the rule of change is the usual one for
//! promises: a field may be added with a default, a field is never repurposed, renamed or removed, and a number once
//! given to a status stays that status for ever. `tests/wire` pins the JSON of every message and event; a changed
//! golden is a changed contract and must be meant. For those who do not read Rust the same is told in `docs/protocol`, with
//! JSON Schemas made from these types (`schema`, behind a feature of that name).
//!
//! Nothing in this crate performs I/O or reads a clock. It compiles to wasm32, so that the form in the browser and the
//! dispatcher on the server judge a schedule by the same code.
//!
//! Reading order: [`id`] and [`status`] name things, [`schedule`] says when, [`calendar`] when not,
//! [`rules`] what to do about missed, overlapping and failing occurrences, [`topology`] and [`message`] are the wire
//! to workers, [`events`] is the wire to browsers, [`views`], [`requests`] and [`page`] are what pages show and send,
//! [`permissions`] says who may, [`failures`] is what waits to be settled, [`duplicates`] finds what was started twice.

pub mod id;
pub mod message;
#[cfg(feature = "schema")]
pub mod schema;
pub mod status;
pub mod topology;
