//! The decisions of the scheduler as pure functions.
//!
//! A decision takes values and the current time, and returns a value. There is no I/O here, no clock, no randomness and
//! no logging; the caller acts on the result. Each decision therefore has a table of cases in its tests, and a reader
//! can learn *what* the scheduler decides without reading *how* it is carried out.

pub mod alert_delivery;
pub mod alert_message;
pub mod alerting;
pub mod auto_disable;
pub mod bundles;
pub mod claim;
pub mod declarations;
pub mod device;
pub mod diff;
pub mod duplicates;
pub mod file_plan;
pub mod fingerprint;
pub mod heartbeat_watch;
pub mod hello_check;
pub mod liveness;
pub mod log_trim;
pub mod lost_message;
pub mod lost_run;
pub mod message;
pub mod network;
pub mod partitions;
pub mod quarantine;
pub mod retry;
pub mod send_time;
pub mod singletons;
pub mod transition;
