//! Leases: a key that one server holds for a while, and others may not touch.
//!
//! Each operation is one script, because between a look and a deed the key may expire and become another's. The key
//! only decides who *bothers*; that a server which believes it holds the role for a moment too long writes nothing wrong
//! is the business of the epoch in PostgreSQL.

use std::time::Duration;

use futures::{Stream, StreamExt};
use redis::RedisError;

use super::{Cache, RESPONSE_TIMEOUT};

/// Takes a key that nobody has, prolongs it when it is ours, or tells how long its holder still has it. A key without
/// an end was not made by us and would lock everybody out for ever: it is given one.
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

/// Deletes the key if it is ours, and only then tells the others.
const RELEASE_SCRIPT: &str = r"
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  redis.call('PUBLISH', ARGV[2], '')
  return 1
end
return 0";

/// What Redis says to somebody who wants a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStatus {
    /// Nobody had it; now we do.
    Acquired,
    /// It was ours and is ours for longer.
    Renewed,
    /// Somebody else has it.
    HeldElsewhere {
        /// For so long, unless it is prolonged.
        left: Duration,
    },
}

/// An answer and who gave it.
#[derive(Clone, Debug)]
pub struct LeaseAnswer {
    /// Whose the lease is.
    pub status: LeaseStatus,
    /// Redis' own id, drawn anew at each of its starts: another one means that Redis may have forgotten things, or
    /// remembers old ones.
    pub run_id: String,
}

impl Cache {
    /// Takes or prolongs the lease on `role` for `holder`, for `life` from when Redis reads this.
    ///
    /// # Errors
    ///
    /// When Redis does not answer within a second. It may have done it nevertheless.
    pub async fn acquire_or_renew_lease(
        &self,
        role: &str,
        holder: &str,
        life: Duration,
    ) -> Result<LeaseAnswer, RedisError> {
        let asking = async {
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
        // The connection's own limits add up when it has to be made anew; a lease cannot wait for that.
        tokio::time::timeout(RESPONSE_TIMEOUT, asking).await.unwrap_or_else(|_| Err(too_slow()))
    }

    /// Gives the lease back if it is `holder`'s, and tells those who wait for it. False when it was somebody else's.
    ///
    /// # Errors
    ///
    /// When Redis does not answer within a second; the lease then ends by itself.
    pub async fn release_lease(&self, role: &str, holder: &str) -> Result<bool, RedisError> {
        let mut command = redis::cmd("EVAL");
        command.arg(RELEASE_SCRIPT).arg(1).arg(self.keys.lease(role)).arg(holder).arg(self.keys.lease_channel(role));
        let mut connection = self.connection();
        tokio::time::timeout(RESPONSE_TIMEOUT, command.query_async(&mut connection))
            .await
            .unwrap_or_else(|_| Err(too_slow()))
    }

    /// One item each time somebody gives the lease on `role` back, until the connection breaks.
    ///
    /// # Errors
    ///
    /// When Redis does not answer.
    pub async fn lease_releases(&self, role: &str) -> Result<impl Stream<Item = ()> + Send + use<>, RedisError> {
        let mut subscriber = self.subscriber().await?;
        subscriber.subscribe(self.keys.lease_channel(role)).await?;
        Ok(subscriber.into_on_message().map(drop))
    }
}

fn too_slow() -> RedisError {
    RedisError::from((redis::ErrorKind::Io, "no answer within a second"))
}
