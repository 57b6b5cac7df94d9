//! Databases of a test's own.
//!
//! Most tests get a copy of a template that has all migrations and the partitions of today: copying it takes a fraction of
//! the second that hundreds of tests would spend on creating the tables. The first test that needs the template creates it.
//!
//! They are not dropped at the end of a test: `make test` deletes the whole PostgreSQL. Programs that run on a
//! long-lived PostgreSQL drop theirs with [`TestDatabase::drop_database`].

use std::hash::{DefaultHasher, Hash, Hasher};

use anyhow::Context;
use milvaion_server::{
    clock::machine_now,
    config::database::DatabaseConfig,
    store::{MIGRATOR, Store},
};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use crate::{
    budget::{self, CountedEvent},
    services,
};

/// The clause that copies the files of a template. PostgreSQL 15 and later have it; the default writes each page to the
/// write-ahead log and takes twice the time.
const COPY_FILES: &str = "STRATEGY file_copy";

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
        Self::create_from(&self.admin_url, name, &format!(" TEMPLATE {} {COPY_FILES}", self.name)).await
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

/// The key of the advisory lock under which one test creates the template and the others wait.
const TEMPLATE_LOCK: i64 = 0x6d69_6c76_7465_6d70;

/// Returns the name of the template. It contains the day and the checksums of the migrations, so that a PostgreSQL that
/// outlives the day or a change of the migrations gets a new template.
fn template_name() -> String {
    let mut hash = DefaultHasher::new();
    for migration in MIGRATOR.iter() {
        migration.checksum.hash(&mut hash);
    }
    format!("template_{}_{:016x}", machine_now().format("%Y%m%d"), hash.finish())
}

/// Creates the template if it is missing. Returns its name.
async fn template(admin_url: &str) -> anyhow::Result<String> {
    let name = template_name();
    let mut admin = PgConnection::connect(admin_url).await?;
    // The end of the connection releases the lock, also if this process is killed.
    sqlx::query("SELECT pg_advisory_lock($1)").bind(TEMPLATE_LOCK).execute(&mut admin).await?;
    let exists: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
        .bind(&name)
        .fetch_one(&mut admin)
        .await?;
    if !exists {
        // Renamed once it is complete, because only the name tells others that it is.
        let incomplete = TestDatabase::create(admin_url, &services::unique("incomplete")).await?;
        open(&incomplete.url).await.close().await;
        admin.execute(AssertSqlSafe(format!("ALTER DATABASE {} RENAME TO {name}", incomplete.name))).await?;
    }
    admin.close().await?;
    Ok(name)
}

/// Creates a database on the shared PostgreSQL that a server has prepared today and in which nothing is stored. Returns its
/// URL.
///
/// # Panics
///
/// Panics if PostgreSQL fails.
pub async fn create() -> String {
    let admin_url = services::database_url();
    let template = template(&admin_url).await.expect("the template can be created");
    let name = services::unique("test");
    budget::count(CountedEvent::Database);
    let database = TestDatabase::create_from(&admin_url, &name, &format!(" TEMPLATE {template} {COPY_FILES}")).await;
    database.expect("a database can be created").url
}

/// Creates a database without tables on the shared PostgreSQL, for a test of the migrations. Returns its URL.
///
/// # Panics
///
/// Panics if PostgreSQL fails.
pub async fn create_empty() -> String {
    budget::count(CountedEvent::Database);
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
