//! Runs that were started twice, and batches that fell apart.

use chrono::{DateTime, Duration, Utc};
use milvaion_api::requests::JobInput;
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    status::OccurrenceStatus,
};
use milvaion_schedule::due::EffectiveSchedule;
use milvaion_schedule::{rules::Rules, schedule::Schedule};
use milvaion_server::{
    cache::Cache,
    clock::Clock,
    lifecycle::Server,
    store::{
        Store,
        jobs::AuditStamp,
        plan::{DueJob, NewScheduledRun},
    },
};

use super::harness::{insert, rows};
use milvaion_test_support::{self as common, stack};

/// What a dispatcher would do with due jobs.
fn fires(jobs: &[DueJob], clock: &Clock) -> Vec<NewScheduledRun> {
    let fire = |job: &DueJob| {
        let schedule = job.schedule.as_ref().expect("a schedule");
        let firing =
            EffectiveSchedule::new(job.id, schedule, &Rules::default(), &[]).decide(job.next_fire_at, clock.now());
        NewScheduledRun {
            job_id: job.id,
            version: job.version,
            due: job.next_fire_at,
            next_fire_at: firing.next_fire_at,
            occurrence_id: clock.occurrence_id(),
            action: firing.action,
            note: firing.note,
        }
    };
    jobs.iter().map(fire).collect()
}

/// Waits until Redis calls nothing due any more, and the dispatcher has looked since: it has fired another job.
async fn looked(server: &Server) {
    stack::eventually("a mended index", || async {
        server.cache.due_members(server.clock.now(), 10).await.ok().filter(Vec::is_empty)
    })
    .await;
    let now = server.clock.now();
    let other = JobInput { worker_id: "absent".into(), ..common::job(Schedule::Once { at: now }) };
    let other = insert(&server.store, &server.clock, other, now).await;
    server.dispatcher.activate_dispatcher.notify_one();
    stack::eventually("the other job's fire", || async { rows(server, other).await.pop() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mv14_a_restart_fires_nothing_that_was_fired_even_if_redis_says_that_it_is_due() {
    let config = stack::config().await;
    let server = stack::server(&config).await;
    let worker = stack::worker(&config);
    let (clock, now) = (server.clock.clone(), server.clock.now());
    let once = insert(&server.store, &clock, common::job(Schedule::Once { at: now }), now).await;
    let hourly = insert(&server.store, &clock, common::job(Schedule::every(3_600)), now).await;
    server.dispatcher.activate_dispatcher.notify_one();
    let mut fired: Vec<OccurrenceId> = Vec::new();
    for job in [once, hourly] {
        let row = stack::eventually("the fire", || async { rows(&server, job).await.pop() }).await;
        assert_eq!(stack::ended(&server, row.id).await.row.status, OccurrenceStatus::Completed);
        fired.push(row.id);
    }
    server.stop().await;

    let stale: Vec<(JobId, Option<DateTime<Utc>>)> = vec![(once, Some(now)), (hourly, Some(now))];
    Cache::new(&config.cache).expect("a URL").note_due(&stale).await.expect("Redis answers");
    let server = stack::server(&config).await;
    looked(&server).await;
    for job in [once, hourly] {
        assert_eq!(rows(&server, job).await.len(), 1);
    }
    let mut started = worker.started();
    started.sort();
    fired.sort();
    assert_eq!(started, fired);
    worker.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mv16_a_server_that_died_before_it_told_redis_has_fired_once() {
    let config = stack::config().await;
    let clock = Clock::system();
    let store = common::open(&config.database.url).await;
    let now = clock.now();
    let hourly = insert(&store, &clock, common::job(Schedule::every(3_600)), now).await;
    Cache::new(&config.cache).expect("a URL").note_due(&[(hourly, Some(now))]).await.expect("Redis answers");
    // What the dead server had done: the row is committed, and Redis still says that the job is due.
    let made =
        store.create_scheduled_runs(&fires(&store.due_jobs(now, 10).await.expect("answered"), &clock), None, now).await;
    assert_eq!(made.expect("answered").len(), 1);

    let server = stack::server(&config).await;
    let worker = stack::worker(&config);
    looked(&server).await;
    let rows = rows(&server, hourly).await;
    assert_eq!(rows.len(), 1);
    assert_eq!(stack::ended(&server, rows[0].id).await.row.status, OccurrenceStatus::Completed);
    assert_eq!(worker.started(), [rows[0].id]);
    worker.stop().await;
    server.stop().await;
}

async fn three_due(store: &Store, clock: &Clock) -> (Vec<JobId>, Vec<NewScheduledRun>) {
    let due = clock.now() - Duration::seconds(1);
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(insert(store, clock, common::job(Schedule::every(60)), due).await);
    }
    let jobs = store.due_jobs(clock.now(), 10).await.expect("answered");
    assert_eq!(jobs.len(), 3);
    (ids, fires(&jobs, clock))
}

#[tokio::test]
async fn mv22a_a_due_job_deleted_between_look_and_fire_does_not_disturb_the_others() {
    let (store, ()) = common::database().await;
    let clock = Clock::system();
    let (ids, fires) = three_due(&store, &clock).await;
    let edit = AuditStamp { by: "test", at: clock.now() };
    store.delete_job(ids[1], edit).await.expect("answered").expect("deleted");
    let made = store.create_scheduled_runs(&fires, None, clock.now()).await.expect("answered");
    assert_eq!(made.len(), 2);
    let mut fired: Vec<_> = store
        .occurrences(&Default::default())
        .await
        .expect("answered")
        .rows
        .into_iter()
        .map(|row| row.job_id)
        .collect();
    fired.sort();
    assert_eq!(fired, [ids[0], ids[2]], "and the deleted one has no row");
}

#[tokio::test]
async fn mv22a_a_batch_that_the_database_refuses_has_fired_nothing_and_is_due_again() {
    let (store, ()) = common::database().await;
    let clock = Clock::system();
    let (_, mut fires) = three_due(&store, &clock).await;
    // Two rows with one id: nothing the database can accept.
    fires[2].occurrence_id = fires[0].occurrence_id;
    assert!(store.create_scheduled_runs(&fires, None, clock.now()).await.is_err());
    assert!(store.occurrences(&Default::default()).await.expect("answered").rows.is_empty(), "no message has a row");
    assert_eq!(store.due_jobs(clock.now(), 10).await.expect("answered").len(), 3);
}
