//! What the product believes, as functions.
//!
//! A decision takes values and the time, and returns a value. There is no I/O here, no clock, no randomness and no
//! logging: whoever calls does what the answer says. That is why each decision has a table of cases at its foot, and why
//! a reader who wants to know *what* happens need not read *how*.

pub mod auto_disable;
pub mod claim;
pub mod diff;
pub mod duplicates;
pub mod fingerprint;
pub mod liveness;
pub mod lost_run;
pub mod message;
pub mod quarantine;
pub mod retry;
pub mod send_time;
pub mod transition;
