//! Wall clock and randomness. No other module reads either of them directly.

use chrono::{DateTime, Utc};
use milvaion_protocol::id::OccurrenceId;

/// Returns the wall clock time.
#[expect(clippy::disallowed_methods, reason = "the only permitted caller")]
pub(crate) fn now() -> DateTime<Utc> {
    Utc::now()
}

/// Returns a new occurrence id.
pub(crate) fn occurrence_id() -> OccurrenceId {
    OccurrenceId::from_parts(now(), rand::random())
}

/// Returns eight random hex digits.
pub(crate) fn random_word() -> String {
    format!("{:08x}", rand::random::<u32>())
}
