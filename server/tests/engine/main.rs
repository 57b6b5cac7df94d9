//! The rules of jobs, on the real services: what is made of missed, overlapping and limited fires.
//!
//! Time is moved by hand. A worker with a gate runs what arrives: a test sees what has started, and says what may end.

#[path = "../common/mod.rs"]
mod common;

mod calendars;
mod claims;
mod fence;
mod house;
mod limits;
mod misfires;
mod overlap;
mod retries;
