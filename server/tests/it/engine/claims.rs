//! A second copy of a message that comes when Redis has forgotten the first.

use lapin::{
    BasicProperties, Connection, ConnectionProperties,
    options::{BasicPublishOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use milvaion_protocol::{
    message::{ClaimDenial, ClaimRequest, JobMessage},
    status::OccurrenceStatus,
    topology::{HEADER_REPUBLISH, RedisKeys, Topology},
};
use milvaion_schedule::{rules::Rules, schedule::Schedule};
use milvaion_server::ingest::claims::ClaimConsumer;

use super::harness::ManualClockHarness;
use milvaion_test_support::stack;

#[tokio::test]
async fn a_copy_is_not_started_though_redis_was_wiped_in_between() {
    let harness = ManualClockHarness::open().await;
    let now = harness.clock.now();
    let job = harness.job(Schedule::Once { at: now }, Rules::default(), Some(now)).await;
    let id = harness.starts(1).await[0];
    harness.becomes(job, id, OccurrenceStatus::Running).await;

    let mut redis = redis::Client::open(harness.config.cache.url.as_str())
        .expect("a valid address")
        .get_multiplexed_async_connection()
        .await
        .expect("Redis answers");
    let claim = RedisKeys::new(harness.config.cache.key_prefix.as_str()).running(id);
    let forgotten: i64 = redis::cmd("DEL").arg(claim).query_async(&mut redis).await.expect("Redis answers");
    assert_eq!(forgotten, 1, "the worker had claimed it");

    let topology = Topology::new(harness.config.broker.prefix.as_str());
    let connection =
        Connection::connect(&harness.config.broker.url, ConnectionProperties::default()).await.expect("answers");
    let channel = connection.create_channel().await.expect("a channel");
    let copy = JobMessage {
        occurrence_id: id,
        job_id: job,
        job_name: "copy".into(),
        job_type: "echo".into(),
        job_data: serde_json::json!({ "say": "hello" }),
        correlation_id: id,
        scheduled_for: now,
        timestamp: now,
        attempt: 1,
        retry_count: 0,
        max_retries: 0,
        timeout_seconds: None,
        priority: 3,
        traceparent: None,
    };
    let mut headers = FieldTable::default();
    headers.insert(HEADER_REPUBLISH.into(), AMQPValue::LongInt(1));
    let (exchange, key) = (topology.jobs_exchange(), Topology::routing_key("w", "echo", id));
    let body = serde_json::to_vec(&copy).expect("plain data");
    let properties = BasicProperties::default().with_headers(headers);
    // The instance that runs it would know its twin by itself; of two copies, one reaches the other instance.
    let queue = topology.job_queue("w", "echo");
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let look = async || {
        channel.queue_declare(queue.as_str().into(), passive, FieldTable::default()).await.expect("the queue is there")
    };
    harness.start_worker();
    stack::eventually("two instances take work", async || (look().await.consumer_count() == 2).then_some(())).await;
    for _ in 0..2 {
        let (exchange, key) = (exchange.as_str().into(), key.as_str().into());
        let options = BasicPublishOptions::default();
        channel.basic_publish(exchange, key, options, &body, properties.clone()).await.expect("sent");
    }
    stack::eventually("both are taken", async || (look().await.message_count() == 0).then_some(())).await;
    harness.gate.let_one_end();
    harness.becomes(job, id, OccurrenceStatus::Completed).await;
    let gate = harness.gate.clone();

    let claims = ClaimConsumer { store: harness.server.store.clone() };
    let request = ClaimRequest { occurrence_id: id, attempt: 1, instance_id: "somebody".into() };
    let unknown = ClaimRequest { occurrence_id: harness.clock.occurrence_id(), ..request.clone() };
    let replies = claims.answer(vec![request, unknown]).await.expect("answered");
    assert_eq!(
        replies.iter().map(|reply| reply.reason).collect::<Vec<_>>(),
        [Some(ClaimDenial::Ended), Some(ClaimDenial::Unknown)]
    );
    harness.close().await;
    // Whatever had not been acknowledged is back by now.
    stack::eventually("both instances are gone", async || (look().await.consumer_count() == 0).then_some(())).await;
    assert_eq!(look().await.message_count(), 0);
    assert_eq!(gate.started(), [id]);
}
