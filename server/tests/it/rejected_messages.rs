//! What cannot be stored: because of what it is, and then it is let go alone; or not here and now, and then another
//! server gets it.

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
    store::{Store, manual_runs::NewManualRun},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use milvaion_test_support::{self as common, stack};

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
    let job_id = common::insert(store, clock, Schedule::Manual, None).await;
    let asked = NewManualRun { id: clock.occurrence_id(), job_id, by: "test".into(), ..NewManualRun::default() };
    store.insert_manual_run(&asked, clock.now()).await.expect("answered").into_created().expect("made");
    asked.id
}

#[tokio::test]
async fn a_report_that_can_never_be_stored_takes_no_other_with_it() {
    let (store, _) = common::database().await;
    let clock = Clock::system();
    let (hub, _events) = Hub::new();
    let intake = StatusConsumer { store: store.clone(), activators: Activators::default(), hub, clock: clock.clone() };
    let [nul, strange, ancient, good] = [
        queued(&store, &clock).await,
        queued(&store, &clock).await,
        queued(&store, &clock).await,
        queued(&store, &clock).await,
    ];
    let reports = [
        report(nul, 1, &json!({"progress": {"percent": 250, "message": "a\u{0}b"}, "instanceId": "w\u{0}1"})),
        report(strange, 2, &json!({"durationMs": 12.5})),
        report(ancient, 1, &json!({"timestamp": "-4800-01-01T00:00:00Z"})),
        report(good, 2, &json!({})),
    ];
    let body = json!({ "reports": reports }).to_string().into_bytes();
    intake.handle(vec![b"no JSON".to_vec(), body]).await.expect("nothing is to come again");
    let view = async |id| store.occurrence(id, 1, clock.now()).await.expect("answered").expect("there");
    let told = view(nul).await;
    let progress = told.row.progress.expect("told");
    assert_eq!((told.row.status, progress.percent, progress.message.as_str()), (Running, 100, "a\u{fffd}b"));
    assert_eq!(told.row.instance_id.as_deref(), Some("w\u{fffd}1"));
    assert_eq!(view(strange).await.row.status, Queued);
    assert_eq!(view(ancient).await.row.status, Queued);
    assert_eq!(view(good).await.row.status, Completed);
}

#[tokio::test]
async fn a_flood_is_stored_in_several_statements_and_comes_again_without_harm() {
    let (store, _) = common::database().await;
    let clock = Clock::system();
    let (hub, _events) = Hub::new();
    let intake = StatusConsumer { store: store.clone(), activators: Activators::default(), hub, clock: clock.clone() };
    let [good, ancient] = [queued(&store, &clock).await, queued(&store, &clock).await];
    // Its start in the first statement, its end in the second, beside one that can never be stored.
    let strangers = (0..4_999).map(|_| report(clock.occurrence_id(), 1, &json!({})));
    let reports: Vec<Value> = std::iter::once(report(good, 1, &json!({})))
        .chain(strangers)
        .chain([report(ancient, 1, &json!({"timestamp": "-4800-01-01T00:00:00Z"})), report(good, 2, &json!({}))])
        .collect();
    let bodies: Vec<Vec<u8>> =
        reports.chunks(400).map(|some| json!({ "reports": some }).to_string().into_bytes()).collect();
    let view = async |id| store.occurrence(id, 1, clock.now()).await.expect("answered").expect("there");
    intake.handle(bodies.clone()).await.expect("nothing is to come again");
    let told = view(good).await;
    assert_eq!((told.row.status, told.changes.len()), (Completed, 3));
    assert_eq!(view(ancient).await.row.status, Queued);
    intake.handle(bodies).await.expect("nothing is to come again");
    assert_eq!(view(good).await.row.version, told.row.version, "a second time changes nothing");
}

/// Takes what it is given, or has a database that it cannot reach, or stumbles over certain bodies.
#[derive(Clone, Default)]
struct CountingHandler {
    asked: Arc<AtomicUsize>,
    taken: Arc<std::sync::Mutex<Vec<Vec<u8>>>>,
    is_cut_off: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("never")]
struct PermanentError;

impl BatchHandler for CountingHandler {
    const NAME: &'static str = "taker";

    fn is_retryable(error: &anyhow::Error) -> bool {
        !error.is::<PermanentError>()
    }

    async fn handle(&self, bodies: Vec<Vec<u8>>) -> anyhow::Result<()> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        anyhow::ensure!(!self.is_cut_off, "cut off");
        if bodies.iter().any(|body| body == b"bad") {
            return Err(PermanentError.into());
        }
        self.taken.lock().expect("alive").extend(bodies);
        Ok(())
    }
}

#[tokio::test]
async fn a_batch_that_cannot_be_stored_here_goes_to_another_server_and_what_never_can_is_let_go() {
    let config = stack::config().await;
    let broker = || Broker::new(&config.broker).expect("a URL");
    let queue = broker().topology().status();
    let stop = CancellationToken::new();
    let deaf = CountingHandler { is_cut_off: true, ..CountingHandler::default() };
    let first = tokio::spawn(consume(broker(), queue.clone(), deaf.clone(), stop.clone()));
    let connection = Connection::connect(&config.broker.url, ConnectionProperties::default()).await.expect("connected");
    let channel = connection.create_channel().await.expect("a channel");
    stack::eventually("the queue", || async {
        let look = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let channel = connection.create_channel().await.expect("a channel");
        channel.queue_declare(queue.as_str().into(), look, FieldTable::default()).await.ok()
    })
    .await;
    for body in ["one", "bad", "two"] {
        let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
        channel
            .basic_publish("".into(), queue.as_str().into(), options, body.as_bytes(), properties)
            .await
            .expect("sent");
    }
    stack::eventually("the first one has them", || async { (deaf.asked.load(Ordering::SeqCst) > 0).then_some(()) })
        .await;

    let other = CountingHandler::default();
    let second = tokio::spawn(consume(broker(), queue.clone(), other.clone(), stop.clone()));
    stack::eventually("the second one takes them", || async {
        let taken: std::collections::BTreeSet<_> = other.taken.lock().expect("alive").iter().cloned().collect();
        (taken.len() == 2).then_some(())
    })
    .await;
    assert!(deaf.taken.lock().expect("alive").is_empty());
    stop.cancel();
    for task in [first, second] {
        task.await.expect("no panic");
    }
    let look = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let left = channel.queue_declare(queue.as_str().into(), look, FieldTable::default()).await.expect("there");
    assert_eq!(left.message_count(), 0, "the bad one is not kept");
}
