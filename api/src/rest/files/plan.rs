//! The plan: what applying files changes, or has changed.

use milvaion_protocol::id::JobId;
use serde::{Deserialize, Serialize};

use super::DocumentKind;
use crate::{
    sources::{EditSinceSource, JobSourceKind},
    versions::FieldChange,
};

/// What applying files changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FilesPlan {
    /// The files, in the order of the request.
    pub files: Vec<FilePlan>,
    /// The jobs that are deleted.
    pub deleted: Vec<PrunedJob>,
    /// Warnings about jobs from files that no document names any more and that are not deleted.
    #[serde(default)]
    pub warnings: Vec<String>,
}

impl FilesPlan {
    /// Returns true if nothing is created, changed or deleted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let documents = self.files.iter().flat_map(|file| &file.documents);
        self.deleted.is_empty() && documents.into_iter().all(|document| document.outcome == PlannedOutcome::Unchanged)
    }
}

/// What applying one file changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FilePlan {
    /// The name of the file.
    pub name: String,
    /// The documents, in the order of the file.
    pub documents: Vec<DocumentPlan>,
}

/// What applying one document changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DocumentPlan {
    /// The kind of the document.
    pub kind: DocumentKind,
    /// The key or the name that identifies the object.
    pub name: String,
    /// The outcome.
    pub outcome: PlannedOutcome,
    /// The fields that differ, for a change. Long values are cut.
    pub changes: Vec<FieldChange>,
    /// True if there are further changed fields.
    pub more: bool,
    /// Warnings about a job that is created or changed: about its schedule, its tags, a job type that no live worker offers,
    /// and another job that may be the same one under its former key.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// The source of the job until now, if it came from no file and belongs to this one from now on.
    pub taken_from: Option<JobSourceKind>,
    /// The first edit after the file was last applied, which the file does not have.
    pub edited: Option<EditSinceSource>,
}

/// The outcome of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum PlannedOutcome {
    /// The object is created.
    Created,
    /// The object is changed.
    Changed,
    /// The object is as the document says.
    Unchanged,
}

/// A job that is deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PrunedJob {
    /// The id.
    pub id: JobId,
    /// The key.
    pub key: Option<String>,
    /// The name.
    pub display_name: String,
    /// The file from which it came.
    pub file: String,
}
