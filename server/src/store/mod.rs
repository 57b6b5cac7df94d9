//! PostgreSQL, the system of record.
//!
//! There is one concrete [`Store`] over a connection pool and no repository traits, because there will be no second
//! database. Each file holds the statements about one noun next to the functions that run them; the build checks them
//! against the schema. No decision is made here: a function does what its name says and returns the number of changed
//! rows. Each returns a [`StoreError`] if PostgreSQL fails; a section `# Errors` names other errors, and what is then true.
//!
//! To add a table, write a migration that explains its purpose, add a file here, and run `make prepare`.

pub mod error;
mod pool;
mod statement_name;
mod statement_span;

pub mod advance;
pub mod alerts;
pub mod api_requests;
pub mod auto_disable;
pub mod bundles;
pub mod calendars;
pub mod cancel;
pub mod create;
pub mod dead_letters;
pub mod declared_jobs;
mod definition_batch;
pub mod delayed;
pub mod due_times;
pub mod enqueue;
pub mod failures;
pub mod finish;
pub mod jobs;
pub mod manual_runs;
mod migrations;
pub mod occurrences;
pub mod plan;
mod readable;
pub mod redeliveries;
pub mod reports;
pub mod request_token;
pub mod retention;
mod rules;
#[cfg(feature = "faults")]
mod sabotage;
pub mod slots;
pub mod sources;
pub mod versions;

pub mod cluster;
pub mod late_starts;
pub mod leases;
pub mod logs;
pub mod lost_messages;
pub mod lost_runs;
pub mod overview;
pub mod partitions;
pub mod workers;

pub mod gauges;
mod measure;

pub mod audit;
pub mod sample_job;
pub mod sessions;
pub mod singletons;
pub mod snapshots;
pub mod stats;
pub mod tokens;
pub mod unreadable;
pub mod users;

use chrono::{DateTime, Utc};
use milvaion_protocol::message::AttemptLogBounds;
use sqlx::{PgPool, migrate::Migrator};

pub use definition_batch::{DefinitionBatch, LockedJob};
pub use error::{Result, StoreError};
use partitions::{PartitionedTable, RECEIPT_RETENTION};
use pool::StorePool;
pub use pool::{PoolState, PoolUse};

use crate::{
    clock::Clock,
    config::{database::DatabaseConfig, retention::RetentionConfig},
    metrics::Metrics,
};

pub use migrations::MIGRATOR;

/// A connection pool to PostgreSQL with the statements of all modules.
#[derive(Clone, Debug)]
pub struct Store {
    pool: StorePool,
    /// The retention periods, which decide how wide partitions are.
    retention: RetentionConfig,
}

impl Store {
    /// Connects to PostgreSQL and applies missing migrations.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL cannot be reached within four seconds, if a migration fails, or if a newer
    /// server has prepared the database in a way that this version cannot read.
    pub async fn connect(config: &DatabaseConfig) -> Result<Self> {
        Self::connect_with(config, &MIGRATOR).await
    }

    /// As [`connect`](Self::connect), with other migrations: a test has those of a later version.
    ///
    /// # Errors
    ///
    /// The same.
    pub async fn connect_with(config: &DatabaseConfig, migrator: &Migrator) -> Result<Self> {
        let pool = StorePool::connect(config, PoolUse::Background).await?;
        migrations::apply(&pool, migrator).await?;
        Ok(Self::new(pool))
    }

    /// Connects to a database that a server of this version has prepared, and applies no migration. A command can
    /// therefore neither change the tables under a running server of another version, nor create them in a database
    /// that belongs to another program.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL cannot be reached within four seconds, and [`StoreError::Schema`] if the
    /// database was not prepared by a server of this version, or of a newer one whose tables this version can read.
    pub async fn open(config: &DatabaseConfig) -> Result<Self> {
        let pool = StorePool::connect(config, PoolUse::Background).await?;
        if let Err(error) = migrations::check(&pool).await {
            pool.close().await;
            return Err(error);
        }
        Ok(Self::new(pool))
    }

    /// Creates a store over an existing pool, for tests.
    #[must_use]
    pub fn from_pool(pool: PgPool) -> Self {
        Self::new(pool.into())
    }

    fn new(pool: StorePool) -> Self {
        Self { pool, retention: RetentionConfig::default() }
    }

    /// Returns a store with connections of its own to the same database.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL cannot be reached within four seconds.
    pub async fn with_connections_for(&self, pool_use: PoolUse, config: &DatabaseConfig) -> Result<Self> {
        let pool = StorePool::connect(config, pool_use).await?;
        Ok(Self { pool, ..self.clone() }.with_metrics(self.metrics().clone()))
    }

    /// Sets the metrics of the server; statements are measured for nothing otherwise.
    #[must_use]
    pub fn with_metrics(mut self, metrics: Metrics) -> Self {
        self.pool.metrics = metrics;
        self
    }

    /// Returns the metrics of the server.
    #[must_use]
    pub const fn metrics(&self) -> &Metrics {
        &self.pool.metrics
    }

    /// Returns the number of connections.
    #[must_use]
    pub fn pool_state(&self) -> PoolState {
        self.pool.state()
    }

    /// Sets the retention periods; the default ones apply otherwise.
    #[must_use]
    pub fn with_retention(self, retention: RetentionConfig) -> Self {
        Self { retention, ..self }
    }

    /// Returns the time for which the rows of a table are kept.
    #[must_use]
    pub const fn retention_of(&self, table: PartitionedTable) -> chrono::Duration {
        match table {
            PartitionedTable::History | PartitionedTable::Inputs => self.retention.occurrences,
            PartitionedTable::Logs => self.retention.logs,
            PartitionedTable::Receipts => RECEIPT_RETENTION,
        }
    }

    /// Returns the bounds of the log of an attempt.
    #[must_use]
    pub const fn log_bounds(&self) -> AttemptLogBounds {
        self.retention.log_bounds
    }

    /// Returns the pool, for the modules of the store.
    pub(crate) const fn pool(&self) -> &StorePool {
        &self.pool
    }

    /// Aligns `clock` with the database's clock. Returns the difference between the two.
    pub async fn align(&self, clock: &Clock) -> Result<chrono::Duration> {
        let before = crate::clock::machine_now();
        let database: DateTime<Utc> =
            sqlx::query_scalar!(r#"SELECT clock_timestamp() AS "now!""#).fetch_one(&self.pool).await?;
        Ok(clock.align(database, before))
    }

    /// Returns the number of connections that PostgreSQL accepts, from all its clients together.
    pub async fn max_connections(&self) -> Result<u32> {
        let limit: i32 =
            sqlx::query_scalar("SELECT current_setting('max_connections')::int").fetch_one(&self.pool).await?;
        Ok(u32::try_from(limit).unwrap_or_default())
    }

    /// Checks that PostgreSQL answers on a connection of this store.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if it does not.
    pub async fn ping(&self) -> Result<()> {
        sqlx::query("SELECT 1").execute(self.pool()).await?;
        Ok(())
    }

    /// Closes all connections.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}
