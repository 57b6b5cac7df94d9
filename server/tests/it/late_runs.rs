//! Late runs: a run whose occurrence has ended does not start, or is stopped and noted.

use chrono::Duration;
use milvaion_api::duplicates;
use milvaion_app::backend::TriggerInput;
use milvaion_protocol::{
    id::OccurrenceId,
    message::StatusReport,
    status::OccurrenceStatus::{self, Cancelled, Completed, Queued, Running},
    topology::RedisKeys,
};
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    background::late_runs::LateRunStopper,
    clock::Clock,
    config::ServerConfig,
    engine::{Service, activators::Activators},
    ingest::status::StatusConsumer,
    lifecycle::Server,
    live::Hub,
    store::{Store, jobs::AuditStamp},
};
use milvaion_test_support::{
    database, http, jobs, manual_clock::GatedJob, messages, net::free_address, private_service::PrivateService, runs,
    server_env, wait, worker_env,
};
use milvaion_worker::CancellationToken;

struct LateRunHarness {
    store: Store,
    clock: Clock,
    activators: Activators,
    consumer: StatusConsumer,
}

impl LateRunHarness {
    async fn new() -> Self {
        let (store, clock, activators) = (database::fresh().await, Clock::system(), Activators::default());
        let (hub, _) = Hub::new();
        let consumer =
            StatusConsumer { store: store.clone(), activators: activators.clone(), hub, clock: clock.clone() };
        Self { store, clock, activators, consumer }
    }

    async fn queued(&self) -> OccurrenceId {
        let job_id = jobs::insert(&self.store, &self.clock, Schedule::Manual, None).await;
        runs::insert_manual(&self.store, &self.clock, job_id).await
    }

    async fn cancelled(&self) -> OccurrenceId {
        let id = self.queued().await;
        let edit = AuditStamp { by: "ann@example.org", at: self.clock.now(), address: None };
        assert_eq!(self.store.cancel(&[id], None, edit).await.expect("the query succeeds").len(), 1);
        id
    }

    /// Applies one report of the first attempt. Returns the runs that are asked to stop.
    async fn report(&self, id: OccurrenceId, instance: &str, status: OccurrenceStatus) -> Vec<OccurrenceId> {
        let report =
            StatusReport { duration_ms: Some(3), ..StatusReport::new(id, 1, instance, status, self.clock.now()) };
        self.consumer.apply(vec![report]).await.expect("the query succeeds");
        self.activators.late_runs.take().into_iter().map(|run| run.id).collect()
    }

    /// Returns the instances that started it after its end, and its version.
    async fn late_starts(&self, id: OccurrenceId) -> (Vec<String>, i32) {
        let view =
            self.store.occurrence(id, 1, self.clock.now()).await.expect("the query succeeds").expect("it exists");
        let late = duplicates::find_starts_after_end(&view.changes);
        (late.into_iter().map(|one| one.instance).collect(), view.row.version)
    }

    async fn heartbeat(&self, instance: &str, running: &[OccurrenceId], age: Duration) {
        let now = self.clock.now() - age;
        self.store.store_hellos(&[messages::hello(instance, now)], now).await.expect("the query succeeds");
        let beat = messages::heartbeat(instance, running, now);
        self.store.store_heartbeats(&[beat], now).await.expect("the query succeeds");
    }

    async fn late_runs(&self, age: Duration) -> Vec<OccurrenceId> {
        let runs = self.store.late_runs(self.clock.now() - age).await.expect("the query succeeds");
        runs.into_iter().map(|run| run.id).collect()
    }
}

#[tokio::test]
async fn start_after_the_end_is_noted_once_and_stopped() {
    let harness = LateRunHarness::new().await;
    let id = harness.cancelled().await;
    let (none, before) = harness.late_starts(id).await;
    assert_eq!(none, [""; 0]);
    assert_eq!(harness.report(id, "w-a", Running).await, [id]);
    let (late, version) = harness.late_starts(id).await;
    assert_eq!((late.as_slice(), version), (["w-a".to_owned()].as_slice(), before + 1));
    assert_eq!(harness.report(id, "w-a", Running).await, [id], "a repeated report asks again");
    assert_eq!(harness.report(id, "w-a", Cancelled).await, [], "it has stopped");
    assert_eq!(harness.late_starts(id).await, (late, version));
    let view =
        harness.store.occurrence(id, 1, harness.clock.now()).await.expect("the query succeeds").expect("it exists");
    assert_eq!(view.row.status, Cancelled);
    assert_eq!(view.changes.iter().map(|step| step.status).collect::<Vec<_>>(), [Queued, Cancelled, Running]);
    // A second instance whose start is late asks too, whether or not the first one had started in time.
    assert_eq!(harness.report(id, "w-b", Running).await, [id]);
    assert_eq!(harness.late_starts(id).await.0, ["w-a", "w-b"]);
    let ended = harness.queued().await;
    assert_eq!(harness.report(ended, "w-a", Completed).await, []);
    assert_eq!(harness.report(ended, "w-b", Running).await, [ended]);
    assert_eq!(harness.late_starts(ended).await.0, [""; 0], "that is a duplicate start");
}

#[tokio::test]
async fn late_report_of_a_normal_run_is_no_late_start() {
    let harness = LateRunHarness::new().await;
    // The start arrives after the end, and both arrive again; the run of the second one was cancelled at its start.
    for end in [Completed, Cancelled] {
        let id = harness.queued().await;
        for status in [end, Running, Running, end] {
            assert_eq!(harness.report(id, "w-a", status).await, [], "{end} {status}");
        }
        assert_eq!(harness.late_starts(id).await.0, [""; 0], "{end}");
    }
}

#[tokio::test]
async fn only_a_run_that_goes_on_after_the_end_is_late() {
    let harness = LateRunHarness::new().await;
    let (cancelled, open, ended) = (harness.cancelled().await, harness.queued().await, harness.queued().await);
    harness.report(open, "w-a", Running).await;
    harness.report(ended, "w-a", Completed).await;
    let later = Duration::minutes(-1);
    harness.heartbeat("w-a", &[cancelled, open, ended], Duration::zero()).await;
    assert_eq!(harness.late_runs(Duration::minutes(1)).await, [], "the heartbeat may have been sent before the end");
    harness.heartbeat("w-a", &[cancelled, open, ended], later).await;
    harness.heartbeat("w-b", &[ended], later).await;
    let mut found = harness.late_runs(Duration::minutes(1)).await;
    found.sort();
    let mut expected = [cancelled, ended];
    expected.sort();
    assert_eq!(found, expected, "w-a has ended its run, and w-b has not");
    assert_eq!(harness.late_runs(Duration::minutes(-2)).await, [], "no instance is alive");
    harness.heartbeat("w-a", &[open], later).await;
    harness.store.store_goodbyes(&["w-b".to_owned()], harness.clock.now()).await.expect("the query succeeds");
    assert_eq!(harness.late_runs(Duration::minutes(1)).await, []);
}

/// Creates an occurrence and cancels it while no worker is there.
async fn cancel_queued(server: &Server) -> OccurrenceId {
    // A message that is not sent at once is marked as sent again, and then checked with the server in any case.
    server.jobs.publisher.wait_until_up().await;
    let (me, form) = (jobs::admin(), jobs::form("Runs"));
    let job = server.jobs.save(&me, &form).await.expect("saved");
    let id = server.jobs.run_now(&me, job, TriggerInput::default()).await.expect("triggered");
    wait::eventually("the message at the broker", || async {
        let view = server.store.occurrence(id, 1, server.clock.now()).await.ok()??;
        view.published_at.map(drop)
    })
    .await;
    assert_eq!(server.jobs.cancel(&me, id, "").await.expect("it is cancelled"), Cancelled);
    id
}

/// Runs a command in the Redis of a server.
pub(crate) async fn redis_command<T: redis::FromRedisValue>(config: &ServerConfig, words: &[&str]) -> T {
    let client = redis::Client::open(config.cache.url.as_str()).expect("a valid URL");
    let mut connection = client.get_multiplexed_async_connection().await.expect("Redis responds");
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query_async(&mut connection).await.expect("the command succeeds")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_occurrence_does_not_start_after_redis_lost_data() {
    let redis = PrivateService::redis().await.expect("Redis starts");
    let mut config = server_env::config().await;
    config.cache.url = redis.url().to_owned();
    let server = server_env::start(&config).await;
    let id = cancel_queued(&server).await;
    redis_command::<()>(&config, &["FLUSHALL"]).await;
    let (gate, stop, address) = (GatedJob::default(), CancellationToken::new(), free_address());
    let worker = worker_env::start_with(&config, &stop, |worker| worker.health(address).job(gate.clone()));
    let dropped = "milvaion_worker_duplicates_dropped_total";
    wait::eventually("the denial", || async {
        http::metric(address.port(), dropped).await.filter(|count| *count > 0.0)
    })
    .await;
    assert_eq!(gate.started(), []);
    stop.cancel();
    worker.await.expect("the worker stops");
    let view = runs::ended(&server, id).await;
    assert_eq!(duplicates::find_starts_after_end(&view.changes), []);
    server.stop().await;
    redis.close().await.expect("Redis is stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_of_a_cancelled_occurrence_is_stopped() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let id = cancel_queued(&server).await;
    let keys = RedisKeys::new(config.cache.key_prefix.as_str());
    let (claim, wish) = (keys.running(id), keys.cancel_request(id));
    // A Redis that lost only these two keys, as far as a worker can tell.
    assert_eq!(redis_command::<i64>(&config, &["DEL", &claim, &wish]).await, 2);
    redis_command::<()>(&config, &["SET", &keys.claims_since(), "1"]).await;
    let (gate, stop) = (GatedJob::default(), CancellationToken::new());
    let worker = worker_env::start_with(&config, &stop, |worker| worker.job(gate.clone()));
    wait::eventually("the end of the run", || async {
        (redis_command::<Option<String>>(&config, &["GET", &claim]).await.as_deref() == Some("done:1")).then_some(())
    })
    .await;
    assert_eq!((gate.started(), gate.complete_one()), (vec![id], None), "it was cancelled");
    let view = wait::eventually("the note", || async {
        let view = runs::ended(&server, id).await;
        (!duplicates::find_starts_after_end(&view.changes).is_empty()).then_some(view)
    })
    .await;
    assert_eq!((view.row.status, view.changes.len()), (Cancelled, 3));
    stop.cancel();
    worker.await.expect("the worker stops");
    server.stop().await;
}

#[tokio::test]
async fn listed_late_run_is_asked_to_stop_at_each_tick() {
    let harness = LateRunHarness::new().await;
    let id = harness.cancelled().await;
    let config = server_env::config().await;
    let cache = milvaion_server::cache::Cache::new(&config.cache).expect("a valid URL");
    let mut task = LateRunStopper {
        store: harness.store.clone(),
        cache,
        clock: harness.clock.clone(),
        pending: Default::default(),
    };
    assert_eq!(task.tick().await.expect("the services respond").asked, 0);
    let idle = task.period();
    harness.heartbeat("w-a", &[id], Duration::seconds(-10)).await;
    let wish = RedisKeys::new(config.cache.key_prefix.as_str()).cancel_request(id);
    for new in [1, 0] {
        let report = task.tick().await.expect("the services respond");
        assert_eq!((report.asked, report.new), (1, new));
        assert!(task.period() < idle);
        let text = redis_command::<Option<String>>(&config, &["GETDEL", &wish]).await.expect("a cancel request");
        assert!(text.contains("The occurrence was already cancelled."), "{text}");
    }
    harness.heartbeat("w-a", &[], Duration::seconds(-10)).await;
    assert_eq!(task.tick().await.expect("the services respond").asked, 0);
    assert_eq!(task.period(), idle);
}
