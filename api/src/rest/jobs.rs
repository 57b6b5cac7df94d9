//! Jobs.

use chrono::{DateTime, Utc};
use milvaion_protocol::id::{JobId, OccurrenceId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::StatusName;
use crate::{
    requests::JobInput,
    sources::JobSource,
    views::{JobRow, JobView},
};

/// The filter of the list of jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct JobQuery {
    /// A text that must occur in the name, the description, the job type or a tag.
    #[cfg_attr(feature = "schema", schemars(length(max = 200)))]
    pub text: Option<String>,
    /// Only jobs with this tag.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 50)))]
    pub tag: Option<String>,
    /// Only active or only paused jobs.
    pub active: Option<bool>,
    /// The cursor: the `next` of the previous page.
    #[cfg_attr(feature = "schema", schemars(length(max = 1_000)))]
    pub after: Option<String>,
    /// The maximum number of items; 50 without it.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 200)))]
    pub limit: Option<u32>,
}

/// The definition of a new job, with its key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct NewJob {
    /// A name that never changes and that no other job has: 1 to 100 lower-case letters, digits, `.`, `_` and `-`,
    /// beginning with a letter or digit. Scripts and files identify the job by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[a-z0-9][a-z0-9._-]{0,99}$")))]
    pub key: Option<String>,
    /// The definition.
    #[serde(flatten)]
    pub definition: JobInput,
}

/// The definition that a PUT gives a job.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PutJob {
    /// The definition, with `is_active` as for a new job.
    #[serde(flatten)]
    pub definition: JobInput,
    // It follows the definition, so that its schema replaces that of the definition's field.
    /// True if the schedule is active; false while the job is paused. Without it, a new job is active, and an existing one
    /// keeps its state.
    #[serde(default)]
    pub is_active: Option<bool>,
}

impl PutJob {
    /// Returns the complete definition. `before` is that of the existing job; none for a new one.
    #[must_use]
    pub fn complete(&self, before: Option<&JobInput>) -> JobInput {
        let is_active = self.is_active.unwrap_or_else(|| before.is_none_or(|before| before.is_active));
        JobInput { is_active, ..self.definition.clone() }
    }
}

/// A job in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct JobSummary {
    /// The id.
    pub id: JobId,
    /// The key, if the job has one.
    pub key: Option<String>,
    /// The name.
    pub display_name: String,
    /// The worker to which the job is addressed.
    pub worker_id: String,
    /// The job type to run.
    pub job_type: String,
    /// The tags.
    pub tags: Vec<String>,
    /// The schedule in words.
    pub schedule_words: String,
    /// False while the job is paused.
    pub is_active: bool,
    /// The next due time; null while the job is paused or if no due time is left.
    pub next_due_at: Option<DateTime<Utc>>,
    /// True if a live worker offers its job type.
    pub worker_alive: bool,
    /// The latest occurrences, newest first, at most ten.
    pub recent: Vec<RecentOccurrence>,
}

/// One of the latest occurrences of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RecentOccurrence {
    /// The id.
    pub id: OccurrenceId,
    /// The status.
    pub status: StatusName,
}

impl From<JobRow> for JobSummary {
    fn from(row: JobRow) -> Self {
        Self {
            id: row.id,
            key: row.key,
            display_name: row.display_name,
            worker_id: row.worker_id,
            job_type: row.job_type,
            tags: row.tags,
            schedule_words: row.schedule_words,
            is_active: row.is_active,
            next_due_at: row.next_fire_at,
            worker_alive: row.worker_alive,
            recent: row.recent.into_iter().map(|(id, status)| RecentOccurrence { id, status: status.into() }).collect(),
        }
    }
}

/// A job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Job {
    /// The job as in the list.
    #[serde(flatten)]
    pub summary: JobSummary,
    /// The version, which each change increments. The header `ETag` has it too.
    pub version: i32,
    /// The definition. A request that changes the job sends the whole of it.
    pub definition: JobInput,
    /// The next due times, at most five, without those that a blackout skips or postpones.
    pub upcoming: Vec<DateTime<Utc>>,
    /// Warnings about the schedule.
    pub warnings: Vec<String>,
    /// The part of the job that this server cannot read, because a newer server has saved it. The definition has a
    /// default there.
    pub unreadable: Option<String>,
    /// The reason of a pause, if the job is paused and a reason was given.
    pub paused_reason: Option<String>,
    /// The door through which the job was defined.
    #[serde(default)]
    pub source: JobSource,
    /// The number of delayed occurrences, counted up to 10,001, which stands for more than 10,000.
    #[serde(default)]
    pub delayed_occurrences: i64,
    /// The time of creation.
    pub created_at: DateTime<Utc>,
    /// The user who created it.
    pub created_by: String,
    /// The time of the last change.
    pub modified_at: DateTime<Utc>,
    /// The user who made the last change.
    pub modified_by: String,
}

impl From<JobView> for Job {
    fn from(view: JobView) -> Self {
        Self {
            summary: view.row.into(),
            version: view.version,
            definition: view.definition,
            upcoming: view.preview.runs.iter().filter(|run| run.blackout.is_none()).map(|run| run.at).collect(),
            warnings: view.preview.warnings,
            unreadable: view.unreadable,
            paused_reason: view.paused_reason,
            source: view.source,
            delayed_occurrences: view.delayed,
            created_at: view.created_at,
            created_by: view.created_by,
            modified_at: view.modified_at,
            modified_by: view.modified_by,
        }
    }
}

/// A request to run a job now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct RunJob {
    /// The input of this occurrence; without it, the job's own input. At most 64 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// The reason, at most 500 characters.
    #[cfg_attr(feature = "schema", schemars(length(max = 500)))]
    pub reason: String,
    /// True to run the job even if it or the cluster is paused, or its previous run is still open.
    pub force: bool,
}

/// A request to skip the next due time of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SkipDue {
    /// The due time to skip, which must be the `nextDueAt` of the job, so that a repeated request skips no other one.
    pub due_at: DateTime<Utc>,
}

/// A request for a copy of a job. The copy is paused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct DuplicateJob {
    /// The name of the copy; without it, `Copy of` and the name of the job.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 200)))]
    pub display_name: Option<String>,
    /// The key of the copy; without it, the copy has none.
    #[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[a-z0-9][a-z0-9._-]{0,99}$")))]
    pub key: Option<String>,
}

/// The cursor of the versions of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct VersionQuery {
    /// Only versions before this one: the `next` of the previous page.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub before: Option<i32>,
}

/// The versions to compare.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CompareQuery {
    /// The earlier version.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub from: i32,
    /// The later version.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub to: i32,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn put_without_a_state_keeps_a_pause() {
        let put = |is_active: Value| -> PutJob {
            let body = json!({
                "displayName": "Report", "workerId": "w", "jobType": "t", "schedule": { "kind": "manual" },
                "isActive": is_active,
            });
            serde_json::from_value(body).expect("a definition")
        };
        let paused = put(false.into()).complete(None);
        assert!(!paused.is_active);
        let states = [Value::Null, true.into(), false.into()].map(|is_active| put(is_active).complete(Some(&paused)));
        assert_eq!(states.map(|job| job.is_active), [false, true, false]);
        assert!(put(Value::Null).complete(None).is_active, "a new job is active");
        assert_eq!(put(Value::Null).complete(Some(&paused)), paused);
    }
}
