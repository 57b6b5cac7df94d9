//! What follows a failed attempt: another one, after a pause that costs nobody anything, until the retries are used up.

use chrono::Duration;
use milvaion_api::{
    failure::{Cause, FailureFilter},
    view::{OccurrenceRow, OccurrenceView},
};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::StatusReport,
    status::OccurrenceStatus,
};
use milvaion_schedule::{
    rules::{Overlap, Rules},
    schedule::Schedule,
};
use milvaion_server::{
    domain::{retry, transition::fold},
    store::{asked::Asked, jobs::Edit, waits::NextWaits},
};
use sqlx::{Connection, PgConnection};

use super::house::{Ending, House};
use milvaion_test_support::{self as common, stack};

fn rules(max_retries: u16) -> Rules {
    Rules { max_retries, base_retry_delay_seconds: 5, ..Rules::default() }
}

async fn once(house: &House, rules: Rules) -> JobId {
    let now = house.clock.now();
    house.job(Schedule::Once { at: now }, rules, Some(now)).await
}

async fn view(house: &House, id: OccurrenceId) -> OccurrenceView {
    let view = house.server.store.occurrence(id, 100, house.clock.now()).await.expect("answered");
    view.expect("there")
}

/// Waits until the attempt that follows waits, and answers for how long.
async fn waits(house: &House, job: JobId, id: OccurrenceId, attempt: i32) -> Duration {
    stack::eventually("the next attempt waits", || async {
        let row = house.rows(job).await.into_iter().find(|row| row.id == id && row.attempt == attempt)?;
        row.waits_until.map(|until| until - house.clock.now())
    })
    .await
}

#[tokio::test]
async fn a_failed_attempt_is_repeated_after_a_pause_that_doubles_until_no_retry_is_left() {
    let house = House::open().await;
    let job = once(&house, rules(2)).await;
    let id = house.starts(1).await[0];
    for (attempt, pause) in [(2, 5), (3, 10)] {
        house.gate.end_one(Ending::Fails);
        assert_eq!(waits(&house, job, id, attempt).await, Duration::seconds(pause));
        let waiting = view(&house, id).await;
        assert_eq!(waiting.row.status, OccurrenceStatus::Queued);
        assert_eq!(waiting.row.note.as_deref(), Some("the line is dead"));
        assert_eq!((waiting.published_at, waiting.row.instance_id.as_deref()), (None, None));
        // Not a moment too soon.
        house.pass(Duration::milliseconds(pause * 1_000 - 1)).await;
        assert!(house.server.store.let_go(house.clock.now(), 10).await.expect("answered").is_empty());
        house.pass(Duration::milliseconds(1)).await;
        assert_eq!(house.starts(attempt as usize).await.last(), Some(&id));
    }
    house.gate.end_one(Ending::Fails);
    house.becomes(job, id, OccurrenceStatus::Failed).await;

    let view = view(&house, id).await;
    let life: Vec<_> = view.changes.iter().map(|step| (step.status, step.attempt)).collect();
    use OccurrenceStatus::{Failed, Queued, Running};
    let expected = [(1, Queued), (1, Running), (1, Failed), (2, Queued), (2, Running), (2, Failed), (3, Queued)];
    let expected = expected.into_iter().chain([(3, Running), (3, Failed)]);
    assert_eq!(life, expected.map(|(attempt, status)| (status, attempt)).collect::<Vec<_>>());
    assert_eq!(view.changes[3].note.as_deref(), Some("Retry 1 of 2 in 5 s"));
    // Every attempt's failure stands in the log.
    stack::eventually("three lines", || async {
        let lines = house.server.store.log_before(id, i64::MAX, 100).await.expect("answered");
        (lines.iter().filter(|line| line.message == "the line is dead").count() == 3).then_some(())
    })
    .await;
    let failures = house.server.store.failures(&FailureFilter::default()).await.expect("answered").rows;
    assert_eq!(failures.iter().map(|row| (row.cause, row.attempt)).collect::<Vec<_>>(), [(Cause::Exhausted, 3)]);
    house.close().await;
}

#[tokio::test]
async fn a_retry_comes_sooner_by_the_jitter_of_its_job_as_every_server_would_draw_it() {
    let house = House::open().await;
    let job = once(&house, Rules { retry_jitter_percent: 50, ..rules(1) }).await;
    let id = house.starts(1).await[0];
    house.gate.end_one(Ending::Fails);
    let drawn = retry::jittered(std::time::Duration::from_secs(5), 50, id, 1);
    assert_eq!(waits(&house, job, id, 2).await.to_std().expect("to come"), drawn);
    house.pass(Duration::seconds(5)).await;
    house.starts(2).await;
    house.gate.let_one_end();
    house.becomes(job, id, OccurrenceStatus::Completed).await;
    house.close().await;
}

#[tokio::test]
async fn one_that_goes_well_in_the_end_is_completed_and_no_failure() {
    let house = House::open().await;
    let job = once(&house, rules(1)).await;
    let id = house.starts(1).await[0];
    house.gate.end_one(Ending::Fails);
    waits(&house, job, id, 2).await;
    house.pass(Duration::seconds(5)).await;
    house.starts(2).await;
    house.gate.let_one_end();
    let row = house.becomes(job, id, OccurrenceStatus::Completed).await;
    assert_eq!((row.attempt, row.note), (2, None));
    assert_eq!(view(&house, id).await.exception, None, "what the first attempt failed with is history");
    assert!(house.server.store.failures(&FailureFilter::default()).await.expect("answered").rows.is_empty());
    house.close().await;
}

#[tokio::test]
async fn a_failure_that_another_attempt_would_meet_too_is_the_last() {
    let house = House::open().await;
    let job = once(&house, rules(5)).await;
    let id = house.starts(1).await[0];
    house.gate.end_one(Ending::GivesUp);
    house.becomes(job, id, OccurrenceStatus::Failed).await;
    let failures = house.server.store.failures(&FailureFilter::default()).await.expect("answered").rows;
    assert_eq!(failures.iter().map(|row| row.cause).collect::<Vec<_>>(), [Cause::Permanent]);
    house.close().await;
}

#[tokio::test]
async fn a_job_that_snoozes_uses_up_no_retry() {
    let house = House::open().await;
    let job = once(&house, rules(0)).await;
    let id = house.starts(1).await[0];
    for attempt in 2..=4 {
        house.gate.end_one(Ending::Snoozes(90));
        assert_eq!(waits(&house, job, id, attempt).await, Duration::seconds(90));
        house.pass(Duration::seconds(90)).await;
        house.starts(attempt as usize).await;
    }
    house.gate.let_one_end();
    assert_eq!(house.becomes(job, id, OccurrenceStatus::Completed).await.attempt, 4);
    house.close().await;
}

#[tokio::test]
async fn what_waits_for_a_retry_can_be_cancelled_and_holds_up_the_next_of_a_job_that_takes_turns() {
    let house = House::open().await;
    let turns = Rules { overlap: Overlap::Queue, base_retry_delay_seconds: 300, ..rules(3) };
    let job = house.job(Schedule::every(60), turns, Some(house.clock.now())).await;
    let id = house.starts(1).await[0];
    house.gate.end_one(Ending::Fails);
    waits(&house, job, id, 2).await;
    house.pass(Duration::seconds(60)).await;
    let second = house.occurrences(job, 2).await[1].id;
    // The second is made while the first still waits, and does not overtake it.
    assert!(house.server.store.release(10).await.expect("answered").is_empty());
    let edit = Edit { by: "ana", at: house.clock.now() };
    house.server.store.cancel(&[id], Some("not today"), edit).await.expect("answered");
    house.server.jobs.release.notify_one();
    assert_eq!(house.starts(2).await[1], second, "the one that was cancelled never starts again");
    let row = house.rows(job).await.into_iter().find(|row| row.id == id).expect("there");
    assert_eq!((row.status, row.waits_until), (OccurrenceStatus::Cancelled, None));
    assert!(house.server.store.let_go(house.clock.now() + Duration::days(1), 10).await.expect("answered").is_empty());
    house.close().await;
}

/// Fails `count` first attempts at the store, as the intake does.
async fn failed(
    store: &milvaion_server::store::Store,
    clock: &milvaion_server::clock::Clock,
    count: usize,
) -> Vec<OccurrenceId> {
    let job = milvaion_api::request::JobInput { rules: rules(3), ..common::job(Schedule::every(60)) };
    let (job_id, now) = (clock.job_id(), clock.now());
    store.insert_job(job_id, &job, None, Edit { by: "test", at: now }).await.expect("stored");
    let mut reports = Vec::new();
    for _ in 0..count {
        let asked = Asked { id: clock.occurrence_id(), job_id, by: "ana".into(), ..Asked::default() };
        let made = store.make_asked(&asked, now).await.expect("answered").new_row().expect("made");
        reports.push(StatusReport {
            exception: Some("the line is dead".into()),
            duration_ms: Some(1),
            ..StatusReport::new(made.row.id, 1, "w-1", OccurrenceStatus::Failed, now)
        });
    }
    let mut changes = fold(reports);
    let asked: Vec<_> = changes.iter().map(|change| (change.occurrence_id, change.attempt)).collect();
    let standings = store.standings(&asked).await.expect("answered");
    for change in &mut changes {
        retry::decide(change, &standings[&change.occurrence_id], now);
    }
    let applied = store.apply(&changes, now).await.expect("answered");
    assert!(applied.waits && applied.rows.len() == count);
    // Said a second time, it changes nothing: the attempt it is about is over.
    assert!(store.apply(&changes, now).await.expect("answered").rows.is_empty());
    applied.rows.into_iter().map(|row| row.id).collect()
}

#[tokio::test]
async fn a_thousand_that_wait_are_let_go_when_their_time_has_come_each_once() {
    let (store, ()) = common::database().await;
    let clock = milvaion_server::clock::Clock::system();
    let mut ids = failed(&store, &clock, 1_000).await;
    assert!(store.unpublished(clock.now() + Duration::days(1), &[], 10).await.expect("answered").is_empty());
    let until = store.next_waits().await.expect("answered").plain.expect("they wait");
    assert!(store.let_go(until - Duration::milliseconds(1), 10).await.expect("answered").is_empty());
    // Two servers at once, as it happens when both wake for the same instant.
    let mut gone = Vec::new();
    loop {
        let (one, two) = tokio::join!(store.let_go(until, 300), store.let_go(until, 300));
        let (one, two) = (one.expect("answered"), two.expect("answered"));
        if one.is_empty() && two.is_empty() {
            break;
        }
        gone.extend(one.into_iter().chain(two));
    }
    assert!(gone.iter().all(|queued| (queued.attempt, queued.failures) == (2, 1)));
    let mut gone: Vec<_> = gone.into_iter().map(|queued| queued.id).collect();
    gone.sort();
    ids.sort();
    assert_eq!(gone, ids);
}

#[tokio::test]
async fn nothing_is_let_go_while_the_cluster_is_paused() {
    let (store, ()) = common::database().await;
    let clock = milvaion_server::clock::Clock::system();
    failed(&store, &clock, 3).await;
    let later = clock.now() + Duration::hours(1);
    let edit = Edit { by: "ana", at: clock.now() };
    store.pause_cluster("the warehouse moves", edit).await.expect("answered");
    assert!(store.let_go(later, 10).await.expect("answered").is_empty());
    assert_eq!(store.next_waits().await.expect("answered"), NextWaits::default(), "there is nothing to wake up for");
    store.resume_cluster(edit).await.expect("answered");
    assert_eq!(store.let_go(later, 10).await.expect("answered").len(), 3);
}

#[tokio::test]
async fn what_was_lost_too_often_begins_when_no_other_such_run_of_its_worker_has_just_begun() {
    let house = House::open().await;
    let jobs = [once(&house, rules(1)).await, once(&house, rules(1)).await];
    house.starts(2).await;
    let mut connection = PgConnection::connect(&house.config.database.url).await.expect("PostgreSQL answers");
    sqlx::query("UPDATE occurrences SET rescues = 3").execute(&mut connection).await.expect("set");
    // However the attempt ends, the next one takes its turn.
    while let Some(id) = house.gate.end_one(Ending::Fails) {
        let job = view(&house, id).await.row.job_id;
        waits(&house, job, id, 2).await;
    }
    house.pass(Duration::seconds(5)).await;
    let first = house.starts(3).await[2];
    let waiting = |row: &OccurrenceRow| row.waits_until.is_some();
    let mut rows = house.rows(jobs[0]).await;
    rows.extend(house.rows(jobs[1]).await);
    assert_eq!(rows.iter().filter(|row| waiting(row)).count(), 1, "the other still waits");
    house.gate.let_one_end();
    let second = house.starts(4).await[3];
    assert_ne!(first, second);
    assert_eq!(house.gate.most(), 2, "beside each other only before they were lost");
    house.close().await;
}
