//! Telling workers that an occurrence is over, or should be.

use milvaion_protocol::{id::OccurrenceId, message::CancelMessage};
use redis::RedisError;

use super::Cache;

/// How long a mark is kept, in seconds: longer than any copy of a message is on its way.
const CANCELLATION_TTL_SECONDS: u64 = 24 * 3_600;

impl Cache {
    /// Marks attempts as ended in the place where workers claim them, so that whoever gets the message drops it. A
    /// worker that has just claimed one finds its claim gone.
    ///
    /// # Errors
    ///
    /// When Redis does not answer.
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

    /// Asks whichever workers run these to end them: on the channel, and in a key for those who were not listening.
    ///
    /// # Errors
    ///
    /// When Redis does not answer.
    pub async fn request_cancellations(&self, wishes: &[CancelMessage]) -> Result<(), RedisError> {
        if wishes.is_empty() {
            return Ok(());
        }
        let channel = self.keys.cancellation_channel();
        let mut pipe = redis::pipe();
        for wish in wishes {
            let text = serde_json::to_string(wish).unwrap_or_default();
            pipe.set_ex(self.keys.cancel_request(wish.occurrence_id), &text, CANCELLATION_TTL_SECONDS).ignore();
            pipe.publish(&channel, &text).ignore();
        }
        pipe.query_async(&mut self.connection()).await
    }
}
