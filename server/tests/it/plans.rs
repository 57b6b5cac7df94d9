//! The plans of the frequent statements: made while the tables are empty, they are still right when the tables are full.
//!
//! The tests count the rows that PostgreSQL reads, not the time it takes. By default, the tables are a tenth as full as in
//! `exhaustive`, which suffices to tell an index from a whole table.

use milvaion_api::page::{JobFilter, OccurrenceFilter};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::{RunProgress, StatusReport},
    status::OccurrenceStatus,
};
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    clock::{Clock, machine_now},
    config::database::DatabaseConfig,
    domain::lost_message::{QueueBacklog, QueueCount},
    store::{Store, create::NewRun, jobs::AuditStamp},
};
use milvaion_test_support::{
    database::{self, TestConnection},
    jobs, runs,
};

/// The occurrences of one batch.
const BATCH: usize = 200;
/// How often PostgreSQL plans a statement anew before it may keep a plan.
const PLANNED_ANEW: usize = 5;

/// Finds the columns of a run that a progress report has changed, as `name`.
const CHANGED_BY_PROGRESS: &str = "FROM (SELECT now.key AS name FROM before_progress b JOIN runs r ON r.id = b.id
                                          CROSS JOIN jsonb_each(to_jsonb(r)) now
                                          JOIN jsonb_each(to_jsonb(b)) was ON was.key = now.key
                                         WHERE now.value IS DISTINCT FROM was.value) changed WHERE true";

/// Is true for a column that an index of `runs` names: as a key, in an expression or in its condition. PostgreSQL writes all
/// indexes anew if a statement changes such a column.
const IS_INDEXED: &str = "EXISTS (SELECT 1 FROM pg_depend d JOIN pg_index i ON i.indexrelid = d.objid
                                    JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
                                   WHERE i.indrelid = 'runs'::regclass AND d.classid = 'pg_class'::regclass
                                     AND d.refobjid = i.indrelid AND a.attname = changed.name)";

struct PlanHarness {
    url: String,
    store: Store,
    clock: Clock,
    jobs: Vec<JobId>,
}

impl PlanHarness {
    /// Creates a store with a single connection, so that all statements of a test share their plans.
    async fn new() -> Self {
        let url = database::create().await;
        // The session of the migrations reads the tables, and reports that with its end.
        database::open(&url).await.close().await;
        let store = Store::connect(&DatabaseConfig { url: url.clone(), max_connections: 1 }).await.expect("connected");
        let clock = Clock::manual(machine_now());
        Self { url, store, clock, jobs: Vec::new() }
    }

    /// Runs each statement as often as it takes until PostgreSQL keeps its plan, on empty tables and about nothing.
    async fn plan(&self) {
        let now = self.clock.now();
        for _ in 0..PLANNED_ANEW + 2 {
            let nothing: Vec<OccurrenceId> = (0..BATCH).map(|_| self.clock.occurrence_id()).collect();
            let planned: Vec<NewRun> = nothing
                .iter()
                .map(|id| NewRun { job_id: JobId(id.0), version: 1, due: Some(now), id: *id, ..NewRun::default() })
                .collect();
            let created = self.store.create_scheduled_runs(&planned, None, now).await.expect("the statement succeeds");
            assert_eq!(created, []);
            assert_eq!(self.store.due_jobs(now, 1_000, &[]).await.expect("the query succeeds").len(), 0);
            let sent: Vec<_> = nothing.iter().map(|id| runs::confirmed(*id, 1)).collect();
            assert_eq!(self.store.mark_published(&sent, false, now).await.expect("the statement succeeds"), 0);
            for status in [OccurrenceStatus::Running, OccurrenceStatus::Completed] {
                let report = |id: &OccurrenceId| StatusReport::new(*id, 1, "w-1", status, now);
                assert_eq!(runs::report(&self.store, &self.clock, nothing.iter().map(report).collect()).await, 0);
            }
        }
    }

    /// Inserts due jobs.
    async fn insert_jobs(&mut self) {
        for _ in 0..BATCH {
            let job = jobs::insert(&self.store, &self.clock, Schedule::every(60), Some(self.clock.now())).await;
            self.jobs.push(job);
        }
    }

    /// Dispatches all jobs, and takes the occurrences through their lives.
    async fn cycle(&self) {
        let now = self.clock.now();
        let plan = |due: &milvaion_server::store::plan::DueJob| NewRun {
            job_id: due.id,
            version: due.version,
            due: Some(due.next_fire_at),
            next_fire_at: Some(now + chrono::Duration::seconds(60)),
            id: self.clock.occurrence_id(),
            ..NewRun::default()
        };
        let due = self.store.due_jobs(now, 1_000, &[]).await.expect("the query succeeds");
        assert_eq!(due.len(), self.jobs.len());
        let planned: Vec<NewRun> = due.iter().map(plan).collect();
        let created = self.store.create_scheduled_runs(&planned, None, now).await.expect("the statement succeeds");
        let ids: Vec<OccurrenceId> = created.iter().map(|run| run.row.id).collect();
        let sent: Vec<_> = ids.iter().map(|id| runs::confirmed(*id, 1)).collect();
        self.store.mark_published(&sent, false, now).await.expect("the statement succeeds");
        self.report(&ids, OccurrenceStatus::Running, None).await;
        let mut connection = TestConnection::open(&self.url).await;
        connection.execute("DROP TABLE IF EXISTS before_progress").await;
        connection.execute(format!("CREATE TABLE before_progress AS SELECT * FROM runs WHERE id = '{}'", ids[0])).await;
        let progress = Some(RunProgress { percent: 50, message: String::new() });
        self.report(&ids, OccurrenceStatus::Running, progress).await;
        assert!(
            connection.count(format!("SELECT count(*) {CHANGED_BY_PROGRESS}")).await >= 2,
            "progress changes the run"
        );
        let indexed = format!("SELECT count(*) {CHANGED_BY_PROGRESS} AND {IS_INDEXED}");
        assert_eq!(connection.count(indexed).await, 0, "a progress report changes no index");
        self.report(&ids, OccurrenceStatus::Completed, None).await;
        self.clock.advance(chrono::Duration::seconds(60));
    }

    async fn report(&self, ids: &[OccurrenceId], status: OccurrenceStatus, progress: Option<RunProgress>) {
        let report = |id: &OccurrenceId| StatusReport {
            progress: progress.clone(),
            ..StatusReport::new(*id, 1, "w-1", status, self.clock.now())
        };
        assert_eq!(runs::report(&self.store, &self.clock, ids.iter().map(report).collect()).await, ids.len());
    }

    /// Waits until PostgreSQL has counted this many inserted and deleted rows of `runs`, and returns the sequential scans of
    /// `runs` and `job_due`, and the rows and the index blocks of these tables that were read.
    async fn counts(&self, rows: i64) -> (i64, i64, i64) {
        let mut connection = TestConnection::open(&self.url).await;
        let tables = "FROM pg_stat_user_tables WHERE relname IN ('runs', 'job_due')";
        // The session of the store reports its counts with a later statement.
        let changed = "SELECT n_tup_ins + n_tup_del FROM pg_stat_user_tables WHERE relname = 'runs'";
        while connection.count(changed).await < rows {
            self.store.is_cluster_paused().await.expect("the query succeeds");
        }
        (
            connection.count(format!("SELECT sum(seq_scan)::bigint {tables}")).await,
            connection.count(format!("SELECT sum(idx_tup_fetch)::bigint {tables}")).await,
            connection
                .count(
                    "SELECT sum(idx_blks_read + idx_blks_hit)::bigint FROM pg_statio_user_tables
                      WHERE relname IN ('runs', 'job_due')",
                )
                .await,
        )
    }
}

/// Dispatches a batch with the plans of an empty table beside `backlog` open occurrences, of which the planner knows nothing.
async fn dispatch_with_early_plans(backlog: i64) {
    let mut harness = PlanHarness::new().await;
    let mut connection = TestConnection::open(&harness.url).await;
    // No statistics come to the planner's help.
    connection.execute("ALTER TABLE runs SET (autovacuum_enabled = false)").await;
    connection.execute("ALTER TABLE job_due SET (autovacuum_enabled = false)").await;
    connection.execute("VACUUM ANALYZE runs, job_due").await;
    harness.plan().await;
    harness.insert_jobs().await;
    let batch = i64::try_from(BATCH).expect("a small number");
    connection
        .execute(format!(
            "INSERT INTO runs (id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger,
                               status, priority)
             SELECT gen_random_uuid(), now(), gen_random_uuid(), 'x', 1, 'w', 't', now(), 'schedule',
                    CASE WHEN n % 10 = 0 THEN 'running' ELSE 'queued' END::run_status, 3
               FROM generate_series(1, {backlog}) n"
        ))
        .await;
    // The end of its session reports what it did.
    drop(connection);
    let (scans, read, blocks) = harness.counts(backlog).await;
    harness.cycle().await;
    let (scans_after, read_after, blocks_after) = harness.counts(backlog + 2 * batch).await;
    assert_eq!(scans_after, scans, "no table is read as a whole");
    let read = read_after - read;
    assert!(read < 40 * batch, "{read} rows were read for a batch of {batch}, beside {backlog} others");
    let blocks = blocks_after - blocks;
    assert!(blocks < 200 * batch, "{blocks} blocks of indexes were read for a batch of {batch}");
}

#[tokio::test]
async fn plan_of_an_empty_table_reads_a_full_one_by_index() {
    dispatch_with_early_plans(50_000).await;
}

/// Grants slots while `waiting` occurrences wait for one.
async fn grant_slots(waiting: i64) {
    let harness = PlanHarness::new().await;
    let mut connection = TestConnection::open(&harness.url).await;
    connection.execute("ALTER TABLE runs SET (autovacuum_enabled = false)").await;
    // Twenty jobs share a key with five slots, which are taken.
    connection
        .execute(format!(
            "INSERT INTO runs (id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger,
                               status, priority, slot_group, slot_key, slot_key_limit, has_slot)
             SELECT lpad(to_hex(n), 32, '0')::uuid, now(), g.id, 'x', 1, 'w', 't', now(), 'schedule',
                    CASE WHEN n <= 5 THEN 'running' ELSE 'queued' END::run_status, 3, g.id, 'database', 5, n <= 5
               FROM generate_series(1, {waiting}) n
              CROSS JOIN LATERAL (SELECT lpad(to_hex(n % 20), 32, '0')::uuid AS id) g"
        ))
        .await;
    drop(connection);
    let end = async |n: u128| {
        let id = OccurrenceId(uuid::Uuid::from_u128(n));
        harness.report(&[id], OccurrenceStatus::Completed, None).await;
    };
    let granted =
        async || harness.store.grant_slots(500, harness.clock.now()).await.expect("the statement succeeds").len();
    end(1).await;
    let (_, read, ..) = harness.counts(waiting + 1).await;
    assert_eq!(granted().await, 1);
    assert_eq!(granted().await, 0);
    assert_eq!(harness.store.occurrences_to_replace(500).await.expect("the query succeeds"), []);
    end(2).await;
    assert_eq!(granted().await, 1);
    end(3).await;
    let (_, read_after, ..) = harness.counts(waiting + 3).await;
    let read = read_after - read;
    assert!(read < 1_000, "{read} rows were read while {waiting} wait");
}

#[tokio::test]
async fn length_of_a_queue_for_slots_does_not_matter() {
    grant_slots(10_000).await;
}

#[tokio::test]
async fn pause_after_a_run_is_begun_without_reading_other_jobs() {
    let mut harness = PlanHarness::new().await;
    let mut connection = TestConnection::open(&harness.url).await;
    harness.insert_jobs().await;
    connection
        .execute(
            "WITH j AS (UPDATE jobs SET schedule = '{\"kind\": \"every\", \"seconds\": 60, \"from\": \"end\"}' RETURNING id),
                  d AS (UPDATE job_due SET next_fire_at = NULL)
             INSERT INTO runs (id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger,
                               status, priority, pause_after_seconds)
             SELECT id, now(), id, 'x', 1, 'w', 't', now(), 'schedule', 'running', 3, 60 FROM j",
        )
        .await;
    drop(connection);
    let rows = i64::try_from(BATCH).expect("a small number");
    let job = harness.jobs[0];
    let end = async |job: JobId| harness.report(&[OccurrenceId(job.0)], OccurrenceStatus::Completed, None).await;
    end(job).await;
    let (_, read, ..) = harness.counts(rows + 1).await;
    let now = harness.clock.now();
    let begun = harness.store.schedule_after_end(Some(&[job]), now).await.expect("the statement succeeds");
    assert_eq!(begun, [(job, now + chrono::Duration::seconds(60))]);
    end(harness.jobs[1]).await;
    let (_, read_after, ..) = harness.counts(rows + 2).await;
    let read = read_after - read;
    assert!(read < 20, "{read} rows were read beside {rows} jobs that run");
}

/// Lists the runs of an idle job beside `others` runs of ten busy ones.
async fn list_beside_busy_jobs(others: i64) {
    let mut harness = PlanHarness::new().await;
    let mut connection = TestConnection::open(&harness.url).await;
    harness.insert_jobs().await;
    let (idle, busy) = (harness.jobs[0], &harness.jobs[1..11]);
    for (n, job) in busy.iter().enumerate() {
        connection
            .execute(format!(
                "INSERT INTO runs (id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for,
                                   trigger, status, priority)
                 SELECT lpad(to_hex(n), 32, '0')::uuid, now(), '{job}', 'x', 1, 'w', 't', now(), 'schedule', 'queued', 3
                   FROM generate_series({n} + 1, {others}, 10) n"
            ))
            .await;
    }
    connection.execute("ANALYZE runs").await;
    drop(connection);
    let list = async |job: JobId| {
        let recent = harness.store.recent_statuses(&[job.0]).await.expect("the query succeeds");
        let filter = OccurrenceFilter { job_id: Some(job), ..OccurrenceFilter::default() };
        let rows = harness.store.occurrences(&filter).await.expect("the query succeeds").rows;
        (recent.get(&job.0).map_or(0, Vec::len), rows.len())
    };
    // PostgreSQL may keep a plan that suits busy jobs.
    for _ in 0..PLANNED_ANEW + 2 {
        assert_eq!(list(busy[0]).await, (10, 50));
    }
    // The counts of a session arrive in order, so those of the lists do so before those of an end.
    let end = async |n: u128| {
        harness.report(&[OccurrenceId(uuid::Uuid::from_u128(n))], OccurrenceStatus::Completed, None).await;
    };
    end(1).await;
    let (scans, read, ..) = harness.counts(others + 1).await;
    assert_eq!(list(idle).await, (0, 0));
    end(2).await;
    let (scans_after, read_after, ..) = harness.counts(others + 2).await;
    assert_eq!(scans_after, scans, "no table is read as a whole");
    let read = read_after - read;
    assert!(read < 1_000, "{read} rows were read beside {others} of other jobs");
}

#[tokio::test]
async fn open_runs_of_other_jobs_are_not_read_for_a_list() {
    list_beside_busy_jobs(20_000).await;
}

/// Records confirms beside `sent` occurrences that are sent and 20,000 that are not.
async fn record_confirms(sent: u32) {
    let harness = PlanHarness::new().await;
    let mut connection = TestConnection::open(&harness.url).await;
    connection.execute("ALTER TABLE runs SET (autovacuum_enabled = false)").await;
    let insert = |first: u32, last: u32, publish_after: &str| {
        format!(
            "INSERT INTO runs (id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger,
                               status, priority, publish_after)
             SELECT lpad(to_hex(n), 32, '0')::uuid, now(), gen_random_uuid(), 'x', 1, 'w', 't', now(), 'schedule',
                    'queued', 3, {publish_after} FROM generate_series({first}, {last}) n"
        )
    };
    let mark = async |ids: std::ops::Range<u128>| {
        let sent: Vec<_> = ids.map(|n| runs::confirmed(OccurrenceId(uuid::Uuid::from_u128(n)), 1)).collect();
        harness.store.mark_published(&sent, false, harness.clock.now()).await.expect("the query succeeds")
    };
    // The session of the store reports its counts with a later statement.
    let end = async |n: u128| {
        harness.report(&[OccurrenceId(uuid::Uuid::from_u128(n))], OccurrenceStatus::Completed, None).await;
    };
    connection.execute(insert(1, sent, "NULL")).await;
    connection.execute("ANALYZE runs").await;
    // While none is unsent, PostgreSQL may keep a plan that reads the index of these.
    for _ in 0..PLANNED_ANEW + 2 {
        assert_eq!(mark(1..200).await, 0);
    }
    connection.execute(insert(200_001, 220_000, "now()")).await;
    drop(connection);
    let rows = i64::from(sent) + 20_000;
    end(1).await;
    let (_, read, ..) = harness.counts(rows + 1).await;
    assert_eq!(mark(200_001..200_201).await, 200);
    end(2).await;
    let (_, read_after, ..) = harness.counts(rows + 2).await;
    let read = read_after - read;
    assert!(read < 2_000, "{read} rows were read to record 200 confirms");
}

#[tokio::test]
async fn confirms_are_recorded_without_reading_other_unsent_occurrences() {
    record_confirms(10_000).await;
}

/// Searches for a word that `total` jobs have.
async fn search_for_a_frequent_word(total: i64) {
    let harness = PlanHarness::new().await;
    let mut connection = TestConnection::open(&harness.url).await;
    connection
        .execute(format!(
            "INSERT INTO jobs (id, display_name, worker_id, job_type, job_data, schedule, priority, is_active, created_at,
                               created_by, modified_at, modified_by)
             SELECT gen_random_uuid(), 'Frequent ' || n, 'w', 't', '{{}}', '{{}}', 3, true, now(), 'x', now(), 'x'
               FROM generate_series(1, {total}) n"
        ))
        .await;
    connection.execute("ANALYZE jobs").await;
    let search = async |text: &str| {
        let filter = JobFilter { text: Some(text.into()), ..JobFilter::default() };
        harness.store.jobs(&filter, harness.clock.now()).await.expect("the query succeeds").rows.len()
    };
    // The session of the store reports its counts with a later statement, in the order in which it counted.
    let mut read_after = async |inserted: i64| {
        jobs::insert(&harness.store, &harness.clock, Schedule::Manual, None).await;
        while connection.count("SELECT n_tup_ins FROM pg_stat_user_tables WHERE relname = 'jobs'").await
            < total + inserted
        {
            harness.store.is_cluster_paused().await.expect("the query succeeds");
        }
        connection.count("SELECT idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'jobs'").await
    };
    // PostgreSQL may keep a plan that suits rare words.
    for _ in 0..PLANNED_ANEW + 2 {
        assert_eq!(search("rare").await, 0);
    }
    let before = read_after(1).await;
    assert_eq!(search("frequent").await, 50);
    let read = read_after(2).await - before;
    assert!(read < 1_000, "{read} of {total} jobs were read for one page");
}

#[tokio::test]
async fn search_for_a_frequent_word_reads_one_page() {
    search_for_a_frequent_word(10_000).await;
}

#[tokio::test]
async fn table_of_open_occurrences_has_no_further_index() {
    let url = database::create().await;
    database::open(&url).await;
    let known = "SELECT count(*) FROM pg_indexes WHERE tablename = 'runs' AND indexname IN
                 ('runs_pkey', 'runs_by_job', 'runs_begun_or_quarantined', 'runs_unsent', 'runs_delayed',
                  'runs_cancel_requested', 'runs_waiting', 'runs_replacing', 'runs_with_slot', 'runs_with_key',
                  'runs_by_parent', 'runs_delayed_by_job', 'runs_published', 'runs_waiting_since',
                  'runs_start_before')";
    let all = "SELECT count(*) FROM pg_indexes WHERE tablename = 'runs'";
    let mut connection = TestConnection::open(&url).await;
    // Four of them cost nothing but the rows that another occurrence has enqueued, those that are delayed, those that wait
    // for a slot, and those with a start limit.
    assert_eq!((connection.count(known).await, connection.count(all).await), (15, 15), "each costs every dispatch");
}

/// Returns a delayed occurrence of a job, with a uniqueness key of its own.
fn new_run(harness: &PlanHarness, job_id: JobId) -> NewRun {
    NewRun {
        id: harness.clock.occurrence_id(),
        job_id,
        not_before: Some(harness.clock.now() + chrono::Duration::hours(1)),
        uniqueness_key: Some(harness.clock.occurrence_id().to_string()),
        ..NewRun::default()
    }
}

/// Enqueues a batch beside `delayed` delayed occurrences of the same job.
async fn enqueue_beside_delayed(delayed: i64) {
    let mut harness = PlanHarness::new().await;
    // The plan is made while the tables are empty, and about a job that does not exist.
    for _ in 0..PLANNED_ANEW + 2 {
        let nothing: Vec<_> = (0..BATCH).map(|_| new_run(&harness, JobId(harness.clock.occurrence_id().0))).collect();
        harness.store.enqueue_runs(&nothing, None, harness.clock.now()).await.expect("the statement succeeds");
    }
    harness.insert_jobs().await;
    let job = harness.jobs[0];
    let mut connection = TestConnection::open(&harness.url).await;
    connection.execute("ALTER TABLE runs SET (autovacuum_enabled = false)").await;
    connection
        .execute(format!(
            "INSERT INTO runs (id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger,
                               status, priority, not_before)
             SELECT gen_random_uuid(), now(), '{job}', 'x', 1, 'w', 't', now(), 'enqueue', 'queued', 3, now() + interval '1 day'
               FROM generate_series(1, {delayed})"
        ))
        .await;
    drop(connection);
    let (scans, read, ..) = harness.counts(delayed).await;
    let runs: Vec<_> = (0..BATCH).map(|_| new_run(&harness, job)).collect();
    harness.store.enqueue_runs(&runs, None, harness.clock.now()).await.expect("the statement succeeds");
    let batch = i64::try_from(BATCH).expect("a small number");
    let (scans_after, read_after, ..) = harness.counts(delayed + batch).await;
    assert_eq!(scans_after, scans, "no table is read as a whole");
    let read = read_after - read;
    assert!(read < 10 * batch, "{read} rows were read for {batch} occurrences");
}

#[tokio::test]
async fn cost_of_enqueueing_does_not_grow_with_the_queue() {
    enqueue_beside_delayed(20_000).await;
}

/// Counts and cancels delayed occurrences of a job in tables that are `tenths` tenths as full as in `exhaustive`.
async fn find_delayed_of_a_job(tenths: i64) {
    let mut harness = PlanHarness::new().await;
    let edit = AuditStamp { by: "ann@example.com", at: harness.clock.now(), address: None };
    harness.insert_jobs().await;
    let (job, other) = (harness.jobs[0], harness.jobs[1]);
    let mut connection = TestConnection::open(&harness.url).await;
    let (ready, delayed, of_others) = (10_000 * tenths, 2_000 * tenths, 10_000 * tenths);
    let (counted, cancelled_at_once) = (1_000 * tenths + 1, 50 * tenths);
    for (job, rows, not_before) in [
        (job, ready, "NULL"),
        (other, of_others, "now() + interval '1 day'"),
        (job, delayed, "now() + interval '1 day'"),
    ] {
        connection
            .execute(format!(
                "INSERT INTO runs (id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger,
                                   status, priority, not_before)
                 SELECT gen_random_uuid(), now(), '{job}', 'x', 1, 'w', 't', now(), 'enqueue', 'queued', 3, {not_before}
                   FROM generate_series(1, {rows})"
            ))
            .await;
    }
    // As autovacuum does after so many rows.
    connection.execute("ANALYZE runs").await;
    drop(connection);
    let inserted = ready + delayed + of_others;
    let (scans, read, blocks) = harness.counts(inserted).await;
    assert_eq!(harness.store.count_delayed(job, counted).await.expect("the query succeeds"), counted);
    let cancelled = harness.store.cancel_delayed(job, cancelled_at_once, None, edit).await.expect("it succeeds");
    assert_eq!(i64::try_from(cancelled.len()), Ok(cancelled_at_once));
    assert!(cancelled.iter().all(|run| run.row.job_id == job));
    let (scans_after, read_after, blocks_after) = harness.counts(inserted + cancelled_at_once).await;
    assert_eq!(scans_after, scans, "no table is read as a whole");
    let (read, blocks) = (read_after - read, blocks_after - blocks);
    // Nothing has vacuumed the table, so the count looks at the rows, too.
    assert!(read < 1_500 * tenths, "{read} rows were read");
    assert!(blocks < 2_000 * tenths, "{blocks} blocks of indexes were read");
}

#[tokio::test]
async fn delayed_occurrences_of_a_job_are_found_by_index() {
    find_delayed_of_a_job(1).await;
}

/// Looks for due, queued and expired occurrences beside `delayed` delayed ones that are old.
async fn look_beside_delayed(delayed: i64) {
    let harness = PlanHarness::new().await;
    let count = QueueCount { at: harness.clock.now(), old_before: harness.clock.now() };
    let look = async || {
        let next = harness.store.next_delayed_times().await.expect("the query succeeds");
        let backlogs = harness.store.queue_backlogs(count, None).await.expect("the query succeeds");
        let expired = harness.store.expire_queued(chrono::Duration::days(30), 500, harness.clock.now()).await;
        assert!(expired.expect("the statement succeeds").is_empty());
        let missed = harness.store.missed_starts(None, 500, harness.clock.now()).await;
        assert!(missed.expect("the query succeeds").is_empty());
        (next.outside_quarantine.is_some(), backlogs.iter().map(QueueBacklog::old).sum::<i64>())
    };
    // The plans are made while the tables are empty.
    for _ in 0..PLANNED_ANEW + 2 {
        assert_eq!(look().await, (false, 0));
    }
    let mut connection = TestConnection::open(&harness.url).await;
    connection.execute("ALTER TABLE runs SET (autovacuum_enabled = false)").await;
    let sent = 10;
    for (rows, published_at, not_before) in
        [(delayed, "NULL", "now() + interval '1 day'"), (sent, "now() - interval '1 day'", "NULL")]
    {
        connection
            .execute(format!(
                "INSERT INTO runs (id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger,
                                   status, priority, has_slot, published_at, not_before, start_before)
                 SELECT lpad(to_hex({rows} + n), 32, '0')::uuid, now() - interval '40 days', gen_random_uuid(), 'x', 1, 'w',
                        't', now() - interval '40 days', 'enqueue', 'queued', 3, true, {published_at}, {not_before},
                        ({not_before})::timestamptz + interval '30 seconds'
                   FROM generate_series(1, {rows}) n"
            ))
            .await;
    }
    drop(connection);
    let (scans, read, ..) = harness.counts(delayed + sent).await;
    assert_eq!(look().await, (true, sent));
    // The counts wait for the row that this one inserts.
    let job = jobs::insert(&harness.store, &harness.clock, Schedule::Manual, None).await;
    let last = new_run(&harness, job);
    harness.store.enqueue_runs(&[last], None, harness.clock.now()).await.expect("the statement succeeds");
    let (scans_after, read_after, ..) = harness.counts(delayed + sent + 1).await;
    assert_eq!(scans_after, scans, "no table is read as a whole");
    let read = read_after - read;
    assert!(read < 1_000, "{read} rows were read");
}

#[tokio::test]
async fn delayed_occurrences_are_not_read_in_the_background() {
    look_beside_delayed(20_000).await;
}

mod exhaustive {
    use super::*;

    #[tokio::test]
    async fn free_uniqueness_keys_are_found_among_taken_ones_in_parts() {
        let harness = PlanHarness::new().await;
        let mut connection = TestConnection::open(&harness.url).await;
        let (taken, free) = (50_000, 5_000);
        connection
        .execute(format!(
            "WITH made AS (SELECT gen_random_uuid() AS id, n FROM generate_series(1, {taken}) n),
                  keys AS (INSERT INTO run_uniqueness (job_id, key, run_id, claimed_at)
                           SELECT gen_random_uuid(), 'taken-' || n, id, now() - interval '2 hours' FROM made)
             INSERT INTO runs (id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger,
                               status, priority, not_before)
             SELECT id, now(), id, 'x', 1, 'w', 't', now(), 'enqueue', 'queued', 3, now() + interval '1 day' FROM made"
        ))
        .await;
        connection
            .execute(format!(
                "INSERT INTO run_uniqueness (job_id, key, run_id, claimed_at)
             SELECT gen_random_uuid(), 'free-' || n, gen_random_uuid(), now() - interval '2 hours'
               FROM generate_series(1, {free}) n"
            ))
            .await;
        connection.execute("VACUUM ANALYZE runs, run_uniqueness").await;
        let scans = "SELECT sum(seq_scan)::bigint FROM pg_stat_user_tables WHERE relname IN ('runs', 'run_uniqueness')";
        drop(connection);
        let mut connection = TestConnection::open(&harness.url).await;
        let before = connection.count(scans).await;
        let deleted = harness.store.delete_free_uniqueness_keys(machine_now()).await.expect("it succeeds");
        assert_eq!(i64::try_from(deleted), Ok(free));
        let kept = "SELECT count(*) FROM run_uniqueness WHERE key LIKE 'taken-%'";
        assert_eq!(connection.count(kept).await, taken);
        // The session of the store reports its counts with a later statement.
        let counted = "SELECT n_tup_del FROM pg_stat_user_tables WHERE relname = 'run_uniqueness'";
        while connection.count(counted).await < free {
            harness.store.is_cluster_paused().await.expect("the query succeeds");
        }
        // The look at what was kept is one.
        assert!(connection.count(scans).await <= before + 1, "no statement reads a table as a whole");
    }

    #[tokio::test]
    async fn ready_occurrences_are_counted_beside_many_delayed_ones() {
        let harness = PlanHarness::new().await;
        let mut connection = TestConnection::open(&harness.url).await;
        connection.execute("ALTER TABLE runs SET (autovacuum_enabled = false)").await;
        let delayed = 200_000;
        for (rows, not_before) in [(10, "NULL"), (delayed, "now() + interval '1 day'"), (5, "NULL")] {
            connection
            .execute(format!(
                "INSERT INTO runs (id, created_at, job_id, job_name, job_version, worker_id, job_type, scheduled_for, trigger,
                                   status, priority, has_slot, not_before)
                 SELECT lpad(to_hex((SELECT count(*) FROM runs) + n), 32, '0')::uuid, now(), gen_random_uuid(), 'x', 1, 'w',
                        't', now(), 'enqueue', 'queued', 3, true, {not_before}
                   FROM generate_series(1, {rows}) n"
            ))
            .await;
        }
        assert!(harness.store.open_run_counts().await.expect("the query succeeds").has_many_unready());
        let found = harness.store.queued_runs_at_ends().await.expect("the query succeeds");
        assert_eq!(found.iter().map(|queued| queued.count).collect::<Vec<_>>(), [15], "at both ends of the queue");
        assert_eq!(found, harness.store.queued_runs().await.expect("the query succeeds"));
    }

    #[tokio::test]
    async fn plan_of_an_empty_table_reads_a_full_one_by_index() {
        dispatch_with_early_plans(500_000).await;
    }

    #[tokio::test]
    async fn length_of_a_queue_for_slots_does_not_matter() {
        grant_slots(100_000).await;
    }

    #[tokio::test]
    async fn open_runs_of_other_jobs_are_not_read_for_a_list() {
        list_beside_busy_jobs(100_000).await;
    }

    #[tokio::test]
    async fn confirms_are_recorded_without_reading_other_unsent_occurrences() {
        record_confirms(100_000).await;
    }

    #[tokio::test]
    async fn search_for_a_frequent_word_reads_one_page() {
        search_for_a_frequent_word(100_000).await;
    }

    #[tokio::test]
    async fn cost_of_enqueueing_does_not_grow_with_the_queue() {
        enqueue_beside_delayed(200_000).await;
    }

    #[tokio::test]
    async fn delayed_occurrences_of_a_job_are_found_by_index() {
        find_delayed_of_a_job(10).await;
    }

    #[tokio::test]
    async fn delayed_occurrences_are_not_read_in_the_background() {
        look_beside_delayed(200_000).await;
    }
}
