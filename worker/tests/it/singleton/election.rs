//! One instance leads, whatever happens to the others and to Redis.

use std::time::Duration;

use milvaion_test_support::{http, lossy_network::LossyNetwork, net::free_address, services::redis_url, wait::until};
use milvaion_worker::JobError;
use redis::AsyncCommands;

use super::witness::{LEASE, LOOP, LoopEnv};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_without_job_types_needs_redis_only() {
    let env = LoopEnv::new().await;
    let address = free_address();
    let instance = env.start_on("a", env.worker().health(address));
    env.until_run_by("a").await;
    until("the worker is ready", async || http::is_ready(address.port()).await).await;
    let (_, metrics) = http::get(address.port(), "/metrics").await.expect("the worker responds");
    let leads = format!(r#"milvaion_worker_singleton_leader{{singleton="{LOOP}"}} 1"#);
    assert!(metrics.lines().any(|line| line == leads), "{metrics}");
    instance.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_whose_loops_are_disabled_is_ready() {
    let env = LoopEnv::new().await;
    let address = free_address();
    let worker = env.worker().health(address).singleton(LOOP).every(LEASE).enabled(false).run(|_| async { Ok(()) });
    let instance = env.run(worker);
    until("the worker is ready", async || http::is_ready(address.port()).await).await;
    let exists: bool = env.redis().exists(env.keys.singletons()).await.expect("read");
    assert!(!exists, "a disabled loop takes no part in the election");
    instance.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_instances_runs_the_loop() {
    let env = LoopEnv::new().await;
    let instances = ["a", "b", "c"].map(|name| env.start(name));
    until("all instances offer the loop", async || {
        env.redis().zcard::<_, u32>(env.keys.singleton_instances(LOOP)).await.expect("read") == 3
    })
    .await;
    until("the loop has run for a while", async || env.witness.steps().len() > 60).await;
    let steps = env.witness.steps();
    assert!(steps.iter().all(|step| step.instance == steps[0].instance), "two instances ran the loop");
    for instance in instances {
        instance.stop().await;
    }
    assert_eq!(env.redis().zcard::<_, u32>(env.keys.singleton_instances(LOOP)).await.expect("read"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_publishes_its_state() {
    let env = LoopEnv::new().await;
    let worker = env.worker().worker_id("prices").singleton(LOOP).fixed_rate(Duration::from_millis(50)).lease(LEASE);
    let instance = env.run(
        worker.run(|tick| async move { if tick.number() == 2 { Err(JobError::new("no price")) } else { Ok(()) } }),
    );
    until("the state is published", async || {
        env.field("runs").await.is_some_and(|runs| runs.parse::<u32>().expect("a number") > 3)
    })
    .await;
    let expected = [
        ("instance", instance.id.as_str()),
        ("workerId", "prices"),
        ("kind", "fixed-rate"),
        ("schedule", "fixed rate 50ms"),
        ("leaseMs", "1000"),
        ("heartbeatMs", "300"),
        ("errors", "1"),
        ("lastError", "no price"),
    ];
    for (field, value) in expected {
        assert_eq!(env.field(field).await.as_deref(), Some(value), "{field}");
    }
    let recent = env.field("recent").await.expect("published");
    assert!(recent.contains(r#""outcome":"error""#), "{recent}");
    let names: Vec<String> = env.redis().zrange(env.keys.singletons(), 0, -1).await.expect("read");
    assert_eq!(names, [LOOP]);
    instance.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_behind_a_partition_stops_before_its_successor_starts() {
    let env = LoopEnv::new().await;
    let (network, url) = LossyNetwork::connect(&redis_url()).await;
    let cut_off = env.start_on("a", env.worker().redis_url(url));
    env.until_run_by("a").await;
    let healthy = env.start("b");
    network.cut();
    env.until_run_by("b").await;
    env.witness.assert_no_overlap();
    assert!(env.witness.gap("a", "b") >= LEASE / 6, "the former leader stopped too late");

    // It returns as a follower.
    network.restore();
    let steps = env.witness.steps().len();
    until("the loop goes on", async || env.witness.steps().len() > steps + 60).await;
    env.witness.assert_no_overlap();
    healthy.stop().await;
    cut_off.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_keeps_its_lease_over_a_lost_connection() {
    let env = LoopEnv::new().await;
    let (network, url) = LossyNetwork::connect(&redis_url()).await;
    let lease = Duration::from_secs(6);
    let witness = env.witness.clone();
    let worker = env.worker().redis_url(url).singleton(LOOP).every(Duration::from_millis(20)).lease(lease);
    let instance = env.run(worker.run(move |tick| {
        witness.record("a", &tick);
        async { Ok(()) }
    }));
    env.until_run_by("a").await;
    let renewals = async || env.field("updatedAt").await.expect("published");
    let before = renewals().await;
    network.lose_open_connections();
    until("the lease is renewed twice over a new connection", async || {
        let ms = |text: &str| text.parse::<u64>().expect("milliseconds");
        ms(&renewals().await) > ms(&before) + 3500
    })
    .await;
    let steps = env.witness.steps();
    assert!(steps.iter().all(|step| step.epoch == steps[0].epoch), "the lease was lost");
    instance.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn epoch_rises_when_redis_lost_its_data() {
    let env = LoopEnv::new().await;
    let first = env.start("a");
    env.until_run_by("a").await;
    let epoch = env.witness.steps()[0].epoch;
    let keys = &env.keys;
    for key in [keys.singleton_lease(LOOP), keys.singleton_epoch(LOOP), keys.singleton_state(LOOP)] {
        let _: () = env.redis().del(key).await.expect("deleted");
    }
    until("a higher epoch is in force", async || env.witness.steps().last().expect("a step").epoch > epoch).await;
    first.stop().await;

    // The same again with a new instance, which has never seen an epoch.
    let epoch = env.witness.steps().last().expect("a step").epoch;
    let _: () = env.redis().del(keys.singleton_epoch(LOOP)).await.expect("deleted");
    let second = env.start("b");
    env.until_run_by("b").await;
    assert!(env.witness.steps().last().expect("a step").epoch > epoch, "an epoch was granted twice");
    env.witness.assert_no_overlap();
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_copy_of_redis_does_not_repeat_an_epoch() {
    let env = LoopEnv::new().await;
    let instance = env.start("a");
    env.until_run_by("a").await;
    let epoch = env.witness.steps()[0].epoch;
    // The copy has an earlier lease of the same instance, and an epoch far ahead of the clock is not in it.
    let _: () =
        env.redis().set(env.keys.singleton_lease(LOOP), format!("{}:{}", instance.id, epoch - 9)).await.expect("set");
    let _: () = env.redis().set(env.keys.singleton_epoch(LOOP), epoch - 9).await.expect("set");
    until("a higher epoch is in force", async || env.witness.steps().last().expect("a step").epoch > epoch).await;
    env.witness.assert_no_overlap();
    instance.stop().await;
}
