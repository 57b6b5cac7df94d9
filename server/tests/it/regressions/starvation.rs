//! Jobs that stood in each other's way.

use chrono::Duration;
use milvaion_api::requests::JobInput;
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_schedule::schedule::Schedule;
use tokio_util::sync::CancellationToken;

use super::harness::{insert, rows};
use crate::engine::harness::GatedJob;
use milvaion_test_support::{self as common, stack};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mv23_a_thousand_due_jobs_of_an_absent_worker_delay_nobody_else() {
    let config = stack::config().await;
    let server = stack::server(&config).await;
    let worker = stack::worker(&config);
    let (clock, now) = (server.clock.clone(), server.clock.now());
    let absent = || JobInput { worker_id: "absent".into(), ..common::job(Schedule::every(3_600)) };
    // They have been due for longest, so they are at the head of any list.
    let before = now - Duration::seconds(30);
    futures::future::join_all((0..1_000).map(|_| insert(&server.store, &clock, absent(), before))).await;
    let due = clock.now();
    let present = insert(&server.store, &clock, common::job(Schedule::Once { at: due }), due).await;
    server.dispatcher.activate_dispatcher.notify_one();
    let row = stack::eventually("the fire", || async { rows(&server, present).await.pop() }).await;
    assert_eq!(stack::ended(&server, row.id).await.row.status, OccurrenceStatus::Completed);
    let late = row.id.created_at() - due;
    assert!(late < Duration::seconds(5), "the fire was {} ms late", late.num_milliseconds());

    // Nor do they once they are waiting for the worker that does not come.
    stack::eventually("all the others", || async { (stack::all(&server, None).await.len() == 1_001).then_some(()) })
        .await;
    let due = clock.now();
    let later = insert(&server.store, &clock, common::job(Schedule::Once { at: due }), due).await;
    server.dispatcher.activate_dispatcher.notify_one();
    let row = stack::eventually("the fire", || async { rows(&server, later).await.pop() }).await;
    assert_eq!(stack::ended(&server, row.id).await.row.status, OccurrenceStatus::Completed);
    let late = row.id.created_at() - due;
    assert!(late < Duration::seconds(3), "the fire was {} ms late", late.num_milliseconds());
    assert_eq!(stack::all(&server, Some(OccurrenceStatus::Queued)).await.len(), 1_000, "and none of theirs is lost");
    worker.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mv24_two_instances_run_twice_as_much_as_one() {
    let config = stack::config().await;
    let server = stack::server(&config).await;
    let (gate, stop) = (GatedJob::default(), CancellationToken::new());
    for _ in 0..2 {
        stack::worker_with(&config, &stop, |worker| worker.capacity(1).job(gate.clone()));
    }
    let now = server.clock.now();
    for _ in 0..3 {
        insert(&server.store, &server.clock, common::job(Schedule::Once { at: now }), now).await;
    }
    server.dispatcher.activate_dispatcher.notify_one();
    let started = async |count: usize| {
        stack::eventually(&format!("start number {count}"), || async { (gate.started().len() >= count).then_some(()) })
            .await;
    };
    started(2).await;
    // The third may wait at the instance that stays busy; it must find the free place in the other.
    gate.let_one_end().expect("two run");
    started(3).await;
    assert_eq!(gate.most(), 2, "one in each instance");
    while gate.let_one_end().is_some() {}
    stop.cancel();
    server.stop().await;
}
