//! What follows a failed attempt: another one, after a pause that costs nobody anything, until the retries are used up.

use chrono::Duration;
use milvaion_api::{
    failures::{FailureCause, FailureFilter},
    views::{OccurrenceRow, OccurrenceView},
};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::StatusReport,
    status::OccurrenceStatus,
};
use milvaion_schedule::{
    rules::{OverlapPolicy, Rules},
    schedule::Schedule,
};
use milvaion_server::{
    domain::{retry, transition::fold},
    store::{delayed::NextDelayedTimes, jobs::AuditStamp, manual_runs::NewManualRun},
};
use sqlx::{Connection, PgConnection};

use super::harness::{ManualClockHarness, RunEnding};
use milvaion_test_support::{self as common, stack};

fn rules(max_retries: u16) -> Rules {
    Rules { max_retries, base_retry_delay_seconds: 5, ..Rules::default() }
}

async fn once(harness: &ManualClockHarness, rules: Rules) -> JobId {
    let now = harness.clock.now();
    harness.job(Schedule::Once { at: now }, rules, Some(now)).await
}

async fn view(harness: &ManualClockHarness, id: OccurrenceId) -> OccurrenceView {
    let view = harness.server.store.occurrence(id, 100, harness.clock.now()).await.expect("answered");
    view.expect("there")
}

/// Waits until the attempt that follows waits, and answers for how long.
async fn waits(harness: &ManualClockHarness, job: JobId, id: OccurrenceId, attempt: i32) -> Duration {
    stack::eventually("the next attempt waits", || async {
        let row = harness.rows(job).await.into_iter().find(|row| row.id == id && row.attempt == attempt)?;
        row.waits_until.map(|until| until - harness.clock.now())
    })
    .await
}

#[tokio::test]
async fn a_failed_attempt_is_repeated_after_a_pause_that_doubles_until_no_retry_is_left() {
    let harness = ManualClockHarness::open().await;
    let job = once(&harness, rules(2)).await;
    let id = harness.starts(1).await[0];
    for (attempt, pause) in [(2, 5), (3, 10)] {
        harness.gate.end_one(RunEnding::Fails);
        assert_eq!(waits(&harness, job, id, attempt).await, Duration::seconds(pause));
        let waiting = view(&harness, id).await;
        assert_eq!(waiting.row.status, OccurrenceStatus::Queued);
        assert_eq!(waiting.row.note.as_deref(), Some("the line is dead"));
        assert_eq!((waiting.published_at, waiting.row.instance_id.as_deref()), (None, None));
        // Not a moment too soon.
        harness.pass(Duration::milliseconds(pause * 1_000 - 1)).await;
        assert!(harness.server.store.release_delayed(harness.clock.now(), 10).await.expect("answered").is_empty());
        harness.pass(Duration::milliseconds(1)).await;
        assert_eq!(harness.starts(attempt as usize).await.last(), Some(&id));
    }
    harness.gate.end_one(RunEnding::Fails);
    harness.becomes(job, id, OccurrenceStatus::Failed).await;

    let view = view(&harness, id).await;
    let life: Vec<_> = view.changes.iter().map(|step| (step.status, step.attempt)).collect();
    use OccurrenceStatus::{Failed, Queued, Running};
    let expected = [(1, Queued), (1, Running), (1, Failed), (2, Queued), (2, Running), (2, Failed), (3, Queued)];
    let expected = expected.into_iter().chain([(3, Running), (3, Failed)]);
    assert_eq!(life, expected.map(|(attempt, status)| (status, attempt)).collect::<Vec<_>>());
    assert_eq!(view.changes[3].note.as_deref(), Some("Retry 1 of 2 in 5 s"));
    // Every attempt's failure stands in the log.
    stack::eventually("three lines", || async {
        let lines = harness.server.store.log_before(id, i64::MAX, 100).await.expect("answered");
        (lines.iter().filter(|line| line.message == "the line is dead").count() == 3).then_some(())
    })
    .await;
    let failures = harness.server.store.failures(&FailureFilter::default()).await.expect("answered").rows;
    assert_eq!(failures.iter().map(|row| (row.cause, row.attempt)).collect::<Vec<_>>(), [(FailureCause::Exhausted, 3)]);
    harness.close().await;
}

#[tokio::test]
async fn a_retry_comes_sooner_by_the_jitter_of_its_job_as_every_server_would_draw_it() {
    let harness = ManualClockHarness::open().await;
    let job = once(&harness, Rules { retry_jitter_percent: 50, ..rules(1) }).await;
    let id = harness.starts(1).await[0];
    harness.gate.end_one(RunEnding::Fails);
    let drawn = retry::jittered(std::time::Duration::from_secs(5), 50, id, 1);
    assert_eq!(waits(&harness, job, id, 2).await.to_std().expect("to come"), drawn);
    harness.pass(Duration::seconds(5)).await;
    harness.starts(2).await;
    harness.gate.let_one_end();
    harness.becomes(job, id, OccurrenceStatus::Completed).await;
    harness.close().await;
}

#[tokio::test]
async fn one_that_goes_well_in_the_end_is_completed_and_no_failure() {
    let harness = ManualClockHarness::open().await;
    let job = once(&harness, rules(1)).await;
    let id = harness.starts(1).await[0];
    harness.gate.end_one(RunEnding::Fails);
    waits(&harness, job, id, 2).await;
    harness.pass(Duration::seconds(5)).await;
    harness.starts(2).await;
    harness.gate.let_one_end();
    let row = harness.becomes(job, id, OccurrenceStatus::Completed).await;
    assert_eq!((row.attempt, row.note), (2, None));
    assert_eq!(view(&harness, id).await.exception, None, "what the first attempt failed with is history");
    assert!(harness.server.store.failures(&FailureFilter::default()).await.expect("answered").rows.is_empty());
    harness.close().await;
}

#[tokio::test]
async fn a_failure_that_another_attempt_would_meet_too_is_the_last() {
    let harness = ManualClockHarness::open().await;
    let job = once(&harness, rules(5)).await;
    let id = harness.starts(1).await[0];
    harness.gate.end_one(RunEnding::GivesUp);
    harness.becomes(job, id, OccurrenceStatus::Failed).await;
    let failures = harness.server.store.failures(&FailureFilter::default()).await.expect("answered").rows;
    assert_eq!(failures.iter().map(|row| row.cause).collect::<Vec<_>>(), [FailureCause::Permanent]);
    harness.close().await;
}

#[tokio::test]
async fn a_job_that_snoozes_uses_up_no_retry() {
    let harness = ManualClockHarness::open().await;
    let job = once(&harness, rules(0)).await;
    let id = harness.starts(1).await[0];
    for attempt in 2..=4 {
        harness.gate.end_one(RunEnding::Snoozes(90));
        assert_eq!(waits(&harness, job, id, attempt).await, Duration::seconds(90));
        harness.pass(Duration::seconds(90)).await;
        harness.starts(attempt as usize).await;
    }
    harness.gate.let_one_end();
    assert_eq!(harness.becomes(job, id, OccurrenceStatus::Completed).await.attempt, 4);
    harness.close().await;
}

#[tokio::test]
async fn what_waits_for_a_retry_can_be_cancelled_and_holds_up_the_next_of_a_job_that_takes_turns() {
    let harness = ManualClockHarness::open().await;
    let turns = Rules { overlap: OverlapPolicy::Queue, base_retry_delay_seconds: 300, ..rules(3) };
    let job = harness.job(Schedule::every(60), turns, Some(harness.clock.now())).await;
    let id = harness.starts(1).await[0];
    harness.gate.end_one(RunEnding::Fails);
    waits(&harness, job, id, 2).await;
    harness.pass(Duration::seconds(60)).await;
    let second = harness.occurrences(job, 2).await[1].id;
    // The second is made while the first still waits, and does not overtake it.
    assert!(harness.server.store.grant_slots(10).await.expect("answered").is_empty());
    let edit = AuditStamp { by: "ana", at: harness.clock.now() };
    harness.server.store.cancel(&[id], Some("not today"), edit).await.expect("answered");
    harness.server.jobs.activate_slot_granter.notify_one();
    assert_eq!(harness.starts(2).await[1], second, "the one that was cancelled never starts again");
    let row = harness.rows(job).await.into_iter().find(|row| row.id == id).expect("there");
    assert_eq!((row.status, row.waits_until), (OccurrenceStatus::Cancelled, None));
    assert!(
        harness
            .server
            .store
            .release_delayed(harness.clock.now() + Duration::days(1), 10)
            .await
            .expect("answered")
            .is_empty()
    );
    harness.close().await;
}

/// Fails `count` first attempts at the store, as the intake does.
async fn failed(
    store: &milvaion_server::store::Store,
    clock: &milvaion_server::clock::Clock,
    count: usize,
) -> Vec<OccurrenceId> {
    let job = milvaion_api::requests::JobInput { rules: rules(3), ..common::job(Schedule::every(60)) };
    let (job_id, now) = (clock.job_id(), clock.now());
    store.insert_job(job_id, &job, None, AuditStamp { by: "test", at: now }).await.expect("stored");
    let mut reports = Vec::new();
    for _ in 0..count {
        let asked = NewManualRun { id: clock.occurrence_id(), job_id, by: "ana".into(), ..NewManualRun::default() };
        let made = store.insert_manual_run(&asked, now).await.expect("answered").into_created().expect("made");
        reports.push(StatusReport {
            exception: Some("the line is dead".into()),
            duration_ms: Some(1),
            ..StatusReport::new(made.row.id, 1, "w-1", OccurrenceStatus::Failed, now)
        });
    }
    let mut changes = fold(reports);
    let asked: Vec<_> = changes.iter().map(|change| (change.occurrence_id, change.attempt)).collect();
    let standings = store.retry_contexts(&asked).await.expect("answered");
    for change in &mut changes {
        retry::decide(change, &standings[&change.occurrence_id], now);
    }
    let applied = store.apply(&changes, now).await.expect("answered");
    assert!(applied.has_delayed && applied.rows.len() == count);
    // Said a second time, it changes nothing: the attempt it is about is over.
    assert!(store.apply(&changes, now).await.expect("answered").rows.is_empty());
    applied.rows.into_iter().map(|row| row.id).collect()
}

#[tokio::test]
async fn a_thousand_that_wait_are_let_go_when_their_time_has_come_each_once() {
    let (store, ()) = common::database().await;
    let clock = milvaion_server::clock::Clock::system();
    let mut ids = failed(&store, &clock, 1_000).await;
    assert!(store.unsent_occurrences(clock.now() + Duration::days(1), &[], 10).await.expect("answered").is_empty());
    let until = store.next_delayed_times().await.expect("answered").plain.expect("they wait");
    assert!(store.release_delayed(until - Duration::milliseconds(1), 10).await.expect("answered").is_empty());
    // Two servers at once, as it happens when both wake for the same instant.
    let mut gone = Vec::new();
    loop {
        let (one, two) = tokio::join!(store.release_delayed(until, 300), store.release_delayed(until, 300));
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
    let edit = AuditStamp { by: "ana", at: clock.now() };
    store.pause_cluster("the warehouse moves", edit).await.expect("answered");
    assert!(store.release_delayed(later, 10).await.expect("answered").is_empty());
    assert_eq!(
        store.next_delayed_times().await.expect("answered"),
        NextDelayedTimes::default(),
        "there is nothing to wake up for"
    );
    store.resume_cluster(edit).await.expect("answered");
    assert_eq!(store.release_delayed(later, 10).await.expect("answered").len(), 3);
}

#[tokio::test]
async fn what_was_lost_too_often_begins_when_no_other_such_run_of_its_worker_has_just_begun() {
    let harness = ManualClockHarness::open().await;
    let jobs = [once(&harness, rules(1)).await, once(&harness, rules(1)).await];
    harness.starts(2).await;
    let mut connection = PgConnection::connect(&harness.config.database.url).await.expect("PostgreSQL answers");
    sqlx::query("UPDATE occurrences SET rescues = 3").execute(&mut connection).await.expect("set");
    // However the attempt ends, the next one takes its turn.
    while let Some(id) = harness.gate.end_one(RunEnding::Fails) {
        let job = view(&harness, id).await.row.job_id;
        waits(&harness, job, id, 2).await;
    }
    harness.pass(Duration::seconds(5)).await;
    let first = harness.starts(3).await[2];
    let waiting = |row: &OccurrenceRow| row.waits_until.is_some();
    let mut rows = harness.rows(jobs[0]).await;
    rows.extend(harness.rows(jobs[1]).await);
    assert_eq!(rows.iter().filter(|row| waiting(row)).count(), 1, "the other still waits");
    harness.gate.let_one_end();
    let second = harness.starts(4).await[3];
    assert_ne!(first, second);
    assert_eq!(harness.gate.most(), 2, "beside each other only before they were lost");
    harness.close().await;
}
