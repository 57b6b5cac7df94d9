//! What becomes of a fire while the previous occurrence is open.

use chrono::Duration;
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_schedule::{
    rules::{Overlap, Rules},
    schedule::{Rhythm, Schedule},
};

use super::house::House;
use milvaion_test_support::stack;

fn rules(overlap: Overlap) -> Rules {
    Rules { overlap, ..Rules::default() }
}

#[tokio::test]
async fn skip_leaves_a_row_that_says_why_and_runs_again_once_the_first_has_ended() {
    let house = House::open().await;
    let now = house.clock.now();
    let job = house.job(Schedule::every(60), rules(Overlap::Skip), Some(now)).await;
    let first = house.starts(1).await[0];
    house.pass(Duration::seconds(60)).await;
    let rows = house.occurrences(job, 2).await;
    assert_eq!(rows[1].status, OccurrenceStatus::Skipped);
    assert_eq!(rows[1].note.as_deref(), Some("Skipped: the previous occurrence is still open."));
    assert_eq!(rows[1].scheduled_for, now + Duration::seconds(60));

    house.gate.let_one_end();
    house.becomes(job, first, OccurrenceStatus::Completed).await;
    house.pass(Duration::seconds(60)).await;
    assert_eq!(house.starts(2).await.len(), 2, "the skipped one never starts");
    house.close().await;
}

#[tokio::test]
async fn queue_truly_waits_and_keeps_the_order() {
    let house = House::open().await;
    let job = house.job(Schedule::every(60), rules(Overlap::Queue), Some(house.clock.now())).await;
    let first = house.starts(1).await[0];
    house.becomes(job, first, OccurrenceStatus::Running).await;
    for n in 2..=4 {
        house.pass(Duration::seconds(60)).await;
        house.occurrences(job, n).await;
    }
    let rows = house.rows(job).await;
    assert_eq!(rows.iter().filter(|row| row.status == OccurrenceStatus::Queued).count(), 3);
    for n in 1..=4 {
        let started = house.starts(n).await;
        assert_eq!(started.len(), n, "one at a time");
        house.gate.let_one_end();
        house.becomes(job, started[n - 1], OccurrenceStatus::Completed).await;
    }
    let mut in_order = house.gate.started();
    in_order.sort();
    assert_eq!(house.gate.started(), in_order, "oldest first");
    assert_eq!(house.gate.most(), 1);
    house.close().await;
}

#[tokio::test]
async fn replace_cancels_the_previous_one_and_never_runs_two() {
    let house = House::open().await;
    let job = house.job(Schedule::every(60), rules(Overlap::Replace), Some(house.clock.now())).await;
    let first = house.starts(1).await[0];
    for n in 2..=3 {
        // What is not known to run is cancelled where it waits, and its place is free at once.
        house.becomes(job, house.gate.started()[n - 2], OccurrenceStatus::Running).await;
        house.pass(Duration::seconds(60)).await;
        let started = house.starts(n).await;
        let before = house.becomes(job, started[n - 2], OccurrenceStatus::Cancelled).await;
        assert!(before.note.as_deref().is_some_and(|note| note.contains("takes its place")), "{before:?}");
    }
    assert_eq!(house.gate.started()[0], first);
    assert_eq!(house.gate.most(), 1);
    house.close().await;
}

#[tokio::test]
async fn allow_runs_beside_the_previous_one() {
    let house = House::open().await;
    house.job(Schedule::every(60), rules(Overlap::Allow), Some(house.clock.now())).await;
    house.starts(1).await;
    house.pass(Duration::seconds(60)).await;
    house.starts(2).await;
    assert_eq!(house.gate.most(), 2);
    house.close().await;
}

#[tokio::test]
async fn a_pause_counted_from_the_end_begins_when_the_run_has_ended() {
    let house = House::open().await;
    let schedule = Schedule::Every { seconds: 60, from: Rhythm::End };
    let job = house.job(schedule, Rules::default(), Some(house.clock.now())).await;
    let first = house.starts(1).await[0];
    assert_eq!(house.next(job).await, None, "not due while it runs");
    // Whoever pauses, resumes or edits it meanwhile changes nothing about that.
    let me = stack::admin();
    house.server.jobs.set_active(&me, job, false, "").await.expect("paused");
    house.server.jobs.set_active(&me, job, true, "").await.expect("resumed");
    assert_eq!(house.next(job).await, None, "not due while it runs, though it was paused");
    house.pass(Duration::seconds(300)).await;
    house.gate.let_one_end();
    house.becomes(job, first, OccurrenceStatus::Completed).await;
    let next = stack::eventually("the next fire", || house.next(job)).await;
    assert_eq!(next, house.clock.now() + Duration::seconds(60));
    house.pass(Duration::seconds(60)).await;
    house.starts(2).await;
    assert_eq!(house.rows(job).await.len(), 2);
    house.close().await;
}
