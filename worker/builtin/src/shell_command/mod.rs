//! `shell-command`: runs a program on this machine.
//!
//! The program is started directly, with its arguments as a list. A shell interprets them only if the job asks for one
//! with `script`. The program gets its own process group, and whatever ends the run ends the whole group
//! ([`process_group`]), also the death of the worker ([`process_guard`]). Of the worker's environment it sees a few harmless variables and those that the configuration
//! names. It does not see the URLs of the broker and of Redis.

mod headline;
mod input;
mod output_capture;
mod process_group;
pub(crate) mod process_guard;

use std::{
    io,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use milvaion_protocol::message::LAST_OUTPUT_HEADING;
use milvaion_worker::LogLevel;
use nix::{sys::signal::Signal, unistd::Pid};
use serde::Serialize;
use tokio::{
    io::AsyncWriteExt,
    process::{Child, Command},
    time::{sleep, timeout},
};

use self::{
    input::ShellCommandInput, output_capture::OutputCapture, process_group::ChildProcessGroup,
    process_guard::ProcessGuard,
};
use crate::context::{BuiltinContext, BuiltinError, BuiltinJob, truncate_to_fit};

/// The variables that every program inherits.
const DEFAULT_INHERITED_VARIABLES: [&str; 8] = ["PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR"];
/// Time for which output is still read after the program has ended, if processes that it started keep it open.
const OUTPUT_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of the last lines that an error quotes.
const ERROR_TAIL_LINES: usize = 10;
/// Maximum size of the lines that an error quotes.
const ERROR_TAIL_BYTES: usize = 2_000;
/// Maximum size of the line of output that names a failure in the first line of its error.
const MAX_HEADLINE_BYTES: usize = 500;

/// The job type.
pub(crate) struct ShellCommand {
    /// The names of variables that a program inherits in addition to the default ones.
    pub(crate) inherited_variables: Vec<String>,
    /// Kills the programs if this worker is killed. `None` in tests of a run.
    pub(crate) guard: Option<Arc<ProcessGuard>>,
}

/// The outcome of a program.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ShellCommandOutput {
    exit_code: i32,
    duration_ms: u64,
    lines: u64,
    tail: String,
}

impl BuiltinJob for ShellCommand {
    const TYPE: &'static str = "shell-command";
    const DESCRIPTION: &'static str =
        "Runs a program on the worker's machine, logs its output, and fails or succeeds by its exit code.";
    const TIMEOUT: Option<Duration> = Some(Duration::from_secs(86_400 + 60));
    // The longest grace period, and the time for SIGKILL and for the last output.
    const GRACE: Duration = Duration::from_secs(30 + 3);
    type Input = ShellCommandInput;
    type Output = ShellCommandOutput;

    async fn run(
        &self,
        context: &BuiltinContext,
        input: ShellCommandInput,
    ) -> Result<ShellCommandOutput, BuiltinError> {
        let started = Instant::now();
        let mut child = self.start(&input)?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let grace = Duration::from_secs(input.grace_seconds.into());
        let mut group = self.group(child, grace)?;
        let output = OutputCapture::new(context);
        let copying = async {
            let feeding = async {
                if let (Some(mut stdin), Some(text)) = (stdin, &input.stdin) {
                    // A program may end without reading its input.
                    let _ = stdin.write_all(text.as_bytes()).await;
                }
            };
            tokio::join!(feeding, output.capture(stdout, LogLevel::Info), output.capture(stderr, LogLevel::Warn));
        };
        tokio::pin!(copying);

        let limit = Duration::from_secs(input.timeout_seconds.into());
        let mut is_copied = false;
        let is_over_limit = loop {
            tokio::select! {
                () = &mut copying, if !is_copied => is_copied = true,
                status = group.wait() => {
                    let status = status.map_err(BuiltinError::retry)?;
                    if !is_copied && timeout(OUTPUT_DRAIN_TIMEOUT, copying).await.is_err() {
                        context.warn("the program has ended, but processes that it started still ran; they were killed");
                    }
                    group.kill_leftovers();
                    return exit_result(status, &input, &output, started.elapsed());
                }
                () = sleep(limit.saturating_sub(started.elapsed())) => break true,
                () = context.cancelled().cancelled() => break false,
            }
        };
        // The program may write useful lines while it ends.
        let terminating = group.terminate();
        tokio::pin!(terminating);
        tokio::select! {
            () = &mut copying, if !is_copied => terminating.await,
            () = &mut terminating => {
                if !is_copied {
                    let _ = timeout(OUTPUT_DRAIN_TIMEOUT, copying).await;
                }
            }
        }
        Err(if is_over_limit {
            let seconds = limit.as_secs();
            let text =
                format!("the program was terminated after {seconds} s; increase timeoutSeconds if it needs longer");
            BuiltinError::timed_out(with_last_output(text, &output))
        } else {
            let text = "the program was terminated because the run had to end".to_owned();
            // After any other stop, the text only goes to the log, which has the output already.
            BuiltinError::retry(if context.is_timed_out() { with_last_output(text, &output) } else { text })
        })
    }
}

/// Returns the error of a program without a guard.
fn no_guard(error: &io::Error) -> BuiltinError {
    BuiltinError::retry(format!(
        "the process that guards programs cannot be started: {error}; check the process limit of the worker's user"
    ))
}

impl ShellCommand {
    /// Returns the process group of a program that has been started.
    fn group(&self, child: Child, grace: Duration) -> Result<ChildProcessGroup, BuiltinError> {
        let id = child.id().and_then(|id| id.try_into().ok());
        let leader = Pid::from_raw(id.ok_or_else(|| BuiltinError::retry("the program has no process id"))?);
        let Some(guard) = &self.guard else { return Ok(ChildProcessGroup::new(child, leader, grace, None)) };
        match guard.guard(leader) {
            Ok(guarded) => Ok(ChildProcessGroup::new(child, leader, grace, Some(guarded))),
            Err(error) => {
                // Dropping the group kills it.
                drop(ChildProcessGroup::new(child, leader, grace, None));
                Err(no_guard(&error))
            }
        }
    }

    fn start(&self, input: &ShellCommandInput) -> Result<Child, BuiltinError> {
        let argv = input.command()?;
        if let Some(guard) = &self.guard {
            guard.ensure_running().map_err(|error| no_guard(&error))?;
        }
        let inherited =
            DEFAULT_INHERITED_VARIABLES.into_iter().chain(self.inherited_variables.iter().map(String::as_str));
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
                return Err(BuiltinError::retry(format!(
                    "`workingDirectory` is {}, which is not a directory on this worker's machine",
                    directory.display()
                )));
            }
            command.current_dir(directory);
        }
        command.spawn().map_err(|error| {
            BuiltinError::retry(format!(
                "the program {:?} cannot be started on this worker's machine: {error}; check `argv`",
                argv[0]
            ))
        })
    }
}

/// Returns `text` with the last lines of the output, which explain it.
fn with_last_output(text: String, output: &OutputCapture<'_>) -> String {
    let tail = output.tail(ERROR_TAIL_LINES);
    let begin = tail.ceil_char_boundary(tail.len().saturating_sub(ERROR_TAIL_BYTES));
    if tail.trim().is_empty() { text } else { format!("{text}\n{LAST_OUTPUT_HEADING}\n{}", &tail[begin..]) }
}

/// Returns `text`, in the same line the line of the output that names the failure, and the last lines of the output unless
/// that is the only one.
fn with_headline(text: String, output: &OutputCapture<'_>) -> String {
    let Some(headline) = output.headline() else { return text };
    let text = format!("{text}: {}", &headline[..headline.floor_char_boundary(MAX_HEADLINE_BYTES)]);
    if output.tail(ERROR_TAIL_LINES).trim() == headline { text } else { with_last_output(text, output) }
}

fn exit_result(
    status: ExitStatus,
    input: &ShellCommandInput,
    output: &OutputCapture<'_>,
    duration: Duration,
) -> Result<ShellCommandOutput, BuiltinError> {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(number)) => {
            let name = Signal::try_from(number).map_or("unknown signal", Signal::as_str);
            let text = format!("the program was ended by signal {number} ({name})");
            return Err(BuiltinError::retry(with_headline(text, output)));
        }
        (None, None) => return Err(BuiltinError::retry("the program ended without an exit code and without a signal")),
    };
    let is_among = |codes: &[u8]| codes.iter().any(|one| i32::from(*one) == code);
    if is_among(&input.success_codes) {
        let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let lines = output.lines();
        return Ok(truncate_to_fit(output.tail(usize::MAX), |tail, _| ShellCommandOutput {
            exit_code: code,
            duration_ms,
            lines,
            tail,
        }));
    }
    let text = with_headline(format!("the program ended with exit code {code}"), output);
    Err(if is_among(&input.permanent_codes) { BuiltinError::permanent(text) } else { BuiltinError::retry(text) })
}

#[cfg(test)]
mod tests;
