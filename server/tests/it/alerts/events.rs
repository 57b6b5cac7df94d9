//! Alerts about events: each is written with the event itself, counted once, and resolved by what ends it.

use milvaion_api::alerts::{AlertCondition, AlertRule};
use milvaion_protocol::{id::DeadLetterId, status::OccurrenceStatus};
use milvaion_schedule::schedule::Schedule;
use milvaion_server::store::{create::NewRun, dead_letters::NewDeadLetter, jobs::AuditStamp, lost_runs::LostRunUpdate};
use milvaion_test_support::{database::TestConnection, jobs, runs};

use super::harness::AlertHarness;

fn failed() -> AlertCondition {
    AlertCondition::OccurrenceFailed { causes: vec![] }
}

#[tokio::test]
async fn failures_of_a_job_are_one_alert_with_a_count() {
    let mut harness = AlertHarness::new().await;
    harness.rule(failed(), &[]).await;
    let (job, other) = (harness.job().await, harness.job().await);
    for _ in 0..3 {
        harness.ended(job, OccurrenceStatus::Failed).await;
    }
    let last = harness.ended(job, OccurrenceStatus::Failed).await;
    harness.ended(other, OccurrenceStatus::Completed).await;
    let report = harness.tick().await;
    assert_eq!((report.changes.events, report.changes.started, report.messages), (4, 1, 0));
    let alert = harness.firing().await;
    assert_eq!((alert.count, alert.job_id, alert.occurrence_id), (4, Some(job), Some(last)));
    assert!(alert.detail.contains("boom"), "{}", alert.detail);
    harness.ended(job, OccurrenceStatus::Failed).await;
    assert_eq!(harness.tick().await.changes.started, 0);
    assert_eq!(harness.firing().await.count, 5);
    assert_eq!(harness.store.firing_alerts().await.expect("read").critical, 1);
}

#[tokio::test]
async fn failure_is_resolved_by_a_completed_run_or_by_a_user() {
    let mut harness = AlertHarness::new().await;
    harness.rule(failed(), &[]).await;
    let (repaired, settled) = (harness.job().await, harness.job().await);
    harness.ended(repaired, OccurrenceStatus::Failed).await;
    let failure = harness.ended(settled, OccurrenceStatus::Failed).await;
    assert_eq!(harness.tick().await.changes.started, 2);
    harness.advance(1);
    harness.ended(repaired, OccurrenceStatus::Completed).await;
    let stamp = AuditStamp { by: "ana", at: harness.now(), address: None };
    harness.store.resolve_failures(&[failure], Some("known"), stamp).await.expect("resolved");
    assert_eq!(harness.tick().await.changes.resolved, 2);
    let mut reasons = harness.resolutions().await;
    reasons.sort();
    assert_eq!(reasons, ["An occurrence of the job has completed.", "The failures are resolved."]);
    harness.ended(repaired, OccurrenceStatus::Failed).await;
    assert_eq!(harness.tick().await.changes.started, 1, "a new episode is a new alert");
}

#[tokio::test]
async fn failure_is_resolved_by_an_older_run_that_completes_later() {
    let mut harness = AlertHarness::new().await;
    harness.rule(failed(), &[]).await;
    let job = harness.job().await;
    let long = runs::insert_manual(&harness.store, &harness.clock, job).await;
    // Ids of a later time are greater.
    harness.advance(1);
    for _ in 0..51 {
        harness.ended(job, OccurrenceStatus::Failed).await;
    }
    assert_eq!(harness.tick().await.changes.started, 1);
    harness.advance(1);
    harness.report(long, OccurrenceStatus::Completed).await;
    assert_eq!(harness.tick().await.changes.resolved, 1);
    assert_eq!(harness.resolutions().await, ["An occurrence of the job has completed."]);
}

#[tokio::test]
async fn rule_applies_to_its_jobs_only() {
    let mut harness = AlertHarness::new().await;
    let (watched, other) = (harness.job().await, harness.job().await);
    let id = harness.rule(failed(), &[]).await;
    let row = harness.store.alert_rule(id).await.expect("read").expect("it exists");
    let rule = AlertRule { jobs: vec![watched.to_string()], ..row.definition };
    harness.store.save_alert_rule(id, Some(1), &rule, &[], &harness.entry("alert_rule.update")).await.expect("saved");
    harness.ended(other, OccurrenceStatus::Failed).await;
    harness.ended(watched, OccurrenceStatus::TimedOut).await;
    harness.tick().await;
    let alert = harness.firing().await;
    assert_eq!(alert.job_id, Some(watched));
    assert!(alert.title.ends_with("exceeded its timeout"), "{}", alert.title);
}

#[tokio::test]
async fn lost_run_and_misfire_are_resolved_when_quiet() {
    let mut harness = AlertHarness::new().await;
    harness.rule(AlertCondition::LostRun {}, &[]).await;
    harness.rule(AlertCondition::Misfire {}, &[]).await;
    let job = harness.job().await;
    let id = runs::insert_manual(&harness.store, &harness.clock, job).await;
    harness.report(id, OccurrenceStatus::Running).await;
    let lost = LostRunUpdate {
        id,
        attempt: 1,
        was: OccurrenceStatus::Running,
        last_seen_at: Some(harness.now()),
        status: OccurrenceStatus::Queued,
        note: "No heartbeat".into(),
        cause: None,
        is_quarantined: false,
        counts_as_requeue: true,
    };
    let updated = harness.store.update_lost_runs(&[lost], None, harness.now()).await.expect("updated");
    assert_eq!(updated.rows.len(), 1);
    let due = harness.now() - chrono::Duration::minutes(2);
    let late = jobs::insert(&harness.store, &harness.clock, Schedule::every(3_600), Some(due)).await;
    let fire =
        NewRun { job_id: late, version: 1, due: Some(due), id: harness.clock.occurrence_id(), ..NewRun::default() };
    harness.store.create_scheduled_runs(&[fire], None, harness.now()).await.expect("created");
    assert_eq!(harness.tick().await.changes.started, 2);
    harness.advance(14 * 60);
    assert_eq!(harness.tick().await.changes.resolved, 0);
    harness.advance(2 * 60);
    assert_eq!(harness.tick().await.changes.resolved, 2);
}

#[tokio::test]
async fn due_time_within_the_grace_is_no_misfire() {
    let mut harness = AlertHarness::new().await;
    harness.rule(AlertCondition::Misfire {}, &[]).await;
    let due = harness.now() - chrono::Duration::seconds(50);
    let job = jobs::insert(&harness.store, &harness.clock, Schedule::every(3_600), Some(due)).await;
    let occurrence_id = harness.clock.occurrence_id();
    let fire = NewRun { job_id: job, version: 1, due: Some(due), id: occurrence_id, ..NewRun::default() };
    harness.store.create_scheduled_runs(&[fire], None, harness.now()).await.expect("created");
    assert_eq!(harness.tick().await.changes.events, 0);
}

#[tokio::test]
async fn dead_letter_is_counted_once_and_resolved_with_it() {
    let mut harness = AlertHarness::new().await;
    harness.rule(AlertCondition::DeadLetter {}, &[]).await;
    let id = DeadLetterId::from_parts(harness.now(), [1; 10]);
    let letter = NewDeadLetter::new(id, "milvaion.status".into(), serde_json::json!({}), &[1], "not JSON");
    for id in [letter.id, DeadLetterId::from_parts(harness.now(), [2; 10])] {
        let letter = NewDeadLetter { id, ..letter.clone() };
        harness.store.insert_dead_letter(&letter, harness.now()).await.expect("stored");
    }
    harness.tick().await;
    let alert = harness.firing().await;
    assert_eq!((alert.count, alert.title.as_str()), (1, "A message from milvaion.status became a dead letter"));
    let stamp = AuditStamp { by: "ana", at: harness.now(), address: None };
    harness.store.resolve_dead_letters(&[letter.id], Some("seen"), stamp).await.expect("resolved");
    harness.tick().await;
    assert_eq!(harness.resolutions().await, ["The dead letters are resolved."]);
}

#[tokio::test]
async fn fresh_installation_has_rules_that_show_and_send_nothing() {
    let mut harness = AlertHarness::with_default_rules().await;
    let rules = harness.store.alert_rules().await.expect("read");
    assert_eq!(rules.len(), 12);
    for rule in &rules {
        assert_eq!(rule.definition.check(), Ok(()), "{rule:?}");
        assert!(rule.definition.is_enabled && rule.definition.channels.is_empty(), "{rule:?}");
    }
    let job = harness.job().await;
    harness.ended(job, OccurrenceStatus::Failed).await;
    let report = harness.tick().await;
    assert_eq!((report.changes.started, report.messages), (1, 0));
    assert_eq!(harness.store.firing_alerts().await.expect("read").total(), 1);
}

#[tokio::test]
async fn alert_of_a_rule_that_is_switched_off_is_resolved() {
    let mut harness = AlertHarness::new().await;
    let id = harness.rule(failed(), &[]).await;
    let job = harness.job().await;
    harness.ended(job, OccurrenceStatus::Failed).await;
    harness.tick().await;
    let row = harness.store.alert_rule(id).await.expect("read").expect("it exists");
    let rule = AlertRule { is_enabled: false, ..row.definition };
    harness.store.save_alert_rule(id, Some(1), &rule, &[], &harness.entry("alert_rule.update")).await.expect("saved");
    harness.tick().await;
    assert_eq!(harness.resolutions().await, ["The rule was switched off."]);
}

#[tokio::test]
async fn rule_has_a_bounded_number_of_firing_alerts() {
    let mut harness = AlertHarness::new().await;
    harness.rule(failed(), &[]).await;
    let mut connection = TestConnection::open(&harness.url).await;
    connection
        .execute(
            "INSERT INTO alert_events (kind, at, job_id, job_name, cause)
             SELECT 'occurrence_failed', now(), gen_random_uuid(), 'job ' || n, 'failed' FROM generate_series(1, 1200) n",
        )
        .await;
    assert_eq!(harness.tick().await.changes.started, 1_001);
    let others = "SELECT count FROM alert_states WHERE group_key = 'others'";
    assert_eq!(connection.count(others).await, 200);
    // The jobs do not exist, so all alerts about them are over.
    harness.tick().await;
    assert_eq!(connection.count("SELECT count(*) FROM alert_states WHERE resolved_at IS NULL").await, 1);
}
