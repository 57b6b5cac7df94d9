//! Claim checks: requests of workers whether an attempt may start, answered from PostgreSQL.
//!
//! A worker sends a claim check only for a message that may be a duplicate delivery, so there are few. After an outage
//! the broker redelivers many at once, which is why they are read and answered in batches. The reply goes to the direct
//! reply-to address of the worker. It is not confirmed, because a worker without a reply repeats its request.
//!
//! A worker that cannot reach Redis announces the start of a first delivery. The start is recorded before it is granted:
//! if the worker dies before it has reported anything, and its message is redelivered, the next claim check finds it.

use std::collections::HashMap;

use milvaion_api::events::LiveEvent;
use milvaion_protocol::{
    id::OccurrenceId,
    message::{ClaimReply, ClaimRequest, StatusReport},
};

use crate::{
    broker::{
        consumer::{BatchHandler, Channel, Delivery},
        reply,
    },
    clock::Clock,
    domain::{
        claim::{self, RecordedAttempt},
        transition,
    },
    engine::context::Context,
    faults,
    live::Hub,
    store::Store,
};

/// The recorded states of the occurrences in a batch of requests.
type RecordedAttempts = HashMap<OccurrenceId, RecordedAttempt>;

/// The consumer of the claim check queue.
#[derive(Clone, Debug)]
pub struct ClaimConsumer {
    /// The PostgreSQL store.
    pub store: Store,
    /// The hub for live events.
    pub hub: Hub,
    /// The server's clock.
    pub clock: Clock,
}

impl ClaimConsumer {
    /// Creates the consumer of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self { store: context.reports.clone(), hub: context.hub.clone(), clock: context.clock.clone() }
    }
}

impl ClaimConsumer {
    /// Answers requests, in their order. Records the starts that it grants.
    ///
    /// # Errors
    ///
    /// Returns an error if PostgreSQL fails.
    pub async fn answer(&self, requests: Vec<ClaimRequest>) -> anyhow::Result<Vec<ClaimReply>> {
        let mut recorded = self.recorded(&requests).await?;
        let reply = |request: &ClaimRequest, recorded: &RecordedAttempts| {
            claim::answer(request, recorded.get(&request.occurrence_id))
        };
        let granted = requests.iter().filter(|request| reply(request, &recorded).granted);
        let starts: Vec<StatusReport> =
            claim::announced_starts(granted).into_iter().map(transition::sanitize_report).collect();
        if !starts.is_empty() {
            let now = self.clock.now();
            let rows = self.store.apply(&transition::fold(starts), now).await?.rows;
            if !rows.is_empty() {
                self.hub.publish(now, vec![LiveEvent::Occurrences { rows }]);
            }
            // Another instance may have been first.
            recorded = self.recorded(&requests).await?;
        }
        Ok(requests.iter().map(|request| reply(request, &recorded)).collect())
    }

    async fn recorded(&self, requests: &[ClaimRequest]) -> anyhow::Result<RecordedAttempts> {
        let ids: Vec<OccurrenceId> = requests.iter().map(|request| request.occurrence_id).collect();
        Ok(self.store.recorded_attempts(&ids).await?)
    }
}

impl BatchHandler for ClaimConsumer {
    const NAME: &'static str = "milvaion server claims";

    async fn handle(&self, _: Vec<Vec<u8>>) -> anyhow::Result<()> {
        // A body without its properties names no reply queue.
        Ok(())
    }

    async fn handle_deliveries(&self, channel: &Channel, batch: &[Delivery]) -> anyhow::Result<()> {
        let mut requests = Vec::with_capacity(batch.len());
        let mut to_answer = Vec::with_capacity(batch.len());
        for delivery in batch {
            match serde_json::from_slice::<ClaimRequest>(&delivery.data) {
                Ok(request) if reply::is_requested(delivery) => {
                    requests.push(request);
                    to_answer.push(delivery);
                }
                Ok(_) => tracing::warn!(
                    "a claim check names no direct reply-to address and is dropped; send it with reply_to set to amq.rabbitmq.reply-to"
                ),
                Err(error) => tracing::warn!(error = %error, "a claim check cannot be read and is dropped"),
            }
        }
        let answers = self.answer(requests).await?;
        faults::crash_point("claims.before_reply");
        for (answer, delivery) in answers.into_iter().zip(to_answer) {
            reply::send(channel, delivery, &serde_json::to_vec(&answer)?).await?;
        }
        Ok(())
    }
}
