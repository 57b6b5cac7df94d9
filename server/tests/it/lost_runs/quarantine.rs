//! Who was beside a run that ends its process is not taken for such a one: what was lost too often begins apart.

use std::collections::HashSet;

use chrono::Duration;
use milvaion_protocol::{id::OccurrenceId, message::StatusReport, status::OccurrenceStatus};
use milvaion_server::{
    domain::{retry, transition::fold},
    store::{delayed::NextDelayedTimes, jobs::AuditStamp},
};

use super::harness::LostRunHarness;

/// Runs on one instance, each lost `times` times with it; `harness` looks on.
async fn lost(harness: &mut LostRunHarness, runs: usize, times: u32) -> Vec<OccurrenceId> {
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
        harness.beat("w-1", &ids).await;
        assert_eq!(harness.pass(30, true).await.requeued, runs);
    }
    ids
}

/// The worker's next process tells of runs that died with the last one, which is decided at once.
async fn told_as_lost(harness: &LostRunHarness, runs: &[(OccurrenceId, i32)]) {
    let report = |&(occurrence_id, attempt): &(OccurrenceId, i32)| {
        StatusReport::new(occurrence_id, attempt.unsigned_abs(), "w-1", OccurrenceStatus::Unknown, harness.clock.now())
    };
    let mut changes = fold(runs.iter().map(report).collect());
    let mut standings = harness.store.retry_contexts(runs).await.expect("answered");
    retry::open_quarantines(&changes, &mut standings);
    for change in &mut changes {
        retry::decide(change, &standings[&change.occurrence_id], harness.clock.now());
    }
    let applied = harness.store.apply(&changes, harness.clock.now()).await.expect("answered");
    assert_eq!(applied.rows.len(), runs.len());
}

/// Those that take their turn now.
async fn turns(harness: &LostRunHarness) -> Vec<OccurrenceId> {
    let queued = harness.store.release_quarantined(harness.clock.now()).await.expect("answered");
    queued.into_iter().map(|queued| queued.id).collect()
}

#[tokio::test]
async fn what_was_lost_three_times_with_its_worker_begins_one_after_the_other() {
    let mut harness = LostRunHarness::new().await;
    harness.pass(30, true).await;
    let ids = lost(&mut harness, 3, 2).await;
    assert_eq!(
        harness
            .store
            .unsent_occurrences(harness.clock.now() + Duration::seconds(1), &[], 10)
            .await
            .expect("answered")
            .len(),
        3
    );
    assert_eq!(
        harness.store.next_delayed_times().await.expect("answered"),
        NextDelayedTimes::default(),
        "twice they begin at once"
    );
    for id in &ids {
        harness.start(*id, 3, "w-1").await;
    }
    assert_eq!(harness.pass(30, true).await.requeued, 3);
    assert!(harness.store.release_delayed(harness.clock.now(), 10).await.expect("answered").is_empty());
    assert!(harness.store.next_delayed_times().await.expect("answered").in_lane.is_some());

    // Who had begun last when they were lost goes first.
    assert_eq!(turns(&harness).await, [ids[2]]);
    assert_eq!(turns(&harness).await, [], "it is on its way");
    harness.start(ids[2], 4, "w-2").await;
    harness.clock.advance(Duration::milliseconds(9_999));
    assert_eq!(turns(&harness).await, []);
    harness.clock.advance(Duration::milliseconds(1));
    assert_eq!(turns(&harness).await, [ids[1]], "the first has run for ten seconds");
    harness.start(ids[1], 4, "w-2").await;
    assert_eq!(turns(&harness).await, []);
    assert_eq!(harness.report(ids[1], 4, "w-2", OccurrenceStatus::Completed).await, 1);
    assert_eq!(turns(&harness).await, [ids[0]], "the second has ended");
    assert_eq!(harness.store.next_delayed_times().await.expect("answered"), NextDelayedTimes::default());
}

#[tokio::test]
async fn a_run_that_ends_its_process_again_and_again_is_given_up_without_those_that_were_beside_it() {
    let mut harness = LostRunHarness::new().await;
    harness.pass(30, true).await;
    let mut ids = lost(&mut harness, 3, 3).await;
    let culprit = ids.remove(2);
    assert_eq!(turns(&harness).await, [culprit]);
    harness.start(culprit, 4, "w-1").await;
    assert_eq!(turns(&harness).await, []);
    told_as_lost(&harness, &[(culprit, 4)]).await;
    assert_eq!(harness.status(culprit).await, (OccurrenceStatus::Failed, 4));
    let kept = format!(
        "SELECT count(*) FROM failed_occurrences
          WHERE occurrence_id = '{culprit}' AND cause = 'poison' AND exception LIKE 'Its run ended with its worker%'
            AND fingerprint LIKE 'poison:%'"
    );
    assert_eq!(harness.count(&kept).await, 1, "people read why, and find it beside others of its kind");

    // Then those who waited are acquitted: they begin at once, with one chance more.
    assert_eq!(turns(&harness).await, []);
    let all = harness.store.release_delayed(harness.clock.now(), 10).await.expect("answered");
    let all: HashSet<_> = all.into_iter().map(|queued| queued.id).collect();
    assert_eq!(all, ids.iter().copied().collect());
    for id in &ids {
        harness.start(*id, 4, "w-1").await;
    }
    assert_eq!(harness.pass(18, true).await.requeued, 2);
    // Who comes later finds a lane in which nobody has the turn.
    assert_eq!(turns(&harness).await.len(), 1);
    assert_eq!(turns(&harness).await, []);
}

#[tokio::test]
async fn a_new_run_of_a_culprits_job_goes_before_those_it_killed() {
    let mut harness = LostRunHarness::new().await;
    harness.pass(30, true).await;
    let [innocent, old] = lost(&mut harness, 2, 2).await[..] else { panic!("two") };
    harness.start(innocent, 3, "w-1").await;
    harness.start(old, 3, "w-1").await;
    harness.clock.advance(Duration::seconds(30));
    let new = harness.running("requeue", "w-1").await;
    // They die together: two for the third time, one of them and the new one after a long and a short life.
    harness.clock.advance(Duration::milliseconds(200));
    told_as_lost(&harness, &[(innocent, 3), (old, 3), (new, 1)]).await;
    assert_eq!(turns(&harness).await, [new]);
    harness.start(new, 2, "w-1").await;
    // Who dies young while they wait is one of them as well.
    told_as_lost(&harness, &[(new, 2)]).await;
    assert_eq!(turns(&harness).await, [new]);
    assert_eq!(harness.report(new, 3, "w-1", OccurrenceStatus::Completed).await, 1);
    // Whoever lived for a while does not wait with them.
    let long = harness.running("requeue", "w-1").await;
    harness.clock.advance(Duration::seconds(10));
    harness.beat("w-1", &[long]).await;
    told_as_lost(&harness, &[(long, 1)]).await;
    let gone = harness.store.release_delayed(harness.clock.now(), 10).await.expect("answered");
    assert_eq!(gone.into_iter().map(|queued| queued.id).collect::<Vec<_>>(), [long]);
}

#[tokio::test]
async fn a_turn_is_given_once_and_neither_to_the_cancelled_nor_while_the_cluster_is_paused() {
    let mut harness = LostRunHarness::new().await;
    harness.pass(30, true).await;
    let ids = lost(&mut harness, 3, 3).await;
    let edit = AuditStamp { by: "ana", at: harness.clock.now() };
    harness.store.pause_cluster("the warehouse moves", edit).await.expect("answered");
    assert_eq!(turns(&harness).await, []);
    assert_eq!(
        harness.store.next_delayed_times().await.expect("answered"),
        NextDelayedTimes::default(),
        "nothing to wake up for"
    );
    harness.store.resume_cluster(edit).await.expect("answered");
    harness.store.cancel(&[ids[2]], None, edit).await.expect("answered");
    assert_eq!(turns(&harness).await, [], "it only loses its place");
    let (one, two) = tokio::join!(turns(&harness), turns(&harness));
    assert_eq!(one.len() + two.len(), 1, "two servers at once");
    // Nobody is there to begin it, nor would anybody begin the other.
    harness.clock.advance(Duration::seconds(60));
    assert_eq!(turns(&harness).await, []);
    // Somebody is, and does not begin it: the other is not kept waiting for ever.
    harness.beat("w-1", &[]).await;
    assert_eq!(turns(&harness).await.len(), 1);
}
