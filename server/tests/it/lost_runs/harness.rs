//! The detector of lost runs, on a clock that is moved by hand, and no worker: the test says what one would report.

use std::{sync::Arc, time::Duration};

use milvaion_api::views::OccurrenceView;
use milvaion_protocol::{
    id::OccurrenceId,
    message::{InstanceHeartbeat, InstanceHello, StatusReport},
    status::OccurrenceStatus,
};
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    background::{
        lease::Leadership,
        lost_runs::{HeartbeatFeed, LostRunDetector, LostRunReport},
    },
    broker::Broker,
    cache::Cache,
    clock::Clock,
    config::ServerConfig,
    domain::transition::fold,
    live::Hub,
    store::{Store, manual_runs::NewManualRun},
};
use sqlx::Connection;
use tokio::sync::watch;

use milvaion_test_support::{self as common, stack};

pub(crate) struct LostRunHarness {
    pub(crate) config: ServerConfig,
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) zombies: LostRunDetector,
    /// Of the detector's monotonic clock, in seconds.
    at: u64,
    /// Says whether this server leads.
    pub(crate) leads: watch::Sender<Leadership>,
    _outbox: tokio::sync::mpsc::Receiver<Vec<milvaion_api::events::EventEnvelope>>,
}

impl LostRunHarness {
    pub(crate) async fn new() -> Self {
        let config = stack::config().await;
        let store = common::open(&config.database.url).await;
        let clock = Clock::manual(milvaion_server::clock::machine_now());
        let (hub, outbox) = Hub::new();
        let (leads, leadership) = watch::channel(Leadership::Leaderless);
        let broker = Broker::new(&config.broker).expect("a URL");
        let zombies = LostRunDetector {
            store: store.clone(),
            cache: Cache::new(&config.cache).expect("a URL"),
            hub,
            clock: clock.clone(),
            heartbeat_feed: HeartbeatFeed::new(broker),
            leadership,
            heartbeat_timeout: Duration::from_secs(15),
            activate_dispatcher: Arc::default(),
            activate_republisher: Arc::default(),
            activate_slot_granter: Arc::default(),
            watch: LostRunDetector::watch(),
        };
        Self { config, store, clock, zombies, at: 0, leads, _outbox: outbox }
    }

    /// An occurrence of a job with a rule for lost runs, running on an instance that speaks of it.
    pub(crate) async fn running(&self, on_lost: &str, instance: &str) -> OccurrenceId {
        let job_id = common::insert(&self.store, &self.clock, Schedule::Manual, None).await;
        let asked =
            NewManualRun { id: self.clock.occurrence_id(), job_id, by: "test".into(), ..NewManualRun::default() };
        self.store.insert_manual_run(&asked, self.clock.now()).await.expect("answered").into_created().expect("made");
        self.set(asked.id, &format!("on_lost = '{on_lost}'")).await;
        let hello = InstanceHello {
            worker_id: "w".into(),
            instance_id: instance.into(),
            host: "h".into(),
            pid: 1,
            version: "1".into(),
            capacity: 1,
            job_types: Vec::new(),
            timestamp: self.clock.now(),
        };
        self.store.hello(&hello, self.clock.now()).await.expect("answered");
        self.start(asked.id, 1, instance).await;
        self.beat(instance, &[asked.id]).await;
        asked.id
    }

    pub(crate) async fn start(&self, id: OccurrenceId, attempt: u32, instance: &str) {
        assert_eq!(self.report(id, attempt, instance, OccurrenceStatus::Running).await, 1);
    }

    pub(crate) async fn report(
        &self,
        id: OccurrenceId,
        attempt: u32,
        instance: &str,
        status: OccurrenceStatus,
    ) -> usize {
        let report = StatusReport::new(id, attempt, instance, status, self.clock.now());
        self.store.apply(&fold(vec![report]), self.clock.now()).await.expect("answered").rows.len()
    }

    pub(crate) async fn beat(&self, instance: &str, running: &[OccurrenceId]) {
        let beat = InstanceHeartbeat {
            worker_id: "w".into(),
            instance_id: instance.into(),
            running: running.to_vec(),
            notice: None,
            timestamp: self.clock.now(),
        };
        assert!(self.store.heartbeat(&beat, self.clock.now()).await.expect("answered").is_some());
    }

    pub(crate) async fn set(&self, id: OccurrenceId, what: &str) {
        let mut connection = sqlx::PgConnection::connect(&self.config.database.url).await.expect("PostgreSQL answers");
        let text = format!("UPDATE occurrences SET {what} WHERE id = '{id}'");
        sqlx::query(sqlx::AssertSqlSafe(text)).execute(&mut connection).await.expect("set");
    }

    /// A number the database tells.
    pub(crate) async fn count(&self, sql: &str) -> i64 {
        let mut connection = sqlx::PgConnection::connect(&self.config.database.url).await.expect("PostgreSQL answers");
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql.to_owned())).fetch_one(&mut connection).await.expect("answered")
    }

    /// Lets time pass with a look every two seconds. Returns what was done in all.
    pub(crate) async fn pass(&mut self, seconds: u64, hears: bool) -> LostRunReport {
        let mut all = LostRunReport::default();
        for _ in 0..seconds / 2 {
            self.at += 2;
            self.clock.advance(chrono::Duration::seconds(2));
            let judged = self.zombies.detect(Duration::from_secs(self.at), hears).await.expect("answered");
            all.silent = judged.silent;
            all.requeued += judged.requeued;
            all.unknown += judged.unknown;
            all.ended += judged.ended;
        }
        all
    }

    pub(crate) async fn view(&self, id: OccurrenceId) -> OccurrenceView {
        self.store.occurrence(id, 1, self.clock.now()).await.expect("answered").expect("there")
    }

    pub(crate) async fn status(&self, id: OccurrenceId) -> (OccurrenceStatus, i32) {
        let row = self.view(id).await.row;
        (row.status, row.attempt)
    }
}
