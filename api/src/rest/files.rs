//! Definitions as files: the documents of a file, the request that applies files, and the plan of what it changes.
//!
//! A file has any number of documents, each of a kind, and each names its object: a job by its key, a calendar by its
//! name. Ids appear nowhere, because they differ between installations. Apart from that, a document has the fields of the
//! REST API and the same Rust types, so that names, defaults and checks cannot differ.
//!
//! To add a kind, add a variant to [`FileDocument`] and to [`DocumentKind`], and a file with its document here; the
//! published JSON Schema follows from the types.

mod job;
mod plan;

use milvaion_schedule::calendar::Calendar;
use serde::{Deserialize, Serialize};

use crate::alerts::AlertRule;

pub use job::{JobDocument, suggested_key};
pub use plan::{DocumentPlan, FilePlan, FilesPlan, PlannedOutcome, PrunedJob};

/// The maximum number of documents in one request, in all files together.
pub const MAX_DOCUMENTS: usize = 1_000;
/// The maximum number of files in one request.
pub const MAX_FILES: usize = 500;
/// The name of what the command line reads from standard input.
pub const STANDARD_INPUT: &str = "standard input";
/// The maximum number of jobs that one request prunes.
pub const MAX_PRUNED: usize = 1_000;
/// The maximum size of a request, in bytes.
pub const MAX_FILES_BYTES: usize = 8 * 1024 * 1024;

/// A document of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind")]
pub enum FileDocument {
    /// A job, identified by its key.
    Job(Box<JobDocument>),
    /// A blackout calendar, identified by its name.
    Calendar(Calendar),
    /// An alert rule, identified by its name. It names channels, which are in no file: they belong to an installation.
    AlertRule(AlertRule),
}

impl FileDocument {
    /// Returns the kind.
    #[must_use]
    pub const fn kind(&self) -> DocumentKind {
        match self {
            Self::Job(_) => DocumentKind::Job,
            Self::Calendar(_) => DocumentKind::Calendar,
            Self::AlertRule(_) => DocumentKind::AlertRule,
        }
    }

    /// Returns the key or the name that identifies the object.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Job(job) => &job.key,
            Self::Calendar(calendar) => calendar.name.trim(),
            Self::AlertRule(rule) => rule.name.trim(),
        }
    }
}

/// The kind of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum DocumentKind {
    /// A job.
    Job,
    /// A blackout calendar.
    Calendar,
    /// An alert rule.
    AlertRule,
}

impl DocumentKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Job, Self::Calendar, Self::AlertRule];

    /// Returns the word in the field `kind`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Job => "Job",
            Self::Calendar => "Calendar",
            Self::AlertRule => "AlertRule",
        }
    }

    /// Returns the noun for messages.
    #[must_use]
    pub const fn noun(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Calendar => "calendar",
            Self::AlertRule => "alert rule",
        }
    }

    /// Returns the field that identifies the object.
    #[must_use]
    pub const fn name_field(self) -> &'static str {
        match self {
            Self::Job => "key",
            Self::Calendar | Self::AlertRule => "name",
        }
    }
}

/// A request to plan or apply files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ApplyFiles {
    /// The files, at most 500 with at most 1,000 documents together. Each is applied completely or not at all, and none is
    /// applied if a document of any is invalid.
    pub files: Vec<DefinitionFile>,
    /// Deletes jobs that no document names any more; without it, none is deleted. It needs at least one document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prune: Option<Prune>,
    /// The tag of the jobs that belong to the files, 1 to 50 characters: the plan warns about those from files that no
    /// document names. With `prune`, its tag counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 50)))]
    pub tag: Option<String>,
}

/// A file with its documents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DefinitionFile {
    /// The name, such as `jobs/nightly.yaml`, 1 to 200 characters. The page of a job shows it.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 200)))]
    pub name: String,
    /// The documents.
    #[cfg_attr(feature = "schema", schemars(length(max = 1_000)))]
    pub documents: Vec<FileDocument>,
}

/// The jobs to delete: those that came from a file, have the tag, and are named by no document of the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Prune {
    /// The tag, 1 to 50 characters.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 50)))]
    pub tag: String,
    /// The number of jobs that the plan deletes. The request is refused if it would delete another number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = 1_000)))]
    pub expected: Option<u32>,
}

/// The filter of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct ExportQuery {
    /// Only jobs with this tag, and the calendars that they name.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 50)))]
    pub tag: Option<String>,
    /// The cursor: the `next` of the previous page.
    #[cfg_attr(feature = "schema", schemars(length(max = 1_000)))]
    pub after: Option<String>,
    /// The maximum number of jobs; 50 without it.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 200)))]
    pub limit: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_of_a_kind_is_the_one_in_documents() {
        for kind in DocumentKind::ALL {
            assert_eq!(serde_json::to_value(kind).ok(), Some(kind.as_str().into()));
        }
    }
}
