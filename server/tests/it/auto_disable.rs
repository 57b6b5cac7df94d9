//! A job that keeps failing is disabled: by what has ended, once, and for as long as its rule says.

use std::time::Duration as Pause;

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
    background::{BackgroundTask, auto_disable::AutoDisabler},
    config::ServerConfig,
    domain::transition::fold,
    lifecycle::Server,
    live::alerts::{Alert, AlertSender},
    store::{
        jobs::{AuditStamp, StoredJob},
        manual_runs::NewManualRun,
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use milvaion_test_support::{self as common, stack};

const AUTO_DISABLE_RULE: AutoDisable = AutoDisable { threshold: 3, window_seconds: 600, cool_down_seconds: None };

/// A server whose own breaker the tests need not share with: it has looked once, and nothing wakes it for some seconds.
async fn harness() -> (ServerConfig, Server) {
    let config = stack::config().await;
    let server = stack::server(&config).await;
    stack::eventually("its own breaker's first look", async || {
        server.task_statuses.since_last_tick(AutoDisabler::NAME)
    })
    .await;
    (config, server)
}

async fn job(server: &Server, rule: Option<AutoDisable>) -> JobId {
    let id = server.clock.job_id();
    let rules = Rules { auto_disable: rule, ..Rules::default() };
    let job = JobInput { rules, ..common::job(Schedule::every(3_600)) };
    let (due, edit) = (server.clock.now() + Duration::hours(1), AuditStamp { by: "test", at: server.clock.now() });
    server.store.insert_job(id, &job, Some(due), edit).await.expect("stored");
    id
}

fn breaker(server: &Server, usual: Option<AutoDisable>) -> AutoDisabler {
    AutoDisabler { jobs: server.jobs.clone(), alerts: AlertSender::new(None).0, default_rule: usual }
}

/// A run that ends like this; its report comes `copies` times.
async fn run(server: &Server, job_id: JobId, status: OccurrenceStatus, copies: usize) -> OccurrenceId {
    run_at(server, job_id, status, copies, server.clock.now()).await
}

/// The same by a worker whose clock says `at`.
async fn run_at(
    server: &Server,
    job_id: JobId,
    status: OccurrenceStatus,
    copies: usize,
    at: DateTime<Utc>,
) -> OccurrenceId {
    let asked = NewManualRun {
        id: server.clock.occurrence_id(),
        job_id,
        by: "test".into(),
        force: true,
        ..NewManualRun::default()
    };
    server.store.insert_manual_run(&asked, server.clock.now()).await.expect("answered").into_created().expect("made");
    let report = StatusReport { exception: Some("boom".into()), ..StatusReport::new(asked.id, 1, "w-1", status, at) };
    for _ in 0..copies {
        server.store.apply(&fold(vec![report.clone()]), server.clock.now()).await.expect("answered");
    }
    asked.id
}

async fn stored(server: &Server, id: JobId) -> StoredJob {
    server.store.job(id).await.expect("answered").expect("there")
}

async fn deeds(server: &Server, id: JobId) -> Vec<String> {
    let entries = server.store.audit_entries(Some(&format!("job:{id}")), 50).await.expect("answered");
    entries.into_iter().map(|entry| entry.action).filter(|action| action.contains("auto")).collect()
}

#[tokio::test]
async fn the_last_runs_in_a_row_disable_a_job_and_copies_of_a_report_do_not() {
    let (_config, server) = harness().await;
    let id = job(&server, Some(AUTO_DISABLE_RULE)).await;
    let mut breaker = breaker(&server, None);
    run(&server, id, OccurrenceStatus::Failed, 5).await;
    run(&server, id, OccurrenceStatus::TimedOut, 5).await;
    assert_eq!(breaker.tick().await.expect("judged").disabled, [], "ten reports, two failures");
    run(&server, id, OccurrenceStatus::Cancelled, 1).await;
    run(&server, id, OccurrenceStatus::Failed, 2).await;
    assert_eq!(breaker.tick().await.expect("judged").disabled, [id]);
    let job = stored(&server, id).await;
    assert_eq!((job.definition.is_active, job.next_fire_at, job.version), (false, None, 2));
    assert_eq!(job.paused_reason.as_deref(), Some("Disabled by itself: its last 3 runs failed within 10 minutes."));
    assert!(job.auto_disabled_at.is_some());
    assert_eq!(deeds(&server, id).await, ["job.auto_disable"]);
    let version = server.store.version(id, 2).await.expect("answered").expect("kept");
    assert_eq!(version.definition["isActive"], false);
    assert_eq!(breaker.tick().await.expect("judged").disabled, []);

    // Put right by hand, its old failures no longer count.
    server.jobs.set_active(&stack::admin(), id, true, "").await.expect("resumed");
    run(&server, id, OccurrenceStatus::Failed, 1).await;
    run(&server, id, OccurrenceStatus::Failed, 1).await;
    assert_eq!(breaker.tick().await.expect("judged").disabled, []);
    run(&server, id, OccurrenceStatus::Failed, 1).await;
    assert_eq!(breaker.tick().await.expect("judged").disabled, [id]);
    server.stop().await;
}

#[tokio::test]
async fn a_success_in_between_starts_the_count_anew() {
    let (_config, server) = harness().await;
    let id = job(&server, Some(AUTO_DISABLE_RULE)).await;
    let mut breaker = breaker(&server, None);
    for status in [
        OccurrenceStatus::Failed,
        OccurrenceStatus::Failed,
        OccurrenceStatus::Completed,
        OccurrenceStatus::Failed,
        OccurrenceStatus::Failed,
    ] {
        run(&server, id, status, 1).await;
        assert_eq!(breaker.tick().await.expect("judged").disabled, []);
    }
    run(&server, id, OccurrenceStatus::Failed, 1).await;
    assert_eq!(breaker.tick().await.expect("judged").disabled, [id]);
    server.stop().await;
}

#[tokio::test]
async fn a_job_without_a_rule_keeps_to_the_installations_if_there_is_one() {
    let (_config, server) = harness().await;
    let (plain, own) =
        (job(&server, None).await, job(&server, Some(AutoDisable { threshold: 9, ..AUTO_DISABLE_RULE })).await);
    for id in [plain, own] {
        for _ in 0..3 {
            run(&server, id, OccurrenceStatus::Failed, 1).await;
        }
    }
    let judged = breaker(&server, None).tick().await.expect("judged");
    assert_eq!((judged.failing, judged.disabled.len()), (1, 0), "nothing is asked of a job without a rule");
    assert_eq!(breaker(&server, Some(AUTO_DISABLE_RULE)).tick().await.expect("judged").disabled, [plain]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_servers_disable_a_job_once() {
    let (_config, server) = harness().await;
    let id = job(&server, Some(AUTO_DISABLE_RULE)).await;
    for _ in 0..3 {
        run(&server, id, OccurrenceStatus::Failed, 1).await;
    }
    let mut racing = Vec::new();
    for _ in 0..6 {
        let mut breaker = breaker(&server, None);
        racing.push(tokio::spawn(async move { breaker.tick().await.expect("judged").disabled.len() }));
    }
    let mut disabled = 0;
    for one in racing {
        disabled += one.await.expect("no panic");
    }
    assert_eq!(disabled, 1);
    assert_eq!(deeds(&server, id).await, ["job.auto_disable"]);
    assert_eq!(stored(&server, id).await.version, 2);
    server.stop().await;
}

#[tokio::test]
async fn a_job_is_enabled_again_after_its_pause_and_begins_with_a_clean_sheet() {
    let (_config, server) = harness().await;
    let id = job(&server, Some(AutoDisable { cool_down_seconds: Some(1), ..AUTO_DISABLE_RULE })).await;
    for _ in 0..3 {
        run(&server, id, OccurrenceStatus::Failed, 1).await;
    }
    let mut breaker = breaker(&server, None);
    let judged = breaker.tick().await.expect("judged");
    assert_eq!((judged.disabled.as_slice(), judged.enabled.as_slice()), ([id].as_slice(), [].as_slice()));
    let disabled_at = stored(&server, id).await.auto_disabled_at.expect("disabled");
    stack::eventually("the end of the pause", || async {
        (server.clock.now() > disabled_at + Duration::seconds(1)).then_some(())
    })
    .await;
    // The server's own breaker may be the one that does it.
    breaker.tick().await.expect("judged");
    let job = stored(&server, id).await;
    assert!(job.definition.is_active && job.auto_disabled_at.is_none() && job.paused_reason.is_none());
    assert!(job.next_fire_at.is_some_and(|next| next > server.clock.now() + Duration::minutes(59)));
    assert_eq!(deeds(&server, id).await, ["job.auto_enable", "job.auto_disable"]);
    assert_eq!(breaker.tick().await.expect("judged").disabled, [], "the old failures do not count again");
    server.stop().await;
}

#[tokio::test]
async fn a_workers_wrong_clock_neither_saves_a_job_nor_disables_it_again() {
    let (_config, server) = harness().await;
    let mut breaker = breaker(&server, None);
    for off in [Duration::hours(-5), Duration::hours(5)] {
        let id = job(&server, Some(AUTO_DISABLE_RULE)).await;
        for _ in 0..3 {
            run_at(&server, id, OccurrenceStatus::Failed, 1, server.clock.now() + off).await;
        }
        assert_eq!(breaker.tick().await.expect("judged").disabled, [id], "{off}");
        server.jobs.set_active(&stack::admin(), id, true, "").await.expect("resumed");
        assert_eq!(breaker.tick().await.expect("judged").disabled, [], "{off}");
    }
    server.stop().await;
}

#[tokio::test]
async fn who_pauses_a_job_that_would_be_enabled_again_means_it() {
    let (_config, server) = harness().await;
    let id = job(&server, Some(AutoDisable { cool_down_seconds: Some(1), ..AUTO_DISABLE_RULE })).await;
    for _ in 0..3 {
        run(&server, id, OccurrenceStatus::Failed, 1).await;
    }
    let mut breaker = breaker(&server, None);
    assert_eq!(breaker.tick().await.expect("judged").disabled, [id]);
    let disabled_at = stored(&server, id).await.auto_disabled_at.expect("disabled");
    server.jobs.set_active(&stack::admin(), id, false, "until Monday").await.expect("paused");
    stack::eventually("the end of the pause", || async {
        (server.clock.now() > disabled_at + Duration::seconds(1)).then_some(())
    })
    .await;
    assert_eq!(breaker.tick().await.expect("judged").enabled, []);
    let job = stored(&server, id).await;
    assert!(!job.definition.is_active && job.auto_disabled_at.is_none());
    assert_eq!(job.paused_reason.as_deref(), Some("until Monday"));
    server.stop().await;
}

/// A receiver that refuses what it gets the first time and takes it the second.
#[tokio::test]
async fn an_alert_is_posted_until_it_is_taken() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/hook?secret", listener.local_addr().expect("bound"));
    let (alerts, sending) = AlertSender::new(Some(url));
    let sending = tokio::spawn(sending);
    let alert = Alert {
        kind: "job.auto_disable",
        job_id: JobId::default(),
        job_name: "Import".into(),
        reason: "it fails".into(),
        at: chrono::DateTime::UNIX_EPOCH,
    };
    alerts.raise(alert);
    let mut bodies = Vec::new();
    for answer in ["500 No", "204 Yes"] {
        let (mut stream, _) =
            tokio::time::timeout(stack::WAIT_TIMEOUT, listener.accept()).await.expect("in time").expect("came");
        let mut text = String::new();
        while !text.contains("\"at\"") {
            let mut buffer = [0; 4_096];
            let n = stream.read(&mut buffer).await.expect("read");
            assert!(n > 0, "the request is whole");
            text.push_str(&String::from_utf8_lossy(&buffer[..n]));
        }
        let reply = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        stream.write_all(reply.as_bytes()).await.expect("answered");
        assert!(text.starts_with("POST /hook?secret "));
        bodies.push(text.rsplit_once("\r\n\r\n").expect("a body").1.to_owned());
    }
    let body: serde_json::Value = serde_json::from_str(&bodies[1]).expect("JSON");
    assert_eq!(bodies[0], bodies[1]);
    assert_eq!(
        (&body["kind"], &body["jobName"], &body["reason"]),
        (&"job.auto_disable".into(), &"Import".into(), &"it fails".into())
    );
    drop(alerts);
    tokio::time::timeout(Pause::from_secs(5), sending)
        .await
        .expect("ends with the last who could raise one")
        .expect("well");
}
