//! The rules of jobs on real services: misfires, overlaps, limits, retries and blackouts.
//!
//! The clock is manual, and the worker's runs wait at a gate: a test sees which runs have started, and ends them.

mod calendars;
mod claims;
mod clock_ahead;
mod fence;
mod head_start;
mod limits;
mod misfires;
mod overlap;
mod retries;
mod unreported_loss;
