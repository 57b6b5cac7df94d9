//! The client of the ingest queue.
//!
//! Occurrences are published in messages of at most 500 occurrences and 1 MiB, each confirmed by the broker. For an answer
//! of the server, a message names the broker's direct reply-to, which needs no queue. A message that is not confirmed or
//! not answered is published again with the same ids, over a new connection if the old one is lost, until the deadline:
//! the server creates each id once, so a repetition is harmless.
//!
//! The client declares nothing, so its account needs the permission to write to one exchange only. Until a server has
//! declared the ingest queue, messages are unroutable and are repeated as well.

mod batches;
mod channel;

use std::{fmt, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use lapin::uri::AMQPUri;
use milvaion_protocol::{
    backoff::Backoff,
    message::{IngestOutcome, IngestReply, IngestResult, NewOccurrence},
    topology::{DEFAULT_BROKER_PREFIX, Topology},
};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout_at},
};

use self::{
    batches::{Batch, split},
    channel::{AnswerMode, BrokerError, IngestChannel},
};
use crate::enqueue::{EnqueueError, EnqueueFuture, EnqueueTransport, Unanswered, with_causes};

/// Default time for which unanswered messages are repeated.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(30);
/// Maximum wait for the answer to one message, after which it is published again.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of messages in flight, so that a bulk does not wait for each answer and never floods the server.
const MAX_MESSAGES_IN_FLIGHT: usize = 4;
/// Maximum length of the producer's name, in characters.
const MAX_PRODUCER_CHARS: usize = 200;

/// Publishes new occurrences on the ingest queue. It connects at the first use; clones share the connection. An
/// [`EnqueueClient`](crate::EnqueueClient) takes the descriptions of occurrences and passes them to it:
///
/// ```no_run
/// use milvaion_client::{BrokerClient, Enqueue, EnqueueClient, EnqueueError, Enqueued};
///
/// # async fn example() -> Result<(), EnqueueError> {
/// let client = EnqueueClient::new(BrokerClient::from_env()?.with_producer("shop"));
/// let mails = ["ada@example.com", "ben@example.com"].map(|to| Enqueue::job("send-mail").input(to));
/// for result in client.enqueue_all(mails).await? {
///     let id = Enqueued::try_from(result)?.id();
///     println!("enqueued {id}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct BrokerClient {
    shared: Arc<Shared>,
    producer: String,
    deadline: Duration,
}

struct Shared {
    uri: AMQPUri,
    exchange: String,
    channel: Mutex<Option<Arc<IngestChannel>>>,
}

impl fmt::Debug for BrokerClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address contains a passphrase.
        f.debug_struct("BrokerClient")
            .field("exchange", &self.shared.exchange)
            .field("producer", &self.producer)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl BrokerClient {
    /// Creates a client of the broker at `AMQP_URL`, with the prefix in `MILVAION_PREFIX` (`milvaion` by default): the
    /// environment variables of workers.
    ///
    /// # Errors
    /// Returns [`EnqueueError::MissingAddress`] if `AMQP_URL` is not set, and [`EnqueueError::InvalidAddress`] if it is no AMQP
    /// address.
    pub fn from_env() -> Result<Self, EnqueueError> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, EnqueueError> {
        let read = |name| lookup(name).filter(|value| !value.is_empty());
        let prefix = read("MILVAION_PREFIX");
        let address = read("AMQP_URL").ok_or(EnqueueError::MissingAddress)?;
        Self::new(&address, prefix.as_deref().unwrap_or(DEFAULT_BROKER_PREFIX))
    }

    /// Creates a client of the broker at `amqp_url`. `prefix` is that of the server's exchanges, `milvaion` by default.
    ///
    /// # Errors
    /// Returns [`EnqueueError::InvalidAddress`] if the text is no AMQP address.
    pub fn new(amqp_url: &str, prefix: &str) -> Result<Self, EnqueueError> {
        let uri = amqp_url.parse::<AMQPUri>().map_err(|reason| EnqueueError::InvalidAddress { reason })?;
        let shared = Shared { uri, exchange: Topology::new(prefix).ingest(), channel: Mutex::default() };
        Ok(Self { shared: Arc::new(shared), producer: String::new(), deadline: DEFAULT_DEADLINE })
    }

    /// Sets the name of this program, for display: on the management pages of the broker and at the occurrences. At most 200
    /// characters are used.
    #[must_use]
    pub fn with_producer(mut self, name: &str) -> Self {
        self.producer = name.chars().take(MAX_PRODUCER_CHARS).collect();
        self
    }

    /// Sets the time for which unanswered messages are repeated. Default 30 seconds.
    #[must_use]
    pub const fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Creates occurrences, any number of them, and returns one result for each, in their order. If the server refuses a
    /// message as a whole, each of its occurrences is rejected.
    ///
    /// # Errors
    /// Returns [`EnqueueError::Unanswered`] with the occurrences that have no answer at the deadline, and the results of the
    /// others.
    pub async fn enqueue(&self, occurrences: Vec<NewOccurrence>) -> Result<Vec<IngestResult>, EnqueueError> {
        self.send(occurrences, AnswerMode::Reply).await
    }

    /// Publishes occurrences, any number of them, until the broker has confirmed all. The server does not answer: one that it
    /// refuses becomes a dead letter.
    ///
    /// # Errors
    /// Returns [`EnqueueError::Unanswered`] with the occurrences that the broker has not confirmed at the deadline.
    pub async fn publish(&self, occurrences: Vec<NewOccurrence>) -> Result<(), EnqueueError> {
        self.send(occurrences, AnswerMode::ConfirmOnly).await.map(drop)
    }

    async fn send(&self, occurrences: Vec<NewOccurrence>, mode: AnswerMode) -> Result<Vec<IngestResult>, EnqueueError> {
        let (deadline, total) = (Instant::now() + self.deadline, occurrences.len());
        let batches = split(occurrences, &self.producer)?;
        let answers = stream::iter(batches).map(|batch| async {
            let answer = self.repeat(&batch, mode, deadline).await;
            (batch, answer)
        });
        // All of them, because the caller must learn of each occurrence whether it was handed over.
        let answers: Vec<_> = answers.buffered(MAX_MESSAGES_IN_FLIGHT).collect().await;
        let (mut results, mut unanswered, mut last_failure) = (Vec::new(), Vec::new(), None);
        for (batch, answer) in answers {
            match (answer, mode) {
                (Ok(Some(IngestReply { error: Some(reason), .. })), _) => {
                    results.extend(batch.occurrences.iter().map(|occurrence| IngestResult {
                        reason: Some(reason.clone()),
                        ..IngestResult::new(occurrence.id, IngestOutcome::Rejected)
                    }));
                }
                (Ok(Some(reply)), _) => results.extend(reply.results),
                (Ok(None), AnswerMode::ConfirmOnly) => {}
                (Ok(None), AnswerMode::Reply) => {
                    unanswered.extend(batch.occurrences);
                    last_failure = Some(BrokerError::NoReply);
                }
                (Err(failure), _) => {
                    unanswered.extend(batch.occurrences);
                    last_failure = Some(failure);
                }
            }
        }
        match last_failure {
            None => Ok(results),
            Some(failure) => Err(EnqueueError::Unanswered(Box::new(Unanswered {
                occurrences: unanswered,
                results,
                total,
                seconds: self.deadline.as_secs(),
                reason: with_causes(&failure),
            }))),
        }
    }

    /// Closes the connection, if there is one. The next use opens another one.
    pub async fn close(&self) {
        if let Some(channel) = self.shared.channel.lock().await.take() {
            channel.close().await;
        }
    }

    /// Publishes a message until it is answered or the deadline has passed.
    async fn repeat(
        &self,
        batch: &Batch,
        mode: AnswerMode,
        deadline: Instant,
    ) -> Result<Option<IngestReply>, BrokerError> {
        let mut backoff = Backoff::default();
        loop {
            let limit = deadline.min(Instant::now() + REPLY_TIMEOUT);
            let failure = match timeout_at(limit, self.try_once(batch, mode)).await {
                Ok(Ok(reply)) => return Ok(reply),
                Ok(Err(failure)) => failure,
                Err(_) => BrokerError::NoReply,
            };
            let wait = backoff.next_delay(rand::random());
            if Instant::now() + wait >= deadline {
                return Err(failure);
            }
            tracing::debug!(
                error = with_causes(&failure),
                occurrence.count = batch.occurrences.len(),
                retry_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
                "new occurrences were not accepted yet; they are published again with the same ids"
            );
            tokio::time::sleep(wait).await;
        }
    }

    async fn try_once(&self, batch: &Batch, mode: AnswerMode) -> Result<Option<IngestReply>, BrokerError> {
        let channel = self.channel().await?;
        let answer = channel.send(&self.shared.exchange, &batch.body, mode).await?;
        // A reply that does not fit the message is not an answer to it.
        if let Some(reply) = &answer
            && reply.error.is_none()
            && !batch
                .occurrences
                .iter()
                .map(|occurrence| occurrence.id)
                .eq(reply.results.iter().map(|result| result.id))
        {
            return Err(BrokerError::OtherReply);
        }
        Ok(answer)
    }

    /// Returns the open channel, and opens one if there is none.
    async fn channel(&self) -> Result<Arc<IngestChannel>, BrokerError> {
        let mut current = self.shared.channel.lock().await;
        if let Some(channel) = current.as_ref().filter(|channel| channel.is_open()) {
            return Ok(channel.clone());
        }
        if let Some(old) = current.take() {
            // In the background, because a connection that was lost takes its time.
            tokio::spawn(async move { old.close().await });
        }
        let name = if self.producer.is_empty() { "milvaion client" } else { &self.producer };
        let channel = Arc::new(IngestChannel::open(&self.shared.uri, name).await?);
        Ok(current.insert(channel).clone())
    }
}

impl EnqueueTransport for BrokerClient {
    fn enqueue(&self, occurrences: Vec<NewOccurrence>) -> EnqueueFuture<'_, Vec<IngestResult>> {
        Box::pin(Self::enqueue(self, occurrences))
    }

    fn publish(&self, occurrences: Vec<NewOccurrence>) -> EnqueueFuture<'_, ()> {
        Box::pin(Self::publish(self, occurrences))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn everything_that_is_not_handed_over_belongs_to_the_caller() {
        // No broker listens on this port.
        let client = BrokerClient::new("amqp://127.0.0.1:1/%2f", "t").expect("a valid address");
        let occurrences = || vec![NewOccurrence { job_key: Some("a".into()), ..NewOccurrence::default() }; 2_700];
        let client = client.with_deadline(Duration::from_millis(300));
        for result in [client.publish(occurrences()).await, client.enqueue(occurrences()).await.map(drop)] {
            let Err(EnqueueError::Unanswered(unanswered)) = result else { panic!("{result:?}") };
            assert_eq!((unanswered.occurrences.len(), unanswered.results.len()), (2_700, 0));
        }
    }

    #[test]
    fn client_of_the_environment_has_the_variables_of_a_worker() {
        let of = |variables: &[(&str, &str)]| {
            let value = |name: &str| variables.iter().find(|one| one.0 == name).map(|one| one.1.to_owned());
            BrokerClient::from_lookup(value).map(|client| client.shared.exchange.clone())
        };
        let address = ("AMQP_URL", "amqp://127.0.0.1:5672/%2f");
        assert_eq!(of(&[address]).expect("a client"), Topology::default().ingest());
        assert_eq!(of(&[address, ("MILVAION_PREFIX", "shop")]).expect("a client"), Topology::new("shop").ingest());
        assert!(matches!(of(&[("AMQP_URL", "")]), Err(EnqueueError::MissingAddress)));
        assert!(matches!(of(&[("AMQP_URL", "127.0.0.1")]), Err(EnqueueError::InvalidAddress { .. })));
    }
}
