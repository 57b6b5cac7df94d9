//! Failures and dead letters.

use milvaion_api::{
    failures::{FailureGroup, FailureRow},
    rest::{
        BulkResult, DeadLetter, DeadLetterQuery, FailureQuery, Page, ResolveDeadLetters, ResolveFailures,
        RetryFailures, RetryResult,
    },
};
use milvaion_protocol::id::OccurrenceId;

use crate::{Client, ClientError};

impl Client {
    /// Returns a page of the failures, newest first.
    pub async fn failures(&self, query: &FailureQuery) -> Result<Page<FailureRow>, ClientError> {
        self.get(&["failures"], query).await
    }

    /// Returns the failure of an occurrence.
    ///
    /// # Errors
    ///
    /// Returns an error if the occurrence did not fail or the request fails.
    pub async fn failure(&self, occurrence: OccurrenceId) -> Result<FailureRow, ClientError> {
        self.get(&["failures", &occurrence.to_string()], &()).await
    }

    /// Returns a page of the failures grouped by fingerprint, the largest group first.
    pub async fn failure_groups(&self, query: &FailureQuery) -> Result<Page<FailureGroup>, ClientError> {
        self.get(&["failures", "groups"], query).await
    }

    /// Retries failures, each as a new occurrence.
    ///
    /// # Errors
    ///
    /// Returns an error if the filter matches more than expected or the request fails.
    pub async fn retry_failures(&self, request: &RetryFailures) -> Result<RetryResult, ClientError> {
        self.post(&["failures", "retry"], request).await
    }

    /// Resolves failures with a note.
    ///
    /// # Errors
    ///
    /// Returns an error if the filter matches more than expected or the request fails.
    pub async fn resolve_failures(&self, request: &ResolveFailures) -> Result<BulkResult, ClientError> {
        self.post(&["failures", "resolve"], request).await
    }

    /// Returns a page of the dead letters, newest first.
    pub async fn dead_letters(&self, query: &DeadLetterQuery) -> Result<Page<DeadLetter>, ClientError> {
        self.get(&["dead-letters"], query).await
    }

    /// Resolves dead letters with a note.
    ///
    /// # Errors
    ///
    /// Returns an error if the request is invalid or fails.
    pub async fn resolve_dead_letters(&self, request: &ResolveDeadLetters) -> Result<BulkResult, ClientError> {
        self.post(&["dead-letters", "resolve"], request).await
    }
}
