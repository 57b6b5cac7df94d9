//! The check of the schema by programs that must not change it.

use milvaion_server::{config::database::DatabaseConfig, error::chain, store::Store};
use milvaion_test_support::database::{self, TestConnection};

async fn refusal(config: &DatabaseConfig) -> String {
    chain(&Store::open(config).await.expect_err("the schema is refused"))
}

#[tokio::test]
async fn open_refuses_other_schemas_and_changes_nothing() {
    let config = DatabaseConfig { url: database::create().await, max_connections: 4 };
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
    let text = refusal(&config).await;
    assert!(text.contains("a newer server"), "{text}");

    connection.execute("DELETE FROM _sqlx_migrations WHERE version = 99990101000000").await;
    let newest = "DELETE FROM _sqlx_migrations WHERE version = (SELECT max(version) FROM _sqlx_migrations)";
    assert_eq!(connection.execute(newest).await, 1);
    let text = refusal(&config).await;
    assert!(text.contains("an older server"), "{text}");
}
