//! With real programs.

use std::path::{Path, PathBuf};

use milvaion_protocol::status::OccurrenceStatus;
use milvaion_worker::{CancellationToken, testing::TestReport};
use serde_json::{Value, json};

use super::*;
use crate::context::tests::{all_of, test_run};

const SECRETS: &[(&str, &str)] = &[("word", "c4n4ry-word"), ("lines", "first-canary-line\nsecond-canary-line")];

fn job() -> (ShellCommand, TaskTracker) {
    let terminations = TaskTracker::new();
    (
        ShellCommand { inherited_variables: vec!["CARGO_PKG_NAME".to_owned()], terminations: terminations.clone() },
        terminations,
    )
}

async fn run(input: Value) -> TestReport {
    test_run(job().0, SECRETS, input).run().await
}

fn sh(script: &str) -> Value {
    json!({"script": script})
}

fn exception(record: &TestReport) -> &str {
    record.end().exception.as_deref().unwrap_or_else(|| panic!("must fail: {record:?}"))
}

/// A file of this test's own, which is not there.
fn marker(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("milvaion-shell-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

async fn appears(path: &Path) {
    let looking = async {
        while !path.exists() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(10), looking).await.expect("the file appears");
}

/// Whether the process whose number is in `path` is there and not a zombie.
fn runs(path: &Path) -> bool {
    let pid = std::fs::read_to_string(path).expect("a number");
    let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    !state.is_empty() && !state.contains(") Z")
}

/// Waits until it has gone: who was killed takes a moment for it.
async fn ends(path: &Path) {
    let looking = async {
        while runs(path) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(5), looking).await.expect("nothing is left");
}

#[tokio::test]
async fn output_is_logged_by_stream_and_its_end_is_the_result() {
    let record = run(sh("echo one; echo two >&2; printf three")).await;
    assert_eq!(record.status(), OccurrenceStatus::Completed, "{record:?}");
    let result = record.end().result.as_deref().expect("a result");
    assert!(result.starts_with(r#"{"exitCode":0,"durationMs":"#) && result.contains(r#""lines":3"#), "{result}");
    let of = |level| {
        record.lines.iter().filter(|line| line.level == level).map(|line| line.message.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(of(LogLevel::Info), ["one", "three"]);
    assert_eq!(of(LogLevel::Warn), ["two"]);
}

#[tokio::test]
async fn the_exit_code_decides_and_the_last_lines_are_told() {
    let record = run(sh("echo the floor is wet >&2; exit 3")).await;
    assert_eq!(exception(&record), "the command ended with exit code 3; it wrote last: the floor is wet");
    let record = run(json!({"script": "exit 3", "successCodes": [0, 3]})).await;
    assert_eq!(record.status(), OccurrenceStatus::Completed);
    let record = run(sh("kill -9 $$")).await;
    assert_eq!(exception(&record), "the command was ended by signal 9 (SIGKILL)");
    let (mut input, status) =
        (serde_json::from_value::<ShellCommandInput>(sh("x")).expect("an input"), ExitStatus::from_raw(78 << 8));
    let context = crate::context::tests::test_context().await;
    let output = OutputCapture::new(&context);
    assert!(!exit_result(status, &input, &output, OUTPUT_DRAIN_TIMEOUT).err().expect("a failure").is_permanent());
    input.permanent_codes = vec![78];
    assert!(exit_result(status, &input, &output, OUTPUT_DRAIN_TIMEOUT).err().expect("a failure").is_permanent());
}

#[tokio::test]
async fn an_argument_is_never_executed() {
    let record = run(json!({"argv": ["echo", "$(id); `id` > x", "{{secret:word}}"]})).await;
    assert_eq!(record.lines[0].message, "$(id); `id` > x {{secret:word}}");
}

#[tokio::test]
async fn only_named_variables_are_seen_and_the_input_is_read() {
    let input = json!({
        "script": "env; cat", "environment": {"COLOUR": "red"}, "workingDirectory": "/", "stdin": "fed\n{{secret:word}}\n"
    });
    let record = run(input).await;
    let has = |text: &str| record.lines.iter().any(|line| line.message == text);
    assert!(has("COLOUR=red") && has("fed") && has("{{secret:word}}"), "{record:?}");
    assert!(has("CARGO_PKG_NAME=milvaion-builtin"), "the configuration lets it through");
    assert!(!record.lines.iter().any(|line| line.message.starts_with("CARGO_MANIFEST")), "{record:?}");
}

#[tokio::test]
async fn a_program_cannot_say_a_secret_in_any_shape() {
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
async fn a_flood_is_bounded_in_its_lines_its_log_and_its_result() {
    let record = run(sh("head -c 100000 /dev/zero | tr '\\0' y; echo; yes 'a line of some length that is written over and over' | head -n 120000")).await;
    assert_eq!(record.status(), OccurrenceStatus::Completed);
    assert!(
        record.lines[0].message.len() < 8_100 && record.lines[0].message.ends_with("[92000 more bytes]"),
        "{}",
        record.lines[0].message.len()
    );
    let logged: usize = record.lines.iter().map(|line| line.message.len()).sum();
    assert!(logged <= 4 * 1024 * 1024 + 1024, "{logged}");
    let result: Value = serde_json::from_str(record.end().result.as_deref().expect("a result")).expect("JSON");
    assert_eq!(result["lines"], 120_001);
    assert!(result["tail"].as_str().is_some_and(|tail| (10_000..=16 * 1024).contains(&tail.len())));
}

#[tokio::test]
async fn a_command_out_of_time_is_asked_then_killed_with_what_it_started() {
    let (child, asked) = (marker("child"), marker("asked"));
    let script = format!(
        "trap 'echo asked > {}' TERM; (trap '' TERM; echo $(exec sh -c 'echo $PPID') > {}; while :; do sleep 0.1; done) & while :; do sleep 0.1; done",
        asked.display(),
        child.display()
    );
    let record = run(json!({"script": script, "timeoutSeconds": 1, "graceSeconds": 1})).await;
    assert!(exception(&record).contains("ended after 1 s"), "{record:?}");
    assert!(asked.exists(), "it was asked first");
    ends(&child).await;
}

#[tokio::test]
async fn a_cancelled_command_has_its_grace_after_the_run_and_then_nothing_is_left() {
    let (child, asked) = (marker("cancelled"), marker("tidied"));
    let (job, terminations) = job();
    let token = CancellationToken::new();
    // It tidies up for longer than a cancelled run has.
    let script = format!(
        "trap 'sleep 1.5; echo tidied > {}; exit' TERM; echo $$ > {}; while :; do sleep 0.1; done",
        asked.display(),
        child.display()
    );
    let test_run = test_run(job, SECRETS, sh(&script)).cancelled_by(token.clone(), "by ann");
    let (record, ()) = tokio::join!(test_run.run(), async {
        appears(&child).await;
        token.cancel();
    });
    assert_eq!(record.status(), OccurrenceStatus::Cancelled);
    assert!(runs(&child) && !asked.exists(), "the run ends before the program does");
    terminations.close();
    timeout(Duration::from_secs(10), terminations.wait()).await.expect("it ends within its grace");
    assert!(asked.exists(), "it tidied up");
    ends(&child).await;
}

#[tokio::test]
async fn what_an_ended_command_leaves_behind_is_killed() {
    let child = marker("left");
    let record = run(sh(&format!("sleep 100 > /dev/null 2>&1 & echo $! > {}", child.display()))).await;
    assert_eq!(record.status(), OccurrenceStatus::Completed);
    ends(&child).await;
}

#[tokio::test]
async fn wrong_input_names_the_field() {
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
