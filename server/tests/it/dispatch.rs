//! Due jobs become occurrences: each due instant once, whoever tries.

use std::collections::HashSet;

use chrono::{DateTime, Duration, Utc};
use futures::{StreamExt, stream};
use milvaion_api::{page::OccurrenceFilter, requests::JobForm};
use milvaion_protocol::{id::JobId, status::OccurrenceStatus};
use milvaion_schedule::due::{DueAction, EffectiveSchedule};
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    background::{BackgroundTask, due_index::DueIndexRebuilder},
    cache::Cache,
    clock::Clock,
    store::{Store, jobs::AuditStamp, plan::NewScheduledRun},
};

use milvaion_test_support::{self as common, stack};

async fn insert(store: &Store, clock: &Clock, due: DateTime<Utc>) -> JobId {
    common::insert(store, clock, Schedule::every(3_600), Some(due)).await
}

/// What a dispatcher does between reading and committing, for as long as there is something due.
async fn fire_everything(store: &Store, clock: &Clock, now: DateTime<Utc>) -> usize {
    let mut fired = 0;
    loop {
        let jobs = store.due_jobs(now, 500).await.expect("due jobs can be read");
        if jobs.is_empty() {
            return fired;
        }
        let fires: Vec<NewScheduledRun> = jobs
            .iter()
            .map(|job| {
                let schedule = job.schedule.as_ref().expect("a schedule");
                let firing = EffectiveSchedule::new(job.id, schedule, &job.rules, &[]).decide(job.next_fire_at, now);
                NewScheduledRun {
                    job_id: job.id,
                    version: job.version,
                    due: job.next_fire_at,
                    next_fire_at: firing.next_fire_at,
                    occurrence_id: clock.occurrence_id(),
                    action: firing.action,
                    note: firing.note,
                }
            })
            .collect();
        fired += store.create_scheduled_runs(&fires, None, now).await.expect("the batch is fired").len();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mv15_two_dispatchers_fire_each_of_5000_due_jobs_once() {
    let url = common::database_url().await;
    let (one, two) = (common::open(&url).await, common::open(&url).await);
    let clock = Clock::system();
    let now = clock.now();
    let due = now - Duration::seconds(1);
    // As many at once as there are connections: who waits for one for ten seconds is refused.
    let inserted = stream::iter(0..5_000).map(|_| insert(&one, &clock, due)).buffer_unordered(8);
    assert_eq!(inserted.count().await, 5_000);
    let (first, second) = tokio::join!(fire_everything(&one, &clock, now), fire_everything(&two, &clock, now));
    assert_eq!(first + second, 5_000);

    let mut seen = HashSet::new();
    let mut filter = OccurrenceFilter { limit: 200, ..OccurrenceFilter::default() };
    loop {
        let page = one.occurrences(&filter).await.expect("the list can be read");
        for row in &page.rows {
            assert!(seen.insert((row.job_id, row.scheduled_for)), "{} was fired twice", row.job_id);
        }
        match page.next {
            Some(next) => filter.before = Some(next.parse().expect("an id")),
            None => break,
        }
    }
    assert_eq!(seen.len(), 5_000);
}

#[tokio::test]
async fn a_fire_that_was_read_before_an_edit_makes_nothing() {
    let (store, _) = common::database().await;
    let clock = Clock::system();
    let now = clock.now();
    let id = insert(&store, &clock, now - Duration::seconds(1)).await;
    let read = store.due_jobs(now, 10).await.expect("due jobs can be read").remove(0);
    let edited = common::job(Schedule::every(60));
    let edit = AuditStamp { by: "test", at: now };
    let before = store.job(id).await.expect("answered").expect("there");
    let next = Some(now - Duration::seconds(1));
    store.update_job(&before, &edited, next, edit).await.expect("stored").expect("not raced");
    let fire = NewScheduledRun {
        job_id: id,
        version: read.version,
        due: read.next_fire_at,
        next_fire_at: None,
        occurrence_id: clock.occurrence_id(),
        action: DueAction::Run,
        note: None,
    };
    assert_eq!(store.create_scheduled_runs(&[fire], None, now).await.expect("answered"), []);
}

#[tokio::test]
async fn an_edit_made_from_an_old_page_is_refused() {
    let (store, _) = common::database().await;
    let clock = Clock::system();
    let now = clock.now();
    let id = insert(&store, &clock, now).await;
    let edit = AuditStamp { by: "test", at: now };
    let job = common::job(Schedule::Manual);
    let before = store.job(id).await.expect("answered").expect("there");
    assert_eq!(store.update_job(&before, &job, None, edit).await.expect("answered"), Some(2));
    assert_eq!(store.update_job(&before, &job, None, edit).await.expect("answered"), None);
}

#[tokio::test]
async fn an_edit_that_was_begun_before_a_fire_does_not_put_its_instant_back() {
    let (store, _) = common::database().await;
    let clock = Clock::system();
    let now = clock.now();
    let id = insert(&store, &clock, now).await;
    let before = store.job(id).await.expect("answered").expect("there");
    let due = store.due_jobs(now, 10).await.expect("due jobs can be read").remove(0);
    let next = now + Duration::seconds(60);
    let fire = NewScheduledRun {
        job_id: id,
        version: due.version,
        due: due.next_fire_at,
        next_fire_at: Some(next),
        occurrence_id: clock.occurrence_id(),
        action: DueAction::Run,
        note: None,
    };
    assert_eq!(store.create_scheduled_runs(&[fire], None, now).await.expect("answered").len(), 1);
    let edit = AuditStamp { by: "test", at: now };
    let renamed = common::job(Schedule::every(60));
    let stale = store.update_job(&before, &renamed, before.next_fire_at, edit).await;
    assert_eq!(stale.expect("answered"), None, "it would be fired twice");
    let fresh = store.job(id).await.expect("answered").expect("there");
    assert_eq!((fresh.next_fire_at, fresh.last_fire_at), (Some(next), Some(now)));
    assert_eq!(store.update_job(&fresh, &renamed, fresh.next_fire_at, edit).await.expect("answered"), Some(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_of_a_worker_that_never_came_waits_for_it() {
    let config = stack::config().await;
    let server = stack::server(&config).await;
    let id = server.jobs.save(&stack::admin(), &stack::form("Waits")).await.expect("saved");
    let occurrence = server.jobs.run_now(&stack::admin(), id, Default::default()).await.expect("triggered");
    stack::eventually("the confirm of the broker", || async {
        let view = server.store.occurrence(occurrence, 1, server.clock.now()).await.ok()??;
        view.published_at
    })
    .await;
    let worker = stack::worker(&config);
    assert_eq!(stack::ended(&server, occurrence).await.row.status, OccurrenceStatus::Completed);
    worker.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn the_index_in_redis_is_rebuilt_from_the_truth() {
    let config = stack::config().await;
    let store = common::open(&config.database.url).await;
    let cache = Cache::new(&config.cache).expect("a URL");
    let clock = Clock::system();
    let due = clock.now() + Duration::hours(1);
    let id = insert(&store, &clock, due).await;
    // A member that is wrong and one that is nobody's.
    let ghost = clock.job_id();
    cache.note_due(&[(id, Some(due + Duration::hours(5))), (ghost, Some(due))]).await.expect("Redis answers");
    assert!(!cache.earliest().await.expect("Redis answers").1, "an index nobody rebuilt must not be believed");

    let mut index = DueIndexRebuilder {
        store,
        cache: cache.clone(),
        clock,
        activate_dispatcher: Default::default(),
        period: std::time::Duration::from_secs(60),
    };
    let rebuilt = index.tick().await.expect("rebuilt");
    assert_eq!((rebuilt.jobs, rebuilt.noted, rebuilt.removed), (1, 1, 1));
    let (earliest, complete) = cache.earliest().await.expect("Redis answers");
    assert!(complete);
    assert!((earliest.expect("one job") - due).abs() < Duration::milliseconds(1));
    let again = index.tick().await.expect("rebuilt");
    assert_eq!((again.noted, again.removed), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_job_is_not_fired_and_a_resumed_one_catches_nothing_up() {
    let config = stack::config().await;
    let server = stack::server(&config).await;
    let form = JobForm { kind: "every".into(), every: "1".into(), every_unit: "hours".into(), ..stack::form("Hourly") };
    let id = server.jobs.save(&stack::admin(), &form).await.expect("saved");
    server.jobs.set_active(&stack::admin(), id, false, "holiday").await.expect("paused");
    let job = server.store.job(id).await.expect("answered").expect("there");
    assert_eq!((job.next_fire_at, job.paused_reason.as_deref()), (None, Some("holiday")));
    assert!(server.store.due_jobs(server.clock.now() + Duration::days(30), 10).await.expect("answered").is_empty());
    server.jobs.set_active(&stack::admin(), id, true, "").await.expect("resumed");
    let job = server.store.job(id).await.expect("answered").expect("there");
    assert!(job.next_fire_at.expect("due again") > server.clock.now() + Duration::minutes(59));
    assert_eq!(job.paused_reason, None);
    server.stop().await;
}
