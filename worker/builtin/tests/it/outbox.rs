//! The outbox of the worker's process: a process that was killed leaves reports, and the next process sends them.

use std::{
    fs,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use milvaion_protocol::{
    message::{JobMessage, StatusReport},
    status::OccurrenceStatus::{self, Completed, Running, Unknown},
};
use milvaion_test_support::{
    broker_env::{BrokerProxy, WorkerTestEnv, final_report_ids},
    wait::until,
};
use nix::sys::signal::{Signal, kill};
use serde_json::json;

use crate::worker_process::{pid, worker_process};

/// Returns a run that waits for a file in the outbox's folder and prints its name. It also ends when the folder is deleted.
fn file_waiter(env: &WorkerTestEnv, name: &str) -> JobMessage {
    let script = "while [ -d \"$1\" ] && [ ! -e \"$1/$2\" ]; do sleep 0.02; done; echo \"$2\"";
    let argv = json!(["sh", "-c", script, "sh", env.outbox, name]);
    env.message("shell-command", json!({ "argv": argv }))
}

#[tokio::test]
async fn next_process_reports_for_a_killed_worker() {
    let mut env = WorkerTestEnv::new().await;
    let proxy = BrokerProxy::start(&mut env).await;
    let mut first = worker_process(&env).spawn().expect("started");
    env.wait_for_consumer("shell-command").await;
    let (open, ending) = (file_waiter(&env, "never"), file_waiter(&env, "soon"));
    for message in [&open, &ending] {
        env.publish(message).await;
    }
    env.wait_for_running_entries(2).await;
    proxy.cut();
    fs::write(env.outbox.join("soon"), "").expect("written");
    until("a final report in the outbox", async || {
        let held = env.outbox_contents().await;
        final_report_ids(&held.reports) == [ending.occurrence_id] && held.running == 1 && held.log_lines == 1
    })
    .await;
    kill(pid(&first), Signal::SIGKILL).expect("killed");
    first.wait().await.expect("an exit status");
    proxy.restore();
    assert!(!env.has_ended(&ending).await);

    let since = Instant::now();
    let second = worker_process(&env).spawn().expect("started");
    until("both final reports", async || env.has_ended(&open).await && env.has_ended(&ending).await).await;
    assert!(since.elapsed() < Duration::from_secs(10), "the server's heartbeat timeout would have been faster");
    let statuses = |reports: Vec<StatusReport>, of: &JobMessage| -> Vec<(OccurrenceStatus, Option<u64>)> {
        let is_of = |report: &StatusReport| report.occurrence_id == of.occurrence_id;
        reports.into_iter().filter(is_of).map(|report| (report.status, report.retry_after_ms)).collect()
    };
    let reports = env.reports().await;
    assert_eq!(statuses(reports.clone(), &open), [(Running, None), (Unknown, None)]);
    assert_eq!(statuses(reports.clone(), &ending), [(Running, None), (Completed, None)]);
    let interrupted = reports.iter().find(|report| report.status == Unknown).expect("a report of the interrupted run");
    assert!(interrupted.exception.as_deref().is_some_and(|text| text.starts_with("interrupted: ")));
    // The reports name the instance that ran the occurrences.
    assert!(reports.iter().all(|report| report.instance_id == reports[0].instance_id));
    let lines: Vec<String> =
        env.logs().await.into_iter().flat_map(|message| message.lines).map(|line| line.message).collect();
    assert_eq!(lines, ["soon"]);
    env.wait_for_empty_outbox().await;
    assert_eq!(
        env.queue(&env.topology.job_queue(&env.worker_id, "shell-command")).await.expect("the queue exists").0,
        0
    );

    kill(pid(&second), Signal::SIGTERM).expect("the signal is sent");
    assert!(second.wait_with_output().await.expect("an exit status").status.success());
    // Ends the command that the killed worker left running.
    fs::write(env.outbox.join("never"), "").expect("written");
    env.clean(&["http-request", "shell-command"]).await;
}

#[tokio::test]
async fn processes_share_a_folder_but_no_file() {
    let env = WorkerTestEnv::new().await;
    let start = |outbox: &Path| {
        worker_process(&env).env("MILVAION_OUTBOX", outbox).stderr(Stdio::piped()).spawn().expect("started")
    };
    let first = start(&env.outbox);
    let second = start(&env.outbox);
    until("a file of each process", async || env.outbox_files().len() == 2).await;
    let refused = start(&env.outbox_files()[0]).wait_with_output().await.expect("an exit status");
    assert!(!refused.status.success());
    let output = String::from_utf8_lossy(&refused.stderr);
    assert!(output.contains("MILVAION_OUTBOX names") && output.contains("another process holds"), "{output}");
    for running in [first, second] {
        kill(pid(&running), Signal::SIGTERM).expect("the signal is sent");
        let ended = running.wait_with_output().await.expect("an exit status");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }
    env.clean(&["http-request", "shell-command"]).await;
}

#[tokio::test]
async fn damaged_outbox_is_logged_and_replaced() {
    let env = WorkerTestEnv::new().await;
    fs::create_dir_all(&env.outbox).expect("the folder is created");
    let file = env.outbox.join("mine.sqlite");
    fs::write(&file, "no database at all ".repeat(500)).expect("written");
    let running = worker_process(&env).env("MILVAION_OUTBOX", &file).stderr(Stdio::piped()).spawn().expect("started");
    env.wait_for_consumer("shell-command").await;
    let message = env.message("shell-command", json!({"argv": ["true"]}));
    env.publish(&message).await;
    assert_eq!(env.ended(message.occurrence_id).await.last().map(|report| report.status), Some(Completed));
    kill(pid(&running), Signal::SIGTERM).expect("the signal is sent");
    let ended = running.wait_with_output().await.expect("an exit status");
    let output = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{output}");
    let names = ["mine.sqlite", "mine.sqlite.damaged-"].map(|name| env.outbox.join(name).display().to_string());
    let names_both_files = |line: &str| line.contains("ERROR") && names.iter().all(|name| line.contains(name));
    assert!(output.lines().any(names_both_files), "{output}");
    env.clean(&["http-request", "shell-command"]).await;
}
