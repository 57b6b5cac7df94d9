//! The detection of lost runs, and the policies for them.

use chrono::{DateTime, Duration, Utc};
use milvaion_api::views::InstanceState;
use milvaion_protocol::{message::StatusReport, status::OccurrenceStatus};
use milvaion_server::{
    background::lease::LEADER_ROLE,
    engine::leadership::Leadership,
    store::{leases::FencingToken, lost_runs::LostRunUpdate},
};

use milvaion_test_support::runs;

use super::harness::LostRunHarness;

#[tokio::test]
async fn lost_run_is_requeued_within_twenty_seconds() {
    let mut harness = LostRunHarness::new().await;
    harness.advance(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    assert_eq!(harness.advance(14, true).await.requeued, 0);
    assert_eq!(harness.instance().await.state, InstanceState::Active);
    assert_eq!(harness.advance(4, true).await.requeued, 1);
    assert_eq!(harness.instance().await.state, InstanceState::Lost, "no run of it is left");
    let view = harness.view(id).await;
    assert_eq!((view.row.status, view.row.attempt), (OccurrenceStatus::Queued, 2));
    assert_eq!((view.row.instance_id, view.row.started_at, view.published_at), (None, None, None));
    let step = view.changes.last().expect("a step");
    assert_eq!(
        step.note.as_deref(),
        Some("No heartbeat of worker instance w-1 for 16 s; attempt 2 starts at once"),
        "{step:?}"
    );
    assert_eq!(step.attempt, 2);
    harness.detector.activate_republisher.notified().await;

    // The first worker comes back and reports an attempt that has ended.
    assert_eq!(harness.report(id, 1, "w-1", OccurrenceStatus::Completed).await, 0);
    assert_eq!(harness.report(id, 2, "w-2", OccurrenceStatus::Completed).await, 1);
    assert_eq!(harness.status(id).await, (OccurrenceStatus::Completed, 2));
}

#[tokio::test]
async fn heartbeats_keep_a_run_alive() {
    let mut harness = LostRunHarness::new().await;
    harness.advance(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    for _ in 0..30 {
        assert_eq!(harness.advance(4, true).await.requeued, 0);
        harness.heartbeat("w-1", &[id]).await;
    }
    assert_eq!(harness.status(id).await, (OccurrenceStatus::Running, 1));
    // The worker is alive and no longer lists this run, as after a restart.
    harness.heartbeat("w-1", &[]).await;
    let mut lost = 0;
    for _ in 0..5 {
        lost += harness.advance(4, true).await.requeued;
        harness.heartbeat("w-1", &[]).await;
    }
    assert_eq!(lost, 1);
    let view = harness.view(id).await;
    assert_eq!((view.row.status, view.row.attempt), (OccurrenceStatus::Queued, 2));
    // The run started two minutes ago, and its instance is alive.
    let note = view.changes.last().and_then(|step| step.note.clone()).unwrap_or_default();
    assert!(note.starts_with("Worker instance w-1 sends heartbeats, but for at least 1"), "{note}");
    assert!(note.ends_with(" s none of them listed this run; attempt 2 starts at once"), "{note}");
}

#[tokio::test]
async fn run_of_a_stopped_instance_is_lost_with_it() {
    let mut harness = LostRunHarness::new().await;
    harness.advance(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    harness.store.store_goodbyes(&["w-1".to_owned()], harness.clock.now()).await.expect("the query succeeds");
    assert_eq!(harness.instance().await.state, InstanceState::Gone, "the report of the run's end may be on the way");
    harness.clock.advance(Duration::seconds(16));
    let draining = harness.instance().await;
    assert_eq!((draining.state, draining.running), (InstanceState::Draining, 1));
    assert_eq!(harness.advance(20, true).await.requeued, 1);
    assert_eq!(harness.instance().await.state, InstanceState::Gone);
    let view = harness.view(id).await;
    let note = view.changes.last().and_then(|step| step.note.clone()).unwrap_or_default();
    assert_eq!(note, "Worker instance w-1 stopped before the run's end was reported; attempt 2 starts at once");
}

#[tokio::test]
async fn run_lost_with_a_stopping_instance_counts_no_requeue() {
    let mut harness = LostRunHarness::new().await;
    harness.advance(30, true).await;
    for on_lost in ["requeue", "fail"] {
        let instance = format!("w-{on_lost}");
        let id = harness.running(on_lost, &instance).await;
        harness.set(id, "requeues = 3").await;
        harness.stopping_heartbeat(&instance, &[id]).await;
        assert_eq!(harness.instance().await.state, InstanceState::Completing, "{on_lost}");
        assert_eq!(harness.advance(20, true).await.requeued, 1, "{on_lost}");
        let view = harness.view(id).await;
        assert_eq!((view.row.status, view.row.attempt), (OccurrenceStatus::Queued, 2), "{on_lost}");
        let note = view.changes.last().and_then(|step| step.note.clone()).unwrap_or_default();
        let expected = format!("Worker instance {instance} announced that it stops and has sent no heartbeat for 16 s");
        assert!(note.starts_with(&expected), "{note}");
        assert_eq!(
            harness.count(&format!("SELECT requeues::bigint FROM runs WHERE id = '{id}'")).await,
            3,
            "{on_lost}"
        );
    }
}

#[tokio::test]
async fn loss_reported_after_a_stop_counts_no_requeue() {
    let harness = LostRunHarness::new().await;
    let id = harness.running("fail", "w-1").await;
    harness.stopping_heartbeat("w-1", &[id]).await;
    // The next process found the run in the outbox of the killed one.
    let report = StatusReport::new(id, 1, "w-1", OccurrenceStatus::Unknown, harness.clock.now());
    let applied = runs::report_with_retries(&harness.store, &harness.clock, vec![report]).await;
    assert_eq!(applied.rows.len(), 1);
    assert_eq!(harness.status(id).await, (OccurrenceStatus::Queued, 2));
    assert_eq!(harness.count(&format!("SELECT requeues::bigint FROM runs WHERE id = '{id}'")).await, 0);
}

#[tokio::test]
async fn unlisted_run_of_a_stopping_instance_follows_its_policy() {
    let mut harness = LostRunHarness::new().await;
    harness.advance(30, true).await;
    let id = harness.running("fail", "w-1").await;
    // The instance is alive, so the run was not lost with its process.
    let mut unknown = 0;
    for _ in 0..6 {
        harness.stopping_heartbeat("w-1", &[]).await;
        unknown += harness.advance(4, true).await.unknown;
    }
    assert_eq!(unknown, 1);
    assert_eq!(harness.status(id).await, (OccurrenceStatus::Unknown, 1));
}

#[tokio::test]
async fn view_names_the_state_of_the_instance() {
    let mut harness = LostRunHarness::new().await;
    let id = harness.running("requeue", "w-1").await;
    assert!(harness.view(id).await.instance_alive);
    harness.advance(4, true).await;
    // The harness counts an instance as alive only if its heartbeat is of this moment.
    assert!(!harness.view(id).await.instance_alive);
}

#[tokio::test]
async fn server_without_heartbeats_declares_no_run_lost() {
    let mut harness = LostRunHarness::new().await;
    harness.advance(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    assert_eq!(harness.advance(120, false).await.requeued, 0);
    // Heartbeats arrive again: every worker has the whole timeout to send one.
    assert_eq!(harness.advance(14, true).await.requeued, 0);
    harness.heartbeat("w-1", &[id]).await;
    assert_eq!(harness.advance(4, true).await.requeued, 0);
    assert_eq!(harness.status(id).await, (OccurrenceStatus::Running, 1));
    assert_eq!(harness.advance(14, true).await.requeued, 1, "without a heartbeat it is lost");
}

#[tokio::test]
async fn clock_step_declares_no_run_lost() {
    let mut harness = LostRunHarness::new().await;
    harness.advance(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    // The clock steps by ten minutes, and another server may write the next heartbeat with its own clock.
    harness.clock.advance(Duration::minutes(10));
    harness.clock.hold();
    assert_eq!(harness.advance(60, true).await.requeued, 0);
    harness.heartbeat("w-1", &[id]).await;
    assert_eq!(harness.advance(44, true).await.requeued, 0);
    assert_eq!(harness.status(id).await, (OccurrenceStatus::Running, 1));
    assert_eq!(harness.advance(14, true).await.requeued, 1, "without a heartbeat it is lost");
}

#[tokio::test]
async fn follower_declares_no_run_lost() {
    let mut harness = LostRunHarness::new().await;
    harness.advance(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    harness.leads.send_replace(Leadership::Follower);
    assert_eq!(harness.advance(30, true).await.requeued, 0);
    assert_eq!(harness.status(id).await, (OccurrenceStatus::Running, 1));
    harness.leads.send_replace(Leadership::Leaderless);
    assert_eq!(harness.advance(2, true).await.requeued, 1, "without a leader, every server may");
}

#[tokio::test]
async fn poison_run_fails_after_four_lost_attempts() {
    let mut harness = LostRunHarness::new().await;
    harness.advance(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    for attempt in 2..=4 {
        assert_eq!(harness.advance(18, true).await.requeued, 1, "attempt {attempt}");
        harness.start(id, attempt, "w-1").await;
    }
    let report = harness.advance(18, true).await;
    assert_eq!((report.requeued, report.ended), (0, 1));
    assert_eq!(harness.status(id).await, (OccurrenceStatus::Failed, 4));
    harness.detector.activate_slot_granter.notified().await;
    let failures = format!("SELECT count(*) FROM failed_occurrences WHERE occurrence_id = '{id}' AND cause = 'poison'");
    assert_eq!(harness.count(&failures).await, 1);
    assert_eq!(
        harness.count("SELECT coalesce(sum(count), 0)::bigint FROM stats_minute WHERE status = 'failed'").await,
        1
    );
}

#[tokio::test]
async fn unknown_run_fails_after_ten_minutes() {
    let mut harness = LostRunHarness::new().await;
    harness.advance(30, true).await;
    let (one, two) = (harness.running("fail", "w-1").await, harness.running("fail", "w-2").await);
    assert_eq!(harness.advance(18, true).await.unknown, 2);
    let view = harness.view(one).await;
    assert_eq!((view.row.status, view.row.attempt), (OccurrenceStatus::Unknown, 1));
    assert!(view.row.note.as_deref().is_some_and(|note| note.contains("No heartbeat")));
    assert_eq!(harness.report(one, 1, "w-1", OccurrenceStatus::Completed).await, 1, "a late report decides");
    assert_eq!(harness.status(one).await.0, OccurrenceStatus::Completed);

    assert_eq!(harness.advance(580, true).await.ended, 0);
    assert_eq!(harness.status(two).await.0, OccurrenceStatus::Unknown);
    assert_eq!(harness.advance(30, true).await.ended, 1);
    assert_eq!(harness.status(two).await.0, OccurrenceStatus::Failed);
    let failures = format!("SELECT count(*) FROM failed_occurrences WHERE occurrence_id = '{two}' AND cause = 'lost'");
    assert_eq!(harness.count(&failures).await, 1);
    assert_eq!(harness.report(two, 1, "w-2", OccurrenceStatus::Completed).await, 0, "too late");
}

#[tokio::test]
async fn lost_run_with_cancel_request_is_cancelled() {
    let mut harness = LostRunHarness::new().await;
    harness.advance(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    harness.set(id, "cancel_requested_at = now(), cancel_requested_by = 'ana@example.org'").await;
    assert_eq!(harness.advance(18, true).await.ended, 1);
    assert_eq!(harness.status(id).await, (OccurrenceStatus::Cancelled, 1));
}

#[tokio::test]
async fn heartbeat_timeout_of_the_job_is_used() {
    let mut harness = LostRunHarness::new().await;
    harness.advance(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    harness.set(id, "heartbeat_timeout_seconds = 60").await;
    assert_eq!(harness.advance(56, true).await.requeued, 0);
    assert_eq!(harness.advance(6, true).await.requeued, 1);
}

#[tokio::test]
async fn late_heartbeat_and_old_fence_prevent_the_update() {
    let harness = LostRunHarness::new().await;
    let id = harness.running("requeue", "w-1").await;
    let seen: DateTime<Utc> = harness.clock.now();
    let update = |last_seen_at| LostRunUpdate {
        id,
        attempt: 1,
        was: OccurrenceStatus::Running,
        last_seen_at: Some(last_seen_at),
        status: OccurrenceStatus::Queued,
        note: "no heartbeat".into(),
        cause: None,
        is_quarantined: false,
        counts_as_requeue: true,
    };
    harness.clock.advance(Duration::seconds(5));
    harness.heartbeat("w-1", &[id]).await;
    let now = harness.clock.now();
    let changed = async |last_seen_at, fence: Option<FencingToken>| {
        let updated = harness.store.update_lost_runs(&[update(last_seen_at)], fence, now).await;
        updated.expect("the query succeeds").rows.len()
    };
    assert_eq!(changed(seen, None).await, 0, "there is a newer heartbeat");

    let old: FencingToken = harness.store.take_lease(LEADER_ROLE, "one", now).await.expect("the query succeeds");
    let new = harness.store.take_lease(LEADER_ROLE, "two", now).await.expect("the query succeeds");
    assert_eq!(changed(now, Some(old)).await, 0, "the epoch has ended");
    assert_eq!(harness.status(id).await, (OccurrenceStatus::Running, 1));
    assert_eq!(changed(now, Some(new)).await, 1);
    assert_eq!(changed(now, Some(new)).await, 0, "it changes once");
}

#[tokio::test]
async fn lost_run_frees_its_slot_and_starts_the_interval() {
    let mut harness = LostRunHarness::new().await;
    harness.advance(30, true).await;
    let id = harness.running("requeue", "w-1").await;
    let job = harness.view(id).await.row.job_id;
    harness.set(id, "requeues = 3, pause_after_seconds = 60, slot_group = job_id, slot_limit = 1").await;
    harness
        .count(&format!(
            "WITH j AS (UPDATE jobs SET schedule = '{{\"kind\": \"every\", \"seconds\": 60, \"from\": \"end\"}}' WHERE id = '{job}' RETURNING 1)
             SELECT count(*) FROM j"
        ))
        .await;
    assert_eq!(harness.advance(18, true).await.ended, 1);
    assert_eq!(harness.count("SELECT count(*) FROM runs").await, 0);
    // The slot granter, which is activated here, starts the interval.
    harness.detector.activate_slot_granter.notified().await;
    let now = harness.view(id).await.row.ended_at.expect("it has ended");
    let scheduled = harness.store.schedule_after_end(None, now).await.expect("the query succeeds");
    assert_eq!(scheduled, [(job, now + Duration::seconds(60))]);
}
