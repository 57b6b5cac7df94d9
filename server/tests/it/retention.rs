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
    background::{BackgroundTask, maintenance::Maintenance},
    clock::Clock,
    domain::transition::fold,
    store::{
        Store,
        manual_runs::NewManualRun,
        partitions::{DailyTable, PartitionDropOutcome},
    },
};
use sqlx::{Connection, PgConnection};
use tokio::sync::Notify;

use milvaion_test_support as common;

struct RetentionHarness {
    url: String,
    store: Store,
    clock: Clock,
    upkeep: Maintenance,
    job: JobId,
}

impl RetentionHarness {
    async fn new() -> Self {
        let url = common::database_url().await;
        let store = common::open(&url).await;
        let clock = Clock::manual(milvaion_server::clock::machine_now());
        let retention = milvaion_server::config::retention::RetentionConfig::default();
        let upkeep = Maintenance {
            store: store.clone(),
            clock: clock.clone(),
            retention,
            activate_slot_granter: Arc::new(Notify::new()),
        };
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
        let asked = NewManualRun {
            id: self.clock.occurrence_id(),
            job_id: self.job,
            by: "test".into(),
            ..NewManualRun::default()
        };
        self.store.insert_manual_run(&asked, self.clock.now()).await.expect("answered").into_created().expect("made");
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
    let mut harness = RetentionHarness::new().await;
    let (today, id) = (harness.today(), harness.occurrence().await);
    harness.end(id).await;
    // To the last second in which today's logs are not yet whole fourteen days old.
    let end_of_today: DateTime<Utc> = (today + Days::new(1)).and_time(chrono::NaiveTime::MIN).and_utc();
    harness.clock.advance(end_of_today - harness.clock.now() + Duration::days(14) - Duration::seconds(1));
    let kept = harness.upkeep.tick().await.expect("answered");
    let yesterday = today - Days::new(1);
    assert_eq!(kept.dropped, [DailyTable::Logs.partition(yesterday)], "yesterday's logs, and nothing of today");
    assert!(kept.partitions > 0, "and days ahead are made as ever");

    harness.clock.advance(Duration::seconds(1));
    let kept = harness.upkeep.tick().await.expect("answered");
    assert_eq!(kept.dropped, [DailyTable::Logs.partition(today)]);
    assert!(harness.exists(id).await);

    harness.clock.advance(Duration::days(16));
    let kept = harness.upkeep.tick().await.expect("answered");
    assert!(kept.dropped.contains(&DailyTable::Occurrences.partition(today)), "{kept:?}");
    assert!(!kept.dropped.contains(&DailyTable::Occurrences.partition(today + Days::new(1))), "{kept:?}");
    assert!(!harness.exists(id).await);
    assert_eq!(harness.upkeep.tick().await.expect("answered").dropped, Vec::<String>::new(), "once is enough");
}

#[tokio::test]
async fn a_day_with_something_open_stays_and_is_told_of() {
    let mut harness = RetentionHarness::new().await;
    let (today, id) = (harness.today(), harness.occurrence().await);
    harness.clock.advance(Duration::days(40));
    let kept = harness.upkeep.tick().await.expect("answered");
    assert_eq!(kept.open, [DailyTable::Logs.partition(today), DailyTable::Occurrences.partition(today)]);
    assert!(harness.exists(id).await);
    harness.end(id).await;
    let kept = harness.upkeep.tick().await.expect("answered");
    assert_eq!(kept.dropped, [DailyTable::Logs.partition(today), DailyTable::Occurrences.partition(today)]);
    assert_eq!(kept.open, Vec::<String>::new());
}

#[tokio::test]
async fn a_day_that_somebody_reads_goes_the_next_time_and_nobody_waits_long() {
    let harness = RetentionHarness::new().await;
    let yesterday = harness.today() - Days::new(1);
    let mut reader = harness.connection().await;
    let mut tx = reader.begin().await.expect("begun");
    sqlx::query("SELECT count(*) FROM occurrences").execute(&mut *tx).await.expect("read");
    let begun = tokio::time::Instant::now();
    assert_eq!(
        harness.store.drop_partition(DailyTable::Occurrences, yesterday).await.expect("answered"),
        PartitionDropOutcome::Locked
    );
    assert!(begun.elapsed() < std::time::Duration::from_secs(10), "{:?}", begun.elapsed());
    tx.rollback().await.expect("rolled back");
    assert_eq!(
        harness.store.drop_partition(DailyTable::Occurrences, yesterday).await.expect("answered"),
        PartitionDropOutcome::Removed
    );
}

#[tokio::test]
async fn old_failures_letters_and_keys_go_and_young_ones_stay() {
    let mut harness = RetentionHarness::new().await;
    let now = harness.clock.now();
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
    harness.run(&insert(181, 2_500)).await;
    harness.run(&insert(8, 3)).await;
    harness.run(&insert(6, 2)).await;
    let kept = harness.upkeep.tick().await.expect("answered");
    assert_eq!((kept.failures, kept.dead_letters, kept.trigger_keys), (2_500, 2_500, 2_503));
    let kept = harness.upkeep.tick().await.expect("answered");
    assert_eq!((kept.failures, kept.dead_letters, kept.trigger_keys), (0, 0, 0));
    assert_eq!(harness.run("SELECT 1 FROM failed_occurrences").await, 5);
    assert_eq!(harness.run("SELECT 1 FROM dead_letters").await, 5);
    assert_eq!(harness.run("SELECT 1 FROM trigger_keys").await, 2);
}

#[tokio::test]
async fn nothing_is_dropped_by_a_clock_that_was_just_set() {
    let mut harness = RetentionHarness::new().await;
    let letter_and_key =
        "WITH d AS (INSERT INTO dead_letters (id, received_at, digest, reason, source, body, body_bytes)
                          VALUES (gen_random_uuid(), now(), 'x', 'r', 's', '', 0))
                          INSERT INTO trigger_keys (job_id, key, occurrence_id, created_at)
                          VALUES (gen_random_uuid(), 'k', gen_random_uuid(), now())";
    harness.run(letter_and_key).await;
    harness.clock.advance(Duration::days(200));
    harness.clock.hold();
    let kept = harness.upkeep.tick().await.expect("answered");
    assert_eq!(
        (kept.dead_letters, kept.trigger_keys, kept.dropped),
        (0, 0, Vec::new()),
        "who believes it drops all there is"
    );
    assert!(kept.partitions > 0, "days ahead are made, which takes nothing from anybody");
    // The hold of dispatching, and the minute in which other servers may not have noticed.
    harness.clock.advance(Duration::seconds(89));
    assert_eq!(harness.upkeep.tick().await.expect("answered").dead_letters, 0);
    harness.clock.advance(Duration::seconds(1));
    let kept = harness.upkeep.tick().await.expect("answered");
    assert_eq!((kept.dead_letters, kept.trigger_keys), (1, 1));
    assert!(!kept.dropped.is_empty(), "{kept:?}");
}

#[tokio::test]
async fn a_slot_that_belongs_to_nothing_open_is_given_back() {
    let mut harness = RetentionHarness::new().await;
    let (open, ended) = (harness.occurrence().await, harness.occurrence().await);
    harness.end(ended).await;
    for id in [open, ended, harness.clock.occurrence_id()] {
        let at = id.created_at().to_rfc3339();
        harness
            .run(&format!(
                "INSERT INTO slots (occurrence_id, created_at, job_id, priority, is_taken) VALUES ('{id}', '{at}', '{}', 3, true)",
                harness.job
            ))
            .await;
    }
    assert_eq!(harness.upkeep.tick().await.expect("answered").slots, 2);
    harness.upkeep.activate_slot_granter.notified().await;
    assert_eq!(harness.run(&format!("SELECT 1 FROM slots WHERE occurrence_id = '{open}'")).await, 1);
}
