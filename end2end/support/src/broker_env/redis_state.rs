//! The values in Redis that workers read: claims and cancel requests.

use milvaion_protocol::{id::OccurrenceId, topology::RedisKeys};
use serde_json::json;

use super::WorkerTestEnv;

/// A day, the lifetime of a claim's key beyond its lease.
const DAY_MS: u32 = 24 * 3_600_000;

impl WorkerTestEnv {
    /// Claims the first attempt of an occurrence for another instance, with a lease of `lease_ms`. As with every claim,
    /// the key expires a day after the lease.
    ///
    /// # Panics
    ///
    /// Panics if Redis fails.
    pub async fn claim(&self, occurrence: OccurrenceId, by: &str, lease_ms: u32) {
        self.claim_for(occurrence, by, lease_ms + DAY_MS).await;
    }

    /// Claims the first attempt of an occurrence for another instance, with a key that expires after `expiry_ms`.
    ///
    /// # Panics
    ///
    /// Panics if Redis fails.
    pub async fn claim_for(&self, occurrence: OccurrenceId, by: &str, expiry_ms: u32) {
        let key = self.keys().running(occurrence);
        self.redis::<()>(redis::cmd("SET").arg(key).arg(format!("{by}:1")).arg("PX").arg(expiry_ms)).await;
    }

    /// Returns the claim on an occurrence: its instance and attempt, or none if there is no claim.
    ///
    /// # Panics
    ///
    /// Panics if Redis fails.
    pub async fn claimed(&self, occurrence: OccurrenceId) -> Option<String> {
        self.redis(redis::cmd("GET").arg(self.keys().running(occurrence))).await
    }

    /// Sets the time since when Redis remembers claims to the first of all times, as in an installation whose Redis has
    /// never lost anything.
    ///
    /// # Panics
    ///
    /// Panics if Redis fails.
    pub async fn remember_claims(&self) {
        self.redis::<()>(redis::cmd("SET").arg(self.keys().claims_since()).arg(0)).await;
    }

    /// Deletes the time since when Redis remembers claims, as if it had lost its data.
    ///
    /// # Panics
    ///
    /// Panics if Redis fails.
    pub async fn forget_claims(&self) {
        self.redis::<()>(redis::cmd("DEL").arg(self.keys().claims_since())).await;
    }

    /// Sets the time since when Redis remembers claims, as if it had lost its data so long ago.
    ///
    /// # Panics
    ///
    /// Panics if Redis fails.
    pub async fn redis_lost_data_before(&self, age: std::time::Duration) {
        let since = (std::time::SystemTime::now() - age).duration_since(std::time::UNIX_EPOCH).expect("a later time");
        let since = u64::try_from(since.as_millis()).expect("a time of this era");
        self.redis::<()>(redis::cmd("SET").arg(self.keys().claims_since()).arg(since)).await;
    }

    /// Stores the request to cancel an occurrence under its key, without publishing it.
    ///
    /// # Panics
    ///
    /// Panics if Redis fails.
    pub async fn store_cancel_request(&self, occurrence: OccurrenceId, reason: &str) {
        let (key, request) = (self.keys().cancel_request(occurrence), cancel_request(occurrence, reason));
        self.redis::<()>(redis::cmd("SET").arg(key).arg(request).arg("EX").arg(60)).await;
    }

    /// Revokes the first attempt of an occurrence, as the server does.
    ///
    /// # Panics
    ///
    /// Panics if Redis fails.
    pub async fn revoke(&self, occurrence: OccurrenceId) {
        let key = self.keys().revocation(occurrence);
        self.redis::<()>(redis::cmd("SET").arg(key).arg(2).arg("EX").arg(60)).await;
    }

    /// Publishes the request to cancel an occurrence, without storing it. Returns the number of subscribers.
    ///
    /// # Panics
    ///
    /// Panics if Redis fails.
    pub async fn publish_cancel_request(&self, occurrence: OccurrenceId, reason: &str) -> u32 {
        let (channel, request) = (self.keys().cancellation_channel(), cancel_request(occurrence, reason));
        self.redis(redis::cmd("PUBLISH").arg(channel).arg(request)).await
    }

    pub(super) fn keys(&self) -> RedisKeys {
        RedisKeys::new(self.key_prefix.as_str())
    }

    pub(super) async fn redis<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> T {
        let url = self.admin_redis_url.as_deref().unwrap_or(&self.redis_url);
        let client = redis::Client::open(url).expect("a valid URL");
        let mut redis = client.get_multiplexed_async_connection().await.expect("Redis at REDIS_URL responds");
        command.query_async(&mut redis).await.expect("the command succeeds")
    }
}

fn cancel_request(occurrence: OccurrenceId, reason: &str) -> String {
    json!({"occurrenceId": occurrence, "attempt": 1, "reason": reason}).to_string()
}
