//! Runs the kit against the workers of this repository: those that must pass, and those that must fail.
//!
//! The services come from AMQP_URL and REDIS_URL, like those of every other test.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use milvaion_conformance::{ConformanceLevel, ConformanceReport, ConformanceSettings};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the root exists")
}

fn example(path: &str) -> String {
    root().join("examples").join(path).display().to_string()
}

/// Returns the Python that has the packages. Debian's Python is tried first, because its packages are installed for it.
fn python() -> String {
    let has_all = |python: &&str| {
        let imported = Command::new(python).args(["-c", "import pika, redis"]).stderr(Stdio::null()).status();
        imported.is_ok_and(|status| status.success())
    };
    ["/usr/bin/python3", "python3"]
        .into_iter()
        .find(has_all)
        .expect("no Python with the packages pika and redis: `sh xtask/install.sh test` installs them")
        .to_owned()
}

fn smallest_python_worker() -> Vec<String> {
    vec![python(), example("python-worker/minimal.py")]
}

fn url(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: run this through make test"))
}

/// Returns the Rust worker, which cargo builds with the tests of the SDK.
fn rust_worker() -> String {
    let program = std::env::current_exe().expect("the path of this test");
    let folder = program.parent().and_then(Path::parent).expect("the folder of the profile");
    let worker = folder.join("examples/conformance");
    assert!(worker.exists(), "build it: cargo build --package milvaion-worker --example conformance");
    worker.display().to_string()
}

async fn judge(command: Vec<String>, level: ConformanceLevel, cases: &[&str]) -> ConformanceReport {
    let settings = ConformanceSettings {
        amqp_url: url("AMQP_URL"),
        redis_url: url("REDIS_URL"),
        command,
        echo_type: if level == ConformanceLevel::Minimal { "echo".into() } else { "conformance-echo".into() },
        parallel: 6,
        control: None,
    };
    let cases: Vec<_> = cases.iter().map(|&case| case.to_owned()).collect();
    milvaion_conformance::run(&settings, level, &cases, |_| {}).await.expect("the services answer")
}

fn passes(report: &ConformanceReport) {
    let failed = report.verdicts.iter().filter(|verdict| verdict.failure.is_some());
    let failed: Vec<_> = failed.map(ToString::to_string).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

fn failed(report: &ConformanceReport) -> Vec<&str> {
    report.verdicts.iter().filter(|verdict| verdict.failure.is_some()).map(|verdict| verdict.name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn smallest_python_worker_passes_minimal_cases() {
    // Those that neither kill the worker nor wait for a service.
    let cases = ["echo", "attempt-number", "unknown-fields", "unreadable-body", "attempt-zero", "job-type-case"];
    passes(&judge(smallest_python_worker(), ConformanceLevel::Minimal, &cases).await);
}

fn fixture(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/workers").join(name).display().to_string()
}

mod exhaustive {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn python_worker_passes_full() {
        let command = vec![python(), example("python-worker/conformance.py")];
        passes(&judge(command, ConformanceLevel::Full, &[]).await);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn rust_worker_passes_full() {
        passes(&judge(vec![rust_worker()], ConformanceLevel::Full, &[]).await);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn node_worker_passes_full() {
        let packages = root().join("examples/node-worker/node_modules/.package-lock.json");
        assert!(
            packages.exists(),
            "the packages of examples/node-worker are missing: `sh xtask/install.sh test` installs them"
        );
        let command = vec!["node".into(), example("node-worker/main.js"), example("node-worker/conformance.js")];
        passes(&judge(command, ConformanceLevel::Full, &[]).await);
    }

    /// A worker without a table of its own attempts: the claim in Redis has its own value, and is granted again.
    #[tokio::test(flavor = "multi_thread")]
    async fn worker_without_a_local_table_fails() {
        let command = vec![python(), fixture("no_local_table.py")];
        let cases = ["echo", "duplicate-same-instance", "duplicate-granted"];
        let report = judge(command, ConformanceLevel::Full, &cases).await;
        assert_eq!(failed(&report), ["duplicate-same-instance", "duplicate-granted"]);
        let failure = report.verdicts[1].failure.as_ref().expect("it fails");
        assert!(failure.seen.contains("started twice"), "{failure}");
        assert!(!report.is_passed());
    }

    /// A worker that renews no claim, waits for no confirm, keeps messages that it cannot run, and claims possible duplicates at once.
    #[tokio::test(flavor = "multi_thread")]
    async fn careless_worker_fails_where_it_is_careless() {
        let command = vec![python(), fixture("early_ack.py")];
        let mistakes = [
            "unconfirmed-start",
            "claim-renewal",
            "redis-away-unconfirmed",
            "listed-until-confirmed",
            "surplus",
            "duplicate-after-loss",
        ];
        let cases = [&["echo"], mistakes.as_slice()].concat();
        let report = judge(command, ConformanceLevel::Full, &cases).await;
        assert_eq!(failed(&report), mistakes);
    }

    /// A worker that ends without Redis, drops what the broker does not accept at once, and is silent about its stop and its
    /// checkpoints.
    #[tokio::test(flavor = "multi_thread")]
    async fn impatient_worker_fails_where_a_service_is_away() {
        let command = vec![python(), fixture("impatient.py")];
        let cases = ["echo", "redis-away-at-start", "checkpoint", "stop-announced", "blocked-publisher"];
        let report = judge(command, ConformanceLevel::Full, &cases).await;
        assert_eq!(failed(&report), ["redis-away-at-start", "checkpoint", "stop-announced", "blocked-publisher"]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn smallest_python_worker_passes_minimal() {
        passes(&judge(smallest_python_worker(), ConformanceLevel::Minimal, &[]).await);
    }

    /// A worker whose duration is a text, which the schema does not allow.
    #[tokio::test(flavor = "multi_thread")]
    async fn unreadable_report_is_named_with_its_field() {
        let command = vec![python(), fixture("text_duration.py")];
        let report = judge(command, ConformanceLevel::Full, &["echo"]).await;
        let failure = report.verdicts[0].failure.as_ref().expect("it fails");
        assert!(failure.seen.contains("durationMs: "), "{failure}");
    }
}
