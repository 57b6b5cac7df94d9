//! Marks that an attempt has ended, claims on what the server is about to skip, and requests to workers to cancel a run.

use milvaion_protocol::{claims::CLAIM_LEASE_MS, id::OccurrenceId, message::CancelMessage};
use redis::RedisError;

use super::{Cache, within_limit};

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

/// The claim of the server on a first attempt that it is about to skip.
const EXPIRY_CLAIM: &str = "expiry:1";

/// Claims first attempts that no worker has claimed. In the first lease after the time since when Redis holds claims, that of
/// a worker may be missing, so nothing is claimed. KEYS: `claims_since`, then `running:{id}` of each. ARGV: the claim, and its
/// lease in milliseconds. Returns the positions, from 1, of what the claim holds; nil in that first lease.
const EXPIRY_SCRIPT: &str = "\
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('SET', KEYS[1], string.format('%d', now), 'NX')
local age = now - (tonumber(redis.call('GET', KEYS[1])) or 0)
if age >= 0 and age < tonumber(ARGV[2]) then return false end
local claimed = {}
for i = 2, #KEYS do
    local held = redis.call('GET', KEYS[i])
    if not held or held == ARGV[1] then
        redis.call('SET', KEYS[i], ARGV[1], 'PX', ARGV[2])
        claimed[#claimed + 1] = i - 1
    end
end
return claimed
";

impl Cache {
    /// Claims first attempts for the server, so that no worker begins one while it is skipped. Returns those that no worker
    /// has claimed, or none if Redis has lost its data a moment ago and may lack the claims of workers.
    ///
    /// The claims expire by themselves. A worker drops a first delivery that it receives meanwhile. If the server stops before
    /// it has skipped the occurrence, the next server skips it, because this claim is its own too.
    pub async fn claim_for_expiry(&self, runs: &[OccurrenceId]) -> Result<Option<Vec<OccurrenceId>>, RedisError> {
        let mut command = redis::cmd("EVAL");
        command.arg(EXPIRY_SCRIPT).arg(runs.len() + 1).arg(self.keys.claims_since());
        for run in runs {
            command.arg(self.keys.running(*run));
        }
        command.arg(EXPIRY_CLAIM).arg(CLAIM_LEASE_MS);
        let claimed: Option<Vec<usize>> = within_limit(command.query_async(&mut self.connection())).await?;
        // The script counts from 1.
        let run = |position: usize| runs.get(position.wrapping_sub(1)).copied();
        Ok(claimed.map(|claimed| claimed.into_iter().filter_map(run).collect()))
    }

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
