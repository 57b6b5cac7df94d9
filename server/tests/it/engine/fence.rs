//! Who may not fire: an old leader, and anybody while the cluster is paused.

use chrono::Duration;
use milvaion_schedule::due::DueAction;
use milvaion_schedule::{rules::Rules, schedule::Schedule};
use milvaion_server::{
    clock::Clock,
    store::{Store, plan::NewScheduledRun},
};
use sqlx::{Connection, Executor, PgConnection};

use super::harness::ManualClockHarness;
use milvaion_test_support as common;

async fn due_fire(store: &Store, clock: &Clock) -> NewScheduledRun {
    let now = clock.now();
    let job = common::insert(store, clock, Schedule::every(60), Some(now)).await;
    NewScheduledRun {
        job_id: job,
        version: 1,
        due: store.job(job).await.expect("answered").expect("there").next_fire_at.expect("due"),
        next_fire_at: Some(now + Duration::seconds(60)),
        occurrence_id: clock.occurrence_id(),
        action: DueAction::Run,
        note: None,
    }
}

#[tokio::test]
async fn an_old_leader_writes_nothing() {
    let url = common::database_url().await;
    let store = common::open(&url).await;
    let clock = Clock::system();
    let mut connection = PgConnection::connect(&url).await.expect("PostgreSQL answers");
    connection
        .execute("INSERT INTO leases (role, epoch, changed_at) VALUES ('dispatcher', 8, now())")
        .await
        .expect("the lease is there");
    let fire = due_fire(&store, &clock).await;
    let fires = std::slice::from_ref(&fire);
    assert!(
        store.create_scheduled_runs(fires, Some(7), clock.now()).await.expect("answered").is_empty(),
        "epoch 7 is over"
    );
    assert_eq!(store.create_scheduled_runs(fires, Some(8), clock.now()).await.expect("answered").len(), 1);
}

#[tokio::test]
async fn nothing_fires_while_the_cluster_is_paused_and_everything_does_afterwards() {
    let harness = ManualClockHarness::open().await;
    let mut connection = PgConnection::connect(&harness.config.database.url).await.expect("PostgreSQL answers");
    connection
        .execute("INSERT INTO cluster_pause (since, by_whom, reason) VALUES (now(), 'ana', 'upgrade')")
        .await
        .expect("paused");
    let job = harness.job(Schedule::every(60), Rules::default(), Some(harness.clock.now())).await;
    let ticked = harness.server.dispatcher.tick().await.expect("answered");
    assert!(ticked.is_paused && ticked.fired.is_empty(), "{ticked:?}");
    connection.execute("DELETE FROM cluster_pause").await.expect("resumed");
    harness.occurrences(job, 1).await;
    harness.close().await;
}
