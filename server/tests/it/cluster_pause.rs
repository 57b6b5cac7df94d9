//! One switch for everything, with a name and a reason.

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
    store::{Store, manual_runs::NewManualRun},
};
use tokio::sync::Notify;

use milvaion_test_support::{self as common, stack};

struct ClusterPauseHarness {
    store: Store,
    cluster: ClusterCommands,
    outbox: tokio::sync::mpsc::Receiver<Vec<milvaion_api::events::EventEnvelope>>,
    pool: sqlx::PgPool,
}

async fn harness() -> ClusterPauseHarness {
    let config = stack::config().await;
    let store = common::open(&config.database.url).await;
    let (hub, outbox) = Hub::new();
    let cluster = ClusterCommands {
        store: store.clone(),
        cache: Cache::new(&config.cache).expect("a URL"),
        hub,
        clock: Clock::system(),
        activate_dispatcher: Arc::new(Notify::new()),
        activate_slot_granter: Arc::new(Notify::new()),
    };
    let pool = sqlx::PgPool::connect(&config.database.url).await.expect("PostgreSQL answers");
    ClusterPauseHarness { store, cluster, outbox, pool }
}

#[tokio::test]
async fn a_pause_names_who_and_why_and_everybody_hears_of_it() {
    let mut harness = harness().await;
    let others = harness.cluster.cache.listen().await.expect("Redis answers");
    tokio::pin!(others);
    assert_eq!(harness.cluster.state().await.expect("answered"), None);

    harness.cluster.pause(&stack::admin(), " the disk is full\0 ").await.expect("paused");
    let pause = harness.cluster.state().await.expect("answered").expect("paused");
    assert_eq!((pause.by.as_str(), pause.reason.as_str()), ("ana@example.org", "the disk is full"));
    assert!(!others.next().await.expect("told").0, "the other servers look");
    harness.cluster.activate_dispatcher.notified().await;
    let told = harness.outbox.recv().await.expect("told");
    assert_eq!(told[0].event, LiveEvent::Cluster);

    harness.cluster.resume(&stack::admin()).await.expect("resumed");
    assert_eq!(harness.cluster.state().await.expect("answered"), None);
    others.next().await.expect("told");
    harness.cluster.activate_slot_granter.notified().await;
    assert_eq!(harness.outbox.recv().await.expect("told")[0].event, LiveEvent::Cluster);

    let audit = harness.store.audit_entries(Some("cluster:all"), 10).await.expect("answered");
    let deeds: Vec<_> = audit.iter().map(|row| (row.action.as_str(), row.who.as_str())).collect();
    assert_eq!(deeds, [("cluster.resume", "ana@example.org"), ("cluster.pause", "ana@example.org")]);
    assert_eq!(audit[0].before.as_ref().and_then(|it| it["reason"].as_str()), Some("the disk is full"));
    assert_eq!(audit[1].after.as_ref().and_then(|it| it["reason"].as_str()), Some("the disk is full"));
}

#[tokio::test]
async fn a_second_pause_leaves_the_first_ones_name_and_a_second_resume_is_no_mistake() {
    let harness = harness().await;
    harness.cluster.pause(&stack::admin(), "first").await.expect("paused");
    let other = milvaion_api::views::CurrentUser { email: "bo@example.org".into(), ..stack::admin() };
    harness.cluster.pause(&other, "second").await.expect("no mistake");
    let pause = harness.cluster.state().await.expect("answered").expect("paused");
    assert_eq!((pause.by.as_str(), pause.reason.as_str()), ("ana@example.org", "first"));
    harness.cluster.resume(&other).await.expect("resumed");
    harness.cluster.resume(&other).await.expect("no mistake");
    assert_eq!(harness.store.audit_entries(Some("cluster:all"), 10).await.expect("answered").len(), 2);
}

#[tokio::test]
async fn a_pause_without_a_reason_or_with_a_novel_is_refused() {
    let harness = harness().await;
    for reason in ["", "  ", &"x".repeat(501)] {
        let refused = harness.cluster.pause(&stack::admin(), reason).await.expect_err("refused");
        assert!(matches!(&refused, AppError::Fields(fields) if fields[0].field == "reason"), "{refused:?}");
    }
    harness.cluster.pause(&stack::admin(), &"é".repeat(500)).await.expect("500 characters are fine");
    assert_eq!(harness.store.audit_entries(None, 10).await.expect("answered").len(), 1);
}

#[tokio::test]
async fn while_the_cluster_is_paused_only_what_somebody_asked_for_is_sent_again() {
    let harness = harness().await;
    let (store, clock) = (&harness.store, &harness.cluster.clock);
    let job_id = common::insert(store, clock, Schedule::Manual, None).await;
    let mut ids = Vec::new();
    for trigger in ["schedule", "manual"] {
        let asked = NewManualRun {
            id: clock.occurrence_id(),
            job_id,
            by: "test".into(),
            force: true,
            ..NewManualRun::default()
        };
        store.insert_manual_run(&asked, clock.now()).await.expect("answered").into_created().expect("made");
        sqlx::query("UPDATE occurrences SET trigger = $1 WHERE id = $2")
            .bind(trigger)
            .bind(asked.id.0)
            .execute(&harness.pool)
            .await
            .expect("set");
        ids.push(asked.id);
    }
    let unsent = async || -> Vec<OccurrenceId> {
        let later = clock.now() + chrono::Duration::minutes(1);
        store.unsent_occurrences(later, &[], 10).await.expect("answered").into_iter().map(|queued| queued.id).collect()
    };
    assert_eq!(unsent().await, ids);
    harness.cluster.pause(&stack::admin(), "the warehouse moves").await.expect("paused");
    assert_eq!(unsent().await, ids[1..]);
    harness.cluster.resume(&stack::admin()).await.expect("resumed");
    assert_eq!(unsent().await, ids);
}
