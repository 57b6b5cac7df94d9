//! PostgreSQL: the truth.
//!
//! One concrete [`Store`] over a pool, no repository traits: there will be no second database. Each file holds the
//! statements about one noun, next to the functions that run them, checked against the schema when the crate is built.
//! Nothing here decides anything; a function does what its name says and tells how many rows it touched.
//!
//! To add a table: a migration that argues for itself, a file here, `make prepare`.

pub mod error;

pub mod auto_disable;
pub mod calendars;
pub mod cancel;
pub mod dead_letters;
pub mod delayed;
pub mod duplicates;
pub mod failures;
pub mod jobs;
pub mod manual_runs;
pub mod occurrences;
pub mod plan;
pub mod reports;
pub mod rules;
pub mod slots;
pub mod versions;

pub mod cluster;
pub mod leases;
pub mod logs;
pub mod lost_runs;
pub mod overview;
pub mod partitions;
mod quarantine;
pub mod workers;

pub mod audit;
pub mod sessions;
pub mod users;

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{
    PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};

pub use error::{Result, StoreError};

use crate::{clock::Clock, config::database::DatabaseConfig};

/// Every migration, compiled in.
pub static MIGRATOR: sqlx::migrate::Migrator = sqlx::migrate!("../migrations");

/// The truth.
#[derive(Clone, Debug)]
pub struct Store {
    pool: PgPool,
    /// Which rows of the roll-up this server writes, so that two servers do not wait for each other on one.
    shard: i16,
}

impl Store {
    /// Connects and brings the schema up to date.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached within ten seconds, or a migration fails.
    pub async fn connect(config: &DatabaseConfig) -> Result<Self> {
        let options: PgConnectOptions = config.url.parse().map_err(StoreError::Driver)?;
        let options = options
            .application_name("milvaion")
            // A statement that takes longer is a mistake; a transaction left open would block the others.
            .options([
                ("statement_timeout", "15s"),
                // Short statements over many partitions look expensive to the planner; compiling them would be.
                ("jit", "off"),
                // One plan for a statement, made once: planning anew over every partition costs more than the statement,
                // and a plan fitted to one batch's size scans whole tables for the next.
                ("plan_cache_mode", "force_generic_plan"),
                ("idle_in_transaction_session_timeout", "5s"),
                ("timezone", "UTC"),
            ]);
        let pool = PgPoolOptions::new()
            .max_connections(config.max_connections)
            .acquire_timeout(Duration::from_secs(10))
            .connect_with(options)
            .await?;
        MIGRATOR.run(&pool).await.map_err(|error| StoreError::Driver(error.into()))?;
        Ok(Self::from_pool(pool))
    }

    /// A store over a pool that exists, for tests.
    #[must_use]
    pub fn from_pool(pool: PgPool) -> Self {
        Self { pool, shard: i16::from(rand::random::<u8>() % 16) }
    }

    /// The roll-up shard of this server.
    pub(crate) const fn shard(&self) -> i16 {
        self.shard
    }

    /// The pool, for this room.
    pub(crate) const fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Asks the database for its clock and aligns ours. Returns how far they were apart.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn align(&self, clock: &Clock) -> Result<chrono::Duration> {
        let before = crate::clock::machine_now();
        let database: DateTime<Utc> =
            sqlx::query_scalar!(r#"SELECT clock_timestamp() AS "now!""#).fetch_one(&self.pool).await?;
        Ok(clock.align(database, before))
    }

    /// Closes every connection.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}
