//! New occurrences from code, whatever carries them to the server.
//!
//! [`Enqueue`] describes an occurrence. An [`EnqueueTransport`] carries it: the broker, the REST API, or in tests a double
//! that records it. [`EnqueueClient`] joins both and adds the occurrence that is running as the parent, so a job enqueues
//! in one line, and its tests need no services.
//!
//! The id of an occurrence is made before the first try. A caller that has no answer can therefore repeat the same
//! occurrence for seven days, and the server creates it once.
//!
//! ```
//! # use std::time::Duration;
//! # use milvaion_client::{Enqueue, EnqueueClient, EnqueueError};
//! # async fn enqueue(client: EnqueueClient) -> Result<(), EnqueueError> {
//! let mail = Enqueue::job_type("mail", "send").input(serde_json::json!({ "to": "ada@example.com" }));
//! client.enqueue(mail.after(Duration::from_secs(60)).unique("welcome-ada")).await?;
//! # Ok(())
//! # }
//! ```

mod builder;
mod error;

use std::{fmt, pin::Pin, sync::Arc};

use milvaion_protocol::{
    id::OccurrenceId,
    message::{IngestOutcome, IngestResult, NewOccurrence},
    trace::Traceparent,
};

pub use builder::Enqueue;
#[cfg(any(feature = "broker", feature = "rest"))]
pub(crate) use error::with_causes;
pub use error::{EnqueueError, Unanswered};

/// The future of an operation of a transport.
pub type EnqueueFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, EnqueueError>> + Send + 'a>>;

/// A way for new occurrences to reach the server.
pub trait EnqueueTransport: fmt::Debug + Send + Sync {
    /// Creates occurrences, any number of them, and returns one result for each, in their order.
    ///
    /// # Errors
    /// Returns [`EnqueueError`] if the server has not answered for all of them.
    fn enqueue(&self, occurrences: Vec<NewOccurrence>) -> EnqueueFuture<'_, Vec<IngestResult>>;

    /// Hands occurrences over, without an answer of the server. One that the server refuses becomes a dead letter.
    ///
    /// # Errors
    /// Returns [`EnqueueError`] if it is not certain that all of them were handed over.
    fn publish(&self, occurrences: Vec<NewOccurrence>) -> EnqueueFuture<'_, ()>;
}

/// The result of enqueueing one occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Enqueued {
    /// The occurrence exists.
    Accepted(OccurrenceId),
    /// An occurrence with the same uniqueness key exists, so nothing was created.
    Duplicate(OccurrenceId),
}

impl Enqueued {
    /// Returns the occurrence that stands for the request: the new one, or the existing one.
    #[must_use]
    pub const fn id(self) -> OccurrenceId {
        match self {
            Self::Accepted(id) | Self::Duplicate(id) => id,
        }
    }
}

impl TryFrom<IngestResult> for Enqueued {
    type Error = EnqueueError;

    /// Returns [`EnqueueError::Rejected`] with the server's reason if nothing was created.
    fn try_from(result: IngestResult) -> Result<Self, EnqueueError> {
        match result.outcome {
            IngestOutcome::Accepted => Ok(Self::Accepted(result.id)),
            IngestOutcome::Duplicate => Ok(Self::Duplicate(result.existing_id.unwrap_or(result.id))),
            // Rejected, or a word of a newer server.
            _ => {
                let reason = result.reason.unwrap_or_else(|| "The server gave no reason.".to_owned());
                Err(EnqueueError::Rejected { id: result.id, reason, is_retryable: result.retryable })
            }
        }
    }
}

/// Enqueues occurrences over a transport. Clones share the transport.
#[derive(Clone, Debug)]
pub struct EnqueueClient {
    transport: Arc<dyn EnqueueTransport>,
    parent: Option<OccurrenceId>,
    traceparent: Option<Traceparent>,
}

impl EnqueueClient {
    /// Creates a client of a transport.
    #[must_use]
    pub fn new(transport: impl EnqueueTransport + 'static) -> Self {
        Self::shared(Arc::new(transport))
    }

    /// Creates a client of a transport that others use as well.
    #[must_use]
    pub fn shared(transport: Arc<dyn EnqueueTransport>) -> Self {
        Self { transport, parent: None, traceparent: None }
    }

    /// Returns a client that records `parent` as the parent of each occurrence that names none.
    #[must_use]
    pub fn with_parent(mut self, parent: OccurrenceId) -> Self {
        self.parent = Some(parent);
        self
    }

    /// Returns a client whose occurrences continue a trace, if they name none.
    #[must_use]
    pub fn with_trace(mut self, traceparent: Option<Traceparent>) -> Self {
        self.traceparent = traceparent;
        self
    }

    /// Creates one occurrence.
    ///
    /// # Errors
    /// Returns [`EnqueueError::Rejected`] with the server's reason if the occurrence is not acceptable, and another
    /// [`EnqueueError`] if it cannot be written or the server has not answered.
    pub async fn enqueue(&self, occurrence: Enqueue) -> Result<Enqueued, EnqueueError> {
        let occurrence = self.complete(occurrence)?;
        let id = occurrence.id;
        let result = self.transport.enqueue(vec![occurrence]).await?.into_iter().next();
        let Some(result) = result else {
            return Err(EnqueueError::NoResult { id });
        };
        Enqueued::try_from(result)
    }

    /// Creates occurrences, any number of them, and returns one result for each, in their order. A rejected one is no error
    /// here, because the others exist; [`Enqueued::try_from`] makes an error of its result.
    ///
    /// # Errors
    /// Returns [`EnqueueError`] if one of them cannot be written; then none is created. Returns
    /// [`EnqueueError::Unanswered`] if the server has not answered for all of them; it has the results of the others.
    pub async fn enqueue_all(
        &self,
        occurrences: impl IntoIterator<Item = Enqueue>,
    ) -> Result<Vec<IngestResult>, EnqueueError> {
        let occurrences = occurrences.into_iter().map(|occurrence| self.complete(occurrence));
        self.transport.enqueue(occurrences.collect::<Result<_, _>>()?).await
    }

    /// Hands occurrences over, without an answer of the server. It is faster, and one that the server refuses becomes a dead
    /// letter.
    ///
    /// # Errors
    /// Returns [`EnqueueError`] if one of them cannot be written, and [`EnqueueError::Unanswered`] with all occurrences of
    /// which it is not certain that they were handed over. Over the REST API, which always answers, it also returns
    /// [`EnqueueError::Rejected`] for the first one that is not acceptable.
    pub async fn publish(&self, occurrences: impl IntoIterator<Item = Enqueue>) -> Result<(), EnqueueError> {
        let occurrences = occurrences.into_iter().map(|occurrence| self.complete(occurrence));
        self.transport.publish(occurrences.collect::<Result<_, _>>()?).await
    }

    fn complete(&self, occurrence: Enqueue) -> Result<NewOccurrence, EnqueueError> {
        let mut occurrence = occurrence.build()?;
        occurrence.parent_id = occurrence.parent_id.or(self.parent);
        if occurrence.traceparent.is_none() {
            occurrence.traceparent = self.traceparent.map(|trace| trace.to_string());
        }
        Ok(occurrence)
    }
}
