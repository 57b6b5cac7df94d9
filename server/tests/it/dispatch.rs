//! Dispatching: each due time gets one occurrence, regardless of how many servers try.

use std::collections::HashSet;

use chrono::{DateTime, Duration, Utc};
use futures::{StreamExt, stream};
use milvaion_api::{page::OccurrenceFilter, requests::JobForm};
use milvaion_protocol::{id::JobId, status::OccurrenceStatus};
use milvaion_schedule::{
    due::{DueAction, EffectiveSchedule},
    schedule::Schedule,
};
use milvaion_server::{
    background::{due_index::DueIndexRebuilder, publish_marker::PublishMarker},
    broker::{Broker, publisher::Publisher},
    cache::Cache,
    clock::Clock,
    engine::{Service, sender::MessageSender},
    store::{Store, create::NewRun, jobs::AuditStamp},
};
use milvaion_test_support::{
    database::{self, TestConnection},
    jobs, runs, server_env, wait, worker_env,
};
use tokio_util::sync::CancellationToken;

async fn insert(store: &Store, clock: &Clock, due: DateTime<Utc>) -> JobId {
    jobs::insert(store, clock, Schedule::every(3_600), Some(due)).await
}

/// Dispatches batches until no job is due, as a dispatcher does. Returns the number of occurrences it created.
async fn dispatch_all(store: &Store, clock: &Clock, now: DateTime<Utc>, batch: i64) -> usize {
    let mut created = 0;
    loop {
        let jobs = store.due_jobs(now, batch, &[]).await.expect("the due jobs can be read");
        if jobs.is_empty() {
            return created;
        }
        let planned: Vec<NewRun> = jobs
            .iter()
            .map(|job| {
                let schedule = job.schedule.as_ref().expect("a schedule");
                let decision =
                    EffectiveSchedule::new(job.id, schedule, &job.rules, &[]).decide(job.next_fire_at, now, None);
                NewRun {
                    job_id: job.id,
                    version: job.version,
                    due: Some(job.next_fire_at),
                    next_fire_at: decision.next_fire_at,
                    id: clock.occurrence_id(),
                    is_skipped: decision.action == DueAction::Skip,
                    note: decision.note,
                    ..NewRun::default()
                }
            })
            .collect();
        created += store.create_scheduled_runs(&planned, None, now).await.expect("the query succeeds").len();
    }
}

/// Dispatches `count` due jobs with two dispatchers at once, in batches of a tenth of them.
async fn dispatch_twice(count: usize) {
    let url = database::create().await;
    let (one, two) = (database::open(&url).await, database::open(&url).await);
    let clock = Clock::system();
    let now = clock.now();
    let due = now - Duration::seconds(1);
    // As many at once as there are connections: waiting for a connection fails after ten seconds.
    let inserted = stream::iter(0..count).map(|_| insert(&one, &clock, due)).buffer_unordered(8);
    assert_eq!(inserted.count().await, count);
    let batch = i64::try_from(count / 10).expect("a small number");
    let (first, second) = tokio::join!(dispatch_all(&one, &clock, now, batch), dispatch_all(&two, &clock, now, batch));
    assert_eq!(first + second, count);

    let mut seen = HashSet::new();
    let mut filter = OccurrenceFilter { limit: 200, ..OccurrenceFilter::default() };
    loop {
        let page = one.occurrences(&filter).await.expect("the list can be read");
        for row in &page.rows {
            assert!(seen.insert((row.job_id, row.scheduled_for)), "{} has two occurrences", row.job_id);
        }
        match page.next {
            Some(next) => filter.before = Some(next.parse().expect("a valid id")),
            None => break,
        }
    }
    assert_eq!(seen.len(), count);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_dispatchers_create_each_run_once() {
    dispatch_twice(300).await;
}

#[tokio::test]
async fn due_job_read_before_an_edit_is_not_dispatched() {
    let store = database::fresh().await;
    let clock = Clock::system();
    let now = clock.now();
    let id = insert(&store, &clock, now - Duration::seconds(1)).await;
    let read = store.due_jobs(now, 10, &[]).await.expect("the due jobs can be read").remove(0);
    let edited = jobs::echo_job(Schedule::every(60));
    let edit = AuditStamp { by: "test", at: now, address: None };
    let before = store.job(id).await.expect("the query succeeds").expect("it exists");
    let next = Some(now - Duration::seconds(1));
    store.update_job(&before, &edited, next, edit).await.expect("stored").expect("the version is current");
    let run = NewRun {
        job_id: id,
        version: read.version,
        due: Some(read.next_fire_at),
        id: clock.occurrence_id(),
        ..NewRun::default()
    };
    assert_eq!(store.create_scheduled_runs(&[run], None, now).await.expect("the query succeeds"), []);
}

#[tokio::test]
async fn edit_of_an_old_version_is_refused() {
    let store = database::fresh().await;
    let clock = Clock::system();
    let now = clock.now();
    let id = insert(&store, &clock, now).await;
    let edit = AuditStamp { by: "test", at: now, address: None };
    let job = jobs::echo_job(Schedule::Manual);
    let before = store.job(id).await.expect("the query succeeds").expect("it exists");
    assert_eq!(store.update_job(&before, &job, None, edit).await.expect("the query succeeds"), Some(2));
    assert_eq!(store.update_job(&before, &job, None, edit).await.expect("the query succeeds"), None);
}

#[tokio::test]
async fn edit_does_not_reset_the_due_time() {
    let store = database::fresh().await;
    let clock = Clock::system();
    let now = clock.now();
    let id = insert(&store, &clock, now).await;
    let before = store.job(id).await.expect("the query succeeds").expect("it exists");
    let due = store.due_jobs(now, 10, &[]).await.expect("the due jobs can be read").remove(0);
    let next = now + Duration::seconds(60);
    let run = NewRun {
        job_id: id,
        version: due.version,
        due: Some(due.next_fire_at),
        next_fire_at: Some(next),
        id: clock.occurrence_id(),
        ..NewRun::default()
    };
    assert_eq!(store.create_scheduled_runs(&[run], None, now).await.expect("the query succeeds").len(), 1);
    let edit = AuditStamp { by: "test", at: now, address: None };
    let renamed = jobs::echo_job(Schedule::every(60));
    let stale = store.update_job(&before, &renamed, before.next_fire_at, edit).await;
    assert_eq!(stale.expect("the query succeeds"), None, "it would be dispatched twice");
    let fresh = store.job(id).await.expect("the query succeeds").expect("it exists");
    assert_eq!((fresh.next_fire_at, fresh.last_fire_at), (Some(next), Some(now)));
    assert_eq!(
        store.update_job(&fresh, &renamed, fresh.next_fire_at, edit).await.expect("the query succeeds"),
        Some(2)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_of_an_absent_worker_waits_in_its_queue() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let id = server.jobs.save(&jobs::admin(), &jobs::form("Queued")).await.expect("saved");
    let occurrence = server.jobs.run_now(&jobs::admin(), id, Default::default()).await.expect("triggered");
    wait::eventually("the broker's confirm", || async {
        let view = server.store.occurrence(occurrence, 1, server.clock.now()).await.ok()??;
        view.published_at
    })
    .await;
    let worker = worker_env::start(&config);
    assert_eq!(runs::ended(&server, occurrence).await.row.status, OccurrenceStatus::Completed);
    worker.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn redis_index_is_rebuilt_from_postgresql() {
    let config = server_env::config().await;
    let store = database::open(&config.database.url).await;
    let cache = Cache::new(&config.cache).expect("a valid URL");
    let clock = Clock::system();
    let due = clock.now() + Duration::hours(1);
    let id = insert(&store, &clock, due).await;
    // A member with a wrong time and one without a job.
    let deleted = clock.job_id();
    cache.note_due(&[(id, Some(due + Duration::hours(5))), (deleted, Some(due))]).await.expect("Redis responds");
    assert!(!cache.earliest().await.expect("Redis responds").1, "the index is not complete before it is rebuilt");

    let mut index = DueIndexRebuilder {
        store,
        cache: cache.clone(),
        clock,
        activate_dispatcher: Default::default(),
        period: std::time::Duration::from_secs(60),
    };
    let rebuilt = index.tick().await.expect("rebuilt");
    assert_eq!((rebuilt.jobs, rebuilt.noted, rebuilt.removed), (1, 1, 1));
    let (earliest, complete) = cache.earliest().await.expect("Redis responds");
    assert!(complete);
    assert!((earliest.expect("one job") - due).abs() < Duration::milliseconds(1));
    let again = index.tick().await.expect("rebuilt");
    assert_eq!((again.noted, again.removed), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_job_is_not_due_until_resumed() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let form = JobForm { kind: "every".into(), every: "1".into(), every_unit: "hours".into(), ..jobs::form("Hourly") };
    let id = server.jobs.save(&jobs::admin(), &form).await.expect("saved");
    let ended = server.jobs.set_active(&jobs::admin(), id, false, "holiday").await.expect("paused");
    assert_eq!(ended, None);
    let job = server.store.job(id).await.expect("the query succeeds").expect("it exists");
    assert_eq!((job.next_fire_at, job.paused_reason.as_deref()), (None, Some("holiday")));
    let due =
        server.store.due_jobs(server.clock.now() + Duration::days(30), 10, &[]).await.expect("the query succeeds");
    assert!(due.is_empty());
    let ended = server.jobs.set_active(&jobs::admin(), id, true, "").await.expect("resumed");
    assert_eq!(ended.as_deref(), Some("holiday"), "an undo restores the reason");
    let job = server.store.job(id).await.expect("the query succeeds").expect("it exists");
    assert!(job.next_fire_at.expect("a due time") > server.clock.now() + Duration::minutes(59));
    assert_eq!(job.paused_reason, None);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirmed_messages_are_marked_after_postgresql_has_failed() {
    let config = server_env::config().await;
    let (store, clock) = (database::open(&config.database.url).await, Clock::system());
    let (publisher, keep_open) = Publisher::new(&Broker::new(&config.broker).expect("a valid URL"));
    let stop = CancellationToken::new();
    let connection = tokio::spawn(keep_open(stop.clone()));
    let sender = MessageSender::new(store.clone(), publisher, clock.clone(), Default::default());
    let job_id = jobs::insert(&store, &clock, Schedule::Manual, None).await;
    let run = NewRun { id: clock.occurrence_id(), job_id, by: "test".into(), ..NewRun::default() };
    let created = store.insert_manual_run(&run, clock.now()).await.expect("the query succeeds");
    let queued = created.into_created().expect("created").queued;

    let mut admin = TestConnection::open(&config.database.url).await;
    admin.execute("ALTER TABLE runs RENAME TO gone").await;
    sender.wait_until_ready().await;
    sender.send_created(vec![queued]).await;
    let marker = || PublishMarker { sender: sender.clone() };
    wait::eventually("a failed mark", async || marker().tick().await.err()).await;
    admin.execute("ALTER TABLE gone RENAME TO runs").await;
    assert_eq!(marker().tick().await.expect("the query succeeds").rows, 1);
    stop.cancel();
    connection.await.expect("the connection is closed");
}

mod exhaustive {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn two_dispatchers_create_each_of_thousands_of_runs_once() {
        dispatch_twice(5_000).await;
    }
}
