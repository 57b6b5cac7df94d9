//! Ingest: receives and stores the messages of workers.
//!
//! Delivery is at-least-once and in batches. Each batch is one transaction, or a few for a large one, and is
//! acknowledged only after the last commit. After a crash in between, the broker redelivers the batch, and the part
//! that was stored changes nothing. A message that cannot be read, or can never be stored, is logged and dropped. A
//! report that can never be stored becomes a dead letter: the constraint that refuses it may belong to a newer server,
//! and nothing sends it again. A message about an unknown occurrence changes nothing. None of them stops the rest of the
//! batch.

pub mod claims;
pub mod dead_letters;
pub mod delivery_log;
pub mod enqueue;
pub mod logs;
pub mod registration;
pub mod status;

use crate::{error::body_excerpt, store::StoreError};

/// Returns true if a retry after `error` may succeed.
fn is_retryable(error: &anyhow::Error) -> bool {
    !error.downcast_ref::<StoreError>().is_some_and(StoreError::is_permanent)
}

/// Parses each body, and logs and drops those that cannot be read.
fn read<T: serde::de::DeserializeOwned>(consumer: &str, bodies: Vec<Vec<u8>>) -> Vec<T> {
    bodies
        .into_iter()
        .filter_map(|body| match serde_json::from_slice(&body) {
            Ok(message) => Some(message),
            Err(error) => {
                log_unreadable(consumer, &body, &error);
                None
            }
        })
        .collect()
}

fn log_unreadable(consumer: &str, body: &[u8], error: &serde_json::Error) {
    tracing::warn!(consumer, error = %error, body.bytes = body.len(), body.start = body_excerpt(body), "a worker's message cannot be read and is dropped");
}
