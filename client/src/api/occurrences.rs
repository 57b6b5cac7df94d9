//! Occurrences and their logs.

use std::time::Instant;

use http::StatusCode;
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
    enqueue::{EnqueueError, EnqueueFuture, EnqueueTransport, Unanswered, with_causes},
};

/// The bytes of one request, of the 1 MiB that the server accepts.
const MAX_REQUEST_BYTES: usize = 1_000_000;

impl Client {
    /// Returns a page of the occurrences, newest first.
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

/// Splits occurrences into requests of at most 500 occurrences and 1 MB, in their order.
fn split(occurrences: Vec<NewOccurrence>) -> Result<Vec<Vec<NewOccurrence>>, EnqueueError> {
    let (mut parts, mut part, mut bytes) = (Vec::new(), Vec::new(), 0);
    for occurrence in occurrences {
        let length = serde_json::to_vec(&occurrence).map_err(|error| EnqueueError::unwritable(&error))?.len() + 1;
        if part.len() == MAX_INGEST_OCCURRENCES || bytes + length > MAX_REQUEST_BYTES && !part.is_empty() {
            parts.push(std::mem::take(&mut part));
            bytes = 0;
        }
        bytes += length;
        part.push(occurrence);
    }
    if !part.is_empty() {
        parts.push(part);
    }
    Ok(parts)
}

/// Returns true if the same request would be refused again, such as one with a wrong token or address. After any other error
/// the server may have created the occurrences, or may accept them later.
fn is_refusal(error: &ClientError) -> bool {
    let may_pass = |status: StatusCode| {
        [StatusCode::REQUEST_TIMEOUT, StatusCode::CONFLICT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS]
            .contains(&status)
    };
    match error {
        ClientError::Transport { .. } | ClientError::Timeout { .. } | ClientError::UnreadableAnswer { .. } => false,
        error => error.status().is_none_or(|status| !status.is_server_error() && !may_pass(status)),
    }
}

impl EnqueueTransport for Client {
    fn enqueue(&self, occurrences: Vec<NewOccurrence>) -> EnqueueFuture<'_, Vec<IngestResult>> {
        Box::pin(async move {
            let (since, total) = (Instant::now(), occurrences.len());
            let mut results = Vec::with_capacity(total);
            let mut parts = split(occurrences)?.into_iter();
            while let Some(part) = parts.next() {
                let request = EnqueueOccurrences { occurrences: part.iter().cloned().map(Into::into).collect() };
                match self.enqueue_occurrences(&request).await {
                    Ok(answer) => results.extend(answer.results),
                    Err(error) if results.is_empty() && is_refusal(&error) => return Err(error.into()),
                    // The results of earlier requests, and the ids of all occurrences that have none, belong to the caller.
                    Err(error) => {
                        return Err(EnqueueError::Unanswered(Box::new(Unanswered {
                            occurrences: part.into_iter().chain(parts.flatten()).collect(),
                            results,
                            total,
                            seconds: since.elapsed().as_secs(),
                            reason: with_causes(&error),
                        })));
                    }
                }
            }
            Ok(results)
        })
    }

    /// The API answers every request, so this is the same as `enqueue`, and a rejected occurrence is an error.
    fn publish(&self, occurrences: Vec<NewOccurrence>) -> EnqueueFuture<'_, ()> {
        Box::pin(async move {
            let results = EnqueueTransport::enqueue(self, occurrences).await?;
            let exists =
                |result: &IngestResult| matches!(result.outcome, IngestOutcome::Accepted | IngestOutcome::Duplicate);
            let rejected = results.into_iter().find(|result| !exists(result));
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
