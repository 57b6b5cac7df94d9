//! Months of the audit log: created in advance, and dropped as a whole after their retention.

use milvaion_server::{
    background::maintenance::Maintenance,
    clock::{Clock, machine_now},
    config::retention::RetentionConfig,
    engine::Service,
    store::{Store, audit::AuditEntry, partitions::PartitionDropOutcome},
};
use milvaion_test_support::database::{self, TestConnection};
use sqlx::{Connection, PgConnection};

use super::time;

/// Opens a store with partitions for the first four months of 2020. Each has a row in its first and its last moment.
async fn with_old_months() -> (Store, String) {
    let url = database::create().await;
    let store = database::open(&url).await;
    TestConnection::open(&url).await.execute("SELECT ensure_audit_partitions('2020-01-15', '2020-04-02')").await;
    for at in [
        "2020-01-01T00:00:00Z",
        "2020-01-31T23:59:59.999999Z",
        "2020-02-01T00:00:00Z",
        "2020-02-29T23:59:59.999999Z",
        "2020-03-01T00:00:00Z",
        "2020-03-31T23:59:59.999999Z",
        "2020-04-01T00:00:00Z",
        "2020-04-30T23:59:59.999999Z",
    ] {
        let entry = AuditEntry::new(time(at), "system", "job.pause", "job:1");
        store.audit(&entry).await.expect("the month has a partition");
    }
    (store, url)
}

async fn months(store: &Store) -> Vec<String> {
    let rows = store.audit_entries(Some("job:1"), 20).await.expect("the query succeeds");
    rows.iter().rev().map(|row| row.at().format("%Y-%m").to_string()).collect()
}

fn removed(partition: &str) -> (String, PartitionDropOutcome) {
    (partition.to_owned(), PartitionDropOutcome::Removed)
}

#[tokio::test]
async fn only_months_that_have_expired_as_a_whole_are_dropped() {
    let (store, _) = with_old_months().await;
    let drop_before = async |before: &str| store.drop_audit_months(time(before)).await.expect("the query succeeds");
    assert_eq!(drop_before("2020-01-31T23:59:59.999999Z").await, []);
    assert_eq!(drop_before("2020-02-01T00:00:00Z").await, [removed("audit_log_202001")]);
    assert_eq!(drop_before("2020-02-29T23:59:59.999999Z").await, [], "a month is dropped once");
    assert_eq!(months(&store).await, ["2020-02", "2020-02", "2020-03", "2020-03", "2020-04", "2020-04"]);
    let both = drop_before("2020-04-30T12:00:00Z").await;
    assert_eq!(both, [removed("audit_log_202002"), removed("audit_log_202003")]);
    assert_eq!(months(&store).await, ["2020-04", "2020-04"]);
}

#[tokio::test]
async fn month_that_is_being_read_is_dropped_later() {
    let (store, url) = with_old_months().await;
    let mut reader = PgConnection::connect(&url).await.expect("PostgreSQL responds");
    let mut tx = reader.begin().await.expect("a transaction");
    sqlx::query("SELECT count(*) FROM audit_log").execute(&mut *tx).await.expect("it can be read");
    let before = time("2020-02-01T00:00:00Z");
    let outcomes = store.drop_audit_months(before).await.expect("the query succeeds");
    assert_eq!(outcomes, [("audit_log_202001".to_owned(), PartitionDropOutcome::Locked)]);
    tx.rollback().await.expect("rolled back");
    assert_eq!(store.drop_audit_months(before).await.expect("the query succeeds"), [removed("audit_log_202001")]);
}

#[tokio::test]
async fn maintenance_drops_months_after_their_retention() {
    let (store, _) = with_old_months().await;
    let mut maintenance = Maintenance {
        store: store.clone(),
        clock: Clock::manual(machine_now()),
        retention: RetentionConfig::default(),
    };
    let entry = AuditEntry::new(machine_now(), "system", "job.pause", "job:2");
    store.audit(&entry).await.expect("it is stored");
    let report = maintenance.tick().await.expect("the tick succeeds");
    let mut dropped = report.dropped;
    dropped.retain(|partition| partition.starts_with("audit_log_"));
    assert_eq!(dropped, ["audit_log_202001", "audit_log_202002", "audit_log_202003", "audit_log_202004"]);
    assert_eq!(store.audit_entries(None, 20).await.expect("the query succeeds").len(), 1);
}

#[tokio::test]
async fn this_month_and_the_next_two_have_partitions() {
    let url = database::create().await;
    let store = database::open(&url).await;
    let mut connection = PgConnection::connect(&url).await.expect("PostgreSQL responds");
    for (now, expected) in [
        ("2031-01-31T23:59:59Z", ["203101", "203102", "203103"]),
        ("2031-07-01T00:00:00Z", ["203107", "203108", "203109"]),
        ("2031-12-01T00:00:00Z", ["203112", "203201", "203202"]),
        ("2032-12-31T23:59:59Z", ["203212", "203301", "203302"]),
    ] {
        assert!(store.ensure_partitions(time(now)).await.expect("the query succeeds") > 0);
        let names: Vec<String> = sqlx::query_scalar(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'audit_log'::regclass",
        )
        .fetch_all(&mut connection)
        .await
        .expect("the query succeeds");
        for month in expected {
            assert!(names.contains(&format!("audit_log_{month}")), "{now}: {names:?}");
        }
        assert_eq!(store.ensure_partitions(time(now)).await.expect("the query succeeds"), 0, "they exist already");
    }
}
