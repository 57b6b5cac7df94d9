//! The permissions on the protocol page: a worker with exactly these runs, and they allow nothing beside.

use milvaion_protocol::{id::OccurrenceId, topology::Topology};
use milvaion_test_support::{
    broker_env::{CountingJob, WorkerTestEnv, is_one_completed_run, no_input},
    private_service::PrivateService,
    wait::until,
};

const PAGE: &str = include_str!("../../../../docs/protocol/README.md");

/// Returns the three patterns of the command on the page.
fn broker_permissions() -> [&'static str; 3] {
    let (_, block) = PAGE.split_once("rabbitmqctl set_permissions -p / mail").expect("the page has the command");
    let (block, _) = block.split_once("```").expect("the block ends");
    let patterns: Vec<&str> = block.split('\'').skip(1).step_by(2).collect();
    patterns.try_into().expect("three patterns")
}

/// Returns the arguments of the command for Redis on the page.
fn redis_rules() -> Vec<&'static str> {
    let (_, line) = PAGE.split_once("ACL SETUSER mail ").expect("the page has the command");
    line.lines().next().expect("a line").split_whitespace().collect()
}

/// Returns a URL with the account of the worker.
fn signed_in(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").expect("a URL");
    let (_, address) = rest.rsplit_once('@').expect("an account");
    format!("{scheme}://mail:password@{address}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_needs_only_the_permissions_of_the_page() {
    let broker = PrivateService::rabbitmq().await.expect("RabbitMQ starts");
    let private_redis = PrivateService::redis().await.expect("Redis starts");
    broker.create_account("mail", "password", broker_permissions()).await.expect("the account is created");
    let client = redis::Client::open(private_redis.url()).expect("a valid URL");
    let mut admin = client.get_multiplexed_async_connection().await.expect("Redis responds");
    let mut setting = redis::cmd("ACL");
    setting.arg("SETUSER").arg("mail").arg(redis_rules());
    setting.query_async::<()>(&mut admin).await.expect("the account is created");

    let mut env = WorkerTestEnv::on(
        broker.url().to_owned(),
        private_redis.url().to_owned(),
        "milvaion",
        "Milvaion:JobScheduler:",
    )
    .await;
    let (amqp_url, redis_url) = (signed_in(broker.url()), signed_in(private_redis.url()));
    env.worker_id = "mail".to_owned();
    env.sign_in_with(amqp_url.clone(), redis_url.clone());
    let counter = CountingJob::new(true);
    let worker = env.start(env.worker().critical_slots(1).job(counter.clone()), "count").await;
    let critical_queue = env.topology.critical_queue("mail", "count");
    until("a consumer of critical runs", async || env.queue(&critical_queue).await == Some((0, 1))).await;
    let (first, copy) = (env.message("count", no_input()), env.message("count", no_input()));
    env.publish(&first).await;
    // A possible duplicate, so that the worker sends a claim check.
    env.republish(&copy).await;
    for message in [&first, &copy] {
        assert!(is_one_completed_run(&env.ended(message.occurrence_id).await));
        until("the mark of the end", async || env.claimed(message.occurrence_id).await.as_deref() == Some("done:1"))
            .await;
    }
    assert!(env.claim_server().has_request_for(copy.occurrence_id));
    env.publish_raw("mail.count.x", b"not JSON").await;
    let dead_letters = env.topology.dead_letter_queue();
    until("a dead letter", async || env.queue(&dead_letters).await == Some((1, 0))).await;
    // Cancellation, over the channel.
    let closed = CountingJob::new(false);
    worker.stop().await;
    let worker = env.start(env.worker().job(closed.clone()), "count").await;
    let cancelled = env.message("count", no_input());
    env.publish(&cancelled).await;
    until("the start", async || closed.runs() == 1).await;
    until("a subscriber", async || env.publish_cancel_request(cancelled.occurrence_id, "test").await > 0).await;
    env.ended(cancelled.occurrence_id).await;
    worker.stop().await;

    assert_eq!(publish_job(&amqp_url).await, Err("ACCESS_REFUSED"), "it creates no job messages");
    let client = redis::Client::open(redis_url).expect("a valid URL");
    let mut mail = client.get_multiplexed_async_connection().await.expect("Redis responds");
    let read = redis::cmd("GET").arg("Milvaion:JobScheduler:schedule").query_async::<Option<String>>(&mut mail).await;
    assert_eq!(read.expect_err("the key is of the server").code(), Some("NOPERM"));
    broker.close().await.expect("it stops");
    private_redis.close().await.expect("it stops");
}

/// Publishes a job message with the account of a worker. Returns the refusal of the broker.
async fn publish_job(url: &str) -> Result<(), &'static str> {
    use lapin::{Connection, ConnectionProperties, options::ConfirmSelectOptions};
    let connection = Connection::connect(url, ConnectionProperties::default()).await.expect("the broker responds");
    let channel = connection.create_channel().await.expect("a channel");
    channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
    let key = Topology::routing_key("mail", "count", OccurrenceId::default());
    let (exchange, key) = (Topology::default().jobs_exchange(), key);
    let published = async {
        channel
            .basic_publish(exchange.as_str().into(), key.as_str().into(), Default::default(), b"{}", Default::default())
            .await?
            .await
    };
    match published.await {
        Ok(_) => Ok(()),
        Err(error) if error.to_string().contains("ACCESS_REFUSED") => Err("ACCESS_REFUSED"),
        Err(_) => Err("another error"),
    }
}
