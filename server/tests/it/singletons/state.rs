//! What the server shows of a loop.

use milvaion_api::singletons::LoopStatus;
use milvaion_app::error::AppError;
use milvaion_protocol::singleton::{LoopKind, LoopOutcome, LoopRun, LoopState};
use milvaion_server::engine::Service;

use super::harness::{LOOP, SingletonHarness};
use crate::private_redis::PrivateRedis;

#[tokio::test]
async fn state_of_the_leader_is_shown() {
    let harness = SingletonHarness::new().await;
    let (mut first, mut second) = (harness.instance("host:1:a").await, harness.instance("host:2:b").await);
    let state = LoopState {
        kind: LoopKind::FixedRate,
        since: 1_795_000_000_000,
        ticks: 12,
        runs: 10,
        dropped: 2,
        errors: 1,
        p99_ms: 20.5,
        recent: vec![LoopRun {
            start: 1_795_000_000_100,
            duration_ms: 20.5,
            late_ms: 0.5,
            outcome: LoopOutcome::Error,
        }],
        last_error: Some("no price".into()),
        last_error_at: Some(1_795_000_000_120),
        ..first.state()
    };
    let epoch = first.heartbeat(LOOP, 0, &state).await.epoch;
    assert_eq!(second.heartbeat(LOOP, 0, &second.state()).await.holder, "host:1:a");

    let found = harness.get().await;
    assert_eq!((found.status, found.is_enabled, found.epoch), (LoopStatus::Leading, true, epoch));
    let leader = found.leader.as_ref().expect("a leader");
    assert_eq!((leader.instance_id.as_str(), leader.epoch), ("host:1:a", epoch));
    assert_eq!((leader.worker_id.as_str(), leader.host.as_str()), ("prices", "host of host:1:a"));
    assert!((1..=found.lease_ms).contains(&leader.lease_remaining_ms), "{}", leader.lease_remaining_ms);
    assert_eq!((found.ticks, found.runs, found.dropped, found.errors), (12, 10, 2, 1));
    assert_eq!((found.recent[0].outcome, found.last_error.as_deref()), (LoopOutcome::Error, Some("no price")));
    assert_eq!((found.instance_count, found.has_standby()), (2, true));
    assert!(found.last_seen_at >= found.updated_at && found.updated_at.is_some());

    first.release(LOOP, epoch, true).await;
    let free = harness.get().await;
    assert_eq!((free.status, free.leader, free.instance_count), (LoopStatus::NoLeader, None, 1));
    assert_eq!((free.ticks, free.epoch), (12, epoch), "the counters of the last leader stay");
    second.release(LOOP, 0, true).await;
    assert_eq!(harness.get().await.status, LoopStatus::NotOffered);
}

#[tokio::test]
async fn loops_are_listed_by_name() {
    let harness = SingletonHarness::new().await;
    let mut instance = harness.instance("host:1:a").await;
    for name in ["orders", "balances", "price-feed"] {
        instance.take(name).await;
    }
    let list = harness.commands.list().await.expect("read");
    assert_eq!(list.loops.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["balances", "orders", LOOP]);
    assert!(!list.is_truncated && list.loops.iter().all(|row| row.status == LoopStatus::Leading));
    for unknown in ["refunds", "", "a b", "../x"] {
        let error = harness.commands.get(unknown).await.expect_err("it does not exist");
        assert!(matches!(error, AppError::NotFound(_)), "{error:?}");
    }
}

#[tokio::test]
async fn unreadable_state_leaves_the_other_fields() {
    let harness = SingletonHarness::new().await;
    let mut instance = harness.instance("host:1:a").await;
    instance.take(LOOP).await;
    let mut command = redis::cmd("HSET");
    command.arg(harness.keys.singleton_state(LOOP)).arg("runs").arg("many").arg("lastError").arg(&b"caf\xe9"[..]);
    let _: i64 = instance.redis(&command).await;
    let found = harness.get().await;
    assert_eq!((found.status, found.runs, found.last_error.as_deref()), (LoopStatus::Leading, 0, Some("caf\u{fffd}")));
}

#[tokio::test]
async fn outage_of_redis_is_named() {
    let mut redis = PrivateRedis::start().await;
    let mut harness = SingletonHarness::on_private(&redis).await;
    harness.instance("host:1:a").await.take(LOOP).await;
    redis.kill().await;
    let error = harness.commands.list().await.expect_err("Redis is away");
    assert!(matches!(&error, AppError::Unavailable(text) if text.contains("Redis does not answer")), "{error:?}");
    assert!(harness.watch.tick().await.is_err());
}
