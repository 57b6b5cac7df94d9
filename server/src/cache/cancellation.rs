//! Marks that an attempt has ended, and requests to workers to cancel a run.

use milvaion_protocol::{id::OccurrenceId, message::CancelMessage};
use redis::RedisError;

use super::Cache;

/// The time to live of a mark, in seconds: longer than any duplicate of a message is in flight.
const CANCELLATION_TTL_SECONDS: u64 = 24 * 3_600;

/// Marks attempts as ended, unless a later attempt was claimed or has ended. KEYS: `running:{id}` of each. ARGV: the time to
/// live of the marks in seconds, then the attempt of each key.
const END_SCRIPT: &str = "\
for i, key in ipairs(KEYS) do
    local held = redis.call('GET', key)
    local other = held and tonumber(string.match(held, ':(%d+)$'))
    if not other or other <= tonumber(ARGV[i + 1]) then
        redis.call('SET', key, 'done:' .. ARGV[i + 1], 'EX', ARGV[1])
    end
end
";

impl Cache {
    /// Marks attempts as ended in the keys by which workers claim them. A worker that receives the message drops it,
    /// and a worker that has just claimed the attempt loses its claim. A later attempt keeps its claim.
    pub async fn end_claims(&self, ended: &[(OccurrenceId, u32)]) -> Result<(), RedisError> {
        if ended.is_empty() {
            return Ok(());
        }
        let mut command = redis::cmd("EVAL");
        command.arg(END_SCRIPT).arg(ended.len());
        for (id, _) in ended {
            command.arg(self.keys.running(*id));
        }
        command.arg(CANCELLATION_TTL_SECONDS);
        for (_, attempt) in ended {
            command.arg(*attempt);
        }
        command.query_async(&mut self.connection()).await
    }

    /// Requests workers to cancel runs, over a channel, and in a key for workers that were not connected.
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
