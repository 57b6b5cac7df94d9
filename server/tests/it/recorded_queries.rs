//! The record of the server's queries.
//!
//! A build checks each query against its record in `server/.sqlx`, and fails for a query that has none. It does not notice a
//! migration that changes what a recorded query returns: this test asks PostgreSQL. A record that no query uses any more
//! harms no build; `make test-all` finds it, because only a compilation can.

use std::{fs, path::PathBuf};

use milvaion_test_support::{database, paths::repository_root};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, SqlSafeStr};

/// Returns the files of the record.
fn records() -> Vec<PathBuf> {
    let folder = repository_root().join("server/.sqlx");
    let entries = fs::read_dir(folder).expect("the record can be listed");
    entries.map(|entry| entry.expect("the record can be listed").path()).collect()
}

/// Returns true if code that was checked against the record is right for what PostgreSQL describes now.
///
/// Columns and parameters must be equal. A column may have become certain to have a value: which columns of an outer join
/// are, depends on the plan, and therefore on the statistics of the database.
fn agree(recorded: &Value, now: &Value) -> bool {
    let nullable = |description: &Value| description["nullable"].as_array().cloned().unwrap_or_default();
    let (before, after) = (nullable(recorded), nullable(now));
    let lost = before.iter().zip(&after).any(|(before, after)| before == &json!(false) && after != &json!(false));
    recorded["columns"] == now["columns"]
        && recorded["parameters"] == now["parameters"]
        && before.len() == after.len()
        && !lost
}

#[tokio::test]
async fn recorded_queries_match_the_schema() {
    let mut connection = PgConnection::connect(&database::create().await).await.expect("PostgreSQL responds");
    let (mut checked, mut outdated) = (0, Vec::new());
    for path in records() {
        let text = fs::read_to_string(&path).expect("a record can be read");
        let record: Value = serde_json::from_str(&text).expect("a record is JSON");
        let query = record["query"].as_str().expect("a record has its query").to_owned();
        let now = match connection.describe(AssertSqlSafe(query).into_sql_str()).await {
            Ok(now) => serde_json::to_value(&now).expect("a description is JSON"),
            Err(error) => json!(error.to_string()),
        };
        checked += 1;
        if !agree(&record["describe"], &now) {
            outdated.push(format!("{}: PostgreSQL says {now}", path.display()));
        }
    }
    assert!(outdated.is_empty(), "run `make prepare` and commit server/.sqlx:\n{}", outdated.join("\n"));
    assert!(checked > 100, "only {checked} queries are recorded");
}
