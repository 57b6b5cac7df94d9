//! Redis: the fast clock, and nothing else.
//!
//! Losing Redis loses speed, never truth. Everything in it is a copy that is rebuilt from PostgreSQL; a method that fails
//! here is answered by doing the same thing more slowly. That is why every call has a short time limit and returns a
//! plain error, and why nothing in this room is ever awaited without one.

pub mod cancellation;
pub mod channel;
pub mod lease;
pub mod schedule;

use std::time::Duration;

use milvaion_protocol::topology::RedisKeys;
use redis::{
    Client, RedisError,
    aio::{ConnectionManager, ConnectionManagerConfig},
};

use crate::config::cache::CacheConfig;

/// How long Redis may take to answer.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Redis, or rather its promise.
#[derive(Clone)]
pub struct Cache {
    client: Client,
    manager: ConnectionManager,
    keys: RedisKeys,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("keys", &self.keys).finish_non_exhaustive()
    }
}

impl Cache {
    /// Prepares connections; they are made when they are first used and come back by themselves.
    ///
    /// # Errors
    ///
    /// When the URL cannot be read.
    pub fn new(config: &CacheConfig) -> Result<Self, RedisError> {
        let client = Client::open(config.url.as_str())?;
        let settings = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(RESPONSE_TIMEOUT))
            .set_response_timeout(Some(RESPONSE_TIMEOUT))
            .set_number_of_retries(1)
            .set_max_delay(Duration::from_millis(500));
        let manager = ConnectionManager::new_lazy_with_config(client.clone(), settings)?;
        Ok(Self { client, manager, keys: RedisKeys::new(config.key_prefix.clone()) })
    }

    /// The names of keys.
    #[must_use]
    pub const fn keys(&self) -> &RedisKeys {
        &self.keys
    }

    /// Whether Redis answers.
    ///
    /// # Errors
    ///
    /// When it does not.
    pub async fn ping(&self) -> Result<(), RedisError> {
        redis::cmd("PING").query_async(&mut self.connection()).await
    }

    /// What the policy for full memory is; anything but `noeviction` may silently drop the schedule.
    ///
    /// # Errors
    ///
    /// When Redis does not answer or does not tell.
    pub async fn eviction_policy(&self) -> Result<String, RedisError> {
        let (_, policy): (String, String) =
            redis::cmd("CONFIG").arg("GET").arg("maxmemory-policy").query_async(&mut self.connection()).await?;
        Ok(policy)
    }

    fn connection(&self) -> ConnectionManager {
        self.manager.clone()
    }

    async fn subscriber(&self) -> Result<redis::aio::PubSub, RedisError> {
        // A pub/sub connection waits for ever by nature; only making it has a limit.
        tokio::time::timeout(RESPONSE_TIMEOUT, self.client.get_async_pubsub())
            .await
            .map_err(|_| RedisError::from((redis::ErrorKind::Io, "no answer within a second")))?
    }
}
