//! Occurrences that programs enqueue over the broker: each is created once, or refused with a reason.

use std::time::Duration;

use chrono::TimeDelta;
use milvaion_api::{failures::DeadLetterFilter, page::OccurrenceFilter, sources::JobSourceKind, views::TriggerSource};
use milvaion_client::{BrokerClient, Enqueue, EnqueueClient, EnqueueError, Enqueued, IngestOutcome, NewOccurrence};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::{InstanceHello, JobTypeInfo, StatusReport},
    status::OccurrenceStatus,
};
use milvaion_schedule::{rules::Rules, schedule::Schedule};
use milvaion_server::{
    clock::{Clock, machine_now},
    config::ServerConfig,
    lifecycle::Server,
    store::{
        Store,
        create::MAX_OPEN_RUNS_PER_JOB,
        create::{EnqueueOutcome, NewRun},
        jobs::AuditStamp,
        retention::ExpiringTable,
    },
};
use milvaion_test_support::{
    database::{self, TestConnection},
    jobs,
    lossy_network::LossyNetwork,
    runs, server_env, wait,
};
use serde_json::json;
use tokio::sync::Mutex;

/// A server, a worker that has registered the job type `echo`, and a client of the ingest queue.
struct EnqueueHarness {
    config: ServerConfig,
    server: Server,
    broker: BrokerClient,
    /// The connection for statements that the store has no function for.
    connection: Mutex<TestConnection>,
}

impl EnqueueHarness {
    async fn new() -> Self {
        let config = server_env::config().await;
        let server = server_env::start(&config).await;
        let schema = json!({"type": "object", "properties": {"say": {"type": "string"}}});
        let info = JobTypeInfo { job_type: "echo".into(), schema, concurrency: 1, ..JobTypeInfo::default() };
        let hello = InstanceHello {
            worker_id: "w".into(),
            instance_id: "w-1".into(),
            job_types: vec![info],
            ..InstanceHello::default()
        };
        server.store.store_hellos(&[hello], server.clock.now()).await.expect("the worker is registered");
        let broker = client(&config.broker.url, &config);
        let connection = Mutex::new(TestConnection::open(&config.database.url).await);
        Self { config, server, broker, connection }
    }

    fn client(&self) -> EnqueueClient {
        EnqueueClient::new(self.broker.clone())
    }

    async fn count(&self, condition: &str) -> i64 {
        let mut connection = self.connection.lock().await;
        connection.count(format!("SELECT count(*) FROM runs WHERE {condition}")).await
    }

    async fn close(self) {
        self.broker.close().await;
        self.server.stop().await;
    }
}

fn client(url: &str, config: &ServerConfig) -> BrokerClient {
    BrokerClient::new(url, &config.broker.prefix).expect("a valid address").with_producer("test")
}

fn echo() -> Enqueue {
    Enqueue::job_type("w", "echo").input(json!({"say": "hello"}))
}

fn built(enqueue: Enqueue) -> NewOccurrence {
    enqueue.build().expect("its values are acceptable")
}

#[tokio::test]
async fn occurrence_is_created_once_with_its_job() {
    let harness = EnqueueHarness::new().await;
    let parent = harness.client().enqueue(echo()).await.expect("accepted").id();
    let child = built(echo().parent(parent).priority(5));
    for _ in 0..2 {
        let results = harness.broker.enqueue(vec![child.clone(), child.clone()]).await.expect("answered");
        assert_eq!(results.iter().map(|result| result.outcome).collect::<Vec<_>>(), [IngestOutcome::Accepted; 2]);
    }
    let store = &harness.server.store;
    let view = async |id| store.occurrence(id, 1, machine_now()).await.expect("read").expect("it exists");
    let (shown, of_parent) = (view(child.id).await, view(parent).await);
    assert_eq!((shown.row.trigger, shown.parent_id), (TriggerSource::Enqueue, Some(parent)));
    assert_eq!(shown.triggered_by.as_deref(), Some("test"));
    assert_eq!(of_parent.children.iter().map(|row| row.id).collect::<Vec<_>>(), [child.id]);
    assert_eq!(shown.row.job_id, of_parent.row.job_id, "the job type has one job");
    let job = store.job(shown.row.job_id).await.expect("read").expect("it exists");
    assert_eq!((job.source.kind, job.definition.display_name.as_str()), (JobSourceKind::Code, "echo"));
    assert_eq!(harness.count("priority = 5").await, 1);
    harness.connection.lock().await.execute("UPDATE jobs SET is_active = false").await;
    let results = harness.broker.enqueue(vec![child, built(echo())]).await.expect("answered");
    let outcomes: Vec<_> = results.iter().map(|result| result.outcome).collect();
    assert_eq!(
        outcomes,
        [IngestOutcome::Accepted, IngestOutcome::Rejected],
        "the first exists, although its job is paused"
    );
    harness.close().await;
}

#[tokio::test]
async fn rejected_occurrence_names_its_reason() {
    let harness = EnqueueHarness::new().await;
    let good = built(echo());
    let bad = [
        (built(Enqueue::job("nightly")), "no job has the key nightly"),
        (built(Enqueue::job_type("w", "print")), "has registered the job type print"),
        (built(echo().input(json!({"say": 7}))), "input/say"),
        (built(echo().at(machine_now() + TimeDelta::days(400))), "notBefore"),
        (built(echo().id(OccurrenceId::from_parts(machine_now() - TimeDelta::days(8), [1; 10]))), "older than 7 days"),
    ];
    let mut all = vec![good.clone()];
    all.extend(bad.iter().map(|(occurrence, _)| occurrence.clone()));
    let results = harness.broker.enqueue(all).await.expect("answered");
    assert_eq!(results[0].outcome, IngestOutcome::Accepted);
    for (result, (_, expected)) in results[1..].iter().zip(&bad) {
        let reason = result.reason.as_deref().unwrap_or_default();
        assert!(result.outcome == IngestOutcome::Rejected && reason.contains(expected), "{reason}");
    }
    let error = harness.client().enqueue(Enqueue::job("nightly")).await.expect_err("rejected");
    assert!(matches!(error, EnqueueError::Rejected { .. }), "{error}");
    let letters = harness.server.store.dead_letters(&DeadLetterFilter::default()).await.expect("read");
    assert_eq!(letters.rows, [], "what is answered is no dead letter");
    harness.close().await;
}

#[tokio::test]
async fn refusal_without_an_answer_is_a_dead_letter() {
    let harness = EnqueueHarness::new().await;
    let occurrences = [echo(), Enqueue::job("a"), Enqueue::job("a"), Enqueue::job("b")];
    harness.client().publish(occurrences).await.expect("confirmed");
    let letters = wait::eventually("two dead letters", || async {
        let page = harness.server.store.dead_letters(&DeadLetterFilter::default()).await.ok()?;
        (page.rows.len() == 2).then_some(page.rows)
    })
    .await;
    let of_a =
        letters.iter().find(|letter| letter.reason.contains("no job has the key a.")).expect("one for the key a");
    let body: serde_json::Value = serde_json::from_str(&of_a.body).expect("JSON");
    assert_eq!(body["occurrences"].as_array().map(Vec::len), Some(2), "one dead letter for each reason");
    assert_eq!(harness.count("true").await, 1, "the others of the message are created");
    harness.close().await;
}

/// Enqueues `count` occurrences over a broker's URL while `interrupt` breaks the connection. Checks that each is created
/// once.
async fn enqueue_over(harness: &EnqueueHarness, url: &str, count: i64, interrupt: impl Future<Output = ()>) {
    let broker = client(url, &harness.config).with_deadline(wait::WAIT_TIMEOUT);
    let all: Vec<NewOccurrence> = (0..count).map(|_| built(echo().after(Duration::from_secs(3_600)))).collect();
    let ids: Vec<OccurrenceId> = all.iter().map(|occurrence| occurrence.id).collect();
    let (results, ()) = tokio::join!(broker.enqueue(all), interrupt);
    let results = results.expect("answered over a new connection");
    assert!(results.iter().all(|result| result.outcome == IngestOutcome::Accepted));
    assert_eq!(results.iter().map(|result| result.id).collect::<Vec<_>>(), ids, "in their order");
    assert_eq!(harness.count("not_before IS NOT NULL").await, count);
    broker.close().await;
}

#[tokio::test]
async fn bulk_survives_a_closed_connection() {
    let harness = EnqueueHarness::new().await;
    let (network, url) = LossyNetwork::connect(&harness.config.broker.url).await;
    // The server has received a message and cannot answer it yet.
    let mut lock = TestConnection::open(&harness.config.database.url).await;
    lock.execute("BEGIN").await;
    lock.execute("LOCK TABLE runs IN SHARE MODE").await;
    let close = async {
        let storing = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                          AND wait_event_type = 'Lock' AND query LIKE '-- enqueue_runs%'";
        wait::until("the statement that stores the first message", async || {
            harness.connection.lock().await.count(storing).await > 0
        })
        .await;
        network.close_open_connections();
        lock.execute("ROLLBACK").await;
    };
    // One more than a message contains.
    enqueue_over(&harness, &url, 501, close).await;
    harness.close().await;
}

#[tokio::test]
async fn missing_server_is_an_error_with_the_occurrences() {
    let config = server_env::config().await;
    let broker = client(&config.broker.url, &config).with_deadline(Duration::from_secs(1));
    let error = broker.enqueue(vec![built(echo())]).await.expect_err("no server has declared the queue");
    let EnqueueError::Unanswered(unanswered) = &error else { panic!("{error}") };
    assert_eq!((unanswered.occurrences.len(), unanswered.results.len()), (1, 0));
    broker.close().await;
}

#[tokio::test]
async fn two_requests_with_one_uniqueness_key_create_one() {
    let harness = EnqueueHarness::new().await;
    let client = harness.client();
    let other = EnqueueClient::new(self::client(&harness.config.broker.url, &harness.config));
    let (one, two) = tokio::join!(client.enqueue(echo().unique("ada")), other.enqueue(echo().unique("ada")));
    let (one, two) = (one.expect("answered"), two.expect("answered"));
    assert_eq!(one.id(), two.id());
    assert!(matches!(
        (one, two),
        (Enqueued::Accepted(_), Enqueued::Duplicate(_)) | (Enqueued::Duplicate(_), Enqueued::Accepted(_))
    ));
    assert!(matches!(client.enqueue(echo().unique("bob")).await, Ok(Enqueued::Accepted(_))), "another key");
    let day = Duration::from_secs(86_400);
    let end = async |id| {
        let end = StatusReport::new(id, 1, "w-1", OccurrenceStatus::Completed, machine_now());
        assert_eq!(runs::report(&harness.server.store, &harness.server.clock, vec![end]).await, 1);
    };
    end(one.id()).await;
    let again = client.enqueue(echo().unique("ada").unique_for(day)).await.expect("answered");
    assert!(matches!(again, Enqueued::Accepted(_)), "the first has ended");
    end(again.id()).await;
    let held = client.enqueue(echo().unique("ada")).await.expect("answered");
    assert_eq!(held, Enqueued::Duplicate(again.id()), "the key applies for a day");
    harness.close().await;
}

/// Returns a store with a job, on a clock that stands.
async fn store_with_job(rules: Rules) -> (String, Store, Clock, JobId) {
    let url = database::create().await;
    let store = database::open(&url).await;
    let clock = Clock::manual(machine_now());
    let job = milvaion_api::requests::JobInput { rules, ..jobs::echo_job(Schedule::Manual) };
    let job = jobs::insert_job(&store, &clock, &job, None).await;
    (url, store, clock, job)
}

fn run(clock: &Clock, job_id: JobId) -> NewRun {
    NewRun { id: clock.occurrence_id(), job_id, ..NewRun::default() }
}

#[tokio::test]
async fn id_of_last_week_is_stored_in_a_new_installation() {
    let (_, store, clock, job) = store_with_job(Rules::default()).await;
    let old = OccurrenceId::from_parts(clock.now() - TimeDelta::days(6), [3; 10]);
    for is_first in [true, false] {
        let outcomes = store.enqueue_runs(&[NewRun { id: old, ..run(&clock, job) }], None, clock.now()).await;
        let outcome = outcomes.expect("stored").remove(0);
        assert_eq!(matches!(outcome, EnqueueOutcome::Created(_)), is_first, "{outcome:?}");
    }
}

#[tokio::test]
async fn delayed_occurrence_takes_its_slot_after_the_delay() {
    let (_, store, clock, job) = store_with_job(Rules { max_concurrent: Some(1), ..Rules::default() }).await;
    let delayed = NewRun { not_before: Some(clock.now() + TimeDelta::hours(1)), ..run(&clock, job) };
    let due = run(&clock, job);
    store.enqueue_runs(&[delayed.clone(), due.clone()], None, clock.now()).await.expect("stored");
    let granted = async || {
        let granted = store.grant_slots(10, clock.now()).await.expect("the statement succeeds");
        granted.into_iter().map(|queued| queued.id).collect::<Vec<_>>()
    };
    assert_eq!(granted().await, [due.id], "the older one is delayed, and takes no slot");
    let filter = OccurrenceFilter { delayed: true, ..OccurrenceFilter::default() };
    let listed = store.occurrences(&filter).await.expect("the list can be read").rows;
    assert_eq!(
        listed.iter().map(|row| (row.id, row.waits_until)).collect::<Vec<_>>(),
        [(delayed.id, delayed.not_before)]
    );
    clock.advance(TimeDelta::hours(1));
    let released = store.release_delayed(clock.now(), 10).await.expect("the statement succeeds");
    assert!(released.is_empty(), "it waits for a slot now");
    assert_eq!(granted().await, []);
    runs::report(&store, &clock, vec![StatusReport::new(due.id, 1, "w-1", OccurrenceStatus::Completed, clock.now())])
        .await;
    assert_eq!(granted().await, [delayed.id]);

    // An edit of the limit applies to what waits, unless the setting of the save keeps the old limit.
    let mut waiting = [run(&clock, job), run(&clock, job)];
    waiting.sort_by_key(|run| run.id);
    let last = NewRun { not_before: Some(clock.now() + TimeDelta::hours(1)), ..run(&clock, job) };
    store.enqueue_runs(&waiting, None, clock.now()).await.expect("stored");
    store.enqueue_runs(std::slice::from_ref(&last), None, clock.now()).await.expect("stored");
    let edit = async |max_concurrent, keeps_limits| {
        let before = store.job(job).await.expect("the query succeeds").expect("it exists");
        let rules = Rules { max_concurrent, ..before.definition.rules.clone() };
        let edited = milvaion_api::requests::JobInput { rules, ..before.definition.clone() };
        let stamp = AuditStamp { by: "ana", at: clock.now(), address: None };
        let source = JobSourceKind::Dashboard;
        let saved = store.update_job_from(source, &before, &edited, None, stamp, keeps_limits).await;
        saved.expect("stored").expect("the version is current");
    };
    edit(Some(3), true).await;
    assert_eq!(granted().await, []);
    edit(Some(2), false).await;
    assert_eq!(granted().await, [waiting[0].id], "one slot is taken");
    edit(None, false).await;
    assert_eq!(granted().await, [waiting[1].id], "it has no limit");
    clock.advance(TimeDelta::hours(1));
    assert!(store.release_delayed(clock.now(), 10).await.expect("the statement succeeds").is_empty());
    assert_eq!(granted().await, [last.id], "its delay ended after the limit was removed");
}

#[tokio::test]
async fn delayed_occurrences_do_not_fill_the_queue_of_a_job() {
    let (url, store, clock, job) = store_with_job(Rules::default()).await;
    let mut connection = TestConnection::open(&url).await;
    connection
        .execute(format!(
            "INSERT INTO runs (id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger,
                               status, priority, not_before)
             SELECT gen_random_uuid(), now(), '{job}', 'x', 1, 'w', 't', now(), 'enqueue', 'queued', 3, now() + interval '1 day'
               FROM generate_series(1, {MAX_OPEN_RUNS_PER_JOB})"
        ))
        .await;
    runs::insert_manual(&store, &clock, job).await;
    let outcome = store.enqueue_runs(&[run(&clock, job)], None, clock.now()).await.expect("stored").remove(0);
    assert!(matches!(outcome, EnqueueOutcome::Created(_)), "{outcome:?}");
}

#[tokio::test]
async fn checkpoint_is_in_the_message_of_the_next_attempt() {
    let (_, store, clock, job) = store_with_job(Rules { max_retries: 3, ..Rules::default() }).await;
    let enqueued = run(&clock, job);
    store.enqueue_runs(std::slice::from_ref(&enqueued), None, clock.now()).await.expect("stored");
    let report = |attempt, status, checkpoint: Option<i32>| StatusReport {
        checkpoint: checkpoint.map(Into::into),
        ..StatusReport::new(enqueued.id, attempt, "w-1", status, clock.now())
    };
    let next = async || {
        clock.advance(TimeDelta::hours(1));
        let released = store.release_delayed(clock.now(), 10).await.expect("the statement succeeds");
        released.into_iter().map(|queued| (queued.attempt, queued.checkpoint)).collect::<Vec<_>>()
    };
    runs::report(&store, &clock, vec![report(1, OccurrenceStatus::Running, Some(7))]).await;
    runs::report_with_retries(&store, &clock, vec![report(1, OccurrenceStatus::Failed, None)]).await;
    assert_eq!(next().await, [(2, Some(json!(7)))]);
    // A checkpoint of an earlier attempt that arrives late, and one that comes with the failure.
    runs::report(&store, &clock, vec![report(1, OccurrenceStatus::Running, Some(8))]).await;
    runs::report_with_retries(&store, &clock, vec![report(2, OccurrenceStatus::Failed, None)]).await;
    assert_eq!(next().await, [(3, Some(json!(7)))]);
    runs::report_with_retries(&store, &clock, vec![report(3, OccurrenceStatus::Failed, Some(9))]).await;
    assert_eq!(next().await, [(4, Some(json!(9)))]);
    runs::report(&store, &clock, vec![report(4, OccurrenceStatus::Completed, None)]).await;
    clock.advance(TimeDelta::hours(2));
    let expired = clock.now() - TimeDelta::hours(1);
    assert_eq!(store.delete_expired(ExpiringTable::RunCheckpoints, expired).await.expect("deleted"), 1);
}

#[tokio::test]
async fn key_of_an_open_occurrence_is_kept() {
    let (_, store, clock, job) = store_with_job(Rules::default()).await;
    let keyed = |key: &str| NewRun { uniqueness_key: Some(key.into()), ..run(&clock, job) };
    let (open, ended) = (keyed("open"), keyed("ended"));
    store.enqueue_runs(&[open, ended.clone()], None, clock.now()).await.expect("stored");
    let end = StatusReport::new(ended.id, 1, "w-1", OccurrenceStatus::Completed, clock.now());
    runs::report(&store, &clock, vec![end]).await;
    assert_eq!(store.delete_free_uniqueness_keys(clock.now()).await.expect("deleted"), 0, "a request may be under way");
    clock.advance(TimeDelta::hours(2));
    assert_eq!(store.delete_free_uniqueness_keys(clock.now()).await.expect("deleted"), 1);
    let outcome = store.enqueue_runs(&[keyed("open")], None, clock.now()).await.expect("stored").remove(0);
    assert!(matches!(outcome, EnqueueOutcome::Duplicate(_)), "{outcome:?}");
}

#[tokio::test]
async fn job_of_a_type_is_created_once() {
    let (_, store, clock, _) = store_with_job(Rules::default()).await;
    let stamp = AuditStamp { by: "test", at: clock.now(), address: None };
    let job = jobs::echo_job(Schedule::Manual);
    let create = || store.create_enqueue_job(clock.job_id(), &job, stamp);
    let (one, two) = tokio::join!(create(), create());
    let ((one, is_first), (two, is_second)) = (one.expect("stored"), two.expect("stored"));
    assert_eq!(one, two);
    assert!(is_first != is_second);
}

mod exhaustive {
    use super::*;

    /// No error follows the loss: the client publishes again when no answer has come for ten seconds.
    #[tokio::test]
    async fn ten_thousand_survive_a_lost_connection() {
        const COUNT: i64 = 10_000;
        let harness = EnqueueHarness::new().await;
        let (network, url) = LossyNetwork::connect(&harness.config.broker.url).await;
        let lose = async {
            wait::until("the first messages are stored", async || harness.count("true").await >= COUNT / 20).await;
            network.lose_open_connections();
        };
        enqueue_over(&harness, &url, COUNT, lose).await;
        harness.close().await;
    }
}
