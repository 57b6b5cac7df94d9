//! The status of an occurrence as a word.

use milvaion_protocol::status::OccurrenceStatus;
use serde::{Deserialize, Serialize};

/// The status of an occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Status"))]
#[serde(rename_all = "snake_case")]
pub enum StatusName {
    /// It waits for a worker, a slot or a time.
    Queued,
    /// A worker runs it.
    Running,
    /// It ended without an error.
    Completed,
    /// It ended with an error, or used up its retries.
    Failed,
    /// A user, or a newer occurrence of its job, cancelled it.
    Cancelled,
    /// Its last attempt exceeded its timeout.
    TimedOut,
    /// The worker of its attempt stopped sending heartbeats.
    Unknown,
    /// It never ran; its note says why.
    Skipped,
}

impl StatusName {
    /// Returns the word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timed_out",
            Self::Unknown => "unknown",
            Self::Skipped => "skipped",
        }
    }
}

impl From<OccurrenceStatus> for StatusName {
    fn from(status: OccurrenceStatus) -> Self {
        match status {
            OccurrenceStatus::Queued => Self::Queued,
            OccurrenceStatus::Running => Self::Running,
            OccurrenceStatus::Completed => Self::Completed,
            OccurrenceStatus::Failed => Self::Failed,
            OccurrenceStatus::Cancelled => Self::Cancelled,
            OccurrenceStatus::TimedOut => Self::TimedOut,
            OccurrenceStatus::Unknown => Self::Unknown,
            OccurrenceStatus::Skipped => Self::Skipped,
        }
    }
}

impl From<StatusName> for OccurrenceStatus {
    fn from(name: StatusName) -> Self {
        match name {
            StatusName::Queued => Self::Queued,
            StatusName::Running => Self::Running,
            StatusName::Completed => Self::Completed,
            StatusName::Failed => Self::Failed,
            StatusName::Cancelled => Self::Cancelled,
            StatusName::TimedOut => Self::TimedOut,
            StatusName::Unknown => Self::Unknown,
            StatusName::Skipped => Self::Skipped,
        }
    }
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::status::ALL_STATUSES;

    use super::*;

    #[test]
    fn status_words_round_trip() {
        for status in ALL_STATUSES {
            let name = StatusName::from(status);
            assert_eq!(OccurrenceStatus::from(name), status);
            assert_eq!(serde_json::to_value(name).expect("JSON"), name.as_str());
        }
    }
}
