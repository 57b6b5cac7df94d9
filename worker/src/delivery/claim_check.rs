//! The claim check: a request to the server whether an attempt may start.
//!
//! The claim in Redis settles duplicates that arrive close together. It does not cover the time before Redis lost its
//! data. A possible duplicate (redelivered or republished) is therefore first checked with the server, which answers
//! from PostgreSQL. First deliveries, which are nearly all, need no check.
//!
//! Requests use a connection of their own, which is opened for the first one. A broker short of memory blocks
//! connections that publish, and the consuming connection must remain able to acknowledge. Replies arrive over the
//! broker's direct reply-to, which needs no queue.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use chrono::{DateTime, Utc};
use futures::StreamExt;
use lapin::{
    BasicProperties, Channel, Connection, Consumer,
    options::{BasicConsumeOptions, BasicPublishOptions},
    types::{FieldTable, ShortString},
    uri::AMQPUri,
};
use milvaion_protocol::{
    backoff::Backoff,
    message::{ClaimReply, ClaimRequest},
    topology::Topology,
};
use tokio::{
    sync::{Mutex as AsyncMutex, oneshot},
    task::JoinHandle,
};

use crate::{clock, delivery::claim::AttemptKey, net::connection, net::topology};

/// Maximum wait for a reply. As long as no server is available, the duplicate is redelivered again and again: it starts
/// late, but not twice.
const CLAIM_CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// Pseudo-queue of the broker that delivers replies to the requesting channel.
const REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// The reason that a claim check has no reply.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimCheckError {
    #[error("no server replied within {} s", CLAIM_CHECK_TIMEOUT.as_secs())]
    Timeout,
    #[error("the claim check cannot be sent to the broker")]
    Broker(#[from] lapin::Error),
    #[error("the claim check cannot be encoded as JSON")]
    Encode(#[from] serde_json::Error),
}

/// Sends claim checks and receives their replies. Clones share one connection.
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
    /// The task that receives replies. Without it every check would time out.
    listener: JoinHandle<()>,
    connection: Connection,
}

impl ClaimChecker {
    /// Creates a checker. It connects for the first check.
    pub(crate) fn new(uri: AMQPUri, topology: Topology, instance_id: String) -> Self {
        Self { uri, topology, instance_id, claim_channel: Arc::default(), pending_checks: PendingChecks::default() }
    }

    /// Checks with the server whether an attempt may start.
    ///
    /// # Errors
    /// Returns [`ClaimCheckError`] if no reply arrives. Whether the attempt may start is then unknown.
    pub(crate) async fn check(&self, attempt: AttemptKey) -> Result<ClaimReply, ClaimCheckError> {
        self.ask(attempt, None).await
    }

    /// Checks with the server whether an attempt may start, and announces its start, which follows if it is granted. The
    /// server records the start, so that it replaces the claim that cannot be made.
    ///
    /// # Errors
    /// Returns [`ClaimCheckError`] if no reply arrives. Whether the attempt may start is then unknown.
    pub(crate) async fn announce_start(&self, attempt: AttemptKey) -> Result<ClaimReply, ClaimCheckError> {
        self.ask(attempt, Some(clock::now())).await
    }

    async fn ask(
        &self,
        (occurrence_id, attempt): AttemptKey,
        starts_at: Option<DateTime<Utc>>,
    ) -> Result<ClaimReply, ClaimCheckError> {
        let id = clock::random_id().to_string();
        let (sender, reply) = oneshot::channel();
        self.lock().insert(id.clone(), sender);
        // Also removes the entry if the caller stops waiting.
        let _guard = PendingCheckGuard { pending_checks: &self.pending_checks, id: &id };
        let request = ClaimRequest { occurrence_id, attempt, instance_id: self.instance_id.clone(), starts_at };
        let checking = async {
            self.send(&id, &request).await?;
            reply.await.map_err(|_| ClaimCheckError::Timeout)
        };
        tokio::time::timeout(CLAIM_CHECK_TIMEOUT, checking).await.unwrap_or(Err(ClaimCheckError::Timeout))
    }

    async fn send(&self, id: &str, request: &ClaimRequest) -> Result<(), ClaimCheckError> {
        let channel = self.channel().await?;
        let name = self.topology.claims();
        // The request expires when the caller has stopped waiting for the reply.
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

    /// Returns the channel for requests, and opens it if there is none.
    async fn channel(&self) -> Result<Channel, lapin::Error> {
        let mut claim_channel = self.claim_channel.lock().await;
        if let Some(claim_channel) =
            claim_channel.as_ref().filter(|open| open.channel.status().connected() && !open.listener.is_finished())
        {
            return Ok(claim_channel.channel.clone());
        }
        if let Some(old) = claim_channel.take() {
            connection::close(&old.connection).await;
        }
        let name = format!("{} claims", self.instance_id);
        let connection = connection::open(&self.uri, &name, &mut Backoff::default()).await;
        let channel = connection.create_channel().await?;
        topology::declare_shared(&channel, &self.topology).await?;
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let replies =
            channel.basic_consume(REPLY_TO.into(), ShortString::default(), options, FieldTable::default()).await?;
        let listener = tokio::spawn(listen(replies, self.pending_checks.clone()));
        *claim_channel = Some(ClaimChannel { channel: channel.clone(), listener, connection });
        Ok(channel)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, oneshot::Sender<ClaimReply>>> {
        self.pending_checks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes a pending check when its caller stops waiting.
struct PendingCheckGuard<'a> {
    pending_checks: &'a PendingChecks,
    id: &'a str,
}

impl Drop for PendingCheckGuard<'_> {
    fn drop(&mut self) {
        self.pending_checks.lock().unwrap_or_else(PoisonError::into_inner).remove(self.id);
    }
}

/// Passes replies to their callers until the channel closes.
async fn listen(mut replies: Consumer, pending_checks: PendingChecks) {
    while let Some(Ok(delivery)) = replies.next().await {
        let caller = delivery
            .properties
            .correlation_id()
            .as_ref()
            .and_then(|id| pending_checks.lock().unwrap_or_else(PoisonError::into_inner).remove(id.as_str()));
        match (caller, serde_json::from_slice(&delivery.data)) {
            (Some(caller), Ok(reply)) => drop(caller.send(reply)),
            (_, Err(error)) => tracing::warn!(error = %error, "cannot decode the server's reply to a claim check"),
            // The caller has stopped waiting.
            (None, Ok(_)) => {}
        }
    }
}
