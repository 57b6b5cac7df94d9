//! The cluster pause, which records who paused the cluster, and why.

use std::sync::Arc;

use futures::StreamExt;
use milvaion_api::events::LiveEvent;
use milvaion_app::error::AppError;
use milvaion_protocol::id::OccurrenceId;
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    cache::Cache,
    clock::Clock,
    command::cluster::ClusterCommands,
    live::Hub,
    store::{Store, create::NewRun},
};
use milvaion_test_support::{database, jobs, server_env};
use tokio::sync::Notify;

struct ClusterPauseHarness {
    store: Store,
    cluster: ClusterCommands,
    outbox: tokio::sync::mpsc::Receiver<Vec<milvaion_api::events::EventEnvelope>>,
    pool: sqlx::PgPool,
}

async fn harness() -> ClusterPauseHarness {
    let config = server_env::config().await;
    let store = database::open(&config.database.url).await;
    let (hub, outbox) = Hub::new();
    let cluster = ClusterCommands {
        store: store.clone(),
        cache: Cache::new(&config.cache).expect("a valid URL"),
        hub,
        clock: Clock::system(),
        activate_dispatcher: Arc::new(Notify::new()),
        activate_slot_granter: Arc::new(Notify::new()),
    };
    let pool = sqlx::PgPool::connect(&config.database.url).await.expect("PostgreSQL responds");
    ClusterPauseHarness { store, cluster, outbox, pool }
}

#[tokio::test]
async fn cluster_pause_is_recorded_and_announced() {
    let mut harness = harness().await;
    let others = harness.cluster.cache.listen().await.expect("Redis responds");
    tokio::pin!(others);
    assert_eq!(harness.cluster.state().await.expect("the query succeeds"), None);

    harness.cluster.pause(&jobs::admin(), " the disk is full\0 ").await.expect("paused");
    let pause = harness.cluster.state().await.expect("the query succeeds").expect("paused");
    assert_eq!((pause.by.as_str(), pause.reason.as_str()), ("ana@example.org", "the disk is full\u{fffd}"));
    assert!(!others.next().await.expect("an announcement").0, "the other servers are notified");
    harness.cluster.activate_dispatcher.notified().await;
    assert_eq!(harness.outbox.recv().await.expect("an event")[0].event, LiveEvent::Cluster);

    harness.cluster.resume(&jobs::admin()).await.expect("resumed");
    assert_eq!(harness.cluster.state().await.expect("the query succeeds"), None);
    others.next().await.expect("an announcement");
    harness.cluster.activate_slot_granter.notified().await;
    assert_eq!(harness.outbox.recv().await.expect("an event")[0].event, LiveEvent::Cluster);

    let audit = harness.store.audit_entries(Some("cluster:all"), 10).await.expect("the query succeeds");
    let actions: Vec<_> = audit.iter().map(|row| (row.action.as_str(), row.who.as_str())).collect();
    assert_eq!(actions, [("cluster.resume", "ana@example.org"), ("cluster.pause", "ana@example.org")]);
    assert_eq!(audit[0].reason.as_deref(), Some("the disk is full\u{fffd}"));
    assert_eq!(audit[1].reason.as_deref(), Some("the disk is full\u{fffd}"));
}

#[tokio::test]
async fn repeated_pause_and_resume_change_nothing() {
    let harness = harness().await;
    harness.cluster.pause(&jobs::admin(), "first").await.expect("paused");
    let mut other = jobs::admin();
    other.user.email = "bo@example.org".into();
    harness.cluster.pause(&other, "second").await.expect("no error");
    let pause = harness.cluster.state().await.expect("the query succeeds").expect("paused");
    assert_eq!((pause.by.as_str(), pause.reason.as_str()), ("ana@example.org", "first"));
    harness.cluster.resume(&other).await.expect("resumed");
    harness.cluster.resume(&other).await.expect("no error");
    assert_eq!(harness.store.audit_entries(Some("cluster:all"), 10).await.expect("the query succeeds").len(), 2);
}

#[tokio::test]
async fn cluster_pause_needs_a_reason_of_at_most_500_characters() {
    let harness = harness().await;
    for reason in ["", "  ", &"x".repeat(501)] {
        let refused = harness.cluster.pause(&jobs::admin(), reason).await.expect_err("refused");
        assert!(matches!(&refused, AppError::Fields(fields) if fields[0].field == "reason"), "{refused:?}");
    }
    harness.cluster.pause(&jobs::admin(), &"é".repeat(500)).await.expect("500 characters are accepted");
    assert_eq!(harness.store.audit_entries(None, 10).await.expect("the query succeeds").len(), 1);
}

#[tokio::test]
async fn cluster_pause_withholds_unsent_scheduled_runs() {
    let harness = harness().await;
    let (store, clock) = (&harness.store, &harness.cluster.clock);
    let job_id = jobs::insert(store, clock, Schedule::Manual, None).await;
    let mut ids = Vec::new();
    for trigger in ["schedule", "manual"] {
        let run = NewRun { id: clock.occurrence_id(), job_id, by: "test".into(), force: true, ..NewRun::default() };
        let outcome = store.insert_manual_run(&run, clock.now()).await.expect("the query succeeds");
        outcome.into_created().expect("it is created");
        sqlx::query("UPDATE runs SET trigger = $1 WHERE id = $2")
            .bind(trigger)
            .bind(run.id.0)
            .execute(&harness.pool)
            .await
            .expect("the statement succeeds");
        ids.push(run.id);
    }
    let unsent = async || -> Vec<OccurrenceId> {
        let later = clock.now() + chrono::Duration::minutes(1);
        let unsent = store.claim_unsent(later, &[], &[], 10, clock.now()).await.expect("the query succeeds");
        unsent.into_iter().map(|queued| queued.id).collect()
    };
    assert_eq!(unsent().await, ids);
    harness.cluster.pause(&jobs::admin(), "the warehouse moves").await.expect("paused");
    assert_eq!(unsent().await, ids[1..]);
    harness.cluster.resume(&jobs::admin()).await.expect("resumed");
    assert_eq!(unsent().await, ids);
}
