//! The rules of jobs, on the real services: what is made of missed, overlapping and limited fires.
//!
//! Time is moved by hand. A worker with a gate runs what arrives: a test sees what has started, and says what may end.

mod calendars;
mod claims;
mod fence;
pub(crate) mod harness;
mod head_start;
mod limits;
mod misfires;
mod overlap;
mod retries;
mod unreported_loss;
