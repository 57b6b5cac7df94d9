//! The alert about a loop without a leader.

use milvaion_test_support::jobs;

use super::harness::{LOOP, SingletonHarness};

/// Twice the lease of the instances of the tests.
const LIMIT_SECONDS: i64 = 600;

#[tokio::test]
async fn loop_without_leader_fires_until_it_has_one() {
    let mut harness = SingletonHarness::new().await;
    let mut instance = harness.instance("host:1:a").await;
    let epoch = instance.take(LOOP).await;
    harness.tick().await;
    instance.release(LOOP, epoch, false).await;
    harness.tick().await;
    assert_eq!(harness.tick_after(LIMIT_SECONDS - 1).await.alerts_started, 0);
    assert_eq!(harness.tick_after(1).await.alerts_started, 1);
    let firing = harness.firing().await;
    assert_eq!(firing.len(), 1, "{firing:#?}");
    assert_eq!(firing[0].title, "Singleton loop price-feed has no leader");
    assert!(firing[0].detail.starts_with("1 instance offers it"), "{}", firing[0].detail);
    assert_eq!(harness.tick_after(60).await.alerts_started, 0, "it is one alert");
    instance.take(LOOP).await;
    assert_eq!(harness.tick().await.alerts_resolved, 1);
    assert!(harness.firing().await.is_empty());
}

#[tokio::test]
async fn disabled_or_forgotten_loop_has_no_alert() {
    let mut harness = SingletonHarness::new().await;
    let mut instance = harness.instance("host:1:a").await;
    let epoch = instance.take(LOOP).await;
    instance.release(LOOP, epoch, true).await;
    harness.tick().await;
    assert_eq!(harness.tick_after(LIMIT_SECONDS).await.alerts_started, 1);
    harness.commands.set_enabled(&jobs::admin(), LOOP, false).await.expect("disabled");
    assert_eq!(harness.tick().await.alerts_resolved, 1);
    harness.commands.set_enabled(&jobs::admin(), LOOP, true).await.expect("enabled");
    harness.tick().await;
    assert_eq!(harness.tick_after(LIMIT_SECONDS).await.alerts_started, 1);
    harness.commands.forget(&jobs::admin(), LOOP).await.expect("forgotten");
    assert_eq!(harness.tick().await.alerts_resolved, 1);
}

#[tokio::test]
async fn fresh_installation_has_the_rule() {
    let harness = SingletonHarness::new().await;
    let rule = harness.default_rule().await.definition;
    assert_eq!((rule.name.as_str(), rule.is_enabled), ("Singleton loop without leader", true));
}
