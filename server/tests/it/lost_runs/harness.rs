//! The lost run detector on a clock that only the test advances. There is no worker: the test sends reports and
//! heartbeats itself.

use std::{sync::Arc, time::Duration};

use milvaion_api::views::{InstanceView, OccurrenceView};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{InstanceHeartbeat, StatusReport},
    status::OccurrenceStatus,
};
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    background::lost_runs::{LostRunDetector, LostRunReport},
    broker::{Broker, echo::Echo},
    cache::Cache,
    clock::{Clock, machine_now},
    config::ServerConfig,
    engine::leadership::Leadership,
    live::Hub,
    store::{Store, lost_runs::LostRunTimeouts},
};
use milvaion_test_support::{
    database::{self, TestConnection},
    jobs, messages, runs, server_env,
};
use tokio::sync::{Mutex, watch};

pub(crate) struct LostRunHarness {
    pub(crate) config: ServerConfig,
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) detector: LostRunDetector,
    /// The detector's monotonic clock, in seconds.
    at: u64,
    /// Sets whether this server leads.
    pub(crate) leads: watch::Sender<Leadership>,
    /// The connection for statements that the store has no function for.
    connection: Mutex<TestConnection>,
    _outbox: tokio::sync::mpsc::Receiver<Vec<milvaion_api::events::EventEnvelope>>,
}

impl LostRunHarness {
    pub(crate) async fn new() -> Self {
        let config = server_env::config().await;
        let store = database::open(&config.database.url).await;
        let clock = Clock::manual(machine_now());
        let connection = Mutex::new(TestConnection::open(&config.database.url).await);
        let (hub, outbox) = Hub::new();
        let (leads, leadership) = watch::channel(Leadership::Leaderless);
        let broker = Broker::new(&config.broker).expect("a valid URL");
        let detector = LostRunDetector {
            store: store.clone(),
            cache: Cache::new(&config.cache).expect("a valid URL"),
            hub,
            clock: clock.clone(),
            echo: Echo::new(&broker).0,
            deaf_since: Default::default(),
            leadership,
            timeouts: LostRunTimeouts { heartbeat: Duration::from_secs(15), unreachable: Duration::from_secs(60) },
            activate_dispatcher: Arc::default(),
            activate_republisher: Arc::default(),
            activate_slot_granter: Arc::default(),
            memory: Default::default(),
        };
        Self { config, store, clock, detector, at: 0, leads, connection, _outbox: outbox }
    }

    /// Starts a run of a job with a policy for lost runs, on an instance that sends a heartbeat for it.
    pub(crate) async fn running(&self, on_lost: &str, instance: &str) -> OccurrenceId {
        let job_id = jobs::insert(&self.store, &self.clock, Schedule::Manual, None).await;
        let id = runs::insert_manual(&self.store, &self.clock, job_id).await;
        self.set(id, &format!("on_lost = '{on_lost}'")).await;
        let hello = messages::hello(instance, self.clock.now());
        self.store.store_hellos(&[hello], self.clock.now()).await.expect("the query succeeds");
        self.start(id, 1, instance).await;
        self.heartbeat(instance, &[id]).await;
        id
    }

    /// Reports the start of an attempt.
    pub(crate) async fn start(&self, id: OccurrenceId, attempt: u32, instance: &str) {
        assert_eq!(self.report(id, attempt, instance, OccurrenceStatus::Running).await, 1);
    }

    /// Reports the status of an attempt. Returns the number of occurrences that changed.
    pub(crate) async fn report(
        &self,
        id: OccurrenceId,
        attempt: u32,
        instance: &str,
        status: OccurrenceStatus,
    ) -> usize {
        let report = StatusReport::new(id, attempt, instance, status, self.clock.now());
        runs::report(&self.store, &self.clock, vec![report]).await
    }

    /// Sends a heartbeat of an instance with its runs.
    pub(crate) async fn heartbeat(&self, instance: &str, running: &[OccurrenceId]) {
        self.send_heartbeat(messages::heartbeat(instance, running, self.clock.now())).await;
    }

    /// Sends a heartbeat of an instance that announces that it stops.
    pub(crate) async fn stopping_heartbeat(&self, instance: &str, running: &[OccurrenceId]) {
        let heartbeat = messages::heartbeat(instance, running, self.clock.now());
        self.send_heartbeat(InstanceHeartbeat { stopping: true, ..heartbeat }).await;
    }

    async fn send_heartbeat(&self, heartbeat: InstanceHeartbeat) {
        let instance = heartbeat.instance_id.clone();
        let stored = self.store.store_heartbeats(&[heartbeat], self.clock.now()).await.expect("the query succeeds");
        assert!(stored.contains_key(&instance));
    }

    /// Sets columns of an occurrence.
    pub(crate) async fn set(&self, id: OccurrenceId, columns: &str) {
        self.execute(&format!("UPDATE runs SET {columns} WHERE id = '{id}'")).await;
    }

    /// Executes a statement.
    pub(crate) async fn execute(&self, sql: &str) {
        self.connection.lock().await.execute(sql).await;
    }

    /// Returns the number that a query selects.
    pub(crate) async fn count(&self, sql: &str) -> i64 {
        self.connection.lock().await.count(sql).await
    }

    /// Advances both clocks in steps of two seconds, each with a tick of the detector. Returns the sum of its reports.
    pub(crate) async fn advance(&mut self, seconds: u64, is_receiving: bool) -> LostRunReport {
        let mut sum = LostRunReport::default();
        for _ in 0..seconds / 2 {
            self.at += 2;
            self.clock.advance(chrono::Duration::seconds(2));
            let report = self.detector.detect(Duration::from_secs(self.at), is_receiving).await;
            let report = report.expect("the tick succeeds");
            sum.stale = report.stale;
            sum.requeued += report.requeued;
            sum.unknown += report.unknown;
            sum.ended += report.ended;
            (sum.unreachable, sum.revoked) = (report.unreachable, report.revoked);
        }
        sum
    }

    /// Returns the first instance of the page *Workers*.
    pub(crate) async fn instance(&self) -> InstanceView {
        let now = self.clock.now();
        let workers = self.store.workers(now - chrono::Duration::days(1), now).await.expect("the query succeeds");
        workers[0].instances[0].clone()
    }

    pub(crate) async fn view(&self, id: OccurrenceId) -> OccurrenceView {
        let view = self.store.occurrence(id, 1, self.clock.now()).await;
        view.expect("the query succeeds").expect("it exists")
    }

    /// Returns an occurrence's status and attempt.
    pub(crate) async fn status(&self, id: OccurrenceId) -> (OccurrenceStatus, i32) {
        let row = self.view(id).await.row;
        (row.status, row.attempt)
    }
}
