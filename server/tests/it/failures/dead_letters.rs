//! What the dead letter queue holds settles an occurrence, or is kept.

use lapin::{
    BasicProperties, Connection as Amqp, ConnectionProperties,
    options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use milvaion_api::failures::{DeadLetterFilter, DeadLetterRow, FailureCause};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::JobMessage,
    status::OccurrenceStatus,
    topology::{HEADER_CAUSE, Topology},
};
use milvaion_server::{
    broker::raw_message::RawMessage,
    clock::Clock,
    domain::message::{QueuedOccurrence, message},
    ingest::dead_letters::DeadLetterConsumer,
    lifecycle::Server,
};
use serde_json::{Value, json};

use super::harness::{harness, queued, report};
use milvaion_test_support::stack;

/// Tells what a worker would tell.
async fn tell(server: &Server, id: OccurrenceId, status: OccurrenceStatus) {
    report(server, id, status, None, 0).await;
}

fn job_message(id: OccurrenceId, clock: &Clock) -> JobMessage {
    let queued = QueuedOccurrence {
        failures: 0,
        id,
        job_id: JobId::default(),
        job_name: "x".into(),
        worker_id: "w".into(),
        job_type: "echo".into(),
        job_data: Value::Null,
        scheduled_for: clock.now(),
        attempt: 1,
        max_retries: 0,
        priority: 3,
        timeout_seconds: None,
    };
    message(queued, clock.now())
}

fn letter(body: Vec<u8>, headers: Value) -> RawMessage {
    RawMessage { body, headers, exchange: "x.dlx".into(), routing_key: "w.echo.1".into() }
}

fn about(server: &Server, id: OccurrenceId, headers: Value) -> RawMessage {
    letter(serde_json::to_vec(&job_message(id, &server.clock)).expect("writes"), headers)
}

fn intake(server: &Server) -> DeadLetterConsumer {
    DeadLetterConsumer {
        store: server.store.clone(),
        hub: server.hub.clone(),
        clock: server.clock.clone(),
        activate_slot_granter: Default::default(),
        activate_auto_disable: Default::default(),
    }
}

async fn status(server: &Server, id: OccurrenceId) -> OccurrenceStatus {
    server.store.occurrence_status(id).await.expect("answered").expect("there").0
}

async fn kept(server: &Server) -> Vec<DeadLetterRow> {
    server.store.dead_letters(&DeadLetterFilter::default()).await.expect("answered").rows
}

fn headers(cause: &str) -> Value {
    json!({ HEADER_CAUSE: cause })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mv09_every_letter_that_reaches_the_queue_settles_its_occurrence_or_is_kept() {
    let (config, server, job) = harness().await;
    let id = queued(&server, job).await;
    let uri = config.broker.url.clone();
    let amqp = Amqp::connect(&uri, ConnectionProperties::default()).await.expect("the broker answers");
    let channel = amqp.create_channel().await.expect("a channel");
    channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
    let names = Topology::new(config.broker.prefix.clone());
    let send = async |body: &[u8], headers: FieldTable| {
        let properties = BasicProperties::default().with_headers(headers);
        channel
            .basic_publish(
                names.dead_letter_exchange().into(),
                "w.echo".into(),
                BasicPublishOptions::default(),
                body,
                properties,
            )
            .await
            .expect("handed over")
            .await
            .expect("confirmed");
    };
    let mut poison = FieldTable::default();
    poison.insert(HEADER_CAUSE.into(), AMQPValue::LongString("poison".into()));
    let nobody = job_message(server.clock.occurrence_id(), &server.clock);
    send(b"\x00\xff no json", FieldTable::default()).await;
    send(&vec![b'x'; 100_000], FieldTable::default()).await;
    send(b"", FieldTable::default()).await;
    send(&serde_json::to_vec(&nobody).expect("writes"), FieldTable::default()).await;
    send(&serde_json::to_vec(&job_message(id, &server.clock)).expect("writes"), poison).await;

    assert_eq!(stack::ended(&server, id).await.row.status, OccurrenceStatus::Failed, "those before did not hold it up");
    let failure = server.store.failure(id).await.expect("answered").expect("on record");
    assert_eq!((failure.cause, failure.job_id, failure.resolved_at), (FailureCause::Poison, job, None));
    assert_eq!(failure.job_data, json!({"say": "hello"}));
    let kept = kept(&server).await;
    assert_eq!(kept.len(), 4);
    assert!(kept[0].reason.contains("does not exist"), "{}", kept[0].reason);
    assert!(kept.iter().any(|letter| letter.body_bytes == 100_000 && letter.body.len() == 65_536));
    assert!(kept.iter().all(|letter| letter.source.ends_with("/w.echo") && letter.copies == 1));
    stack::eventually("an empty queue", || async {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue =
            channel.queue_declare(names.dead_letter_queue().into(), passive, FieldTable::default()).await.ok()?;
        (queue.message_count() == 0).then_some(())
    })
    .await;
    server.stop().await;
}

#[tokio::test]
async fn a_letter_settles_what_is_open_and_leaves_the_rest_alone() {
    let (_config, server, job) = harness().await;
    let intake = intake(&server);
    let rejected = queued(&server, job).await;
    let death = json!({"x-death": [{"reason": "rejected", "queue": "q.jobs", "count": 1}]});
    for _ in 0..2 {
        intake.take(&about(&server, rejected, death.clone())).await.expect("stored");
    }
    let view = server.store.occurrence(rejected, 1, server.clock.now()).await.expect("answered").expect("there");
    assert_eq!((view.row.status, view.changes.len()), (OccurrenceStatus::Failed, 2), "the copy changed nothing");
    assert_eq!(view.row.note.as_deref(), Some("no worker could take the message: rejected in q.jobs"));
    assert_eq!(
        server.store.failure(rejected).await.expect("answered").map(|one| one.cause),
        Some(FailureCause::Rejected)
    );

    // Failed by its report: the letter adds why it was not tried again, the first one for good.
    let reported = queued(&server, job).await;
    tell(&server, reported, OccurrenceStatus::TimedOut).await;
    intake.take(&about(&server, reported, headers("exhausted"))).await.expect("stored");
    intake.take(&about(&server, reported, headers("permanent"))).await.expect("stored");
    assert_eq!(status(&server, reported).await, OccurrenceStatus::TimedOut);
    assert_eq!(
        server.store.failure(reported).await.expect("answered").map(|one| one.cause),
        Some(FailureCause::Exhausted)
    );
    assert_eq!(kept(&server).await.len(), 0);

    // A copy that was merely rejected says nothing about the run another worker has in hand; what that worker says does.
    let running = queued(&server, job).await;
    tell(&server, running, OccurrenceStatus::Running).await;
    intake.take(&about(&server, running, death.clone())).await.expect("stored");
    assert_eq!(status(&server, running).await, OccurrenceStatus::Running);
    assert!(kept(&server).await[0].reason.contains("was Running and was left alone"));
    intake.take(&about(&server, running, headers("permanent"))).await.expect("stored");
    assert_eq!(status(&server, running).await, OccurrenceStatus::Failed);

    let done = queued(&server, job).await;
    tell(&server, done, OccurrenceStatus::Completed).await;
    intake.take(&about(&server, done, death)).await.expect("stored");
    assert_eq!(status(&server, done).await, OccurrenceStatus::Completed);
    assert!(server.store.failure(done).await.expect("answered").is_none());
    server.stop().await;
}

#[tokio::test]
async fn copies_of_a_letter_are_counted_and_settled_as_one() {
    let (_config, server, _) = harness().await;
    let intake = intake(&server);
    for _ in 0..3 {
        intake.take(&letter(b"what?".to_vec(), Value::Null)).await.expect("stored");
    }
    intake.take(&letter(b"what else?".to_vec(), json!({"a": "b"}))).await.expect("stored");
    let rows = kept(&server).await;
    assert_eq!(
        rows.iter().map(|row| (row.body.as_str(), row.copies)).collect::<Vec<_>>(),
        [("what else?", 1), ("what?", 3)]
    );
    let me = stack::admin();
    let ids = [rows[1].id, rows[1].id, server.clock.dead_letter_id()];
    assert_eq!(server.jobs.resolve_dead_letters(&me, &ids, "noise").await.expect("settled"), 1);
    assert_eq!(server.jobs.resolve_dead_letters(&me, &ids, "noise").await.expect("settled"), 0);
    let open = DeadLetterFilter { resolved: Some(false), ..DeadLetterFilter::default() };
    assert_eq!(server.store.dead_letters(&open).await.expect("answered").rows.len(), 1);
    let page = DeadLetterFilter { limit: 1, ..DeadLetterFilter::default() };
    let first = server.store.dead_letters(&page).await.expect("answered");
    let before = first.next.expect("more").parse().ok();
    let second = server.store.dead_letters(&DeadLetterFilter { before, ..page }).await.expect("answered");
    assert_eq!((second.rows[0].resolution_note.as_deref(), second.next), (Some("noise"), None));
    server.stop().await;
}
