//! Statements about many rows lock them in one order, so that two of them never end in a deadlock, whatever the order of
//! their inputs.

use chrono::{DateTime, Duration, Utc};
use futures::future::BoxFuture;
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::{InstanceHello, RunProgress, StatusReport},
    status::OccurrenceStatus,
};
use milvaion_schedule::schedule::Schedule;
use milvaion_server::{
    clock::Clock,
    domain::transition::fold,
    error::chain,
    store::{Result, Store, due_times::DueTimeMove, retention::ExpiringTable},
};
use milvaion_test_support::{
    database::{self, TestConnection},
    jobs, messages, runs,
};
use uuid::Uuid;

/// The rows that each statement changes.
const ROWS: usize = 150;

/// A statement about rows that are given in an order.
type Statement<T> = (&'static str, fn(Store, Vec<T>, DateTime<Utc>) -> BoxFuture<'static, Result<()>>);

/// Runs each pair of statements at the same time, `rounds` times, one of them with the rows in the opposite order.
/// `reset` is executed before each round.
async fn meet<T: Clone>(url: &str, rows: &[T], statements: &[Statement<T>], reset: &str, rounds: usize) {
    let (one, two, now) = (database::open(url).await, database::open(url).await, Clock::system().now());
    let mut database = TestConnection::open(url).await;
    let reversed: Vec<T> = rows.iter().rev().cloned().collect();
    for (index, (first_name, first)) in statements.iter().enumerate() {
        for (second_name, second) in &statements[index..] {
            for _ in 0..rounds {
                if !reset.is_empty() {
                    database.execute(reset).await;
                }
                let meeting = tokio::join!(
                    tokio::spawn(first(one.clone(), rows.to_vec(), now)),
                    tokio::spawn(second(two.clone(), reversed.clone(), now))
                );
                for (name, result) in [(first_name, meeting.0), (second_name, meeting.1)] {
                    if let Err(error) = result.expect("the task does not panic") {
                        panic!("{name}, while {first_name} meets {second_name}: {}", chain(&error));
                    }
                }
            }
        }
    }
}

/// Stores messages of the same instances at the same time.
async fn change_instances(rounds: usize) {
    fn hello(instance: &str, now: DateTime<Utc>) -> InstanceHello {
        InstanceHello {
            // Several workers, so that the rows of workers are locked in an order too.
            worker_id: format!("w{}", &instance[instance.len() - 1..]),
            job_types: (0..3).map(|number| messages::job_type(&format!("type-{number}"))).collect(),
            ..messages::hello(instance, now)
        }
    }
    let url = database::create().await;
    let store = database::open(&url).await;
    let now = Clock::system().now();
    let mut instances: Vec<String> = (0..ROWS).map(|number| format!("i-{}", number * 7919 % 1_000)).collect();
    let hellos: Vec<_> = instances.iter().map(|id| hello(id, now)).collect();
    store.store_hellos(&hellos, now).await.expect("stored");
    // Neither the order of the keys nor that of the rows in the table.
    instances.sort_by_key(|id| id.chars().rev().collect::<String>());
    let statements: &[Statement<String>] = &[
        ("hello", |store, ids, now| {
            Box::pin(async move {
                let hellos: Vec<_> = ids.iter().map(|id| hello(id, now)).collect();
                store.store_hellos(&hellos, now).await
            })
        }),
        ("heartbeat", |store, ids, now| {
            Box::pin(async move {
                let heartbeats: Vec<_> = ids.iter().map(|id| messages::heartbeat(id, &[], now)).collect();
                store.store_heartbeats(&heartbeats, now).await.map(drop)
            })
        }),
        ("goodbye", |store, ids, now| Box::pin(async move { store.store_goodbyes(&ids, now).await })),
        ("pull back", |store, _, now| {
            Box::pin(async move { store.pull_back_instants(now - Duration::days(1), now, 1_000).await.map(drop) })
        }),
        ("delete", |store, _, now| {
            let until = now - Duration::microseconds(1);
            Box::pin(async move { store.delete_expired(ExpiringTable::WorkerInstances, until).await.map(drop) })
        }),
    ];
    meet(&url, &instances, statements, "", rounds).await;
}

/// Changes the same runs at the same time.
async fn change_runs(rounds: usize) {
    let url = database::create().await;
    let (store, clock) = (database::open(&url).await, Clock::system());
    let job_id = jobs::insert(&store, &clock, Schedule::Manual, None).await;
    let mut ids = Vec::new();
    for _ in 0..ROWS {
        ids.push(runs::insert_manual(&store, &clock, job_id).await);
    }
    // Each at a worker of its own, so that all are released together. About half of them are delayed, and the others sent.
    let reset = "UPDATE runs SET status = 'queued', instance_id = NULL, started_at = NULL, is_quarantined = true,
                        worker_id = 'w-' || right(id::text, 8), last_heartbeat = now() + interval '1 hour',
                        not_before = CASE WHEN right(id::text, 1) < '8' THEN now() - interval '1 minute' END,
                        published_at = CASE WHEN right(id::text, 1) >= '8' THEN now() END, publish_after = NULL";
    fn reports(ids: &[OccurrenceId], now: DateTime<Utc>) -> Vec<StatusReport> {
        let report = |id: &OccurrenceId| {
            let mut report = StatusReport::new(*id, 1, "w-1", OccurrenceStatus::Running, now);
            report.progress = Some(RunProgress { percent: 50, message: String::new() });
            report
        };
        ids.iter().map(report).collect()
    }
    let statements: &[Statement<OccurrenceId>] = &[
        ("report", |store, ids, now| {
            Box::pin(async move { store.apply(&fold(reports(&ids, now)), now).await.map(drop) })
        }),
        ("release", |store, _, now| Box::pin(async move { store.release_quarantined(now).await.map(drop) })),
        ("pull back", |store, _, now| {
            Box::pin(async move { store.pull_back_instants(now, now, 1_000).await.map(drop) })
        }),
        ("mark", |store, ids, now| {
            Box::pin(async move {
                let sent: Vec<_> = ids.iter().map(|id| runs::confirmed(*id, 1)).collect();
                store.mark_published(&sent, false, now).await.map(drop)
            })
        }),
        ("return", |store, ids, now| {
            Box::pin(async move {
                let runs = ids.iter().map(|id| (*id, 1)).collect();
                store.return_bundled(runs, now).await.map(drop)
            })
        }),
        ("claim", |store, ids, now| {
            Box::pin(async move { store.claim_unsent(now, &ids, &[], 1_000, now).await.map(drop) })
        }),
    ];
    meet(&url, &ids, statements, reset, rounds).await;

    let cancel = async |ids: Vec<OccurrenceId>| {
        let stamp = milvaion_server::store::jobs::AuditStamp { by: "test", at: clock.now(), address: None };
        store.cancel(&ids, None, stamp).await.expect("no deadlock").len()
    };
    TestConnection::open(&url).await.execute(reset).await;
    let reversed: Vec<OccurrenceId> = ids.iter().rev().copied().collect();
    let (one, two) = tokio::join!(cancel(ids.clone()), cancel(reversed));
    assert_eq!(one + two, ROWS, "each once");
}

/// Changes the due times of the same jobs at the same time.
async fn change_due_times(rounds: usize) {
    let url = database::create().await;
    let (store, clock) = (database::open(&url).await, Clock::system());
    let mut ids: Vec<JobId> = Vec::new();
    for _ in 0..ROWS {
        ids.push(jobs::insert(&store, &clock, Schedule::every(60), None).await);
    }
    let reset = "WITH j AS (UPDATE jobs SET schedule = schedule || '{\"from\": \"end\"}')
                 UPDATE job_due SET next_fire_at = NULL";
    let statements: &[Statement<JobId>] = &[
        ("end", |store, ids, now| Box::pin(async move { store.schedule_after_end(Some(&ids), now).await.map(drop) })),
        ("move", |store, ids, now| {
            Box::pin(async move {
                let moves: Vec<_> =
                    ids.iter().map(|id| DueTimeMove { id: *id, version: 1, was: None, next: Some(now) }).collect();
                store.move_due_times(&moves).await.map(drop)
            })
        }),
    ];
    // The rows are neither in the order of ids nor in that of their creation.
    ids.sort_by_key(|id| id.0.as_bytes().iter().rev().copied().collect::<Vec<u8>>());
    meet(&url, &ids, statements, reset, rounds).await;
}

/// Counts the redeliveries of the same messages at the same time.
async fn count_redeliveries(rounds: usize) {
    let url = database::create().await;
    drop(database::open(&url).await);
    // As long as a SHA-256, and in no order.
    let hashes: Vec<Vec<u8>> =
        (0..ROWS).map(|number| vec![u8::try_from(number * 97 % 251).expect("a byte"); 32]).collect();
    let statements: &[Statement<Vec<u8>>] = &[
        ("begin", |store, hashes, now| {
            Box::pin(async move { store.begin_redeliveries(&hashes, Uuid::from_u128(1), now).await.map(drop) })
        }),
        ("end", |store, hashes, _| Box::pin(async move { store.end_redeliveries(&hashes).await })),
        ("delete", |store, _, now| {
            let until = now - Duration::microseconds(1);
            Box::pin(async move { store.delete_expired(ExpiringTable::Redeliveries, until).await.map(drop) })
        }),
    ];
    meet(&url, &hashes, statements, "", rounds).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_instances_cause_no_deadlock() {
    change_instances(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_runs_cause_no_deadlock() {
    change_runs(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_due_times_cause_no_deadlock() {
    change_due_times(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_of_redeliveries_cause_no_deadlock() {
    count_redeliveries(2).await;
}

mod exhaustive {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn messages_of_instances_cause_no_deadlock() {
        change_instances(6).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn changes_of_runs_cause_no_deadlock() {
        change_runs(6).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn changes_of_due_times_cause_no_deadlock() {
        change_due_times(6).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn counts_of_redeliveries_cause_no_deadlock() {
        count_redeliveries(6).await;
    }
}
