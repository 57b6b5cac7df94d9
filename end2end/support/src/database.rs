//! Databases of a test's own.
//!
//! They are not dropped at the end of a test: `make test` deletes the whole PostgreSQL. Programs that run on a
//! long-lived PostgreSQL drop theirs with [`TestDatabase::drop_database`].

use anyhow::Context;
use milvaion_server::{clock::machine_now, config::database::DatabaseConfig, store::Store};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use crate::services;

/// An empty database or a copy of one.
#[derive(Debug)]
pub struct TestDatabase {
    /// The database's URL.
    pub url: String,
    /// The database's name.
    pub name: String,
    /// The URL of the database that statements about this one are executed in.
    admin_url: String,
}

impl TestDatabase {
    /// Creates an empty database on the PostgreSQL of `admin_url`, with the same URL parameters.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL names no database or PostgreSQL fails.
    pub async fn create(admin_url: &str, name: &str) -> anyhow::Result<Self> {
        Self::create_from(admin_url, name, "").await
    }

    /// Creates a copy of this database, to which nothing may be connected.
    ///
    /// # Errors
    ///
    /// Returns an error if a connection is open or PostgreSQL fails.
    pub async fn copy(&self, name: &str) -> anyhow::Result<Self> {
        Self::create_from(&self.admin_url, name, &format!(" TEMPLATE {} STRATEGY file_copy", self.name)).await
    }

    async fn create_from(admin_url: &str, name: &str, template: &str) -> anyhow::Result<Self> {
        let (base, rest) = admin_url.rsplit_once('/').context("the PostgreSQL URL names no database")?;
        let parameters = rest.split_once('?').map_or(String::new(), |(_, parameters)| format!("?{parameters}"));
        execute(admin_url, format!("CREATE DATABASE {name}{template}")).await?;
        Ok(Self { url: format!("{base}/{name}{parameters}"), name: name.to_owned(), admin_url: admin_url.to_owned() })
    }

    /// Drops the database and ends the connections to it.
    ///
    /// # Errors
    ///
    /// Returns an error if PostgreSQL fails.
    pub async fn drop_database(&self) -> anyhow::Result<()> {
        execute(&self.admin_url, format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name)).await
    }
}

async fn execute(url: &str, statement: String) -> anyhow::Result<()> {
    let mut connection = PgConnection::connect(url).await?;
    connection.execute(AssertSqlSafe(statement)).await?;
    connection.close().await?;
    Ok(())
}

/// Creates an empty database on the shared PostgreSQL. Returns its URL.
///
/// # Panics
///
/// Panics if PostgreSQL fails.
pub async fn create() -> String {
    let database = TestDatabase::create(&services::database_url(), &services::unique("test")).await;
    database.expect("a database can be created").url
}

/// Opens a store on an existing database: migrates it and creates the current partitions.
///
/// # Panics
///
/// Panics if PostgreSQL fails.
pub async fn open(url: &str) -> Store {
    let config = DatabaseConfig { url: url.to_owned(), max_connections: 8 };
    let store = Store::connect(&config).await.expect("the database can be migrated");
    store.ensure_partitions(machine_now()).await.expect("partitions can be created");
    store
}

/// Opens a store on a new database.
///
/// # Panics
///
/// Panics if PostgreSQL fails.
pub async fn fresh() -> Store {
    open(&create().await).await
}

/// A connection for statements that the store has no function for.
#[derive(Debug)]
pub struct TestConnection(PgConnection);

impl TestConnection {
    /// Connects to a database.
    ///
    /// # Panics
    ///
    /// Panics if PostgreSQL does not respond.
    pub async fn open(url: &str) -> Self {
        Self(PgConnection::connect(url).await.expect("PostgreSQL responds"))
    }

    /// Returns the one `bigint` that a query selects.
    ///
    /// # Panics
    ///
    /// Panics if the query fails.
    pub async fn count(&mut self, sql: impl Into<String>) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql.into())).fetch_one(&mut self.0).await.expect("the query succeeds")
    }

    /// Executes a statement. Returns the number of rows it changed or selected.
    ///
    /// # Panics
    ///
    /// Panics if the statement fails.
    pub async fn execute(&mut self, sql: impl Into<String>) -> u64 {
        let done = sqlx::query(AssertSqlSafe(sql.into())).execute(&mut self.0).await;
        done.expect("the statement succeeds").rows_affected()
    }
}
