//! The resources and requests of the REST API, `/api/v1`.
//!
//! The pages and the API run the same commands and check the same permissions, but their documents differ: a page's view
//! changes whenever the page does, while scripts rely on the documents of the API for years. The types here are that
//! promise. A field may be added; none is renamed, removed or given another meaning within `v1`. Statuses are words here
//! and numbers between servers and workers.
//!
//! Types of other modules that are the same for both, such as [`Calendar`](milvaion_schedule::calendar::Calendar) and
//! [`FailureRow`](crate::failures::FailureRow), are used as they are. With the feature `schema`, all types describe
//! themselves as JSON Schemas, from which the OpenAPI document is made and against which requests are checked.

mod alerts;
mod calendars;
mod cluster;
mod events;
mod failures;
pub mod files;
mod jobs;
mod occurrences;
mod people;
mod problem;
mod status;

use serde::{Deserialize, Serialize};

pub use alerts::AlertQuery;
pub use calendars::{CalendarDetail, CalendarJob};
pub use cluster::{Cluster, OpenCount, PauseRequest, Statistics, StatisticsBar, StatisticsQuery, WorkerQuery};
pub use events::{ApiEvent, EventQuery};
pub use failures::{
    BulkResult, DeadLetter, DeadLetterQuery, FailureQuery, ResolveDeadLetters, ResolveFailures, RetriedFailure,
    RetryFailures, RetryResult,
};
pub use files::{
    ApplyFiles, DefinitionFile, DocumentKind, DocumentPlan, ExportQuery, FileDocument, FilePlan, FilesPlan,
    JobDocument, PlannedOutcome, Prune, PrunedJob,
};
pub use jobs::*;
pub use occurrences::{
    CancelDelayed, CancelDelayedResult, CancelOccurrence, EnqueueOccurrence, EnqueueOccurrences, EnqueueResults,
    LogPage, LogQuery, Occurrence, OccurrenceDetail, OccurrenceQuery, RetryOccurrence, StatusChangeEntry,
};
pub use people::{AuditQuery, ChangeRole, InviteUser, JobAuditQuery, OneTimeLink, TeamQuery, TokenQuery};
pub use problem::{Problem, ProblemField};
pub use status::StatusName;

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "{T}Page"))]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// The cursor of the next page; null on the last one.
    pub next: Option<String>,
}

impl<T> Page<T> {
    /// Builds a page from a list of the same items.
    pub fn of<R: Into<T>>(page: crate::page::ListPage<R>) -> Self {
        Self { items: page.rows.into_iter().map(Into::into).collect(), next: page.next }
    }

    /// Builds the only page of a complete list.
    pub fn all<R: Into<T>>(items: Vec<R>) -> Self {
        Self { items: items.into_iter().map(Into::into).collect(), next: None }
    }
}
