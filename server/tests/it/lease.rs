//! One server leads. Whoever thinks it does, and does not, changes nothing.

use std::{process::Stdio, sync::Arc, time::Duration};

use milvaion_server::{
    background::{
        BackgroundTask,
        driver::drive_led,
        lease::{HeldLease, LEADER_ROLE, Leadership, Lease, LeaseTimes, holder_name},
        task_status::{TaskHealth, TaskStatuses},
    },
    cache::Cache,
    clock::Clock,
    config::{ServerConfig, cache::CacheConfig},
    store::Store,
};
use tokio::{
    process::{Child, Command},
    sync::{Notify, watch},
    task::JoinHandle,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use milvaion_test_support::{self as common, stack};

/// Short enough to wait for, long enough for a busy machine.
const LEASE_TIMES: LeaseTimes = LeaseTimes {
    renew_interval: Duration::from_millis(300),
    ttl: Duration::from_secs(3),
    database_grace: Duration::from_secs(1),
};

struct LeaseHolder {
    holder: String,
    leadership: watch::Receiver<Leadership>,
    rebuild: Arc<Notify>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl LeaseHolder {
    fn start(store: &Store, cache: &Cache, times: LeaseTimes) -> Self {
        let (holder, rebuild) = (holder_name(), Arc::new(Notify::new()));
        let lease =
            Lease::new(LEADER_ROLE, holder.clone(), cache.clone(), store.clone(), Clock::system(), rebuild.clone())
                .with_times(times);
        let (leadership, stop) = (lease.leadership(), CancellationToken::new());
        let task = tokio::spawn(lease.run(stop.clone()));
        Self { holder, leadership, rebuild, stop, task }
    }

    fn leads(&self) -> bool {
        self.leadership.borrow().held_lease().is_some()
    }

    fn is_nobody(&self) -> bool {
        matches!(*self.leadership.borrow(), Leadership::Leaderless)
    }

    async fn term(&self) -> HeldLease {
        stack::eventually("a term", || async { self.leadership.borrow().held_lease().cloned() }).await
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("the lease stops");
    }
}

/// A Redis of this test's own, to be stopped and started again.
struct PrivateRedis {
    port: u16,
    child: Option<Child>,
}

impl PrivateRedis {
    async fn start() -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").port();
        let mut redis = Self { port, child: None };
        redis.again().await;
        redis
    }

    async fn again(&mut self) {
        let child = Command::new("redis-server")
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("redis-server can be started");
        self.child = Some(child);
        let cache = self.cache();
        stack::eventually("Redis", || async { cache.ping().await.ok() }).await;
    }

    async fn kill(&mut self) {
        self.child.take().expect("it runs").kill().await.expect("killed");
    }

    fn cache(&self) -> Cache {
        let url = format!("redis://127.0.0.1:{}", self.port);
        Cache::new(&CacheConfig { url, key_prefix: "t:".into() }).expect("a URL")
    }
}

async fn harness() -> (Store, Cache) {
    let config = stack::config().await;
    (common::open(&config.database.url).await, Cache::new(&config.cache).expect("a URL"))
}

/// Waits until so many servers listen for the role to be given back.
async fn listeners(cache: &Cache, wanted: i64) {
    let client = redis::Client::open(common::url("REDIS_URL")).expect("a URL");
    let connection = client.get_multiplexed_async_connection().await.expect("Redis answers");
    stack::eventually("servers that listen", || async {
        let (_, listeners): (String, i64) = redis::cmd("PUBSUB")
            .arg("NUMSUB")
            .arg(cache.keys().lease_channel(LEADER_ROLE))
            .query_async(&mut connection.clone())
            .await
            .ok()?;
        (listeners == wanted).then_some(())
    })
    .await;
}

#[tokio::test]
async fn of_two_servers_one_leads_and_hands_over_at_once_when_it_stops() {
    let (store, cache) = harness().await;
    // With the usual times: what is measured is the handing over.
    let one = LeaseHolder::start(&store, &cache, LeaseTimes::default());
    let first = one.term().await;
    let two = LeaseHolder::start(&store, &cache, LeaseTimes::default());
    listeners(&cache, 2).await;
    assert!(one.leads() && !two.leads());
    let rows = store.leases().await.expect("answered");
    assert_eq!((rows[0].holder.as_deref(), rows[0].epoch), (Some(one.holder.as_str()), first.epoch()));

    let begun = Instant::now();
    one.stop().await;
    assert!(!first.is_valid(), "the old term is over");
    let second = two.term().await;
    assert!(begun.elapsed() < Duration::from_secs(1), "handed over in {:?}", begun.elapsed());
    assert_eq!(second.epoch(), first.epoch() + 1);
    two.stop().await;
    assert_eq!(store.leases().await.expect("answered")[0].holder, None, "it is known that nobody leads");
}

#[tokio::test]
async fn a_leader_that_dies_is_followed_when_its_lease_is_over() {
    let (store, cache) = harness().await;
    let dead = "a-server-that-was-killed";
    cache.acquire_or_renew_lease(LEADER_ROLE, dead, LEASE_TIMES.ttl).await.expect("answered");
    store.take_lease(LEADER_ROLE, dead, Clock::system().now()).await.expect("answered");
    let begun = Instant::now();
    let follower = LeaseHolder::start(&store, &cache, LEASE_TIMES);
    let term = follower.term().await;
    assert!(begun.elapsed() > LEASE_TIMES.ttl - Duration::from_millis(500), "not before: {:?}", begun.elapsed());
    assert!(begun.elapsed() < LEASE_TIMES.ttl + Duration::from_secs(2), "not long after: {:?}", begun.elapsed());
    assert_eq!(term.epoch(), 2);
    follower.stop().await;
}

#[tokio::test]
async fn what_a_frozen_leader_writes_touches_nothing() {
    let (store, cache) = harness().await;
    let clock = Clock::system();
    let frozen =
        LeaseHolder::start(&store, &cache, LeaseTimes { renew_interval: Duration::from_secs(3_600), ..LEASE_TIMES });
    let old = frozen.term().await;
    // It does not move; its key goes, and another takes the role.
    assert!(cache.release_lease(LEADER_ROLE, &frozen.holder).await.expect("answered"));
    let other = LeaseHolder::start(&store, &cache, LEASE_TIMES);
    let new = other.term().await;
    assert!(new.epoch() > old.epoch());
    assert!(!store.release_lease(old.fence(), clock.now()).await.expect("answered"), "0 rows");
    let row = store.leases().await.expect("answered").remove(0);
    assert_eq!((row.holder, row.epoch), (Some(other.holder.clone()), new.epoch()));
    assert!(!cache.release_lease(LEADER_ROLE, &frozen.holder).await.expect("answered"), "nor is the key deleted");
    // Nor does it believe in itself for ever.
    stack::eventually("the end of its trust", || async { (!old.is_valid()).then_some(()) }).await;
    assert!(other.leads());
    other.stop().await;
    frozen.stop().await;
}

#[tokio::test]
async fn a_leader_that_was_frozen_past_its_time_never_works_without_a_leader() {
    let (store, cache) = harness().await;
    // It sleeps through the end of its lease, as a frozen one does.
    let frozen =
        LeaseHolder::start(&store, &cache, LeaseTimes { renew_interval: Duration::from_secs(3_600), ..LEASE_TIMES });
    let old = frozen.term().await;
    let (mut states, seen) = (frozen.leadership.clone(), Arc::new(std::sync::Mutex::new(Vec::new())));
    let note = seen.clone();
    let watching = tokio::spawn(async move {
        while states.changed().await.is_ok() {
            let state = states.borrow_and_update().clone();
            note.lock().expect("nobody panicked").push(state);
        }
    });
    let other = LeaseHolder::start(&store, &cache, LEASE_TIMES);
    let newer = other.term().await;
    // The other one gives the role back, and with that wakes the sleeper.
    other.stop().await;
    let again = stack::eventually("a later term of the sleeper", || async {
        frozen.leadership.borrow().held_lease().filter(|term| term.epoch() > newer.epoch()).cloned()
    })
    .await;
    assert!(old.epoch() < newer.epoch() && newer.epoch() < again.epoch());
    frozen.stop().await;
    watching.await.expect("it ends with the lease");
    let seen = seen.lock().expect("nobody panicked");
    assert!(!seen.iter().any(|state| matches!(state, Leadership::Leaderless)), "{seen:?}");
}

#[tokio::test]
async fn a_leader_that_wakes_up_to_a_newer_term_steps_down() {
    let (store, cache) = harness().await;
    let server = LeaseHolder::start(&store, &cache, LEASE_TIMES);
    let term = server.term().await;
    // Redis was set back to an old copy: it says the role is ours, PostgreSQL knows better.
    store.take_lease(LEADER_ROLE, "another", Clock::system().now()).await.expect("answered");
    tokio::time::timeout(stack::WAIT_TIMEOUT, term.ended().cancelled()).await.expect("it steps down");
    assert!(server.term().await.epoch() > term.epoch() + 1, "and leads again only in a term of its own");
    server.stop().await;
}

#[tokio::test]
async fn a_vanished_key_ends_the_term_and_has_the_index_rebuilt() {
    let (store, cache) = harness().await;
    let server = LeaseHolder::start(&store, &cache, LEASE_TIMES);
    let term = server.term().await;
    server.rebuild.notified().await;
    assert!(cache.release_lease(LEADER_ROLE, &server.holder).await.expect("answered"));
    tokio::time::timeout(stack::WAIT_TIMEOUT, server.rebuild.notified()).await.expect("a rebuild is asked for");
    assert_eq!(server.term().await.epoch(), term.epoch() + 1);
    assert!(!term.is_valid());
    server.stop().await;
}

#[tokio::test]
async fn without_redis_nobody_leads_and_with_it_somebody_does_again() {
    let (store, _) = common::database().await;
    let mut redis = PrivateRedis::start().await;
    let cache = redis.cache();
    let (one, two) =
        (LeaseHolder::start(&store, &cache, LEASE_TIMES), LeaseHolder::start(&store, &redis.cache(), LEASE_TIMES));
    stack::eventually("a leader", || async { (one.leads() != two.leads()).then_some(()) }).await;
    let leader = if one.leads() { &one } else { &two };
    let term = leader.term().await;
    leader.rebuild.notified().await;

    redis.kill().await;
    let begun = Instant::now();
    stack::eventually("nobody", || async { (one.is_nobody() && two.is_nobody()).then_some(()) }).await;
    assert!(begun.elapsed() < LEASE_TIMES.ttl + Duration::from_secs(3), "{:?}", begun.elapsed());
    assert!(!term.is_valid());
    assert!(one.leadership.borrow().may_work() && two.leadership.borrow().may_work(), "so both do the work");

    redis.again().await;
    stack::eventually("a leader", || async { (one.leads() != two.leads()).then_some(()) }).await;
    stack::eventually("no nobody", || async { (!one.is_nobody() && !two.is_nobody()).then_some(()) }).await;
    let leader = if one.leads() { &one } else { &two };
    tokio::time::timeout(stack::WAIT_TIMEOUT, leader.rebuild.notified()).await.expect("the index is rebuilt");
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn a_leader_without_postgresql_gives_the_role_back() {
    let (store, cache) = harness().await;
    let (lonely, _) = common::database().await;
    let server = LeaseHolder::start(&lonely, &cache, LEASE_TIMES);
    let term = server.term().await;
    lonely.close().await;
    tokio::time::timeout(LEASE_TIMES.renew_interval + Duration::from_secs(4), term.ended().cancelled())
        .await
        .expect("released");
    let other = LeaseHolder::start(&store, &cache, LEASE_TIMES);
    other.term().await;
    assert!(!server.leads());
    server.stop().await;
    other.stop().await;
}

/// The real program.
fn program(config: &ServerConfig) -> Child {
    Command::new(env!("CARGO_BIN_EXE_milvaion"))
        .arg("run")
        .env("DATABASE_URL", &config.database.url)
        .env("REDIS_URL", &config.cache.url)
        .env("AMQP_URL", &config.broker.url)
        .env("MILVAION_PREFIX", &config.broker.prefix)
        .env("MILVAION_KEY_PREFIX", &config.cache.key_prefix)
        .env("SITE_ROOT", &config.http.site_root)
        .env_remove("PORT")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("the program starts")
}

/// Waits for a term after `epoch`. Returns its number and who holds it.
async fn next_term(store: &Store, epoch: i64) -> (i64, String) {
    stack::eventually("the next term", || async {
        let row = store.leases().await.ok()?.into_iter().find(|row| row.role == LEADER_ROLE)?;
        (row.epoch > epoch).then_some((row.epoch, row.holder?))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_process_that_is_killed_is_followed_in_seconds_and_one_that_is_asked_to_end_at_once() {
    let config = stack::config().await;
    let store = common::open(&config.database.url).await;
    let mut servers = [program(&config), program(&config)];
    let (first, holder) = next_term(&store, 0).await;
    // The holder's name tells its process.
    let leads = |holder: &str, server: &Child| server.id().is_some_and(|pid| holder.contains(&format!("-{pid}-")));
    let leader = servers.iter().position(|server| leads(&holder, server)).expect("one of the two");
    servers[leader].kill().await.expect("killed with SIGKILL");
    let begun = Instant::now();
    let (second, holder) = next_term(&store, first).await;
    assert!(begun.elapsed() < Duration::from_secs(12), "followed after {:?}", begun.elapsed());
    assert!(leads(&holder, &servers[1 - leader]), "by the other");

    servers[leader] = program(&config);
    let cache = Cache::new(&config.cache).expect("a URL");
    listeners(&cache, 2).await;
    let pid = i32::try_from(servers[1 - leader].id().expect("it runs")).expect("a process id");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM).expect("asked to end");
    let begun = Instant::now();
    let (_, holder) = next_term(&store, second).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "handed over after {:?}", begun.elapsed());
    assert!(leads(&holder, &servers[leader]), "to the one that was started again");
}

/// Notes that it ran, and never comes to an end when it is told so.
struct EndlessTask {
    ticks: watch::Sender<u32>,
    endless: bool,
}

impl BackgroundTask for EndlessTask {
    const NAME: &'static str = "endless";
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
async fn a_led_task_runs_while_this_server_leads_and_is_cut_off_at_the_terms_end() {
    let (store, cache) = harness().await;
    cache.acquire_or_renew_lease(LEADER_ROLE, "another", Duration::from_secs(600)).await.expect("answered");
    let server = LeaseHolder::start(&store, &cache, LEASE_TIMES);
    let (ticks, mut ticked) = watch::channel(0);
    let (task_statuses, stop) = (TaskStatuses::default(), CancellationToken::new());
    let task = EndlessTask { ticks, endless: true };
    let driven =
        tokio::spawn(drive_led(task, Arc::default(), task_statuses.clone(), server.leadership.clone(), stop.clone()));
    stack::eventually("standing by", || async {
        (task_statuses.health("endless") == TaskHealth::Standby).then_some(())
    })
    .await;
    assert_eq!(*ticked.borrow(), 0);
    cache.release_lease(LEADER_ROLE, "another").await.expect("answered");
    let term = server.term().await;
    ticked.wait_for(|ticks| *ticks == 1).await.expect("it runs");
    // The end of the term is the end of the tick; the next term has a tick of its own.
    assert!(cache.release_lease(LEADER_ROLE, &server.holder).await.expect("answered"));
    tokio::time::timeout(stack::WAIT_TIMEOUT, term.ended().cancelled()).await.expect("the term ends");
    ticked.wait_for(|ticks| *ticks == 2).await.expect("it runs again");
    stop.cancel();
    driven.await.expect("it stops though its tick would not");
    server.stop().await;
}
