//! The due times of a job: cron expressions, time zones, blackout calendars, rules, and the arithmetic of intervals and
//! misfires.
//!
//! Everything here is a pure function of its arguments: no I/O, no clock, no randomness. The server's dispatcher, the
//! preview, the command line and the forms in the browser call the same code, so the due times that a user sees are the
//! ones that the dispatcher uses. For the browser the crate compiles to wasm32.
//!
//! [`schedule::Schedule`], [`rules::Rules`] and [`calendar::Calendar`] are also stored as JSON in PostgreSQL and sent
//! by forms. The rule of change is that of `milvaion-protocol`: a field may be added with a default, never repurposed.
//! `tests/wire` of `milvaion-api` has their goldens.
//!
//! Reading order: [`schedule`] defines the kinds of schedule. [`cron`] parses and matches an expression, and the
//! private `zone` maps its local times to instants. [`calendar`] defines blackouts. [`rules`] holds the policies for
//! blackouts, misfires, the start limit, overlap, concurrency, retries and lost runs. [`due`] combines them: it computes
//! the next due time and decides what happens at one. [`clock_change`] describes the effect of clock changes, and
//! [`builder`] shows common expressions as a form. [`instant`] says which instants a definition may have, [`printable`]
//! which characters a name may have, and [`field_error`] is the error type of validation.

pub mod builder;
pub mod calendar;
pub mod clock_change;
pub mod cron;
pub mod due;
pub mod field_error;
pub mod instant;
pub mod printable;
pub mod rules;
pub mod schedule;
mod zone;
