//! A supervised child process. It has its own process group and its own log file, and it does not outlive the server.
//!
//! Three decisions ensure this:
//! - Every child is started through `setpriv`, which makes the kernel signal the child when its parent dies. So even
//!   `kill -9` of the server ends PostgreSQL with the signal that means an orderly stop. Setting this between fork and
//!   exec in our own code would need `unsafe`.
//! - The kernel watches the *thread* that forked, not the process. Tokio starts and ends threads at any time, so all
//!   forks happen on one thread that lives as long as the process.
//! - Each child leads a process group. Ctrl-C in a terminal does not reach the child, and its descendants can be killed
//!   together with it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use super::{EmbeddedError, log_file, programs};

/// The system user that a child runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SystemAccount {
    /// The user id.
    pub uid: u32,
    /// The group id. Supplementary groups are dropped.
    pub gid: u32,
}

/// A program to start, with its arguments, environment, user and stop signal.
#[derive(Debug, Clone)]
pub struct LaunchSpec {
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, Option<OsString>)>,
    clean_env: bool,
    folder: Option<PathBuf>,
    account: Option<SystemAccount>,
    stop_signal: Signal,
}

impl LaunchSpec {
    /// Describes a program that runs with our environment, user and working folder, and stops at SIGTERM.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            clean_env: false,
            folder: None,
            account: None,
            stop_signal: Signal::SIGTERM,
        }
    }

    /// Adds one argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().to_owned(), Some(value.as_ref().to_owned())));
        self
    }

    /// Removes an inherited environment variable.
    #[must_use]
    pub fn without_env(mut self, name: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().to_owned(), None));
        self
    }

    /// Clears the environment of the child except for `PATH` and a UTF-8 locale. A stray `PGPORT` or
    /// `RABBITMQ_NODENAME` of the caller must not change the settings of a private service.
    #[must_use]
    pub fn clean_env(mut self) -> Self {
        self.clean_env = true;
        self
    }

    /// Sets the working folder.
    #[must_use]
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Sets the user to run as. `None` means our own user.
    #[must_use]
    pub fn account(mut self, account: Option<SystemAccount>) -> Self {
        self.account = account;
        self
    }

    /// Sets the signal that means an orderly stop. It is sent by [`ChildProcess::stop`], and by the kernel when our
    /// process dies.
    #[must_use]
    pub fn stop_signal(mut self, signal: Signal) -> Self {
        self.stop_signal = signal;
        self
    }

    fn command(&self, setpriv: &Path, log: &File) -> io::Result<Command> {
        let mut command = Command::new(setpriv);
        if let Some(SystemAccount { uid, gid }) = self.account {
            command.arg(format!("--reuid={uid}")).arg(format!("--regid={gid}")).arg("--clear-groups");
        }
        let signal = self.stop_signal.as_str().trim_start_matches("SIG");
        command.arg(format!("--pdeathsig={signal}")).arg("--").arg(&self.program).args(&self.args);
        if self.clean_env {
            command.env_clear();
            command.env("LANG", "C.UTF-8");
            command.env("PATH", std::env::join_paths(programs::search_path()).unwrap_or_default());
        }
        for (name, value) in &self.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?).process_group(0);
        Ok(command)
    }
}

/// A running child. Dropping it sends the stop signal and does not wait.
#[derive(Debug)]
pub struct ChildProcess {
    name: String,
    pid: Pid,
    log: PathBuf,
    /// The length of the log when this child started, in bytes. The lines before belong to earlier runs.
    log_start: u64,
    stop_signal: Signal,
    exit: watch::Receiver<Option<ExitStatus>>,
}

impl ChildProcess {
    /// Starts the program. `name` is its readable name ("PostgreSQL"); `log` receives its output.
    ///
    /// # Errors
    /// Returns [`EmbeddedError`] if the log cannot be written, `setpriv` is missing, or the program cannot be executed.
    pub async fn spawn(name: &str, launch: LaunchSpec, log: &Path) -> Result<Self, EmbeddedError> {
        let setpriv = programs::find("setpriv", &programs::search_path())
            .ok_or(EmbeddedError::Missing { what: "The program setpriv".into(), package: "util-linux" })?;
        let (file, log_start) = log_file::open(log).map_err(EmbeddedError::folder(log, "written"))?;
        let failed =
            |source| EmbeddedError::Spawn { service: name.to_owned(), program: launch.program.clone(), source };

        let command = launch.command(&setpriv, &file).map_err(failed)?;
        let mut process = fork_on_spawner_thread(command).await.map_err(failed)?;
        let pid = process.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw);
        let Some(pid) = pid else {
            return Err(failed(io::Error::other("the process ended immediately")));
        };
        let (exit_sender, exit) = watch::channel(None);
        tokio::spawn(async move {
            // `wait` fails only if other code has reaped the child, which does not happen; 127 then stands for
            // "unknown".
            let status = process.wait().await.unwrap_or_else(|_| ExitStatus::from_raw(127 << 8));
            exit_sender.send_replace(Some(status));
        });
        Ok(Self { name: name.to_owned(), pid, log: log.to_owned(), log_start, stop_signal: launch.stop_signal, exit })
    }

    /// Returns the readable name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the process id, which is also the id of the process group.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Returns the path of the log.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Returns the exit status, or `None` while the child runs.
    #[must_use]
    pub fn exit_status(&self) -> Option<ExitStatus> {
        *self.exit.borrow()
    }

    /// Waits until the child has ended, for any reason. May be called any number of times.
    pub async fn wait(&self) -> ExitStatus {
        let mut exit = self.exit.clone();
        match exit.wait_for(Option::is_some).await {
            Ok(status) => (*status).unwrap_or_else(|| ExitStatus::from_raw(127 << 8)),
            // The task that waits for the process has ended with its runtime, so no caller can still be waiting.
            Err(_) => ExitStatus::from_raw(127 << 8),
        }
    }

    /// Sends the stop signal and waits. Kills the whole process group after `within`. Returns true if the child stopped
    /// without being killed.
    pub async fn stop(&self, within: Duration) -> bool {
        self.signal(self.stop_signal);
        let orderly = tokio::time::timeout(within, self.wait()).await.is_ok();
        if !orderly {
            tracing::warn!(
                child.name = %self.name, child.pid = self.pid.as_raw(),
                "{} (process {}) did not stop within {} s and is killed", self.name, self.pid, within.as_secs()
            );
        }
        // Also after an orderly stop, because the child may have left descendants in its group.
        let _ = killpg(self.pid, Signal::SIGKILL);
        self.wait().await;
        orderly
    }

    /// Returns the last lines of its output, joined into one line for an error message. Empty if there is no output.
    #[must_use]
    pub fn log_excerpt(&self) -> String {
        log_file::excerpt(&self.log_tail())
    }

    /// Returns the end of its output.
    pub(super) fn log_tail(&self) -> String {
        log_file::read_tail(&self.log, self.log_start).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) {
        if self.exit.borrow().is_none() {
            // The child may end between the check and the signal. Its pid is then free for microseconds, too short a
            // time for the kernel to assign it again.
            let _ = kill(self.pid, signal);
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.signal(self.stop_signal);
    }
}

struct SpawnRequest {
    command: Command,
    runtime: Handle,
    reply: oneshot::Sender<io::Result<tokio::process::Child>>,
}

/// Forks on the one thread that lives as long as the process; see the top of this file.
async fn fork_on_spawner_thread(command: Command) -> io::Result<tokio::process::Child> {
    static SPAWNER: OnceLock<mpsc::Sender<SpawnRequest>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, receiver) = mpsc::channel::<SpawnRequest>();
        std::thread::spawn(move || {
            for SpawnRequest { command, runtime, reply } in receiver {
                let _context = runtime.enter();
                // If the caller is gone, there is no handle left to stop the child with, so it is killed here.
                let mut command = tokio::process::Command::from(command);
                if let Err(Ok(mut orphan)) = reply.send(command.spawn()) {
                    let _ = orphan.start_kill();
                }
            }
        });
        sender
    });
    let (reply, response) = oneshot::channel();
    let thread_ended = || io::Error::other("the thread that starts child processes has ended");
    spawner.send(SpawnRequest { command, runtime: Handle::current(), reply }).map_err(|_| thread_ended())?;
    response.await.map_err(|_| thread_ended())?
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn log(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("milvaion-child-{}-{name}.log", std::process::id()));
        let _ = fs::remove_file(&path);
        path
    }

    async fn shell(script: &str, log: &Path) -> ChildProcess {
        ChildProcess::spawn("The shell", LaunchSpec::new("/bin/sh").arg("-c").arg(script), log).await.unwrap()
    }

    #[tokio::test]
    async fn an_ended_child_leaves_its_status_and_log() {
        let log = log("ends");
        let child = shell("echo one; echo; echo two >&2; exit 3", &log).await;
        assert_eq!(child.wait().await.code(), Some(3));
        assert_eq!(child.log_excerpt(), "one / two");
        assert_eq!(child.wait().await.code(), Some(3));

        let second = shell("echo three", &log).await;
        second.wait().await;
        assert_eq!(second.log_excerpt(), "three", "an excerpt holds no lines of an earlier run");
        let _ = fs::remove_file(log);
    }

    #[tokio::test]
    async fn a_child_that_ignores_the_stop_signal_is_killed() {
        let log = log("stop");
        let orderly = ChildProcess::spawn("sleep", LaunchSpec::new("/bin/sleep").arg("60"), &log).await.unwrap();
        assert!(orderly.stop(Duration::from_secs(5)).await);

        let stubborn = shell("trap '' TERM; echo ready; while :; do sleep 1; done", &log).await;
        while !stubborn.log_excerpt().contains("ready") {
            tokio::task::yield_now().await;
        }
        assert!(!stubborn.stop(Duration::from_millis(50)).await);
        assert_eq!(stubborn.wait().await.signal(), Some(9));
        let _ = fs::remove_file(log);
    }

    #[tokio::test]
    async fn a_missing_program_is_named_in_the_log() {
        let log = log("missing");
        let child = ChildProcess::spawn("Nothing", LaunchSpec::new("/no/such/program"), &log).await.unwrap();
        assert!(!child.wait().await.success());
        assert!(child.log_excerpt().contains("/no/such/program"), "{}", child.log_excerpt());
        let _ = fs::remove_file(log);
    }

    #[tokio::test]
    async fn a_clean_environment_holds_only_path_and_locale() {
        let log = log("clean");
        let launch = LaunchSpec::new("/usr/bin/env").clean_env().env("PGPORT", "1");
        let child = ChildProcess::spawn("env", launch, &log).await.unwrap();
        child.wait().await;
        let text = child.log_tail();
        let mut names: Vec<_> = text.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
        names.sort_unstable();
        assert_eq!(names, ["LANG", "PATH", "PGPORT"]);
        let _ = fs::remove_file(log);
    }
}
