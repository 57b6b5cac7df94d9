//! Occurrences and their logs.

use milvaion_api::rest::{
    CancelOccurrence, LogPage, LogQuery, Occurrence, OccurrenceDetail, OccurrenceQuery, Page, RetryOccurrence,
};
use milvaion_protocol::id::OccurrenceId;

use crate::{Client, ClientError};

impl Client {
    /// Returns a page of the occurrences, newest first.
    ///
    /// # Errors
    ///
    /// Returns an error if the server refuses the request or cannot be reached.
    pub async fn occurrences(&self, query: &OccurrenceQuery) -> Result<Page<Occurrence>, ClientError> {
        self.get(&["occurrences"], query).await
    }

    /// Returns an occurrence.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such occurrence or the request fails.
    pub async fn occurrence(&self, id: OccurrenceId) -> Result<OccurrenceDetail, ClientError> {
        self.get(&["occurrences", &id.to_string()], &()).await
    }

    /// Returns a part of the log of an occurrence: the newest 500 lines, or the oldest 500 after a line.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such occurrence or the request fails.
    pub async fn log(&self, id: OccurrenceId, query: &LogQuery) -> Result<LogPage, ClientError> {
        self.get(&["occurrences", &id.to_string(), "log"], query).await
    }

    /// Cancels an occurrence. A running one ends when its worker has stopped the run.
    ///
    /// # Errors
    ///
    /// Returns an error if the occurrence has ended or the request fails.
    pub async fn cancel_occurrence(
        &self,
        id: OccurrenceId,
        request: &CancelOccurrence,
    ) -> Result<OccurrenceDetail, ClientError> {
        self.post(&["occurrences", &id.to_string(), "cancel"], request).await
    }

    /// Retries a failed occurrence and returns the new one.
    ///
    /// # Errors
    ///
    /// Returns an error if the occurrence did not fail, was retried before, or the request fails.
    pub async fn retry_occurrence(
        &self,
        id: OccurrenceId,
        request: &RetryOccurrence,
    ) -> Result<OccurrenceDetail, ClientError> {
        self.post(&["occurrences", &id.to_string(), "retry"], request).await
    }
}
