//! The tables of occurrences: each occurrence is in one of them at any moment, whatever happens at once.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::{RunProgress, StatusReport},
    status::OccurrenceStatus,
};
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    clock::{Clock, machine_now},
    domain::duplicates::ReportedStart,
    store::{Store, create::NewRun, jobs::AuditStamp, lost_runs::LostRunUpdate},
};
use milvaion_test_support::{
    database::{self, TestConnection},
    jobs,
    private_service::PrivateService,
    runs,
};
use serde_json::json;
use sqlx::{Connection, Executor, PgConnection};

/// The occurrences that all tasks act on.
const OCCURRENCES: usize = 30;
/// The tasks that act at once, each with its own store, as servers have.
const TASKS: u64 = 4;

/// A sequence of numbers that looks random and is the same in each run.
struct Numbers(u64);

impl Numbers {
    /// Returns a number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).expect("it is below the limit")
    }
}

fn lost(id: OccurrenceId, attempt: i32, was: OccurrenceStatus, status: OccurrenceStatus) -> LostRunUpdate {
    LostRunUpdate {
        id,
        attempt,
        was,
        last_seen_at: None,
        status,
        note: "no heartbeat".into(),
        cause: (status == OccurrenceStatus::Failed).then_some("lost"),
        is_quarantined: false,
        counts_as_requeue: true,
    }
}

/// Does one random thing with one random occurrence. What does not fit its state must change nothing.
async fn act(store: &Store, clock: &Clock, job_id: JobId, ids: &[OccurrenceId], numbers: &mut Numbers) {
    use OccurrenceStatus as S;
    let id = ids[numbers.below(ids.len())];
    let attempt = 1 + u32::try_from(numbers.below(3)).expect("a small number");
    let instance = format!("w-{}", numbers.below(3));
    let now = clock.now();
    let signed = i32::try_from(attempt).expect("a small number");
    match numbers.below(10) {
        0 | 1 => {
            runs::report(store, clock, vec![StatusReport::new(id, attempt, instance, S::Running, now)]).await;
        }
        2 => {
            // Two reports of one batch, with another occurrence between them.
            let other = ids[numbers.below(ids.len())];
            let reports = [(id, S::Running), (other, S::Running), (id, S::Completed)]
                .map(|(id, status)| StatusReport::new(id, attempt, instance.clone(), status, now));
            runs::report(store, clock, reports.to_vec()).await;
        }
        3 => {
            runs::report(store, clock, vec![StatusReport::new(id, attempt, instance, S::Failed, now)]).await;
        }
        4 => {
            let edit = AuditStamp { by: "ana", at: now, address: None };
            store.cancel(&[id], None, edit).await.expect("the statement succeeds");
        }
        5 => {
            let updates = [lost(id, signed, S::Running, S::Queued), lost(ids[0], signed, S::Running, S::Unknown)];
            store.update_lost_runs(&updates, None, now).await.expect("the statement succeeds");
        }
        6 => {
            let update = lost(id, signed, S::Unknown, S::Failed);
            store.update_lost_runs(&[update], None, now).await.expect("the statement succeeds");
        }
        7 => {
            let start =
                ReportedStart { occurrence_id: id, attempt: signed, instance_id: instance, at: now, is_start: false };
            store.record_late_starts(&[start]).await.expect("the statement succeeds");
        }
        8 => {
            store.mark_published(&[runs::confirmed(id, signed)], false, now).await.expect("the statement succeeds");
        }
        // The request arrives again.
        _ => {
            let run = NewRun { id, job_id, by: "ana".into(), ..NewRun::default() };
            store.insert_manual_run(&run, now).await.expect("the statement succeeds");
        }
    }
}

/// Locks random rows, and each until another session waits for it or has ended meanwhile.
async fn delay(url: &str, ids: &[OccurrenceId], is_over: &AtomicBool) {
    let mut connection = PgConnection::connect(url).await.expect("PostgreSQL responds");
    let mut numbers = Numbers(77);
    while !is_over.load(Ordering::Relaxed) {
        let mut transaction = connection.begin().await.expect("a transaction");
        sqlx::query("SELECT FROM runs WHERE id = $1 FOR UPDATE")
            .bind(ids[numbers.below(ids.len())].0)
            .execute(&mut *transaction)
            .await
            .expect("the statement succeeds");
        for _ in 0..20 {
            let waiting = "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted
                                             AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))";
            if sqlx::query_scalar(waiting).fetch_one(&mut *transaction).await.expect("the query succeeds") {
                break;
            }
        }
        transaction.commit().await.expect("committed");
    }
}

/// Checks at each snapshot that every occurrence is in exactly one table, and that none leaves the history.
async fn check(url: &str, count: usize, is_over: &AtomicBool) -> usize {
    let mut connection = PgConnection::connect(url).await.expect("PostgreSQL responds");
    let mut ended: HashSet<uuid::Uuid> = HashSet::new();
    let mut snapshots = 0;
    while !is_over.load(Ordering::Relaxed) {
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await.expect("a snapshot");
        let rows: Vec<(uuid::Uuid, bool)> =
            sqlx::query_as("SELECT id, false FROM runs UNION ALL SELECT id, true FROM history")
                .fetch_all(&mut connection)
                .await
                .expect("the query succeeds");
        connection.execute("COMMIT").await.expect("committed");
        let ids: HashSet<uuid::Uuid> = rows.iter().map(|(id, _)| *id).collect();
        assert_eq!((rows.len(), ids.len()), (count, count), "each occurrence is in one table");
        let now: HashSet<uuid::Uuid> = rows.iter().filter(|(_, is_ended)| *is_ended).map(|(id, _)| *id).collect();
        assert!(ended.is_subset(&now), "an ended occurrence is open again");
        ended = now;
        snapshots += 1;
    }
    snapshots
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn occurrence_is_in_one_table_at_every_snapshot() {
    act_at_once(60).await;
}

/// Does `actions` random things in each of several tasks at once, and checks every snapshot meanwhile.
async fn act_at_once(actions: usize) {
    let url = database::create().await;
    let store = database::open(&url).await;
    let clock = Clock::system();
    let job_id = jobs::insert(&store, &clock, Schedule::Manual, None).await;
    let mut ids = Vec::new();
    for _ in 0..OCCURRENCES {
        ids.push(runs::insert_manual(&store, &clock, job_id).await);
    }
    let ids = Arc::new(ids);
    let is_over = Arc::new(AtomicBool::new(false));
    let (delayed, checked) = {
        let (url, ids, is_over) = (url.clone(), ids.clone(), is_over.clone());
        let (other_url, other_over) = (url.clone(), is_over.clone());
        (
            tokio::spawn(async move { delay(&url, &ids, &is_over).await }),
            tokio::spawn(async move { check(&other_url, OCCURRENCES, &other_over).await }),
        )
    };
    let tasks: Vec<_> = (1..=TASKS)
        .map(|seed| {
            let (url, ids) = (url.clone(), ids.clone());
            tokio::spawn(async move {
                let (store, clock, mut numbers) = (database::open(&url).await, Clock::system(), Numbers(seed * 7_919));
                for _ in 0..actions {
                    act(&store, &clock, job_id, &ids, &mut numbers).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no statement fails");
    }
    is_over.store(true, Ordering::Relaxed);
    delayed.await.expect("no statement fails");
    assert!(checked.await.expect("every snapshot is right") > 10, "there were snapshots to check");
    let mut connection = TestConnection::open(&url).await;
    let ended = connection.count("SELECT count(*) FROM history").await;
    let counted = "SELECT coalesce(sum(count), 0)::bigint FROM stats_minute
                    WHERE status IN ('completed', 'failed', 'cancelled', 'timed-out', 'skipped')";
    assert_eq!(connection.count(counted).await, ended, "each end is counted once");
    assert!(ended > i64::try_from(OCCURRENCES / 3).expect("a small number"), "{ended} ended");
}

#[tokio::test]
async fn end_moves_neither_input_nor_definition() {
    let url = database::create().await;
    let store = database::open(&url).await;
    let clock = Clock::manual(machine_now());
    let job_id = jobs::insert(&store, &clock, Schedule::Manual, None).await;
    let large = json!({ "text": "äö,;".repeat(15_000) });
    let small = json!({ "text": "x" });
    for (input, where_it_is) in [(None, (false, false)), (Some(small), (true, false)), (Some(large), (false, true))] {
        let id = clock.occurrence_id();
        let run = NewRun { id, job_id, by: "ana".into(), input: input.clone(), ..NewRun::default() };
        store.insert_manual_run(&run, clock.now()).await.expect("the statement succeeds");
        let mut connection = PgConnection::connect(&url).await.expect("PostgreSQL responds");
        let mut stored_in = async |table: &str| -> ((bool, bool), i32) {
            let columns = format!("own_input IS NOT NULL, has_long_input, pg_column_size(t.*) FROM {table} t");
            let query = format!("SELECT {columns} WHERE id = $1");
            let row: (bool, bool, i32) = sqlx::query_as(sqlx::AssertSqlSafe(query))
                .bind(id.0)
                .fetch_one(&mut connection)
                .await
                .expect("it is there");
            ((row.0, row.1), row.2)
        };
        let (before, size) = stored_in("runs").await;
        assert_eq!(before, where_it_is);
        assert!(size < 1_000, "{size} bytes");
        let seen = async || {
            let view = store.occurrence(id, 1, clock.now()).await.expect("the query succeeds").expect("it exists");
            view.job_data
        };
        let expected = match &input {
            Some(input) => input.clone(),
            None => store.job(job_id).await.expect("the query succeeds").expect("it exists").definition.job_data,
        };
        assert_eq!(seen().await, expected);
        let unsent = store
            .claim_unsent(clock.now() + chrono::Duration::seconds(1), &[], &[], 10, clock.now())
            .await
            .expect("the query succeeds");
        assert_eq!(unsent[0].job_data, expected, "its message has the input");
        let report = StatusReport::new(id, 1, "w-1", OccurrenceStatus::Completed, clock.now());
        assert_eq!(runs::report(&store, &clock, vec![report]).await, 1);
        assert_eq!(seen().await, expected);
        let (after, size) = stored_in("history").await;
        assert_eq!(after, where_it_is);
        assert!(size < 1_200, "{size} bytes");
    }
}

mod exhaustive {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn occurrence_is_in_one_table_during_many_actions() {
        act_at_once(250).await;
    }

    /// An input is written when its occurrence is created, a result when it ends, and neither again.
    #[tokio::test]
    async fn life_of_an_occurrence_writes_its_input_and_result_once() {
        const COUNT: usize = 40;
        const INPUT: usize = 127 * 1_024;
        const RESULT: usize = 64 * 1_024;
        // The write-ahead log belongs to the whole service, which other tests use too.
        let postgres = PrivateService::postgres().await.expect("PostgreSQL starts");
        let store = database::open(postgres.url()).await;
        let clock = Clock::manual(machine_now());
        let job_id = jobs::insert(&store, &clock, Schedule::Manual, None).await;
        let mut numbers = Numbers(4_711);
        // PostgreSQL cannot compress it.
        let mut text = |length: usize| -> String {
            (0..length).map(|_| char::from(b'0' + u8::try_from(numbers.below(75)).expect("a small number"))).collect()
        };
        let mut connection = TestConnection::open(postgres.url()).await;
        connection.execute("CHECKPOINT").await;
        let mut written = async || connection.count("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").await;

        let before = written().await;
        for _ in 0..COUNT {
            let id = clock.occurrence_id();
            let input = Some(json!({ "text": text(INPUT).replace('\\', "/") }));
            let run = NewRun { id, job_id, by: "ana".into(), input, ..NewRun::default() };
            store.insert_manual_run(&run, clock.now()).await.expect("the run is stored");
            store.mark_published(&[runs::confirmed(id, 1)], false, clock.now()).await.expect("the statement succeeds");
            let report = |status| StatusReport::new(id, 1, "w-1", status, clock.now());
            for percent in [10, 50, 90] {
                let progress = Some(RunProgress { percent, message: String::new() });
                let running = StatusReport { progress, ..report(OccurrenceStatus::Running) };
                assert_eq!(runs::report(&store, &clock, vec![running]).await, 1);
            }
            let completed = StatusReport { result: Some(text(RESULT)), ..report(OccurrenceStatus::Completed) };
            assert_eq!(runs::report(&store, &clock, vec![completed]).await, 1);
        }
        let new = i64::try_from(COUNT * (INPUT + RESULT)).expect("a small number");
        let ratio = (written().await - before) as f64 / new as f64;
        assert!(ratio < 1.2, "{ratio:.2} bytes in the log for each byte that is new");
        store.close().await;
        postgres.close().await.expect("PostgreSQL is stopped");
    }
}
