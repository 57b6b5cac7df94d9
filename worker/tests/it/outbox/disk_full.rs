//! A disk that is full, truly: a file system of two megabytes that only the worker's process sees.

use std::{fs::File, io::Write, path::PathBuf, process::Stdio};

use milvaion_protocol::{id::OccurrenceId, message::RegistrationMessage, status::OccurrenceStatus::Completed};
use nix::{
    sys::signal::{Signal, kill},
    unistd::geteuid,
};
use serde_json::json;

use super::{pid, process};
use crate::common::{WorkerTestEnv, eventually};

/// Mounts the file system over the outbox's folder and becomes the worker.
const SCRIPT: &str = r#"mount -t tmpfs -o size=2m none "$MILVAION_OUTBOX" && exec "$0""#;

/// Writes until there is no room for another page.
fn fill(path: &PathBuf) {
    let mut filler = File::create(path).expect("the worker's file system can be reached");
    let full = std::iter::repeat_with(|| filler.write_all(&[0; 4_096])).take(1_000).find_map(Result::err);
    assert_eq!(full.map(|error| error.kind()), Some(std::io::ErrorKind::StorageFull));
}

/// Begins a command with a view of the file systems of its own.
fn apart() -> tokio::process::Command {
    let mut command = tokio::process::Command::new("unshare");
    if !geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.arg("--mount");
    command
}

#[tokio::test]
async fn a_full_disk_lets_nothing_begin_and_says_so_until_there_is_room_again() {
    let probe = apart().args(["mount", "-t", "tmpfs", "none", "/mnt"]).output().await.expect("util-linux is there");
    if !probe.status.success() {
        // In a container that may not mount, the write that fails is tried by `an_outbox_that_cannot_be_written_…` alone.
        eprintln!("not tried, for nothing may be mounted here: {}", String::from_utf8_lossy(&probe.stderr));
        return;
    }
    let stack = WorkerTestEnv::new().await;
    std::fs::create_dir_all(&stack.outbox).expect("made");
    let plain = process(&stack);
    let mut command = apart();
    command.args(["sh", "-c", SCRIPT]).arg(plain.as_std().get_program());
    command.envs(plain.as_std().get_envs().filter_map(|(name, value)| Some((name, value?))));
    let worker = command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true).spawn().expect("started");
    let queue = stack.topology.job_queue(&stack.worker_id, "shell-command");
    eventually("it takes work", async || stack.queue(&queue).await.is_some_and(|(_, consumers)| consumers > 0)).await;
    // Neither fork nor new id on the way: the process is the worker by now.
    let filler = PathBuf::from(format!("/proc/{}/root{}/filler", pid(&worker), stack.outbox.display()));
    // Longer than what never comes to the disk because it has ended before.
    let message = || stack.message("shell-command", json!({"argv": ["sleep", "0.2"]}));
    let first = message();
    stack.publish(&first).await;
    assert_eq!(stack.ended(first.occurrence_id).await.last().map(|report| report.status), Some(Completed));

    fill(&filler);
    let mut sent = Vec::new();
    eventually("a heartbeat says that nothing begins any more", async || {
        if sent.len() < 50 {
            let message = message();
            stack.publish(&message).await;
            sent.push(message.occurrence_id);
        }
        stack.registrations().await.iter().any(|said| {
            let RegistrationMessage::Heartbeat(beat) = said else { return false };
            beat.notice.as_deref().is_some_and(|notice| notice.starts_with("No new work is taken"))
        })
    })
    .await;
    let reports = stack.reports().await;
    let is_heard = |id: &OccurrenceId| reports.iter().any(|report| report.occurrence_id == *id);
    assert!(!sent.iter().all(is_heard), "some have not begun");
    std::fs::remove_file(&filler).expect("removed");
    for id in sent {
        assert_eq!(stack.ended(id).await.last().map(|report| report.status), Some(Completed));
    }

    kill(pid(&worker), Signal::SIGTERM).expect("told");
    assert!(worker.wait_with_output().await.expect("it ends").status.success());
    stack.clean(&["http-request", "shell-command"]).await;
}
