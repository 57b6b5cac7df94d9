//! Wall clock and randomness. No other module reads either of them directly.

use chrono::{DateTime, Utc};
use uuid::Uuid;

/// Returns the wall clock time, for users and for the server. Durations are measured with `Instant` instead.
#[expect(clippy::disallowed_methods, reason = "the only permitted caller")]
pub(crate) fn now() -> DateTime<Utc> {
    Utc::now()
}

/// Returns the name of this process: the worker id and eight random hex digits, which distinguish it from other
/// instances and from earlier processes.
pub(crate) fn instance_id(worker_id: &str) -> String {
    format!("{worker_id}-{:08x}", rand::random::<u32>())
}

/// Returns a random UUID.
pub(crate) fn random_id() -> Uuid {
    uuid::Builder::from_random_bytes(rand::random()).into_uuid()
}

/// Returns a random number from 0 to 1, for the jitter of a delay.
pub(crate) fn jitter() -> f64 {
    rand::random()
}
