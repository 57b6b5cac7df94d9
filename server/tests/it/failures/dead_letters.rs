//! A dead letter fails its occurrence, or is stored for the dashboard.

use lapin::{
    BasicProperties, Channel, Connection as Amqp, ConnectionProperties,
    options::{BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use milvaion_api::failures::{DeadLetterFilter, DeadLetterRow, FailureCause};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{JobBundle, JobMessage},
    status::OccurrenceStatus,
    topology::{BUNDLE_TYPE, HEADER_CAUSE, HEADER_CORRELATION_ID, HEADER_REPUBLISH, Topology},
};
use milvaion_server::{
    broker::raw_message::RawMessage,
    clock::Clock,
    domain::message::MESSAGE_ID_KEY,
    domain::message::{QueuedRun, message},
    ingest::dead_letters::DeadLetterConsumer,
    lifecycle::Server,
};
use milvaion_test_support::{database::TestConnection, jobs, runs, wait};
use serde_json::{Value, json};

use super::harness::{harness, queued, report};

async fn report_now(server: &Server, id: OccurrenceId, status: OccurrenceStatus) {
    report(server, id, status, None, 0).await;
}

fn job_message(id: OccurrenceId, clock: &Clock) -> JobMessage {
    let queued = QueuedRun {
        id,
        job_name: "x".into(),
        worker_id: "w".into(),
        job_type: "echo".into(),
        scheduled_for: clock.now(),
        attempt: 1,
        priority: 3,
        ..QueuedRun::default()
    };
    message(queued, clock.now())
}

fn raw_message(body: Vec<u8>, headers: Value) -> RawMessage {
    RawMessage { body, headers, exchange: "x.dlx".into(), routing_key: "w.echo.1".into() }
}

fn dead_job_message(server: &Server, id: OccurrenceId, headers: Value) -> RawMessage {
    raw_message(serde_json::to_vec(&job_message(id, &server.clock)).expect("it can be serialized"), headers)
}

fn consumer(server: &Server) -> DeadLetterConsumer {
    DeadLetterConsumer {
        store: server.store.clone(),
        hub: server.hub.clone(),
        clock: server.clock.clone(),
        sender: server.jobs.sender.clone(),
        activate_slot_granter: Default::default(),
        activate_auto_disable: Default::default(),
    }
}

async fn status(server: &Server, id: OccurrenceId) -> OccurrenceStatus {
    server.store.occurrence_status(id).await.expect("the query succeeds").expect("it exists").0
}

async fn stored(server: &Server) -> Vec<DeadLetterRow> {
    server.store.dead_letters(&DeadLetterFilter::default()).await.expect("the query succeeds").rows
}

/// Waits until a message with the mark of a republished one has arrived in a job queue. Returns its occurrence. That of
/// `earlier` may have the mark too, if its first message found no queue yet.
async fn republished(channel: &Channel, queue: &str, earlier: OccurrenceId) -> OccurrenceId {
    wait::eventually("a republished message", || async {
        let got = channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await.ok()??.delivery;
        let job: JobMessage = serde_json::from_slice(&got.data).expect("a job message");
        let headers = got.properties.headers().as_ref()?;
        let is_republished = headers.inner().contains_key(HEADER_REPUBLISH) && job.occurrence_id != earlier;
        is_republished.then_some(job.occurrence_id)
    })
    .await
}

fn headers(cause: &str) -> Value {
    json!({ HEADER_CAUSE: cause })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_fail_occurrences_or_are_stored() {
    let (config, server, job) = harness().await;
    let id = queued(&server, job).await;
    let uri = config.broker.url.clone();
    let amqp = Amqp::connect(&uri, ConnectionProperties::default()).await.expect("the broker responds");
    let channel = amqp.create_channel().await.expect("a channel");
    channel.confirm_select(ConfirmSelectOptions::default()).await.expect("publisher confirms");
    let names = Topology::new(config.broker.prefix.clone());
    let send_as = async |body: &[u8], properties: BasicProperties| {
        channel
            .basic_publish(
                names.dead_letter_exchange().into(),
                "w.echo".into(),
                BasicPublishOptions::default(),
                body,
                properties,
            )
            .await
            .expect("the message is sent")
            .await
            .expect("confirmed");
    };
    let send = async |body: &[u8], headers: FieldTable| {
        send_as(body, BasicProperties::default().with_headers(headers)).await;
    };
    let mut poison = FieldTable::default();
    poison.insert(HEADER_CAUSE.into(), AMQPValue::LongString("poison".into()));
    let unknown = job_message(server.clock.occurrence_id(), &server.clock);
    send(b"\x00\xff no json", FieldTable::default()).await;
    send(&vec![b'x'; 100_000], FieldTable::default()).await;
    send(b"", FieldTable::default()).await;
    send(&serde_json::to_vec(&unknown).expect("it can be serialized"), FieldTable::default()).await;
    send(&serde_json::to_vec(&job_message(id, &server.clock)).expect("it can be serialized"), poison.clone()).await;

    assert_eq!(
        runs::ended(&server, id).await.row.status,
        OccurrenceStatus::Failed,
        "the unreadable messages before it do not block it"
    );
    let failure = server.store.failure(id).await.expect("the query succeeds").expect("the failure is recorded");
    assert_eq!((failure.cause, failure.job_id, failure.resolved_at), (FailureCause::Poison, job, None));
    assert_eq!(failure.job_data, json!({"say": "hello"}));
    let rows = stored(&server).await;
    assert_eq!(rows.len(), 4);
    assert!(rows[0].reason.contains("does not exist"), "{}", rows[0].reason);
    assert!(rows.iter().any(|row| row.body_bytes == 100_000 && row.body.len() == 65_536));
    assert!(rows.iter().all(|row| row.source.ends_with("/w.echo") && row.copies == 1));
    wait::eventually("an empty queue", || async {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue =
            channel.queue_declare(names.dead_letter_queue().into(), passive, FieldTable::default()).await.ok()?;
        (queue.message_count() == 0).then_some(())
    })
    .await;

    // A bundle fails nothing, whatever its headers say: what has not started is sent again.
    let (waiting, running) = (queued(&server, job).await, queued(&server, job).await);
    report_now(&server, running, OccurrenceStatus::Running).await;
    let later = JobMessage { attempt: 2, ..job_message(waiting, &server.clock) };
    let runs = vec![job_message(running, &server.clock), unknown, job_message(waiting, &server.clock), later];
    let bundle = serde_json::to_vec(&JobBundle { runs }).expect("it can be serialized");
    let properties = BasicProperties::default().with_type(BUNDLE_TYPE.into()).with_headers(poison);
    for _ in 0..2 {
        send_as(&bundle, properties.clone()).await;
        assert_eq!(republished(&channel, &names.job_queue("w", "echo"), id).await, waiting);
        wait::eventually("its confirm", async || {
            server.store.occurrence(waiting, 1, server.clock.now()).await.ok()??.published_at
        })
        .await;
    }
    assert_eq!(status(&server, running).await, OccurrenceStatus::Running);
    assert_eq!(status(&server, waiting).await, OccurrenceStatus::Queued);
    assert_eq!(stored(&server).await.len(), 4, "it is not stored, and raises no alert");
    let mut connection = TestConnection::open(&config.database.url).await;
    connection.execute("ALTER TABLE runs ADD CONSTRAINT refused CHECK (publish_after IS NULL) NOT VALID").await;
    send_as(&bundle, properties).await;
    let rows = wait::eventually("a stored bundle", async || {
        let rows = stored(&server).await;
        (rows.len() == 5).then_some(rows)
    })
    .await;
    assert_eq!(rows[0].reason, "a bundle whose runs could not be sent again", "it blocks no other dead letter");
    server.stop().await;
}

#[tokio::test]
async fn dead_letter_changes_open_occurrences_only() {
    let (_config, server, job) = harness().await;
    let consumer = consumer(&server);
    let rejected = queued(&server, job).await;
    let death = json!({"x-death": [{"reason": "rejected", "queue": "q.jobs", "count": 1}]});
    for _ in 0..2 {
        consumer.take(&dead_job_message(&server, rejected, death.clone())).await.expect("stored");
    }
    let view = server.store.occurrence(rejected, 1, server.clock.now()).await.expect("the query succeeds");
    let view = view.expect("it exists");
    assert_eq!((view.row.status, view.changes.len()), (OccurrenceStatus::Failed, 2), "the duplicate changed nothing");
    assert_eq!(view.row.note.as_deref(), Some("no worker could take the message: rejected in q.jobs"));
    assert_eq!(
        server.store.failure(rejected).await.expect("the query succeeds").map(|failure| failure.cause),
        Some(FailureCause::Rejected)
    );

    // Failed by its report: the dead letter adds the cause, and the first cause stays.
    let reported = queued(&server, job).await;
    report_now(&server, reported, OccurrenceStatus::TimedOut).await;
    consumer.take(&dead_job_message(&server, reported, headers("exhausted"))).await.expect("stored");
    consumer.take(&dead_job_message(&server, reported, headers("permanent"))).await.expect("stored");
    assert_eq!(status(&server, reported).await, OccurrenceStatus::TimedOut);
    assert_eq!(
        server.store.failure(reported).await.expect("the query succeeds").map(|failure| failure.cause),
        Some(FailureCause::Exhausted)
    );
    assert_eq!(stored(&server).await.len(), 0);

    // A rejected duplicate proves nothing about the run on another worker. A cause that a worker sent does.
    let running = queued(&server, job).await;
    report_now(&server, running, OccurrenceStatus::Running).await;
    consumer.take(&dead_job_message(&server, running, death.clone())).await.expect("stored");
    assert_eq!(status(&server, running).await, OccurrenceStatus::Running);
    assert!(stored(&server).await[0].reason.contains("was Running and is unchanged"));
    consumer.take(&dead_job_message(&server, running, headers("permanent"))).await.expect("stored");
    assert_eq!(status(&server, running).await, OccurrenceStatus::Failed);

    let done = queued(&server, job).await;
    report_now(&server, done, OccurrenceStatus::Completed).await;
    consumer.take(&dead_job_message(&server, done, death)).await.expect("stored");
    assert_eq!(status(&server, done).await, OccurrenceStatus::Completed);
    assert!(server.store.failure(done).await.expect("the query succeeds").is_none());
    server.stop().await;
}

#[tokio::test]
async fn unreadable_dead_letter_names_its_occurrence() {
    let (_config, server, job) = harness().await;
    let consumer = consumer(&server);
    let id = queued(&server, job).await;
    let gone = server.clock.occurrence_id();
    let named = |id: OccurrenceId| json!({ HEADER_CORRELATION_ID: id.to_string() });
    consumer.take(&raw_message(b"{\"occurrenceId\":".to_vec(), named(id))).await.expect("stored");
    consumer.take(&raw_message(b"\xff".to_vec(), named(gone))).await.expect("stored");
    consumer.take(&raw_message(b"\xfe".to_vec(), json!({ MESSAGE_ID_KEY: id.to_string() }))).await.expect("stored");
    consumer.take(&raw_message(b"\xfd".to_vec(), Value::Null)).await.expect("stored");
    // Those of one millisecond are in no order.
    let mut rows: Vec<_> = stored(&server).await.iter().map(|row| (row.occurrence_id, row.occurrence_status)).collect();
    rows.sort_by_key(|(id, _)| *id);
    let open = Some(OccurrenceStatus::Queued);
    assert_eq!(rows, [(None, None), (Some(id), open), (Some(id), open), (Some(gone), None)]);
    assert_eq!(status(&server, id).await, OccurrenceStatus::Queued, "its message is published again");
    server.stop().await;
}

#[tokio::test]
async fn duplicate_dead_letters_are_counted() {
    let (_config, server, _) = harness().await;
    let consumer = consumer(&server);
    for _ in 0..3 {
        consumer.take(&raw_message(b"what?".to_vec(), Value::Null)).await.expect("stored");
    }
    consumer.take(&raw_message(b"what else?".to_vec(), json!({"a": "b"}))).await.expect("stored");
    let rows = stored(&server).await;
    assert_eq!(
        rows.iter().map(|row| (row.body.as_str(), row.copies)).collect::<Vec<_>>(),
        [("what else?", 1), ("what?", 3)]
    );
    let me = jobs::admin();
    let ids = [rows[1].id, rows[1].id, server.clock.dead_letter_id()];
    assert_eq!(server.jobs.resolve_dead_letters(&me, &ids, "noise").await.expect("settled"), 1);
    assert_eq!(server.jobs.resolve_dead_letters(&me, &ids, "noise").await.expect("settled"), 0);
    let open = DeadLetterFilter { resolved: Some(false), ..DeadLetterFilter::default() };
    assert_eq!(server.store.dead_letters(&open).await.expect("the query succeeds").rows.len(), 1);
    let page = DeadLetterFilter { limit: 1, ..DeadLetterFilter::default() };
    let first = server.store.dead_letters(&page).await.expect("the query succeeds");
    let before = first.next.expect("a second page").parse().ok();
    let second = server.store.dead_letters(&DeadLetterFilter { before, ..page }).await.expect("the query succeeds");
    assert_eq!((second.rows[0].resolution_note.as_deref(), second.next), (Some("noise"), None));
    server.stop().await;
}
