//! Dispatching is fenced: an old leader creates no occurrences, and no server does while the cluster is paused.

use chrono::Duration;
use milvaion_schedule::{rules::Rules, schedule::Schedule};
use milvaion_server::{
    background::lease::LEADER_ROLE,
    clock::Clock,
    store::{Store, create::NewRun},
};
use milvaion_test_support::{
    database::{self, TestConnection},
    jobs,
    manual_clock::ManualClockHarness,
};

async fn planned_run(store: &Store, clock: &Clock) -> NewRun {
    let now = clock.now();
    let job = jobs::insert(store, clock, Schedule::every(60), Some(now)).await;
    NewRun {
        job_id: job,
        version: 1,
        due: Some(store.job(job).await.expect("the query succeeds").expect("it exists").next_fire_at.expect("due")),
        next_fire_at: Some(now + Duration::seconds(60)),
        id: clock.occurrence_id(),
        ..NewRun::default()
    }
}

#[tokio::test]
async fn old_leader_creates_no_occurrences() {
    let url = database::create().await;
    let store = database::open(&url).await;
    let clock = Clock::system();
    let mut connection = TestConnection::open(&url).await;
    connection.execute("INSERT INTO leases (role, epoch, changed_at) VALUES ('dispatcher', 8, now())").await;
    let run = planned_run(&store, &clock).await;
    let runs = std::slice::from_ref(&run);
    assert!(
        store.create_scheduled_runs(runs, Some(7), clock.now()).await.expect("the query succeeds").is_empty(),
        "epoch 7 has ended"
    );
    assert_eq!(store.create_scheduled_runs(runs, Some(8), clock.now()).await.expect("the query succeeds").len(), 1);
    // A standby that was promoted without the newest changes has an earlier epoch.
    let take = async || store.take_lease(LEADER_ROLE, "one", clock.now()).await.expect("the query succeeds").epoch;
    let granted = take().await;
    connection.execute("UPDATE leases SET epoch = 8").await;
    assert!(take().await >= granted, "it follows the time");
}

#[tokio::test]
async fn cluster_pause_defers_due_jobs() {
    let harness = ManualClockHarness::open().await;
    let mut connection = TestConnection::open(&harness.config.database.url).await;
    connection.execute("INSERT INTO cluster_pause (since, by_whom, reason) VALUES (now(), 'ana', 'upgrade')").await;
    let job = harness.job(Schedule::every(60), Rules::default(), Some(harness.clock.now())).await;
    let report = harness.server.dispatcher.tick().await.expect("the query succeeds");
    assert!(report.is_paused && report.fired.is_empty(), "{report:?}");
    connection.execute("DELETE FROM cluster_pause").await;
    harness.occurrences(job, 1).await;
    harness.close().await;
}
