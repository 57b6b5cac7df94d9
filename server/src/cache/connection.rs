//! The connection for requests, which replaces itself after a request without an answer.
//!
//! The driver opens a new connection when the old one is closed. A network can also lose a connection silently, and
//! then no answer comes and no error either, for a quarter of an hour. Redis would seem to be down for this server all
//! that time. The same holds for a Redis that answers and cannot do its work, such as one that has become a replica: its
//! address may lead to another one by now.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use redis::{
    Client, Cmd, Pipeline, RedisError, RedisFuture, Value,
    aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig},
};

use super::{ANSWER_TIMEOUT, RESPONSE_TIMEOUT};

/// The shortest time between two replacements after answers. Unlike a missing answer, they may come back at once.
const REPLACEMENT_INTERVAL: Duration = Duration::from_secs(1);

/// The connection that requests use now. Clones share it.
#[derive(Clone)]
pub(super) struct CurrentConnection {
    client: Client,
    /// The number of the connection, the connection, and the time since when it is used.
    current: Arc<Mutex<(u64, ConnectionManager, Instant)>>,
}

impl CurrentConnection {
    /// Creates the connection, which opens at its first use.
    pub(super) fn new(client: Client) -> Result<Self, RedisError> {
        let manager = open(&client)?;
        Ok(Self { client, current: Arc::new(Mutex::new((0, manager, Instant::now()))) })
    }

    /// Returns a handle for one request.
    pub(super) fn get(&self) -> CacheConnection {
        let (number, manager, _) = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        CacheConnection { connection: self.clone(), number, manager }
    }

    /// Replaces the connection with this number if it has been used for `min_age`, unless another request has done so.
    fn replace(&self, number: u64, min_age: Duration) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.0 != number || current.2.elapsed() < min_age {
            return;
        }
        // The address was accepted before.
        if let Ok(manager) = open(&self.client) {
            *current = (number + 1, manager, Instant::now());
        }
    }
}

/// Returns true if Redis answers and cannot do its work: it is a replica, lacks replicas or its master, loads its data, or
/// runs a script that does not end.
fn is_away(error: &RedisError) -> bool {
    error.code().is_some_and(|code| ["READONLY", "NOREPLICAS", "MASTERDOWN", "LOADING", "BUSY"].contains(&code))
}

fn open(client: &Client) -> Result<ConnectionManager, RedisError> {
    let settings = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(RESPONSE_TIMEOUT))
        .set_response_timeout(Some(ANSWER_TIMEOUT))
        .set_number_of_retries(1)
        .set_max_delay(Duration::from_millis(500));
    ConnectionManager::new_lazy_with_config(client.clone(), settings)
}

/// A handle to the connection, for one request.
pub(super) struct CacheConnection {
    connection: CurrentConnection,
    number: u64,
    manager: ConnectionManager,
}

impl CacheConnection {
    fn check<T>(&self, answer: &Result<T, RedisError>) {
        match answer {
            Err(error) if error.is_timeout() => self.connection.replace(self.number, Duration::ZERO),
            Err(error) if is_away(error) => self.connection.replace(self.number, REPLACEMENT_INTERVAL),
            _ => {}
        }
    }
}

impl ConnectionLike for CacheConnection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let answer = self.manager.req_packed_command(command).await;
            self.check(&answer);
            answer
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let answer = self.manager.req_packed_commands(pipeline, offset, count).await;
            self.check(&answer);
            answer
        })
    }

    fn get_db(&self) -> i64 {
        self.manager.get_db()
    }
}
