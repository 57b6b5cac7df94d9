//! What workers tell the server.
//!
//! Everything arrives at least once, and it arrives in batches: one transaction for each batch, and only after its commit
//! is the batch acknowledged. A server that dies in between gets the batch again and finds that it changes nothing. What
//! cannot be read is logged and let go; what is about something unknown changes nothing; neither may stop the rest.

pub mod claims;
pub mod dead_letters;
pub mod logs;
pub mod registration;
pub mod status;

/// Reads each body, logging those that cannot be read.
fn read<T: serde::de::DeserializeOwned>(consumer: &str, bodies: Vec<Vec<u8>>) -> Vec<T> {
    bodies
        .into_iter()
        .filter_map(|body| match serde_json::from_slice(&body) {
            Ok(message) => Some(message),
            Err(error) => {
                let start: String = String::from_utf8_lossy(&body).chars().take(120).flat_map(char::escape_default).collect();
                tracing::warn!(consumer, error = %error, body.bytes = body.len(), body.start = start, "a worker sent something unreadable");
                None
            }
        })
        .collect()
}
