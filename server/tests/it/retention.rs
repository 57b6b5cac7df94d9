//! Retention: old partitions are dropped one day at a time, and a day with open occurrences stays.

use std::sync::Arc;

use chrono::{DateTime, Days, Duration, NaiveDate, Utc};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::StatusReport,
    status::OccurrenceStatus,
};
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    background::maintenance::Maintenance,
    clock::Clock,
    engine::Service,
    store::{
        Store,
        partitions::{DailyTable, PartitionDropOutcome},
    },
};
use milvaion_test_support::{
    database::{self, TestConnection},
    jobs, runs,
};
use sqlx::{Connection, PgConnection};
use tokio::sync::Notify;

struct RetentionHarness {
    url: String,
    store: Store,
    clock: Clock,
    maintenance: Maintenance,
    job: JobId,
}

impl RetentionHarness {
    async fn new() -> Self {
        let url = database::create().await;
        let store = database::open(&url).await;
        let clock = Clock::manual(milvaion_server::clock::machine_now());
        let retention = milvaion_server::config::retention::RetentionConfig::default();
        let maintenance = Maintenance {
            store: store.clone(),
            clock: clock.clone(),
            retention,
            activate_slot_granter: Arc::new(Notify::new()),
        };
        let job = jobs::insert(&store, &clock, Schedule::Manual, None).await;
        Self { url, store, clock, maintenance, job }
    }

    fn today(&self) -> NaiveDate {
        self.clock.now().date_naive()
    }

    /// Executes a statement. Returns the number of rows it changed or selected.
    async fn execute(&self, sql: &str) -> u64 {
        TestConnection::open(&self.url).await.execute(sql).await
    }

    async fn occurrence(&self) -> OccurrenceId {
        runs::insert_manual(&self.store, &self.clock, self.job).await
    }

    async fn complete(&self, id: OccurrenceId) {
        let report = StatusReport::new(id, 1, "w-1", OccurrenceStatus::Completed, self.clock.now());
        runs::report(&self.store, &self.clock, vec![report]).await;
    }

    async fn exists(&self, id: OccurrenceId) -> bool {
        self.store.occurrence(id, 1, self.clock.now()).await.expect("the query succeeds").is_some()
    }
}

#[tokio::test]
async fn old_days_are_dropped_logs_first() {
    let mut harness = RetentionHarness::new().await;
    let (today, id) = (harness.today(), harness.occurrence().await);
    harness.complete(id).await;
    // One second before all of today's logs are fourteen days old.
    let end_of_today: DateTime<Utc> = (today + Days::new(1)).and_time(chrono::NaiveTime::MIN).and_utc();
    harness.clock.advance(end_of_today - harness.clock.now() + Duration::days(14) - Duration::seconds(1));
    let report = harness.maintenance.tick().await.expect("the tick succeeds");
    let yesterday = today - Days::new(1);
    assert_eq!(report.dropped, [DailyTable::Logs.partition(yesterday)], "yesterday's logs only");
    assert!(report.partitions > 0, "partitions of the coming days are created");

    harness.clock.advance(Duration::seconds(1));
    let report = harness.maintenance.tick().await.expect("the tick succeeds");
    assert_eq!(report.dropped, [DailyTable::Logs.partition(today)]);
    assert!(harness.exists(id).await);

    harness.clock.advance(Duration::days(16));
    let report = harness.maintenance.tick().await.expect("the tick succeeds");
    assert!(report.dropped.contains(&DailyTable::Occurrences.partition(today)), "{report:?}");
    assert!(!report.dropped.contains(&DailyTable::Occurrences.partition(today + Days::new(1))), "{report:?}");
    assert!(!harness.exists(id).await);
    assert_eq!(
        harness.maintenance.tick().await.expect("the tick succeeds").dropped,
        Vec::<String>::new(),
        "they are dropped once"
    );
}

#[tokio::test]
async fn day_with_an_open_occurrence_is_kept_and_reported() {
    let mut harness = RetentionHarness::new().await;
    let (today, id) = (harness.today(), harness.occurrence().await);
    harness.clock.advance(Duration::days(40));
    let report = harness.maintenance.tick().await.expect("the tick succeeds");
    assert_eq!(report.open, [DailyTable::Logs.partition(today), DailyTable::Occurrences.partition(today)]);
    assert!(harness.exists(id).await);
    harness.complete(id).await;
    let report = harness.maintenance.tick().await.expect("the tick succeeds");
    assert_eq!(report.dropped, [DailyTable::Logs.partition(today), DailyTable::Occurrences.partition(today)]);
    assert_eq!(report.open, Vec::<String>::new());
}

#[tokio::test]
async fn locked_partition_is_dropped_at_the_next_tick() {
    let harness = RetentionHarness::new().await;
    let yesterday = harness.today() - Days::new(1);
    let mut reader = PgConnection::connect(&harness.url).await.expect("PostgreSQL responds");
    let mut tx = reader.begin().await.expect("a transaction");
    sqlx::query("SELECT count(*) FROM occurrences").execute(&mut *tx).await.expect("it can be read");
    let since = tokio::time::Instant::now();
    assert_eq!(
        harness.store.drop_partition(DailyTable::Occurrences, yesterday).await.expect("the query succeeds"),
        PartitionDropOutcome::Locked
    );
    assert!(since.elapsed() < std::time::Duration::from_secs(10), "{:?}", since.elapsed());
    tx.rollback().await.expect("rolled back");
    assert_eq!(
        harness.store.drop_partition(DailyTable::Occurrences, yesterday).await.expect("the query succeeds"),
        PartitionDropOutcome::Removed
    );
}

#[tokio::test]
async fn old_failures_dead_letters_and_keys_are_deleted() {
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
    harness.execute(&insert(181, 2_500)).await;
    harness.execute(&insert(8, 3)).await;
    harness.execute(&insert(6, 2)).await;
    let report = harness.maintenance.tick().await.expect("the tick succeeds");
    assert_eq!((report.failures, report.dead_letters, report.trigger_keys), (2_500, 2_500, 2_503));
    let report = harness.maintenance.tick().await.expect("the tick succeeds");
    assert_eq!((report.failures, report.dead_letters, report.trigger_keys), (0, 0, 0));
    assert_eq!(harness.execute("SELECT 1 FROM failed_occurrences").await, 5);
    assert_eq!(harness.execute("SELECT 1 FROM dead_letters").await, 5);
    assert_eq!(harness.execute("SELECT 1 FROM trigger_keys").await, 2);
}

#[tokio::test]
async fn clock_step_drops_nothing() {
    let mut harness = RetentionHarness::new().await;
    let dead_letter_and_key =
        "WITH d AS (INSERT INTO dead_letters (id, received_at, digest, reason, source, body, body_bytes)
                          VALUES (gen_random_uuid(), now(), 'x', 'r', 's', '', 0))
                          INSERT INTO trigger_keys (job_id, key, occurrence_id, created_at)
                          VALUES (gen_random_uuid(), 'k', gen_random_uuid(), now())";
    harness.execute(dead_letter_and_key).await;
    harness.clock.advance(Duration::days(200));
    harness.clock.hold();
    let report = harness.maintenance.tick().await.expect("the tick succeeds");
    assert_eq!(
        (report.dead_letters, report.trigger_keys, report.dropped),
        (0, 0, Vec::new()),
        "a clock that may be wrong deletes nothing"
    );
    assert!(report.partitions > 0, "partitions are created, which does no harm");
    // The time for which dispatching is held, and a minute in which other servers may not have noticed the step.
    harness.clock.advance(Duration::seconds(89));
    assert_eq!(harness.maintenance.tick().await.expect("the tick succeeds").dead_letters, 0);
    harness.clock.advance(Duration::seconds(1));
    let report = harness.maintenance.tick().await.expect("the tick succeeds");
    assert_eq!((report.dead_letters, report.trigger_keys), (1, 1));
    assert!(!report.dropped.is_empty(), "{report:?}");
}

#[tokio::test]
async fn orphaned_slots_are_freed() {
    let mut harness = RetentionHarness::new().await;
    let (open, ended) = (harness.occurrence().await, harness.occurrence().await);
    harness.complete(ended).await;
    for id in [open, ended, harness.clock.occurrence_id()] {
        let at = id.created_at().to_rfc3339();
        harness
            .execute(&format!(
                "INSERT INTO slots (occurrence_id, created_at, job_id, priority, is_taken) VALUES ('{id}', '{at}', '{}', 3, true)",
                harness.job
            ))
            .await;
    }
    assert_eq!(harness.maintenance.tick().await.expect("the tick succeeds").slots, 2);
    harness.maintenance.activate_slot_granter.notified().await;
    assert_eq!(harness.execute(&format!("SELECT 1 FROM slots WHERE occurrence_id = '{open}'")).await, 1);
}
