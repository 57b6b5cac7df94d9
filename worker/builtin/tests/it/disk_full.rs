//! A full disk: a file system of two megabytes that only the worker's process sees.

use std::{fs::File, io::Write, path::PathBuf, process::Stdio};

use milvaion_protocol::{id::OccurrenceId, message::RegistrationMessage, status::OccurrenceStatus::Completed};
use milvaion_test_support::{broker_env::WorkerTestEnv, wait::until};
use nix::{
    sys::signal::{Signal, kill},
    unistd::geteuid,
};
use serde_json::json;

use crate::worker_process::{pid, worker_process};

/// Mounts the file system at the outbox's folder and executes the worker in the same process.
const SCRIPT: &str = r#"mount -t tmpfs -o size=2m none "$MILVAION_OUTBOX" && exec "$0""#;

/// Writes until there is no space for another page.
fn fill(path: &PathBuf) {
    let mut filler = File::create(path).expect("the worker's file system is accessible");
    let full = std::iter::repeat_with(|| filler.write_all(&[0; 4_096])).take(1_000).find_map(Result::err);
    assert_eq!(full.map(|error| error.kind()), Some(std::io::ErrorKind::StorageFull));
}

/// Returns a command that runs its arguments in a new mount namespace.
fn unshare() -> tokio::process::Command {
    let mut command = tokio::process::Command::new("unshare");
    if !geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.arg("--mount");
    command
}

mod exhaustive {
    use super::*;

    #[tokio::test]
    async fn full_disk_stops_new_runs_until_there_is_space() {
        let probe =
            unshare().args(["mount", "-t", "tmpfs", "none", "/mnt"]).output().await.expect("util-linux is installed");
        if !probe.status.success() {
            // In a container without the permission to mount, only the worker library's test of an outbox that cannot be
            // written covers a failing write.
            eprintln!("skipped, because nothing can be mounted here: {}", String::from_utf8_lossy(&probe.stderr));
            return;
        }
        let env = WorkerTestEnv::new().await;
        std::fs::create_dir_all(&env.outbox).expect("the folder is created");
        let plain = worker_process(&env);
        let mut command = unshare();
        command.args(["sh", "-c", SCRIPT]).arg(plain.as_std().get_program());
        command.envs(plain.as_std().get_envs().filter_map(|(name, value)| Some((name, value?))));
        let worker = command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true).spawn().expect("started");
        env.wait_for_consumer("shell-command").await;
        // The commands replace each other without a fork, so the process is the worker now.
        let filler = PathBuf::from(format!("/proc/{}/root{}/filler", pid(&worker), env.outbox.display()));
        // A run that ends faster is never written to the outbox.
        let message = || env.message("shell-command", json!({"argv": ["sleep", "0.2"]}));
        let first = message();
        env.publish(&first).await;
        assert_eq!(env.ended(first.occurrence_id).await.last().map(|report| report.status), Some(Completed));

        fill(&filler);
        let mut sent = Vec::new();
        until("a heartbeat with the notice", async || {
            if sent.len() < 50 {
                let message = message();
                env.publish(&message).await;
                sent.push(message.occurrence_id);
            }
            env.registrations().await.iter().any(|message| {
                let RegistrationMessage::Heartbeat(heartbeat) = message else { return false };
                heartbeat.notice.as_deref().is_some_and(|notice| notice.starts_with("No new work is taken"))
            })
        })
        .await;
        let reports = env.reports().await;
        let has_started = |id: &OccurrenceId| reports.iter().any(|report| report.occurrence_id == *id);
        assert!(!sent.iter().all(has_started), "some runs must not have started");
        std::fs::remove_file(&filler).expect("the file is deleted");
        for id in sent {
            assert_eq!(env.ended(id).await.last().map(|report| report.status), Some(Completed));
        }

        kill(pid(&worker), Signal::SIGTERM).expect("the signal is sent");
        assert!(worker.wait_with_output().await.expect("an exit status").status.success());
        env.clean(&["http-request", "shell-command"]).await;
    }
}
