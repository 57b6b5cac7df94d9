//! A server in the test's process.

use std::time::Duration;

use milvaion_protocol::topology::RedisKeys;
use milvaion_server::{
    clock::Clock,
    config::{
        ServerConfig, alerts::AlertsConfig, background::BackgroundConfig, broker::BrokerConfig, cache::CacheConfig,
        database::DatabaseConfig, http::HttpConfig,
    },
    lifecycle::Server,
};

use crate::{
    budget::{self, CountedEvent},
    database, paths, services,
};

/// Returns the configuration of a server on the shared services, with a new database and new prefixes. Its part of Redis is
/// one that has lost no claims: in a new one, what may be a duplicate waits for fifteen seconds.
///
/// # Panics
///
/// Panics if PostgreSQL fails.
pub async fn config() -> ServerConfig {
    let prefix = services::unique("t");
    let target = paths::repository_root().join("target");
    let cache = CacheConfig { url: services::redis_url(), key_prefix: format!("{prefix}:") };
    services::keep_claims(&RedisKeys::new(cache.key_prefix.as_str())).await;
    ServerConfig {
        database_url: None,
        redis_url: None,
        amqp_url: None,
        data_dir: target.join("test-data"),
        database: DatabaseConfig { url: database::create().await, max_connections: 10 },
        cache,
        broker: BrokerConfig { url: services::amqp_url(), prefix, prefetch: 2_000 },
        http: HttpConfig { site_root: target.join("site"), ..HttpConfig::default() },
        alerts: AlertsConfig::default(),
        background: BackgroundConfig {
            dispatch_batch: 500,
            sweep: Duration::from_millis(200),
            rebuild: Duration::from_secs(60),
            republish: Duration::from_secs(1),
            expire_queued: chrono::Duration::days(30),
        },
        lost_runs: Default::default(),
        metrics: Default::default(),
        retention: Default::default(),
    }
}

/// Starts a server on the machine's clock.
///
/// # Panics
///
/// Panics if the server does not start.
pub async fn start(config: &ServerConfig) -> Server {
    start_on(config, Clock::system()).await
}

/// Starts a server on a clock.
///
/// # Panics
///
/// Panics if the server does not start.
pub async fn start_on(config: &ServerConfig, clock: Clock) -> Server {
    budget::count(CountedEvent::Server);
    Server::start(config, clock).await.expect("the server starts")
}
