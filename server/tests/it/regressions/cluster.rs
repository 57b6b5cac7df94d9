//! What several servers must agree on, and what is counted.

use std::collections::BTreeMap;

use chrono::Duration;
use milvaion_api::events::LiveEvent;
use milvaion_protocol::status::OccurrenceStatus::{self, Completed, Failed, Queued, Running, Skipped};
use milvaion_schedule::{
    rules::{OverlapPolicy, Rules},
    schedule::Schedule,
};
use milvaion_server::store::{jobs::AuditStamp, manual_runs::NewManualRun};

use super::harness::{ReportingHarness, insert, rows};
use milvaion_test_support::{self as common, stack};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mv28_a_pause_stops_every_server_and_its_end_lets_one_of_them_fire_once() {
    let config = stack::config().await;
    let (one, two) = (stack::server(&config).await, stack::server(&config).await);
    let clock = one.clock.clone();
    let edit = || AuditStamp { by: "ana", at: clock.now() };
    assert!(two.store.pause_cluster("the disk is full", edit()).await.expect("answered"));
    let now = clock.now();
    let job = insert(&one.store, &clock, common::job(Schedule::Once { at: now }), now).await;
    // Whichever leads looks at what is due and lets it be; the other does not even look.
    stack::eventually("a look that finds the pause", || async {
        let (first, second) = tokio::join!(one.dispatcher.tick(), two.dispatcher.tick());
        let (first, second) = (first.ok()?, second.ok()?);
        assert!(first.fired.is_empty() && second.fired.is_empty(), "{first:?} {second:?}");
        (first.is_paused || second.is_paused).then_some(())
    })
    .await;
    assert!(rows(&one, job).await.is_empty());
    one.store.resume_cluster(edit()).await.expect("answered").expect("it was paused");
    one.cache.announce_schedule_change().await.expect("Redis answers");
    stack::eventually("the fire", || async { rows(&two, job).await.pop() }).await;
    let again = tokio::join!(one.dispatcher.tick(), two.dispatcher.tick());
    assert!(again.0.expect("answered").fired.is_empty() && again.1.expect("answered").fired.is_empty());
    assert_eq!(rows(&one, job).await.len(), 1);
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mv28_what_happens_at_one_server_is_heard_at_the_other() {
    let config = stack::config().await;
    let (one, two) = (stack::server(&config).await, stack::server(&config).await);
    let (_, mut heard) = two.hub.listen(None);
    let id = one.clock.job_id();
    // Said again until both servers have opened their channels.
    stack::eventually("the word of the other server", || {
        one.hub.publish(one.clock.now(), vec![LiveEvent::Job { id }]);
        let mut found = None;
        while let Ok(frame) = heard.try_recv() {
            found = found.or((frame.envelope.event == LiveEvent::Job { id }).then_some(()));
        }
        async move { found }
    })
    .await;
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn mv29_the_roll_up_says_what_the_rows_say() {
    let harness = ReportingHarness::open().await;
    let rules = Rules { overlap: OverlapPolicy::Skip, ..Rules::default() };
    let job = harness.job(Schedule::every(60), rules).await;
    let first = harness.occurrences(job, 1).await[0].id;
    harness.pass(Duration::seconds(60)).await;
    assert_eq!(harness.occurrences(job, 2).await[1].status, Skipped);
    for status in [Running, Completed, Completed, Running, Failed] {
        harness.tell(first, status).await;
    }
    harness.pass(Duration::seconds(60)).await;
    let third = harness.occurrences(job, 3).await[2].id;
    // Its start is never heard of on its own.
    harness.tell(third, Failed).await;
    let store = &harness.server.store;
    let asked =
        NewManualRun { id: harness.clock.occurrence_id(), job_id: job, by: "ana".into(), ..NewManualRun::default() };
    store.insert_manual_run(&asked, harness.clock.now()).await.expect("answered").into_created().expect("made");
    store.cancel(&[asked.id], None, AuditStamp { by: "ana", at: harness.clock.now() }).await.expect("answered");

    let mut by_rows: BTreeMap<OccurrenceStatus, i64> = BTreeMap::new();
    for row in rows(&harness.server, job).await {
        let view = store.occurrence(row.id, 1, harness.clock.now()).await.expect("answered").expect("there");
        for change in view.changes {
            *by_rows.entry(change.status).or_default() += 1;
        }
    }
    let numbers = store.overview_snapshot(harness.clock.now(), harness.clock.now()).await.expect("answered");
    let counted: BTreeMap<_, _> = numbers.last_hour.into_iter().collect();
    assert_eq!(counted, by_rows);
    assert_eq!((counted[&Queued], counted[&Skipped], counted[&Failed]), (3, 1, 1));
    harness.server.stop().await;
}
