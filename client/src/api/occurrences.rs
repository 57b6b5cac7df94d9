//! Occurrences and their logs.

use milvaion_api::rest::{
    CancelOccurrence, EnqueueOccurrences, EnqueueResults, LogPage, LogQuery, Occurrence, OccurrenceDetail,
    OccurrenceQuery, Page, RetryOccurrence,
};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{IngestOutcome, IngestResult, MAX_INGEST_OCCURRENCES, NewOccurrence},
};

use crate::{
    Client, ClientError,
    enqueue::{EnqueueError, EnqueueFuture, EnqueueTransport},
};

/// The bytes of one request, of the 1 MiB that the server accepts.
const MAX_REQUEST_BYTES: usize = 1_000_000;

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

    /// Creates occurrences, at most 500, and returns one result for each. An occurrence with an id that was accepted before
    /// is not created again.
    ///
    /// # Errors
    ///
    /// Returns an error if the request fails; a rejected occurrence is a result.
    pub async fn enqueue_occurrences(&self, request: &EnqueueOccurrences) -> Result<EnqueueResults, ClientError> {
        self.post(&["occurrences"], request).await
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

impl EnqueueTransport for Client {
    fn enqueue(&self, occurrences: Vec<NewOccurrence>) -> EnqueueFuture<'_, Vec<IngestResult>> {
        Box::pin(async move {
            let mut results = Vec::with_capacity(occurrences.len());
            let mut part = EnqueueOccurrences::default();
            let mut bytes = 0;
            for occurrence in occurrences {
                let length = serde_json::to_vec(&occurrence).map_err(EnqueueError::UnwritableInput)?.len() + 1;
                if part.occurrences.len() == MAX_INGEST_OCCURRENCES || bytes + length > MAX_REQUEST_BYTES {
                    results.extend(self.enqueue_occurrences(&std::mem::take(&mut part)).await?.results);
                    bytes = 0;
                }
                bytes += length;
                part.occurrences.push(occurrence.into());
            }
            if !part.occurrences.is_empty() {
                results.extend(self.enqueue_occurrences(&part).await?.results);
            }
            Ok(results)
        })
    }

    /// The API answers every request, so this is the same as `enqueue`, and a rejected occurrence is an error.
    fn publish(&self, occurrences: Vec<NewOccurrence>) -> EnqueueFuture<'_, ()> {
        Box::pin(async move {
            let results = EnqueueTransport::enqueue(self, occurrences).await?;
            let rejected = results.into_iter().find(|result| result.outcome == IngestOutcome::Rejected);
            match rejected {
                Some(result) => Err(EnqueueError::Rejected {
                    id: result.id,
                    reason: result.reason.unwrap_or_default(),
                    is_retryable: result.retryable,
                }),
                None => Ok(()),
            }
        })
    }
}
