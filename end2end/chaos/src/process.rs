//! A server or a worker of ours that may be killed, frozen and started again under the same name.

use std::{
    path::PathBuf,
    process::ExitStatus,
    time::{Duration, Instant},
};

use anyhow::Context;
use milvaion_server::embedded::child::{ChildProcess, LaunchSpec};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// How long a program that was asked to stop may take before it is killed.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(60);

/// A program, running or not.
#[derive(Debug)]
pub(crate) struct ManagedProcess {
    name: String,
    launch: LaunchSpec,
    log: PathBuf,
    /// What is armed at each start.
    armed: Option<String>,
    child: Option<ChildProcess>,
}

impl ManagedProcess {
    /// One that does not run yet.
    pub(crate) fn new(name: String, launch: LaunchSpec, log: PathBuf, armed: Option<String>) -> Self {
        Self { name, launch, log, armed, child: None }
    }

    /// What faults and runs call it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Everything it has ever printed.
    pub(crate) fn log(&self) -> &PathBuf {
        &self.log
    }

    /// Whether it runs, frozen or not.
    pub(crate) fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Its process id, while it runs.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.child.as_ref().map(ChildProcess::pid)
    }

    /// Starts it. Returns at once.
    pub(crate) async fn start(&mut self) -> anyhow::Result<()> {
        let launch = match &self.armed {
            Some(always) => self.launch.clone().env("FAILPOINTS", always),
            None => self.launch.clone(),
        };
        self.spawn(launch).await
    }

    /// Starts it with crash points armed, beside what it is always started with.
    pub(crate) async fn start_armed(&mut self, points: &str) -> anyhow::Result<()> {
        let armed = match &self.armed {
            Some(always) => format!("{always};{points}"),
            None => points.to_owned(),
        };
        self.spawn(self.launch.clone().env("FAILPOINTS", armed)).await
    }

    async fn spawn(&mut self, launch: LaunchSpec) -> anyhow::Result<()> {
        let child = ChildProcess::spawn(&self.name, launch, &self.log).await;
        self.child = Some(child.with_context(|| format!("{} cannot be started", self.name))?);
        Ok(())
    }

    /// Whether the processor has been taken away from it, by [`ManagedProcess::freeze`] or by a crash point.
    pub(crate) fn is_frozen(&self) -> bool {
        let Some(pid) = self.pid() else { return false };
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    /// Whether it has ended although nobody asked it to.
    pub(crate) fn has_ended(&self) -> bool {
        self.child.as_ref().is_some_and(|child| child.exit_status().is_some())
    }

    /// Ends it in the middle of whatever it does.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::SIGKILL)?;
        self.ended().await?;
        Ok(())
    }

    /// Takes the processor away from it.
    pub(crate) fn freeze(&self) -> anyhow::Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// Gives it back.
    pub(crate) fn thaw(&self) -> anyhow::Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// Asks it to stop and waits until it has. Returns how it ended and how long that took.
    pub(crate) async fn terminate(&mut self) -> anyhow::Result<(ExitStatus, Duration)> {
        let begun = Instant::now();
        self.signal(Signal::SIGTERM)?;
        let status = tokio::time::timeout(TERMINATE_TIMEOUT, self.ended())
            .await
            .with_context(|| format!("{} does not end within {} s", self.name, TERMINATE_TIMEOUT.as_secs()))??;
        Ok((status, begun.elapsed()))
    }

    /// Waits until it has ended by itself.
    pub(crate) async fn ended(&mut self) -> anyhow::Result<ExitStatus> {
        let child = self.child.as_ref().with_context(|| format!("{} does not run", self.name))?;
        let status = child.wait().await;
        self.child = None;
        Ok(status)
    }

    /// Puts it away at the end of a scenario, in whatever state that left it.
    pub(crate) async fn clean_up(&mut self) {
        if let Some(child) = self.child.take() {
            let _ = kill(Pid::from_raw(child.pid()), Signal::SIGCONT);
            child.stop(Duration::from_secs(10)).await;
        }
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let child = self.child.as_ref().with_context(|| format!("{} does not run", self.name))?;
        kill(Pid::from_raw(child.pid()), signal).with_context(|| format!("{} cannot be sent {signal}", self.name))
    }
}
