//! Messages that cannot be stored. A message that can never be stored is dropped alone; a batch that this server cannot
//! store now is redelivered to another server.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
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
    background::activators::Activators,
    broker::{
        Broker,
        consumer::{BatchHandler, consume},
    },
    clock::Clock,
    ingest::status::StatusConsumer,
    live::Hub,
    store::Store,
};
use milvaion_test_support::{database, jobs, runs, server_env, wait};
use serde_json::{Value, json};
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
        report(malformed, 2, &json!({"durationMs": 12.5})),
        report(ancient, 1, &json!({"timestamp": "-4800-01-01T00:00:00Z"})),
        report(good, 2, &json!({})),
    ];
    let body = json!({ "reports": reports }).to_string().into_bytes();
    consumer.handle(vec![b"no JSON".to_vec(), body]).await.expect("the batch is acknowledged");
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
    consumer.handle(bodies.clone()).await.expect("the batch is acknowledged");
    let stored = view(good).await;
    assert_eq!((stored.row.status, stored.changes.len()), (Completed, 3));
    assert_eq!(view(ancient).await.row.status, Queued);
    consumer.handle(bodies).await.expect("the batch is acknowledged");
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
    let first = tokio::spawn(consume(broker(), queue.clone(), Arc::new(cut_off.clone()), |_| (), stop.clone()));
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
    let second = tokio::spawn(consume(broker(), queue.clone(), Arc::new(other.clone()), |_| (), stop.clone()));
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

/// A handler with a bug: it panics on the body `poison`.
#[derive(Clone, Default)]
struct PanickingHandler {
    stored: Arc<std::sync::Mutex<Vec<Vec<u8>>>>,
}

impl BatchHandler for PanickingHandler {
    const NAME: &'static str = "panicking";

    async fn handle(&self, bodies: Vec<Vec<u8>>) -> anyhow::Result<()> {
        assert!(!bodies.iter().any(|body| body == b"poison"), "a bug on purpose");
        self.stored.lock().expect("the mutex is not poisoned").extend(bodies);
        Ok(())
    }
}

#[tokio::test]
async fn message_on_which_the_server_panics_becomes_a_dead_letter() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let broker = Broker::new(&config.broker).expect("a valid URL");
    let queue = format!("{}.test", broker.topology().status());
    let connection = Connection::connect(&config.broker.url, ConnectionProperties::default()).await.expect("connected");
    let channel = connection.create_channel().await.expect("a channel");
    let options = QueueDeclareOptions { auto_delete: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.as_str().into(), options, FieldTable::default()).await.expect("declared");
    for body in ["one", "poison", "two"] {
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        let key = queue.as_str().into();
        channel.basic_publish("".into(), key, options, body.as_bytes(), properties).await.expect("sent");
    }

    let (handler, stop) = (PanickingHandler::default(), CancellationToken::new());
    let panics = Arc::new(AtomicUsize::new(0));
    let note_panic = {
        let panics = panics.clone();
        move |reason: &str| {
            assert!(reason.contains("a bug on purpose"), "{reason}");
            panics.fetch_add(1, Ordering::SeqCst);
        }
    };
    let consumer = tokio::spawn(consume(broker, queue.clone(), Arc::new(handler.clone()), note_panic, stop.clone()));
    let dead_letter = wait::eventually("the dead letter", async || {
        let page = server.store.dead_letters(&Default::default()).await.expect("the query succeeds");
        page.rows.into_iter().next()
    })
    .await;
    assert!(dead_letter.reason.starts_with("panicking panicked on it: a bug on purpose"), "{}", dead_letter.reason);
    wait::eventually("the other messages", async || {
        (handler.stored.lock().expect("the mutex is not poisoned").len() == 2).then_some(())
    })
    .await;
    stop.cancel();
    consumer.await.expect("the consumer survives");
    let panics = panics.load(Ordering::SeqCst);
    assert!((3..=4).contains(&panics), "three on the message, and one if it arrived with others: {panics}");
    server.stop().await;
}
