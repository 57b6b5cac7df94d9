//! Definitions from files.

use milvaion_api::rest::{ExportQuery, FileDocument, FilesPlan, Page};
use serde::Serialize;

use crate::{Client, ClientError};

impl Client {
    /// Returns a page of the jobs as documents of files, after the calendars that they name.
    pub async fn export_files(&self, query: &ExportQuery) -> Result<Page<FileDocument>, ClientError> {
        self.get(&["files", "export"], query).await
    }

    /// Returns what applying files changes. The request is an [`ApplyFiles`](milvaion_api::rest::ApplyFiles), or JSON of
    /// that form, so that the server names a field that it does not know.
    ///
    /// # Errors
    ///
    /// Returns an error with the invalid documents, or if the request fails.
    pub async fn plan_files<R: Serialize>(&self, request: &R) -> Result<FilesPlan, ClientError> {
        self.post(&["files", "plan"], request).await
    }

    /// Makes jobs and calendars be as files say, and returns what was changed. The request is as for
    /// [`plan_files`](Self::plan_files).
    ///
    /// # Errors
    ///
    /// Returns an error with the invalid documents, or if the request fails.
    pub async fn apply_files<R: Serialize>(&self, request: &R) -> Result<FilesPlan, ClientError> {
        self.post(&["files", "apply"], request).await
    }
}
