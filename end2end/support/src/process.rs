//! A server or worker process that can be killed, frozen and started again under the same name.

use std::{
    path::{Path, PathBuf},
    process::ExitStatus,
    time::{Duration, Instant},
};

use anyhow::Context;
use milvaion_server::embedded::child::{ChildProcess, LaunchSpec};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// The time a program has to end after SIGTERM.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(60);

/// The time a program has to end after SIGTERM in [`ManagedProcess::clean_up`], before it is killed.
const CLEAN_UP_TIMEOUT: Duration = Duration::from_secs(10);

/// A program, running or not.
#[derive(Debug)]
pub struct ManagedProcess {
    name: String,
    launch: LaunchSpec,
    log: PathBuf,
    /// The failpoints that are armed at each start.
    armed: Option<String>,
    child: Option<ChildProcess>,
}

impl ManagedProcess {
    /// Returns a program that is not started yet. `armed` are the failpoints of each start.
    #[must_use]
    pub fn new(name: String, launch: LaunchSpec, log: PathBuf, armed: Option<String>) -> Self {
        Self { name, launch, log, armed, child: None }
    }

    /// Returns its name in reports.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the file with the output of all its runs.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Returns true if it was started and neither killed nor terminated; it may be frozen.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Returns its process id while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        self.child.as_ref().map(ChildProcess::pid)
    }

    /// Starts it. Returns at once.
    ///
    /// # Errors
    ///
    /// Returns an error if the program cannot be executed.
    pub async fn start(&mut self) -> anyhow::Result<()> {
        let launch = match &self.armed {
            Some(always) => self.launch.clone().env("FAILPOINTS", always),
            None => self.launch.clone(),
        };
        self.spawn(launch).await
    }

    /// Starts it with more failpoints than those of each start.
    ///
    /// # Errors
    ///
    /// Returns an error if the program cannot be executed.
    pub async fn start_armed(&mut self, points: &str) -> anyhow::Result<()> {
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

    /// Returns true if it is stopped by SIGSTOP, from [`ManagedProcess::freeze`] or a failpoint.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        let Some(pid) = self.pid() else { return false };
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    /// Returns true if it has ended without being killed or terminated.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.child.as_ref().is_some_and(|child| child.exit_status().is_some())
    }

    /// Kills it with SIGKILL and waits for its end.
    ///
    /// # Errors
    ///
    /// Returns an error if it does not run.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::SIGKILL)?;
        self.ended().await?;
        Ok(())
    }

    /// Freezes it with SIGSTOP.
    ///
    /// # Errors
    ///
    /// Returns an error if it does not run.
    pub fn freeze(&self) -> anyhow::Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// Continues it with SIGCONT.
    ///
    /// # Errors
    ///
    /// Returns an error if it does not run.
    pub fn thaw(&self) -> anyhow::Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// Sends SIGTERM and waits for its end. Returns its exit status and how long it took.
    ///
    /// # Errors
    ///
    /// Returns an error if it does not run, or does not end within 60 seconds.
    pub async fn terminate(&mut self) -> anyhow::Result<(ExitStatus, Duration)> {
        let since = Instant::now();
        self.signal(Signal::SIGTERM)?;
        let status = tokio::time::timeout(TERMINATE_TIMEOUT, self.ended())
            .await
            .with_context(|| format!("{} did not end within {} s", self.name, TERMINATE_TIMEOUT.as_secs()))??;
        Ok((status, since.elapsed()))
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    ///
    /// Returns an error if it does not run.
    pub async fn ended(&mut self) -> anyhow::Result<ExitStatus> {
        let child = self.child.as_ref().with_context(|| format!("{} does not run", self.name))?;
        let status = child.wait().await;
        self.child = None;
        Ok(status)
    }

    /// Ends it in whatever state it is: thaws it, terminates it, and kills it after ten seconds.
    pub async fn clean_up(&mut self) {
        if let Some(child) = self.child.take() {
            let _ = kill(Pid::from_raw(child.pid()), Signal::SIGCONT);
            child.stop(CLEAN_UP_TIMEOUT).await;
        }
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let child = self.child.as_ref().with_context(|| format!("{} does not run", self.name))?;
        kill(Pid::from_raw(child.pid()), signal).with_context(|| format!("{} cannot be sent {signal}", self.name))
    }
}
