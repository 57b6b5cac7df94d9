//! Limits per job and per key, and who goes first.

use chrono::Duration;
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_schedule::{
    rules::{KeyLimit, Rules},
    schedule::Schedule,
};

use super::house::House;

#[tokio::test]
async fn a_job_with_a_limit_never_exceeds_it_and_loses_nothing() {
    let house = House::open().await;
    let rules = Rules { max_concurrent: Some(2), ..Rules::default() };
    let job = house.job(Schedule::every(60), rules, Some(house.clock.now())).await;
    for n in 1..=6 {
        house.occurrences(job, n).await;
        house.pass(Duration::seconds(60)).await;
    }
    for n in 1..=6 {
        let started = house.starts(n.clamp(2, 6)).await;
        house.gate.let_one_end();
        house.becomes(job, started[n - 1], OccurrenceStatus::Completed).await;
    }
    assert_eq!(house.gate.most(), 2);
    house.close().await;
}

#[tokio::test]
async fn jobs_that_share_a_key_share_its_limit() {
    let house = House::open().await;
    let key_limit = Some(KeyLimit { key: "warehouse".into(), limit: 1 });
    let rules = Rules { key_limit, ..Rules::default() };
    let now = house.clock.now();
    let mut jobs = Vec::new();
    for _ in 0..3 {
        jobs.push(house.job(Schedule::Once { at: now }, rules.clone(), Some(now)).await);
    }
    let free = house.job(Schedule::Once { at: now }, Rules::default(), Some(now)).await;
    for job in &jobs {
        house.occurrences(*job, 1).await;
    }
    house.occurrences(free, 1).await;
    // The one without the key runs beside whichever of the three was first.
    house.starts(2).await;
    for n in 3..=4 {
        house.gate.let_one_end();
        house.gate.let_one_end();
        house.starts(n).await;
    }
    assert!(house.gate.most() <= 2, "one with the key and one without: {}", house.gate.most());
    house.close().await;
}

#[tokio::test]
async fn the_most_urgent_are_fired_first_however_long_the_others_wait() {
    let (store, ()) = milvaion_test_support::database().await;
    let clock = milvaion_server::clock::Clock::system();
    let now = clock.now();
    for n in 0..40 {
        let priority = if n == 39 { 5 } else { 1 + (n % 3) as u8 };
        let job = milvaion_api::request::JobInput { priority, ..milvaion_test_support::job(Schedule::every(60)) };
        let due = now - Duration::seconds(100 - n);
        let edit = milvaion_server::store::jobs::Edit { by: "test", at: now };
        store.insert_job(clock.job_id(), &job, Some(due), edit).await.expect("stored");
    }
    let due = store.due(now, 10).await.expect("answered");
    let priorities: Vec<i16> = due.iter().map(|job| job.priority).collect();
    assert_eq!(priorities, [5, 3, 3, 3, 3, 3, 3, 3, 3, 3]);
    assert!(due[1..].windows(2).all(|pair| pair[0].next_fire_at <= pair[1].next_fire_at));
}
