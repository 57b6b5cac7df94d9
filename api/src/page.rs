//! The filters, pages and cursors of lists.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    status::OccurrenceStatus,
};

/// The maximum number of rows in a page.
pub const MAX_PAGE_ROWS: u32 = 200;

/// One page of a list, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListPage<T> {
    /// The rows.
    pub rows: Vec<T>,
    /// The cursor of the next page, if there is one: the value for `before`.
    pub next: Option<String>,
}

/// A filter for occurrences.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OccurrenceFilter {
    /// Only occurrences of this job.
    pub job_id: Option<JobId>,
    /// Only occurrences with this status.
    pub status: Option<OccurrenceStatus>,
    /// The cursor: only occurrences older than this one. Ids sort by time.
    pub before: Option<OccurrenceId>,
    /// The earliest time of creation.
    pub since: Option<DateTime<Utc>>,
    /// The maximum number of rows, at most [`MAX_PAGE_ROWS`]; 0 means 50.
    pub limit: u32,
}

/// A filter for jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct JobFilter {
    /// A text that must occur in the name, the description or a tag.
    pub text: Option<String>,
    /// Only active or only paused jobs.
    pub active: Option<bool>,
    /// The cursor: only jobs after this name and id. It is the `next` of the previous page.
    pub after: Option<String>,
    /// The maximum number of rows, as in [`OccurrenceFilter::limit`].
    pub limit: u32,
}

/// Returns the number of rows for a requested limit.
#[must_use]
pub fn effective_limit(requested: u32) -> u32 {
    match requested {
        0 => 50,
        n => n.min(MAX_PAGE_ROWS),
    }
}
