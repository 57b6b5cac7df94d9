//! The program `milvaion-worker` as a child process.

use std::process::Stdio;

use milvaion_test_support::broker_env::WorkerTestEnv;
use nix::unistd::Pid;
use tokio::process::{Child, Command};

/// Returns the command that starts the worker in an environment, with the job type `shell-command`.
pub(crate) fn worker_process(env: &WorkerTestEnv) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_milvaion-worker"));
    command
        .envs(env.variables())
        .envs([("MILVAION_SHELL", "1"), ("RUST_LOG", "info")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Returns the id of a running process.
pub(crate) fn pid(process: &Child) -> Pid {
    Pid::from_raw(process.id().expect("the process runs").try_into().expect("a process id"))
}
