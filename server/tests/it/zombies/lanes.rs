//! Who was beside a run that ends its process is not taken for such a one: what was lost too often begins apart.

use std::collections::HashSet;

use chrono::Duration;
use milvaion_protocol::{id::OccurrenceId, message::StatusReport, status::OccurrenceStatus};
use milvaion_server::{
    domain::{retry, transition::fold},
    store::{jobs::Edit, waits::NextWaits},
};

use super::bench::Bench;

/// Runs on one instance, each lost `times` times with it; `bench` looks on.
async fn lost(bench: &mut Bench, runs: usize, times: u32) -> Vec<OccurrenceId> {
    let mut ids = Vec::new();
    for _ in 0..runs {
        ids.push(bench.running("requeue", "w-1").await);
        bench.clock.advance(Duration::seconds(1));
    }
    for attempt in 1..=times {
        if attempt > 1 {
            for id in &ids {
                bench.start(*id, attempt, "w-1").await;
                bench.clock.advance(Duration::seconds(1));
            }
        }
        bench.beat("w-1", &ids).await;
        assert_eq!(bench.pass(30, true).await.requeued, runs);
    }
    ids
}

/// The worker's next process tells of runs that died with the last one, which is decided at once.
async fn told_as_lost(bench: &Bench, runs: &[(OccurrenceId, i32)]) {
    let report = |&(occurrence_id, attempt): &(OccurrenceId, i32)| {
        StatusReport::new(occurrence_id, attempt.unsigned_abs(), "w-1", OccurrenceStatus::Unknown, bench.clock.now())
    };
    let mut changes = fold(runs.iter().map(report).collect());
    let mut standings = bench.store.standings(runs).await.expect("answered");
    retry::gather(&changes, &mut standings);
    for change in &mut changes {
        retry::decide(change, &standings[&change.occurrence_id], bench.clock.now());
    }
    let applied = bench.store.apply(&changes, bench.clock.now()).await.expect("answered");
    assert_eq!(applied.rows.len(), runs.len());
}

/// Those that take their turn now.
async fn turns(bench: &Bench) -> Vec<OccurrenceId> {
    let queued = bench.store.take_turns(bench.clock.now()).await.expect("answered");
    queued.into_iter().map(|queued| queued.id).collect()
}

#[tokio::test]
async fn what_was_lost_three_times_with_its_worker_begins_one_after_the_other() {
    let mut bench = Bench::new().await;
    bench.pass(30, true).await;
    let ids = lost(&mut bench, 3, 2).await;
    assert_eq!(
        bench.store.unpublished(bench.clock.now() + Duration::seconds(1), &[], 10).await.expect("answered").len(),
        3
    );
    assert_eq!(bench.store.next_waits().await.expect("answered"), NextWaits::default(), "twice they begin at once");
    for id in &ids {
        bench.start(*id, 3, "w-1").await;
    }
    assert_eq!(bench.pass(30, true).await.requeued, 3);
    assert!(bench.store.let_go(bench.clock.now(), 10).await.expect("answered").is_empty());
    assert!(bench.store.next_waits().await.expect("answered").in_lane.is_some());

    // Who had begun last when they were lost goes first.
    assert_eq!(turns(&bench).await, [ids[2]]);
    assert_eq!(turns(&bench).await, [], "it is on its way");
    bench.start(ids[2], 4, "w-2").await;
    bench.clock.advance(Duration::milliseconds(9_999));
    assert_eq!(turns(&bench).await, []);
    bench.clock.advance(Duration::milliseconds(1));
    assert_eq!(turns(&bench).await, [ids[1]], "the first has run for ten seconds");
    bench.start(ids[1], 4, "w-2").await;
    assert_eq!(turns(&bench).await, []);
    assert_eq!(bench.report(ids[1], 4, "w-2", OccurrenceStatus::Completed).await, 1);
    assert_eq!(turns(&bench).await, [ids[0]], "the second has ended");
    assert_eq!(bench.store.next_waits().await.expect("answered"), NextWaits::default());
}

#[tokio::test]
async fn a_run_that_ends_its_process_again_and_again_is_given_up_without_those_that_were_beside_it() {
    let mut bench = Bench::new().await;
    bench.pass(30, true).await;
    let mut ids = lost(&mut bench, 3, 3).await;
    let culprit = ids.remove(2);
    assert_eq!(turns(&bench).await, [culprit]);
    bench.start(culprit, 4, "w-1").await;
    assert_eq!(turns(&bench).await, []);
    told_as_lost(&bench, &[(culprit, 4)]).await;
    assert_eq!(bench.status(culprit).await, (OccurrenceStatus::Failed, 4));
    let kept = format!(
        "SELECT count(*) FROM failed_occurrences
          WHERE occurrence_id = '{culprit}' AND cause = 'poison' AND exception LIKE 'Its run ended with its worker%'
            AND fingerprint LIKE 'poison:%'"
    );
    assert_eq!(bench.count(&kept).await, 1, "people read why, and find it beside others of its kind");

    // Then those who waited are acquitted: they begin at once, with one chance more.
    assert_eq!(turns(&bench).await, []);
    let all = bench.store.let_go(bench.clock.now(), 10).await.expect("answered");
    let all: HashSet<_> = all.into_iter().map(|queued| queued.id).collect();
    assert_eq!(all, ids.iter().copied().collect());
    for id in &ids {
        bench.start(*id, 4, "w-1").await;
    }
    assert_eq!(bench.pass(18, true).await.requeued, 2);
    // Who comes later finds a lane in which nobody has the turn.
    assert_eq!(turns(&bench).await.len(), 1);
    assert_eq!(turns(&bench).await, []);
}

#[tokio::test]
async fn a_new_run_of_a_culprits_job_goes_before_those_it_killed() {
    let mut bench = Bench::new().await;
    bench.pass(30, true).await;
    let [innocent, old] = lost(&mut bench, 2, 2).await[..] else { panic!("two") };
    bench.start(innocent, 3, "w-1").await;
    bench.start(old, 3, "w-1").await;
    bench.clock.advance(Duration::seconds(30));
    let new = bench.running("requeue", "w-1").await;
    // They die together: two for the third time, one of them and the new one after a long and a short life.
    bench.clock.advance(Duration::milliseconds(200));
    told_as_lost(&bench, &[(innocent, 3), (old, 3), (new, 1)]).await;
    assert_eq!(turns(&bench).await, [new]);
    bench.start(new, 2, "w-1").await;
    // Who dies young while they wait is one of them as well.
    told_as_lost(&bench, &[(new, 2)]).await;
    assert_eq!(turns(&bench).await, [new]);
    assert_eq!(bench.report(new, 3, "w-1", OccurrenceStatus::Completed).await, 1);
    // Whoever lived for a while does not wait with them.
    let long = bench.running("requeue", "w-1").await;
    bench.clock.advance(Duration::seconds(10));
    bench.beat("w-1", &[long]).await;
    told_as_lost(&bench, &[(long, 1)]).await;
    let gone = bench.store.let_go(bench.clock.now(), 10).await.expect("answered");
    assert_eq!(gone.into_iter().map(|queued| queued.id).collect::<Vec<_>>(), [long]);
}

#[tokio::test]
async fn a_turn_is_given_once_and_neither_to_the_cancelled_nor_while_the_cluster_is_paused() {
    let mut bench = Bench::new().await;
    bench.pass(30, true).await;
    let ids = lost(&mut bench, 3, 3).await;
    let edit = Edit { by: "ana", at: bench.clock.now() };
    bench.store.pause_cluster("the warehouse moves", edit).await.expect("answered");
    assert_eq!(turns(&bench).await, []);
    assert_eq!(bench.store.next_waits().await.expect("answered"), NextWaits::default(), "nothing to wake up for");
    bench.store.resume_cluster(edit).await.expect("answered");
    bench.store.cancel(&[ids[2]], None, edit).await.expect("answered");
    assert_eq!(turns(&bench).await, [], "it only loses its place");
    let (one, two) = tokio::join!(turns(&bench), turns(&bench));
    assert_eq!(one.len() + two.len(), 1, "two servers at once");
    // Nobody is there to begin it, nor would anybody begin the other.
    bench.clock.advance(Duration::seconds(60));
    assert_eq!(turns(&bench).await, []);
    // Somebody is, and does not begin it: the other is not kept waiting for ever.
    bench.beat("w-1", &[]).await;
    assert_eq!(turns(&bench).await.len(), 1);
}
