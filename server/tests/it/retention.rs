//! Retention: partitions are created ahead of time and dropped when they are too old, without anything waiting for it.

use chrono::{DateTime, Days, Duration, NaiveDate, Utc};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::{InstanceHello, StatusReport},
    status::OccurrenceStatus,
};
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    background::maintenance::{Maintenance, MaintenanceReport},
    clock::Clock,
    config::retention::RetentionConfig,
    engine::Service,
    store::{
        Store,
        create::NewRun,
        partitions::{DROP_MARK, PartitionDropOutcome, PartitionedTable},
    },
};
use milvaion_test_support::{
    database::{self, TestConnection},
    jobs, messages, runs,
};
use sqlx::{Connection, PgConnection};
use tokio::sync::Mutex;

struct RetentionHarness {
    url: String,
    store: Store,
    clock: Clock,
    maintenance: Maintenance,
    job: JobId,
    /// The connection for statements that the store has no function for.
    connection: Mutex<TestConnection>,
}

impl RetentionHarness {
    async fn new() -> Self {
        let url = database::create().await;
        let store = database::open(&url).await;
        let clock = Clock::manual(milvaion_server::clock::machine_now());
        let retention = RetentionConfig::default();
        let maintenance = Maintenance { store: store.clone(), clock: clock.clone(), retention };
        let job = jobs::insert(&store, &clock, Schedule::Manual, None).await;
        let connection = Mutex::new(TestConnection::open(&url).await);
        Self { url, store, clock, maintenance, job, connection }
    }

    /// Advances the clock as if a server had looked for expired data all the time.
    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        let at = self.clock.now().to_rfc3339();
        self.execute(&format!("UPDATE maintenance_state SET last_tick_at = '{at}'")).await;
    }

    fn today(&self) -> NaiveDate {
        self.clock.now().date_naive()
    }

    /// Executes a statement. Returns the number of rows it changed or selected.
    async fn execute(&self, sql: &str) -> u64 {
        self.connection.lock().await.execute(sql).await
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

/// Returns the number of rows that a tick deleted from each of some tables.
fn deleted<const N: usize>(report: &MaintenanceReport, tables: [&str; N]) -> [u64; N] {
    tables.map(|table| report.deleted.get(table).copied().unwrap_or_default())
}

#[tokio::test]
async fn old_days_are_dropped_logs_first() {
    let mut harness = RetentionHarness::new().await;
    let (today, id) = (harness.today(), harness.occurrence().await);
    harness.complete(id).await;
    // One second before all of today's logs are fourteen days old.
    let end_of_today: DateTime<Utc> = (today + Days::new(1)).and_time(chrono::NaiveTime::MIN).and_utc();
    harness.pass(end_of_today - harness.clock.now() + Duration::days(14) - Duration::seconds(1)).await;
    let report = harness.maintenance.tick().await.expect("the tick succeeds");
    let yesterday = today - Days::new(1);
    let logs_and_receipts = |day| report.dropped.contains(&PartitionedTable::Logs.partition(day));
    assert!(logs_and_receipts(yesterday) && !logs_and_receipts(today), "{report:?}");
    assert!(report.partitions > 0, "partitions of the coming days are created");

    harness.pass(Duration::seconds(1)).await;
    let report = harness.maintenance.tick().await.expect("the tick succeeds");
    assert!(report.dropped.contains(&PartitionedTable::Logs.partition(today)), "{report:?}");
    assert!(harness.exists(id).await);

    harness.pass(Duration::days(16)).await;
    let report = harness.maintenance.tick().await.expect("the tick succeeds");
    assert!(report.dropped.contains(&PartitionedTable::History.partition(today)), "{report:?}");
    assert!(!report.dropped.contains(&PartitionedTable::History.partition(today + Days::new(1))), "{report:?}");
    assert!(!harness.exists(id).await);
    assert_eq!(
        harness.maintenance.tick().await.expect("the tick succeeds").dropped,
        Vec::<String>::new(),
        "they are dropped once"
    );
}

#[tokio::test]
async fn retention_counts_from_the_end() {
    let mut harness = RetentionHarness::new().await;
    // Longer than 1 KiB, so that it is not in the row.
    let input = serde_json::json!({ "text": "x".repeat(2_000) });
    let request = NewRun {
        id: harness.clock.occurrence_id(),
        job_id: harness.job,
        by: "ana".into(),
        input: Some(input.clone()),
        ..NewRun::default()
    };
    harness.store.insert_manual_run(&request, harness.clock.now()).await.expect("the query succeeds");
    let (first_day, input_of) = (harness.today(), async |harness: &RetentionHarness| {
        let view = harness.store.occurrence(request.id, 1, harness.clock.now()).await.expect("the query succeeds");
        view.expect("it exists").job_data
    });
    // A delay of sixty days, twice the retention.
    for _ in 0..4 {
        harness.pass(Duration::days(15)).await;
        harness.maintenance.tick().await.expect("the tick succeeds");
    }
    let report = harness.maintenance.tick().await.expect("the tick succeeds");
    assert_eq!(report.needed, [PartitionedTable::Inputs.partition(first_day)], "an open occurrence needs its input");
    assert_eq!(input_of(&harness).await, input);
    harness.complete(request.id).await;
    assert_eq!(input_of(&harness).await, input);
    harness.pass(Duration::days(29)).await;
    let report = harness.maintenance.tick().await.expect("the tick succeeds");
    assert_eq!(report.needed, [PartitionedTable::Inputs.partition(first_day)]);
    assert_eq!(input_of(&harness).await, input, "it ended 29 days ago");
    harness.pass(Duration::days(2)).await;
    let report = harness.maintenance.tick().await.expect("the tick succeeds");
    assert!(!harness.exists(request.id).await);
    let all: Vec<String> =
        [report.dropped, harness.maintenance.tick().await.expect("the tick succeeds").dropped].concat();
    assert!(all.contains(&PartitionedTable::Inputs.partition(first_day)), "{all:?}");
}

#[tokio::test]
async fn changed_retention_leaves_no_gap_and_no_overlap() {
    let harness = RetentionHarness::new().await;
    let bounds = "SELECT pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                   WHERE i.inhparent = 'history'::regclass";
    for (days, step) in [(30, 2), (400, 9), (400, 300), (7, 1), (1_850, 40), (30, 1)] {
        harness.pass(Duration::days(step)).await;
        let retention = RetentionConfig { occurrences: Duration::days(days), ..RetentionConfig::default() };
        let store = harness.store.clone().with_retention(retention);
        store.ensure_partitions(harness.clock.now()).await.expect("the query succeeds");
        // A clock that was set forward by nine days: the partition is created where it is needed.
        let (id, later) = (harness.occurrence().await, harness.clock.now() + Duration::days(9));
        let report = StatusReport::new(id, 1, "w-1", OccurrenceStatus::Completed, later);
        assert_eq!(runs::report(&store, &Clock::manual(later), vec![report]).await, 1);
        assert!(harness.exists(id).await);
    }
    let mut connection = PgConnection::connect(&harness.url).await.expect("PostgreSQL responds");
    let texts: Vec<String> = sqlx::query_scalar(bounds).fetch_all(&mut connection).await.expect("the query succeeds");
    let mut bounds: Vec<(&str, &str)> = texts
        .iter()
        .map(|text| {
            let parts: Vec<&str> = text.split('\'').collect();
            (parts[1], parts[3])
        })
        .collect();
    bounds.sort_unstable();
    assert!(bounds.len() < 64, "{bounds:?}");
    assert!(bounds.windows(2).all(|pair| pair[0].1 == pair[1].0), "{bounds:?}");
}

#[tokio::test]
async fn reader_delays_only_the_drop_and_operators_keep_what_they_detach() {
    let harness = RetentionHarness::new().await;
    operator_keeps_a_detached_partition(&harness).await;
    drop_that_cannot_begin_leaves_no_mark(&harness).await;
    let (yesterday, now) = (harness.today() - Days::new(1), harness.clock.now());
    let mut reader = PgConnection::connect(&harness.url).await.expect("PostgreSQL responds");
    let mut tx = reader.begin().await.expect("a transaction");
    sqlx::query("SELECT count(*) FROM occurrences").execute(&mut *tx).await.expect("it can be read");
    let since = tokio::time::Instant::now();
    let drop =
        async || harness.store.drop_partitions(PartitionedTable::History, now).await.expect("the query succeeds");
    let name = PartitionedTable::History.partition(yesterday);
    assert_eq!(drop().await, [(name.clone(), PartitionDropOutcome::Locked)]);
    // Meanwhile occurrences begin and end, and partitions are created.
    let id = harness.occurrence().await;
    harness.complete(id).await;
    let later = now + Duration::days(3);
    assert!(harness.store.ensure_partitions(later).await.expect("the query succeeds") > 0);
    assert!(since.elapsed() < std::time::Duration::from_secs(10), "{:?}", since.elapsed());
    tx.rollback().await.expect("rolled back");
    assert_eq!(drop().await, [(name, PartitionDropOutcome::Removed)]);
    assert!(harness.exists(id).await);
}

/// A server has ended between the detachment and the drop of a partition, and an operator has archived another one.
async fn operator_keeps_a_detached_partition(harness: &RetentionHarness) {
    let finish = async || {
        let id = harness.occurrence().await;
        harness.complete(id).await;
        assert!(harness.exists(id).await);
    };
    finish().await;
    let [archived, ours] = [0, 1].map(|days| PartitionedTable::History.partition(harness.today() + Days::new(days)));
    harness.execute(&format!("COMMENT ON TABLE {ours} IS '{DROP_MARK}'")).await;
    for partition in [&archived, &ours] {
        harness.execute(&format!("ALTER TABLE history DETACH PARTITION {partition}")).await;
    }
    let nothing_expired = harness.clock.now() - Duration::days(2);
    let drop = async || {
        harness.store.drop_partitions(PartitionedTable::History, nothing_expired).await.expect("the query succeeds")
    };
    assert_eq!(drop().await, [(ours, PartitionDropOutcome::Removed)]);
    // The partition of today is created again, beside the table that has its name.
    finish().await;
    assert_eq!(drop().await, []);
    assert_eq!(harness.execute(&format!("SELECT 1 FROM {archived}")).await, 1);
}

/// An operator may detach the partition next.
async fn drop_that_cannot_begin_leaves_no_mark(harness: &RetentionHarness) {
    let mut other = PgConnection::connect(&harness.url).await.expect("PostgreSQL responds");
    let mut tx = other.begin().await.expect("a transaction");
    let lock = "LOCK TABLE ONLY history IN SHARE UPDATE EXCLUSIVE MODE";
    sqlx::query(lock).execute(&mut *tx).await.expect("it can be locked");
    let outcomes = harness.store.drop_partitions(PartitionedTable::History, harness.clock.now()).await;
    assert_eq!(outcomes.expect("the query succeeds")[0].1, PartitionDropOutcome::Locked);
    let marked = format!("SELECT 1 FROM pg_description WHERE description = '{DROP_MARK}'");
    assert_eq!(harness.execute(&marked).await, 0);
    tx.rollback().await.expect("rolled back");
}

#[tokio::test]
async fn old_failures_dead_letters_and_keys_are_deleted_whatever_else_fails() {
    let mut harness = RetentionHarness::new().await;
    let now = harness.clock.now();
    let insert = |age: i64, n: usize| {
        let at = (now - Duration::days(age)).to_rfc3339();
        format!(
            "WITH f AS (INSERT INTO failed_occurrences (occurrence_id, job_id, job_name, failed_at, cause, fingerprint, job_data,
                                                       job_version, worker_id, job_type, attempt)
                        SELECT gen_random_uuid(), gen_random_uuid(), 'x', '{at}', 'failed', 'f', '{{}}', 1, 'w', 't', 1 FROM generate_series(1, {n}) RETURNING 1),
                  d AS (INSERT INTO dead_letters (id, received_at, digest, reason, source, body, body_bytes)
                        SELECT gen_random_uuid(), '{at}', gen_random_uuid()::text, 'r', 's', '', 0 FROM generate_series(1, {n}) RETURNING 1),
                  a AS (INSERT INTO alert_states (id, rule_id, group_key, title, first_at, last_at, resolved_at)
                        SELECT gen_random_uuid(), (SELECT id FROM alert_rules ORDER BY id LIMIT 1), 'g', 't', '{at}', '{at}', '{at}'
                          FROM generate_series(1, {n}) RETURNING 1)
             INSERT INTO trigger_keys (job_id, key, occurrence_id, created_at)
             SELECT gen_random_uuid(), 'k', gen_random_uuid(), '{at}' FROM generate_series(1, {n})"
        )
    };
    // More than two batches.
    harness.execute(&insert(181, 2_500)).await;
    harness.execute(&insert(8, 3)).await;
    harness.execute(&insert(6, 2)).await;
    let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$";
    harness.execute(refuse).await;
    harness.execute("CREATE TRIGGER refuses BEFORE DELETE ON failed_occurrences EXECUTE FUNCTION refuse()").await;
    let error = harness.maintenance.tick().await.expect_err("a step fails").to_string();
    assert!(error.ends_with(": failed_occurrences"), "{error}");
    harness.execute("DROP TRIGGER refuses ON failed_occurrences").await;
    let tables = ["failed_occurrences", "dead_letters", "alert_states", "trigger_keys"];
    let report = harness.maintenance.tick().await.expect("the tick succeeds");
    assert_eq!(deleted(&report, tables), [2_500, 0, 0, 0], "the other steps were done");
    let report = harness.maintenance.tick().await.expect("the tick succeeds");
    assert_eq!(deleted(&report, tables), [0, 0, 0, 0]);
    assert_eq!(harness.execute("SELECT 1 FROM failed_occurrences").await, 5);
    assert_eq!(harness.execute("SELECT 1 FROM dead_letters").await, 5);
    assert_eq!(harness.execute("SELECT 1 FROM alert_states").await, 5);
    assert_eq!(harness.execute("SELECT 1 FROM trigger_keys").await, 2);
}

#[tokio::test]
async fn instances_of_workers_are_deleted_a_day_after_their_last_heartbeat() {
    let mut harness = RetentionHarness::new().await;
    let hello = async |instance: &str| {
        let job_types = vec![messages::job_type("echo")];
        let hello = InstanceHello { job_types, ..messages::hello(instance, harness.clock.now()) };
        harness.store.store_hellos(&[hello], harness.clock.now()).await.expect("the query succeeds");
    };
    hello("old").await;
    harness.pass(Duration::hours(1)).await;
    hello("young").await;
    harness.pass(Duration::hours(23) + Duration::seconds(1)).await;
    let report = harness.maintenance.tick().await.expect("the tick succeeds");
    assert_eq!(deleted(&report, ["worker_instances"]), [1]);
    assert_eq!(harness.execute("SELECT 1 FROM worker_instances WHERE id = 'young'").await, 1);
    assert_eq!(harness.execute("SELECT 1 FROM instance_job_types").await, 1);
    assert_eq!(harness.execute("SELECT 1 FROM worker_job_types").await, 1, "the worker still has its job types");

    // A worker that no job names goes after its retention, which begins with the last heartbeat. One that a job names stays.
    let (job_types, worker_id) = (vec![messages::job_type("mail")], "pod".to_owned());
    let pod = InstanceHello { job_types, worker_id, ..messages::hello("pod-1", harness.clock.now()) };
    harness.store.store_hellos(&[pod], harness.clock.now()).await.expect("the query succeeds");
    harness.pass(Duration::days(31)).await;
    let beat = messages::heartbeat("pod-1", &[], harness.clock.now());
    harness.store.store_heartbeats(&[beat], harness.clock.now()).await.expect("the query succeeds");
    for (days, expected) in [(0, [0, 0]), (29, [0, 0]), (2, [1, 1])] {
        harness.pass(Duration::days(days)).await;
        let report = harness.maintenance.tick().await.expect("the tick succeeds");
        assert_eq!(deleted(&report, ["worker_job_types", "workers"]), expected, "{days} days later");
    }
    assert_eq!(harness.execute("SELECT 1 FROM worker_job_types WHERE worker_id = 'w'").await, 1, "a job names it");
}

#[tokio::test]
async fn clock_that_is_ahead_when_the_servers_start_deletes_nothing() {
    let mut harness = RetentionHarness::new().await;
    harness.maintenance.tick().await.expect("the tick succeeds");
    let yesterday = PartitionedTable::Logs.partition(harness.today() - Days::new(1));
    harness.clock.advance(Duration::days(31));
    let report = harness.maintenance.tick().await.expect("the tick succeeds");
    assert!(report.is_held && report.dropped.is_empty(), "{report:?}");
    harness.clock.advance(Duration::hours(23));
    assert!(harness.maintenance.tick().await.expect("the tick succeeds").is_held, "the first look was not the second");

    // The clock is set back: what has not expired stays for good.
    harness.clock.advance(-Duration::days(31));
    let report = harness.maintenance.tick().await.expect("the tick succeeds");
    assert!(!report.is_held && report.dropped.is_empty(), "{report:?}");

    // The clock is right: the data has expired a day later too.
    harness.clock.advance(Duration::days(31));
    assert!(harness.maintenance.tick().await.expect("the tick succeeds").is_held);
    harness.clock.advance(Duration::hours(12));
    assert!(harness.maintenance.tick().await.expect("the tick succeeds").is_held);
    harness.clock.advance(Duration::hours(12));
    let report = harness.maintenance.tick().await.expect("the tick succeeds");
    assert!(report.dropped.contains(&yesterday), "{report:?}");
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
    harness.pass(Duration::days(200)).await;
    harness.clock.hold();
    let report = harness.maintenance.tick().await.expect("the tick succeeds");
    let nothing = report.deleted.is_empty() && report.dropped.is_empty();
    assert!(nothing, "a clock that may be wrong deletes nothing: {report:?}");
    assert!(report.partitions > 0, "partitions are created, which does no harm");
    // The time for which dispatching is held, and a minute in which other servers may not have noticed the step.
    harness.clock.advance(Duration::seconds(89));
    assert!(harness.maintenance.tick().await.expect("the tick succeeds").deleted.is_empty());
    harness.clock.advance(Duration::seconds(1));
    let report = harness.maintenance.tick().await.expect("the tick succeeds");
    assert_eq!(deleted(&report, ["dead_letters", "trigger_keys"]), [1, 1]);
    assert!(!report.dropped.is_empty(), "{report:?}");
}
