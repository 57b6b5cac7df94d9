//! What operators do to a loop, and what its instances get to know.

use futures::StreamExt;
use milvaion_api::singletons::LoopStatus;
use milvaion_app::error::AppError;
use milvaion_protocol::singleton::LOOP_RETENTION_MS;
use milvaion_test_support::jobs;

use super::harness::{LOOP, SingletonHarness};
use crate::private_redis::PrivateRedis;

fn conflict(result: Result<(), AppError>) -> String {
    match result {
        Err(AppError::Conflict(text)) => text,
        other => panic!("a conflict is expected: {other:?}"),
    }
}

#[tokio::test]
async fn disabled_loop_runs_nowhere_until_it_is_enabled() {
    let harness = SingletonHarness::new().await;
    let me = jobs::admin();
    let mut instance = harness.instance("host:1:a").await;
    let epoch = instance.take(LOOP).await;
    let mut channel = harness.channel().await;

    harness.commands.set_enabled(&me, LOOP, false).await.expect("disabled");
    assert_eq!(channel.next().await.as_deref(), Some(LOOP), "its instances react at once");
    let found = harness.get().await;
    assert_eq!((found.status, found.is_enabled), (LoopStatus::Disabled, false));
    assert_eq!(found.disabled.map(|disabled| disabled.by).as_deref(), Some("ana@example.org"));
    assert!(instance.heartbeat(LOOP, epoch, &instance.state()).await.is_disabled);
    instance.release(LOOP, epoch, false).await;
    assert_eq!(channel.next().await.as_deref(), Some(LOOP));
    assert_eq!(instance.heartbeat(LOOP, 0, &instance.state()).await.result, 0, "no instance takes the lease");
    harness.commands.set_enabled(&me, LOOP, false).await.expect("a second call changes nothing");

    assert_eq!(channel.next().await.as_deref(), Some(LOOP));
    harness.commands.set_enabled(&me, LOOP, true).await.expect("enabled");
    assert_eq!(channel.next().await.as_deref(), Some(LOOP));
    assert!(instance.take(LOOP).await > epoch);
    assert_eq!(harness.get().await.disabled, None);
    assert_eq!(harness.audited().await, ["singleton_loop.enable", "singleton_loop.disable"]);
}

#[tokio::test]
async fn disabled_loop_stays_disabled_after_a_flush() {
    let redis = PrivateRedis::start().await;
    let mut harness = SingletonHarness::on_private(&redis).await;
    let mut instance = harness.instance("host:1:a").await;
    instance.take(LOOP).await;
    harness.commands.set_enabled(&jobs::admin(), LOOP, false).await.expect("disabled");
    assert_eq!(harness.tick().await.disabled, 0);

    let _: String = instance.redis(&redis::cmd("FLUSHALL")).await;
    assert_eq!(harness.get().await.status, LoopStatus::Disabled);
    let mut channel = harness.channel().await;
    assert_eq!(harness.tick().await.disabled, 1);
    assert_eq!(channel.next().await.as_deref(), Some(LOOP));
    let answer = instance.heartbeat(LOOP, 0, &instance.state()).await;
    assert_eq!((answer.result, answer.is_disabled), (0, true));
    assert_eq!(harness.tick().await.disabled, 0);
}

#[tokio::test]
async fn key_of_an_enabled_loop_is_removed() {
    let mut harness = SingletonHarness::new().await;
    let mut instance = harness.instance("host:1:a").await;
    instance.take(LOOP).await;
    let _: String = instance.redis(redis::cmd("SET").arg(harness.keys.singleton_disabled(LOOP)).arg("old")).await;
    assert!(harness.get().await.is_enabled, "PostgreSQL decides");
    assert_eq!(harness.tick().await.enabled, 1);
    assert_eq!(harness.tick().await.enabled, 0);
}

#[tokio::test]
async fn leader_is_asked_to_yield() {
    let harness = SingletonHarness::new().await;
    let (mut first, mut second) = (harness.instance("host:1:a").await, harness.instance("host:2:b").await);
    let epoch = first.take(LOOP).await;
    second.heartbeat(LOOP, 0, &second.state()).await;
    let mut channel = harness.channel().await;

    harness.commands.yield_leadership(&jobs::admin(), LOOP).await.expect("asked");
    assert_eq!(channel.next().await.as_deref(), Some(LOOP));
    assert!(harness.get().await.is_yield_requested);
    assert!(!second.heartbeat(LOOP, 0, &second.state()).await.is_yield_requested);
    assert!(first.heartbeat(LOOP, epoch, &first.state()).await.is_yield_requested);
    let remaining: i64 = first.redis(redis::cmd("PTTL").arg(harness.keys.singleton_yield(LOOP))).await;
    assert!((1..=30_000).contains(&remaining), "{remaining}");
    first.release(LOOP, epoch, false).await;
    assert!(second.take(LOOP).await > epoch);
    assert!(!harness.get().await.is_yield_requested);
    assert_eq!(harness.audited().await, ["singleton_loop.yield"]);
}

#[tokio::test]
async fn yield_needs_a_leader_and_another_instance() {
    let harness = SingletonHarness::new().await;
    let me = jobs::admin();
    let mut instance = harness.instance("host:1:a").await;
    let epoch = instance.take(LOOP).await;
    let alone = conflict(harness.commands.yield_leadership(&me, LOOP).await);
    assert!(alone.contains("Start another one first"), "{alone}");
    instance.release(LOOP, epoch, false).await;
    let free = conflict(harness.commands.yield_leadership(&me, LOOP).await);
    assert!(free.contains("has no leader"), "{free}");
    harness.commands.set_enabled(&me, LOOP, false).await.expect("disabled");
    let disabled = conflict(harness.commands.yield_leadership(&me, LOOP).await);
    assert!(disabled.contains("Enable it first"), "{disabled}");
    let missing = harness.commands.yield_leadership(&me, "orders").await;
    assert!(matches!(missing, Err(AppError::NotFound(_))), "{missing:?}");
}

#[tokio::test]
async fn forgotten_loop_keeps_its_epoch() {
    let mut harness = SingletonHarness::new().await;
    let me = jobs::admin();
    let mut instance = harness.instance("host:1:a").await;
    let epoch = instance.take(LOOP).await;
    harness.commands.set_enabled(&me, LOOP, false).await.expect("disabled");
    for is_last in [false, true] {
        let refused = conflict(harness.commands.forget(&me, LOOP).await);
        assert!(refused.contains("try again after a minute"), "{refused}");
        instance.release(LOOP, epoch, is_last).await;
    }
    harness.commands.forget(&me, LOOP).await.expect("forgotten");
    assert!(matches!(harness.commands.get(LOOP).await, Err(AppError::NotFound(_))));
    assert_eq!(harness.commands.list().await.expect("read").loops, []);
    assert_eq!(harness.tick().await.disabled, 0, "it is no longer disabled");
    let kept: Option<u64> = instance.redis(redis::cmd("GET").arg(harness.keys.singleton_epoch(LOOP))).await;
    assert_eq!(kept, Some(epoch));
    assert!(instance.take(LOOP).await > epoch);
    assert_eq!(harness.audited().await, ["singleton_loop.forget", "singleton_loop.disable"]);
}

#[tokio::test]
async fn unoffered_loop_is_dropped_after_its_retention() {
    let mut harness = SingletonHarness::new().await;
    let mut instance = harness.instance("host:1:a").await;
    let epoch = instance.take(LOOP).await;
    instance.release(LOOP, epoch, true).await;
    assert_eq!(harness.tick().await.dropped, 0);
    let (seconds, _): (i64, i64) = instance.redis(&redis::cmd("TIME")).await;
    let old = seconds * 1_000 - LOOP_RETENTION_MS - 1_000;
    let _: i64 = instance.redis(redis::cmd("ZADD").arg(harness.keys.singletons()).arg(old).arg(LOOP)).await;
    assert_eq!(harness.tick().await.dropped, 1);
    assert!(matches!(harness.commands.get(LOOP).await, Err(AppError::NotFound(_))));
    let kept: Option<u64> = instance.redis(redis::cmd("GET").arg(harness.keys.singleton_epoch(LOOP))).await;
    assert_eq!(kept, Some(epoch));
}
