//! What becomes of fires that were missed while no scheduler was there.

use chrono::Duration;
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_schedule::{
    rules::{Misfire, Rules},
    schedule::Schedule,
};

use super::house::House;

fn rules(misfire: Misfire) -> Rules {
    Rules { misfire, ..Rules::default() }
}

#[tokio::test]
async fn fire_once_makes_one_occurrence_that_says_what_it_stands_for() {
    let house = House::open().await;
    let due = house.clock.now() - Duration::seconds(600);
    let job = house.job(Schedule::every(60), rules(Misfire::FireOnce), Some(due)).await;
    let rows = house.occurrences(job, 1).await;
    house.starts(1).await;
    assert_eq!(rows[0].scheduled_for, due);
    let view = house.server.store.occurrence(rows[0].id, 1, due).await.expect("answered").expect("there");
    assert_eq!(view.trigger_reason.as_deref(), Some("stands for 10 fires more, which came due before it ran"));
    assert_eq!(house.next(job).await, Some(house.clock.now() + Duration::seconds(60)));
    assert_eq!(house.rows(job).await.len(), 1);
    house.close().await;
}

#[tokio::test]
async fn skip_makes_one_row_that_counts_what_was_missed() {
    let house = House::open().await;
    let due = house.clock.now() - Duration::seconds(600);
    let job = house.job(Schedule::every(60), rules(Misfire::Skip), Some(due)).await;
    let rows = house.occurrences(job, 1).await;
    assert_eq!(rows[0].status, OccurrenceStatus::Skipped);
    assert!(rows[0].note.as_deref().is_some_and(|note| note.contains("11 fires")), "{:?}", rows[0].note);
    house.pass(Duration::seconds(60)).await;
    house.starts(1).await;
    house.close().await;
}

#[tokio::test]
async fn catch_up_runs_every_missed_fire_within_its_limit() {
    let house = House::open().await;
    let due = house.clock.now() - Duration::seconds(600);
    let limit = Rules { catch_up_limit: 5, ..rules(Misfire::CatchUp) };
    let job = house.job(Schedule::every(60), limit, Some(due)).await;
    let rows = house.occurrences(job, 6).await;
    house.starts(5).await;
    assert_eq!(rows[0].status, OccurrenceStatus::Skipped);
    let instants: Vec<_> = rows[1..].iter().map(|row| (row.scheduled_for - due).num_seconds()).collect();
    assert_eq!(instants, [360, 420, 480, 540, 600]);
    house.close().await;
}

#[tokio::test]
async fn mv22_a_job_that_is_enabled_again_after_a_month_neither_fires_at_once_nor_floods() {
    let house = House::open().await;
    let rules = Rules { catch_up_window_seconds: 2_592_000, catch_up_limit: 1_000, ..rules(Misfire::CatchUp) };
    let now = house.clock.now();
    let job = house.job(Schedule::every(3_600), rules, Some(now + Duration::seconds(3_600))).await;
    let me = milvaion_test_support::stack::admin();
    house.server.jobs.set_active(&me, job, false, "holidays").await.expect("paused");
    house.pass(Duration::days(30)).await;
    house.server.jobs.set_active(&me, job, true, "").await.expect("resumed");
    assert_eq!(house.next(job).await, Some(house.clock.now() + Duration::seconds(3_600)));
    assert!(house.rows(job).await.is_empty());
    house.close().await;
}
