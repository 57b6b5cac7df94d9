//! The schema: migrations beside running sessions, and programs of another version.

use std::borrow::Cow;

use milvaion_server::{
    clock::Clock,
    config::database::DatabaseConfig,
    error::chain,
    store::{MIGRATOR, Store},
};
use milvaion_test_support::{
    database::{self, TestConnection},
    jobs, wait,
};
use sqlx::{
    SqlSafeStr,
    migrate::{Migration, MigrationType, Migrator},
};

async fn refusal(config: &DatabaseConfig) -> String {
    chain(&Store::open(config).await.expect_err("the schema is refused"))
}

#[tokio::test]
async fn open_refuses_other_schemas_and_changes_nothing() {
    let config = DatabaseConfig { url: database::create_empty().await, max_connections: 4 };
    let mut connection = TestConnection::open(&config.url).await;
    let text = refusal(&config).await;
    assert!(text.contains("no tables of Milvaion") && text.contains("DATABASE_URL"), "{text}");
    assert_eq!(connection.count("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").await, 0);

    database::open(&config.url).await.close().await;
    Store::open(&config).await.expect("this version has prepared it").close().await;

    connection
        .execute(
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
             VALUES (99990101000000, 'of a later version', true, '', 0)",
        )
        .await;
    Store::open(&config).await.expect("this version can work with it").close().await;
    connection.execute("UPDATE schema_compatibility SET required_migration = 99990101000000").await;
    let text = refusal(&config).await;
    assert!(text.contains("a newer server"), "{text}");

    connection.execute("DELETE FROM _sqlx_migrations WHERE version = 99990101000000").await;
    let newest = "DELETE FROM _sqlx_migrations WHERE version = (SELECT max(version) FROM _sqlx_migrations)";
    assert_eq!(connection.execute(newest).await, 1);
    let text = refusal(&config).await;
    assert!(text.contains("an older server"), "{text}");
}

/// Returns the migrations of a later version, with one more.
fn later_version(statements: &'static str) -> Migrator {
    let mut migrations = MIGRATOR.migrations.to_vec();
    let version = 99_990_101_000_000;
    let later = Migration::new(version, "later".into(), MigrationType::Simple, statements.into_sql_str(), false);
    migrations.push(later);
    Migrator { migrations: Cow::Owned(migrations), ..Migrator::DEFAULT }
}

#[tokio::test]
async fn a_migration_waits_for_a_dump_and_blocks_no_other_session() {
    let config = DatabaseConfig { url: database::create().await, max_connections: 4 };
    let store = database::open(&config.url).await;
    let (mut dump, mut other) = (TestConnection::open(&config.url).await, TestConnection::open(&config.url).await);
    dump.execute("BEGIN").await;
    dump.execute("LOCK TABLE jobs IN ACCESS SHARE MODE").await;

    let later = later_version(
        "ALTER TABLE jobs ADD COLUMN later integer;
         CREATE TABLE seen AS SELECT current_setting('statement_timeout') AS statement_timeout;",
    );
    let migrating = tokio::spawn({
        let config = config.clone();
        async move { Store::connect_with(&config, &later).await }
    });
    let waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'jobs'::regclass AND NOT granted";
    wait::eventually("the migration, which waits", async || {
        (TestConnection::open(&config.url).await.count(waiting).await == 1).then_some(())
    })
    .await;
    // Waits behind the migration until that gives up, and then goes first.
    assert_eq!(other.count("SELECT count(*) FROM jobs").await, 0);
    dump.execute("COMMIT").await;
    migrating.await.expect("no panic").expect("the migrations are applied").close().await;
    assert_eq!(other.count("SELECT count(*) FROM seen WHERE statement_timeout = '0'").await, 1);

    // The version before runs on, and starts again.
    let clock = Clock::system();
    jobs::insert(&store, &clock, milvaion_schedule::schedule::Schedule::Manual, None).await;
    let again = Store::connect(&config).await.expect("it can work with the later tables");
    jobs::insert(&again, &clock, milvaion_schedule::schedule::Schedule::Manual, None).await;
    other.execute("UPDATE schema_compatibility SET required_migration = 99990101000000").await;
    let refused = chain(&Store::connect(&config).await.expect_err("it is told that it cannot"));
    assert!(refused.contains("a newer server"), "{refused}");
}
