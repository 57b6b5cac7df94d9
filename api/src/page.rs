//! Lists: where one stands in them and what one asked to see.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    status::OccurrenceStatus,
};

/// The most rows one page holds.
pub const MAX_PAGE_ROWS: u32 = 200;

/// One page of a list, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListPage<T> {
    /// The rows.
    pub rows: Vec<T>,
    /// Where the next page starts, if there is one: the value for `before`.
    pub next: Option<String>,
}

/// What the list of occurrences is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OccurrenceFilter {
    /// Only of this job.
    pub job_id: Option<JobId>,
    /// Only in this state.
    pub status: Option<OccurrenceStatus>,
    /// Only those older than this one: ids sort by time.
    pub before: Option<OccurrenceId>,
    /// Not created before this instant.
    pub since: Option<DateTime<Utc>>,
    /// How many rows; 0 means 50, more than [`MAX_PAGE_ROWS`] means [`MAX_PAGE_ROWS`].
    pub limit: u32,
}

/// What the list of jobs is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct JobFilter {
    /// Words that must occur in the name, the description or a tag.
    pub text: Option<String>,
    /// Only active ones, or only paused ones.
    pub active: Option<bool>,
    /// Only those after this name and id: the value of `next`.
    pub after: Option<String>,
    /// How many rows; as in [`OccurrenceFilter::limit`].
    pub limit: u32,
}

/// The limit in force for a wished one.
#[must_use]
pub fn effective_limit(wished: u32) -> u32 {
    match wished {
        0 => 50,
        n => n.min(MAX_PAGE_ROWS),
    }
}
