//! Messages that cannot be stored. A report that can never be stored becomes a dead letter, and other such messages are
//! dropped. A batch that this server cannot store now is redelivered to another server.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use futures::{
    FutureExt,
    future::{BoxFuture, ready},
};
use lapin::{
    BasicProperties, Connection, ConnectionProperties,
    options::{BasicPublishOptions, QueueDeclareOptions},
    types::FieldTable,
};
use milvaion_protocol::{
    id::OccurrenceId,
    status::OccurrenceStatus::{Completed, Queued, Running},
};
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    broker::{
        Broker,
        consumer::{BatchHandler, Delivery, DeliveryLog, consume},
        echo::Echo,
    },
    clock::Clock,
    config::ServerConfig,
    engine::{activators::Activators, delivery_log::ConsumerLog},
    ingest::status::StatusConsumer,
    lifecycle::Server,
    live::Hub,
    store::Store,
};
use milvaion_test_support::{
    database::{self, TestConnection},
    jobs, runs, server_env,
    services::unique,
    wait,
};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

fn report(id: OccurrenceId, status: i32, more: &Value) -> Value {
    let mut report = json!({
        "occurrenceId": id, "attempt": 1, "instanceId": "w-1", "status": status, "timestamp": "2026-11-22T10:00:00Z",
    });
    for (name, value) in more.as_object().expect("an object") {
        report[name.as_str()] = value.clone();
    }
    report
}

async fn queued(store: &Store, clock: &Clock) -> OccurrenceId {
    let job_id = jobs::insert(store, clock, Schedule::Manual, None).await;
    runs::insert_manual(store, clock, job_id).await
}

#[tokio::test]
async fn invalid_report_does_not_affect_its_batch() {
    let store = database::fresh().await;
    let clock = Clock::system();
    let (hub, _events) = Hub::new();
    let consumer =
        StatusConsumer { store: store.clone(), activators: Activators::default(), hub, clock: clock.clone() };
    let [nul, malformed, ancient, good] = [
        queued(&store, &clock).await,
        queued(&store, &clock).await,
        queued(&store, &clock).await,
        queued(&store, &clock).await,
    ];
    let reports = [
        report(nul, 1, &json!({"progress": {"percent": 250, "message": "a\u{0}b"}, "instanceId": "w\u{0}1"})),
        report(malformed, 2, &json!({"instanceId": 7})),
        report(ancient, 1, &json!({"timestamp": "-4800-01-01T00:00:00Z"})),
        report(good, 2, &json!({})),
    ];
    let body = json!({ "reports": reports }).to_string().into_bytes();
    let error = consumer.handle(vec![b"no JSON".to_vec(), body]).await.expect_err("one report can never be stored");
    assert!(!StatusConsumer::is_retryable(&error), "{error:#}");
    assert!(error.to_string().contains(&ancient.to_string()), "{error:#}");
    let view = async |id| store.occurrence(id, 1, clock.now()).await.expect("the query succeeds").expect("it exists");
    let cleaned = view(nul).await;
    let progress = cleaned.row.progress.expect("a progress");
    assert_eq!((cleaned.row.status, progress.percent, progress.message.as_str()), (Running, 100, "a\u{fffd}b"));
    assert_eq!(cleaned.row.instance_id.as_deref(), Some("w\u{fffd}1"));
    assert_eq!(view(malformed).await.row.status, Queued);
    assert_eq!(view(ancient).await.row.status, Queued);
    assert_eq!(view(good).await.row.status, Completed);
}

#[tokio::test]
async fn large_batch_is_split_and_can_be_redelivered() {
    let store = database::fresh().await;
    let clock = Clock::system();
    let (hub, _events) = Hub::new();
    let consumer =
        StatusConsumer { store: store.clone(), activators: Activators::default(), hub, clock: clock.clone() };
    let [good, ancient] = [queued(&store, &clock).await, queued(&store, &clock).await];
    // Its start is in the first statement. Its end is in the second one, beside a report that can never be stored.
    let unknown = (0..4_999).map(|_| report(clock.occurrence_id(), 1, &json!({})));
    let reports: Vec<Value> = std::iter::once(report(good, 1, &json!({})))
        .chain(unknown)
        .chain([report(ancient, 1, &json!({"timestamp": "-4800-01-01T00:00:00Z"})), report(good, 2, &json!({}))])
        .collect();
    let bodies: Vec<Vec<u8>> =
        reports.chunks(400).map(|some| json!({ "reports": some }).to_string().into_bytes()).collect();
    let view = async |id| store.occurrence(id, 1, clock.now()).await.expect("the query succeeds").expect("it exists");
    consumer.handle(bodies.clone()).await.expect_err("one report can never be stored");
    let stored = view(good).await;
    assert_eq!((stored.row.status, stored.changes.len()), (Completed, 3));
    assert_eq!(view(ancient).await.row.status, Queued);
    consumer.handle(bodies).await.expect_err("one report can never be stored");
    assert_eq!(view(good).await.row.version, stored.row.version, "the redelivery changes nothing");
}

/// A handler that stores all bodies except `bad`, which it can never store. It stores none while it is cut off.
#[derive(Clone, Default)]
struct CountingHandler {
    calls: Arc<AtomicUsize>,
    stored: Arc<std::sync::Mutex<Vec<Vec<u8>>>>,
    is_cut_off: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("this body can never be stored")]
struct PermanentError;

impl BatchHandler for CountingHandler {
    const NAME: &'static str = "counting";

    fn is_retryable(error: &anyhow::Error) -> bool {
        !error.is::<PermanentError>()
    }

    async fn handle(&self, bodies: Vec<Vec<u8>>) -> anyhow::Result<()> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        anyhow::ensure!(!self.is_cut_off, "cut off");
        if bodies.iter().any(|body| body == b"bad") {
            return Err(PermanentError.into());
        }
        self.stored.lock().expect("the mutex is not poisoned").extend(bodies);
        Ok(())
    }
}

#[tokio::test]
async fn failed_batch_is_redelivered_to_another_server() {
    let config = server_env::config().await;
    let broker = || Broker::new(&config.broker).expect("a valid URL");
    let queue = broker().topology().status();
    let stop = CancellationToken::new();
    let cut_off = CountingHandler { is_cut_off: true, ..CountingHandler::default() };
    let first = tokio::spawn(consume(
        broker(),
        queue.clone(),
        Echo::new(&broker()).0,
        Arc::new(cut_off.clone()),
        Arc::new(TestLog::default()),
        stop.clone(),
    ));
    let connection = Connection::connect(&config.broker.url, ConnectionProperties::default()).await.expect("connected");
    let channel = connection.create_channel().await.expect("a channel");
    wait::eventually("the queue", || async {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let channel = connection.create_channel().await.expect("a channel");
        channel.queue_declare(queue.as_str().into(), passive, FieldTable::default()).await.ok()
    })
    .await;
    for body in ["one", "bad", "two"] {
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        channel
            .basic_publish("".into(), queue.as_str().into(), options, body.as_bytes(), properties)
            .await
            .expect("sent");
    }
    wait::eventually("the delivery to the first consumer", || async {
        (cut_off.calls.load(Ordering::SeqCst) > 0).then_some(())
    })
    .await;

    let other = CountingHandler::default();
    let second = tokio::spawn(consume(
        broker(),
        queue.clone(),
        Echo::new(&broker()).0,
        Arc::new(other.clone()),
        Arc::new(TestLog::default()),
        stop.clone(),
    ));
    wait::eventually("the delivery to the second consumer", || async {
        let stored = other.stored.lock().expect("the mutex is not poisoned");
        let stored: std::collections::BTreeSet<_> = stored.iter().cloned().collect();
        (stored.len() == 2).then_some(())
    })
    .await;
    assert!(cut_off.stored.lock().expect("the mutex is not poisoned").is_empty());
    stop.cancel();
    for task in [first, second] {
        task.await.expect("the task does not panic");
    }
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let left = channel.queue_declare(queue.as_str().into(), passive, FieldTable::default()).await.expect("it exists");
    assert_eq!(left.message_count(), 0, "the bad message is dropped");
}

/// A log that counts panics.
#[derive(Default)]
struct TestLog {
    panics: AtomicUsize,
}

impl DeliveryLog for TestLog {
    fn note_panic(&self, _: &'static str, reason: &str) {
        assert!(reason.contains("a bug on purpose"), "{reason}");
        self.panics.fetch_add(1, Ordering::SeqCst);
    }

    fn is_suspected<'a>(&'a self, _: &'a str, _: &'a [Delivery]) -> BoxFuture<'a, bool> {
        ready(false).boxed()
    }

    fn begin<'a>(&'a self, _: &'a str, _: &'a [Delivery]) -> BoxFuture<'a, u32> {
        ready(0).boxed()
    }

    fn end<'a>(&'a self, _: &'a str, _: &'a [Delivery]) -> BoxFuture<'a, ()> {
        ready(()).boxed()
    }
}

/// A handler with a bug in the body `poison`: it panics, or it hangs until its process ends.
#[derive(Clone, Default)]
struct BuggyHandler {
    stored: Arc<std::sync::Mutex<Vec<String>>>,
    /// Notified when the handler hangs.
    hangs: Option<Arc<Notify>>,
}

impl BatchHandler for BuggyHandler {
    const NAME: &'static str = "buggy";

    async fn handle(&self, bodies: Vec<Vec<u8>>) -> anyhow::Result<()> {
        if bodies.iter().any(|body| body == b"poison") {
            let hangs = self.hangs.as_ref().expect("a bug on purpose");
            hangs.notify_one();
            std::future::pending::<()>().await;
        }
        let texts = bodies.into_iter().map(|body| String::from_utf8(body).expect("a text"));
        self.stored.lock().expect("the mutex is not poisoned").extend(texts);
        Ok(())
    }
}

/// A queue with `one`, `poison` and `two`.
async fn poisoned_queue(config: &ServerConfig) -> String {
    let queue = unique("poisoned");
    let connection = Connection::connect(&config.broker.url, ConnectionProperties::default()).await.expect("connected");
    let channel = connection.create_channel().await.expect("a channel");
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.as_str().into(), options, FieldTable::default()).await.expect("declared");
    for body in ["one", "poison", "two"] {
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        let key = queue.as_str().into();
        channel.basic_publish("".into(), key, options, body.as_bytes(), properties).await.expect("sent");
    }
    queue
}

/// Waits for the dead letter and for the two other messages. Returns the reason of the dead letter.
async fn reason_of_dead_letter(server: &Server, handler: &BuggyHandler) -> String {
    let reason = wait::eventually("the dead letter", async || {
        let page = server.store.dead_letters(&Default::default()).await.expect("the query succeeds");
        page.rows.into_iter().next().map(|row| row.reason)
    })
    .await;
    wait::eventually("the other messages", async || {
        let stored = handler.stored.lock().expect("the mutex is not poisoned").clone();
        (stored.contains(&"one".into()) && stored.contains(&"two".into())).then_some(())
    })
    .await;
    reason
}

#[tokio::test]
async fn report_that_a_newer_constraint_refuses_becomes_a_dead_letter() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let [refused, good] = [queued(&server.store, &server.clock).await, queued(&server.store, &server.clock).await];
    TestConnection::open(&config.database.url)
        .await
        .execute("ALTER TABLE runs ADD CONSTRAINT later CHECK (status <> 'running' OR instance_id <> 'w-1')")
        .await;
    let connection = Connection::connect(&config.broker.url, ConnectionProperties::default()).await.expect("connected");
    let channel = connection.create_channel().await.expect("a channel");
    let queue = Broker::new(&config.broker).expect("a valid URL").topology().status();
    for report in [report(refused, 1, &json!({})), report(good, 1, &json!({"instanceId": "w-2"}))] {
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        let body = report.to_string().into_bytes();
        channel.basic_publish("".into(), queue.as_str().into(), options, &body, properties).await.expect("sent");
    }
    let reason = wait::eventually("the dead letter", async || {
        let page = server.store.dead_letters(&Default::default()).await.expect("the query succeeds");
        page.rows.into_iter().next().map(|row| row.reason)
    })
    .await;
    assert!(reason.contains("can never be stored") && reason.contains("\"later\""), "{reason}");
    assert!(reason.contains(&refused.to_string()) && !reason.contains("bug"), "{reason}");
    wait::eventually("the other report", async || {
        let view = server.store.occurrence(good, 1, server.clock.now()).await.expect("the query succeeds");
        (view.expect("it exists").row.status == Running).then_some(())
    })
    .await;
    server.stop().await;
}

#[tokio::test]
async fn message_on_which_the_server_panics_becomes_a_dead_letter() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let queue = poisoned_queue(&config).await;
    let (handler, log, stop) = (BuggyHandler::default(), Arc::new(TestLog::default()), CancellationToken::new());
    let broker = Broker::new(&config.broker).expect("a valid URL");
    let consumer = tokio::spawn(consume(
        broker.clone(),
        queue,
        Echo::new(&broker).0,
        Arc::new(handler.clone()),
        log.clone(),
        stop.clone(),
    ));
    let reason = reason_of_dead_letter(&server, &handler).await;
    assert!(reason.starts_with("buggy: the server panicked 3 times on it: a bug on purpose"), "{reason}");
    stop.cancel();
    consumer.await.expect("the consumer survives");
    let panics = log.panics.load(Ordering::SeqCst);
    assert!((3..=4).contains(&panics), "three on the message, and one if it arrived with others: {panics}");
    server.stop().await;
}

#[tokio::test]
async fn message_in_which_five_processes_end_becomes_a_dead_letter() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let queue = poisoned_queue(&config).await;
    let handler = BuggyHandler { hangs: Some(Arc::default()), ..BuggyHandler::default() };
    let stop = CancellationToken::new();
    // Each log is that of a process.
    let start = || {
        let log = Arc::new(ConsumerLog::new(server.store.clone(), server.clock.clone(), server.services.clone()));
        let broker = Broker::new(&config.broker).expect("a valid URL");
        tokio::spawn(consume(
            broker.clone(),
            queue.clone(),
            Echo::new(&broker).0,
            Arc::new(handler.clone()),
            log,
            stop.clone(),
        ))
    };
    for _ in 0..5 {
        let consumer = start();
        handler.hangs.as_ref().expect("a notification").notified().await;
        // Nothing else runs in the consumer, as if its process had ended. The connection is dropped with it.
        consumer.abort();
        assert!(consumer.await.expect_err("it is aborted").is_cancelled());
    }
    let last = start();
    let reason = reason_of_dead_letter(&server, &handler).await;
    assert!(reason.starts_with("buggy: the process of the server ended"), "{reason}");
    wait::eventually("the end of all attempts", async || {
        let mut database = TestConnection::open(&config.database.url).await;
        (database.count("SELECT count(*) FROM redeliveries").await == 0).then_some(())
    })
    .await;
    stop.cancel();
    last.await.expect("the consumer survives");
    server.stop().await;
}
