//! Wall clock and randomness. No other module reads either of them directly.

use std::time::Duration;

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

/// Returns a random duration between half of `pause` and all of it. The jitter keeps clients that lost their
/// connections at the same moment from reconnecting at the same moment.
pub(crate) fn jitter(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(0.5..=1.0))
}
