//! What people ask of occurrences: run one now, once however often the wish arrives; cancel one, whatever it is doing.

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
    background::{BackgroundTask, cancellations::CancellationRepeater},
    clock::Clock,
    domain::transition::fold,
    lifecycle::Server,
    store::{
        Store,
        jobs::AuditStamp,
        lost_runs::LostRunUpdate,
        manual_runs::{CreatedOccurrence, ManualRunOutcome, ManualRunRefusal, NewManualRun},
    },
};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use milvaion_test_support::{self as common, stack};

/// Whether it is taken, the job's limit, the key and its limit.
type SlotColumns = (bool, Option<i16>, Option<String>, Option<i16>);

/// A job with rules, stored.
async fn job(store: &Store, clock: &Clock, schedule: Schedule, rules: Rules) -> JobId {
    let id = clock.job_id();
    let job = JobInput { rules, ..common::job(schedule) };
    store.insert_job(id, &job, None, AuditStamp { by: "test", at: clock.now() }).await.expect("the job is stored");
    id
}

fn asked(clock: &Clock, job_id: JobId) -> NewManualRun {
    NewManualRun { id: clock.occurrence_id(), job_id, by: "ana".into(), ..NewManualRun::default() }
}

async fn make(store: &Store, clock: &Clock, asked: &NewManualRun) -> ManualRunOutcome {
    store.insert_manual_run(asked, clock.now()).await.expect("answered")
}

async fn made(store: &Store, clock: &Clock, job_id: JobId) -> CreatedOccurrence {
    make(store, clock, &asked(clock, job_id)).await.into_created().expect("made")
}

fn report(clock: &Clock, id: OccurrenceId, status: OccurrenceStatus) -> StatusReport {
    StatusReport::new(id, 1, "w-1", status, clock.now())
}

/// Tells what a worker would tell; returns how many rows changed.
async fn tell(store: &Store, clock: &Clock, id: OccurrenceId, status: OccurrenceStatus) -> usize {
    store.apply(&fold(vec![report(clock, id, status)]), clock.now()).await.expect("answered").rows.len()
}

/// A database with a connection beside the store, for what no function shows.
async fn bare() -> (Store, Clock, PgConnection) {
    let url = common::database_url().await;
    let store = common::open(&url).await;
    let connection = PgConnection::connect(&url).await.expect("PostgreSQL answers");
    (store, Clock::system(), connection)
}

async fn count(connection: &mut PgConnection, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(format!("SELECT count(*) FROM {sql}")))
        .fetch_one(connection)
        .await
        .expect("counted")
}

#[tokio::test]
async fn mv12_what_waits_is_cancelled_at_once_and_everything_about_it_is_settled() {
    let (store, clock, mut db) = bare().await;
    let from_end = Schedule::Every { seconds: 60, from: IntervalAnchor::End };
    let rules = Rules { overlap: OverlapPolicy::Queue, ..Rules::default() };
    let job_id = job(&store, &clock, from_end, rules).await;
    let made = made(&store, &clock, job_id).await;
    assert!(made.is_held);
    assert_eq!(count(&mut db, "slots").await, 1);

    let now = clock.now();
    let edit = AuditStamp { by: "ana", at: now };
    let changed = store.cancel(&[made.row.id], Some("not today"), edit).await.expect("answered");
    assert_eq!(changed.len(), 1);
    assert_eq!((changed[0].row.status, changed[0].was), (OccurrenceStatus::Cancelled, OccurrenceStatus::Queued));
    let begun = store.schedule_after_end(now).await.expect("answered");
    assert_eq!(begun, [(job_id, now + Duration::seconds(60))], "the pause begins with the end");
    assert_eq!(count(&mut db, "slots").await, 0, "the slot is free again");
    assert_eq!(count(&mut db, "occurrences WHERE is_held").await, 0);
    assert_eq!(count(&mut db, "stats_minute WHERE status = 4 AND count = 1").await, 1);
    let audit = store.audit_entries(Some(&format!("occurrence:{}", made.row.id)), 10).await.expect("answered");
    assert_eq!(audit.iter().map(|entry| entry.action.as_str()).collect::<Vec<_>>(), ["occurrence.cancel"]);
    let view = store.occurrence(made.row.id, 1, now).await.expect("answered").expect("there");
    assert_eq!(view.row.note.as_deref(), Some("Cancelled by ana: not today"));
    assert_eq!(view.changes.len(), 2);
    assert!(view.row.version > made.row.version);

    for late in [OccurrenceStatus::Running, OccurrenceStatus::Completed, OccurrenceStatus::Failed] {
        assert_eq!(tell(&store, &clock, made.row.id, late).await, 0, "{late} comes too late");
    }
    assert!(store.cancel(&[made.row.id], None, edit).await.expect("answered").is_empty());
}

#[tokio::test]
async fn a_pause_that_ends_before_a_job_may_begin_lasts_until_it_may() {
    let (store, clock, _) = bare().await;
    let from_end = Schedule::Every { seconds: 60, from: IntervalAnchor::End };
    let now = clock.now();
    let start_at = now + Duration::hours(1);
    let rules = Rules { start_at: Some(start_at), ..Rules::default() };
    let job_id = job(&store, &clock, from_end, rules).await;
    assert_eq!(store.schedule_after_end(now).await.expect("answered"), [(job_id, start_at)]);
}

#[tokio::test]
async fn what_runs_is_asked_to_end_once_and_its_worker_has_the_last_word() {
    let (store, clock, mut db) = bare().await;
    let job_id = job(&store, &clock, Schedule::Manual, Rules::default()).await;
    let (first, second) = (made(&store, &clock, job_id).await.row, made(&store, &clock, job_id).await.row);
    for row in [&first, &second] {
        assert_eq!(tell(&store, &clock, row.id, OccurrenceStatus::Running).await, 1);
    }
    let edit = AuditStamp { by: "ana", at: clock.now() };
    let ids = [first.id, second.id];
    let changed = store.cancel(&ids, None, edit).await.expect("answered");
    assert!(changed.iter().all(|one| one.row.status == OccurrenceStatus::Running && one.row.version == 3));
    assert!(changed.iter().all(|one| one.row.note.as_deref() == Some("ana asked it to end")));
    assert!(store.cancel(&ids, None, edit).await.expect("answered").is_empty(), "the wish is noted once");
    assert_eq!(store.open_cancel_requests(10).await.expect("answered").len(), 2);
    assert_eq!(count(&mut db, "stats_minute WHERE status = 4").await, 0, "nothing has ended yet");

    assert_eq!(tell(&store, &clock, first.id, OccurrenceStatus::Cancelled).await, 1);
    assert_eq!(tell(&store, &clock, second.id, OccurrenceStatus::Completed).await, 1);
    assert!(store.open_cancel_requests(10).await.expect("answered").is_empty());
}

#[tokio::test]
async fn what_is_lost_is_cancelled_without_its_worker() {
    let (store, clock, _) = bare().await;
    let job_id = job(&store, &clock, Schedule::Manual, Rules::default()).await;
    let id = made(&store, &clock, job_id).await.row.id;
    tell(&store, &clock, id, OccurrenceStatus::Running).await;
    let lost = LostRunUpdate {
        id,
        attempt: 1,
        was: OccurrenceStatus::Running,
        last_seen_at: None,
        status: OccurrenceStatus::Unknown,
        note: "its worker fell silent".into(),
        cause: None,
        is_quarantined: false,
    };
    assert_eq!(store.update_lost_runs(&[lost], None, clock.now()).await.expect("settled").rows.len(), 1);
    let edit = AuditStamp { by: "ana", at: clock.now() };
    let changed = store.cancel(&[id], None, edit).await.expect("answered");
    assert_eq!((changed[0].row.status, changed[0].was), (OccurrenceStatus::Cancelled, OccurrenceStatus::Unknown));
}

/// The values Redis holds for an occurrence: its claim, and the wish that it should end.
async fn marks(server: &Server, redis: &str, id: OccurrenceId) -> (Option<String>, Option<String>) {
    let client = redis::Client::open(redis).expect("a URL");
    let mut connection = client.get_multiplexed_async_connection().await.expect("Redis answers");
    let keys = server.cache.keys();
    redis::pipe()
        .get(keys.running(id))
        .get(keys.cancel_request(id))
        .query_async(&mut connection)
        .await
        .expect("Redis answers")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_message_of_a_cancelled_occurrence_is_dropped_by_the_worker_that_gets_it() {
    let config = stack::config().await;
    let server = stack::server(&config).await;
    let me = stack::admin();
    let id = server.jobs.save(&me, &stack::form("Waits")).await.expect("saved");
    let cancelled = server.jobs.run_now(&me, id, TriggerInput::default()).await.expect("triggered");
    stack::eventually("the confirm of the broker", || async {
        server.store.occurrence(cancelled, 1, server.clock.now()).await.ok()??.published_at
    })
    .await;
    assert_eq!(server.jobs.cancel(&me, cancelled, "").await.expect("cancelled"), OccurrenceStatus::Cancelled);
    assert_eq!(marks(&server, &config.cache.url, cancelled).await.0.as_deref(), Some("done:1"));
    let refused = server.jobs.cancel(&me, cancelled, "").await.expect_err("it has ended");
    assert!(matches!(&refused, AppError::Conflict(words) if words.contains("Cancelled")), "{refused}");
    let nobody = server.jobs.cancel(&me, server.clock.occurrence_id(), "").await;
    assert!(matches!(nobody, Err(AppError::NotFound(_))));

    let worker = stack::worker(&config);
    // The queue keeps its order, so once the second has ended, the first was looked at.
    let next = server.jobs.run_now(&me, id, TriggerInput::default()).await.expect("triggered");
    assert_eq!(stack::ended(&server, next).await.row.status, OccurrenceStatus::Completed);
    assert_eq!(worker.started(), [next]);
    let row = server.store.occurrence(cancelled, 1, server.clock.now()).await.expect("answered").expect("there").row;
    assert_eq!(row.status, OccurrenceStatus::Cancelled);
    worker.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wish_to_end_a_run_is_repeated_until_it_has_ended() {
    let config = stack::config().await;
    let server = stack::server(&config).await;
    let me = stack::admin();
    let id = server.jobs.save(&me, &stack::form("Runs")).await.expect("saved");
    let run = server.jobs.run_now(&me, id, TriggerInput::default()).await.expect("triggered");
    assert_eq!(tell(&server.store, &server.clock, run, OccurrenceStatus::Running).await, 1);

    let client = redis::Client::open(config.cache.url.as_str()).expect("a URL");
    let mut channel = client.get_async_pubsub().await.expect("Redis answers");
    channel.subscribe(server.cache.keys().cancellation_channel()).await.expect("subscribed");
    let mut heard = channel.into_on_message();
    let mut next = async || {
        let message =
            tokio::time::timeout(stack::WAIT_TIMEOUT, heard.next()).await.expect("heard in time").expect("open");
        let text: String = message.get_payload().expect("text");
        serde_json::from_str::<CancelMessage>(&text).expect("readable")
    };
    assert_eq!(server.jobs.cancel(&me, run, "too slow").await.expect("asked"), OccurrenceStatus::Running);
    for _ in 0..3 {
        let wish = next().await;
        assert_eq!((wish.occurrence_id, wish.attempt), (run, 1));
        assert_eq!(wish.reason, "ana@example.org asked it to end: too slow");
    }
    let (claim, wish) = marks(&server, &config.cache.url, run).await;
    assert_eq!(claim, None, "a claim that is held is left to its holder");
    assert!(wish.is_some_and(|text| text.contains(&run.to_string())));

    assert_eq!(tell(&server.store, &server.clock, run, OccurrenceStatus::Cancelled).await, 1);
    let mut task = CancellationRepeater { jobs: server.jobs.clone(), pending: 1 };
    assert_eq!(task.tick().await.expect("answered").requested, 0);
    assert!(task.period() > std::time::Duration::from_secs(1), "with nothing to repeat it sleeps");
    server.stop().await;
}

#[tokio::test]
async fn a_wish_to_end_what_went_back_to_the_queue_cancels_it() {
    let config = stack::config().await;
    let server = stack::server(&config).await;
    let job_id = job(&server.store, &server.clock, Schedule::Manual, Rules::default()).await;
    let id = made(&server.store, &server.clock, job_id).await.row.id;
    tell(&server.store, &server.clock, id, OccurrenceStatus::Running).await;
    server.jobs.cancel(&stack::admin(), id, "").await.expect("asked");
    tell(&server.store, &server.clock, id, OccurrenceStatus::Unknown).await;
    // The server's own task does it, or this one; whoever comes second finds nothing to do.
    CancellationRepeater { jobs: server.jobs.clone(), pending: 0 }.tick().await.expect("answered");
    assert_eq!(stack::ended(&server, id).await.row.status, OccurrenceStatus::Cancelled);
    server.stop().await;
}

#[tokio::test]
async fn the_same_key_is_the_same_run() {
    let (store, clock, mut db) = bare().await;
    let job_id = job(&store, &clock, Schedule::Manual, Rules::default()).await;
    let other = job(&store, &clock, Schedule::Manual, Rules::default()).await;
    let wish = |job_id| NewManualRun { key: Some("k".into()), ..asked(&clock, job_id) };
    let mut racing = Vec::new();
    for _ in 0..8 {
        let (store, clock, wish) = (store.clone(), clock.clone(), wish(job_id));
        racing.push(tokio::spawn(async move { (wish.id, make(&store, &clock, &wish).await) }));
    }
    let mut winners = Vec::new();
    let mut led_to = Vec::new();
    for one in racing {
        match one.await.expect("no panic") {
            (id, ManualRunOutcome::Created(_)) => winners.push(id),
            (_, ManualRunOutcome::Duplicate(id)) => led_to.push(id),
            (_, other) => panic!("{other:?}"),
        }
    }
    assert_eq!((winners.len(), led_to.len()), (1, 7));
    assert!(led_to.iter().all(|id| *id == winners[0]));
    assert_eq!(count(&mut db, "occurrences").await, 1);
    assert_eq!(count(&mut db, "audit_log WHERE action = 'job.run'").await, 1);
    assert!(
        matches!(make(&store, &clock, &wish(other)).await, ManualRunOutcome::Created(_)),
        "another job's key is another key"
    );

    // A week later it is forgotten, swept or not.
    let later = clock.now() + Duration::days(8);
    let again = store.insert_manual_run(&wish(job_id), later).await.expect("answered");
    assert!(matches!(again, ManualRunOutcome::Created(_)));
    assert_eq!(store.delete_old_trigger_keys(later).await.expect("answered"), 1);
}

#[tokio::test]
async fn a_paused_job_and_a_paused_cluster_run_nothing_unless_forced() {
    let (store, clock, mut db) = bare().await;
    let id = clock.job_id();
    let paused = JobInput { is_active: false, ..common::job(Schedule::Manual) };
    store.insert_job(id, &paused, None, AuditStamp { by: "test", at: clock.now() }).await.expect("stored");
    let refused = make(&store, &clock, &asked(&clock, id)).await;
    assert!(matches!(refused, ManualRunOutcome::Refused(ManualRunRefusal::JobPaused)), "{refused:?}");
    let forced = NewManualRun { force: true, ..asked(&clock, id) };
    assert!(matches!(make(&store, &clock, &forced).await, ManualRunOutcome::Created(_)));

    let active = job(&store, &clock, Schedule::Manual, Rules::default()).await;
    sqlx::query("INSERT INTO cluster_pause (since, by_whom, reason) VALUES (now(), 'ana', 'a migration')")
        .execute(&mut db)
        .await
        .expect("paused");
    let refused = make(&store, &clock, &asked(&clock, active)).await;
    assert!(
        matches!(&refused, ManualRunOutcome::Refused(ManualRunRefusal::ClusterPaused(why)) if why == "a migration"),
        "{refused:?}"
    );
    let forced = NewManualRun { force: true, ..asked(&clock, active) };
    assert!(matches!(make(&store, &clock, &forced).await, ManualRunOutcome::Created(_)));
    assert!(matches!(make(&store, &clock, &asked(&clock, clock.job_id())).await, ManualRunOutcome::JobNotFound));
}

#[tokio::test]
async fn a_job_that_skips_overlaps_is_run_by_one_of_many_who_ask_at_once() {
    let (store, clock, mut db) = bare().await;
    let rules = Rules { overlap: OverlapPolicy::Skip, ..Rules::default() };
    let job_id = job(&store, &clock, Schedule::Manual, rules).await;
    let wish = |force| NewManualRun { exclusive: true, force, ..asked(&clock, job_id) };
    let mut racing = Vec::new();
    for _ in 0..8 {
        let (store, clock, wish) = (store.clone(), clock.clone(), wish(false));
        racing.push(tokio::spawn(async move { make(&store, &clock, &wish).await }));
    }
    let mut made = 0;
    for one in racing {
        match one.await.expect("no panic") {
            ManualRunOutcome::Created(_) => made += 1,
            ManualRunOutcome::Refused(ManualRunRefusal::PreviousRunOpen) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(made, 1);
    let forced = make(&store, &clock, &wish(true)).await.into_created().expect("made");
    assert!(!forced.is_held);
    assert_eq!(count(&mut db, "slots WHERE is_taken").await, 1, "what was forced has its slot at once");
    assert_eq!(count(&mut db, "slots").await, 2);
}

#[tokio::test]
async fn an_occurrence_carries_the_rules_of_its_job_and_waits_where_they_say_so() {
    let (store, clock, mut db) = bare().await;
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
            let made = made(&store, &clock, job_id).await;
            assert_eq!(made.is_held, rules.needs_slot(), "{rules:?}");
            let slot: Option<SlotColumns> =
                sqlx::query_as("SELECT is_taken, job_limit, key, key_limit FROM slots WHERE occurrence_id = $1")
                    .bind(made.row.id.0)
                    .fetch_optional(&mut db)
                    .await
                    .expect("answered");
            let wanted = rules.needs_slot().then(|| {
                let key = rules.key_limit.clone();
                let limit = key.as_ref().map(|key| i16::try_from(key.limit).expect("small"));
                // One that is asked for and must not overlap takes its turn: the other may be made at this very moment.
                let turns = (rules.overlap == OverlapPolicy::Skip).then_some(1);
                let own = turns.or(rules.job_limit()).map(|limit| i16::try_from(limit).expect("small"));
                (false, own, key.map(|key| key.key), limit)
            });
            assert_eq!(slot, wanted, "{rules:?}");
            let copied: (String, Option<i32>, i16, Option<i64>) = sqlx::query_as(
                "SELECT on_lost, heartbeat_timeout_seconds, max_retries, pause_after_seconds FROM occurrences WHERE id = $1",
            )
            .bind(made.row.id.0)
            .fetch_one(&mut db)
            .await
            .expect("there");
            assert_eq!(copied.0, rules.on_lost.as_str());
            assert_eq!(copied.1, rules.heartbeat_timeout_seconds.map(|s| i32::try_from(s).expect("small")));
            assert_eq!(copied.2, i16::try_from(rules.max_retries).expect("small"));
            assert_eq!(copied.3, schedule.delay_after_end().map(|s| i64::try_from(s).expect("small")));
        }
    }
}
