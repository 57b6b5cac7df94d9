//! Messages that the broker lost: all of them are found, in any number, and beside any number of others.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use lapin::{Channel, options::BasicQosOptions, types::FieldTable};
use milvaion_protocol::message::JobTypeInfo;
use milvaion_server::{
    background::lost_messages::{LostMessageDetector, LostMessageReport},
    broker::{Broker, queue_probe::QueueProbe},
    clock::{Clock, machine_now},
    engine::{Service, leadership::Leadership},
};
use milvaion_test_support::{
    database::{self, TestConnection},
    messages, runs, server_env,
};
use tokio::sync::{Mutex, Notify, watch};

/// The time for which an occurrence may wait before its message is checked.
const REQUEUE_AFTER: Duration = Duration::from_secs(60);

/// A detector on a clock that only the test advances, and no worker.
struct Harness {
    clock: Clock,
    detector: LostMessageDetector,
    connection: Mutex<TestConnection>,
    _leads: watch::Sender<Leadership>,
}

impl Harness {
    async fn new() -> Self {
        let config = server_env::config().await;
        let store = database::open(&config.database.url).await;
        let connection = Mutex::new(TestConnection::open(&config.database.url).await);
        let clock = Clock::manual(machine_now());
        let broker = Broker::new(&config.broker).expect("a valid URL");
        let (leads, leadership) = watch::channel(Leadership::Leaderless);
        let detector = LostMessageDetector {
            store,
            probe: QueueProbe::new(broker.clone()),
            broker,
            clock: clock.clone(),
            leadership,
            requeue_after: REQUEUE_AFTER,
            activate_republisher: Arc::<Notify>::default(),
            earlier: None,
        };
        Self { clock, detector, connection, _leads: leads }
    }

    async fn tick(&mut self) -> LostMessageReport {
        self.detector.tick().await.expect("the tick succeeds")
    }

    async fn execute(&self, statement: &str) {
        self.connection.lock().await.execute(statement).await;
    }

    /// Inserts queued occurrences, of which the broker has confirmed the messages some seconds ago: `count` for each of
    /// `queues` job types.
    async fn insert(&self, queues: u32, count: u32, seconds_ago: i64) {
        let at = (self.clock.now() - chrono::Duration::seconds(seconds_ago)).to_rfc3339();
        self.execute(&format!(
            "INSERT INTO runs (id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger,
                               status, priority, published_at)
             SELECT gen_random_uuid(), '{at}', gen_random_uuid(), 'Job', 1, 'w', 'type-' || q, '{at}', 'schedule',
                    'queued', 3, '{at}'
               FROM generate_series(1, {queues}) q, generate_series(1, {count})"
        ))
        .await;
    }

    /// Declares the queue of the first job type. Returns its name and a channel.
    async fn queue(&self) -> (String, Channel) {
        let broker = &self.detector.broker;
        let connection = broker.connect("test").await.expect("the broker responds");
        let channel = connection.create_channel().await.expect("a channel");
        let queue = broker.topology().job_queue("w", "type-1");
        channel.queue_declare(queue.as_str().into(), Default::default(), Default::default()).await.expect("declared");
        channel.confirm_select(Default::default()).await.expect("confirms");
        (queue, channel)
    }

    /// Inserts critical occurrences of the first job type, of which the broker has confirmed the messages some seconds ago.
    async fn insert_critical(&self, count: u32, in_critical_queue: bool, seconds_ago: i64) {
        let at = (self.clock.now() - chrono::Duration::seconds(seconds_ago)).to_rfc3339();
        self.execute(&format!(
            "INSERT INTO runs (id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger,
                               status, priority, published_at, in_critical_queue)
             SELECT gen_random_uuid(), '{at}', gen_random_uuid(), 'Job', 1, 'w', 'type-1', '{at}', 'schedule',
                    'queued', 5, '{at}', {in_critical_queue}
               FROM generate_series(1, {count})"
        ))
        .await;
    }

    /// Stores the registration of an instance with the first job type.
    async fn register(&self, instance: &str, bundle_size: Option<u32>) {
        self.register_with_slots(instance, bundle_size, 0).await;
    }

    /// Stores the registration of an instance with the first job type and slots for critical runs.
    async fn register_with_slots(&self, instance: &str, bundle_size: Option<u32>, critical_slots: u32) {
        let mut hello = messages::hello(instance, self.clock.now());
        hello.critical_slots = critical_slots;
        hello.job_types = vec![JobTypeInfo { bundle_size, concurrency: 10, ..messages::job_type("type-1") }];
        self.detector.store.store_hellos(&[hello], self.clock.now()).await.expect("stored");
    }

    /// Sets the load of the instances by their last heartbeat.
    async fn set_load(&self, running: u32, capacity: u32) {
        self.execute(&format!("UPDATE worker_instances SET running = {running}, capacity = {capacity}")).await;
    }

    async fn count(&self, from: &str) -> i64 {
        self.connection.lock().await.count(format!("SELECT count(*) FROM {from}")).await
    }

    /// Returns the number of job types of which a bundle may wait.
    async fn sent_sizes(&self) -> usize {
        self.detector.store.sent_bundle_sizes().await.expect("the query succeeds").len()
    }

    /// Returns the number of runs that a message has if a hundred are sent at once.
    async fn bundle_size(&self) -> usize {
        let key = ("w".to_owned(), "type-1".to_owned());
        let offers = self.detector.store.bundle_offers(&[key], self.clock.now()).await.expect("the query succeeds");
        offers.first().map_or(1, |(_, offer)| offer.size(100))
    }
}

async fn send(channel: &Channel, queue: &str, count: u32) {
    for _ in 0..count {
        let sending = channel.basic_publish("".into(), queue.into(), Default::default(), b"{}", Default::default());
        sending.await.expect("sent").await.expect("confirmed");
    }
}

/// Finds `count` lost messages of one queue in one tick.
async fn find_lost_messages_of_one_queue(count: u32) -> Harness {
    let mut harness = Harness::new().await;
    harness.insert(1, count, 300).await;
    let report = harness.tick().await;
    let all = usize::try_from(count).expect("a small number");
    assert_eq!((report.waiting, report.lost, report.has_more), (i64::from(count), all, false));
    assert_eq!(harness.tick().await, LostMessageReport::default(), "they are the republisher's now");
    harness.execute("UPDATE runs SET published_at = publish_after").await;
    assert_eq!(harness.tick().await, LostMessageReport::default(), "and so are those of a rejected bundle");
    harness
}

#[tokio::test]
async fn a_large_queue_and_many_queues_are_sent_again_at_once() {
    let mut harness = find_lost_messages_of_one_queue(1_200).await;
    harness.insert(600, 1, 300).await;
    assert_eq!(harness.tick().await.lost, 600);
    assert_eq!(harness.tick().await, LostMessageReport::default(), "each is marked once");
}

/// Compares the load of the only instance, which takes ten runs in a message.
async fn bundles_follow_the_load(harness: &Harness) {
    harness.set_load(0, 20).await;
    assert_eq!(harness.bundle_size().await, 10);
    harness.set_load(20, 20).await;
    assert_eq!(harness.bundle_size().await, 1, "it is full");
    harness.set_load(12, 20).await;
    harness.insert(1, 9, 300).await;
    harness.execute("UPDATE runs SET status = 'running'").await;
    assert_eq!(harness.bundle_size().await, 10, "it has a permit of this job type");
    harness.insert(1, 1, 300).await;
    harness.execute("UPDATE runs SET status = 'running'").await;
    assert_eq!(harness.bundle_size().await, 1, "it has none");
    harness.execute("DELETE FROM runs").await;
    assert_eq!(harness.bundle_size().await, 10, "its runs have ended");
    harness.execute("UPDATE instance_job_types SET job_type = 'Type-1', bundle_size = 4").await;
    assert_eq!(harness.bundle_size().await, 4, "one queue has both spellings");
}

/// Rejects the bundles of all runs, whose confirms are not stored yet.
async fn reject_bundles(harness: &Harness) {
    let (store, now) = (&harness.detector.store, harness.clock.now());
    let claim = async || store.claim_unsent(now, &[], &[], 100_000, now).await.expect("the query succeeds");
    let sent: Vec<_> = claim().await.into_iter().map(|run| (run.id, 1)).collect();
    let reject = async || store.return_bundled(sent.clone(), now).await.expect("the statement succeeds").len();
    let confirmed: Vec<_> = sent.iter().map(|(id, attempt)| runs::confirmed(*id, *attempt)).collect();
    let mark =
        async |is_single| store.mark_published(&confirmed, is_single, now).await.expect("the statement succeeds");
    assert_eq!([reject().await, reject().await], [sent.len(); 2], "the dead letters are delivered twice");
    assert_eq!(mark(false).await, 0, "the confirms of the bundles count no more");
    assert_eq!(harness.count("occurrences WHERE published_at IS NOT NULL").await, 0, "they are unsent");
    harness.execute("UPDATE runs SET publish_after = publish_after - interval '1 minute'").await;
    assert_eq!(claim().await.len(), sent.len());
    assert_eq!(mark(false).await, 0, "nor while the single messages are on their way");
    assert_eq!(mark(true).await, u64::try_from(sent.len()).expect("a small number"));
    assert_eq!(harness.count("occurrences WHERE published_at IS NULL").await, 0);
}

/// Compares the runs of `bundles` waiting messages after a deployment that takes one run in a message, and purges the queue.
async fn compare_waiting_bundles(bundles: u32) {
    let mut harness = Harness::new().await;
    harness.register("old", Some(10)).await;
    bundles_follow_the_load(&harness).await;
    harness.detector.store.store_goodbyes(&["old".to_owned()], harness.clock.now()).await.expect("stored");
    assert_eq!(harness.bundle_size().await, 10, "no instance is alive, and the last one took bundles");
    let (queue, channel) = harness.queue().await;
    let sizes = BTreeMap::from([(("w".to_owned(), "type-1".to_owned()), 10)]);
    let sent_at = harness.clock.now() - chrono::Duration::minutes(5);
    harness.detector.store.raise_sent_bundles(&sizes, sent_at).await.expect("stored");
    send(&channel, &queue, bundles).await;
    harness.insert(1, 10 * bundles, 300).await;
    harness.register("new", None).await;
    assert_eq!(harness.bundle_size().await, 1);
    for look in 1..=3 {
        assert_eq!(harness.tick().await.lost, 0, "look {look}: each message has ten runs");
        harness.clock.advance(chrono::Duration::seconds(15));
    }
    channel.queue_purge(queue.as_str().into(), Default::default()).await.expect("purged");
    let report = harness.tick().await;
    assert_eq!((report.lost, report.has_more), (usize::try_from(10 * bundles).expect("a small number"), false));
    harness.tick().await;
    assert_eq!(harness.sent_sizes().await, 1, "an unsent run may have a message of which the confirm is not stored");
    reject_bundles(&harness).await;
    harness.execute("UPDATE runs SET status = 'running'").await;
    harness.tick().await;
    assert_eq!(harness.sent_sizes().await, 0, "no message waits any more");
}

/// Forgets the bundles of idle job types beside a backlog of another one.
async fn forget_beside_a_backlog(types: u32, backlog: u32) {
    let mut harness = Harness::new().await;
    let at = (harness.clock.now() - chrono::Duration::minutes(5)).to_rfc3339();
    harness
        .execute(&format!(
            "INSERT INTO sent_bundles SELECT 'w', 'type-' || t, 10, '{at}' FROM generate_series(1, {types}) t"
        ))
        .await;
    harness.insert(1, backlog, 10).await;
    harness.execute("ANALYZE runs, sent_bundles").await;
    harness.tick().await;
    assert_eq!(harness.sent_sizes().await, 1, "only that of the backlog is kept");
}

#[tokio::test]
async fn waiting_bundles_have_all_their_runs_after_a_deployment() {
    compare_waiting_bundles(30).await;
}

/// Compares the queues of `types` job types on `instances` instances, each of which runs `busy` of the types.
async fn compare_queues_of_busy_instances(types: u32, instances: u32, busy: u32) {
    let mut harness = Harness::new().await;
    harness.insert(types, 1, 300).await;
    let now = harness.clock.now().to_rfc3339();
    for statement in [
        format!("INSERT INTO workers (id, first_seen_at, last_seen_at) VALUES ('w', '{now}', '{now}')"),
        format!(
            "INSERT INTO worker_instances (id, worker_id, capacity, running, started_at, last_heartbeat_at)
             SELECT 'i-' || i, 'w', 1000, {busy}, '{now}', '{now}' FROM generate_series(1, {instances}) i"
        ),
        format!(
            "INSERT INTO worker_job_types (worker_id, job_type, concurrency, announced_at)
             SELECT 'w', 'type-' || t, 1, '{now}' FROM generate_series(1, {types}) t"
        ),
        format!(
            "INSERT INTO instance_job_types (instance_id, job_type)
             SELECT 'i-' || i, 'type-' || t FROM generate_series(1, {instances}) i, generate_series(1, {types}) t"
        ),
        // Each instance may have prefetched one message of each type that it runs.
        format!(
            "INSERT INTO runs (id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger,
                               status, priority, instance_id, started_at)
             SELECT gen_random_uuid(), '{now}', gen_random_uuid(), 'Job', 1, 'w', 'type-' || t, '{now}', 'schedule',
                    'running', 3, 'i-' || i, '{now}'
               FROM generate_series(1, {instances}) i, generate_series(1, {busy}) t"
        ),
    ] {
        harness.execute(&statement).await;
    }
    let report = harness.tick().await;
    let lost = usize::try_from(types - busy).expect("a small number");
    assert_eq!(
        (report.waiting, report.lost),
        (i64::from(types), lost),
        "one message of each busy type may be with an instance"
    );
}

#[tokio::test]
async fn queues_of_busy_instances_are_compared() {
    compare_queues_of_busy_instances(50, 10, 10).await;
}

#[tokio::test]
async fn fresh_messages_hide_no_lost_one() {
    let mut harness = Harness::new().await;
    let (queue, channel) = harness.queue().await;
    send(&channel, &queue, 8).await;
    // Five messages are lost, and eight fresh ones wait.
    harness.insert(1, 5, 300).await;
    harness.insert(1, 8, 10).await;
    assert_eq!(harness.tick().await.lost, 0, "the eight messages may be those of the five");
    harness.clock.advance(chrono::Duration::seconds(15));
    assert_eq!(harness.tick().await.lost, 0, "no message has left the queue");
    harness
        .execute(
            "UPDATE runs SET status = 'running' WHERE id = (SELECT id FROM runs ORDER BY published_at DESC LIMIT 1)",
        )
        .await;
    harness.clock.advance(chrono::Duration::seconds(15));
    let report = harness.tick().await;
    assert_eq!((report.waiting, report.lost), (5, 5), "a fresh one has overtaken them");
    compare_critical_queue(&mut harness, &channel).await;
}

/// Compares critical runs in both queues, and moves those of the critical queue when no instance takes them any more.
async fn compare_critical_queue(harness: &mut Harness, channel: &Channel) {
    harness.execute("DELETE FROM runs").await;
    let critical = harness.detector.broker.topology().critical_queue("w", "type-1");
    let declare = async || {
        let declaring = channel.queue_declare(critical.as_str().into(), Default::default(), Default::default());
        declaring.await.expect("declared");
        send(channel, &critical, 3).await;
    };
    declare().await;
    // The consumer takes one message and acknowledges none.
    channel.basic_qos(1, BasicQosOptions::default()).await.expect("set");
    let consuming =
        channel.basic_consume(critical.as_str().into(), "c".into(), Default::default(), FieldTable::default());
    let _consumer = consuming.await.expect("consumed");
    harness.register_with_slots("i-1", None, 1).await;
    harness.insert_critical(2, false, 300).await;
    harness.insert_critical(3, true, 10).await;
    assert_eq!(tick_with_slots(harness).await, (0, 0));
    harness
        .execute("UPDATE runs SET status = 'running' WHERE id = (SELECT id FROM runs WHERE in_critical_queue LIMIT 1)")
        .await;
    assert_eq!(tick_with_slots(harness).await, (0, 0), "the older ones are in the other queue");

    harness.detector.store.store_goodbyes(&["i-1".to_owned()], harness.clock.now()).await.expect("stored");
    let report = harness.tick().await;
    assert_eq!((report.lost, report.moved), (0, 0), "a consumer takes them");
    channel.basic_cancel("c".into(), Default::default()).await.expect("cancelled");
    let report = harness.tick().await;
    assert_eq!((report.lost, report.moved), (0, 2), "no instance takes them");
    let unsent =
        "SELECT count(*) FROM runs WHERE in_critical_queue AND publish_after IS NOT NULL AND published_at IS NULL";
    assert_eq!(harness.connection.lock().await.count(unsent).await, 2);
    let counts = harness.detector.probe.counts(std::slice::from_ref(&critical)).await.expect("counted");
    assert!(counts.iter().all(Option::is_none), "the messages are gone with their queue");
    assert_eq!(harness.tick().await.moved, 0, "they are the republisher's now");

    // An instance that announces slots and consumes nothing, because the broker refuses it.
    declare().await;
    harness.insert_critical(1, true, 10).await;
    assert_eq!(tick_with_slots(harness).await, (0, 0), "it may be connecting");
    assert_eq!(tick_with_slots(harness).await, (0, 1));
}

/// Ticks ten seconds later, while an instance with a reserved slot lives. Returns the lost and the moved occurrences.
async fn tick_with_slots(harness: &mut Harness) -> (usize, usize) {
    harness.clock.advance(chrono::Duration::seconds(10));
    harness.register_with_slots("i-1", None, 1).await;
    let report = harness.tick().await;
    (report.lost, report.moved)
}

mod exhaustive {
    use super::*;

    #[tokio::test]
    async fn a_queue_of_several_batches_is_sent_again_at_once() {
        find_lost_messages_of_one_queue(12_000).await;
    }

    #[tokio::test]
    async fn thousand_waiting_bundles_have_all_their_runs_after_a_deployment() {
        compare_waiting_bundles(1_000).await;
    }

    #[tokio::test]
    async fn idle_job_types_are_forgotten_beside_a_backlog() {
        forget_beside_a_backlog(1_000, 300_000).await;
    }

    #[tokio::test]
    async fn many_queues_on_many_busy_instances_are_compared_in_time() {
        compare_queues_of_busy_instances(500, 100, 100).await;
    }
}
