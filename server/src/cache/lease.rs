//! Leases: keys with an expiry that one server holds at a time.
//!
//! Each operation is one script, because the key may expire and pass to another server between a read and a write. The
//! key only decides which server *tries* to lead. A server that holds the role a moment too long does no damage,
//! because the epoch in PostgreSQL rejects its writes.

use std::time::Duration;

use futures::{Stream, StreamExt};
use redis::RedisError;

use super::{Cache, RESPONSE_TIMEOUT, too_slow};

/// Sets a key that does not exist, renews the holder's own key, or returns the remaining time of another holder's key.
/// A key without expiry was not set by a server and would block the role forever, so it gets one.
const ACQUIRE_OR_RENEW_SCRIPT: &str = r"
local holder = redis.call('GET', KEYS[1])
if not holder then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return {1, 0}
end
if holder == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {2, 0}
end
local left = redis.call('PTTL', KEYS[1])
if left < 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  left = tonumber(ARGV[2])
end
return {0, left}";

/// Deletes the key if the caller holds it, and notifies the other servers.
const RELEASE_SCRIPT: &str = r"
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  redis.call('PUBLISH', ARGV[2], '')
  return 1
end
return 0";

/// The result of a request for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStatus {
    /// No server held the lease; the caller holds it now.
    Acquired,
    /// The caller held the lease, and it is renewed.
    Renewed,
    /// Another server holds the lease.
    HeldElsewhere {
        /// The remaining time unless it is renewed.
        left: Duration,
    },
}

/// The answer to a request for a lease.
#[derive(Clone, Debug)]
pub struct LeaseAnswer {
    /// The result of the request.
    pub status: LeaseStatus,
    /// Redis's run id, which is random and changes at each start. A changed id means that Redis may have lost data, or
    /// restored old data.
    pub run_id: String,
}

impl Cache {
    /// Acquires or renews the lease on `role` for `holder`. It expires `life` after Redis runs the command.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis fails or does not answer within one second. Redis may have run the command all the
    /// same.
    pub async fn acquire_or_renew_lease(
        &self,
        role: &str,
        holder: &str,
        life: Duration,
    ) -> Result<LeaseAnswer, RedisError> {
        let request = async {
            let ((code, left), server): ((i64, u64), String) = redis::pipe()
                .cmd("EVAL")
                .arg(ACQUIRE_OR_RENEW_SCRIPT)
                .arg(1)
                .arg(self.keys.lease(role))
                .arg(holder)
                .arg(u64::try_from(life.as_millis()).unwrap_or(u64::MAX))
                .cmd("INFO")
                .arg("server")
                .query_async(&mut self.connection())
                .await?;
            let status = match code {
                1 => LeaseStatus::Acquired,
                2 => LeaseStatus::Renewed,
                _ => LeaseStatus::HeldElsewhere { left: Duration::from_millis(left) },
            };
            let run_id = server.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap_or_default();
            Ok(LeaseAnswer { status, run_id: run_id.trim().to_owned() })
        };
        // The connection's own timeouts add up when it has to reconnect, which is too long for a lease.
        tokio::time::timeout(RESPONSE_TIMEOUT, request).await.unwrap_or_else(|_| Err(too_slow()))
    }

    /// Releases the lease if `holder` holds it, and notifies the servers that wait for it. Returns false if another
    /// server holds it.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis fails or does not answer within one second. The lease then expires by itself.
    pub async fn release_lease(&self, role: &str, holder: &str) -> Result<bool, RedisError> {
        let mut command = redis::cmd("EVAL");
        command.arg(RELEASE_SCRIPT).arg(1).arg(self.keys.lease(role)).arg(holder).arg(self.keys.lease_channel(role));
        let mut connection = self.connection();
        tokio::time::timeout(RESPONSE_TIMEOUT, command.query_async(&mut connection))
            .await
            .unwrap_or_else(|_| Err(too_slow()))
    }

    /// Returns a stream with one item per release of the lease on `role`, until the connection breaks.
    pub async fn lease_releases(&self, role: &str) -> Result<impl Stream<Item = ()> + Send + use<>, RedisError> {
        let mut subscriber = self.subscriber().await?;
        subscriber.subscribe(self.keys.lease_channel(role)).await?;
        let (sink, messages) = subscriber.split();
        Ok(super::messages(sink, messages).map(drop))
    }

    /// Returns the number of servers that wait for a release of the lease on `role`, its holder included.
    pub async fn lease_listeners(&self, role: &str) -> Result<u64, RedisError> {
        let mut command = redis::cmd("PUBSUB");
        command.arg("NUMSUB").arg(self.keys.lease_channel(role));
        let mut connection = self.connection();
        let request = async {
            let (_, count): (String, u64) = command.query_async(&mut connection).await?;
            Ok(count)
        };
        tokio::time::timeout(RESPONSE_TIMEOUT, request).await.unwrap_or_else(|_| Err(too_slow()))
    }
}
