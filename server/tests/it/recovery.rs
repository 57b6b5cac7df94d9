//! Recovery from a killed server, a lost connection, and an empty or missing Redis.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use chrono::{DateTime, Duration, Utc};
use milvaion_protocol::{id::JobId, status::OccurrenceStatus};
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    background::{dispatcher::HEAD_START, lease::LEADER_ROLE},
    cache::Cache,
    clock::Clock,
    config::ServerConfig,
    store::Store,
};
use milvaion_test_support::{database, jobs, runs, server_env, wait, worker_env};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::server_process::server_process;

/// A proxy in front of the broker that can swallow everything that the server sends.
struct SwallowingProxy {
    url: String,
    swallows: Arc<AtomicBool>,
    swallowed: Arc<Mutex<Vec<u8>>>,
    cuts: watch::Sender<()>,
}

impl SwallowingProxy {
    async fn start(url: &str) -> Self {
        let (head, rest) = url.split_once('@').expect("user and host");
        let (host, path) = rest.split_once('/').expect("a virtual host");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("the listener is bound").port();
        let swallows = Arc::new(AtomicBool::new(false));
        let (swallowed, cuts) = (Arc::<Mutex<Vec<u8>>>::default(), watch::Sender::new(()));
        let (swallow, buffered, cut, host) = (swallows.clone(), swallowed.clone(), cuts.clone(), host.to_owned());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let upstream = TcpStream::connect(&host).await.expect("the broker responds");
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_broker, mut to_broker) = upstream.into_split();
                let (swallow, buffered, mut cut) = (swallow.clone(), buffered.clone(), cut.subscribe());
                tokio::spawn(async move {
                    let up = async {
                        let mut buffer = vec![0; 65_536];
                        while let Ok(n @ 1..) = from_client.read(&mut buffer).await {
                            if swallow.load(Ordering::SeqCst) {
                                buffered.lock().expect("the mutex is not poisoned").extend(&buffer[..n]);
                            } else if to_broker.write_all(&buffer[..n]).await.is_err() {
                                break;
                            }
                        }
                    };
                    tokio::select! {
                        () = up => {}
                        _ = tokio::io::copy(&mut from_broker, &mut to_client) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { url: format!("{head}@127.0.0.1:{port}/{path}"), swallows, swallowed, cuts }
    }

    /// Waits until the swallowed bytes contain a text.
    async fn wait_for_swallowed(&self, text: &str) {
        wait::eventually("the swallowed text", || async {
            let swallowed = self.swallowed.lock().expect("the mutex is not poisoned");
            swallowed.windows(text.len()).any(|window| window == text.as_bytes()).then_some(())
        })
        .await;
    }

    /// Closes every connection. New connections are forwarded.
    fn cut(&self) {
        self.swallows.store(false, Ordering::SeqCst);
        self.cuts.send_replace(());
    }
}

/// Waits until a server listens for schedule changes.
async fn wait_for_listener(config: &ServerConfig) {
    let client = redis::Client::open(config.cache.url.as_str()).expect("a valid URL");
    let mut connection = client.get_multiplexed_async_connection().await.expect("Redis responds");
    let channel = format!("{}wake", config.cache.key_prefix);
    wait::eventually("a listening server", || {
        let mut connection = connection.clone();
        let channel = channel.clone();
        async move {
            let (_, count): (String, i64) =
                redis::cmd("PUBSUB").arg("NUMSUB").arg(&channel).query_async(&mut connection).await.ok()?;
            (count > 0).then_some(())
        }
    })
    .await;
    let _: () = redis::cmd("PING").query_async(&mut connection).await.expect("Redis responds");
}

/// Inserts a job that is due once, in 300 ms. Neither Redis nor a server is notified.
async fn due_once(store: &Store, clock: &Clock) -> (JobId, DateTime<Utc>) {
    let at = clock.now() + Duration::milliseconds(300);
    (jobs::insert(store, clock, Schedule::once(at), Some(at)).await, at)
}

/// Inserts a job that is due once, in 300 ms, and notifies Redis and every server.
async fn due_once_notified(store: &Store, cache: &Cache, clock: &Clock) {
    let (id, at) = due_once(store, clock).await;
    cache.note_due(&[(id, Some(at))]).await.expect("Redis responds");
    cache.announce_schedule_change().await.expect("Redis responds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_loses_and_duplicates_nothing() {
    let config = server_env::config().await;
    let store = database::open(&config.database.url).await;
    let cache = Cache::new(&config.cache).expect("a valid URL");
    let clock = Clock::system();
    let proxy = SwallowingProxy::start(&config.broker.url).await;

    let mut first_server = server_process(&config, &proxy.url);
    wait_for_listener(&config).await;
    // The first job shows that it publishes at all. Then the proxy swallows its messages.
    due_once_notified(&store, &cache, &clock).await;
    let published = |wanted: usize| {
        let store = store.clone();
        async move {
            let rows = store.occurrences(&Default::default()).await.ok()?.rows;
            let mut done = 0;
            for row in &rows {
                let view = store.occurrence(row.id, 1, row.scheduled_for).await.ok()??;
                done += usize::from(view.published_at.is_some());
            }
            (rows.len() == wanted && done == 1).then_some(rows)
        }
    };
    wait::eventually("the first message", || published(1)).await;
    proxy.swallows.store(true, Ordering::SeqCst);
    due_once_notified(&store, &cache, &clock).await;
    let rows = wait::eventually("the commit of the second", || published(2)).await;
    first_server.kill().await.expect("it is killed");
    // Its lease would expire after ten seconds.
    let holder = store.leases().await.expect("the query succeeds").remove(0).holder.expect("it led");
    assert!(cache.release_lease(LEADER_ROLE, &holder).await.expect("Redis responds"));

    let worker = worker_env::start(&config);
    let server = server_env::start(&config).await;
    for row in &rows {
        assert_eq!(runs::ended(&server, row.id).await.row.status, OccurrenceStatus::Completed);
    }
    let mut expected: Vec<_> = rows.iter().map(|row| row.id).collect();
    expected.sort();
    assert_eq!(worker.started_sorted(), expected, "each started once");
    worker.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unconfirmed_message_is_sent_again_at_once() {
    let config = server_env::config().await;
    let worker = worker_env::start(&config);
    let proxy = SwallowingProxy::start(&config.broker.url).await;
    let mut strict = config.clone();
    strict.broker.url = proxy.url.clone();
    // Because of its age, it would be sent again after an hour only.
    strict.background.republish = std::time::Duration::from_secs(3_600);
    let server = server_env::start(&strict).await;
    due_once_notified(&server.store, &server.cache, &server.clock).await;
    let row = async |n: usize| {
        wait::eventually("an occurrence", async || {
            let rows = server.store.occurrences(&Default::default()).await.ok()?.rows;
            (rows.len() == n).then(|| rows.into_iter().max_by_key(|row| row.scheduled_for))?
        })
        .await
    };
    let first = row(1).await;
    assert_eq!(runs::ended(&server, first.id).await.row.status, OccurrenceStatus::Completed, "messages are forwarded");
    proxy.swallows.store(true, Ordering::SeqCst);
    due_once_notified(&server.store, &server.cache, &server.clock).await;
    let second = row(2).await;
    proxy.wait_for_swallowed(&second.id.to_string()).await;
    proxy.cut();
    assert_eq!(runs::ended(&server, second.id).await.row.status, OccurrenceStatus::Completed);
    assert_eq!(worker.started(), [first.id, second.id]);
    worker.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn emptied_redis_delays_nothing() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let worker = worker_env::start(&config);
    wait_for_listener(&config).await;
    due_once_notified(&server.store, &server.cache, &server.clock).await;
    // All keys of this server are deleted, as after a flush.
    let client = redis::Client::open(config.cache.url.as_str()).expect("a valid URL");
    let mut connection = client.get_multiplexed_async_connection().await.expect("Redis responds");
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg(format!("{}*", config.cache.key_prefix))
        .query_async(&mut connection)
        .await
        .expect("Redis responds");
    let _: () = redis::cmd("DEL").arg(keys).query_async(&mut connection).await.expect("deleted");
    let row = wait::eventually("the occurrence", || async {
        server.store.occurrences(&Default::default()).await.ok()?.rows.into_iter().next()
    })
    .await;
    let view = runs::ended(&server, row.id).await;
    assert_eq!(view.row.status, OccurrenceStatus::Completed);
    worker.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_dispatched_without_redis() {
    let mut config = server_env::config().await;
    // No Redis listens on this port.
    config.cache.url = "redis://127.0.0.1:1".into();
    let server = server_env::start(&config).await;
    due_once(&server.store, &server.clock).await;
    let row = wait::eventually("the occurrence", || async {
        server.store.occurrences(&Default::default()).await.ok()?.rows.into_iter().next()
    })
    .await;
    assert!(row.id.created_at() + HEAD_START >= row.scheduled_for, "not before the head start");
    server.stop().await;
}
