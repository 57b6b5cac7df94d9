//! Several servers as one cluster: the cluster pause, live events and statistics.

use std::collections::BTreeMap;

use chrono::Duration;
use milvaion_api::{events::LiveEvent, page::TimeWindow};
use milvaion_protocol::status::OccurrenceStatus::{self, Cancelled, Completed, Failed, Running, Skipped};
use milvaion_schedule::{
    rules::{OverlapPolicy, Rules},
    schedule::Schedule,
};
use milvaion_server::store::jobs::AuditStamp;
use milvaion_test_support::{jobs, manual_clock::ManualClockHarness, runs, server_env, wait};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_pause_stops_every_server() {
    let config = server_env::config().await;
    let (one, two) = (server_env::start(&config).await, server_env::start(&config).await);
    let clock = one.clock.clone();
    let edit = || AuditStamp { by: "ana", at: clock.now(), address: None };
    assert!(two.store.pause_cluster("the disk is full", edit()).await.expect("the query succeeds"));
    let now = clock.now();
    let job = jobs::insert(&one.store, &clock, Schedule::once(now), Some(now)).await;
    // The leader reads the due jobs and dispatches none of them. The other server does not read them.
    wait::eventually("a tick that finds the pause", || async {
        let (first, second) = tokio::join!(one.dispatcher.tick(), two.dispatcher.tick());
        let (first, second) = (first.ok()?, second.ok()?);
        assert!(first.fired.is_empty() && second.fired.is_empty(), "{first:?} {second:?}");
        (first.is_paused || second.is_paused).then_some(())
    })
    .await;
    assert!(runs::of_job(&one, job).await.is_empty());
    one.store.resume_cluster(edit()).await.expect("the query succeeds").expect("it was paused");
    one.cache.announce_schedule_change().await.expect("Redis responds");
    wait::eventually("the occurrence", || async { runs::of_job(&two, job).await.pop() }).await;
    let (first, second) = tokio::join!(one.dispatcher.tick(), two.dispatcher.tick());
    assert!(first.expect("the tick succeeds").fired.is_empty());
    assert!(second.expect("the tick succeeds").fired.is_empty());
    assert_eq!(runs::of_job(&one, job).await.len(), 1);
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_events_reach_other_servers() {
    let config = server_env::config().await;
    let (one, two) = (server_env::start(&config).await, server_env::start(&config).await);
    let (_, mut events) = two.hub.listen(None);
    let id = one.clock.job_id();
    // Published again until both servers have opened their channels.
    wait::eventually("the other server's event", || {
        one.hub.publish(one.clock.now(), vec![LiveEvent::Job { id }]);
        let mut found = None;
        while let Some(frame) = events.try_recv() {
            found = found.or((frame.envelope.event == LiveEvent::Job { id }).then_some(()));
        }
        async move { found }
    })
    .await;
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn statistics_match_the_rows() {
    let harness = ManualClockHarness::without_worker().await;
    let rules = Rules { overlap: OverlapPolicy::Skip, ..Rules::default() };
    let job = harness.job(Schedule::every(60), rules, Some(harness.clock.now())).await;
    let first = harness.occurrences(job, 1).await[0].id;
    harness.advance(Duration::seconds(60)).await;
    assert_eq!(harness.occurrences(job, 2).await[1].status, Skipped);
    for status in [Running, Completed, Completed, Running, Failed] {
        harness.report(first, status).await;
    }
    harness.advance(Duration::seconds(60)).await;
    let third = harness.occurrences(job, 3).await[2].id;
    // Its start is not reported.
    harness.report(third, Failed).await;
    let store = &harness.server.store;
    let manual = runs::insert_manual(store, &harness.clock, job).await;
    let stamp = AuditStamp { by: "ana", at: harness.clock.now(), address: None };
    store.cancel(&[manual], None, stamp).await.expect("the query succeeds");

    let mut by_rows: BTreeMap<OccurrenceStatus, i64> = BTreeMap::new();
    for row in harness.rows(job).await {
        let view = store.occurrence(row.id, 1, harness.clock.now()).await.expect("the query succeeds");
        for change in view.expect("it exists").changes.into_iter().filter(|change| change.status.is_final()) {
            *by_rows.entry(change.status).or_default() += 1;
        }
    }
    let now = harness.clock.now();
    let snapshot = store.overview_snapshot(now, TimeWindow::Hour, now).await.expect("the query succeeds");
    let counted: BTreeMap<_, _> = snapshot.ended.into_iter().collect();
    assert_eq!(counted, by_rows);
    assert_eq!((counted[&Completed], counted[&Skipped], counted[&Failed], counted[&Cancelled]), (1, 1, 1, 1));
    harness.close().await;
}
