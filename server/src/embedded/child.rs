//! A supervised child process: its own process group, its own log file, and never an orphan.
//!
//! Three decisions carry the promises:
//! - Every child is started through `setpriv`, which asks the kernel to signal it when its parent dies. So even
//!   `kill -9` of the server ends PostgreSQL with the orderly signal of our choice. (Doing this ourselves between
//!   fork and exec would need `unsafe`.)
//! - The kernel watches the *thread* that forked, not the process. Tokio's threads come and go, so one thread that
//!   lives as long as the process does all the forking.
//! - Each child leads a process group: a terminal's Ctrl-C does not reach it, and what it leaves behind can be
//!   killed with it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use super::EmbeddedError;
use super::programs;

/// A log longer than this is set aside at the next start, so that logs cannot fill the disk over the years.
const MAX_LOG_BYTES: u64 = 16 << 20;

/// How much of a log's end is looked at for the last words.
const LOG_TAIL_BYTES: u64 = 8 << 10;

/// A system user to run as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SystemAccount {
    /// User id.
    pub uid: u32,
    /// Group id; supplementary groups are dropped.
    pub gid: u32,
}

/// What to start and how.
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
    /// A program with our environment, our user and our working folder, ended by SIGTERM.
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

    /// Gives the child nothing of our environment but `PATH` and a UTF-8 locale: a stray `PGPORT` or
    /// `RABBITMQ_NODENAME` of the caller's must not steer a private service.
    #[must_use]
    pub fn clean_env(mut self) -> Self {
        self.clean_env = true;
        self
    }

    /// The working folder.
    #[must_use]
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// The user to run as; `None` is our own.
    #[must_use]
    pub fn account(mut self, account: Option<SystemAccount>) -> Self {
        self.account = account;
        self
    }

    /// The signal that means an orderly stop; sent by [`ChildProcess::stop`], and by the kernel when we die.
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

/// A running child. When the last handle is dropped it is asked to stop, without waiting.
#[derive(Debug)]
pub struct ChildProcess {
    name: String,
    pid: Pid,
    log: PathBuf,
    /// Where the log ended before this child wrote to it: earlier runs' words are not its own.
    log_began_at: u64,
    stop_signal: Signal,
    exit: watch::Receiver<Option<ExitStatus>>,
}

impl ChildProcess {
    /// Starts the program; `name` is what people call it ("PostgreSQL"), `log` receives all it prints.
    ///
    /// # Errors
    /// When the log cannot be written, `setpriv` is missing, or the program cannot be executed.
    pub async fn spawn(name: &str, launch: LaunchSpec, log: &Path) -> Result<Self, EmbeddedError> {
        let setpriv = programs::find("setpriv", &programs::search_path())
            .ok_or(EmbeddedError::Missing { what: "The program setpriv".into(), package: "util-linux" })?;
        let (file, log_began_at) = open_log(log).map_err(EmbeddedError::folder(log, "written"))?;
        let failed =
            |source| EmbeddedError::Spawn { service: name.to_owned(), program: launch.program.clone(), source };

        let command = launch.command(&setpriv, &file).map_err(failed)?;
        let mut process = fork_elsewhere(command).await.map_err(failed)?;
        let pid = process.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw);
        let Some(pid) = pid else {
            return Err(failed(io::Error::other("it ended at once")));
        };
        let (told, exit) = watch::channel(None);
        tokio::spawn(async move {
            // `wait` fails only when somebody else reaped our child, which nobody does; 127 then says "unknown".
            let status = process.wait().await.unwrap_or_else(|_| ExitStatus::from_raw(127 << 8));
            told.send_replace(Some(status));
        });
        Ok(Self {
            name: name.to_owned(),
            pid,
            log: log.to_owned(),
            log_began_at,
            stop_signal: launch.stop_signal,
            exit,
        })
    }

    /// What people call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id, which is also its process group.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// The file that receives what it prints.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// How it has ended; none while it runs.
    #[must_use]
    pub fn exit_status(&self) -> Option<ExitStatus> {
        *self.exit.borrow()
    }

    /// Waits until it has ended, for whatever reason. May be called any number of times.
    pub async fn wait(&self) -> ExitStatus {
        let mut exit = self.exit.clone();
        match exit.wait_for(Option::is_some).await {
            Ok(status) => (*status).unwrap_or_else(|| ExitStatus::from_raw(127 << 8)),
            // The watching task died with its runtime; nobody can be waiting any more.
            Err(_) => ExitStatus::from_raw(127 << 8),
        }
    }

    /// Asks it to stop and waits; after `within` its whole process group is killed. Returns whether it went by itself.
    pub async fn stop(&self, within: Duration) -> bool {
        self.signal(self.stop_signal);
        let orderly = tokio::time::timeout(within, self.wait()).await.is_ok();
        if !orderly {
            tracing::warn!(
                child.name = %self.name, child.pid = self.pid.as_raw(),
                "{} did not stop within {} s and is killed", self.name, within.as_secs()
            );
        }
        // Also after an orderly stop: what the child may have left in its group goes with it.
        let _ = killpg(self.pid, Signal::SIGKILL);
        self.wait().await;
        orderly
    }

    /// The last lines it printed, on one line, for an error message. Empty when it printed nothing.
    #[must_use]
    pub fn log_excerpt(&self) -> String {
        log_excerpt(&self.log_tail())
    }

    /// The end of what it printed.
    pub(super) fn log_tail(&self) -> String {
        read_tail(&self.log, self.log_began_at).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) {
        if self.exit.borrow().is_none() {
            // It may end between the look and the signal; its pid is then free for microseconds, too short to be given away.
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

/// Forks on the one thread that never ends, see the top of this file.
async fn fork_elsewhere(command: Command) -> io::Result<tokio::process::Child> {
    static SPAWNER: OnceLock<mpsc::Sender<SpawnRequest>> = OnceLock::new();
    let nursery = SPAWNER.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<SpawnRequest>();
        std::thread::spawn(move || {
            for SpawnRequest { command, runtime, reply } in inbox {
                let _context = runtime.enter();
                // A caller that went away drops the child, and with it the only reference: end it at once.
                let mut command = tokio::process::Command::from(command);
                if let Err(Ok(mut orphan)) = reply.send(command.spawn()) {
                    let _ = orphan.start_kill();
                }
            }
        });
        orders
    });
    let (reply, answer) = oneshot::channel();
    let gone = |_| io::Error::other("the thread that starts children is gone");
    nursery.send(SpawnRequest { command, runtime: Handle::current(), reply }).map_err(|_| gone(()))?;
    answer.await.map_err(|_| gone(()))?
}

/// Opens a log to append to, with its folder, readable by our user and group only; a long one is set aside as `….1`.
fn open_log(path: &Path) -> io::Result<(File, u64)> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    if fs::metadata(path).is_ok_and(|meta| meta.len() > MAX_LOG_BYTES) {
        let mut aside = path.as_os_str().to_owned();
        aside.push(".1");
        fs::rename(path, aside)?;
    }
    let file = OpenOptions::new().create(true).append(true).mode(0o640).open(path)?;
    let length = file.metadata()?.len();
    Ok((file, length))
}

fn read_tail(path: &Path, from: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    let end = file.metadata()?.len();
    file.seek(SeekFrom::Start(from.max(end.saturating_sub(LOG_TAIL_BYTES))))?;
    let mut bytes = Vec::new();
    file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The last three lines that say something, joined and shortened.
fn log_excerpt(tail: &str) -> String {
    let lines: Vec<&str> = tail.lines().map(str::trim).filter(|line| line.chars().any(char::is_alphanumeric)).collect();
    let words = lines[lines.len().saturating_sub(3)..].join(" / ");
    let plain: String = words.chars().filter(|c| !c.is_control()).collect();
    match plain.char_indices().nth(400) {
        Some((cut, _)) => format!("{}…", &plain[..cut]),
        None => plain,
    }
}

#[cfg(test)]
mod tests {
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
    async fn a_child_that_ends_leaves_its_status_and_its_last_words() {
        let log = log("ends");
        let child = shell("echo one; echo; echo two >&2; exit 3", &log).await;
        assert_eq!(child.wait().await.code(), Some(3));
        assert_eq!(child.log_excerpt(), "one / two");
        assert_eq!(child.wait().await.code(), Some(3));

        let second = shell("echo three", &log).await;
        second.wait().await;
        assert_eq!(second.log_excerpt(), "three", "words of an earlier run are not its own");
        let _ = fs::remove_file(log);
    }

    #[tokio::test]
    async fn a_child_that_obeys_goes_by_itself_and_a_deaf_one_is_killed() {
        let log = log("obeys");
        let polite = ChildProcess::spawn("sleep", LaunchSpec::new("/bin/sleep").arg("60"), &log).await.unwrap();
        assert!(polite.stop(Duration::from_secs(5)).await);

        let deaf = shell("trap '' TERM; echo ready; while :; do sleep 1; done", &log).await;
        while !deaf.log_excerpt().contains("ready") {
            tokio::task::yield_now().await;
        }
        assert!(!deaf.stop(Duration::from_millis(50)).await);
        assert_eq!(deaf.wait().await.signal(), Some(9));
        let _ = fs::remove_file(log);
    }

    #[tokio::test]
    async fn a_missing_program_ends_with_setprivs_words() {
        let log = log("missing");
        let child = ChildProcess::spawn("Nothing", LaunchSpec::new("/no/such/program"), &log).await.unwrap();
        assert!(!child.wait().await.success());
        assert!(child.log_excerpt().contains("/no/such/program"), "{}", child.log_excerpt());
        let _ = fs::remove_file(log);
    }

    #[tokio::test]
    async fn a_bare_child_sees_nothing_of_our_environment() {
        let log = log("bare");
        let launch = LaunchSpec::new("/usr/bin/env").clean_env().env("PGPORT", "1");
        let child = ChildProcess::spawn("env", launch, &log).await.unwrap();
        child.wait().await;
        let text = child.log_tail();
        let mut names: Vec<_> = text.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
        names.sort_unstable();
        assert_eq!(names, ["LANG", "PATH", "PGPORT"]);
        let _ = fs::remove_file(log);
    }

    #[test]
    fn last_words_are_one_short_line() {
        assert_eq!(log_excerpt("a\n\nb\n ---- \nc\nd\n"), "b / c / d");
        assert_eq!(log_excerpt(""), "");
        assert_eq!(log_excerpt(&"x".repeat(1000)).chars().count(), 401);
    }
}
