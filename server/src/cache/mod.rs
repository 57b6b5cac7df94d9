//! Redis: the due index, leases and channels between servers and workers. It is never the source of truth.
//!
//! Losing Redis costs speed, never correctness. Its data is a copy that is rebuilt from PostgreSQL, and a caller whose
//! request fails does the same work more slowly from PostgreSQL. For that reason every call has a short timeout and
//! returns a plain error, and no code in this module waits without one. A section `# Errors` names only other errors.

pub mod cancellation;
pub mod channel;
mod connection;
pub mod heartbeats;
pub mod lease;
pub mod schedule;
pub mod singletons;

use std::time::Duration;

use connection::{CacheConnection, CurrentConnection};
use futures::{Stream, StreamExt};
use milvaion_protocol::topology::RedisKeys;
pub use redis::RedisError;
use redis::{
    Client, Msg, Value,
    aio::{PubSub, PubSubSink, PubSubStream},
};

use crate::config::cache::CacheConfig;

/// The timeout of a request.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The timeout of an answer over an open connection, which is replaced then. Shorter than that of a request, whose caller
/// may drop it.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(900);
/// The time between two checks of a subscription. The longest gap between two messages of Redis is thereby known.
const SUBSCRIPTION_PING_INTERVAL: Duration = Duration::from_secs(5);

/// The connection to Redis. Clones share it.
#[derive(Clone)]
pub struct Cache {
    client: Client,
    connection: CurrentConnection,
    keys: RedisKeys,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("keys", &self.keys).finish_non_exhaustive()
    }
}

impl Cache {
    /// Creates the connection, which opens at its first use and reconnects by itself.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL cannot be parsed.
    pub fn new(config: &CacheConfig) -> Result<Self, RedisError> {
        let client = Client::open(config.url.as_str())?;
        let connection = CurrentConnection::new(client.clone())?;
        Ok(Self { client, connection, keys: RedisKeys::new(config.key_prefix.clone()) })
    }

    /// Returns the names of keys and channels.
    #[must_use]
    pub const fn keys(&self) -> &RedisKeys {
        &self.keys
    }

    /// Checks that Redis answers and accepts changes: a replica, and one without memory, answer a ping.
    ///
    /// # Errors
    ///
    /// Returns an error if it does not.
    pub async fn check(&self) -> Result<(), RedisError> {
        let mut set = redis::cmd("SET");
        set.arg(self.keys.sight("health")).arg(1).arg("EX").arg(60);
        set.query_async(&mut self.connection()).await
    }

    /// Returns Redis's eviction policy. Any policy but `noeviction` may silently drop the due index.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis fails or does not reveal the policy.
    pub async fn eviction_policy(&self) -> Result<String, RedisError> {
        let (_, policy): (String, String) =
            redis::cmd("CONFIG").arg("GET").arg("maxmemory-policy").query_async(&mut self.connection()).await?;
        Ok(policy)
    }

    fn connection(&self) -> CacheConnection {
        self.connection.get()
    }

    async fn subscriber(&self) -> Result<PubSub, RedisError> {
        // A subscription has no timeout; only opening the connection has one.
        tokio::time::timeout(RESPONSE_TIMEOUT, self.client.get_async_pubsub()).await.map_err(|_| too_slow())?
    }
}

/// Awaits an answer for [`RESPONSE_TIMEOUT`]. The timeouts of the connection add up when it has to reconnect.
async fn within_limit<T>(request: impl Future<Output = Result<T, RedisError>>) -> Result<T, RedisError> {
    tokio::time::timeout(RESPONSE_TIMEOUT, request).await.unwrap_or_else(|_| Err(too_slow()))
}

fn too_slow() -> RedisError {
    RedisError::from((redis::ErrorKind::Io, "no answer within a second"))
}

/// Returns the messages of a subscription until its connection breaks, or until Redis does not answer. Most subscriptions
/// are silent for long, and one that a network has lost would be silent for ever.
fn messages(mut sink: PubSubSink, stream: PubSubStream) -> impl Stream<Item = Msg> + Send + Unpin {
    let lost = async move {
        loop {
            tokio::time::sleep(SUBSCRIPTION_PING_INTERVAL).await;
            if !matches!(tokio::time::timeout(RESPONSE_TIMEOUT, sink.ping::<Value>()).await, Ok(Ok(_))) {
                return;
            }
        }
    };
    stream.take_until(lost).boxed()
}
