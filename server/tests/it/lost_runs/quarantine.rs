//! Quarantine: runs that were lost repeatedly start one after the other, so a run beside a poison run is not failed with it.

use chrono::Duration;
use milvaion_protocol::{id::OccurrenceId, message::StatusReport, status::OccurrenceStatus};
use milvaion_server::{
    domain::{retry, transition::fold},
    store::{delayed::NextDelayedTimes, jobs::AuditStamp},
};

use super::harness::LostRunHarness;

/// Starts runs on one instance, each of which is lost and requeued `times` times.
async fn lost_runs(harness: &mut LostRunHarness, runs: usize, times: u32) -> Vec<OccurrenceId> {
    let mut ids = Vec::new();
    for _ in 0..runs {
        ids.push(harness.running("requeue", "w-1").await);
        harness.clock.advance(Duration::seconds(1));
    }
    for attempt in 1..=times {
        if attempt > 1 {
            for id in &ids {
                harness.start(*id, attempt, "w-1").await;
                harness.clock.advance(Duration::seconds(1));
            }
        }
        harness.heartbeat("w-1", &ids).await;
        assert_eq!(harness.advance(30, true).await.requeued, runs);
    }
    ids
}

/// Reports a run as lost, as the worker's next process does. That is decided at once.
async fn report_lost(harness: &LostRunHarness, run: (OccurrenceId, i32)) {
    let (id, attempt) = (run.0, run.1.unsigned_abs());
    let report = StatusReport::new(id, attempt, "w-1", OccurrenceStatus::Unknown, harness.clock.now());
    let mut changes = fold(vec![report]);
    let contexts = harness.store.retry_contexts(&[run]).await.expect("the query succeeds");
    retry::decide(&mut changes[0], &contexts[&id], harness.clock.now());
    let applied = harness.store.apply(&changes, harness.clock.now()).await.expect("the query succeeds");
    assert_eq!(applied.rows.len(), 1);
}

/// Releases the next run of the quarantine. Returns the released runs.
async fn release(harness: &LostRunHarness) -> Vec<OccurrenceId> {
    let queued = harness.store.release_quarantined(harness.clock.now()).await.expect("the query succeeds");
    queued.into_iter().map(|queued| queued.id).collect()
}

#[tokio::test]
async fn runs_lost_twice_start_one_by_one() {
    let mut harness = LostRunHarness::new().await;
    harness.advance(30, true).await;
    let ids = lost_runs(&mut harness, 3, 1).await;
    let unsent =
        harness.store.claim_unsent(harness.clock.now() + Duration::seconds(1), &[], &[], 10, harness.clock.now()).await;
    assert_eq!(unsent.expect("the query succeeds").len(), 3);
    assert_eq!(
        harness.store.next_delayed_times().await.expect("the query succeeds"),
        NextDelayedTimes::default(),
        "after one loss they are requeued at once"
    );
    for id in &ids {
        harness.start(*id, 2, "w-1").await;
    }
    assert_eq!(harness.advance(30, true).await.requeued, 3);
    assert!(harness.store.release_delayed(harness.clock.now(), 10).await.expect("the query succeeds").is_empty());
    assert!(harness.store.next_delayed_times().await.expect("the query succeeds").in_quarantine.is_some());

    assert_eq!(release(&harness).await, [ids[0]], "the oldest first");
    assert_eq!(release(&harness).await, [], "the released run has not started yet");
    harness.start(ids[0], 3, "w-2").await;
    harness.clock.advance(Duration::minutes(10));
    assert_eq!(release(&harness).await, [], "it is running");
    assert_eq!(harness.report(ids[0], 3, "w-2", OccurrenceStatus::Completed).await, 1);
    assert_eq!(release(&harness).await, [ids[1]], "it has ended");
    // A run that fails and is retried leaves its place to the next.
    harness.start(ids[1], 3, "w-2").await;
    let edit = AuditStamp { by: "ana", at: harness.clock.now(), address: None };
    harness.store.cancel(&[ids[2]], None, edit).await.expect("the query succeeds");
    assert_eq!(harness.report(ids[1], 3, "w-2", OccurrenceStatus::Completed).await, 1);
    assert_eq!(release(&harness).await, [], "the third is cancelled");
    assert_eq!(harness.store.next_delayed_times().await.expect("the query succeeds"), NextDelayedTimes::default());
}

#[tokio::test]
async fn poison_run_fails_without_the_runs_beside_it() {
    let mut harness = LostRunHarness::new().await;
    harness.advance(30, true).await;
    let ids = lost_runs(&mut harness, 3, 2).await;
    let poison = ids[0];
    for attempt in [3, 4] {
        assert_eq!(release(&harness).await, [poison]);
        harness.start(poison, attempt, "w-1").await;
        assert_eq!(release(&harness).await, [], "no other quarantined run shares its process");
        report_lost(&harness, (poison, i32::try_from(attempt).expect("a small number"))).await;
    }
    assert_eq!(harness.status(poison).await, (OccurrenceStatus::Failed, 4));
    let failures = format!(
        "SELECT count(*) FROM failed_occurrences
          WHERE occurrence_id = '{poison}' AND cause = 'poison' AND exception LIKE 'Failed as a poison run:%'
            AND fingerprint LIKE 'poison:%'"
    );
    assert_eq!(harness.count(&failures).await, 1, "recorded with its cause and the fingerprint of poison runs");
    for id in &ids[1..] {
        assert_eq!(release(&harness).await, [*id]);
        harness.start(*id, 3, "w-1").await;
        assert_eq!(harness.report(*id, 3, "w-1", OccurrenceStatus::Completed).await, 1);
    }
}

#[tokio::test]
async fn quarantines_of_two_workers_are_separate_and_a_new_run_is_free() {
    let mut harness = LostRunHarness::new().await;
    harness.advance(30, true).await;
    let [first, other] = lost_runs(&mut harness, 2, 2).await[..] else { panic!("two runs") };
    harness.set(other, "worker_id = 'other'").await;
    assert_eq!(release(&harness).await.len(), 2, "one of each worker");
    harness.start(first, 3, "w-1").await;
    let new = harness.running("requeue", "w-1").await;
    report_lost(&harness, (new, 1)).await;
    let released = harness.store.release_delayed(harness.clock.now(), 10).await.expect("the query succeeds");
    assert_eq!(released.into_iter().map(|queued| queued.id).collect::<Vec<_>>(), [new]);
}

#[tokio::test]
async fn release_happens_once_and_not_while_paused() {
    let mut harness = LostRunHarness::new().await;
    harness.advance(30, true).await;
    lost_runs(&mut harness, 3, 2).await;
    let edit = AuditStamp { by: "ana", at: harness.clock.now(), address: None };
    harness.store.pause_cluster("the warehouse moves", edit).await.expect("the query succeeds");
    assert_eq!(release(&harness).await, []);
    assert_eq!(
        harness.store.next_delayed_times().await.expect("the query succeeds"),
        NextDelayedTimes::default(),
        "no time to wake up for"
    );
    harness.store.resume_cluster(edit).await.expect("the query succeeds");
    let (one, two) = tokio::join!(release(&harness), release(&harness));
    assert_eq!(one.len() + two.len(), 1, "two servers at once release one run");
}
