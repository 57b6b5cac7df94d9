//! A session that holds an old snapshot is reported in the health until it ends.

use std::time::Duration;

use milvaion_server::{
    background::snapshot_watch::{SnapshotReport, SnapshotWatch},
    engine::{Service, observations::LastSnapshot},
    lifecycle::Server,
};
use milvaion_test_support::{server_env, wait};
use sqlx::{Connection, Executor, PgConnection, postgres::PgConnectOptions};

/// Runs a tick that reports snapshots from an age on.
async fn tick(server: &Server, last: &LastSnapshot, min_age: Duration) -> SnapshotReport {
    let (store, clock) = (server.store.clone(), server.clock.clone());
    let mut watch = SnapshotWatch { store, clock, last: last.clone(), min_age };
    watch.tick().await.expect("the query succeeds")
}

#[tokio::test]
async fn session_with_an_old_snapshot_is_named_until_it_ends() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let last = LastSnapshot::default();
    let options: PgConnectOptions = config.database.url.parse().expect("a URL");
    let mut session = PgConnection::connect_with(&options.application_name("a dump")).await.expect("connected");
    session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM jobs").await.expect("a snapshot");

    assert_eq!(tick(&server, &last, Duration::from_secs(3_600)).await.oldest, None);
    // A transaction of the server itself may be older for a moment.
    let found = wait::eventually("the session", async || {
        let report = tick(&server, &last, Duration::ZERO).await;
        report.oldest.filter(|found| found.application == "a dump" && report.is_new)
    })
    .await;
    assert_eq!(last.get(), Some(found.clone()));
    assert!(!tick(&server, &last, Duration::ZERO).await.is_new, "it is logged once");

    session.execute("COMMIT").await.expect("committed");
    wait::eventually("the end of the report", async || {
        tick(&server, &last, Duration::ZERO).await;
        last.get().is_none_or(|last| last.pid != found.pid).then_some(())
    })
    .await;
    server.stop().await;
}
