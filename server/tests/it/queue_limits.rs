//! The bounds of the queue: open occurrences of one job, and the time for which an occurrence waits for a worker.

use chrono::Duration;
use milvaion_api::{events::LiveEvent, requests::JobInput};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::StatusReport,
    status::OccurrenceStatus,
};
use milvaion_schedule::{
    rules::Rules,
    schedule::{IntervalAnchor, Schedule},
};
use milvaion_server::{
    background::queue_expiry::QueueExpiry,
    cache::Cache,
    clock::{Clock, machine_now},
    engine::{Service, activators::Activators},
    live::Hub,
    store::{
        Store,
        create::{MAX_OPEN_RUNS_PER_JOB, NewRun},
        finish::MissedRun,
        manual_runs::{ManualRunOutcome, ManualRunRefusal},
    },
};
use milvaion_test_support::{
    database::{self, TestConnection},
    jobs, runs, server_env,
};

use crate::late_runs::redis_command;

/// Dispatches a due job. Returns the status and the note of its occurrence.
async fn dispatch(store: &Store, clock: &Clock, job_id: JobId) -> (OccurrenceStatus, Option<String>) {
    let due = store.due_jobs(clock.now(), 10, &[]).await.expect("the query succeeds");
    let due = due.iter().find(|due| due.id == job_id).expect("it is due");
    let run = NewRun {
        job_id,
        version: due.version,
        due: Some(due.next_fire_at),
        next_fire_at: Some(due.next_fire_at + Duration::milliseconds(1)),
        id: clock.occurrence_id(),
        ..NewRun::default()
    };
    let created = store.create_scheduled_runs(&[run], None, clock.now()).await.expect("the statement succeeds");
    (created[0].row.status, created[0].row.note.clone())
}

#[tokio::test]
async fn job_has_a_bounded_number_of_open_occurrences() {
    let url = database::create().await;
    let store = database::open(&url).await;
    let clock = Clock::manual(machine_now());
    let job_id = jobs::insert(&store, &clock, Schedule::every(60), Some(clock.now())).await;
    let mut connection = TestConnection::open(&url).await;
    connection
        .execute(format!(
            "INSERT INTO runs (id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger,
                               status, priority)
             SELECT gen_random_uuid(), now(), '{job_id}', 'x', 1, 'w', 't', now(), 'schedule', 'queued', 3
               FROM generate_series(1, {MAX_OPEN_RUNS_PER_JOB} - 1)"
        ))
        .await;
    assert_eq!(dispatch(&store, &clock, job_id).await, (OccurrenceStatus::Queued, None));
    let (status, note) = dispatch_later(&store, &clock, job_id).await;
    assert_eq!(status, OccurrenceStatus::Skipped);
    assert_eq!(note.as_deref(), Some("Skipped: 10000 occurrences of the job are open already."));
    let request = NewRun { id: clock.occurrence_id(), job_id, by: "ana".into(), ..NewRun::default() };
    for force in [false, true] {
        let request = NewRun { force, ..request.clone() };
        let outcome = store.insert_manual_run(&request, clock.now()).await.expect("the statement succeeds");
        assert!(
            matches!(outcome, ManualRunOutcome::Refused(ManualRunRefusal::TooManyOpenRuns)),
            "forced: {force}: {outcome:?}"
        );
    }
    connection.execute("DELETE FROM runs WHERE id IN (SELECT id FROM runs LIMIT 1)").await;
    let outcome = store.insert_manual_run(&request, clock.now()).await.expect("the statement succeeds");
    assert!(matches!(outcome, ManualRunOutcome::Created(_)), "{outcome:?}");
}

async fn dispatch_later(store: &Store, clock: &Clock, job_id: JobId) -> (OccurrenceStatus, Option<String>) {
    clock.advance(Duration::seconds(1));
    dispatch(store, clock, job_id).await
}

#[tokio::test]
async fn run_that_is_handed_back_for_weeks_keeps_a_short_history() {
    let store = database::fresh().await;
    let clock = Clock::manual(machine_now());
    let job_id = jobs::insert(&store, &clock, Schedule::Manual, None).await;
    let id = runs::insert_manual(&store, &clock, job_id).await;
    let attempts = 150;
    for attempt in 1..=attempts {
        for status in [OccurrenceStatus::Running, OccurrenceStatus::Queued] {
            let report = StatusReport {
                retry_after_ms: Some(60_000),
                ..StatusReport::new(id, attempt, "w-1", status, clock.now())
            };
            assert_eq!(runs::report_with_retries(&store, &clock, vec![report]).await.rows.len(), 1);
        }
        clock.advance(Duration::seconds(61));
        assert_eq!(store.release_delayed(clock.now(), 10).await.expect("the query succeeds").len(), 1);
    }
    let changes = store.occurrence(id, 1, clock.now()).await.expect("the query succeeds").expect("it exists").changes;
    assert!(changes.len() <= 204, "{}", changes.len());
    let kept = |attempt: i32| changes.iter().any(|change| change.attempt == attempt);
    assert!(kept(1) && kept(20) && kept(100) && kept(150));
    assert!(!kept(40), "the middle is left out");
}

#[tokio::test]
async fn occurrence_that_no_worker_begins_is_skipped() {
    let config = server_env::config().await;
    let store = database::open(&config.database.url).await;
    let cache = Cache::new(&config.cache).expect("a valid URL");
    let clock = Clock::manual(machine_now());
    let (hub, mut events) = Hub::new();
    let limit = Duration::hours(36);
    let mut expiry = QueueExpiry {
        store: store.clone(),
        cache: cache.clone(),
        hub,
        clock: clock.clone(),
        limit,
        activators: Activators::default(),
        is_redis_away: false,
    };
    let job_id = jobs::insert(&store, &clock, Schedule::Manual, None).await;
    let insert = async || runs::insert_manual(&store, &clock, job_id).await;
    let (waiting, running, retried) = (insert().await, insert().await, insert().await);
    let rules = Rules { max_concurrent: Some(1), ..Rules::default() };
    let limited = JobInput { rules, ..jobs::echo_job(Schedule::Manual) };
    let limited = jobs::insert_job(&store, &clock, &limited, None).await;
    let without_slot = runs::insert_manual(&store, &clock, limited).await;
    let report = async |id: OccurrenceId, status| {
        let report = StatusReport {
            retry_after_ms: Some(24 * 3_600_000),
            ..StatusReport::new(id, 1, "w-1", status, clock.now())
        };
        assert_eq!(runs::report_with_retries(&store, &clock, vec![report]).await.rows.len(), 1);
    };
    report(running, OccurrenceStatus::Running).await;
    // Handed back for a day.
    report(retried, OccurrenceStatus::Queued).await;
    clock.advance(limit - Duration::seconds(1));
    let young = insert().await;
    assert_eq!(expiry.tick().await.expect("the tick succeeds").skipped, 0);
    clock.advance(Duration::seconds(2));
    assert_eq!(expiry.tick().await.expect("the tick succeeds").skipped, 2);
    let status =
        async |id| store.occurrence(id, 1, clock.now()).await.expect("the query succeeds").expect("it exists").row;
    let row = status(waiting).await;
    assert_eq!(row.status, OccurrenceStatus::Skipped);
    assert_eq!(row.note.as_deref(), Some("Skipped: no worker began it within 36 hours."));
    let pushed = events.try_recv().expect("an event");
    let LiveEvent::Occurrences { rows } = &pushed[0].event else { panic!("{pushed:?}") };
    let is_pushed = |id: OccurrenceId| rows.iter().any(|row| row.id == id);
    assert!(is_pushed(waiting) && is_pushed(without_slot), "{pushed:?}");
    for id in [running, retried, young] {
        assert!(!status(id).await.status.is_final(), "{id}");
    }
    let released = store.release_delayed(clock.now(), 10).await.expect("the statement succeeds");
    assert_eq!(released.len(), 1);
    store.mark_published(&[runs::confirmed(retried, 2)], false, clock.now()).await.expect("the statement succeeds");
    clock.advance(limit - Duration::seconds(2));
    assert_eq!(expiry.tick().await.expect("the tick succeeds").skipped, 0, "it waits for a worker since its release");
    clock.advance(Duration::seconds(3));
    assert_eq!(expiry.tick().await.expect("the tick succeeds").skipped, 2);
    assert_eq!(status(retried).await.status, OccurrenceStatus::Skipped);

    let rules = Rules { start_within_seconds: Some(30), ..Rules::default() };
    let from_end = Schedule::Every { seconds: 60, from: IntervalAnchor::End };
    let strict = JobInput { rules, ..jobs::echo_job(from_end) };
    let strict = jobs::insert_job(&store, &clock, &strict, None).await;
    let insert = async || runs::insert_manual(&store, &clock, strict).await;
    let (claimed, late, begun, retried) = (insert().await, insert().await, insert().await, insert().await);
    let not_before = Some(clock.now() + Duration::seconds(10));
    let delayed = NewRun { id: clock.occurrence_id(), job_id: strict, not_before, ..NewRun::default() };
    store.enqueue_runs(std::slice::from_ref(&delayed), None, clock.now()).await.expect("the statement succeeds");
    let claim = cache.keys().running(claimed);
    redis_command::<()>(&config, &["SET", &claim, "w-1:1", "EX", "60"]).await;
    report(begun, OccurrenceStatus::Running).await;
    report(retried, OccurrenceStatus::Queued).await;
    clock.advance(Duration::seconds(30));
    assert_eq!(expiry.tick().await.expect("the tick succeeds").skipped, 0);
    clock.advance(Duration::milliseconds(1));
    let now = clock.now();
    let page = async |after: Option<&MissedRun>| store.missed_starts(after, 1, now).await.expect("the query succeeds");
    let first = page(None).await;
    let second = page(first.last()).await;
    let mut both = [claimed, late];
    both.sort_unstable();
    assert_eq!([first[0].id, second[0].id], both);
    assert!(page(second.last()).await.is_empty(), "the limit of a delayed one counts from the end of its delay");
    let until = store.missed_starts(None, 10, now + Duration::seconds(10)).await.expect("the query succeeds");
    assert!(until.iter().any(|run| run.id == delayed.id));
    let claims_since = cache.keys().claims_since();
    // The claims of living workers may be missing.
    redis_command::<()>(&config, &["DEL", &claims_since]).await;
    assert_eq!(expiry.tick().await.expect("the tick succeeds").skipped, 0);
    redis_command::<()>(&config, &["SET", &claims_since, "1"]).await;
    // A server claimed it and stopped.
    redis_command::<()>(&config, &["SET", &cache.keys().running(late), "expiry:1", "EX", "15"]).await;
    assert_eq!(expiry.tick().await.expect("the tick succeeds").skipped, 1);
    assert_eq!(expiry.activators.ended_jobs.take(), [strict]);
    let row = status(late).await;
    assert_eq!(row.status, OccurrenceStatus::Skipped);
    assert_eq!(row.note.as_deref(), Some("Skipped: no worker began it within 30 seconds of its due time."));
    for id in [claimed, begun, retried] {
        assert!(!status(id).await.status.is_final(), "{id}");
    }
    let keys = cache.run_keys(&[late]).await.expect("Redis responds");
    assert_eq!(keys[0].claim.as_deref(), Some("done:1"), "its message is dropped");
    // A worker without a claim reported the start before the statement.
    let begun = MissedRun { id: begun, ..second[0].clone() };
    assert!(store.skip_missed_starts(&[begun], now).await.expect("the statement succeeds").is_empty());
}
