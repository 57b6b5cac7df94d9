//! The one place that reads the wall clock and asks for randomness.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

/// The wall clock, for people and for the server; durations are taken from `Instant` instead.
#[expect(clippy::disallowed_methods, reason = "this is the place the ban leads to")]
pub(crate) fn now() -> DateTime<Utc> {
    Utc::now()
}

/// A name for this process: the group, and eight hex digits that tell it from its siblings and predecessors.
pub(crate) fn instance_id(worker_id: &str) -> String {
    format!("{worker_id}-{:08x}", rand::random::<u32>())
}

/// An id nobody has used.
pub(crate) fn random_id() -> Uuid {
    uuid::Builder::from_random_bytes(rand::random()).into_uuid()
}

/// Somewhere between half of `pause` and all of it, so that a fleet that fell together does not rise together.
pub(crate) fn jitter(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(0.5..=1.0))
}
