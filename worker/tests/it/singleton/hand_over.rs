//! A loop passes from one instance to another.

use std::time::Duration;

use milvaion_test_support::wait::until;
use redis::AsyncCommands;
use tokio::time::{Instant, sleep};

use super::witness::{LEASE, LOOP, LoopEnv};

/// The time for a hand-over that is announced on the channel: far less than a heartbeat of 300 ms, with room for a machine
/// that compiles beside the test.
const ANNOUNCED: Duration = Duration::from_millis(250);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_leader_hands_over_at_once() {
    let env = LoopEnv::new().await;
    let first = env.start("a");
    env.until_run_by("a").await;
    let second = env.start("b");
    until("both offer the loop", async || {
        env.redis().zcard::<_, u32>(env.keys.singleton_instances(LOOP)).await.expect("read") == 2
    })
    .await;
    first.stop().await;
    env.until_run_by("b").await;
    env.witness.assert_no_overlap();
    assert!(env.witness.gap("a", "b") < LEASE, "the successor waited for the lease to expire");
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_whose_future_is_dropped_releases_its_lease() {
    let env = LoopEnv::new().await;
    let first = env.start("a");
    env.until_run_by("a").await;
    first.abort();
    until("the lease is free", async || {
        !env.redis().exists::<_, bool>(env.keys.singleton_lease(LOOP)).await.expect("read")
    })
    .await;
    let second = env.start("b");
    env.until_run_by("b").await;
    env.witness.assert_no_overlap();
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disabled_loop_stops_everywhere_until_it_is_enabled() {
    let env = LoopEnv::new().await;
    let (first, second) = (env.start("a"), env.start("b"));
    until("the loop runs", async || !env.witness.steps().is_empty()).await;
    let _: () = env.redis().set(env.keys.singleton_disabled(LOOP), "{}").await.expect("set");
    let disabled_at = Instant::now();
    env.announce().await;
    until("the lease is released", async || {
        !env.redis().exists::<_, bool>(env.keys.singleton_lease(LOOP)).await.expect("read")
    })
    .await;
    // Further heartbeats of both instances, none of which takes the lease.
    let epoch: u64 = env.redis().get(env.keys.singleton_epoch(LOOP)).await.expect("read");
    let heartbeats = async || -> Vec<(String, f64)> {
        env.redis().zrange_withscores(env.keys.singleton_instances(LOOP), 0, -1).await.expect("read")
    };
    let newest = heartbeats().await.into_iter().map(|(_, at)| at).fold(0.0, f64::max);
    let later = newest + 2.0 * LEASE.as_millis() as f64;
    until("both instances send more heartbeats", async || heartbeats().await.iter().all(|(_, at)| *at > later)).await;
    let granted: u64 = env.redis().get(env.keys.singleton_epoch(LOOP)).await.expect("read");
    assert_eq!(granted, epoch, "a lease of a disabled loop was granted");
    let last = env.witness.steps().last().expect("a step").at;
    assert!(last < disabled_at + ANNOUNCED + LEASE / 6, "the loop ran on after it was disabled");

    let _: () = env.redis().del(env.keys.singleton_disabled(LOOP)).await.expect("deleted");
    let steps = env.witness.steps().len();
    env.announce().await;
    until("the loop runs again", async || env.witness.steps().len() > steps).await;
    env.witness.assert_no_overlap();
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_that_is_asked_to_yield_lets_another_lead() {
    let env = LoopEnv::new().await;
    let first = env.start("a");
    env.until_run_by("a").await;
    let second = env.start("b");
    until("both offer the loop", async || {
        env.redis().zcard::<_, u32>(env.keys.singleton_instances(LOOP)).await.expect("read") == 2
    })
    .await;
    let _: () = env.redis().set_ex(env.keys.singleton_yield(LOOP), &first.id, 30).await.expect("set");
    env.announce().await;
    env.until_run_by("b").await;
    assert!(!env.redis().exists::<_, bool>(env.keys.singleton_yield(LOOP)).await.expect("read"), "the request is done");
    let steps = env.witness.steps().len();
    until("the loop goes on", async || env.witness.steps().len() > steps + 60).await;
    env.witness.assert_no_overlap();
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interval_goes_on_from_the_last_run_of_the_former_leader() {
    let env = LoopEnv::new().await;
    let interval = Duration::from_secs(3);
    let start = |name: &'static str| {
        let witness = env.witness.clone();
        env.run(env.worker().singleton(LOOP).every(interval).lease(LEASE).run(move |tick| {
            witness.record(name, &tick);
            async { Ok(()) }
        }))
    };
    let first = start("a");
    env.until_run_by("a").await;
    let second = start("b");
    first.stop().await;
    env.until_run_by("b").await;
    let gap = env.witness.gap("a", "b");
    assert!(gap >= interval - Duration::from_millis(50), "the successor ran after {gap:?}");
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_that_ends_late_keeps_its_lease_until_then() {
    let env = LoopEnv::new().await;
    let witness = env.witness.clone();
    let lease = Duration::from_secs(3);
    let worker = env.worker().singleton(LOOP).every(Duration::from_millis(20)).lease(lease);
    let first = env.run(worker.run(move |tick| {
        let witness = witness.clone();
        async move {
            witness.record("a", &tick);
            tick.cancelled().await;
            sleep(Duration::from_millis(400)).await;
            witness.record("a", &tick);
            Ok(())
        }
    }));
    env.until_run_by("a").await;
    let second = env.start("b");
    first.stop().await;
    env.until_run_by("b").await;
    env.witness.assert_no_overlap();
    assert_eq!(env.witness.steps().iter().filter(|step| step.instance == "a").count(), 2, "the run was not cut short");
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_that_yields_lets_others_go_first_for_one_lease() {
    let env = LoopEnv::new().await;
    let only = env.start("a");
    env.until_run_by("a").await;
    let epoch = env.witness.steps()[0].epoch;
    let _: () = env.redis().set_ex(env.keys.singleton_yield(LOOP), &only.id, 30).await.expect("set");
    env.announce().await;
    until("it leads again", async || env.witness.steps().last().expect("a step").epoch > epoch).await;
    let steps = env.witness.steps();
    let again = steps.iter().position(|step| step.epoch > epoch).expect("a step of the second term");
    let gap = steps[again].at - steps[again - 1].at;
    assert!(gap >= LEASE * 9 / 10, "it took the lease again after {gap:?}");
    only.stop().await;
}
