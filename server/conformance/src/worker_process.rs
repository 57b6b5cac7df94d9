//! A process of the worker under test, with its own network.

use std::{
    fs::File,
    io::Read,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::process::{Child, Command};

use crate::{
    failure::CaseFailure,
    proxy::{DeliveryTap, FaultyNetwork},
};

/// The number of lines of a worker's output that a failure shows.
const SHOWN_LINES: usize = 6;
/// The number of bytes at the end of a worker's output that are read for it.
const READ_BYTES: u64 = 4096;

/// A running worker instance. Dropping it kills its process group.
#[derive(Debug)]
pub(crate) struct WorkerProcess {
    child: Child,
    group: Option<Pid>,
    /// The network to RabbitMQ.
    pub(crate) broker: FaultyNetwork,
    /// The network to Redis.
    pub(crate) redis: FaultyNetwork,
    /// The record of its deliveries.
    pub(crate) tap: DeliveryTap,
    output: PathBuf,
}

impl WorkerProcess {
    /// Starts the command of the worker, with its output in a file.
    pub(crate) fn start(
        command: &[String],
        environment: Vec<(String, String)>,
        networks: (FaultyNetwork, FaultyNetwork),
        tap: DeliveryTap,
        output: PathBuf,
    ) -> Result<Self, CaseFailure> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(CaseFailure::new("a command that starts the worker", "none after --"));
        };
        let (out, err) = (File::create(&output)?, File::options().append(true).open(&output)?);
        let mut launch = Command::new(program);
        launch.args(arguments).stdin(Stdio::null()).stdout(out).stderr(err).kill_on_drop(true);
        // A worker must not find the state of another one, nor that of an earlier case.
        launch.env_remove("STATE_DIRECTORY").env_remove("MILVAION_OUTBOX");
        launch.envs(environment).process_group(0);
        let child = launch.spawn().map_err(|error| {
            CaseFailure::new("a command that starts the worker", format!("{program} cannot be started: {error}"))
        })?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        Ok(Self { child, group, broker: networks.0, redis: networks.1, tap, output })
    }

    /// Returns the exit status if the process has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends SIGTERM to the process that the command started.
    pub(crate) fn terminate(&self) {
        if let Some(pid) = self.group {
            let _ = nix::sys::signal::kill(pid, Signal::SIGTERM);
        }
    }

    /// Waits for the end of the process.
    pub(crate) async fn wait(&mut self, within: Duration) -> Result<ExitStatus, CaseFailure> {
        match tokio::time::timeout(within, self.child.wait()).await {
            Ok(status) => Ok(status?),
            Err(_) => Err(CaseFailure::new(
                format!("the process ends within {} s after SIGTERM", within.as_secs()),
                format!("it still runs{}", self.last_output()),
            )),
        }
    }

    /// Stops the process gracefully.
    pub(crate) async fn stop(&mut self) -> Result<ExitStatus, CaseFailure> {
        self.terminate();
        self.wait(Duration::from_secs(20)).await
    }

    /// Kills the process with SIGKILL, and everything that it has started.
    pub(crate) async fn kill(&mut self) {
        self.kill_group();
        let _ = self.child.wait().await;
    }

    /// Returns the end of the process's output, for the reason of a failure.
    pub(crate) fn last_output(&self) -> String {
        let mut text = Vec::new();
        let length = std::fs::metadata(&self.output).map_or(0, |file| file.len());
        if let Ok(mut file) = File::open(&self.output) {
            use std::io::{Seek, SeekFrom};
            let _ = file.seek(SeekFrom::Start(length.saturating_sub(READ_BYTES)));
            let _ = file.read_to_end(&mut text);
        }
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines[lines.len().saturating_sub(SHOWN_LINES)..].join(" | ");
        if last.is_empty() { String::new() } else { format!("; its output ends with: {last}") }
    }

    fn kill_group(&self) {
        if let Some(group) = self.group {
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // Also ends what the command has started and left. After the command has been waited for, its id could belong to
        // another process, so only a running one is killed.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.kill_group();
        }
    }
}
