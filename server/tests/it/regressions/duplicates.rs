//! Occurrences that were created twice, and batches that failed as a whole.

use chrono::{DateTime, Duration, Utc};
use milvaion_api::requests::JobInput;
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    status::OccurrenceStatus,
};
use milvaion_schedule::{
    due::{DueAction, EffectiveSchedule},
    rules::Rules,
    schedule::Schedule,
};
use milvaion_server::{
    cache::Cache,
    clock::Clock,
    lifecycle::Server,
    store::{Store, create::NewRun, jobs::AuditStamp, plan::DueJob},
};
use milvaion_test_support::{database, jobs, runs, server_env, wait, worker_env};

/// Returns the occurrences that a dispatcher would create for due jobs.
fn planned_runs(jobs: &[DueJob], clock: &Clock) -> Vec<NewRun> {
    let plan = |job: &DueJob| {
        let schedule = job.schedule.as_ref().expect("a schedule");
        let decision = EffectiveSchedule::new(job.id, schedule, &Rules::default(), &[]).decide(
            job.next_fire_at,
            clock.now(),
            None,
        );
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
    };
    jobs.iter().map(plan).collect()
}

/// Waits until Redis lists no due job, and the dispatcher has had a tick since then: it has dispatched another job.
async fn wait_for_dispatch(server: &Server) {
    wait::eventually("a repaired index", || async {
        server.cache.due_entries(server.clock.now(), 10).await.ok().filter(Vec::is_empty)
    })
    .await;
    let now = server.clock.now();
    let other = JobInput { worker_id: "absent".into(), ..jobs::echo_job(Schedule::once(now)) };
    let other = jobs::insert_job(&server.store, &server.clock, &other, Some(now)).await;
    server.dispatcher.activate_dispatcher.notify_one();
    wait::eventually("the other job's occurrence", || async { runs::of_job(server, other).await.pop() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_redis_index_creates_no_duplicates() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let worker = worker_env::start(&config);
    let (clock, now) = (server.clock.clone(), server.clock.now());
    let once = jobs::insert(&server.store, &clock, Schedule::once(now), Some(now)).await;
    let hourly = jobs::insert(&server.store, &clock, Schedule::every(3_600), Some(now)).await;
    server.dispatcher.activate_dispatcher.notify_one();
    let mut created: Vec<OccurrenceId> = Vec::new();
    for job in [once, hourly] {
        let row = wait::eventually("the occurrence", || async { runs::of_job(&server, job).await.pop() }).await;
        assert_eq!(runs::ended(&server, row.id).await.row.status, OccurrenceStatus::Completed);
        created.push(row.id);
    }
    server.stop().await;

    let stale: Vec<(JobId, Option<DateTime<Utc>>)> = vec![(once, Some(now)), (hourly, Some(now))];
    Cache::new(&config.cache).expect("a valid URL").note_due(&stale).await.expect("Redis responds");
    let server = server_env::start(&config).await;
    wait_for_dispatch(&server).await;
    for job in [once, hourly] {
        assert_eq!(runs::of_job(&server, job).await.len(), 1);
    }
    created.sort();
    assert_eq!(worker.started_sorted(), created);
    worker.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_before_the_redis_update_creates_no_duplicates() {
    let config = server_env::config().await;
    let clock = Clock::system();
    let store = database::open(&config.database.url).await;
    let now = clock.now();
    let hourly = jobs::insert(&store, &clock, Schedule::every(3_600), Some(now)).await;
    Cache::new(&config.cache).expect("a valid URL").note_due(&[(hourly, Some(now))]).await.expect("Redis responds");
    // The state that the dead server left: the row is committed, and in Redis the job is still due.
    let planned = planned_runs(&store.due_jobs(now, 10, &[]).await.expect("the query succeeds"), &clock);
    let created = store.create_scheduled_runs(&planned, None, now).await.expect("the query succeeds");
    assert_eq!(created.len(), 1);

    let server = server_env::start(&config).await;
    let worker = worker_env::start(&config);
    wait_for_dispatch(&server).await;
    let rows = runs::of_job(&server, hourly).await;
    assert_eq!(rows.len(), 1);
    assert_eq!(runs::ended(&server, rows[0].id).await.row.status, OccurrenceStatus::Completed);
    assert_eq!(worker.started(), [rows[0].id]);
    worker.stop().await;
    server.stop().await;
}

/// Inserts three due jobs. Returns them and the occurrences that a dispatcher would create.
async fn three_due_jobs(store: &Store, clock: &Clock) -> (Vec<JobId>, Vec<NewRun>) {
    let due = clock.now() - Duration::seconds(1);
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(jobs::insert(store, clock, Schedule::every(60), Some(due)).await);
    }
    let jobs = store.due_jobs(clock.now(), 10, &[]).await.expect("the query succeeds");
    assert_eq!(jobs.len(), 3);
    (ids, planned_runs(&jobs, clock))
}

#[tokio::test]
async fn deleted_job_does_not_affect_its_batch() {
    let store = database::fresh().await;
    let clock = Clock::system();
    let (ids, planned) = three_due_jobs(&store, &clock).await;
    let edit = AuditStamp { by: "test", at: clock.now(), address: None };
    store.delete_job(ids[1], None, edit).await.expect("the query succeeds").expect("deleted");
    let created = store.create_scheduled_runs(&planned, None, clock.now()).await.expect("the query succeeds");
    assert_eq!(created.len(), 2);
    let rows = store.occurrences(&Default::default()).await.expect("the query succeeds").rows;
    let mut jobs: Vec<_> = rows.into_iter().map(|row| row.job_id).collect();
    jobs.sort();
    assert_eq!(jobs, [ids[0], ids[2]], "the deleted job has no occurrence");
}

#[tokio::test]
async fn rejected_batch_is_due_again() {
    let store = database::fresh().await;
    let clock = Clock::system();
    let (_, mut planned) = three_due_jobs(&store, &clock).await;
    // The database rejects two rows with one id.
    planned[2].id = planned[0].id;
    assert!(store.create_scheduled_runs(&planned, None, clock.now()).await.is_err());
    let rows = store.occurrences(&Default::default()).await.expect("the query succeeds").rows;
    assert!(rows.is_empty(), "no occurrence was created");
    assert_eq!(store.due_jobs(clock.now(), 10, &[]).await.expect("the query succeeds").len(), 3);
}
