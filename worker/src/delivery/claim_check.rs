//! Asking the server whether an attempt may start.
//!
//! The claim in Redis settles copies that come close together. It cannot know what happened before Redis was wiped, so
//! what may be a second copy (delivered again, or published again) is first checked with the server, which answers from
//! PostgreSQL. First copies, nearly all there are, cost no question.
//!
//! The question goes over a connection of its own, made when the first one is asked: a broker short of memory blocks
//! connections that publish, and the one that consumes must go on acknowledging. The answer comes back over the broker's
//! direct reply, which needs no queue.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use lapin::{
    BasicProperties, Channel, Connection, Consumer,
    options::{BasicConsumeOptions, BasicPublishOptions},
    types::{FieldTable, ShortString},
    uri::AMQPUri,
};
use milvaion_protocol::{
    message::{ClaimReply, ClaimRequest},
    topology::Topology,
};
use tokio::sync::{Mutex as AsyncMutex, oneshot};

use crate::{
    clock,
    delivery::claim::AttemptKey,
    net::connection::{self, JitteredBackoff},
    net::topology,
};

/// How long an answer is waited for. While no server is there the copy comes again and
/// again: late, but not double.
const CLAIM_CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// The broker's name for the asking channel itself.
const REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimCheckError {
    #[error("no server answered within {} s", CLAIM_CHECK_TIMEOUT.as_secs())]
    Timeout,
    #[error("the broker: {0}")]
    Broker(#[from] lapin::Error),
    #[error("the question cannot be written: {0}")]
    Encode(#[from] serde_json::Error),
}

/// Asks. Cloning gives the same one.
#[derive(Clone)]
pub(crate) struct ClaimChecker {
    uri: AMQPUri,
    topology: Topology,
    instance_id: String,
    claim_channel: Arc<AsyncMutex<Option<ClaimChannel>>>,
    pending_checks: PendingChecks,
}

type PendingChecks = Arc<Mutex<HashMap<String, oneshot::Sender<ClaimReply>>>>;

struct ClaimChannel {
    channel: Channel,
    connection: Connection,
}

impl ClaimChecker {
    /// Nothing is connected before the first question.
    pub(crate) fn new(uri: AMQPUri, topology: Topology, instance_id: String) -> Self {
        Self { uri, topology, instance_id, claim_channel: Arc::default(), pending_checks: PendingChecks::default() }
    }

    /// Asks whether an attempt may start.
    ///
    /// # Errors
    /// When nobody answers; nothing is known then.
    pub(crate) async fn check(&self, (occurrence_id, attempt): AttemptKey) -> Result<ClaimReply, ClaimCheckError> {
        let id = clock::random_id().to_string();
        let (sender, answer) = oneshot::channel();
        self.lock().insert(id.clone(), sender);
        // Also when whoever asked does not wait so long.
        let _forgotten = PendingCheckGuard { pending_checks: &self.pending_checks, id: &id };
        let request = ClaimRequest { occurrence_id, attempt, instance_id: self.instance_id.clone() };
        let asking = async {
            self.send(&id, &request).await?;
            answer.await.map_err(|_| ClaimCheckError::Timeout)
        };
        tokio::time::timeout(CLAIM_CHECK_TIMEOUT, asking).await.unwrap_or(Err(ClaimCheckError::Timeout))
    }

    async fn send(&self, id: &str, request: &ClaimRequest) -> Result<(), ClaimCheckError> {
        let channel = self.channel().await?;
        let name = self.topology.claims();
        // A question nobody waits for any more is not worth answering.
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_reply_to(REPLY_TO.into())
            .with_correlation_id(id.into())
            .with_expiration(CLAIM_CHECK_TIMEOUT.as_millis().to_string().into())
            .with_app_id(self.instance_id.as_str().into());
        let body = serde_json::to_vec(request)?;
        channel
            .basic_publish(
                name.as_str().into(),
                name.as_str().into(),
                BasicPublishOptions::default(),
                &body,
                properties,
            )
            .await?;
        Ok(())
    }

    /// The channel questions go over, opened if there is none.
    async fn channel(&self) -> Result<Channel, lapin::Error> {
        let mut claim_channel = self.claim_channel.lock().await;
        if let Some(claim_channel) =
            claim_channel.as_ref().filter(|claim_channel| claim_channel.channel.status().connected())
        {
            return Ok(claim_channel.channel.clone());
        }
        if let Some(old) = claim_channel.take() {
            connection::close(&old.connection).await;
        }
        let name = format!("{} claims", self.instance_id);
        let connection = connection::open(&self.uri, &name, &mut JitteredBackoff::new()).await;
        let channel = connection.create_channel().await?;
        topology::declare_shared(&channel, &self.topology).await?;
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let answers =
            channel.basic_consume(REPLY_TO.into(), ShortString::default(), options, FieldTable::default()).await?;
        tokio::spawn(listen(answers, self.pending_checks.clone()));
        *claim_channel = Some(ClaimChannel { channel: channel.clone(), connection });
        Ok(channel)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, oneshot::Sender<ClaimReply>>> {
        self.pending_checks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets a question when nobody waits for its answer any more.
struct PendingCheckGuard<'a> {
    pending_checks: &'a PendingChecks,
    id: &'a str,
}

impl Drop for PendingCheckGuard<'_> {
    fn drop(&mut self) {
        self.pending_checks.lock().unwrap_or_else(PoisonError::into_inner).remove(self.id);
    }
}

/// Hands answers to those who asked, until the channel is gone.
async fn listen(mut answers: Consumer, pending_checks: PendingChecks) {
    while let Some(Ok(answer)) = answers.next().await {
        let waiting = answer
            .properties
            .correlation_id()
            .as_ref()
            .and_then(|id| pending_checks.lock().unwrap_or_else(PoisonError::into_inner).remove(id.as_str()));
        match (waiting, serde_json::from_slice(&answer.data)) {
            (Some(waiting), Ok(reply)) => drop(waiting.send(reply)),
            (_, Err(error)) => tracing::warn!(error = %error, "the server's answer about a claim cannot be read"),
            // Whoever asked has given up.
            (None, Ok(_)) => {}
        }
    }
}
