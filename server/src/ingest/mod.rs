//! What workers tell the server.
//!
//! Everything arrives at least once, and it arrives in batches: one transaction for each batch, or a few for a large one,
//! and only after the last commit is the batch acknowledged. A server that dies in between gets the batch again and finds
//! that what it had stored changes nothing. What cannot be read, or never be stored, is logged and let go; what is about
//! something unknown changes nothing; none of it may stop the rest.

pub mod claims;
pub mod dead_letters;
pub mod logs;
pub mod registration;
pub mod status;

use crate::{error::body_excerpt, store::StoreError};

/// Whether the bodies that failed like this could fare better another time.
fn is_retryable(error: &anyhow::Error) -> bool {
    !error.downcast_ref::<StoreError>().is_some_and(StoreError::is_about_values)
}

/// Reads each body, logging those that cannot be read.
fn read<T: serde::de::DeserializeOwned>(consumer: &str, bodies: Vec<Vec<u8>>) -> Vec<T> {
    bodies
        .into_iter()
        .filter_map(|body| match serde_json::from_slice(&body) {
            Ok(message) => Some(message),
            Err(error) => {
                unreadable(consumer, &body, &error);
                None
            }
        })
        .collect()
}

fn unreadable(consumer: &str, body: &[u8], error: &serde_json::Error) {
    tracing::warn!(consumer, error = %error, body.bytes = body.len(), body.start = body_excerpt(body), "a worker sent something unreadable");
}
