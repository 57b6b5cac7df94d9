//! Marks that an attempt has ended, and requests to workers to cancel a run.

use milvaion_protocol::{id::OccurrenceId, message::CancelMessage};
use redis::RedisError;

use super::Cache;

/// The time to live of a mark, in seconds: longer than any duplicate of a message is in flight.
const CANCELLATION_TTL_SECONDS: u64 = 24 * 3_600;

impl Cache {
    /// Marks attempts as ended in the keys by which workers claim them. A worker that receives the message drops it,
    /// and a worker that has just claimed the attempt loses its claim.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis fails.
    pub async fn end_claims(&self, ended: &[(OccurrenceId, u32)]) -> Result<(), RedisError> {
        if ended.is_empty() {
            return Ok(());
        }
        let mut pipe = redis::pipe();
        for (id, attempt) in ended {
            pipe.set_ex(self.keys.running(*id), format!("done:{attempt}"), CANCELLATION_TTL_SECONDS).ignore();
        }
        pipe.query_async(&mut self.connection()).await
    }

    /// Requests workers to cancel runs, over a channel, and in a key for workers that were not connected.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis fails.
    pub async fn request_cancellations(&self, requests: &[CancelMessage]) -> Result<(), RedisError> {
        if requests.is_empty() {
            return Ok(());
        }
        let channel = self.keys.cancellation_channel();
        let mut pipe = redis::pipe();
        for request in requests {
            let text = serde_json::to_string(request).unwrap_or_default();
            pipe.set_ex(self.keys.cancel_request(request.occurrence_id), &text, CANCELLATION_TTL_SECONDS).ignore();
            pipe.publish(&channel, &text).ignore();
        }
        pipe.query_async(&mut self.connection()).await
    }
}
