//! What a worker says about its runs: the reports, and the body in which they travel, alone or several together.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::one;
use crate::{id::OccurrenceId, status::OccurrenceStatus};

/// Worker → server: what became of an attempt.
///
/// A worker reports Running, then one end. Completed, Cancelled and a permanent Failed are final. Any other Failed and
/// TimedOut are final only when the job's retries are used up; until then the server queues the next attempt, after the
/// job's backoff. Queued says that the attempt was handed back without having failed: the worker stops, or the job asked
/// for more time; the next attempt counts as no retry. Unknown says that the attempt was lost with its worker's process,
/// as the next process found: the server decides as about a run whose worker fell silent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    /// The occurrence.
    pub occurrence_id: OccurrenceId,
    /// The attempt this is about; a report about an older one changes nothing.
    #[serde(default = "one")]
    pub attempt: u32,
    /// Who says so.
    pub instance_id: String,
    /// What it is now.
    pub status: OccurrenceStatus,
    /// When it became so, by the worker's clock.
    pub timestamp: DateTime<Utc>,
    /// What the job returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// What went wrong, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exception: Option<String>,
    /// How long the attempt ran, in milliseconds, by a monotonic clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// How far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<RunProgress>,
    /// With Failed: another attempt is useless, whatever retries are left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub permanent: bool,
    /// When the next attempt is to begin at the earliest, in milliseconds from now. With Failed and TimedOut it takes the
    /// place of the job's backoff, if there is a retry left; with Queued it says for how long the attempt was handed
    /// back, none meaning at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

impl StatusReport {
    /// A report that says nothing but that an attempt is in a state.
    #[must_use]
    pub fn new(
        occurrence_id: OccurrenceId,
        attempt: u32,
        instance_id: impl Into<String>,
        status: OccurrenceStatus,
        timestamp: DateTime<Utc>,
    ) -> Self {
        Self {
            occurrence_id,
            attempt,
            instance_id: instance_id.into(),
            status,
            timestamp,
            result: None,
            exception: None,
            duration_ms: None,
            progress: None,
            permanent: false,
            retry_after_ms: None,
        }
    }
}

/// How far a run is, in its own words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RunProgress {
    /// 0 to 100.
    pub percent: u8,
    /// What it is doing.
    #[serde(default)]
    pub message: String,
}

/// Worker → server, the body on the status queue: several reports in the order they happened. A lone report outside the
/// list is understood too, so that a small worker need not batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum StatusMessage {
    /// Several.
    Batch {
        /// In order.
        reports: Vec<StatusReport>,
    },
    /// One.
    One(StatusReport),
}

impl StatusMessage {
    /// The reports in order.
    #[must_use]
    pub fn into_reports(self) -> Vec<StatusReport> {
        match self {
            Self::Batch { reports } => reports,
            Self::One(report) => vec![report],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_report_is_understood_as_a_batch_of_one() {
        let json = r#"{"occurrenceId":"0190a0a0-0000-7000-8000-000000000000","instanceId":"w-1","status":2,"timestamp":"2026-11-21T00:00:00Z"}"#;
        let reports = serde_json::from_str::<StatusMessage>(json).expect("parses").into_reports();
        assert_eq!(reports.len(), 1);
        assert_eq!(reports[0].attempt, 1);
        assert_eq!(reports[0].status, OccurrenceStatus::Completed);
    }
}
