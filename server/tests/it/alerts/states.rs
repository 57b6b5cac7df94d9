//! Alerts about conditions that last: they fire while the condition is found, and are resolved when it is not.

use milvaion_api::alerts::AlertCondition;
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_server::{
    background::task_alerts::TaskAlerts,
    engine::{Service, status::ServiceStatuses},
};
use milvaion_test_support::{database::TestConnection, messages, runs};

use super::harness::AlertHarness;

#[tokio::test]
async fn job_type_without_a_live_worker_fires_until_one_registers() {
    let mut harness = AlertHarness::new().await;
    harness.rule(AlertCondition::NoLiveWorker { seconds: 60 }, &[]).await;
    harness.rule(AlertCondition::LateStart { seconds: 90 }, &[]).await;
    let job = harness.job().await;
    let id = runs::insert_manual(&harness.store, &harness.clock, job).await;
    harness.advance(59);
    assert_eq!(harness.tick().await.changes.started, 0);
    harness.advance(2);
    harness.tick().await;
    let alert = harness.firing().await;
    assert_eq!(alert.occurrence_id, Some(id));
    let (worker, job_type) = (alert.title.contains("worker"), alert.title.contains("job type"));
    assert!(worker && job_type, "{}", alert.title);
    harness.advance(30);
    assert_eq!(harness.tick().await.changes.started, 1);
    assert_eq!(harness.alerts(true).await.iter().map(|alert| alert.count).collect::<Vec<_>>(), [1, 1]);

    let stored = harness.store.job(job).await.expect("read").expect("it exists").definition;
    let mut hello = messages::hello("w-1", harness.now());
    hello.worker_id.clone_from(&stored.worker_id);
    hello.job_types = vec![messages::job_type(&stored.job_type)];
    harness.store.store_hellos(&[hello], harness.now()).await.expect("stored");
    harness.report(id, OccurrenceStatus::Running).await;
    assert_eq!(harness.tick().await.changes.resolved, 2);
}

#[tokio::test]
async fn queue_is_old_while_its_oldest_message_waits() {
    let mut harness = AlertHarness::new().await;
    harness.rule(AlertCondition::QueueAge { seconds: 300 }, &[]).await;
    let job = harness.job().await;
    let id = runs::insert_manual(&harness.store, &harness.clock, job).await;
    harness.advance(400);
    assert_eq!(harness.tick().await.changes.started, 0, "an unsent message is in no queue");
    harness.store.mark_published(&[runs::confirmed(id, 1)], false, harness.now()).await.expect("marked");
    harness.advance(301);
    assert_eq!(harness.tick().await.changes.started, 1);
    harness.report(id, OccurrenceStatus::Running).await;
    assert_eq!(harness.tick().await.changes.resolved, 1);
}

#[tokio::test]
async fn run_is_compared_with_the_median_of_its_job() {
    let mut harness = AlertHarness::new().await;
    harness.rule(AlertCondition::LongRun { times_median: Some(3), limit_seconds: None }, &[]).await;
    let job = harness.job().await;
    for _ in 0..5 {
        let id = runs::insert_manual(&harness.store, &harness.clock, job).await;
        harness.report(id, OccurrenceStatus::Running).await;
        harness.advance(20);
        let report = milvaion_protocol::message::StatusReport {
            duration_ms: Some(20_000),
            ..milvaion_protocol::message::StatusReport::new(id, 1, "w-1", OccurrenceStatus::Completed, harness.now())
        };
        assert_eq!(runs::report(&harness.store, &harness.clock, vec![report]).await, 1);
    }
    let long = runs::insert_manual(&harness.store, &harness.clock, job).await;
    harness.report(long, OccurrenceStatus::Running).await;
    harness.advance(59);
    assert_eq!(harness.tick().await.changes.started, 0);
    harness.advance(2);
    harness.tick().await;
    let alert = harness.firing().await;
    assert_eq!((alert.job_id, alert.occurrence_id), (Some(job), Some(long)));
    assert!(alert.detail.ends_with("The median of its runs is 20 s."), "{}", alert.detail);
    harness.report(long, OccurrenceStatus::Completed).await;
    harness.tick().await;
    assert_eq!(harness.resolutions().await, ["The condition is over."]);
}

#[tokio::test]
async fn failure_rate_is_computed_within_its_window() {
    let mut harness = AlertHarness::new().await;
    let condition = AlertCondition::FailureRate { percent: 50, window_minutes: 10, minimum_runs: 4 };
    harness.rule(condition, &[]).await;
    let job = harness.job().await;
    harness.ended(job, OccurrenceStatus::Completed).await;
    harness.ended(job, OccurrenceStatus::Completed).await;
    harness.ended(job, OccurrenceStatus::Failed).await;
    assert_eq!(harness.tick().await.changes.started, 0);
    harness.ended(job, OccurrenceStatus::TimedOut).await;
    harness.tick().await;
    assert_eq!(harness.firing().await.detail, "2 of 4 occurrences failed within 10 min: 50%.");
    harness.advance(11 * 60);
    assert_eq!(harness.tick().await.changes.resolved, 1);
}

#[tokio::test]
async fn instance_is_gone_until_another_one_replaces_it() {
    let mut harness = AlertHarness::new().await;
    harness.rule(AlertCondition::WorkerGone {}, &[]).await;
    let hello = messages::hello("w-1", harness.now());
    harness.store.store_hellos(std::slice::from_ref(&hello), harness.now()).await.expect("stored");
    harness.store.store_hellos(&[messages::hello("w-2", harness.now())], harness.now()).await.expect("stored");
    harness.store.store_goodbyes(&["w-2".to_owned()], harness.now()).await.expect("stored");
    harness.advance(10);
    assert_eq!(harness.tick().await.changes.started, 0);
    harness.advance(10);
    harness.tick().await;
    assert!(harness.firing().await.title.starts_with("Instance w-1 of worker "));
    harness.store.store_hellos(&[messages::hello("w-3", harness.now())], harness.now()).await.expect("stored");
    assert_eq!(harness.tick().await.changes.resolved, 1);
}

#[tokio::test]
async fn unhealthy_task_fires_until_no_server_reports_it() {
    let mut harness = AlertHarness::new().await;
    let rule = harness.rule(AlertCondition::ServiceUnhealthy {}, &[]).await;
    let services = ServiceStatuses::default();
    services.record_panic("vacuum", "it panicked: boom");
    let mut reporter = TaskAlerts {
        store: harness.store.clone(),
        clock: harness.clock.clone(),
        hub: harness.hub.clone(),
        services: services.clone(),
        server: "server-1".into(),
    };
    for _ in 0..3 {
        assert_eq!(reporter.tick().await.expect("the tick succeeds"), 1);
        harness.advance(60);
        assert_eq!(harness.tick().await.changes.resolved, 0);
    }
    let alert = harness.firing().await;
    assert_eq!((alert.count, alert.detail.as_str()), (1, "it panicked: boom"));
    assert_eq!(alert.title, "Background task vacuum of server server-1 does not work");
    harness.advance(61);
    assert_eq!(harness.tick().await.changes.resolved, 1);

    // A tick examines 500 alerts, so those that still fire do not keep the ones behind them from being resolved.
    let mut connection = TestConnection::open(&harness.url).await;
    let insert = |key: &str, count: i32, last_at: &str| {
        format!(
            "INSERT INTO alert_states (id, rule_id, group_key, title, first_at, last_at)
             SELECT gen_random_uuid(), '{rule}', '{key}' || n, 'Test', {last_at}, {last_at}
               FROM generate_series(1, {count}) n"
        )
    };
    connection.execute(insert("a", 600, "now() + interval '1 hour'")).await;
    connection.execute(insert("b", 100, "now() - interval '1 hour'")).await;
    assert_eq!(harness.tick().await.changes.resolved, 0);
    assert_eq!(harness.tick().await.changes.resolved, 100);

    // A step that fails stops no other.
    connection.execute(insert("0", 1, "now() - interval '1 hour'")).await;
    let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$";
    connection.execute(refuse).await;
    connection.execute("CREATE TRIGGER refuses BEFORE DELETE ON alert_events EXECUTE FUNCTION refuse()").await;
    let error = harness.evaluator.tick().await.expect_err("a step fails").to_string();
    assert!(error.ends_with(": events"), "{error}");
    let resolved = "SELECT count(*) FROM alert_states WHERE group_key = '01' AND resolved_at IS NOT NULL";
    assert_eq!(connection.count(resolved).await, 1);
}

#[tokio::test]
async fn two_servers_that_evaluate_at_once_fire_an_alert_once() {
    let harness = AlertHarness::new().await;
    harness.rule(AlertCondition::OccurrenceFailed { causes: vec![] }, &[]).await;
    harness.rule(AlertCondition::LateStart { seconds: 1 }, &[]).await;
    let job = harness.job().await;
    for _ in 0..20 {
        harness.ended(job, OccurrenceStatus::Failed).await;
    }
    runs::insert_manual(&harness.store, &harness.clock, job).await;
    harness.advance(5);
    let tick = async || {
        let mut evaluator = milvaion_server::background::alerts::AlertEvaluator {
            store: harness.store.clone(),
            clock: harness.clock.clone(),
            hub: harness.hub.clone(),
            looked_at: None,
            examined: milvaion_server::store::alerts::states::AlertPosition::default(),
        };
        evaluator.tick().await.expect("the tick succeeds").changes.started
    };
    let (first, second) = tokio::join!(tick(), tick());
    assert_eq!(first + second, 2);
    let mut connection = TestConnection::open(&harness.url).await;
    assert_eq!(connection.count("SELECT sum(count)::bigint FROM alert_states").await, 21);
}
