//! Duplicate deliveries after the claim in Redis was lost.

use lapin::{
    BasicProperties, Connection, ConnectionProperties,
    options::{BasicPublishOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use milvaion_protocol::{
    message::{ClaimDenial, ClaimRequest},
    status::OccurrenceStatus,
    topology::{HEADER_REPUBLISH, RedisKeys, Topology},
};
use milvaion_schedule::{rules::Rules, schedule::Schedule};
use milvaion_server::{clock::Clock, ingest::claims::ClaimConsumer, live::Hub};
use milvaion_test_support::{database, jobs, manual_clock::ManualClockHarness, messages, runs, wait};

#[tokio::test]
async fn duplicate_delivery_without_claim_is_not_started() {
    let harness = ManualClockHarness::open().await;
    let now = harness.clock.now();
    let job = harness.job(Schedule::once(now), Rules::default(), Some(now)).await;
    let id = harness.starts(1).await[0];
    harness.becomes(job, id, OccurrenceStatus::Running).await;

    let mut redis = redis::Client::open(harness.config.cache.url.as_str())
        .expect("a valid URL")
        .get_multiplexed_async_connection()
        .await
        .expect("Redis responds");
    let claim = RedisKeys::new(harness.config.cache.key_prefix.as_str()).running(id);
    let deleted: i64 = redis::cmd("DEL").arg(claim).query_async(&mut redis).await.expect("Redis responds");
    assert_eq!(deleted, 1, "the worker had claimed the occurrence");

    let topology = Topology::new(harness.config.broker.prefix.as_str());
    let connection = Connection::connect(&harness.config.broker.url, ConnectionProperties::default())
        .await
        .expect("the broker responds");
    let channel = connection.create_channel().await.expect("a channel");
    let copy = messages::job_message(id, "echo", serde_json::json!({ "say": "hello" }), now);
    let mut headers = FieldTable::default();
    headers.insert(HEADER_REPUBLISH.into(), AMQPValue::LongInt(1));
    let (exchange, key) = (topology.jobs_exchange(), Topology::routing_key("w", "echo", id));
    let body = serde_json::to_vec(&copy).expect("a message can be serialized");
    let properties = BasicProperties::default().with_headers(headers);
    // The instance that runs the occurrence recognizes a duplicate without the server. Of two copies, the other instance
    // receives one.
    let queue = topology.job_queue("w", "echo");
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let queue_state = async || {
        channel.queue_declare(queue.as_str().into(), passive, FieldTable::default()).await.expect("the queue exists")
    };
    harness.start_worker();
    wait::eventually("two consumers", async || (queue_state().await.consumer_count() == 2).then_some(())).await;
    for _ in 0..2 {
        let (exchange, key) = (exchange.as_str().into(), key.as_str().into());
        let options = BasicPublishOptions::default();
        channel.basic_publish(exchange, key, options, &body, properties.clone()).await.expect("sent");
    }
    wait::eventually("the delivery of both copies", async || (queue_state().await.message_count() == 0).then_some(()))
        .await;
    harness.gate.complete_one();
    harness.becomes(job, id, OccurrenceStatus::Completed).await;
    let gate = harness.gate.clone();

    let (hub, _) = Hub::new();
    let claims = ClaimConsumer { store: harness.server.store.clone(), hub, clock: harness.clock.clone() };
    let request = ClaimRequest { occurrence_id: id, attempt: 1, instance_id: "w-2".into(), starts_at: None };
    let unknown = ClaimRequest { occurrence_id: harness.clock.occurrence_id(), ..request.clone() };
    let replies = claims.answer(vec![request, unknown]).await.expect("the query succeeds");
    assert_eq!(
        replies.iter().map(|reply| reply.reason).collect::<Vec<_>>(),
        [Some(ClaimDenial::Ended), Some(ClaimDenial::Unknown)]
    );
    harness.close().await;
    // With the consumers gone, an unacknowledged message would be back in the queue.
    wait::eventually("the end of both consumers", async || (queue_state().await.consumer_count() == 0).then_some(()))
        .await;
    assert_eq!(queue_state().await.message_count(), 0);
    assert_eq!(gate.started(), [id]);
}

#[tokio::test]
async fn start_without_a_claim_is_recorded_before_it_is_granted() {
    let (store, clock) = (database::fresh().await, Clock::system());
    let (hub, mut events) = Hub::new();
    let claims = ClaimConsumer { store: store.clone(), hub, clock: clock.clone() };
    let job_id = jobs::insert(&store, &clock, Schedule::Manual, None).await;
    let [first, second] =
        [runs::insert_manual(&store, &clock, job_id).await, runs::insert_manual(&store, &clock, job_id).await];
    let ask = |id, instance: &str, starts: bool| ClaimRequest {
        occurrence_id: id,
        attempt: 1,
        instance_id: instance.into(),
        starts_at: starts.then(|| clock.now()),
    };
    let answer = async |requests: Vec<ClaimRequest>| {
        let replies = claims.answer(requests).await.expect("the queries succeed");
        replies.into_iter().map(|reply| (reply.granted, reply.by)).collect::<Vec<_>>()
    };
    let (granted, denied) = (|| (true, None), |by: &str| (false, Some(by.to_owned())));
    assert_eq!(answer(vec![ask(first, "w-a", false)]).await, [granted()]);
    assert_eq!(answer(vec![ask(first, "w-b", false)]).await, [granted()], "nothing has started");
    // The worker announces a start and dies. Its message is redelivered to another one.
    let announcement = ask(first, "w-a", true);
    assert_eq!(answer(vec![announcement.clone()]).await, [granted()]);
    assert!(events.try_recv().is_ok(), "open pages show the start");
    // The same announcement is redelivered to another server. Any other question of the same instance is about a second
    // delivery, and a grant would be a second start.
    assert_eq!(answer(vec![ask(first, "w-b", false), announcement]).await, [denied("w-a"), granted()]);
    assert_eq!(answer(vec![ask(first, "w-a", false)]).await, [denied("w-a")]);
    assert_eq!(answer(vec![ask(first, "w-b", true)]).await, [denied("w-a")]);
    // Two announcements in one batch: the first counts, also if the second names an earlier start.
    let earlier = ask(second, "w-a", true);
    assert_eq!(answer(vec![ask(second, "w-b", true), earlier]).await, [granted(), denied("w-b")]);
    let view = store.occurrence(second, 1, clock.now()).await.expect("the query succeeds").expect("it exists");
    assert_eq!((view.row.status, view.row.instance_id.as_deref()), (OccurrenceStatus::Running, Some("w-b")));
    assert_eq!(view.changes.len(), 2);
}
