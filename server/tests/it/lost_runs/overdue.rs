//! Runs whose worker is alive and lets their timeout pass.

use milvaion_protocol::status::OccurrenceStatus;
use milvaion_server::{
    background::overdue_runs::{OverdueReport, OverdueRuns},
    engine::Service,
};

use super::harness::LostRunHarness;

/// Advances to `seconds` after the start in `harness`, with a heartbeat that lists the run, and ticks once.
async fn tick_after(harness: &LostRunHarness, seconds: i64) -> OverdueReport {
    harness.clock.advance(chrono::Duration::seconds(seconds));
    let mut overdue = OverdueRuns {
        store: harness.store.clone(),
        cache: harness.detector.cache.clone(),
        hub: harness.detector.hub.clone(),
        clock: harness.clock.clone(),
        leadership: harness.detector.leadership.clone(),
        timeouts: harness.detector.timeouts,
    };
    overdue.tick().await.expect("the tick succeeds")
}

#[tokio::test]
async fn overdue_run_is_asked_to_end_and_then_unknown() {
    let mut harness = LostRunHarness::new().await;
    harness.advance(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    harness.set(id, "timeout_seconds = 60").await;
    let nothing = OverdueReport::default();
    assert_eq!(tick_after(&harness, 178).await, nothing, "the margin is two minutes");
    assert_eq!(tick_after(&harness, 4).await, OverdueReport { asked: 1, unknown: 0 });
    let client = redis::Client::open(harness.config.cache.url.as_str()).expect("a valid URL");
    let mut connection = client.get_multiplexed_async_connection().await.expect("Redis responds");
    let keys = milvaion_protocol::topology::RedisKeys::new(harness.config.cache.key_prefix.clone());
    let request: String =
        redis::AsyncCommands::get(&mut connection, keys.cancel_request(id)).await.expect("a cancel request");
    assert!(request.contains("Overdue: its timeout of 60 s has passed"), "{request}");
    harness.heartbeat("w-1", &[id]).await;
    harness.clock.advance(chrono::Duration::seconds(20));
    let view = harness.view(id).await;
    assert!(view.is_overdue);

    // The unreachable timeout of the harness is a minute.
    harness.heartbeat("w-1", &[id]).await;
    assert_eq!(tick_after(&harness, 40).await, OverdueReport { asked: 0, unknown: 1 });
    let view = harness.view(id).await;
    assert_eq!((view.row.status, view.row.attempt, view.is_overdue), (OccurrenceStatus::Unknown, 1, false));
    assert!(view.row.note.as_deref().is_some_and(|note| note.starts_with("Overdue: its timeout of 60 s")), "{view:?}");
    assert_eq!(harness.report(id, 1, "w-1", OccurrenceStatus::Completed).await, 1, "a late report decides");
}

#[tokio::test]
async fn run_without_a_timeout_is_never_overdue() {
    let mut harness = LostRunHarness::new().await;
    harness.advance(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    assert_eq!(tick_after(&harness, 86_400).await, OverdueReport::default());
    assert!(!harness.view(id).await.is_overdue);
}

#[tokio::test]
async fn timeout_counts_from_the_start_of_the_attempt() {
    let mut harness = LostRunHarness::new().await;
    harness.advance(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    harness.set(id, "timeout_seconds = 60").await;
    assert_eq!(harness.advance(18, true).await.requeued, 1);
    harness.clock.advance(chrono::Duration::hours(1));
    harness.start(id, 2, "w-1").await;
    assert_eq!(tick_after(&harness, 170).await, OverdueReport::default());
    assert_eq!(tick_after(&harness, 20).await.asked, 1);
}
