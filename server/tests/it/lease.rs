//! The lease: one server leads, and the writes of a server that leads no longer have no effect.

mod harness;

use std::{sync::Arc, time::Duration};

use milvaion_server::{
    background::lease::{LEADER_ROLE, Lease, LeaseTimes, holder_name},
    cache::Cache,
    clock::Clock,
    engine::{
        RunsOn, Service,
        driver::drive,
        leadership::Leadership,
        status::{ServiceHealth, ServiceStatuses},
    },
    store::Store,
};
use milvaion_test_support::{database, server_env, wait};
use tokio::{process::Child, sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{private_redis::PrivateRedis, server_process::server_process};
use harness::{LEASE_TIMES, LeaseHolder, harness, harness_of, wait_for_listeners};

#[tokio::test]
async fn stopping_leader_hands_over_at_once() {
    let (store, cache) = harness().await;
    // With the default times, because the duration of the handover is measured.
    let one = LeaseHolder::start(&store, &cache, LeaseTimes::default());
    let first = one.held_lease().await;
    let two = LeaseHolder::start(&store, &cache, LeaseTimes::default());
    wait_for_listeners(&cache, 2).await;
    assert!(one.leads() && !two.leads());
    let rows = store.leases().await.expect("the query succeeds");
    assert_eq!((rows[0].holder.as_deref(), rows[0].epoch), (Some(one.holder.as_str()), first.epoch()));

    let since = Instant::now();
    one.stop().await;
    assert!(!first.is_valid(), "the old lease has ended");
    let second = two.held_lease().await;
    assert!(since.elapsed() < Duration::from_secs(1), "handed over in {:?}", since.elapsed());
    assert!(second.epoch() > first.epoch());
    two.stop().await;
    assert_eq!(store.leases().await.expect("the query succeeds")[0].holder, None, "no holder is recorded");
}

#[tokio::test]
async fn leader_whose_dispatcher_hangs_leaves_the_role_to_another_server() {
    let (store, cache) = harness().await;
    let hanging = LeaseTimes { dispatch_limit: Duration::from_millis(500), ..LEASE_TIMES };
    // Waits until a lease has been renewed several times beyond the limit; no dispatcher ticks here.
    let beyond_the_limit = async || {
        let since = Instant::now();
        wait::eventually("renewals", || async { (since.elapsed() > 3 * hanging.dispatch_limit).then_some(()) }).await;
    };
    let one = LeaseHolder::start(&store, &cache, hanging);
    let first = one.held_lease().await;
    beyond_the_limit().await;
    assert!(first.is_valid() && one.leads(), "alone, it keeps the role");

    let two = LeaseHolder::start(&store, &cache, hanging);
    let second = two.held_lease().await;
    assert!(!one.leads());
    // The second one hangs too, and gives the role back once. The server that takes it then keeps it.
    let third = wait::eventually("a third lease", || async {
        let leases = [&one, &two].map(|server| server.leadership.borrow().held_lease().cloned());
        leases.into_iter().flatten().find(|lease| lease.epoch() > second.epoch())
    })
    .await;
    assert!(!second.is_valid());
    beyond_the_limit().await;
    assert!(third.is_valid() && one.leads() != two.leads(), "the role does not go round");
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn lease_is_renewed_while_the_server_is_blocked() {
    let config = server_env::config().await;
    let (store, cache) = harness_of(&config).await;
    let lease = Lease::new(LEADER_ROLE, holder_name(), cache.clone(), store.clone(), Clock::system(), Arc::default())
        .with_times(LEASE_TIMES);
    let (leadership, stop) = (lease.leadership(), CancellationToken::new());
    let task = tokio::spawn(lease.run_on_own_thread(Arc::new(config), stop.clone()));
    let held = wait::eventually("a held lease", || async { leadership.borrow().held_lease().cloned() }).await;
    // This test has one thread, which does nothing else now.
    let begun = std::time::Instant::now();
    while begun.elapsed() < LEASE_TIMES.ttl + Duration::from_secs(1) {
        std::hint::spin_loop();
    }
    assert!(held.is_valid(), "it was renewed");
    stop.cancel();
    task.await.expect("the lease stops");
    assert!(!held.is_valid());
}

#[tokio::test]
async fn dead_leader_is_replaced_when_its_lease_expires() {
    let (store, cache) = harness().await;
    let dead = "a-server-that-was-killed";
    cache.acquire_or_renew_lease(LEADER_ROLE, dead, LEASE_TIMES.ttl).await.expect("the query succeeds");
    let before = store.take_lease(LEADER_ROLE, dead, Clock::system().now()).await.expect("the query succeeds");
    let since = Instant::now();
    let follower = LeaseHolder::start(&store, &cache, LEASE_TIMES);
    let lease = follower.held_lease().await;
    assert!(since.elapsed() > LEASE_TIMES.ttl - Duration::from_millis(500), "not before: {:?}", since.elapsed());
    assert!(since.elapsed() < LEASE_TIMES.ttl + Duration::from_secs(2), "not long after: {:?}", since.elapsed());
    assert!(lease.epoch() > before.epoch);
    follower.stop().await;
}

#[tokio::test]
async fn writes_of_a_frozen_leader_have_no_effect() {
    let (store, cache) = harness().await;
    let clock = Clock::system();
    let frozen =
        LeaseHolder::start(&store, &cache, LeaseTimes { renew_interval: Duration::from_secs(3_600), ..LEASE_TIMES });
    let old = frozen.held_lease().await;
    // It does not renew its lease; its key is deleted, and another server takes the role.
    assert!(cache.release_lease(LEADER_ROLE, &frozen.holder).await.expect("the query succeeds"));
    let other = LeaseHolder::start(&store, &cache, LEASE_TIMES);
    let new = other.held_lease().await;
    assert!(new.epoch() > old.epoch());
    assert!(!store.release_lease(old.fence(), clock.now()).await.expect("the query succeeds"), "no row changes");
    let row = store.leases().await.expect("the query succeeds").remove(0);
    assert_eq!((row.holder, row.epoch), (Some(other.holder.clone()), new.epoch()));
    assert!(
        !cache.release_lease(LEADER_ROLE, &frozen.holder).await.expect("the query succeeds"),
        "the key is not deleted"
    );
    // Its own lease expires too.
    wait::eventually("the end of its lease", || async { (!old.is_valid()).then_some(()) }).await;
    assert!(other.leads());
    other.stop().await;
    frozen.stop().await;
}

#[tokio::test]
async fn frozen_leader_never_works_leaderless() {
    let (store, cache) = harness().await;
    // It does not notice the end of its lease, as a frozen server.
    let frozen =
        LeaseHolder::start(&store, &cache, LeaseTimes { renew_interval: Duration::from_secs(3_600), ..LEASE_TIMES });
    let old = frozen.held_lease().await;
    let (mut states, seen) = (frozen.leadership.clone(), Arc::new(std::sync::Mutex::new(Vec::new())));
    let recorder = seen.clone();
    let watching = tokio::spawn(async move {
        while states.changed().await.is_ok() {
            let state = states.borrow_and_update().clone();
            recorder.lock().expect("the mutex is not poisoned").push(state);
        }
    });
    let other = LeaseHolder::start(&store, &cache, LEASE_TIMES);
    let newer = other.held_lease().await;
    // The other one releases the role, and the release wakes up the frozen one.
    other.stop().await;
    let again = wait::eventually("a later lease of the frozen server", || async {
        frozen.leadership.borrow().held_lease().filter(|lease| lease.epoch() > newer.epoch()).cloned()
    })
    .await;
    assert!(old.epoch() < newer.epoch() && newer.epoch() < again.epoch());
    frozen.stop().await;
    watching.await.expect("it ends with the lease");
    let seen = seen.lock().expect("the mutex is not poisoned");
    assert!(!seen.iter().any(|state| matches!(state, Leadership::Leaderless)), "{seen:?}");
}

#[tokio::test]
async fn leader_steps_down_for_a_newer_epoch() {
    let (store, cache) = harness().await;
    let server = LeaseHolder::start(&store, &cache, LEASE_TIMES);
    let lease = server.held_lease().await;
    // Redis was restored from an old copy: it names us as the leader, and PostgreSQL has a newer epoch.
    let newer = store.take_lease(LEADER_ROLE, "another", Clock::system().now()).await.expect("the query succeeds");
    assert!(newer.epoch > lease.epoch());
    tokio::time::timeout(wait::WAIT_TIMEOUT, lease.ended().cancelled()).await.expect("it steps down");
    assert!(server.held_lease().await.epoch() > newer.epoch, "it leads again with a new epoch only");
    server.stop().await;
}

#[tokio::test]
async fn lost_key_ends_the_lease_and_rebuilds_the_index() {
    let (store, cache) = harness().await;
    let server = LeaseHolder::start(&store, &cache, LEASE_TIMES);
    let lease = server.held_lease().await;
    server.rebuild.notified().await;
    assert!(cache.release_lease(LEADER_ROLE, &server.holder).await.expect("the query succeeds"));
    tokio::time::timeout(wait::WAIT_TIMEOUT, server.rebuild.notified()).await.expect("a rebuild is requested");
    assert!(server.held_lease().await.epoch() > lease.epoch());
    assert!(!lease.is_valid());
    server.stop().await;
}

#[tokio::test]
async fn redis_outage_leaves_the_cluster_leaderless() {
    let store = database::fresh().await;
    let mut redis = PrivateRedis::start().await;
    let cache = redis.cache();
    let (one, two) =
        (LeaseHolder::start(&store, &cache, LEASE_TIMES), LeaseHolder::start(&store, &redis.cache(), LEASE_TIMES));
    wait::eventually("a leader", || async { (one.leads() != two.leads()).then_some(()) }).await;
    let leader = if one.leads() { &one } else { &two };
    let lease = leader.held_lease().await;
    leader.rebuild.notified().await;

    redis.kill().await;
    let since = Instant::now();
    wait::eventually("two leaderless servers", || async { (one.is_leaderless() && two.is_leaderless()).then_some(()) })
        .await;
    assert!(since.elapsed() < LEASE_TIMES.ttl + Duration::from_secs(3), "{:?}", since.elapsed());
    assert!(!lease.is_valid());
    assert!(one.leadership.borrow().may_work() && two.leadership.borrow().may_work(), "without a leader, both work");

    redis.restart().await;
    wait::eventually("a leader", || async { (one.leads() != two.leads()).then_some(()) }).await;
    wait::eventually("no leaderless server", || async { (!one.is_leaderless() && !two.is_leaderless()).then_some(()) })
        .await;
    let leader = if one.leads() { &one } else { &two };
    tokio::time::timeout(wait::WAIT_TIMEOUT, leader.rebuild.notified()).await.expect("the index is rebuilt");
    one.stop().await;
    two.stop().await;
}

/// Claims may be lost, and workers learn it from this key.
#[tokio::test]
async fn copy_of_an_earlier_redis_counts_as_a_loss_of_claims() {
    let store = database::fresh().await;
    let redis = PrivateRedis::start().await;
    redis.set("t:claims_run", "an earlier start").await;
    redis.set("t:claims_since", "5").await;
    let one = LeaseHolder::start(&store, &redis.cache(), LEASE_TIMES);
    let is_present = || async {
        let since: i64 = redis.value("t:claims_since").await?.parse().ok()?;
        (since > 1_700_000_000_000).then_some(())
    };
    wait::eventually("the present time", is_present).await;
    one.stop().await;
    // A restart of the server alone loses nothing.
    redis.set("t:claims_since", "7").await;
    let two = LeaseHolder::start(&store, &redis.cache(), LEASE_TIMES);
    two.held_lease().await;
    assert_eq!(redis.value("t:claims_since").await.as_deref(), Some("7"));
    // A Redis that lost the lease is looked at again.
    redis.set("t:claims_run", "another start").await;
    assert!(redis.cache().release_lease(LEADER_ROLE, &two.holder).await.expect("the query succeeds"));
    wait::eventually("the present time", is_present).await;
    two.stop().await;
}

#[tokio::test]
async fn leader_without_postgresql_releases_the_role() {
    let (store, cache) = harness().await;
    let disconnected = database::fresh().await;
    let server = LeaseHolder::start(&disconnected, &cache, LEASE_TIMES);
    let lease = server.held_lease().await;
    disconnected.close().await;
    tokio::time::timeout(LEASE_TIMES.renew_interval + Duration::from_secs(4), lease.ended().cancelled())
        .await
        .expect("the role is released");
    let other = LeaseHolder::start(&store, &cache, LEASE_TIMES);
    other.held_lease().await;
    assert!(!server.leads());
    server.stop().await;
    other.stop().await;
}

/// Waits for a lease after `epoch`. Returns its epoch and its holder.
async fn next_lease(store: &Store, epoch: i64) -> (i64, String) {
    wait::eventually("the next lease", || async {
        let row = store.leases().await.ok()?.into_iter().find(|row| row.role == LEADER_ROLE)?;
        (row.epoch > epoch).then_some((row.epoch, row.holder?))
    })
    .await
}

#[tokio::test]
async fn lease_is_acquired_anew_after_its_loop_has_ended() {
    let (store, cache) = harness().await;
    let lease = Lease::new(LEADER_ROLE, holder_name(), cache, store, Clock::system(), Arc::default());
    let (lease, stop) = (lease.with_times(LEASE_TIMES), CancellationToken::new());
    let leadership = lease.leadership();
    let leads = || wait::eventually("a held lease", async || leadership.borrow().held_lease().cloned());
    let first = tokio::spawn(lease.clone().run(stop.clone()));
    let lost = leads().await;
    // As after a panic: the loop ends at any await point, and the supervisor starts it again.
    first.abort();
    assert!(first.await.expect_err("it is aborted").is_cancelled());
    assert!(lost.ended().is_cancelled(), "nothing works under the lease any more");
    assert!(leadership.borrow().held_lease().is_none());
    let second = tokio::spawn(lease.run(stop.clone()));
    let held = leads().await;
    assert!(held.epoch() > lost.epoch() && held.is_valid() && !held.ended().is_cancelled());
    stop.cancel();
    second.await.expect("the lease stops");
}

/// A task that counts its ticks, which never end if `endless`.
struct EndlessTask {
    ticks: watch::Sender<u32>,
    endless: bool,
}

impl Service for EndlessTask {
    const NAME: &'static str = "endless";
    const RUNS_ON: RunsOn = RunsOn::Leader;
    type Report = ();

    fn period(&self) -> Duration {
        Duration::from_millis(50)
    }

    async fn tick(&mut self) -> anyhow::Result<()> {
        self.ticks.send_modify(|ticks| *ticks += 1);
        if self.endless {
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    fn is_notable((): &()) -> bool {
        false
    }
}

#[tokio::test]
async fn led_task_is_cancelled_with_the_lease() {
    let (store, cache) = harness().await;
    cache.acquire_or_renew_lease(LEADER_ROLE, "another", Duration::from_secs(600)).await.expect("the query succeeds");
    let server = LeaseHolder::start(&store, &cache, LEASE_TIMES);
    let (ticks, mut ticked) = watch::channel(0);
    let (statuses, stop) = (ServiceStatuses::default(), CancellationToken::new());
    let task = EndlessTask { ticks, endless: true };
    let driven = tokio::spawn(drive(task, Arc::default(), statuses.clone(), server.leadership.clone(), stop.clone()));
    wait::eventually("the standby status", || async {
        (statuses.health("endless") == ServiceHealth::Standby).then_some(())
    })
    .await;
    assert_eq!(*ticked.borrow(), 0);
    cache.release_lease(LEADER_ROLE, "another").await.expect("the query succeeds");
    let lease = server.held_lease().await;
    ticked.wait_for(|ticks| *ticks == 1).await.expect("it is running");
    // The tick ends with the lease, and the next lease has a new tick.
    assert!(cache.release_lease(LEADER_ROLE, &server.holder).await.expect("the query succeeds"));
    tokio::time::timeout(wait::WAIT_TIMEOUT, lease.ended().cancelled()).await.expect("the lease ends");
    ticked.wait_for(|ticks| *ticks == 2).await.expect("it runs again");
    stop.cancel();
    driven.await.expect("the driver stops");
    server.stop().await;
}

mod exhaustive {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn killed_leader_process_is_replaced_in_seconds() {
        let config = server_env::config().await;
        let store = database::open(&config.database.url).await;
        let start = || server_process(&config, &config.broker.url);
        let mut servers = [start(), start()];
        let (first, holder) = next_lease(&store, 0).await;
        // The holder's name contains its process id.
        let leads = |holder: &str, server: &Child| server.id().is_some_and(|pid| holder.contains(&format!("-{pid}-")));
        let leader = servers.iter().position(|server| leads(&holder, server)).expect("one of the two servers");
        servers[leader].kill().await.expect("it is killed");
        let since = Instant::now();
        let (second, holder) = next_lease(&store, first).await;
        assert!(since.elapsed() < Duration::from_secs(12), "replaced after {:?}", since.elapsed());
        assert!(leads(&holder, &servers[1 - leader]), "the other server leads");

        servers[leader] = start();
        let cache = Cache::new(&config.cache).expect("a valid URL");
        wait_for_listeners(&cache, 2).await;
        let pid = i32::try_from(servers[1 - leader].id().expect("it is running")).expect("a process id");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM)
            .expect("SIGTERM is sent");
        let since = Instant::now();
        let (_, holder) = next_lease(&store, second).await;
        assert!(since.elapsed() < Duration::from_secs(1), "handed over after {:?}", since.elapsed());
        assert!(leads(&holder, &servers[leader]), "the restarted server leads");
    }
}
