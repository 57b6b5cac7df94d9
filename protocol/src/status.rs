//! The statuses of an occurrence and the transitions between them.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The status of an occurrence. The numbers are the contract on the wire and in the database.
///
/// ```text
///              ┌──────── next attempt ────────┐
///              ▼                              │
///  ──► Queued(0) ─────────► Running(1) ───────┤
///        │    │               │  ▲   │        │
///        │    │    heartbeat  ▼  │   │        │
///        │    │      lost  Unknown(6)├────────┘
///        │    │               │      │
///        │    └──── late ─────┴──────┴──► Completed(2) │ Failed(3) │ Cancelled(4) │ TimedOut(5)
///        │
///  ──► Skipped(7)   final from the start: skipped by the overlap or misfire policy, with a note
/// ```
///
/// `Queued → Completed` is legal: reports travel in batches, and the *Running* report may arrive second. A final status
/// never changes, whatever is reported later; the only statement that writes the column repeats this rule in its
/// `WHERE` clause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(i16)]
pub enum OccurrenceStatus {
    /// Committed. Its message is on the way to a worker or in the worker's queue.
    Queued = 0,
    /// Claimed by a worker instance, which runs it.
    Running = 1,
    /// Ended successfully.
    Completed = 2,
    /// Ended with an error and with no attempt left.
    Failed = 3,
    /// Ended on request.
    Cancelled = 4,
    /// Ended by its timeout.
    TimedOut = 5,
    /// Lost: the worker's heartbeats stopped. A late report of the same attempt may still set the result.
    Unknown = 6,
    /// Never started, because a policy skipped it. The row names the policy.
    Skipped = 7,
}

/// Every status, in the order of the pages.
pub const ALL_STATUSES: [OccurrenceStatus; 8] = {
    use OccurrenceStatus as S;
    [S::Queued, S::Running, S::Completed, S::Failed, S::Cancelled, S::TimedOut, S::Unknown, S::Skipped]
};

impl OccurrenceStatus {
    /// Returns the number on the wire.
    #[must_use]
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// Returns the status of a number on the wire, if there is one.
    #[must_use]
    pub const fn from_code(code: i16) -> Option<Self> {
        if code < 0 || code as usize >= ALL_STATUSES.len() { None } else { Some(ALL_STATUSES[code as usize]) }
    }

    /// Returns true if the status never changes again.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Queued | Self::Running | Self::Unknown)
    }

    /// Returns true if an occurrence with this status may change to `next`. The guarded transition in the store allows
    /// the same pairs.
    #[must_use]
    pub const fn can_become(self, next: Self) -> bool {
        use OccurrenceStatus as S;
        matches!(
            (self, next),
            (S::Queued, S::Running)
                | (S::Running, S::Unknown | S::Queued)
                | (S::Unknown, S::Running | S::Queued)
                | (S::Queued | S::Running | S::Unknown, S::Completed | S::Failed | S::Cancelled | S::TimedOut)
        )
    }

    /// Returns the name for display.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Queued => "Queued",
            Self::Running => "Running",
            Self::Completed => "Completed",
            Self::Failed => "Failed",
            Self::Cancelled => "Cancelled",
            Self::TimedOut => "Timed out",
            Self::Unknown => "Unknown",
            Self::Skipped => "Skipped",
        }
    }

    /// Returns the name in addresses and filters.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timed-out",
            Self::Unknown => "unknown",
            Self::Skipped => "skipped",
        }
    }

    /// Returns the status of a [`slug`](Self::slug).
    #[must_use]
    pub fn from_slug(slug: &str) -> Option<Self> {
        ALL_STATUSES.into_iter().find(|status| status.slug() == slug)
    }
}

impl fmt::Display for OccurrenceStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

impl Serialize for OccurrenceStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i16(self.code())
    }
}

impl<'de> Deserialize<'de> for OccurrenceStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let code = crate::lenient::code(deserializer)?;
        Self::from_code(code)
            .ok_or_else(|| serde::de::Error::custom(format!("{code} is not an occurrence status: expected 0 to 7")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_the_contract() {
        let codes: Vec<i16> = ALL_STATUSES.iter().map(|status| status.code()).collect();
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(OccurrenceStatus::from_code(8), None);
        assert_eq!(OccurrenceStatus::from_code(-1), None);
    }

    #[test]
    fn final_status_never_changes() {
        for from in ALL_STATUSES.into_iter().filter(|status| status.is_final()) {
            for to in ALL_STATUSES {
                assert!(!from.can_become(to), "{from} must not become {to}");
            }
        }
    }

    #[test]
    fn no_status_becomes_skipped_or_itself() {
        for from in ALL_STATUSES {
            assert!(!from.can_become(OccurrenceStatus::Skipped));
            assert!(!from.can_become(from));
        }
    }

    #[test]
    fn every_open_status_can_end() {
        for from in ALL_STATUSES.into_iter().filter(|status| !status.is_final()) {
            for to in [OccurrenceStatus::Completed, OccurrenceStatus::Failed, OccurrenceStatus::Cancelled] {
                assert!(from.can_become(to), "{from} must be able to become {to}");
            }
        }
    }

    #[test]
    fn slugs_round_trip() {
        for status in ALL_STATUSES {
            assert_eq!(OccurrenceStatus::from_slug(status.slug()), Some(status));
        }
    }
}
