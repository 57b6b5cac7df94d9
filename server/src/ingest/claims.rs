//! Questions whether an attempt may start, answered from PostgreSQL.
//!
//! A worker asks only about a message that may be a second copy, so there are few; a broker that came back has many at
//! once, which is why they are read and answered in batches. The answer goes to the queue the worker named, through the
//! broker's default exchange: it is not confirmed, for a worker that hears nothing asks again.

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
    faults,
    store::Store,
};

/// The consumer of the claims queue.
#[derive(Clone, Debug)]
pub struct ClaimConsumer {
    /// The truth.
    pub store: Store,
}

impl ClaimConsumer {
    /// Answers some requests, in their order.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn answer(&self, requests: Vec<ClaimRequest>) -> anyhow::Result<Vec<ClaimReply>> {
        let ids: Vec<OccurrenceId> = requests.iter().map(|request| request.occurrence_id).collect();
        let known: HashMap<OccurrenceId, RecordedAttempt> = self.store.recorded_attempts(&ids).await?;
        Ok(requests
            .into_iter()
            .map(|request| {
                let known = known.get(&request.occurrence_id);
                claim::answer(request, known)
            })
            .collect())
    }
}

impl BatchHandler for ClaimConsumer {
    const NAME: &'static str = "milvaion server claims";

    async fn handle(&self, _: Vec<Vec<u8>>) -> anyhow::Result<()> {
        // Without its envelope a question cannot be answered.
        Ok(())
    }

    async fn handle_deliveries(&self, channel: &Channel, batch: &[Delivery]) -> anyhow::Result<()> {
        let mut requests = Vec::with_capacity(batch.len());
        let mut asked = Vec::with_capacity(batch.len());
        for delivery in batch {
            match serde_json::from_slice::<ClaimRequest>(&delivery.data) {
                Ok(request) if reply::is_requested(delivery) => {
                    requests.push(request);
                    asked.push(delivery);
                }
                Ok(_) => tracing::warn!("a question about a claim names nobody to answer; it is let go"),
                Err(error) => tracing::warn!(error = %error, "a question about a claim cannot be read"),
            }
        }
        let answers = self.answer(requests).await?;
        faults::point("claims.before_reply");
        for (answer, delivery) in answers.into_iter().zip(asked) {
            reply::send(channel, delivery, &serde_json::to_vec(&answer)?).await?;
        }
        Ok(())
    }
}
