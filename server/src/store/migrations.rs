//! The migrations, and the versions of the server that can work with a database.
//!
//! Migrations run on a connection of their own, without a time limit for statements: on a large table an index takes
//! longer than any limit for a query. They wait for locks for two seconds only and then start again, because every
//! statement on a table queues behind a migration that waits for its lock.
//!
//! During an upgrade, servers of two versions run side by side, and an old one may be started again after the new one has
//! migrated, or instead of it. It therefore accepts migrations that it does not know, unless the newest of them that a
//! program must know, which the table `schema_compatibility` holds, is newer than its own.

use std::time::Duration;

use sqlx::{
    migrate::{MigrateError, Migrator},
    postgres::PgPoolOptions,
};

use super::{
    error::{Result, StoreError},
    pool::StorePool,
};

/// All migrations, compiled in.
pub static MIGRATOR: Migrator = sqlx::migrate!("../migrations");

/// The session parameters of a migration.
const PARAMETERS: [(&str, &str); 2] = [("statement_timeout", "0"), ("lock_timeout", "2s")];
/// The pause after a migration found a table locked.
const LOCK_PAUSE: Duration = Duration::from_secs(1);
/// The SQLSTATE of a lock that was not acquired in time.
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// Applies those of the migrations that are missing. Waits for locks of other sessions, and for another server that
/// applies them.
///
/// # Errors
///
/// Returns [`StoreError::Schema`] if this version cannot work with the database, and [`StoreError::Driver`] if PostgreSQL
/// or a migration fails.
pub(super) async fn apply(pool: &StorePool, migrator: &Migrator) -> Result<()> {
    check_compatibility(pool, migrator).await?;
    let options = pool.connect_options().options(PARAMETERS);
    let mut migrator = Migrator { migrations: migrator.migrations.clone(), ..Migrator::DEFAULT };
    migrator.set_ignore_missing(true);
    loop {
        let session = PgPoolOptions::new().max_connections(1).connect_with(options.clone()).await?;
        let applied = migrator.run(&session).await;
        // Ends the lock too, which belongs to the session.
        session.close().await;
        match applied {
            Err(error) if is_locked(&error) => {
                tracing::warn!("the migrations wait for another server or for a session that has locked a table");
                tokio::time::sleep(LOCK_PAUSE).await;
            }
            other => return other.map_err(|error| StoreError::Driver(error.into())),
        }
    }
}

fn is_locked(error: &MigrateError) -> bool {
    let cause = match error {
        MigrateError::Execute(cause) | MigrateError::ExecuteMigration(cause, _) => cause,
        _ => return false,
    };
    cause.as_database_error().is_some_and(|error| error.code().is_some_and(|code| code == LOCK_NOT_AVAILABLE))
}

/// Checks that a program that applies no migration can work with the database.
///
/// # Errors
///
/// Returns [`StoreError::Schema`] if it cannot.
pub(super) async fn check(pool: &StorePool) -> Result<()> {
    let applied = applied(pool).await?;
    if applied.is_empty() {
        return Err(StoreError::Schema(
            "the database holds no tables of Milvaion: correct DATABASE_URL, or start the server once",
        ));
    }
    check_compatibility(pool, &MIGRATOR).await?;
    if MIGRATOR.iter().any(|migration| !applied.contains(&migration.version)) {
        return Err(StoreError::Schema(
            "an older server has prepared the database: start this version of the server first, or run this command \
             with the program of that server",
        ));
    }
    Ok(())
}

/// Returns the versions of the applied migrations.
async fn applied(pool: &StorePool) -> Result<Vec<i64>> {
    // The table belongs to the migrator, so these statements are not checked against the schema at build time.
    let is_prepared: bool =
        sqlx::query_scalar("SELECT to_regclass('_sqlx_migrations') IS NOT NULL").fetch_one(pool).await?;
    if !is_prepared {
        return Ok(Vec::new());
    }
    Ok(sqlx::query_scalar("SELECT version FROM _sqlx_migrations WHERE success").fetch_all(pool).await?)
}

/// Checks that this version can work with migrations that it does not know.
async fn check_compatibility(pool: &StorePool, migrator: &Migrator) -> Result<()> {
    let newest = migrator.iter().map(|migration| migration.version).max().unwrap_or_default();
    let unknown: Vec<i64> =
        applied(pool).await?.into_iter().filter(|version| !migrator.version_exists(*version)).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let required: Option<i64> =
        sqlx::query_scalar("SELECT required_migration FROM schema_compatibility").fetch_optional(pool).await?;
    if unknown.iter().any(|version| *version < newest) || required.is_none_or(|required| required > newest) {
        return Err(StoreError::Schema(
            "a newer server has prepared the database in a way that this version cannot read: start that version again",
        ));
    }
    tracing::warn!(
        migrations = unknown.len(),
        "a newer server has prepared the database; this version can work with it, until that version requires more"
    );
    Ok(())
}
