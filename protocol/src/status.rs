//! What can be true of an occurrence, and what can become of it.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The state of an occurrence. The numbers are the wire contract and the database's.
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
///  ──► Skipped(7)   born final: the overlap or misfire policy said no, and says so
/// ```
///
/// `Queued → Completed` is legal: reports travel in batches, and the one that said *Running* may come second. A final
/// state never changes, whatever is reported later; the database repeats this rule in the `WHERE` of the only statement
/// that writes the column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(i16)]
pub enum OccurrenceStatus {
    /// Committed; its message is on the way to a worker or waits in the worker's queue.
    Queued = 0,
    /// A worker instance has claimed it and runs it.
    Running = 1,
    /// Ended well.
    Completed = 2,
    /// Ended with an error, with no attempt left.
    Failed = 3,
    /// Ended because somebody asked for it.
    Cancelled = 4,
    /// Ended because its time was up.
    TimedOut = 5,
    /// The worker's heartbeat was lost; a late report of the same attempt may still settle it.
    Unknown = 6,
    /// Never started, by policy; the row says which.
    Skipped = 7,
}

/// Every status, in the order pages list them.
pub const ALL_STATUSES: [OccurrenceStatus; 8] = {
    use OccurrenceStatus as S;
    [S::Queued, S::Running, S::Completed, S::Failed, S::Cancelled, S::TimedOut, S::Unknown, S::Skipped]
};

impl OccurrenceStatus {
    /// The wire number.
    #[must_use]
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// The status of a wire number, if there is one.
    #[must_use]
    pub const fn from_code(code: i16) -> Option<Self> {
        if code < 0 || code as usize >= ALL_STATUSES.len() { None } else { Some(ALL_STATUSES[code as usize]) }
    }

    /// True once nothing more can happen.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Queued | Self::Running | Self::Unknown)
    }

    /// Whether an occurrence in this state may be moved to `next`. The guarded transition in the store allows exactly
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

    /// The word people read.
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

    /// The word in addresses and filters.
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

    /// The status behind a [`slug`](Self::slug).
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
        let code = i16::deserialize(deserializer)?;
        Self::from_code(code).ok_or_else(|| serde::de::Error::custom(format!("{code} is not a status: 0 to 7 are")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_the_contract() {
        let codes: Vec<i16> = ALL_STATUSES.iter().map(|status| status.code()).collect();
        assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(OccurrenceStatus::from_code(8), None);
        assert_eq!(OccurrenceStatus::from_code(-1), None);
    }

    #[test]
    fn a_final_state_never_changes() {
        for from in ALL_STATUSES.into_iter().filter(|status| status.is_final()) {
            for to in ALL_STATUSES {
                assert!(!from.can_become(to), "{from} must not become {to}");
            }
        }
    }

    #[test]
    fn nothing_becomes_skipped_and_nothing_stands_still() {
        for from in ALL_STATUSES {
            assert!(!from.can_become(OccurrenceStatus::Skipped));
            assert!(!from.can_become(from));
        }
    }

    #[test]
    fn every_open_state_can_end() {
        for from in ALL_STATUSES.into_iter().filter(|status| !status.is_final()) {
            for to in [OccurrenceStatus::Completed, OccurrenceStatus::Failed, OccurrenceStatus::Cancelled] {
                assert!(from.can_become(to), "{from} must be able to become {to}");
            }
        }
    }

    #[test]
    fn slugs_lead_back() {
        for status in ALL_STATUSES {
            assert_eq!(OccurrenceStatus::from_slug(status.slug()), Some(status));
        }
    }
}
