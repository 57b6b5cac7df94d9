//! The due index in Redis: compared with PostgreSQL in slices, and never set back by an older writer.

use chrono::{DateTime, Duration, Utc};
use milvaion_server::{
    background::due_index::DueIndexRebuilder,
    cache::{Cache, schedule::DueChange},
    clock::Clock,
    engine::Service,
    store::Store,
};
use milvaion_test_support::database;
use sqlx::{Connection, PgConnection};

use crate::private_redis::PrivateRedis;

/// Inserts jobs that are due an hour after `now`.
async fn insert(url: &str, count: i32, now: DateTime<Utc>) {
    let mut connection = PgConnection::connect(url).await.expect("PostgreSQL responds");
    sqlx::query(
        "WITH wanted AS (SELECT gen_random_uuid() AS id FROM generate_series(1, $1)),
              made AS (INSERT INTO jobs (id, display_name, worker_id, job_type, job_data, schedule, priority, is_active,
                                         created_at, created_by, modified_at, modified_by)
                       SELECT id, 'Job', 'worker', 'echo', '{}', '{}', 3, true,
                              $2, 'test', $2, 'test' FROM wanted)
         INSERT INTO job_due (job_id, priority, next_fire_at, version) SELECT id, 3, $2 + interval '1 hour', 1 FROM wanted",
    )
    .bind(count)
    .bind(now)
    .execute(&mut connection)
    .await
    .expect("inserted");
}

fn rebuilder(store: Store, cache: Cache, clock: Clock) -> DueIndexRebuilder {
    let period = std::time::Duration::from_secs(60);
    DueIndexRebuilder { store, cache, clock, activate_dispatcher: Default::default(), period }
}

#[tokio::test]
async fn a_large_index_is_compared_in_slices() {
    let (redis, clock) = (PrivateRedis::start().await, Clock::system());
    let url = database::create().await;
    let store = database::open(&url).await;
    insert(&url, 2_500, clock.now()).await;
    let cache = redis.cache();
    // More strays than one request may contain.
    let strays: Vec<_> = (0..1_500).map(|_| (clock.job_id(), Some(clock.now()))).collect();
    cache.note_due(&strays).await.expect("Redis responds");

    let mut index = rebuilder(store, cache.clone(), clock);
    let report = index.tick().await.expect("compared");
    assert_eq!((report.jobs, report.noted, report.removed), (2_500, 2_500, 1_500));
    assert_eq!(cache.due_count().await.expect("Redis responds"), 2_500);
    let (again, scans) = (index.tick().await.expect("compared"), redis.calls("zscan").await);
    assert_eq!((again.jobs, again.noted, again.removed), (2_500, 0, 0));
    assert_eq!(redis.calls("zmscore").await, 6, "a thousand jobs in a request");
    assert!((4..20).contains(&scans), "a thousand entries in a request: {scans}");
    assert_eq!(redis.calls("zrange").await, 0, "Redis never reads the whole index at once");
}

#[tokio::test]
async fn an_entry_that_changed_since_it_was_read_stays() {
    let redis = PrivateRedis::start().await;
    let (cache, clock) = (redis.cache(), Clock::system());
    let (id, due) = (clock.job_id(), clock.now());
    let (edited, next) = (due + Duration::minutes(1), due + Duration::hours(1));
    let earliest = async || cache.earliest().await.expect("Redis responds").0.map(|at| (at - due).num_seconds());

    // The dispatcher has fired the job, and the entry is missing or the one that it fired.
    let fired = [DueChange::fired(id, due, Some(next))];
    assert_eq!(cache.replace_due(&fired).await, Ok(1));
    assert_eq!(earliest().await, Some(3_600));
    cache.note_due(&[(id, Some(due))]).await.expect("Redis responds");
    assert_eq!(cache.replace_due(&fired).await, Ok(1));
    assert_eq!(earliest().await, Some(3_600));

    // A user has edited it meanwhile, and the job is due earlier.
    cache.note_due(&[(id, Some(edited))]).await.expect("Redis responds");
    assert_eq!(cache.replace_due(&fired).await, Ok(0));
    assert_eq!(earliest().await, Some(60));
}

#[tokio::test]
async fn of_two_edits_the_later_one_is_noted_in_any_order() {
    let redis = PrivateRedis::start().await;
    let (cache, clock) = (redis.cache(), Clock::system());
    let (now, paused, edited) = (clock.now(), clock.job_id(), clock.job_id());
    let (old, new) = (now + Duration::hours(5), now + Duration::minutes(1));
    // Another server has committed after this one, and has written its entries before it.
    let stored = async |_: &[uuid::Uuid]| anyhow::Ok(vec![(edited, new)]);
    cache.note_changed(&[(edited, Some(old)), (paused, Some(old))], stored).await.expect("Redis responds");
    let entries: Vec<(String, f64)> = cache.scan_due(0).await.expect("Redis responds").1;
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].0, edited.to_string());
    assert!(Cache::matches_score(entries[0].1, new));
}
