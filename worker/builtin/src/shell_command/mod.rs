//! `shell-command`: runs a program on this machine.
//!
//! The program is started as it is named, with its arguments in a list; no shell reads the line unless the job asks for
//! one. It gets a process group of its own, and whatever ends the run ends the whole group ([`group`]). Of the worker's
//! environment it sees a handful of harmless variables and those the configuration names: the addresses of the broker and
//! of Redis are not its business.

mod group;
mod input;
mod output;

use std::{
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use milvaion_worker::LogLevel;
use nix::sys::signal::Signal;
use serde::Serialize;
use tokio::{
    io::AsyncWriteExt,
    process::{Child, Command},
    time::{sleep, timeout},
};
use tokio_util::task::TaskTracker;

use self::{group::Group, input::Input, output::Output};
use crate::seal::{BuiltIn, Desk, Failure, fit};

/// The variables every program inherits.
const INHERITED: [&str; 8] = ["PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR"];
/// How long what the program has left running may go on holding its output open.
const LEFTOVERS: Duration = Duration::from_secs(1);
/// How long a cancelled run waits for its program, of the second it has.
const LAST_WORDS: Duration = Duration::from_millis(800);
/// How many of the last lines are told with a failure, and how many bytes of them.
const TOLD_LINES: usize = 10;
const TOLD_BYTES: usize = 2_000;

/// The longest that the groups of ended runs may take to end, when the worker does.
pub(crate) const LONGEST_GRACE: Duration = Duration::from_secs(31);

/// The job type.
pub(crate) struct ShellCommand {
    /// The names of variables a program sees beside the usual ones.
    pub(crate) inherited: Vec<String>,
    /// The groups that are being ended.
    pub(crate) endings: TaskTracker,
}

/// How it ended.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Ended {
    exit_code: i32,
    duration_ms: u64,
    lines: u64,
    tail: String,
}

impl BuiltIn for ShellCommand {
    const TYPE: &'static str = "shell-command";
    const DESCRIPTION: &'static str =
        "Runs a program on the worker's machine; its output goes to the log, its exit code decides.";
    const TIMEOUT: Option<Duration> = Some(Duration::from_secs(86_400 + 60));
    type Input = Input;
    type Output = Ended;

    async fn run(&self, desk: &Desk, input: Input) -> Result<Ended, Failure> {
        let started = Instant::now();
        let mut child = self.start(&input)?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let grace = Duration::from_secs(input.grace_seconds.into());
        let mut group = Group::new(child, grace, self.endings.clone())
            .ok_or_else(|| Failure::retry("the program has ended before it could be watched"))?;
        let output = Output::new(desk);
        let copying = async {
            let feeding = async {
                if let (Some(mut stdin), Some(text)) = (stdin, &input.stdin) {
                    // A program need not read what it is given.
                    let _ = stdin.write_all(text.as_bytes()).await;
                }
            };
            tokio::join!(feeding, output.copy(stdout, LogLevel::Info), output.copy(stderr, LogLevel::Warn));
        };
        tokio::pin!(copying);

        let patience = Duration::from_secs(input.timeout_seconds.into());
        let mut is_copied = false;
        let (why, last_words) = loop {
            tokio::select! {
                () = &mut copying, if !is_copied => is_copied = true,
                status = group.ended() => {
                    let status = status.map_err(Failure::retry)?;
                    if !is_copied && timeout(LEFTOVERS, copying).await.is_err() {
                        desk.warn("the command has ended, but what it started still ran; it was killed");
                    }
                    group.sweep();
                    return judge(status, &input, &output, started.elapsed());
                }
                () = sleep(patience.saturating_sub(started.elapsed())) => {
                    let text = format!("the command was ended after {} s; give timeoutSeconds a larger value if it needs longer", patience.as_secs());
                    break (text, grace + LEFTOVERS);
                }
                () = desk.cancelled().cancelled() => {
                    break ("the command was ended because the run was to end".to_owned(), LAST_WORDS);
                }
            }
        };
        // Its last lines are worth reading, and they come while it ends.
        let ending = async {
            if let Some(task) = group.end() {
                let _ = task.await;
            }
        };
        let both = async {
            if is_copied {
                ending.await;
            } else {
                tokio::join!(ending, copying);
            }
        };
        if timeout(last_words, both).await.is_err() && desk.cancelled().is_cancelled() {
            desk.info(format!("the command is still ending; it is killed {} s after it was asked to", grace.as_secs()));
        }
        Err(Failure::retry(why))
    }
}

impl ShellCommand {
    fn start(&self, input: &Input) -> Result<Child, Failure> {
        let argv = input.command()?;
        let inherited = INHERITED.into_iter().chain(self.inherited.iter().map(String::as_str));
        let mut command = Command::new(&argv[0]);
        command
            .args(&argv[1..])
            .env_clear()
            .envs(inherited.filter_map(|name| Some((name, std::env::var_os(name)?))))
            .envs(&input.environment)
            .stdin(if input.stdin.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        if let Some(directory) = input.working_directory.as_deref().filter(|directory| !directory.is_empty()) {
            let directory = PathBuf::from(directory);
            if !directory.is_dir() {
                return Err(Failure::retry(format!(
                    "`workingDirectory` is {}, which is no directory on this worker's machine",
                    directory.display()
                )));
            }
            command.current_dir(directory);
        }
        command.spawn().map_err(|error| {
            Failure::retry(format!(
                "the program {:?} cannot be started on this worker's machine: {error}; check `argv`",
                argv[0]
            ))
        })
    }
}

fn judge(status: ExitStatus, input: &Input, output: &Output<'_>, duration: Duration) -> Result<Ended, Failure> {
    let with_tail = |text: String| {
        let tail = output.tail(TOLD_LINES);
        let begin = tail.ceil_char_boundary(tail.len().saturating_sub(TOLD_BYTES));
        if tail.is_empty() { text } else { format!("{text}; it wrote last: {}", &tail[begin..]) }
    };
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(number)) => {
            let name = Signal::try_from(number).map_or("a signal without a name", Signal::as_str);
            return Err(Failure::retry(with_tail(format!("the command was ended by signal {number} ({name})"))));
        }
        (None, None) => return Err(Failure::retry("the command ended in a way the system does not tell")),
    };
    let is_among = |codes: &[u8]| codes.iter().any(|one| i32::from(*one) == code);
    if is_among(&input.success_codes) {
        let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let lines = output.lines();
        return Ok(fit(output.tail(usize::MAX), |tail, _| Ended { exit_code: code, duration_ms, lines, tail }));
    }
    let text = with_tail(format!("the command ended with exit code {code}"));
    Err(if is_among(&input.permanent_codes) { Failure::permanent(text) } else { Failure::retry(text) })
}

#[cfg(test)]
mod tests;
