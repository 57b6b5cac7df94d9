//! Auto-disable: a job whose runs keep failing is disabled once, and enabled again after the rule's cool-down.

use chrono::{DateTime, Duration, Utc};
use milvaion_api::requests::JobInput;
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::StatusReport,
    status::OccurrenceStatus,
};
use milvaion_schedule::{
    rules::{AutoDisable, Rules},
    schedule::Schedule,
};
use milvaion_server::{
    background::auto_disable::{AutoDisabler, LastLook},
    config::ServerConfig,
    domain::transition::fold,
    engine::Service,
    lifecycle::Server,
    store::{create::NewRun, jobs::StoredJob},
};
use milvaion_test_support::{database::TestConnection, jobs, server_env, wait};

const AUTO_DISABLE_RULE: AutoDisable = AutoDisable { threshold: 3, window_seconds: 600, cool_down_seconds: None };

/// Starts a server whose own auto-disable task has had its first tick: for some seconds it does not interfere.
async fn harness() -> (ServerConfig, Server) {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    wait::eventually("the first tick", async || server.services.since_last_tick(AutoDisabler::NAME)).await;
    (config, server)
}

async fn job(server: &Server, rule: Option<AutoDisable>) -> JobId {
    let rules = Rules { auto_disable: rule, ..Rules::default() };
    let job = JobInput { rules, ..jobs::echo_job(Schedule::every(3_600)) };
    jobs::insert_job(&server.store, &server.clock, &job, Some(server.clock.now() + Duration::hours(1))).await
}

fn auto_disabler(server: &Server, default_rule: Option<AutoDisable>) -> AutoDisabler {
    AutoDisabler { jobs: server.jobs.clone(), default_rule, last_look: LastLook::default() }
}

/// Creates a run that has ended with a status, whose report is applied `copies` times.
async fn run(server: &Server, job_id: JobId, status: OccurrenceStatus, copies: usize) -> OccurrenceId {
    run_at(server, job_id, status, copies, server.clock.now()).await
}

/// Does the same for a worker whose clock reads `at`.
async fn run_at(
    server: &Server,
    job_id: JobId,
    status: OccurrenceStatus,
    copies: usize,
    at: DateTime<Utc>,
) -> OccurrenceId {
    let forced =
        NewRun { id: server.clock.occurrence_id(), job_id, by: "test".into(), force: true, ..NewRun::default() };
    let outcome = server.store.insert_manual_run(&forced, server.clock.now()).await.expect("the query succeeds");
    outcome.into_created().expect("it is created");
    let report = StatusReport { exception: Some("boom".into()), ..StatusReport::new(forced.id, 1, "w-1", status, at) };
    for _ in 0..copies {
        server.store.apply(&fold(vec![report.clone()]), server.clock.now()).await.expect("the query succeeds");
    }
    forced.id
}

async fn stored(server: &Server, id: JobId) -> StoredJob {
    server.store.job(id).await.expect("the query succeeds").expect("it exists")
}

/// Returns the auto-disable actions in a job's audit log, the newest first.
async fn audited_actions(server: &Server, id: JobId) -> Vec<String> {
    let entries = server.store.audit_entries(Some(&format!("job:{id}")), 50).await.expect("the query succeeds");
    entries.into_iter().map(|entry| entry.action).filter(|action| action.contains("auto")).collect()
}

#[tokio::test]
async fn job_that_cannot_be_read_does_not_protect_the_others() {
    let (config, server) = harness().await;
    let (unreadable, failing) =
        (job(&server, Some(AUTO_DISABLE_RULE)).await, job(&server, Some(AUTO_DISABLE_RULE)).await);
    for id in [unreadable, failing] {
        for _ in 0..3 {
            run(&server, id, OccurrenceStatus::Failed, 1).await;
        }
    }
    let mut connection = TestConnection::open(&config.database.url).await;
    connection.execute(format!("UPDATE jobs SET schedule = '{{\"kind\": \"every\"}}' WHERE id = '{unreadable}'")).await;
    assert_eq!(auto_disabler(&server, None).tick().await.expect("the tick succeeds").disabled, [failing]);
    server.stop().await;
}

#[tokio::test]
async fn consecutive_failures_disable_a_job() {
    let (_config, server) = harness().await;
    let id = job(&server, Some(AUTO_DISABLE_RULE)).await;
    let mut task = auto_disabler(&server, None);
    run(&server, id, OccurrenceStatus::Failed, 5).await;
    run(&server, id, OccurrenceStatus::TimedOut, 5).await;
    assert_eq!(task.tick().await.expect("the tick succeeds").disabled, [], "ten reports, two failures");
    run(&server, id, OccurrenceStatus::Cancelled, 1).await;
    run(&server, id, OccurrenceStatus::Failed, 2).await;
    assert_eq!(task.tick().await.expect("the tick succeeds").disabled, [id]);
    let job = stored(&server, id).await;
    assert_eq!((job.definition.is_active, job.next_fire_at, job.version), (false, None, 2));
    assert_eq!(job.paused_reason.as_deref(), Some("Disabled automatically: its last 3 runs failed within 10 minutes."));
    assert!(job.auto_disabled_at.is_some());
    assert_eq!(audited_actions(&server, id).await, ["job.auto_disable"]);
    let version = server.store.version(id, 2).await.expect("the query succeeds").expect("it is stored");
    assert_eq!(version.definition["isActive"], false);
    assert_eq!(task.tick().await.expect("the tick succeeds").disabled, []);

    // After a manual resume, the old failures no longer count.
    server.jobs.set_active(&jobs::admin(), id, true, "").await.expect("resumed");
    run(&server, id, OccurrenceStatus::Failed, 1).await;
    run(&server, id, OccurrenceStatus::Failed, 1).await;
    assert_eq!(task.tick().await.expect("the tick succeeds").disabled, []);
    run(&server, id, OccurrenceStatus::Failed, 1).await;
    assert_eq!(task.tick().await.expect("the tick succeeds").disabled, [id]);
    server.stop().await;
}

#[tokio::test]
async fn success_resets_the_failure_count() {
    let (_config, server) = harness().await;
    let id = job(&server, Some(AUTO_DISABLE_RULE)).await;
    let mut task = auto_disabler(&server, None);
    for status in [
        OccurrenceStatus::Failed,
        OccurrenceStatus::Failed,
        OccurrenceStatus::Completed,
        OccurrenceStatus::Failed,
        OccurrenceStatus::Failed,
    ] {
        run(&server, id, status, 1).await;
        assert_eq!(task.tick().await.expect("the tick succeeds").disabled, []);
    }
    run(&server, id, OccurrenceStatus::Failed, 1).await;
    assert_eq!(task.tick().await.expect("the tick succeeds").disabled, [id]);
    server.stop().await;
}

#[tokio::test]
async fn job_without_a_rule_uses_the_default_rule() {
    let (_config, server) = harness().await;
    let (plain, own) =
        (job(&server, None).await, job(&server, Some(AutoDisable { threshold: 9, ..AUTO_DISABLE_RULE })).await);
    for id in [plain, own] {
        for _ in 0..3 {
            run(&server, id, OccurrenceStatus::Failed, 1).await;
        }
    }
    let report = auto_disabler(&server, None).tick().await.expect("the tick succeeds");
    assert_eq!((report.failing, report.disabled.len()), (1, 0), "a job without a rule is not checked");
    assert_eq!(
        auto_disabler(&server, Some(AUTO_DISABLE_RULE)).tick().await.expect("the tick succeeds").disabled,
        [plain]
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_servers_disable_a_job_once() {
    let (_config, server) = harness().await;
    let id = job(&server, Some(AUTO_DISABLE_RULE)).await;
    for _ in 0..3 {
        run(&server, id, OccurrenceStatus::Failed, 1).await;
    }
    let mut racing = Vec::new();
    for _ in 0..6 {
        let mut task = auto_disabler(&server, None);
        racing.push(tokio::spawn(async move { task.tick().await.expect("the tick succeeds").disabled.len() }));
    }
    let mut disabled = 0;
    for one in racing {
        disabled += one.await.expect("the task does not panic");
    }
    assert_eq!(disabled, 1);
    assert_eq!(audited_actions(&server, id).await, ["job.auto_disable"]);
    assert_eq!(stored(&server, id).await.version, 2);
    server.stop().await;
}

#[tokio::test]
async fn job_is_enabled_after_the_cool_down() {
    let (_config, server) = harness().await;
    let id = job(&server, Some(AutoDisable { cool_down_seconds: Some(1), ..AUTO_DISABLE_RULE })).await;
    for _ in 0..3 {
        run(&server, id, OccurrenceStatus::Failed, 1).await;
    }
    let mut task = auto_disabler(&server, None);
    let report = task.tick().await.expect("the tick succeeds");
    assert_eq!((report.disabled.as_slice(), report.enabled.as_slice()), ([id].as_slice(), [].as_slice()));
    let disabled_at = stored(&server, id).await.auto_disabled_at.expect("disabled");
    wait::eventually("the end of the cool-down", || async {
        (server.clock.now() > disabled_at + Duration::seconds(1)).then_some(())
    })
    .await;
    // The server's own task may do it first.
    task.tick().await.expect("the tick succeeds");
    let job = stored(&server, id).await;
    assert!(job.definition.is_active && job.auto_disabled_at.is_none() && job.paused_reason.is_none());
    assert!(job.next_fire_at.is_some_and(|next| next > server.clock.now() + Duration::minutes(59)));
    assert_eq!(audited_actions(&server, id).await, ["job.auto_enable", "job.auto_disable"]);
    assert_eq!(task.tick().await.expect("the tick succeeds").disabled, [], "the old failures do not count again");
    server.stop().await;
}

#[tokio::test]
async fn wrong_worker_clock_does_not_affect_the_count() {
    let (_config, server) = harness().await;
    let mut task = auto_disabler(&server, None);
    for off in [Duration::hours(-5), Duration::hours(5)] {
        let id = job(&server, Some(AUTO_DISABLE_RULE)).await;
        for _ in 0..3 {
            run_at(&server, id, OccurrenceStatus::Failed, 1, server.clock.now() + off).await;
        }
        assert_eq!(task.tick().await.expect("the tick succeeds").disabled, [id], "{off}");
        server.jobs.set_active(&jobs::admin(), id, true, "").await.expect("resumed");
        assert_eq!(task.tick().await.expect("the tick succeeds").disabled, [], "{off}");
    }
    server.stop().await;
}

#[tokio::test]
async fn manual_pause_overrides_the_cool_down() {
    let (_config, server) = harness().await;
    let id = job(&server, Some(AutoDisable { cool_down_seconds: Some(1), ..AUTO_DISABLE_RULE })).await;
    for _ in 0..3 {
        run(&server, id, OccurrenceStatus::Failed, 1).await;
    }
    let mut task = auto_disabler(&server, None);
    assert_eq!(task.tick().await.expect("the tick succeeds").disabled, [id]);
    let disabled_at = stored(&server, id).await.auto_disabled_at.expect("disabled");
    server.jobs.set_active(&jobs::admin(), id, false, "until Monday").await.expect("paused");
    wait::eventually("the end of the cool-down", || async {
        (server.clock.now() > disabled_at + Duration::seconds(1)).then_some(())
    })
    .await;
    assert_eq!(task.tick().await.expect("the tick succeeds").enabled, []);
    let job = stored(&server, id).await;
    assert!(!job.definition.is_active && job.auto_disabled_at.is_none());
    assert_eq!(job.paused_reason.as_deref(), Some("until Monday"));
    server.stop().await;
}
