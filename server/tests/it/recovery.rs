//! What is killed is not missed.

use std::{
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use chrono::{DateTime, Duration, Utc};
use milvaion_protocol::{id::JobId, status::OccurrenceStatus};
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    background::dispatcher::HEAD_START, cache::Cache, clock::Clock, config::ServerConfig, store::Store,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    sync::watch,
};

use milvaion_test_support::{self as common, stack};

/// A line to the broker that can be made to swallow everything the server says.
struct SwallowingProxy {
    url: String,
    swallows: Arc<AtomicBool>,
    swallowed: Arc<Mutex<Vec<u8>>>,
    cuts: watch::Sender<()>,
}

impl SwallowingProxy {
    async fn to(url: &str) -> Self {
        let (head, rest) = url.split_once('@').expect("user and host");
        let (host, path) = rest.split_once('/').expect("a virtual host");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let swallows = Arc::new(AtomicBool::new(false));
        let (swallowed, cuts) = (Arc::<Mutex<Vec<u8>>>::default(), watch::Sender::new(()));
        let (swallow, stomach, cut, host) = (swallows.clone(), swallowed.clone(), cuts.clone(), host.to_owned());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let upstream = TcpStream::connect(&host).await.expect("the broker answers");
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_broker, mut to_broker) = upstream.into_split();
                let (swallow, stomach, mut cut) = (swallow.clone(), stomach.clone(), cut.subscribe());
                tokio::spawn(async move {
                    let up = async {
                        let mut buffer = vec![0; 65_536];
                        while let Ok(n @ 1..) = from_client.read(&mut buffer).await {
                            if swallow.load(Ordering::SeqCst) {
                                stomach.lock().expect("nobody panicked").extend(&buffer[..n]);
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

    /// Waits until a text is among what was swallowed.
    async fn has_swallowed(&self, text: &str) {
        stack::eventually("swallowed", || async {
            let swallowed = self.swallowed.lock().expect("nobody panicked");
            swallowed.windows(text.len()).any(|window| window == text.as_bytes()).then_some(())
        })
        .await;
    }

    /// Ends every connection; what comes next gets through.
    fn cut(&self) {
        self.swallows.store(false, Ordering::SeqCst);
        self.cuts.send_replace(());
    }
}

/// The real program.
fn program(config: &ServerConfig, amqp_url: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_milvaion"))
        .arg("run")
        .env("DATABASE_URL", &config.database.url)
        .env("REDIS_URL", &config.cache.url)
        .env("AMQP_URL", amqp_url)
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

/// Waits until a server listens for changes of the schedule.
async fn listening(config: &ServerConfig) {
    let client = redis::Client::open(config.cache.url.as_str()).expect("a URL");
    let mut connection = client.get_multiplexed_async_connection().await.expect("Redis answers");
    let channel = format!("{}wake", config.cache.key_prefix);
    stack::eventually("a listening server", || {
        let mut connection = connection.clone();
        let channel = channel.clone();
        async move {
            let (_, count): (String, i64) =
                redis::cmd("PUBSUB").arg("NUMSUB").arg(&channel).query_async(&mut connection).await.ok()?;
            (count > 0).then_some(())
        }
    })
    .await;
    let _: () = redis::cmd("PING").query_async(&mut connection).await.expect("Redis answers");
}

async fn due_once(store: &Store, clock: &Clock) -> (JobId, DateTime<Utc>) {
    let at = clock.now() + Duration::milliseconds(300);
    (common::insert(store, clock, Schedule::Once { at }, Some(at)).await, at)
}

/// The same, told to Redis and to every server.
async fn due_once_and_told(store: &Store, cache: &Cache, clock: &Clock) {
    let (id, at) = due_once(store, clock).await;
    cache.note_due(&[(id, Some(at))]).await.expect("Redis answers");
    cache.announce_schedule_change().await.expect("Redis answers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mv02_a_server_killed_between_commit_and_publish_loses_nothing_and_doubles_nothing() {
    let config = stack::config().await;
    let store = common::open(&config.database.url).await;
    let cache = Cache::new(&config.cache).expect("a URL");
    let clock = Clock::system();
    let line = SwallowingProxy::to(&config.broker.url).await;

    let mut doomed = program(&config, &line.url);
    listening(&config).await;
    // Give it a job once to see that it publishes at all, then cut the line.
    due_once_and_told(&store, &cache, &clock).await;
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
    stack::eventually("the first message", || published(1)).await;
    line.swallows.store(true, Ordering::SeqCst);
    due_once_and_told(&store, &cache, &clock).await;
    let rows = stack::eventually("the commit of the second", || published(2)).await;
    doomed.kill().await.expect("killed with SIGKILL");

    let worker = stack::worker(&config);
    let server = stack::server(&config).await;
    for row in &rows {
        assert_eq!(stack::ended(&server, row.id).await.row.status, OccurrenceStatus::Completed);
    }
    let mut started = worker.started();
    started.sort();
    let mut expected: Vec<_> = rows.iter().map(|row| row.id).collect();
    expected.sort();
    assert_eq!(started, expected, "each started once");
    worker.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_on_its_way_when_the_connection_ended_is_sent_again_at_once() {
    let config = stack::config().await;
    let worker = stack::worker(&config);
    let line = SwallowingProxy::to(&config.broker.url).await;
    let mut strict = config.clone();
    strict.broker.url = line.url.clone();
    // By its age it would be found in an hour.
    strict.background.republish = std::time::Duration::from_secs(3_600);
    let server = stack::server(&strict).await;
    due_once_and_told(&server.store, &server.cache, &server.clock).await;
    let row = async |n: usize| {
        stack::eventually("an occurrence", async || {
            let rows = server.store.occurrences(&Default::default()).await.ok()?.rows;
            (rows.len() == n).then(|| rows.into_iter().max_by_key(|row| row.scheduled_for))?
        })
        .await
    };
    let first = row(1).await;
    assert_eq!(stack::ended(&server, first.id).await.row.status, OccurrenceStatus::Completed, "the way is open");
    line.swallows.store(true, Ordering::SeqCst);
    due_once_and_told(&server.store, &server.cache, &server.clock).await;
    let second = row(2).await;
    line.has_swallowed(&second.id.to_string()).await;
    line.cut();
    assert_eq!(stack::ended(&server, second.id).await.row.status, OccurrenceStatus::Completed);
    assert_eq!(worker.started(), [first.id, second.id]);
    worker.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_redis_delays_nothing() {
    let config = stack::config().await;
    let server = stack::server(&config).await;
    let worker = stack::worker(&config);
    listening(&config).await;
    due_once_and_told(&server.store, &server.cache, &server.clock).await;
    // Everything this server keeps in Redis goes, as after a flush.
    let client = redis::Client::open(config.cache.url.as_str()).expect("a URL");
    let mut connection = client.get_multiplexed_async_connection().await.expect("Redis answers");
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg(format!("{}*", config.cache.key_prefix))
        .query_async(&mut connection)
        .await
        .expect("keys");
    let _: () = redis::cmd("DEL").arg(keys).query_async(&mut connection).await.expect("deleted");
    let row = stack::eventually("the occurrence", || async {
        server.store.occurrences(&Default::default()).await.ok()?.rows.into_iter().next()
    })
    .await;
    let view = stack::ended(&server, row.id).await;
    assert_eq!(view.row.status, OccurrenceStatus::Completed);
    worker.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_jobs_still_fire() {
    let mut config = stack::config().await;
    // Nothing listens there.
    config.cache.url = "redis://127.0.0.1:1".into();
    let server = stack::server(&config).await;
    due_once(&server.store, &server.clock).await;
    let row = stack::eventually("the occurrence", || async {
        server.store.occurrences(&Default::default()).await.ok()?.rows.into_iter().next()
    })
    .await;
    assert!(row.id.created_at() + HEAD_START >= row.scheduled_for, "not before its time");
    server.stop().await;
}
