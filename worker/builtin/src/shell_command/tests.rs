//! Tests with real programs.

use std::path::{Path, PathBuf};

use milvaion_protocol::status::OccurrenceStatus;
use milvaion_worker::{CancellationToken, testing::TestReport};
use serde_json::{Value, json};

use super::*;
use crate::context::tests::{all_of, test_run};

const SECRETS: &[(&str, &str)] = &[
    ("word", "c4n4ry-word"),
    ("lines", "first-canary-line\nsecond-canary-line"),
    ("key", "7Vq2mZ0cXr9TtLw4KdYb1NfGh8JsPeRu3AoQi6CvBx5ZkMnDyWgHjEaFlUzSp0TqIrOxVbKcGdNmLhJfYsWe2RtPuAyQiXoC"),
];

fn job() -> ShellCommand {
    ShellCommand { inherited_variables: vec!["CARGO_PKG_NAME".to_owned()], guard: None }
}

async fn run(input: Value) -> TestReport {
    test_run(job(), SECRETS, input).run().await
}

fn sh(script: &str) -> Value {
    json!({"script": script})
}

fn exception(record: &TestReport) -> &str {
    record.end().exception.as_deref().unwrap_or_else(|| panic!("must fail: {record:?}"))
}

/// Returns the path of a file of one test, which does not exist yet.
fn marker(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("milvaion-shell-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

async fn wait_for_file(path: &Path) {
    let polling = async {
        while !path.exists() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(10), polling).await.expect("the file appears");
}

/// Returns true if the process whose id is in `path` exists and is not defunct.
fn is_running(path: &Path) -> bool {
    let pid = std::fs::read_to_string(path).expect("a number");
    let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    !state.is_empty() && !state.contains(") Z")
}

/// Waits until the process whose id is in `path` has ended. A killed process takes a moment to end.
async fn wait_for_exit(path: &Path) {
    let polling = async {
        while is_running(path) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(5), polling).await.expect("no process is left");
}

#[tokio::test]
async fn output_is_logged_by_stream_and_returned() {
    let record = run(sh("echo one; echo two >&2; printf three")).await;
    assert_eq!(record.status(), OccurrenceStatus::Completed, "{record:?}");
    let result = record.end().result.as_deref().expect("a result");
    assert!(result.starts_with(r#"{"exitCode":0,"durationMs":"#) && result.contains(r#""lines":3"#), "{result}");
    let lines_at = |level| {
        record.lines.iter().filter(|line| line.level == level).map(|line| line.message.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(lines_at(LogLevel::Info), ["one", "three"]);
    assert_eq!(lines_at(LogLevel::Warn), ["two"]);
}

#[tokio::test]
async fn exit_code_decides_and_last_lines_are_quoted() {
    let record = run(sh("echo the floor is wet >&2; exit 3")).await;
    assert_eq!(exception(&record), "the program ended with exit code 3: the floor is wet");
    // Standard error names the failure, also if standard output has later lines.
    let record = run(sh("echo the floor is wet >&2; echo 17 rooms are done; exit 3")).await;
    assert_eq!(exception(&record).lines().next(), Some("the program ended with exit code 3: the floor is wet"));
    assert!(exception(&record).contains("\nits last output:\n") && exception(&record).contains("17 rooms are done"));
    let record = run(sh("echo first; echo last; exit 3")).await;
    assert_eq!(exception(&record), "the program ended with exit code 3: last\nits last output:\nfirst\nlast");
    let record = run(json!({"script": "exit 3", "successCodes": [0, 3]})).await;
    assert_eq!(record.status(), OccurrenceStatus::Completed);
    let record = run(sh("kill -9 $$")).await;
    assert_eq!(exception(&record), "the program was ended by signal 9 (SIGKILL)");
    let (mut input, status) =
        (serde_json::from_value::<ShellCommandInput>(sh("x")).expect("an input"), ExitStatus::from_raw(78 << 8));
    let context = crate::context::tests::test_context().await;
    let output = OutputCapture::new(&context);
    assert!(!exit_result(status, &input, &output, OUTPUT_DRAIN_TIMEOUT).err().expect("a failure").is_permanent());
    input.permanent_codes = vec![78];
    assert!(exit_result(status, &input, &output, OUTPUT_DRAIN_TIMEOUT).err().expect("a failure").is_permanent());
}

#[test]
fn line_breaks_of_windows_do_not_reach_the_shell() {
    let input: ShellCommandInput = serde_json::from_value(sh("echo one\r\necho two\r\n")).expect("a valid input");
    assert_eq!(input.command().ok().and_then(|argv| argv.last().cloned()).as_deref(), Some("echo one\necho two\n"));
}

#[tokio::test]
async fn arguments_are_not_interpreted() {
    let record = run(json!({"argv": ["echo", "$(id); `id` > x", "{{secret:word}}"]})).await;
    assert_eq!(record.lines[0].message, "$(id); `id` > x {{secret:word}}");
}

#[tokio::test]
async fn program_sees_named_variables_and_stdin() {
    let input = json!({
        "script": "env; cat", "environment": {"COLOUR": "red"}, "workingDirectory": "/", "stdin": "fed\n{{secret:word}}\n"
    });
    let record = run(input).await;
    let has = |text: &str| record.lines.iter().any(|line| line.message == text);
    assert!(has("COLOUR=red") && has("fed") && has("{{secret:word}}"), "{record:?}");
    assert!(has("CARGO_PKG_NAME=milvaion-builtin"), "the configuration names it");
    assert!(!record.lines.iter().any(|line| line.message.starts_with("CARGO_MANIFEST")), "{record:?}");
}

#[tokio::test]
async fn output_is_redacted_in_every_encoding() {
    let script = "echo $W; echo $W | base64; printf \"x:$W\" | base64; echo \"$L\"; printf %s $W | od -An -tx1 | tr -d ' \\n'; echo; \
        head -c 7995 /dev/zero | tr '\\0' y; echo $W; echo $W >&2; exit 1";
    let record = run(json!({"script": script, "environment": {"W": "{{secret:word}}", "L": "{{secret:lines}}"}})).await;
    let all = all_of(&record);
    assert!(all.contains("{{secret:word}}") && all.contains("{{secret:lines}}"), "{all}");
    for trace in ["c4n4ry", "canary", "YzRuNHJ5", "M0bjRyeS", "63346e347279", "yc4n"] {
        assert!(!all.contains(trace), "{trace} is in {all}");
    }
}

#[tokio::test]
async fn base64_of_a_long_secret_is_redacted_in_each_line() {
    use base64::{Engine, prelude::BASE64_STANDARD};
    let key = SECRETS[2].1;
    let script = "for p in a ab abc; do printf \"$p$K\" | base64; done; printf \"user:$K\" | base64 -w 64; printf \"$K\" | base64 -w 30";
    let record = run(json!({"script": script, "environment": {"K": "{{secret:key}}"}})).await;
    assert_eq!(record.status(), OccurrenceStatus::Completed, "{record:?}");
    assert!(record.lines.len() >= 5 * 2, "{record:?}");
    let all = all_of(&record);
    for before in 0..3 {
        let encoded = BASE64_STANDARD.encode(format!("{}{key}", &"abc"[..before]));
        // Without the first and the last characters, which depend on what surrounds the key.
        for window in encoded.as_bytes()[4..encoded.len() - 4].windows(8) {
            let window = String::from_utf8_lossy(window);
            assert!(!all.contains(&*window), "{window} is in {all}");
        }
    }
}

#[tokio::test]
async fn large_output_is_bounded() {
    let record = run(sh("head -c 100000 /dev/zero | tr '\\0' y; echo; yes 'a line of some length that is written over and over' | head -n 120000")).await;
    assert_eq!(record.status(), OccurrenceStatus::Completed);
    assert!(
        record.lines[0].message.len() < 8_100 && record.lines[0].message.ends_with("[92000 more bytes]"),
        "{}",
        record.lines[0].message.len()
    );
    assert!(record.lines.len() < 120_000, "{} lines are logged", record.lines.len());
    assert!(record.lines.iter().any(|line| line.message.contains("lines before this one are not kept")));
    let last = record.lines.last().expect("a line");
    assert_eq!(last.seq - record.lines[0].seq, 120_000, "the last line is kept");
    let result: Value = serde_json::from_str(record.end().result.as_deref().expect("a result")).expect("JSON");
    assert_eq!(result["lines"], 120_001);
    assert!(result["tail"].as_str().is_some_and(|tail| (10_000..=16 * 1024).contains(&tail.len())));
}

#[tokio::test]
async fn timed_out_group_gets_sigterm_then_sigkill() {
    let (child, terminated) = (marker("child"), marker("terminated"));
    let script = format!(
        "trap 'echo terminated > {}' TERM; (trap '' TERM; echo $(exec sh -c 'echo $PPID') > {}; while :; do sleep 0.1; done) & while :; do sleep 0.1; done",
        terminated.display(),
        child.display()
    );
    let record = run(json!({"script": script, "timeoutSeconds": 1, "graceSeconds": 1})).await;
    assert!(exception(&record).contains("terminated after 1 s"), "{record:?}");
    assert_eq!(record.status(), OccurrenceStatus::TimedOut);
    assert!(terminated.exists(), "SIGTERM comes first");
    wait_for_exit(&child).await;
}

#[tokio::test]
async fn timed_out_run_quotes_its_last_output() {
    let script = "echo copied 3 of 9; exec sleep 60";
    let (own_limit, job_timeout) = tokio::join!(
        run(json!({"script": script, "timeoutSeconds": 1})),
        test_run(job(), SECRETS, sh(script)).timeout_seconds(1).run(),
    );
    for (record, first) in
        [(own_limit, "terminated after 1 s"), (job_timeout, "timed out: the run was ended after 1 s")]
    {
        assert_eq!(record.status(), OccurrenceStatus::TimedOut);
        assert!(exception(&record).lines().next().is_some_and(|line| line.contains(first)), "{record:?}");
        assert!(exception(&record).ends_with("\nits last output:\ncopied 3 of 9"), "{record:?}");
    }
}

#[tokio::test]
async fn cancelled_run_ends_after_its_program() {
    for (grace, is_tidied) in [(5, true), (0, false)] {
        let (child, tidied) = (marker("cancelled"), marker("tidied"));
        let token = CancellationToken::new();
        let script = format!(
            "trap 'sleep 1.5; echo tidied > {}; exit' TERM; echo $$ > {}; while :; do sleep 0.1; done",
            tidied.display(),
            child.display()
        );
        let input = json!({"script": script, "graceSeconds": grace});
        let test_run = test_run(job(), SECRETS, input).cancelled_by(token.clone(), "by ann");
        let (record, ()) = tokio::join!(test_run.run(), async {
            wait_for_file(&child).await;
            token.cancel();
        });
        assert_eq!(record.status(), OccurrenceStatus::Cancelled);
        assert!(!is_running(&child), "the next run would overlap the program");
        assert_eq!(tidied.exists(), is_tidied, "grace period of {grace} s");
    }
}

#[tokio::test]
async fn interrupted_run_kills_its_program_at_once() {
    let (child, token) = (marker("interrupted"), CancellationToken::new());
    let script = format!("trap '' TERM; echo $$ > {}; while :; do sleep 0.1; done", child.display());
    let input = json!({"script": script, "graceSeconds": 30});
    let test_run = test_run(job(), SECRETS, input).interrupted_by(token.clone());
    let (record, ()) = tokio::join!(test_run.run(), async {
        wait_for_file(&child).await;
        token.cancel();
    });
    // It is handed back, and may start elsewhere at once.
    assert_eq!(record.status(), OccurrenceStatus::Queued);
    wait_for_exit(&child).await;
}

#[tokio::test]
async fn leftover_processes_are_killed() {
    let child = marker("left");
    let record = run(sh(&format!("sleep 100 > /dev/null 2>&1 & echo $! > {}", child.display()))).await;
    assert_eq!(record.status(), OccurrenceStatus::Completed);
    wait_for_exit(&child).await;
}

#[tokio::test]
async fn invalid_input_names_the_field() {
    for (input, field) in [
        (json!({}), "`argv`"),
        (json!({"argv": []}), "`argv`"),
        (json!({"argv": ["ls"], "script": "ls"}), "`argv` and `script`"),
        (json!({"argv": ["no-such-program-anywhere"]}), "`argv`"),
        (json!({"argv": vec!["x"; 201]}), "`argv`"),
        (json!({"argv": ["ls", "a\u{0}b"]}), "`argv`"),
        (json!({"argv": ["ls"], "workingDirectory": "/no/such/place"}), "`workingDirectory`"),
        (json!({"argv": ["ls"], "environment": {"A=B": "c"}}), "`environment`"),
        (json!({"argv": ["ls"], "graceSeconds": 31}), "`graceSeconds`"),
        (json!({"argv": ["ls"], "timeoutSeconds": 0}), "`timeoutSeconds`"),
        (json!({"argv": ["ls"], "successCodes": [256]}), "`successCodes"),
    ] {
        let record = run(input.clone()).await;
        assert!(exception(&record).contains(field), "{input}: {record:?}");
    }
}
