//! What is old goes, a day at a time, and what is open stays.

use std::sync::Arc;

use chrono::{DateTime, Days, Duration, NaiveDate, Utc};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::StatusReport,
    status::OccurrenceStatus,
};
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    background::{Task, upkeep::Upkeep},
    clock::Clock,
    domain::transition::fold,
    store::{
        Store,
        asked::Asked,
        partitions::{Daily, Dropped},
    },
};
use sqlx::{Connection, PgConnection};
use tokio::sync::Notify;

use milvaion_test_support as common;

struct Bench {
    url: String,
    store: Store,
    clock: Clock,
    upkeep: Upkeep,
    job: JobId,
}

impl Bench {
    async fn new() -> Self {
        let url = common::database_url().await;
        let store = common::open(&url).await;
        let clock = Clock::manual(milvaion_server::clock::machine_now());
        let retention = milvaion_server::config::retention::RetentionConfig::default();
        let upkeep = Upkeep { store: store.clone(), clock: clock.clone(), retention, release: Arc::new(Notify::new()) };
        let job = common::insert(&store, &clock, Schedule::Manual, None).await;
        Self { url, store, clock, upkeep, job }
    }

    fn today(&self) -> NaiveDate {
        self.clock.now().date_naive()
    }

    async fn connection(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.expect("PostgreSQL answers")
    }

    async fn run(&self, sql: &str) -> u64 {
        let mut connection = self.connection().await;
        sqlx::query(sqlx::AssertSqlSafe(sql.to_owned()))
            .execute(&mut connection)
            .await
            .expect("answered")
            .rows_affected()
    }

    async fn occurrence(&self) -> OccurrenceId {
        let asked = Asked { id: self.clock.occurrence_id(), job_id: self.job, by: "test".into(), ..Asked::default() };
        self.store.make_asked(&asked, self.clock.now()).await.expect("answered").new_row().expect("made");
        asked.id
    }

    async fn end(&self, id: OccurrenceId) {
        let report = StatusReport::new(id, 1, "w-1", OccurrenceStatus::Completed, self.clock.now());
        self.store.apply(&fold(vec![report]), self.clock.now()).await.expect("answered");
    }

    async fn exists(&self, id: OccurrenceId) -> bool {
        self.store.occurrence(id, 1, self.clock.now()).await.expect("answered").is_some()
    }
}

#[tokio::test]
async fn a_day_goes_when_its_last_hour_is_old_enough_and_logs_go_first() {
    let mut bench = Bench::new().await;
    let (today, id) = (bench.today(), bench.occurrence().await);
    bench.end(id).await;
    // To the last second in which today's logs are not yet whole fourteen days old.
    let end_of_today: DateTime<Utc> = (today + Days::new(1)).and_time(chrono::NaiveTime::MIN).and_utc();
    bench.clock.advance(end_of_today - bench.clock.now() + Duration::days(14) - Duration::seconds(1));
    let kept = bench.upkeep.tick().await.expect("answered");
    let yesterday = today - Days::new(1);
    assert_eq!(kept.dropped, [Daily::Logs.partition(yesterday)], "yesterday's logs, and nothing of today");
    assert!(kept.partitions > 0, "and days ahead are made as ever");

    bench.clock.advance(Duration::seconds(1));
    let kept = bench.upkeep.tick().await.expect("answered");
    assert_eq!(kept.dropped, [Daily::Logs.partition(today)]);
    assert!(bench.exists(id).await);

    bench.clock.advance(Duration::days(16));
    let kept = bench.upkeep.tick().await.expect("answered");
    assert!(kept.dropped.contains(&Daily::Occurrences.partition(today)), "{kept:?}");
    assert!(!kept.dropped.contains(&Daily::Occurrences.partition(today + Days::new(1))), "{kept:?}");
    assert!(!bench.exists(id).await);
    assert_eq!(bench.upkeep.tick().await.expect("answered").dropped, Vec::<String>::new(), "once is enough");
}

#[tokio::test]
async fn a_day_with_something_open_stays_and_is_told_of() {
    let mut bench = Bench::new().await;
    let (today, id) = (bench.today(), bench.occurrence().await);
    bench.clock.advance(Duration::days(40));
    let kept = bench.upkeep.tick().await.expect("answered");
    assert_eq!(kept.open, [Daily::Logs.partition(today), Daily::Occurrences.partition(today)]);
    assert!(bench.exists(id).await);
    bench.end(id).await;
    let kept = bench.upkeep.tick().await.expect("answered");
    assert_eq!(kept.dropped, [Daily::Logs.partition(today), Daily::Occurrences.partition(today)]);
    assert_eq!(kept.open, Vec::<String>::new());
}

#[tokio::test]
async fn a_day_that_somebody_reads_goes_the_next_time_and_nobody_waits_long() {
    let bench = Bench::new().await;
    let yesterday = bench.today() - Days::new(1);
    let mut reader = bench.connection().await;
    let mut tx = reader.begin().await.expect("begun");
    sqlx::query("SELECT count(*) FROM occurrences").execute(&mut *tx).await.expect("read");
    let begun = tokio::time::Instant::now();
    assert_eq!(bench.store.drop_day(Daily::Occurrences, yesterday).await.expect("answered"), Dropped::Busy);
    assert!(begun.elapsed() < std::time::Duration::from_secs(10), "{:?}", begun.elapsed());
    tx.rollback().await.expect("rolled back");
    assert_eq!(bench.store.drop_day(Daily::Occurrences, yesterday).await.expect("answered"), Dropped::Gone);
}

#[tokio::test]
async fn old_failures_letters_and_keys_go_and_young_ones_stay() {
    let mut bench = Bench::new().await;
    let now = bench.clock.now();
    let insert = |age: i64, n: usize| {
        let at = (now - Duration::days(age)).to_rfc3339();
        format!(
            "WITH f AS (INSERT INTO failed_occurrences (occurrence_id, job_id, job_name, failed_at, cause, fingerprint, job_data)
                        SELECT gen_random_uuid(), gen_random_uuid(), 'x', '{at}', 'failed', 'f', '{{}}' FROM generate_series(1, {n}) RETURNING 1),
                  d AS (INSERT INTO dead_letters (id, received_at, digest, reason, source, body, body_bytes)
                        SELECT gen_random_uuid(), '{at}', gen_random_uuid()::text, 'r', 's', '', 0 FROM generate_series(1, {n}) RETURNING 1)
             INSERT INTO trigger_keys (job_id, key, occurrence_id, created_at)
             SELECT gen_random_uuid(), 'k', gen_random_uuid(), '{at}' FROM generate_series(1, {n})"
        )
    };
    // More than two batches.
    bench.run(&insert(181, 2_500)).await;
    bench.run(&insert(8, 3)).await;
    bench.run(&insert(6, 2)).await;
    let kept = bench.upkeep.tick().await.expect("answered");
    assert_eq!((kept.failures, kept.dead_letters, kept.trigger_keys), (2_500, 2_500, 2_503));
    let kept = bench.upkeep.tick().await.expect("answered");
    assert_eq!((kept.failures, kept.dead_letters, kept.trigger_keys), (0, 0, 0));
    assert_eq!(bench.run("SELECT 1 FROM failed_occurrences").await, 5);
    assert_eq!(bench.run("SELECT 1 FROM dead_letters").await, 5);
    assert_eq!(bench.run("SELECT 1 FROM trigger_keys").await, 2);
}

#[tokio::test]
async fn nothing_is_dropped_by_a_clock_that_was_just_set() {
    let mut bench = Bench::new().await;
    let letter_and_key =
        "WITH d AS (INSERT INTO dead_letters (id, received_at, digest, reason, source, body, body_bytes)
                          VALUES (gen_random_uuid(), now(), 'x', 'r', 's', '', 0))
                          INSERT INTO trigger_keys (job_id, key, occurrence_id, created_at)
                          VALUES (gen_random_uuid(), 'k', gen_random_uuid(), now())";
    bench.run(letter_and_key).await;
    bench.clock.advance(Duration::days(200));
    bench.clock.hold();
    let kept = bench.upkeep.tick().await.expect("answered");
    assert_eq!(
        (kept.dead_letters, kept.trigger_keys, kept.dropped),
        (0, 0, Vec::new()),
        "who believes it drops all there is"
    );
    assert!(kept.partitions > 0, "days ahead are made, which takes nothing from anybody");
    // The hold of dispatching, and the minute in which other servers may not have noticed.
    bench.clock.advance(Duration::seconds(89));
    assert_eq!(bench.upkeep.tick().await.expect("answered").dead_letters, 0);
    bench.clock.advance(Duration::seconds(1));
    let kept = bench.upkeep.tick().await.expect("answered");
    assert_eq!((kept.dead_letters, kept.trigger_keys), (1, 1));
    assert!(!kept.dropped.is_empty(), "{kept:?}");
}

#[tokio::test]
async fn a_slot_that_belongs_to_nothing_open_is_given_back() {
    let mut bench = Bench::new().await;
    let (open, ended) = (bench.occurrence().await, bench.occurrence().await);
    bench.end(ended).await;
    for id in [open, ended, bench.clock.occurrence_id()] {
        let at = id.created_at().to_rfc3339();
        bench
            .run(&format!(
                "INSERT INTO slots (occurrence_id, created_at, job_id, priority, is_taken) VALUES ('{id}', '{at}', '{}', 3, true)",
                bench.job
            ))
            .await;
    }
    assert_eq!(bench.upkeep.tick().await.expect("answered").slots, 2);
    bench.upkeep.release.notified().await;
    assert_eq!(bench.run(&format!("SELECT 1 FROM slots WHERE occurrence_id = '{open}'")).await, 1);
}
