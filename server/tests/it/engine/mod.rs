//! The rules of jobs, on the real services: what is made of missed, overlapping and limited fires.
//!
//! Time is moved by hand. A worker with a gate runs what arrives: a test sees what has started, and says what may end.

mod calendars;
mod claims;
mod fence;
mod head_start;
pub(crate) mod house;
mod limits;
mod misfires;
mod overlap;
mod retries;
mod unheard;
