//! Claim checks: requests of workers whether an attempt may start, answered from PostgreSQL.
//!
//! A worker sends a claim check only for a message that may be a duplicate delivery, so there are few. After an outage
//! the broker redelivers many at once, which is why they are read and answered in batches. The reply goes to the direct
//! reply-to address of the worker. It is not confirmed, because a worker without a reply repeats its request.

use std::collections::HashMap;

use milvaion_protocol::{
    id::OccurrenceId,
    message::{ClaimReply, ClaimRequest},
};

use crate::{
    broker::{
        consumer::{BatchHandler, Channel, Delivery},
        reply,
    },
    domain::claim::{self, RecordedAttempt},
    engine::context::Context,
    faults,
    store::Store,
};

/// The consumer of the claim check queue.
#[derive(Clone, Debug)]
pub struct ClaimConsumer {
    /// The PostgreSQL store.
    pub store: Store,
}

impl ClaimConsumer {
    /// Creates the consumer of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self { store: context.reports.clone() }
    }
}

impl ClaimConsumer {
    /// Answers requests, in their order.
    ///
    /// # Errors
    ///
    /// Returns an error if PostgreSQL fails.
    pub async fn answer(&self, requests: Vec<ClaimRequest>) -> anyhow::Result<Vec<ClaimReply>> {
        let ids: Vec<OccurrenceId> = requests.iter().map(|request| request.occurrence_id).collect();
        let recorded: HashMap<OccurrenceId, RecordedAttempt> = self.store.recorded_attempts(&ids).await?;
        Ok(requests
            .into_iter()
            .map(|request| {
                let recorded = recorded.get(&request.occurrence_id);
                claim::answer(request, recorded)
            })
            .collect())
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
