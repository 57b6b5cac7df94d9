//! The shared services' URLs, and unique names on them.

use milvaion_protocol::topology::RedisKeys;
use redis::AsyncCommands;

/// Returns the URL of the shared PostgreSQL.
///
/// # Panics
///
/// Panics if `DATABASE_URL` is not set: a test without its service must fail instead of being skipped.
#[must_use]
pub fn database_url() -> String {
    url("DATABASE_URL")
}

/// Returns the URL of the shared Redis.
///
/// # Panics
///
/// Panics if `REDIS_URL` is not set.
#[must_use]
pub fn redis_url() -> String {
    url("REDIS_URL")
}

/// Returns the URL of the shared RabbitMQ.
///
/// # Panics
///
/// Panics if `AMQP_URL` is not set.
#[must_use]
pub fn amqp_url() -> String {
    url("AMQP_URL")
}

/// Returns `prefix` with a random suffix, for a name that no other test uses.
#[must_use]
pub fn unique(prefix: &str) -> String {
    format!("{prefix}_{:016x}", rand::random::<u64>())
}

/// Makes the shared Redis one that has held the keys of `keys` for long. A worker takes a Redis that it finds empty for one
/// that may have lost claims, and checks new messages with a server, which a test without a server cannot answer.
///
/// # Panics
///
/// Panics if Redis fails.
pub async fn keep_claims(keys: &RedisKeys) {
    let client = redis::Client::open(redis_url()).expect("a valid URL");
    let mut connection = client.get_multiplexed_async_connection().await.expect("Redis at REDIS_URL responds");
    let _: () = connection.set(keys.claims_since(), 0).await.expect("written");
}

fn url(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run the tests through `make test`"))
}
