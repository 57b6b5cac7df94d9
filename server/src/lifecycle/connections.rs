//! The connections of a server to PostgreSQL, Redis and RabbitMQ.
//!
//! Each use of PostgreSQL has a pool of its own, so that one that waits delays no other.

use super::ServerError;
use crate::{
    broker::Broker,
    cache::Cache,
    clock::Clock,
    config::ServerConfig,
    metrics::Metrics,
    store::{PoolUse, Store},
};

/// The connections that the servers leave to other clients of PostgreSQL.
const SPARE_CONNECTIONS: u32 = 10;

/// The connections of one server.
#[derive(Clone, Debug)]
pub(super) struct Connections {
    /// PostgreSQL, for the services.
    pub(super) store: Store,
    /// PostgreSQL, for the dispatcher.
    pub(super) dispatching: Store,
    /// PostgreSQL, for the consumers of reports and heartbeats.
    pub(super) reports: Store,
    /// PostgreSQL, for the requests of users.
    pub(super) web: Store,
    /// Redis.
    pub(super) cache: Cache,
    /// RabbitMQ.
    pub(super) broker: Broker,
    /// The counters, which every store carries.
    pub(super) metrics: Metrics,
}

impl Connections {
    /// Connects to PostgreSQL, which is migrated first, and prepares the connections to Redis and RabbitMQ. Sets the
    /// clock by PostgreSQL's.
    pub(super) async fn open(config: &ServerConfig, clock: &Clock) -> Result<Self, ServerError> {
        let store = Store::connect(&config.database.for_background()).await.map_err(ServerError::Postgres)?;
        let metrics = Metrics::new(config.metrics.job_labels);
        let store = store.with_retention(config.retention.clone()).with_metrics(metrics.clone());
        let connect = async |pool_use, database| {
            store.with_connections_for(pool_use, database).await.map_err(ServerError::Postgres)
        };
        let dispatching = connect(PoolUse::Own, &config.database).await?;
        let reports = connect(PoolUse::Reports, &config.database).await?;
        let web = connect(PoolUse::Web, &config.database.for_web()).await?;
        store.align(clock).await.map_err(ServerError::PostgresPreparation)?;
        store.ensure_partitions(clock.now()).await.map_err(ServerError::PostgresPreparation)?;
        warn_of_few_connections(&store, config.database.max_connections).await;
        let cache = Cache::new(&config.cache).map_err(|error| ServerError::RedisUrl(error.into()))?;
        warn_of_eviction(&cache).await;
        let broker = Broker::new(&config.broker).map_err(ServerError::RabbitMqUrl)?;
        if config.amqp_url.is_some() {
            // An address that has never worked is a mistake of the operator; only later failures count as outages.
            let connection = broker.connect("milvaion server check").await.map_err(ServerError::RabbitMq)?;
            let _ = connection.close(200, "checked".into()).await;
        }
        Ok(Self { store, dispatching, reports, web, cache, broker, metrics })
    }

    /// Returns the pools of PostgreSQL.
    pub(super) const fn pools(&self) -> [&Store; 4] {
        [&self.store, &self.web, &self.reports, &self.dispatching]
    }
}

/// Logs a warning if this server alone may use up the connections of PostgreSQL. The others need some: a second server
/// during an upgrade, a dump, an operator.
async fn warn_of_few_connections(store: &Store, own: u32) {
    if let Ok(limit) = store.max_connections().await
        && own + SPARE_CONNECTIONS > limit
    {
        tracing::warn!(
            own,
            limit,
            "DATABASE_CONNECTIONS is {own}, and PostgreSQL accepts {limit} connections in all; keep the sum over all servers {SPARE_CONNECTIONS} below max_connections"
        );
    }
}

/// Logs a warning if Redis evicts keys when its memory is full. It would then drop due times without an error; the
/// periodic read from PostgreSQL still finds them, but late.
async fn warn_of_eviction(cache: &Cache) {
    if let Ok(policy) = cache.eviction_policy().await
        && policy != "noeviction"
    {
        tracing::warn!(
            redis.policy = policy,
            "Redis evicts keys when its memory is full (maxmemory-policy {policy}); set maxmemory-policy to noeviction"
        );
    }
}
