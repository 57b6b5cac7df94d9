//! A run whose worker is gone is not gone with it, and a server that heard nothing does not blame the workers.

mod common;

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use common::stack;
use protocol::{
    id::OccurrenceId,
    message::{Heartbeat, Hello, StatusReport},
    schedule::Schedule,
    status::OccurrenceStatus,
    view::OccurrenceView,
};
use server::{
    background::{
        Task,
        lease::{LEADER, Leadership},
        lost_messages::LostMessages,
        zombies::{Ears, Judged, Zombies},
    },
    broker::{Broker, depth::QueueProbe},
    cache::Cache,
    clock::Clock,
    config::Config,
    domain::transition::fold,
    live::Hub,
    store::{Store, asked::Asked, leases::Fence, lost::Settled},
};
use sqlx::Connection;
use tokio::sync::{Notify, watch};

struct Bench {
    config: Config,
    store: Store,
    clock: Clock,
    zombies: Zombies,
    /// Of the detector's monotonic clock, in seconds.
    at: u64,
    /// Keeps the leadership's channel open.
    _leads: watch::Sender<Leadership>,
    _outbox: tokio::sync::mpsc::Receiver<Vec<protocol::event::Envelope>>,
}

impl Bench {
    async fn new() -> Self {
        let config = stack::config().await;
        let store = common::open(&config.database.url).await;
        let clock = Clock::manual(server::clock::machine_now());
        let (hub, outbox) = Hub::new();
        let (leads, leadership) = watch::channel(Leadership::Nobody);
        let broker = Broker::new(&config.broker).expect("a URL");
        let zombies = Zombies {
            store: store.clone(),
            cache: Cache::new(&config.cache).expect("a URL"),
            hub,
            clock: clock.clone(),
            ears: Ears::new(broker),
            leadership,
            limit: Duration::from_secs(15),
            wake: Arc::default(),
            republish: Arc::default(),
            release: Arc::default(),
            watch: Zombies::watch(),
        };
        Self { config, store, clock, zombies, at: 0, _leads: leads, _outbox: outbox }
    }

    /// An occurrence of a job with a rule for lost runs, running on an instance that speaks of it.
    async fn running(&self, on_lost: &str, instance: &str) -> OccurrenceId {
        let job_id = common::insert(&self.store, &self.clock, Schedule::Manual, None).await;
        let asked = Asked { id: self.clock.occurrence_id(), job_id, by: "test".into(), ..Asked::default() };
        self.store.make_asked(&asked, self.clock.now()).await.expect("answered").new_row().expect("made");
        self.set(asked.id, &format!("on_lost = '{on_lost}'")).await;
        let hello = Hello {
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

    async fn start(&self, id: OccurrenceId, attempt: u32, instance: &str) {
        assert_eq!(self.report(id, attempt, instance, OccurrenceStatus::Running).await, 1);
    }

    async fn report(&self, id: OccurrenceId, attempt: u32, instance: &str, status: OccurrenceStatus) -> usize {
        let report = StatusReport {
            occurrence_id: id,
            attempt,
            instance_id: instance.into(),
            status,
            timestamp: self.clock.now(),
            result: None,
            exception: None,
            duration_ms: None,
            progress: None,
            permanent: false,
            retry_after_ms: None,
        };
        self.store.apply(&fold(vec![report]), self.clock.now()).await.expect("answered").rows.len()
    }

    async fn beat(&self, instance: &str, running: &[OccurrenceId]) {
        let beat = Heartbeat {
            worker_id: "w".into(),
            instance_id: instance.into(),
            running: running.to_vec(),
            notice: None,
            timestamp: self.clock.now(),
        };
        assert!(self.store.heartbeat(&beat, self.clock.now()).await.expect("answered").is_some());
    }

    async fn set(&self, id: OccurrenceId, what: &str) {
        let mut connection = sqlx::PgConnection::connect(&self.config.database.url).await.expect("PostgreSQL answers");
        let text = format!("UPDATE occurrences SET {what} WHERE id = '{id}'");
        sqlx::query(sqlx::AssertSqlSafe(text)).execute(&mut connection).await.expect("set");
    }

    /// A number the database tells.
    async fn count(&self, sql: &str) -> i64 {
        let mut connection = sqlx::PgConnection::connect(&self.config.database.url).await.expect("PostgreSQL answers");
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql.to_owned())).fetch_one(&mut connection).await.expect("answered")
    }

    /// Lets time pass with a look every two seconds. Returns what was done in all.
    async fn pass(&mut self, seconds: u64, hears: bool) -> Judged {
        let mut all = Judged::default();
        for _ in 0..seconds / 2 {
            self.at += 2;
            self.clock.advance(chrono::Duration::seconds(2));
            let judged = self.zombies.look(Duration::from_secs(self.at), hears).await.expect("answered");
            all.silent = judged.silent;
            all.requeued += judged.requeued;
            all.unknown += judged.unknown;
            all.ended += judged.ended;
        }
        all
    }

    async fn view(&self, id: OccurrenceId) -> OccurrenceView {
        self.store.occurrence(id, 1, self.clock.now()).await.expect("answered").expect("there")
    }

    async fn status(&self, id: OccurrenceId) -> (OccurrenceStatus, i32) {
        let row = self.view(id).await.row;
        (row.status, row.attempt)
    }
}

#[tokio::test]
async fn mv13_a_run_whose_worker_fell_silent_is_run_again_within_twenty_seconds() {
    let mut bench = Bench::new().await;
    bench.pass(30, true).await;
    let id = bench.running("requeue", "w-1").await;
    assert_eq!(bench.pass(14, true).await.requeued, 0);
    assert_eq!(bench.pass(4, true).await.requeued, 1);
    let view = bench.view(id).await;
    assert_eq!((view.row.status, view.row.attempt), (OccurrenceStatus::Queued, 2));
    assert_eq!((view.row.instance_id, view.row.started_at, view.published_at), (None, None, None));
    let step = view.changes.last().expect("a step");
    assert!(step.note.as_deref().is_some_and(|note| note.contains("its worker fell silent")), "{step:?}");
    assert_eq!(step.attempt, 2);
    bench.zombies.republish.notified().await;

    // The first worker comes back and speaks of an attempt that is over.
    assert_eq!(bench.report(id, 1, "w-1", OccurrenceStatus::Completed).await, 0);
    assert_eq!(bench.report(id, 2, "w-2", OccurrenceStatus::Completed).await, 1);
    assert_eq!(bench.status(id).await, (OccurrenceStatus::Completed, 2));
}

#[tokio::test]
async fn a_worker_that_speaks_of_its_run_keeps_it_for_ever() {
    let mut bench = Bench::new().await;
    bench.pass(30, true).await;
    let id = bench.running("requeue", "w-1").await;
    for _ in 0..30 {
        assert_eq!(bench.pass(4, true).await.requeued, 0);
        bench.beat("w-1", &[id]).await;
    }
    assert_eq!(bench.status(id).await, (OccurrenceStatus::Running, 1));
    // It lives on, but no longer speaks of this run: started anew, say.
    bench.beat("w-1", &[]).await;
    let mut lost = 0;
    for _ in 0..5 {
        lost += bench.pass(4, true).await.requeued;
        bench.beat("w-1", &[]).await;
    }
    assert_eq!(lost, 1);
    assert_eq!(bench.status(id).await, (OccurrenceStatus::Queued, 2));
}

#[tokio::test]
async fn a_server_that_heard_nothing_for_two_minutes_blames_nobody() {
    let mut bench = Bench::new().await;
    bench.pass(30, true).await;
    let id = bench.running("requeue", "w-1").await;
    assert_eq!(bench.pass(120, false).await.requeued, 0);
    // It hears again: everybody has the whole limit to be heard of.
    assert_eq!(bench.pass(14, true).await.requeued, 0);
    bench.beat("w-1", &[id]).await;
    assert_eq!(bench.pass(4, true).await.requeued, 0);
    assert_eq!(bench.status(id).await, (OccurrenceStatus::Running, 1));
    assert_eq!(bench.pass(14, true).await.requeued, 1, "who stays silent is lost");
}

#[tokio::test]
async fn a_run_that_ended_four_workers_lives_is_not_given_to_a_fifth() {
    let mut bench = Bench::new().await;
    bench.pass(30, true).await;
    let id = bench.running("requeue", "w-1").await;
    for attempt in 2..=4 {
        assert_eq!(bench.pass(18, true).await.requeued, 1, "attempt {attempt}");
        bench.start(id, attempt, "w-1").await;
    }
    let judged = bench.pass(18, true).await;
    assert_eq!((judged.requeued, judged.ended), (0, 1));
    assert_eq!(bench.status(id).await, (OccurrenceStatus::Failed, 4));
    bench.zombies.release.notified().await;
    let kept = format!("SELECT count(*) FROM failed_occurrences WHERE occurrence_id = '{id}' AND cause = 'poison'");
    assert_eq!(bench.count(&kept).await, 1);
    assert_eq!(bench.count("SELECT coalesce(sum(count), 0)::bigint FROM stats_minute WHERE status = 3").await, 1);
}

#[tokio::test]
async fn a_run_that_must_not_be_repeated_waits_ten_minutes_for_a_late_word() {
    let mut bench = Bench::new().await;
    bench.pass(30, true).await;
    let (one, two) = (bench.running("fail", "w-1").await, bench.running("fail", "w-2").await);
    assert_eq!(bench.pass(18, true).await.unknown, 2);
    let view = bench.view(one).await;
    assert_eq!((view.row.status, view.row.attempt), (OccurrenceStatus::Unknown, 1));
    assert!(view.row.note.as_deref().is_some_and(|note| note.contains("its worker fell silent")));
    assert_eq!(bench.report(one, 1, "w-1", OccurrenceStatus::Completed).await, 1, "late, but it counts");
    assert_eq!(bench.status(one).await.0, OccurrenceStatus::Completed);

    assert_eq!(bench.pass(580, true).await.ended, 0);
    assert_eq!(bench.status(two).await.0, OccurrenceStatus::Unknown);
    assert_eq!(bench.pass(30, true).await.ended, 1);
    assert_eq!(bench.status(two).await.0, OccurrenceStatus::Failed);
    let kept = format!("SELECT count(*) FROM failed_occurrences WHERE occurrence_id = '{two}' AND cause = 'lost'");
    assert_eq!(bench.count(&kept).await, 1);
    assert_eq!(bench.report(two, 1, "w-2", OccurrenceStatus::Completed).await, 0, "too late");
}

#[tokio::test]
async fn a_lost_run_that_somebody_wanted_to_end_has_ended() {
    let mut bench = Bench::new().await;
    bench.pass(30, true).await;
    let id = bench.running("requeue", "w-1").await;
    bench.set(id, "cancel_requested_at = now(), cancel_requested_by = 'ana@example.org'").await;
    assert_eq!(bench.pass(18, true).await.ended, 1);
    assert_eq!(bench.status(id).await, (OccurrenceStatus::Cancelled, 1));
}

#[tokio::test]
async fn a_jobs_own_limit_counts() {
    let mut bench = Bench::new().await;
    bench.pass(30, true).await;
    let id = bench.running("requeue", "w-1").await;
    bench.set(id, "zombie_timeout_seconds = 60").await;
    assert_eq!(bench.pass(56, true).await.requeued, 0);
    assert_eq!(bench.pass(6, true).await.requeued, 1);
}

#[tokio::test]
async fn a_sign_of_life_between_the_look_and_the_deed_saves_the_run_and_an_old_leader_settles_nothing() {
    let bench = Bench::new().await;
    let id = bench.running("requeue", "w-1").await;
    let seen: DateTime<Utc> = bench.clock.now();
    let settled = |sign| Settled {
        id,
        attempt: 1,
        was: OccurrenceStatus::Running,
        sign: Some(sign),
        status: OccurrenceStatus::Queued,
        note: "its worker fell silent".into(),
        cause: None,
    };
    bench.clock.advance(chrono::Duration::seconds(5));
    bench.beat("w-1", &[id]).await;
    let now = bench.clock.now();
    assert!(bench.store.settle_lost(&[settled(seen)], None, now).await.expect("answered").rows.is_empty());

    let old: Fence = bench.store.take_lease(LEADER, "one", now).await.expect("answered");
    let new = bench.store.take_lease(LEADER, "two", now).await.expect("answered");
    assert!(bench.store.settle_lost(&[settled(now)], Some(old), now).await.expect("answered").rows.is_empty());
    assert_eq!(bench.status(id).await, (OccurrenceStatus::Running, 1));
    assert_eq!(bench.store.settle_lost(&[settled(now)], Some(new), now).await.expect("answered").rows.len(), 1);
    assert!(bench.store.settle_lost(&[settled(now)], Some(new), now).await.expect("answered").rows.is_empty(), "once");
}

#[tokio::test]
async fn a_settled_run_gives_its_slot_back_and_starts_the_pause_after_it() {
    let mut bench = Bench::new().await;
    bench.pass(30, true).await;
    let id = bench.running("requeue", "w-1").await;
    let job = bench.view(id).await.row.job_id;
    bench.set(id, "rescues = 3, pause_after_seconds = 60").await;
    bench.count(&format!(
        "WITH s AS (INSERT INTO slots (occurrence_id, created_at, job_id, priority, is_taken) VALUES ('{id}', now(), '{job}', 3, true) RETURNING 1),
              j AS (UPDATE jobs SET schedule = '{{\"kind\": \"every\", \"seconds\": 60, \"from\": \"end\"}}' WHERE id = '{job}' RETURNING 1)
         SELECT count(*) FROM s, j"
    ))
    .await;
    assert_eq!(bench.pass(18, true).await.ended, 1);
    assert_eq!(bench.count("SELECT count(*) FROM slots").await, 0);
    // The releaser, which is woken here, begins the pause.
    bench.zombies.release.notified().await;
    let now = bench.view(id).await.row.ended_at.expect("ended");
    let begun = bench.store.begin_pauses(now).await.expect("answered");
    assert_eq!(begun, [(job, now + chrono::Duration::seconds(60))]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ears_hear_only_while_the_broker_delivers() {
    let config = stack::config().await;
    let server = stack::server(&config).await;
    let mut config_elsewhere = config.clone();
    config_elsewhere.broker.prefix = common::unique("elsewhere");
    let bench = Bench::new().await;
    // Nobody consumes what this broker's names stand for: whatever is silent there, nobody is blamed.
    let mut deaf = bench.zombies;
    deaf.ears = Ears::new(Broker::new(&config_elsewhere.broker).expect("a URL"));
    deaf.tick().await.expect("answered");
    assert_eq!(deaf.watch.seeing_for(), Duration::ZERO);
    // The server's own detector does its rounds and finds nobody missing.
    stack::eventually("a worker's run", || async {
        let worker = stack::worker(&config);
        let id = server.jobs.save(&stack::admin(), &stack::form("alive")).await.ok()?;
        let id = server.jobs.trigger(&stack::admin(), id, Default::default()).await.ok()?;
        let view = stack::ended(&server, id).await;
        worker.stop().await;
        (view.row.status == OccurrenceStatus::Completed && view.row.attempt == 1).then_some(())
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_was_deleted_takes_no_occurrence_with_it() {
    let mut config = stack::config().await;
    config.background.republish = Duration::from_millis(200);
    let server = stack::server(&config).await;
    let job = server.jobs.save(&stack::admin(), &stack::form("lost")).await.expect("saved");
    let id = server.jobs.trigger(&stack::admin(), job, Default::default()).await.expect("asked for");
    let published = || async {
        let view = server.store.occurrence(id, 1, server.clock.now()).await.ok()??;
        view.published_at
    };
    stack::eventually("the first message", published).await;

    let broker = Broker::new(&config.broker).expect("a URL");
    let queue = broker.topology().job_queue("w", "echo");
    let connection = broker.connect("test").await.expect("the broker answers");
    let channel = connection.create_channel().await.expect("a channel");
    let gone = channel.queue_delete(queue.as_str().into(), Default::default()).await.expect("deleted");
    assert_eq!(gone, 1, "the message was in it");

    let again = Arc::new(Notify::new());
    let (_leads, leadership) = watch::channel(Leadership::Nobody);
    let mut lost = LostMessages {
        store: server.store.clone(),
        broker: broker.clone(),
        probe: QueueProbe::new(broker.clone()),
        clock: server.clock.clone(),
        leadership,
        after: Duration::ZERO,
        republish: again.clone(),
    };
    let missed = lost.tick().await.expect("answered");
    assert_eq!((missed.waiting, missed.lost), (1, 1));
    again.notified().await;
    stack::eventually("the second message", published).await;
    let missed = lost.tick().await.expect("answered");
    assert_eq!((missed.waiting, missed.lost), (1, 0), "it is there, so it is left alone");

    let worker = stack::worker(&config);
    assert_eq!(stack::ended(&server, id).await.row.status, OccurrenceStatus::Completed);
    assert_eq!(worker.started(), [id]);
    worker.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn what_an_instance_warns_of_is_shown_until_a_heartbeat_comes_without_it() {
    let bench = Bench::new().await;
    let id = bench.running("requeue", "w-1").await;
    let beat = async |instance: &str, notice: Option<String>| {
        let beat = Heartbeat {
            worker_id: "w".into(),
            instance_id: instance.into(),
            running: vec![id],
            notice,
            timestamp: bench.clock.now(),
        };
        bench.store.heartbeat(&beat, bench.clock.now()).await.expect("answered")
    };
    let shown = async || {
        let now = bench.clock.now();
        let workers = bench.store.workers(now - chrono::Duration::days(1), now).await.expect("answered");
        workers[0].instances[0].notice.clone()
    };
    let full = || Some("The disk is full.".to_owned());
    assert_eq!(beat("w-1", None).await, Some(false));
    assert_eq!(beat("w-1", full()).await, Some(true));
    assert_eq!(beat("w-1", full()).await, Some(false), "nobody need look again");
    assert_eq!(shown().await, full());
    assert_eq!(beat("w-1", Some(format!("Too long:\0{}", "ü".repeat(1_000)))).await, Some(true));
    let cut = shown().await.expect("shown");
    assert!(cut.starts_with("Too long:") && cut.len() <= 500, "{cut}");
    assert_eq!(beat("w-1", Some(" ".into())).await, Some(true));
    assert_eq!(shown().await, None);
    assert_eq!(beat("w-2", full()).await, None, "it has not said hello");
}
