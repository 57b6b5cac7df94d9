//! A double for tests: it records what a program enqueues, and creates nothing.
//!
//! It answers like a server that accepts everything, knows each id once, and applies uniqueness keys as if every
//! occurrence were open. A test can make it reject, to see how a program reacts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use milvaion_protocol::message::{IngestOutcome, IngestResult, NewOccurrence};
use serde::de::DeserializeOwned;

use crate::enqueue::{EnqueueClient, EnqueueFuture, EnqueueTransport};

/// Records the occurrences that are enqueued. Clones share the record.
#[derive(Clone, Debug, Default)]
pub struct RecordingClient {
    state: Arc<Mutex<Recording>>,
}

#[derive(Debug, Default)]
struct Recording {
    occurrences: Vec<NewOccurrence>,
    rejection: Option<String>,
    is_retryable: bool,
}

impl RecordingClient {
    /// Creates a double with an empty record.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a client that enqueues into the record.
    #[must_use]
    pub fn client(&self) -> EnqueueClient {
        EnqueueClient::new(self.clone())
    }

    /// Rejects every following occurrence with a reason, as the server rejects a wrong one.
    pub fn reject_with(&self, reason: impl Into<String>) {
        self.set_rejection(reason.into(), false);
    }

    /// Rejects every following occurrence with a reason that passes, as the server rejects one of a paused job.
    pub fn reject_for_now(&self, reason: impl Into<String>) {
        self.set_rejection(reason.into(), true);
    }

    fn set_rejection(&self, reason: String, is_retryable: bool) {
        let mut state = self.lock();
        state.rejection = Some(reason);
        state.is_retryable = is_retryable;
    }

    /// Accepts every following occurrence again.
    pub fn accept(&self) {
        self.lock().rejection = None;
    }

    /// Returns the accepted occurrences in their order.
    #[must_use]
    pub fn enqueued(&self) -> Vec<NewOccurrence> {
        self.lock().occurrences.clone()
    }

    /// Removes and returns the accepted occurrences.
    pub fn take(&self) -> Vec<NewOccurrence> {
        std::mem::take(&mut self.lock().occurrences)
    }

    /// Checks that an occurrence for which `is_expected` returns true was enqueued, and returns the first.
    ///
    /// # Panics
    /// Panics with the record if none was enqueued.
    #[track_caller]
    pub fn assert_enqueued(&self, is_expected: impl Fn(&NewOccurrence) -> bool) -> NewOccurrence {
        let enqueued = self.enqueued();
        let found = enqueued.iter().find(|occurrence| is_expected(occurrence)).cloned();
        found.unwrap_or_else(|| panic!("no such occurrence was enqueued; the record has {}", text(&enqueued)))
    }

    /// Checks that an occurrence of the job with a key was enqueued, and returns the first.
    ///
    /// # Panics
    /// Panics with the record if none was enqueued.
    #[track_caller]
    pub fn assert_enqueued_job(&self, key: &str) -> NewOccurrence {
        self.assert_enqueued(|occurrence| occurrence.job_key.as_deref() == Some(key))
    }

    /// Checks that an occurrence of a job type was enqueued, and returns the first.
    ///
    /// # Panics
    /// Panics with the record if none was enqueued.
    #[track_caller]
    pub fn assert_enqueued_type(&self, worker_id: &str, job_type: &str) -> NewOccurrence {
        self.assert_enqueued(|occurrence| {
            occurrence.worker_id.as_deref() == Some(worker_id) && occurrence.job_type.as_deref() == Some(job_type)
        })
    }

    /// Returns the inputs of the accepted occurrences of a job type in their order, to compare them with the expected ones:
    /// `assert_eq!(recording.inputs::<Mail>("mail", "send"), [expected])`.
    ///
    /// # Panics
    /// Panics with the input if one is no `T`.
    #[must_use]
    #[track_caller]
    pub fn inputs<T: DeserializeOwned>(&self, worker_id: &str, job_type: &str) -> Vec<T> {
        let enqueued = self.enqueued().into_iter();
        let of_type = enqueued.filter(|occurrence| {
            occurrence.worker_id.as_deref() == Some(worker_id) && occurrence.job_type.as_deref() == Some(job_type)
        });
        let inputs = of_type.map(|occurrence| occurrence.input.unwrap_or_default());
        inputs
            .map(|input| {
                let text = input.to_string();
                serde_json::from_value(input).unwrap_or_else(|error| panic!("the input {text} cannot be read: {error}"))
            })
            .collect()
    }

    /// Checks the number of occurrences that were enqueued.
    ///
    /// # Panics
    /// Panics with the record if their number differs.
    #[track_caller]
    pub fn assert_count(&self, expected: usize) {
        let enqueued = self.enqueued();
        assert_eq!(enqueued.len(), expected, "the record has {}", text(&enqueued));
    }

    /// Checks that nothing was enqueued.
    ///
    /// # Panics
    /// Panics with the record if something was.
    #[track_caller]
    pub fn assert_nothing_enqueued(&self) {
        self.assert_count(0);
    }

    fn lock(&self) -> MutexGuard<'_, Recording> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, occurrence: NewOccurrence) -> IngestResult {
        let mut state = self.lock();
        let result = |outcome| IngestResult::new(occurrence.id, outcome);
        if let Some(reason) = state.rejection.clone() {
            return IngestResult {
                reason: Some(reason),
                retryable: state.is_retryable,
                ..result(IngestOutcome::Rejected)
            };
        }
        if state.occurrences.iter().any(|known| known.id == occurrence.id) {
            return result(IngestOutcome::Accepted);
        }
        let same_key = state.occurrences.iter().find(|known| {
            let job = |occurrence: &NewOccurrence| {
                (occurrence.job_key.clone(), occurrence.worker_id.clone(), occurrence.job_type.clone())
            };
            known.uniqueness_key.is_some()
                && known.uniqueness_key == occurrence.uniqueness_key
                && job(known) == job(&occurrence)
        });
        if let Some(existing) = same_key {
            return IngestResult { existing_id: Some(existing.id), ..result(IngestOutcome::Duplicate) };
        }
        let accepted = result(IngestOutcome::Accepted);
        state.occurrences.push(occurrence);
        accepted
    }
}

impl EnqueueTransport for RecordingClient {
    fn enqueue(&self, occurrences: Vec<NewOccurrence>) -> EnqueueFuture<'_, Vec<IngestResult>> {
        Box::pin(async move { Ok(occurrences.into_iter().map(|occurrence| self.record(occurrence)).collect()) })
    }

    fn publish(&self, occurrences: Vec<NewOccurrence>) -> EnqueueFuture<'_, ()> {
        Box::pin(async move {
            for occurrence in occurrences {
                self.record(occurrence);
            }
            Ok(())
        })
    }
}

/// Returns the record as JSON, with the inputs, which a failed test needs.
fn text(enqueued: &[NewOccurrence]) -> String {
    serde_json::to_string_pretty(enqueued).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::id::OccurrenceId;

    use super::*;
    use crate::enqueue::{Enqueue, EnqueueError, Enqueued};

    #[tokio::test]
    async fn record_has_each_accepted_occurrence_once() {
        let recording = RecordingClient::new();
        let parent = OccurrenceId::from_parts(crate::clock::now(), [1; 10]);
        let client = recording.client().with_parent(parent);
        recording.assert_nothing_enqueued();
        let first = client.enqueue(Enqueue::job("report").input(1).unique("a")).await.expect("accepted").id();
        let second = client.enqueue(Enqueue::job("report").unique("a")).await.expect("answered");
        assert_eq!(second, Enqueued::Duplicate(first));
        client
            .publish([Enqueue::job_type("mail", "send").input(7), Enqueue::job("other").id(first)])
            .await
            .expect("recorded");
        recording.assert_count(2);
        assert_eq!(recording.inputs::<u8>("mail", "send"), [7]);
        assert_eq!(recording.assert_enqueued_job("report").parent_id, Some(parent));
        recording.assert_enqueued_type("mail", "send");
    }

    #[tokio::test]
    async fn rejection_is_an_error_with_its_reason() {
        let recording = RecordingClient::new();
        recording.reject_with("No such job.");
        let error = recording.client().enqueue(Enqueue::job("report")).await.expect_err("rejected");
        assert!(matches!(&error, EnqueueError::Rejected { reason, .. } if reason == "No such job."), "{error}");
        recording.accept();
        recording.client().enqueue(Enqueue::job("report")).await.expect("accepted");
        recording.assert_count(1);
    }
}
