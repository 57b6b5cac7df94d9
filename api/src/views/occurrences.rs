//! Occurrences as pages show them.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::{LogLine, RunProgress},
    status::OccurrenceStatus,
};

/// Why an occurrence exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TriggerSource {
    /// The schedule was due.
    Schedule,
    /// A person asked for it.
    Manual,
    /// A script asked for it.
    Api,
    /// It repeats an earlier one.
    Retry,
}

impl TriggerSource {
    /// The word in the database and for people.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::Manual => "manual",
            Self::Api => "api",
            Self::Retry => "retry",
        }
    }

    /// The trigger behind a [`as_str`](Self::as_str).
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Schedule, Self::Manual, Self::Api, Self::Retry].into_iter().find(|trigger| trigger.as_str() == word)
    }
}

/// An occurrence in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OccurrenceRow {
    /// Its id.
    pub id: OccurrenceId,
    /// Its job.
    pub job_id: JobId,
    /// The job's name when it was created.
    pub job_name: String,
    /// What it is.
    pub status: OccurrenceStatus,
    /// Counts its changes; a row with a lower one is older.
    pub version: i32,
    /// Why it exists.
    pub trigger: TriggerSource,
    /// Which attempt, from 1.
    pub attempt: i32,
    /// When it was due.
    pub scheduled_for: DateTime<Utc>,
    /// When the latest attempt began.
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
    /// How long the latest attempt ran.
    pub duration_ms: Option<i64>,
    /// Which worker instance has or had it.
    pub instance_id: Option<String>,
    /// How far it is.
    pub progress: Option<RunProgress>,
    /// The first line of the exception, or why it was skipped.
    pub note: Option<String>,
    /// Queued, but not before this instant: a retry, or what was handed back for a while.
    #[serde(default)]
    pub waits_until: Option<DateTime<Utc>>,
}

/// One step in an occurrence's life.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusChange {
    /// What it became.
    pub status: OccurrenceStatus,
    /// When.
    pub at: DateTime<Utc>,
    /// In which attempt.
    pub attempt: i32,
    /// By whom: an instance or a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Why, if there is more to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// An occurrence on its own page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OccurrenceView {
    /// What the list shows.
    pub row: OccurrenceRow,
    /// The worker it is addressed to.
    pub worker_id: String,
    /// What it runs.
    pub job_type: String,
    /// Which version of the job's definition it follows.
    pub job_version: i32,
    /// The input it was given.
    pub job_data: Value,
    /// Who asked for it, when a person did.
    pub triggered_by: Option<String>,
    /// Why that person asked.
    pub trigger_reason: Option<String>,
    /// The failed occurrence that it repeats.
    #[serde(default)]
    pub repeats: Option<OccurrenceId>,
    /// When its message was confirmed by the broker.
    pub published_at: Option<DateTime<Utc>>,
    /// Queued, but waiting for its turn: a limit or an earlier occurrence holds it back.
    #[serde(default)]
    pub is_held: bool,
    /// What the job returned.
    pub result: Option<String>,
    /// What went wrong.
    pub exception: Option<String>,
    /// Its life so far, oldest first.
    pub changes: Vec<StatusChange>,
    /// The newest lines of its log, oldest first.
    pub log: Vec<LogLine>,
    /// Whether there are lines before those.
    pub log_has_earlier: bool,
    /// Whether the job still exists.
    pub job_exists: bool,
    /// Whether a live worker can run it.
    pub worker_alive: bool,
}
