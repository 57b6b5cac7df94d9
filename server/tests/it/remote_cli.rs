//! The commands that use a running server, as a user types them.

use std::process::Output;

use milvaion_test_support::worker_env;
use serde_json::Value;
use tokio::process::Command;

use crate::rest::harness::{ApiHarness, echo};

/// A user who runs the program.
pub(crate) struct Shell<'a> {
    pub(crate) harness: &'a ApiHarness,
    pub(crate) token: String,
    /// The folder of the credentials, which does not exist.
    pub(crate) home: std::path::PathBuf,
}

impl Shell<'_> {
    pub(crate) async fn run(&self, arguments: &[&str]) -> Output {
        let port = self.harness.server.address.port();
        Command::new(env!("CARGO_BIN_EXE_milvaion"))
            .args(arguments)
            .env("MILVAION_URL", format!("http://127.0.0.1:{port}"))
            .env("MILVAION_TOKEN", &self.token)
            .env("XDG_CONFIG_HOME", &self.home)
            .env("NO_COLOR", "1")
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .expect("the program starts")
    }

    /// Runs a command that succeeds and returns its output.
    pub(crate) async fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments).await;
        let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {text} {errors}");
        text.into_owned()
    }

    pub(crate) async fn code(&self, arguments: &[&str]) -> Option<i32> {
        self.run(arguments).await.status.code()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_is_run_followed_and_listed_from_the_shell() {
    let harness = ApiHarness::new().await;
    let worker = worker_env::start(&harness.config);
    let token = harness.token(&harness.admin).await;
    harness.call(&token, "PUT", "/jobs/by-key/report", echo("Report")).await.ok();
    let home = std::env::temp_dir().join("milvaion-no-credentials");
    let shell = Shell { harness: &harness, token, home };
    let unknown = Shell { harness: &harness, token: format!("milvaion_{}", "x".repeat(40)), home: shell.home.clone() };
    // Commands that do not depend on each other run at once.
    let (me, jobs, followed, missing, unknown) = tokio::join!(
        shell.ok(&["whoami"]),
        shell.ok(&["jobs", "list"]),
        shell.ok(&["jobs", "run", "report", "--follow"]),
        shell.code(&["jobs", "get", "missing"]),
        unknown.code(&["whoami"]),
    );
    assert!(me.contains("ana@example.org"), "{me}");
    assert!(jobs.contains("Report"), "{jobs}");
    assert!(followed.contains("received: hello"), "{followed}");
    assert_eq!((missing, unknown), (Some(4), Some(3)));
    let failed = shell.run(&["jobs", "run", "report", "--wait", "--input", r#"{"say": "fail"}"#]).await;
    assert_eq!(failed.status.code(), Some(10), "{}", String::from_utf8_lossy(&failed.stderr));
    let listed = shell.ok(&["occurrences", "list", "-o", "json"]).await;
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    let statuses: Vec<_> = listed.as_array().expect("a list").iter().map(|item| item["status"].clone()).collect();
    assert_eq!(statuses, ["failed", "completed"]);
    let id = listed[1]["id"].as_str().expect("an id");
    let [logs_of_it, end_of_it] = ["logs", "wait"].map(|command| ["occurrences", command, id]);
    let (logs, waited, failures, unconfirmed) = tokio::join!(
        shell.ok(&logs_of_it),
        shell.code(&end_of_it),
        shell.ok(&["failures", "list"]),
        shell.code(&["jobs", "delete", "report"]),
    );
    assert!(logs.contains("received: hello"), "{logs}");
    assert_eq!(waited, Some(0));
    assert!(failures.contains("Report"), "{failures}");
    assert_eq!(unconfirmed.filter(|code| *code == 0), None, "it needs --yes here");
    shell.ok(&["jobs", "delete", "report", "--yes"]).await;
    assert_eq!(shell.ok(&["jobs", "list", "-o", "json"]).await.trim(), "[]");
    worker.stop().await;
    harness.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn occurrence_is_enqueued_and_cancelled_from_the_shell() {
    let harness = ApiHarness::new().await;
    let worker = worker_env::start(&harness.config);
    let token = harness.token(&harness.admin).await;
    harness.call(&token, "PUT", "/jobs/by-key/report", echo("Report")).await.ok();
    let home = std::env::temp_dir().join("milvaion-no-credentials");
    let shell = Shell { harness: &harness, token, home };
    let logged = async {
        let first =
            shell.ok(&["enqueue", "report", "--input", r#"{"say": "hello"}"#, "--wait", "--timeout", "2m"]).await;
        assert!(shell.ok(&["occurrences", "logs", first.trim()]).await.contains("received: hello"));
    };
    let failed = async {
        let code = shell.code(&["enqueue", "report", "--input", r#"{"say": "fail"}"#, "--wait"]).await;
        assert_eq!(code, Some(10));
    };
    let delayed = async {
        let later = shell.ok(&["enqueue", "report", "--after", "1d", "--unique", "a", "--priority", "5"]).await;
        assert_eq!(shell.ok(&["enqueue", "report", "--unique", "a"]).await, later, "the key is taken");
        let shown = shell.ok(&["occurrences", "get", later.trim(), "-o", "json"]).await;
        let shown: Value = serde_json::from_str(&shown).expect("JSON");
        assert!(shown["delayedUntil"].is_string(), "{shown}");
        later
    };
    let refused = async {
        for (arguments, named) in [
            (&["enqueue", "missing"][..], "JOB: no job has the key missing"),
            (&["enqueue", "--type", "nobody/echo"], "--type: no instance of worker nobody has registered"),
            (&["enqueue", "report", "--at", "2099-01-01T00:00:00Z"], "--at or --after: is more than 366 days ahead"),
            (&["enqueue", "report", "--input", r#"{"say": 7}"#], "--input at /say"),
        ] {
            let output = shell.run(arguments).await;
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.code() == Some(1) && message.contains(named), "{arguments:?}: {message}");
        }
    };
    let ((), (), later, ()) = tokio::join!(logged, failed, delayed, refused);

    assert!(shell.ok(&["jobs", "get", "report"]).await.contains("Delayed"));
    shell.ok(&["jobs", "cancel-delayed", "report", "--yes"]).await;
    let end_of_it = ["occurrences", "wait", later.trim()];
    let (waited, shown) = tokio::join!(shell.code(&end_of_it), shell.ok(&["jobs", "get", "report"]));
    assert_eq!(waited, Some(12), "it is cancelled");
    assert!(!shown.contains("Delayed"), "{shown}");
    worker.stop().await;
    harness.server.stop().await;
}
