//! Manual runs, which a repeated request does not duplicate, and the cancellation of occurrences in every state.

use std::collections::BTreeSet;

use chrono::Duration;
use futures::StreamExt;
use milvaion_api::requests::JobInput;
use milvaion_app::{backend::TriggerInput, error::AppError};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::{CancelMessage, StatusReport},
    status::OccurrenceStatus,
};
use milvaion_schedule::{
    rules::{ConcurrencyKeyLimit, OverlapPolicy, Rules},
    schedule::{IntervalAnchor, Schedule},
};
use milvaion_server::{
    background::cancellations::CancellationRepeater,
    clock::Clock,
    engine::{Service, activators::LateRuns},
    lifecycle::Server,
    store::{
        Store,
        cancel::CancelPosition,
        create::{CreatedRun, IDEMPOTENCY_KEY_RETENTION, NewRun},
        jobs::AuditStamp,
        lost_runs::LostRunUpdate,
        manual_runs::{ManualRunOutcome, ManualRunRefusal},
        retention::ExpiringTable,
    },
};
use milvaion_test_support::{database, jobs, runs, server_env, wait, worker_env};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

/// The columns `is_taken`, `job_limit`, `key` and `key_limit`.
type SlotColumns = (bool, Option<i16>, Option<String>, Option<i16>);

/// Inserts a job with rules.
async fn job(store: &Store, clock: &Clock, schedule: Schedule, rules: Rules) -> JobId {
    jobs::insert_job(store, clock, &JobInput { rules, ..jobs::echo_job(schedule) }, None).await
}

fn request(clock: &Clock, job_id: JobId) -> NewRun {
    NewRun { id: clock.occurrence_id(), job_id, by: "ana".into(), ..NewRun::default() }
}

async fn insert(store: &Store, clock: &Clock, request: &NewRun) -> ManualRunOutcome {
    store.insert_manual_run(request, clock.now()).await.expect("the query succeeds")
}

async fn create(store: &Store, clock: &Clock, job_id: JobId) -> CreatedRun {
    insert(store, clock, &request(clock, job_id)).await.into_created().expect("it is created")
}

/// Reports the status of an occurrence's first attempt. Returns the number of occurrences that changed.
async fn report(store: &Store, clock: &Clock, id: OccurrenceId, status: OccurrenceStatus) -> usize {
    runs::report(store, clock, vec![StatusReport::new(id, 1, "w-1", status, clock.now())]).await
}

/// Records that an occurrence's first attempt was lost, which leads to `status`. Returns the number of occurrences that
/// changed.
async fn lose(store: &Store, clock: &Clock, id: OccurrenceId, status: OccurrenceStatus) -> usize {
    let lost = LostRunUpdate {
        id,
        attempt: 1,
        was: OccurrenceStatus::Running,
        last_seen_at: None,
        status,
        note: "no heartbeat".into(),
        cause: None,
        is_quarantined: false,
        counts_as_requeue: true,
    };
    store.update_lost_runs(&[lost], None, clock.now()).await.expect("the query succeeds").rows.len()
}

/// Returns a store on a new database, and a connection for queries that the store has no function for.
async fn open() -> (Store, Clock, PgConnection) {
    let url = database::create().await;
    let store = database::open(&url).await;
    let connection = PgConnection::connect(&url).await.expect("PostgreSQL responds");
    (store, Clock::system(), connection)
}

async fn count(connection: &mut PgConnection, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(format!("SELECT count(*) FROM {sql}")))
        .fetch_one(connection)
        .await
        .expect("the query succeeds")
}

#[tokio::test]
async fn queued_occurrence_is_cancelled_at_once() {
    let (store, clock, mut db) = open().await;
    let from_end = Schedule::Every { seconds: 60, from: IntervalAnchor::End };
    let rules = Rules { overlap: OverlapPolicy::Queue, ..Rules::default() };
    let job_id = job(&store, &clock, from_end, rules).await;
    let created = create(&store, &clock, job_id).await;
    assert!(created.queued.is_held);
    assert_eq!(count(&mut db, "runs WHERE slot_group IS NOT NULL").await, 1);

    let now = clock.now();
    let edit = AuditStamp { by: "ana", at: now, address: None };
    let changed = store.cancel(&[created.row.id], Some("not today"), edit).await.expect("the query succeeds");
    assert_eq!(changed.len(), 1);
    assert_eq!((changed[0].row.status, changed[0].was), (OccurrenceStatus::Cancelled, OccurrenceStatus::Queued));
    let scheduled = store.schedule_after_end(None, now).await.expect("the query succeeds");
    assert_eq!(scheduled, [(job_id, now + Duration::seconds(60))], "the interval starts at the end");
    assert_eq!(count(&mut db, "runs WHERE slot_group IS NOT NULL").await, 0, "the slot is free again");
    assert_eq!(count(&mut db, "occurrences WHERE is_held").await, 0);
    assert_eq!(count(&mut db, "stats_minute WHERE status = 'cancelled' AND count = 1").await, 1);
    let audit =
        store.audit_entries(Some(&format!("occurrence:{}", created.row.id)), 10).await.expect("the query succeeds");
    assert_eq!(audit.iter().map(|entry| entry.action.as_str()).collect::<Vec<_>>(), ["occurrence.cancel"]);
    let view = store.occurrence(created.row.id, 1, now).await.expect("the query succeeds").expect("it exists");
    assert_eq!(view.row.note.as_deref(), Some("Cancelled by ana: not today"));
    assert_eq!(view.changes.len(), 2);
    assert!(view.row.version > created.row.version);

    for late in [OccurrenceStatus::Running, OccurrenceStatus::Completed, OccurrenceStatus::Failed] {
        assert_eq!(report(&store, &clock, created.row.id, late).await, 0, "{late} arrives too late");
    }
    assert!(store.cancel(&[created.row.id], None, edit).await.expect("the query succeeds").is_empty());
}

#[tokio::test]
async fn interval_from_the_end_respects_the_start_date() {
    let (store, clock, _) = open().await;
    let from_end = Schedule::Every { seconds: 60, from: IntervalAnchor::End };
    let now = clock.now();
    let start_at = now + Duration::hours(1);
    let rules = Rules { start_at: Some(start_at), ..Rules::default() };
    let job_id = job(&store, &clock, from_end, rules).await;
    assert_eq!(store.schedule_after_end(None, now).await.expect("the query succeeds"), [(job_id, start_at)]);
}

#[tokio::test]
async fn running_occurrence_is_cancelled_by_its_worker() {
    let (store, clock, mut db) = open().await;
    let job_id = job(&store, &clock, Schedule::Manual, Rules::default()).await;
    let (first, second) = (create(&store, &clock, job_id).await.row, create(&store, &clock, job_id).await.row);
    for row in [&first, &second] {
        assert_eq!(report(&store, &clock, row.id, OccurrenceStatus::Running).await, 1);
    }
    let edit = AuditStamp { by: "ana", at: clock.now(), address: None };
    let ids = [first.id, second.id];
    let changed = store.cancel(&ids, None, edit).await.expect("the query succeeds");
    assert!(changed.iter().all(|one| one.row.status == OccurrenceStatus::Running && one.row.version == 3));
    assert!(changed.iter().all(|one| one.row.note.as_deref() == Some("Cancellation requested by ana")));
    assert!(changed.iter().all(|one| one.row.is_cancelling()));
    assert!(
        store.cancel(&ids, None, edit).await.expect("the query succeeds").is_empty(),
        "the request is recorded once"
    );
    // Both were requested at the same time.
    let start = CancelPosition::default();
    let page = store.open_cancel_requests(start, 1).await.expect("the query succeeds");
    let rest = store.open_cancel_requests(page[0].position(), 10).await.expect("the query succeeds");
    let found: BTreeSet<OccurrenceId> = page.iter().chain(&rest).map(|one| one.id).collect();
    assert_eq!((page.len(), rest.len()), (1, 1));
    assert_eq!(found, BTreeSet::from(ids), "a page begins behind the one before");
    assert_eq!(count(&mut db, "stats_minute WHERE status = 'cancelled'").await, 0, "nothing has ended yet");

    assert_eq!(report(&store, &clock, first.id, OccurrenceStatus::Cancelled).await, 1);
    assert_eq!(report(&store, &clock, second.id, OccurrenceStatus::Completed).await, 1);
    assert!(store.open_cancel_requests(start, 10).await.expect("the query succeeds").is_empty());
}

#[tokio::test]
async fn lost_run_is_cancelled_without_its_worker() {
    let (store, clock, _) = open().await;
    let job_id = job(&store, &clock, Schedule::Manual, Rules::default()).await;
    let id = create(&store, &clock, job_id).await.row.id;
    report(&store, &clock, id, OccurrenceStatus::Running).await;
    assert_eq!(lose(&store, &clock, id, OccurrenceStatus::Unknown).await, 1);
    let edit = AuditStamp { by: "ana", at: clock.now(), address: None };
    let changed = store.cancel(&[id], None, edit).await.expect("the query succeeds");
    assert_eq!((changed[0].row.status, changed[0].was), (OccurrenceStatus::Cancelled, OccurrenceStatus::Unknown));
}

/// Returns an occurrence's values in Redis: its claim and its cancel request.
async fn redis_values(server: &Server, redis: &str, id: OccurrenceId) -> (Option<String>, Option<String>) {
    let client = redis::Client::open(redis).expect("a valid URL");
    let mut connection = client.get_multiplexed_async_connection().await.expect("Redis responds");
    let keys = server.cache.keys();
    redis::pipe()
        .get(keys.running(id))
        .get(keys.cancel_request(id))
        .query_async(&mut connection)
        .await
        .expect("Redis responds")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_of_a_cancelled_occurrence_is_dropped() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let me = jobs::admin();
    let id = server.jobs.save(&me, &jobs::form("Queued")).await.expect("saved");
    let cancelled = server.jobs.run_now(&me, id, TriggerInput::default()).await.expect("triggered");
    wait::eventually("the broker's confirm", || async {
        server.store.occurrence(cancelled, 1, server.clock.now()).await.ok()??.published_at
    })
    .await;
    assert_eq!(server.jobs.cancel(&me, cancelled, "").await.expect("cancelled"), OccurrenceStatus::Cancelled);
    assert_eq!(redis_values(&server, &config.cache.url, cancelled).await.0.as_deref(), Some("done:1"));
    // The end of an earlier attempt does not replace that of a later one.
    let later = server.clock.occurrence_id();
    for (attempt, mark) in [(2, "done:2"), (1, "done:2"), (3, "done:3")] {
        server.cache.end_claims(&[(cancelled, 1), (later, attempt)]).await.expect("Redis responds");
        assert_eq!(redis_values(&server, &config.cache.url, later).await.0.as_deref(), Some(mark), "{attempt}");
    }
    let refused = server.jobs.cancel(&me, cancelled, "").await.expect_err("it has ended");
    assert!(matches!(&refused, AppError::Conflict(words) if words.contains("Cancelled")), "{refused}");
    let unknown = server.jobs.cancel(&me, server.clock.occurrence_id(), "").await;
    assert!(matches!(unknown, Err(AppError::NotFound(_))));

    let worker = worker_env::start(&config);
    // The queue keeps its order: when the second run has ended, the first message was handled.
    let next = server.jobs.run_now(&me, id, TriggerInput::default()).await.expect("triggered");
    assert_eq!(runs::ended(&server, next).await.row.status, OccurrenceStatus::Completed);
    assert_eq!(worker.started(), [next]);
    let view = server.store.occurrence(cancelled, 1, server.clock.now()).await.expect("the query succeeds");
    assert_eq!(view.expect("it exists").row.status, OccurrenceStatus::Cancelled);
    worker.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancel_request_is_repeated_until_the_run_ends() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let me = jobs::admin();
    let id = server.jobs.save(&me, &jobs::form("Runs")).await.expect("saved");
    let run = server.jobs.run_now(&me, id, TriggerInput::default()).await.expect("triggered");
    assert_eq!(report(&server.store, &server.clock, run, OccurrenceStatus::Running).await, 1);

    let client = redis::Client::open(config.cache.url.as_str()).expect("a valid URL");
    let mut channel = client.get_async_pubsub().await.expect("Redis responds");
    channel.subscribe(server.cache.keys().cancellation_channel()).await.expect("subscribed");
    let mut messages = channel.into_on_message();
    let mut next = async || {
        let message = tokio::time::timeout(wait::WAIT_TIMEOUT, messages.next()).await;
        let message = message.expect("within the timeout").expect("the subscription is open");
        let text: String = message.get_payload().expect("valid UTF-8");
        serde_json::from_str::<CancelMessage>(&text).expect("a cancel message")
    };
    assert_eq!(server.jobs.cancel(&me, run, "too slow").await.expect("it is requested"), OccurrenceStatus::Running);
    for _ in 0..3 {
        let message = next().await;
        assert_eq!((message.occurrence_id, message.attempt), (run, Some(1)));
        assert_eq!(message.reason, "Cancellation requested by ana@example.org: too slow");
    }
    let (claim, stored) = redis_values(&server, &config.cache.url, run).await;
    assert_eq!(claim, None, "the claim belongs to the instance that runs the occurrence");
    assert!(stored.is_some_and(|text| text.contains(&run.to_string())));

    assert_eq!(report(&server.store, &server.clock, run, OccurrenceStatus::Cancelled).await, 1);
    let mut task = CancellationRepeater {
        jobs: server.jobs.clone(),
        late_runs: LateRuns::default(),
        pending: 1,
        after: CancelPosition::default(),
    };
    assert_eq!(task.tick().await.expect("the query succeeds").requested, 0);
    assert!(task.period() > std::time::Duration::from_secs(1), "with no request to repeat, the period is long");
    server.stop().await;
}

#[tokio::test]
async fn cancel_request_of_a_requeued_run_cancels_it() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let job_id = job(&server.store, &server.clock, Schedule::Manual, Rules::default()).await;
    for lost in [OccurrenceStatus::Queued, OccurrenceStatus::Unknown] {
        let id = create(&server.store, &server.clock, job_id).await.row.id;
        assert_eq!(report(&server.store, &server.clock, id, OccurrenceStatus::Running).await, 1);
        server.jobs.cancel(&jobs::admin(), id, "").await.expect("it is requested");
        assert_eq!(lose(&server.store, &server.clock, id, lost).await, 1);
        // The server's own task or this one does it; the second of them has nothing to do.
        CancellationRepeater {
            jobs: server.jobs.clone(),
            late_runs: LateRuns::default(),
            pending: 0,
            after: CancelPosition::default(),
        }
        .tick()
        .await
        .expect("the query succeeds");
        let row = runs::ended(&server, id).await.row;
        assert_eq!(row.status, OccurrenceStatus::Cancelled);
        // The lost run detector would write another note.
        assert_eq!(row.note.as_deref(), Some("Cancelled by ana@example.org"), "was {lost}");
    }
    server.stop().await;
}

#[tokio::test]
async fn manual_runs_with_one_key_are_one_run() {
    let (store, clock, mut db) = open().await;
    let job_id = job(&store, &clock, Schedule::Manual, Rules::default()).await;
    let other = job(&store, &clock, Schedule::Manual, Rules::default()).await;
    let keyed = |job_id| NewRun { key: Some("k".into()), ..request(&clock, job_id) };
    let mut racing = Vec::new();
    for _ in 0..8 {
        let (store, clock, request) = (store.clone(), clock.clone(), keyed(job_id));
        racing.push(tokio::spawn(async move { (request.id, insert(&store, &clock, &request).await) }));
    }
    let mut created = Vec::new();
    let mut existing = Vec::new();
    for one in racing {
        match one.await.expect("the task does not panic") {
            (id, ManualRunOutcome::Created(_)) => created.push(id),
            (_, ManualRunOutcome::Duplicate(id)) => existing.push(id),
            (_, other) => panic!("{other:?}"),
        }
    }
    assert_eq!((created.len(), existing.len()), (1, 7));
    assert!(existing.iter().all(|id| *id == created[0]));
    assert_eq!(count(&mut db, "occurrences").await, 1);
    assert_eq!(count(&mut db, "audit_log WHERE action = 'job.run'").await, 1);
    assert!(
        matches!(insert(&store, &clock, &keyed(other)).await, ManualRunOutcome::Created(_)),
        "keys belong to their job"
    );

    // A week later the key has expired, even if it is not deleted yet.
    let later = clock.now() + Duration::days(8);
    let again = store.insert_manual_run(&keyed(job_id), later).await.expect("the query succeeds");
    assert!(matches!(again, ManualRunOutcome::Created(_)));
    let expired = later - IDEMPOTENCY_KEY_RETENTION;
    assert_eq!(store.delete_expired(ExpiringTable::TriggerKeys, expired).await.expect("the query succeeds"), 1);
}

#[tokio::test]
async fn paused_jobs_and_clusters_need_force() {
    let (store, clock, mut db) = open().await;
    let paused = JobInput { is_active: false, ..jobs::echo_job(Schedule::Manual) };
    let id = jobs::insert_job(&store, &clock, &paused, None).await;
    let refused = insert(&store, &clock, &request(&clock, id)).await;
    assert!(matches!(refused, ManualRunOutcome::Refused(ManualRunRefusal::JobPaused)), "{refused:?}");
    let forced = NewRun { force: true, ..request(&clock, id) };
    assert!(matches!(insert(&store, &clock, &forced).await, ManualRunOutcome::Created(_)));

    let active = job(&store, &clock, Schedule::Manual, Rules::default()).await;
    sqlx::query("INSERT INTO cluster_pause (since, by_whom, reason) VALUES (now(), 'ana', 'a migration')")
        .execute(&mut db)
        .await
        .expect("paused");
    let refused = insert(&store, &clock, &request(&clock, active)).await;
    assert!(
        matches!(&refused, ManualRunOutcome::Refused(ManualRunRefusal::ClusterPaused(reason)) if reason == "a migration"),
        "{refused:?}"
    );
    let forced = NewRun { force: true, ..request(&clock, active) };
    assert!(matches!(insert(&store, &clock, &forced).await, ManualRunOutcome::Created(_)));
    assert!(matches!(insert(&store, &clock, &request(&clock, clock.job_id())).await, ManualRunOutcome::JobNotFound));
}

#[tokio::test]
async fn concurrent_manual_runs_do_not_overlap() {
    let (store, clock, mut db) = open().await;
    let rules = Rules { overlap: OverlapPolicy::Skip, ..Rules::default() };
    let job_id = job(&store, &clock, Schedule::Manual, rules).await;
    let exclusive = |force| NewRun { force, ..request(&clock, job_id) };
    let mut racing = Vec::new();
    for _ in 0..8 {
        let (store, clock, request) = (store.clone(), clock.clone(), exclusive(false));
        racing.push(tokio::spawn(async move { insert(&store, &clock, &request).await }));
    }
    let mut created = 0;
    for one in racing {
        match one.await.expect("the task does not panic") {
            ManualRunOutcome::Created(_) => created += 1,
            ManualRunOutcome::Refused(ManualRunRefusal::PreviousRunOpen) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(created, 1);
    let forced = insert(&store, &clock, &exclusive(true)).await.into_created().expect("it is created");
    assert!(!forced.queued.is_held);
    assert_eq!(
        count(&mut db, "runs WHERE slot_group IS NOT NULL AND has_slot").await,
        1,
        "the forced run has its slot at once"
    );
    assert_eq!(count(&mut db, "runs WHERE slot_group IS NOT NULL").await, 2);
}

#[tokio::test]
async fn occurrence_copies_the_rules_of_its_job() {
    let (store, clock, mut db) = open().await;
    let key = Some(ConcurrencyKeyLimit { key: "db".into(), limit: 3 });
    let table = [
        Rules::default(),
        Rules { overlap: OverlapPolicy::Skip, ..Rules::default() },
        Rules { overlap: OverlapPolicy::Skip, max_concurrent: Some(4), ..Rules::default() },
        Rules { overlap: OverlapPolicy::Queue, max_concurrent: Some(4), ..Rules::default() },
        Rules { overlap: OverlapPolicy::Replace, ..Rules::default() },
        Rules { max_concurrent: Some(2), ..Rules::default() },
        Rules { key_limit: key, max_retries: 5, heartbeat_timeout_seconds: Some(20), ..Rules::default() },
    ];
    for rules in table {
        for schedule in
            [Schedule::Manual, Schedule::every(9), Schedule::Every { seconds: 9, from: IntervalAnchor::End }]
        {
            let job_id = job(&store, &clock, schedule.clone(), rules.clone()).await;
            let created = create(&store, &clock, job_id).await;
            assert_eq!(created.queued.is_held, rules.needs_slot(), "{rules:?}");
            let slot: Option<SlotColumns> = sqlx::query_as(
                "SELECT has_slot, slot_limit, slot_key, slot_key_limit FROM runs WHERE id = $1 AND slot_group = job_id",
            )
            .bind(created.row.id.0)
            .fetch_optional(&mut db)
            .await
            .expect("the query succeeds");
            let expected = rules.needs_slot().then(|| {
                let key = rules.key_limit.clone();
                let limit = key.as_ref().map(|key| i16::try_from(key.limit).expect("a small number"));
                // A manual run that must not overlap needs a slot: another one may be created at the same moment.
                let exclusive = (rules.overlap == OverlapPolicy::Skip).then_some(1);
                let own = exclusive.or(rules.job_limit()).map(|limit| i16::try_from(limit).expect("a small number"));
                (false, own, key.map(|key| key.key), limit)
            });
            assert_eq!(slot, expected, "{rules:?}");
            let copied: (String, Option<i32>, i16, Option<i64>) = sqlx::query_as(
                "SELECT on_lost, heartbeat_timeout_seconds, max_retries, pause_after_seconds FROM runs WHERE id = $1",
            )
            .bind(created.row.id.0)
            .fetch_one(&mut db)
            .await
            .expect("it exists");
            assert_eq!(copied.0, rules.on_lost.as_str());
            assert_eq!(copied.1, rules.heartbeat_timeout_seconds.map(|s| i32::try_from(s).expect("a small number")));
            assert_eq!(copied.2, i16::try_from(rules.max_retries).expect("a small number"));
            assert_eq!(copied.3, schedule.delay_after_end().map(|s| i64::try_from(s).expect("a small number")));
        }
    }
}
