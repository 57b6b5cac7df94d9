//! The clock of this crate, and the ids that are made from it.

use std::time::Duration;

use chrono::{DateTime, Utc};
use milvaion_protocol::id::OccurrenceId;

/// Returns the wall clock time.
#[expect(clippy::disallowed_methods, reason = "the one place of this crate that reads the clock")]
pub(crate) fn now() -> DateTime<Utc> {
    Utc::now()
}

/// Creates the id of a new occurrence.
pub(crate) fn occurrence_id() -> OccurrenceId {
    OccurrenceId::from_parts(now(), rand::random())
}

/// Adds a duration to the wall clock time; a duration beyond the calendar ends at its last instant.
pub(crate) fn after(delay: Duration) -> DateTime<Utc> {
    let delay = chrono::Duration::from_std(delay).unwrap_or(chrono::Duration::MAX);
    now().checked_add_signed(delay).unwrap_or(DateTime::<Utc>::MAX_UTC)
}
