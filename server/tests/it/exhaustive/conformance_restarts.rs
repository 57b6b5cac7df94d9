//! The cases of the conformance kit that restart RabbitMQ and Redis, on the private services of `milvaion conformance`.
//!
//! The other cases run in the tests of the kit, on the services that all tests share.

use std::{
    path::Path,
    process::{Command, Output},
};

/// The cases.
const CASES: &[&str] = &["broker-restarted", "redis-restarted"];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Runs the cases against a worker.
fn run_cases(worker: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_milvaion"));
    command.current_dir(root()).arg("conformance").args(CASES.iter().flat_map(|case| ["--case", case])).arg("--");
    command.args(worker).output().expect("the kit starts")
}

/// Runs the cases against a worker, which must pass each of them.
fn judge(worker: &[&str]) {
    let output = run_cases(worker);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for case in CASES {
        let passes = text.lines().any(|line| line.starts_with("pass") && line.contains(case));
        assert!(passes, "{case} is not passed: {text}");
    }
}

#[test]
fn rust_worker_survives_restarts_of_its_services() {
    let program = std::env::current_exe().expect("the path of this test");
    let folder = program.parent().and_then(Path::parent).expect("the folder of the profile");
    let worker = folder.join("examples/conformance");
    assert!(worker.exists(), "build it: cargo build --package milvaion-worker --example conformance");
    judge(&[&worker.display().to_string()]);
}

#[test]
fn python_worker_survives_restarts_of_its_services() {
    judge(&["/usr/bin/python3", "examples/python-worker/conformance.py"]);
}

#[test]
fn node_worker_survives_restarts_of_its_services() {
    judge(&["node", "examples/node-worker/main.js", "examples/node-worker/conformance.js"]);
}

#[test]
fn worker_that_gives_up_fails_both_cases() {
    let output = run_cases(&["/usr/bin/python3", "server/conformance/tests/it/workers/impatient.py"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{text}");
    for case in CASES {
        let fails = text.lines().any(|line| line.starts_with("FAIL") && line.contains(case));
        assert!(fails, "{case} is not failed: {text}");
    }
}
