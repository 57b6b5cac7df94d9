//! `shell-command`: runs a program on this machine.
//!
//! The program is started as it is named, with its arguments in a list; no shell reads the line, so nothing in an
//! argument is ever executed. It gets a process group of its own, and whatever ends the run ends the whole group. Of the
//! worker's environment it sees a handful of harmless variables: the addresses of the broker and of Redis are not its
//! business.

use std::{
    collections::BTreeMap,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use milvaion_worker::{Job, JobContext, JobError, LogLevel};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, Command},
};

/// The variables a program inherits.
const INHERITED: [&str; 8] = ["PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR"];
/// A line longer than this is logged in pieces, so that a program without line breaks cannot fill the memory.
const LONGEST_LINE: usize = 8_000;
/// How long what the program has left running may go on holding its output open.
const LEFTOVERS: Duration = Duration::from_secs(1);

/// The job type.
pub(crate) struct ShellCommand;

/// What to run.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "Shell command")]
pub(crate) struct Input {
    /// The program and its arguments, one for each entry; no shell reads them, so a wildcard is plain text.
    #[schemars(title = "Command", length(min = 1, max = 200), example = ["ls", "-l", "/tmp"])]
    argv: Vec<String>,
    /// Where it runs. None given: where the worker runs.
    #[serde(default)]
    #[schemars(title = "Working directory", length(max = 4096), example = "/tmp")]
    working_directory: Option<String>,
    /// Variables it sees, beside PATH, HOME and a few like them.
    #[serde(default)]
    #[schemars(title = "Environment", extend("maxProperties" = 100))]
    environment: BTreeMap<String, String>,
    /// After how many seconds it is killed, from 1 to 86400.
    #[serde(default = "an_hour")]
    #[schemars(title = "Timeout in seconds", range(min = 1, max = 86400))]
    timeout_seconds: u32,
}

fn an_hour() -> u32 {
    3600
}

/// How it ended.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Output {
    exit_code: i32,
    duration_ms: u64,
}

impl Job for ShellCommand {
    const TYPE: &'static str = "shell-command";
    const DESCRIPTION: &'static str =
        "Runs a program on the worker's machine; its output goes to the log, its exit code decides.";
    const TIMEOUT: Option<Duration> = Some(Duration::from_secs(86_400 + 60));
    type Input = Input;
    type Output = Output;

    async fn run(&self, ctx: &JobContext, input: Input) -> Result<Output, JobError> {
        check(&input)?;
        let started = Instant::now();
        let (mut child, mut group) = start(&input)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let output = async { tokio::join!(copy(stdout, ctx, LogLevel::Info), copy(stderr, ctx, LogLevel::Warn)) };
        tokio::pin!(output);

        let patience = Duration::from_secs(input.timeout_seconds.into());
        let mut copied = false;
        let status = loop {
            tokio::select! {
                _ = &mut output, if !copied => copied = true,
                status = child.wait() => break status?,
                // Dropping the group kills it.
                () = tokio::time::sleep(patience.saturating_sub(started.elapsed())) => {
                    return Err(JobError::new(format!(
                        "the command was killed after {} s; give timeoutSeconds a larger value if it needs longer",
                        input.timeout_seconds
                    )));
                }
                () = ctx.cancelled().cancelled() => return Err(JobError::new("the command was killed because the run was cancelled")),
            }
        };
        if copied || tokio::time::timeout(LEFTOVERS, output).await.is_ok() {
            group.has_ended();
        } else {
            ctx.warn("the command has ended, but what it started still ran; it was killed");
        }
        let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        judge(status).map(|exit_code| Output { exit_code, duration_ms })
    }
}

fn check(input: &Input) -> Result<(), JobError> {
    if input.argv.first().is_none_or(String::is_empty) {
        return Err(JobError::permanent("`argv` names no program; its first entry must"));
    }
    if input
        .argv
        .iter()
        .chain(input.environment.keys())
        .chain(input.environment.values())
        .any(|text| text.contains('\0'))
    {
        return Err(JobError::permanent("`argv` or `environment` holds a NUL character; no program can be given one"));
    }
    if let Some(name) = input.environment.keys().find(|name| name.is_empty() || name.contains('=')) {
        return Err(JobError::permanent(format!(
            "`environment` holds the name {name:?}; a name is not empty and has no '='"
        )));
    }
    if !(1..=86_400).contains(&input.timeout_seconds) {
        return Err(JobError::permanent(format!("`timeoutSeconds` is {}; give 1 to 86400", input.timeout_seconds)));
    }
    Ok(())
}

fn start(input: &Input) -> Result<(Child, Group), JobError> {
    let mut command = Command::new(&input.argv[0]);
    command
        .args(&input.argv[1..])
        .env_clear()
        .envs(INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
        .envs(&input.environment)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    if let Some(directory) = input.working_directory.as_deref().filter(|directory| !directory.is_empty()) {
        let directory = PathBuf::from(directory);
        if !directory.is_dir() {
            return Err(JobError::new(format!(
                "`workingDirectory` is {}, which is no directory on this worker's machine",
                directory.display()
            )));
        }
        command.current_dir(directory);
    }
    let child = command.spawn().map_err(|error| {
        JobError::new(format!(
            "the program {:?} cannot be started on this worker's machine: {error}; check `argv`",
            input.argv[0]
        ))
    })?;
    let group = Group { leader: child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw) };
    Ok((child, group))
}

/// A process group that does not outlive its run.
struct Group {
    leader: Option<Pid>,
}

impl Group {
    /// Nothing of it runs any more. Its number may belong to somebody else from now on.
    fn has_ended(&mut self) {
        self.leader = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.leader {
            // It may just have ended by itself.
            let _ = killpg(leader, Signal::SIGKILL);
        }
    }
}

/// Logs each line as it is written.
async fn copy(stream: Option<impl AsyncRead + Unpin>, ctx: &JobContext, level: LogLevel) {
    let Some(mut stream) = stream else { return };
    let mut line = Vec::new();
    let mut buffer = [0; 4096];
    // An error on a pipe means the same as its end.
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        for &byte in &buffer[..read] {
            if byte == b'\n' {
                ctx.log(level, text(&line));
                line.clear();
                continue;
            }
            line.push(byte);
            if line.len() >= LONGEST_LINE {
                ctx.log(level, text(&line));
                line.clear();
            }
        }
    }
    if !line.is_empty() {
        ctx.log(level, text(&line));
    }
}

fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned()
}

fn judge(status: ExitStatus) -> Result<i32, JobError> {
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(0),
        (Some(code), _) => Err(JobError::new(format!("the command ended with exit code {code}; its log says more"))),
        (None, Some(signal)) => Err(JobError::new(format!("the command was ended by signal {signal}"))),
        (None, None) => Err(JobError::new("the command ended in a way the system does not tell")),
    }
}

#[cfg(test)]
mod tests {
    use milvaion_worker::testing::{Record, Trial};
    use protocol::status::OccurrenceStatus;
    use serde_json::{Value, json};

    use super::*;

    async fn run(input: Value) -> Record {
        Trial::new(ShellCommand, input).run().await
    }

    fn sh(script: &str) -> Value {
        json!({"argv": ["sh", "-c", script]})
    }

    #[tokio::test]
    async fn output_is_logged_by_stream_and_the_exit_code_is_the_result() {
        let record = run(sh("echo one; echo two >&2; printf three")).await;
        assert_eq!(record.status(), OccurrenceStatus::Completed, "{record:?}");
        assert!(record.end().result.as_deref().is_some_and(|text| text.starts_with(r#"{"exitCode":0,"#)));
        let of = |level| {
            record.lines.iter().filter(|line| line.level == level).map(|line| line.message.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(of(LogLevel::Info), ["one", "three"]);
        assert_eq!(of(LogLevel::Warn), ["two"]);
    }

    #[tokio::test]
    async fn another_exit_code_is_a_failure() {
        let record = run(sh("exit 3")).await;
        assert!(record.end().exception.as_deref().is_some_and(|text| text.contains("exit code 3")));
    }

    #[tokio::test]
    async fn an_argument_is_never_executed() {
        let record = run(json!({"argv": ["echo", "$(id); `id` > x"]})).await;
        assert_eq!(record.lines[0].message, "$(id); `id` > x");
    }

    #[tokio::test]
    async fn only_named_variables_are_seen() {
        let input = json!({"argv": ["env"], "environment": {"COLOUR": "red"}, "workingDirectory": "/"});
        let record = run(input).await;
        assert!(record.lines.iter().any(|line| line.message == "COLOUR=red"));
        assert!(!record.lines.iter().any(|line| line.message.starts_with("CARGO")), "{record:?}");
    }

    #[tokio::test]
    async fn a_command_out_of_time_is_killed_with_what_it_started() {
        let marker = std::env::temp_dir().join(format!("milvaion-shell-{}", std::process::id()));
        let script = format!("(sleep 2; touch {}) & sleep 30", marker.display());
        let record = run(json!({"argv": ["sh", "-c", script], "timeoutSeconds": 1})).await;
        assert!(record.end().exception.as_deref().is_some_and(|text| text.contains("killed after 1 s")), "{record:?}");
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert!(!marker.exists(), "a child of the command went on");
    }

    #[tokio::test]
    async fn wrong_input_names_the_field() {
        for (input, field) in [
            (json!({"argv": []}), "`argv`"),
            (json!({"argv": ["no-such-program-anywhere"]}), "`argv`"),
            (json!({"argv": ["ls"], "workingDirectory": "/no/such/place"}), "`workingDirectory`"),
            (json!({"argv": ["ls"], "environment": {"A=B": "c"}}), "`environment`"),
            (json!({"argv": ["ls"], "timeoutSeconds": 0}), "`timeoutSeconds`"),
        ] {
            let record = run(input.clone()).await;
            assert!(record.end().exception.as_deref().is_some_and(|text| text.contains(field)), "{input}: {record:?}");
        }
    }
}
