//! Quarantine: runs that were lost too often start one after the other, so a run beside a poison run is not failed with it.

use std::collections::HashSet;

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

/// Reports runs as lost, as the worker's next process does. That is decided at once.
async fn report_lost(harness: &LostRunHarness, runs: &[(OccurrenceId, i32)]) {
    let report = |&(occurrence_id, attempt): &(OccurrenceId, i32)| {
        StatusReport::new(occurrence_id, attempt.unsigned_abs(), "w-1", OccurrenceStatus::Unknown, harness.clock.now())
    };
    let mut changes = fold(runs.iter().map(report).collect());
    let mut contexts = harness.store.retry_contexts(runs).await.expect("the query succeeds");
    retry::open_quarantines(&changes, &mut contexts);
    for change in &mut changes {
        retry::decide(change, &contexts[&change.occurrence_id], harness.clock.now());
    }
    let applied = harness.store.apply(&changes, harness.clock.now()).await.expect("the query succeeds");
    assert_eq!(applied.rows.len(), runs.len());
}

/// Releases the next run of the quarantine. Returns the released runs.
async fn release(harness: &LostRunHarness) -> Vec<OccurrenceId> {
    let queued = harness.store.release_quarantined(harness.clock.now()).await.expect("the query succeeds");
    queued.into_iter().map(|queued| queued.id).collect()
}

#[tokio::test]
async fn runs_lost_three_times_start_one_by_one() {
    let mut harness = LostRunHarness::new().await;
    harness.advance(30, true).await;
    let ids = lost_runs(&mut harness, 3, 2).await;
    let unsent = harness.store.unsent_occurrences(harness.clock.now() + Duration::seconds(1), &[], 10).await;
    assert_eq!(unsent.expect("the query succeeds").len(), 3);
    assert_eq!(
        harness.store.next_delayed_times().await.expect("the query succeeds"),
        NextDelayedTimes::default(),
        "after two losses they are requeued at once"
    );
    for id in &ids {
        harness.start(*id, 3, "w-1").await;
    }
    assert_eq!(harness.advance(30, true).await.requeued, 3);
    assert!(harness.store.release_delayed(harness.clock.now(), 10).await.expect("the query succeeds").is_empty());
    assert!(harness.store.next_delayed_times().await.expect("the query succeeds").in_quarantine.is_some());

    // The run that started last before they were lost is released first.
    assert_eq!(release(&harness).await, [ids[2]]);
    assert_eq!(release(&harness).await, [], "the released run has not started yet");
    harness.start(ids[2], 4, "w-2").await;
    harness.clock.advance(Duration::milliseconds(9_999));
    assert_eq!(release(&harness).await, []);
    harness.clock.advance(Duration::milliseconds(1));
    assert_eq!(release(&harness).await, [ids[1]], "the first has run for ten seconds");
    harness.start(ids[1], 4, "w-2").await;
    assert_eq!(release(&harness).await, []);
    assert_eq!(harness.report(ids[1], 4, "w-2", OccurrenceStatus::Completed).await, 1);
    assert_eq!(release(&harness).await, [ids[0]], "the second has ended");
    assert_eq!(harness.store.next_delayed_times().await.expect("the query succeeds"), NextDelayedTimes::default());
}

#[tokio::test]
async fn poison_run_fails_without_the_runs_beside_it() {
    let mut harness = LostRunHarness::new().await;
    harness.advance(30, true).await;
    let mut ids = lost_runs(&mut harness, 3, 3).await;
    let poison = ids.remove(2);
    assert_eq!(release(&harness).await, [poison]);
    harness.start(poison, 4, "w-1").await;
    assert_eq!(release(&harness).await, []);
    report_lost(&harness, &[(poison, 4)]).await;
    assert_eq!(harness.status(poison).await, (OccurrenceStatus::Failed, 4));
    let failures = format!(
        "SELECT count(*) FROM failed_occurrences
          WHERE occurrence_id = '{poison}' AND cause = 'poison' AND exception LIKE 'Failed as a poison run:%'
            AND fingerprint LIKE 'poison:%'"
    );
    assert_eq!(harness.count(&failures).await, 1, "recorded with its cause and the fingerprint of poison runs");

    // The other runs leave the quarantine: they start at once, with one more requeue.
    assert_eq!(release(&harness).await, []);
    let all = harness.store.release_delayed(harness.clock.now(), 10).await.expect("the query succeeds");
    let all: HashSet<_> = all.into_iter().map(|queued| queued.id).collect();
    assert_eq!(all, ids.iter().copied().collect());
    for id in &ids {
        harness.start(*id, 4, "w-1").await;
    }
    assert_eq!(harness.advance(18, true).await.requeued, 2);
    // Lost again, they enter a quarantine without a released run.
    assert_eq!(release(&harness).await.len(), 1);
    assert_eq!(release(&harness).await, []);
}

#[tokio::test]
async fn short_lived_run_is_released_first() {
    let mut harness = LostRunHarness::new().await;
    harness.advance(30, true).await;
    let [innocent, old] = lost_runs(&mut harness, 2, 2).await[..] else { panic!("two runs") };
    harness.start(innocent, 3, "w-1").await;
    harness.start(old, 3, "w-1").await;
    harness.clock.advance(Duration::seconds(30));
    let new = harness.running("requeue", "w-1").await;
    // They are lost together: two for the third time, and the new one shortly after its start.
    harness.clock.advance(Duration::milliseconds(200));
    report_lost(&harness, &[(innocent, 3), (old, 3), (new, 1)]).await;
    assert_eq!(release(&harness).await, [new]);
    harness.start(new, 2, "w-1").await;
    // A run that is lost shortly after its start while others are quarantined is quarantined too.
    report_lost(&harness, &[(new, 2)]).await;
    assert_eq!(release(&harness).await, [new]);
    assert_eq!(harness.report(new, 3, "w-1", OccurrenceStatus::Completed).await, 1);
    // A run that was lost long after its start is not quarantined.
    let long = harness.running("requeue", "w-1").await;
    harness.clock.advance(Duration::seconds(10));
    harness.heartbeat("w-1", &[long]).await;
    report_lost(&harness, &[(long, 1)]).await;
    let released = harness.store.release_delayed(harness.clock.now(), 10).await.expect("the query succeeds");
    assert_eq!(released.into_iter().map(|queued| queued.id).collect::<Vec<_>>(), [long]);
}

#[tokio::test]
async fn release_happens_once_and_not_while_paused() {
    let mut harness = LostRunHarness::new().await;
    harness.advance(30, true).await;
    let ids = lost_runs(&mut harness, 3, 3).await;
    let edit = AuditStamp { by: "ana", at: harness.clock.now(), address: None };
    harness.store.pause_cluster("the warehouse moves", edit).await.expect("the query succeeds");
    assert_eq!(release(&harness).await, []);
    assert_eq!(
        harness.store.next_delayed_times().await.expect("the query succeeds"),
        NextDelayedTimes::default(),
        "no time to wake up for"
    );
    harness.store.resume_cluster(edit).await.expect("the query succeeds");
    harness.store.cancel(&[ids[2]], None, edit).await.expect("the query succeeds");
    assert_eq!(release(&harness).await, [], "this call only removes the cancelled run");
    let (one, two) = tokio::join!(release(&harness), release(&harness));
    assert_eq!(one.len() + two.len(), 1, "two servers at once release one run");
    // No instance is alive: the released run cannot start, and neither could another one.
    harness.clock.advance(Duration::seconds(60));
    assert_eq!(release(&harness).await, []);
    // An instance is alive and does not start the released run: the next one is released.
    harness.heartbeat("w-1", &[]).await;
    assert_eq!(release(&harness).await.len(), 1);
}
