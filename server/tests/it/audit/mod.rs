//! The audit log: its rows, its pages, its downloads and its retention.

mod export;
mod log;
mod retention;
mod web;

use chrono::{DateTime, Utc};
use milvaion_server::store::Store;
use milvaion_test_support::database;

/// Returns a time.
fn time(text: &str) -> DateTime<Utc> {
    text.parse().expect("a valid time")
}

/// Returns the time of the first rows of a test.
fn start() -> DateTime<Utc> {
    time("2026-11-23T09:00:00Z")
}

/// Opens a store on a new database with partitions for [`start`]. Returns the URL of the database too.
async fn open() -> (Store, String) {
    let url = database::create().await;
    let store = database::open(&url).await;
    store.ensure_partitions(start()).await.expect("partitions can be created");
    (store, url)
}
