//! Ingest: receives and stores the messages of workers.
//!
//! Delivery is at-least-once and in batches. Each batch is one transaction, or a few for a large one, and is
//! acknowledged only after the last commit. After a crash in between, the broker redelivers the batch, and the part
//! that was stored changes nothing. Of a message that cannot be read in part, the rest counts; what cannot be read is
//! logged, counted at its instance and noted at its occurrence. A message that can never be stored is logged and dropped. A
//! report that can never be stored becomes a dead letter: the constraint that refuses it may belong to a newer server,
//! and nothing sends it again. A message about an unknown occurrence changes nothing. None of them stops the rest of the
//! batch.

pub mod claims;
pub mod dead_letters;
pub mod enqueue;
pub mod logs;
pub mod registration;
pub mod status;
mod unreadable;

use crate::{broker::consumer::Delivery, error::body_excerpt, store::StoreError};

/// Returns the instance that the properties of a message name.
fn sender(delivery: &Delivery) -> Option<String> {
    delivery.properties.app_id().as_ref().map(|id| id.as_str().to_owned()).filter(|id| !id.is_empty())
}

/// Returns true if a retry after `error` may succeed.
fn is_retryable(error: &anyhow::Error) -> bool {
    !error.downcast_ref::<StoreError>().is_some_and(StoreError::is_permanent)
}

fn log_unreadable(consumer: &str, body: &[u8], error: &dyn std::fmt::Display) {
    tracing::warn!(consumer, error = %error, body.bytes = body.len(), body.start = body_excerpt(body), "a worker's message cannot be read and is dropped");
}
