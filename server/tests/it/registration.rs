//! Registrations, heartbeats and goodbyes, which are stored in batches.

use milvaion_api::views::{InstanceState, InstanceView};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{InstanceHeartbeat, JobTypeInfo, PriorityLoad, RegistrationMessage},
};
use milvaion_server::{
    broker::consumer::BatchHandler, clock::Clock, ingest::registration::RegistrationConsumer, live::Hub, store::Store,
};
use milvaion_test_support::{
    database::{self, TestConnection},
    manual_clock::ManualClockHarness,
    messages,
};

struct Harness {
    consumer: RegistrationConsumer,
    store: Store,
    clock: Clock,
    url: String,
}

impl Harness {
    async fn new() -> Self {
        let url = database::create().await;
        let (store, clock) = (database::open(&url).await, Clock::system());
        let (hub, _events) = Hub::new();
        let consumer = RegistrationConsumer { store: store.clone(), hub, clock: clock.clone() };
        Self { consumer, store, clock, url }
    }

    async fn handle(&self, messages: &[RegistrationMessage]) {
        let bodies = messages.iter().map(|message| serde_json::to_vec(message).expect("JSON")).collect();
        self.consumer.handle(bodies).await.expect("the batch is stored");
    }

    fn hello(&self, instance: &str, job_types: usize) -> RegistrationMessage {
        let mut hello = messages::hello(instance, self.clock.now());
        hello.critical_slots = 2;
        hello.job_types = (0..job_types)
            .map(|number| JobTypeInfo {
                timeout_seconds: (number == 0).then_some(60),
                ..messages::job_type(&format!("type-{number}"))
            })
            .collect();
        RegistrationMessage::Hello(hello)
    }

    fn heartbeat(&self, instance: &str, running: Vec<OccurrenceId>) -> RegistrationMessage {
        let notice = Some(format!("notice of {instance}"));
        RegistrationMessage::Heartbeat(InstanceHeartbeat {
            notice,
            priorities: [9, 5].map(|priority| PriorityLoad { priority, running: 1, waiting: 2 }).into(),
            ..messages::heartbeat(instance, &running, self.clock.now())
        })
    }

    async fn instance(&self, id: &str) -> InstanceView {
        let now = self.clock.now();
        let workers = self.store.workers(now - chrono::Duration::days(1), now).await.expect("the query succeeds");
        let instances = workers.into_iter().flat_map(|worker| worker.instances);
        instances.into_iter().find(|instance| instance.id == id).expect("it is registered")
    }
}

fn goodbye(instance: &str) -> RegistrationMessage {
    RegistrationMessage::Goodbye { instance_id: instance.into() }
}

/// Registers `instances` instances in one batch, and counts the statements.
async fn register_in_one_batch(instances: usize) {
    const JOB_TYPES: usize = 10;
    let harness = Harness::new().await;
    harness.handle(&[harness.hello("first", 1)]).await;
    let mut database = TestConnection::open(&harness.url).await;
    database.execute("CREATE TABLE statements (number bigserial, name text)".to_owned()).await;
    database
        .execute(
            "CREATE FUNCTION note_statement() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN INSERT INTO statements (name) VALUES (TG_TABLE_NAME); RETURN NULL; END $$"
                .to_owned(),
        )
        .await;
    for table in ["workers", "worker_instances", "worker_job_types", "instance_job_types"] {
        for operation in ["INSERT", "UPDATE", "DELETE"] {
            let trigger = format!(
                "CREATE TRIGGER note_{operation} BEFORE {operation} ON {table} FOR EACH STATEMENT
                 EXECUTE FUNCTION note_statement()"
            );
            database.execute(trigger).await;
        }
    }

    let mut messages: Vec<_> = (0..instances).map(|number| harness.hello(&format!("w-{number}"), JOB_TYPES)).collect();
    let running = vec![harness.clock.occurrence_id(), harness.clock.occurrence_id()];
    messages.extend((0..instances).map(|number| harness.heartbeat(&format!("w-{number}"), running.clone())));
    messages.push(harness.heartbeat("first", running));
    harness.handle(&messages).await;

    let count = async |database: &mut TestConnection, sql: &str| database.count(sql).await;
    let statements = count(&mut database, "SELECT count(*) FROM statements").await;
    // An upsert counts as an insert and an update, and a registration of a thousand instances is two transactions.
    assert!(statements < 30, "{statements} statements");
    let updated = "SELECT count(*) FROM worker_instances WHERE running = 2 AND cardinality(running_ids) = 2";
    assert_eq!(count(&mut database, updated).await, 1 + i64::try_from(instances).expect("a small number"));
    let offered = i64::try_from(instances * JOB_TYPES).expect("a small number");
    assert_eq!(count(&mut database, "SELECT count(*) FROM instance_job_types").await, 1 + offered);
    assert_eq!(count(&mut database, "SELECT count(*) FROM worker_job_types").await, 10);
    let first = "SELECT count(*) FROM statements WHERE number = 1 AND name = 'worker_instances'";
    assert_eq!(count(&mut database, first).await, 1, "heartbeats of registered instances come first");
    let noticed = "SELECT count(*) FROM worker_instances WHERE notice = 'notice of ' || id";
    assert_eq!(count(&mut database, noticed).await, 1 + i64::try_from(instances).expect("a small number"));
}

#[tokio::test]
async fn registrations_are_stored_with_few_statements() {
    register_in_one_batch(100).await;
}

#[tokio::test]
async fn messages_of_an_instance_keep_their_order() {
    let harness = Harness::new().await;
    let running = vec![harness.clock.occurrence_id()];
    harness
        .handle(&[
            harness.hello("stops", 2),
            harness.heartbeat("stops", running.clone()),
            harness.hello("lives", 2),
            harness.heartbeat("lives", Vec::new()),
            harness.heartbeat("lives", running.clone()),
            goodbye("stops"),
            harness.heartbeat("stranger", running.clone()),
        ])
        .await;
    let (stops, lives) = (harness.instance("stops").await, harness.instance("lives").await);
    assert_eq!((stops.state, lives.state), (InstanceState::Gone, InstanceState::Active));
    assert!(stops.stopped_at.is_some() && lives.stopped_at.is_none());
    assert_eq!((stops.running, stops.critical_slots, stops.priorities), (0, 0, Vec::new()));
    assert_eq!(lives.running, 1, "the last heartbeat counts");
    let load = PriorityLoad { priority: 5, running: 1, waiting: 2 };
    assert_eq!((lives.critical_slots, lives.priorities), (2, vec![load]), "without a priority that does not exist");
    let three_hours_ago = harness.clock.now() - chrono::Duration::hours(3);
    for (sent, is_shown) in [(three_hours_ago, true), (harness.clock.now(), false)] {
        harness.handle(&[RegistrationMessage::Heartbeat(messages::heartbeat("lives", &running, sent))]).await;
        let notice = harness.instance("lives").await.notice;
        assert_eq!(notice.is_some_and(|text| text.contains("more than an hour behind")), is_shown, "its clock");
    }

    harness.handle(&[goodbye("lives"), harness.hello("lives", 1), goodbye("stops")]).await;
    let lives = harness.instance("lives").await;
    assert_eq!((lives.state, lives.running), (InstanceState::Active, 0), "it has started again, without runs");
    assert!(lives.priorities.is_empty());
    harness.handle(&[harness.hello("lives", 1), harness.heartbeat("lives", running), goodbye("lives")]).await;
    assert_eq!(harness.instance("lives").await.state, InstanceState::Gone);
    let mut database = TestConnection::open(&harness.url).await;
    let offered = "SELECT count(*) FROM instance_job_types WHERE instance_id = 'lives'";
    assert_eq!(database.count(offered).await, 1, "the last registration counts");
}

#[tokio::test]
async fn refused_registration_does_not_affect_its_batch() {
    let harness = Harness::new().await;
    let RegistrationMessage::Hello(mut invalid) = harness.hello("invalid", 1) else { unreachable!("a hello") };
    invalid.job_types[0].job_type = "not a name".into();
    // Its name is valid for the protocol, but not for PostgreSQL.
    let nul = harness.heartbeat("nul\0", Vec::new());
    harness.handle(&[RegistrationMessage::Hello(invalid), harness.hello("valid", 1)]).await;
    assert_eq!(harness.instance("valid").await.state, InstanceState::Active);
    let body = serde_json::to_vec(&nul).expect("JSON");
    let error = harness.consumer.handle(vec![body]).await.expect_err("it can never be stored");
    assert!(!RegistrationConsumer::is_retryable(&error), "{error}");
}

#[tokio::test]
async fn registration_is_answered_after_it_was_stored() {
    use futures::StreamExt;
    use lapin::{BasicProperties, Connection, ConnectionProperties, options::BasicConsumeOptions, types::FieldTable};
    use milvaion_protocol::{message::HelloReply, topology::Topology};

    let harness = ManualClockHarness::open().await;
    let connection = Connection::connect(&harness.config.broker.url, ConnectionProperties::default())
        .await
        .expect("the broker responds");
    let channel = connection.create_channel().await.expect("a channel");
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let reply_to = "amq.rabbitmq.reply-to";
    let mut replies =
        channel.basic_consume(reply_to.into(), "".into(), options, FieldTable::default()).await.expect("a consumer");
    let now = harness.clock.now();
    let mut hello = messages::hello("answered", now);
    hello.job_types = vec![messages::job_type("good"), messages::job_type("not a name")];
    let body = serde_json::to_vec(&RegistrationMessage::Hello(hello)).expect("JSON");
    let names = Topology::new(harness.config.broker.prefix.as_str());
    // As a worker does, because a message to an exchange whose queue the server has not bound yet is dropped.
    milvaion_server::broker::topology::declare(&channel, &names).await.expect("declared");
    let name = names.registration();
    let properties = BasicProperties::default().with_reply_to(reply_to.into()).with_correlation_id("7".into());
    channel
        .basic_publish(name.as_str().into(), name.as_str().into(), Default::default(), &body, properties)
        .await
        .expect("sent");
    let reply = tokio::time::timeout(std::time::Duration::from_secs(20), replies.next()).await.expect("in time");
    let reply = reply.expect("a reply").expect("a delivery");
    assert_eq!(reply.properties.correlation_id().as_ref().map(|id| id.as_str()), Some("7"));
    let answer: HelloReply = serde_json::from_slice(&reply.data).expect("a reply to a hello");
    assert!(answer.accepted && answer.features.iter().any(|feature| feature == "claims"));
    assert_eq!(answer.problems.len(), 1);
    assert_eq!(answer.problems[0].job_type.as_deref(), Some("not a name"));
    let workers = harness.server.store.workers(now - chrono::Duration::days(1), now).await.expect("the query succeeds");
    let stored = workers.iter().flat_map(|worker| &worker.instances).find(|instance| instance.id == "answered");
    assert_eq!(stored.expect("it is stored").problems.len(), 1);
    harness.close().await;
}

mod exhaustive {
    use super::*;

    #[tokio::test]
    async fn thousand_registrations_are_stored_with_few_statements() {
        register_in_one_batch(1_000).await;
    }
}
