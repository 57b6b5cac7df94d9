//! The connection to Redis, which replaces itself after a request without an answer.
//!
//! The driver opens a new connection when the old one is closed. A network can also lose a connection silently, and then
//! neither an answer nor an error comes for a quarter of an hour, in which no duplicate is recognised and no lease renewed.
//! A request without an answer therefore replaces the connection. So does the answer of a Redis that cannot do its work, such
//! as one that has become a replica: its address may lead to another one by now.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use redis::{
    Client, RedisResult,
    aio::{ConnectionManager, ConnectionManagerConfig},
};
use tokio::sync::watch;

/// Maximum time for Redis to answer before it counts as unavailable.
const REDIS_TIMEOUT: Duration = Duration::from_secs(1);

/// Minimum time between two replacements after answers. Unlike a missing answer, they may come back at once.
const REPLACEMENT_INTERVAL: Duration = Duration::from_secs(1);

/// The reason that Redis gave no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum RedisUnavailable {
    #[error("Redis did not answer within {} s", REDIS_TIMEOUT.as_secs())]
    Timeout,
    #[error(transparent)]
    Failed(#[from] redis::RedisError),
}

impl RedisUnavailable {
    /// Returns true if Redis answers and cannot do its work: it is a replica, lacks replicas or its master, loads its data, or
    /// runs a script that does not end.
    fn is_away(&self) -> bool {
        let Self::Failed(error) = self else { return false };
        error.code().is_some_and(|code| ["READONLY", "NOREPLICAS", "MASTERDOWN", "LOADING", "BUSY"].contains(&code))
    }

    /// Returns true if no answer came, and no error of the connection either.
    pub(crate) fn is_timeout(&self) -> bool {
        match self {
            Self::Timeout => true,
            Self::Failed(error) => error.is_timeout(),
        }
    }
}

/// A connection to Redis. Clones share it.
#[derive(Clone)]
pub(crate) struct RedisConnection {
    client: Client,
    /// The number of the connection, the connection, and the time since when it is used.
    current: Arc<Mutex<(u64, ConnectionManager, Instant)>>,
    replacements: watch::Sender<()>,
}

impl RedisConnection {
    /// Prepares a connection that opens on first use and reconnects when it is lost. Must be called in the runtime that
    /// uses it.
    ///
    /// # Errors
    /// Returns an error if the address cannot be read.
    pub(crate) fn new(url: &str) -> RedisResult<Self> {
        let client = Client::open(url)?;
        let current = Arc::new(Mutex::new((0, connect(&client)?, Instant::now())));
        Ok(Self { client, current, replacements: watch::Sender::new(()) })
    }

    /// Returns the client, which can open further connections to the same Redis.
    pub(crate) const fn client(&self) -> &Client {
        &self.client
    }

    /// Returns a receiver that changes when the connection was replaced.
    pub(crate) fn replacements(&self) -> watch::Receiver<()> {
        self.replacements.subscribe()
    }

    /// Returns the connection for one request, and its number.
    pub(crate) fn current(&self) -> (u64, ConnectionManager) {
        let (number, connection, _) = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (number, connection)
    }

    /// Waits for the answer to a request on the connection with this number. Replaces the connection if none comes.
    ///
    /// # Errors
    /// Returns [`RedisUnavailable`] if Redis does not answer in time or answers with an error.
    pub(crate) async fn answer<T>(
        &self,
        number: u64,
        request: impl Future<Output = RedisResult<T>>,
    ) -> Result<T, RedisUnavailable> {
        let answer = with_timeout(request).await;
        let min_age = match &answer {
            Err(error) if error.is_timeout() => Some(Duration::ZERO),
            Err(error) if error.is_away() => Some(REPLACEMENT_INTERVAL),
            _ => None,
        };
        if let Some(min_age) = min_age {
            let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
            // Other requests wait on the same connection. The address was accepted before.
            if current.0 == number
                && current.2.elapsed() >= min_age
                && let Ok(connection) = connect(&self.client)
            {
                *current = (number + 1, connection, Instant::now());
                self.replacements.send_replace(());
            }
        }
        answer
    }
}

/// Prepares a connection, which opens at its first use.
fn connect(client: &Client) -> RedisResult<ConnectionManager> {
    let config = ConnectionManagerConfig::new()
        .set_response_timeout(Some(REDIS_TIMEOUT))
        .set_connection_timeout(Some(REDIS_TIMEOUT))
        .set_max_delay(Duration::from_secs(1));
    ConnectionManager::new_lazy_with_config(client.clone(), config)
}

/// Awaits an answer of Redis. The timeouts of the connection do not include the wait for a reconnection in progress.
///
/// # Errors
/// Returns [`RedisUnavailable`] if Redis does not answer in time or answers with an error.
pub(crate) async fn with_timeout<T>(answer: impl Future<Output = RedisResult<T>>) -> Result<T, RedisUnavailable> {
    match tokio::time::timeout(REDIS_TIMEOUT, answer).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(RedisUnavailable::Timeout),
    }
}
