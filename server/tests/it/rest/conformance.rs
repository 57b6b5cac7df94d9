//! Schemathesis against a running server: generated requests as a Viewer and as an Admin.
//!
//! It makes requests from the OpenAPI document, valid and invalid ones, and checks that no answer is a failure of the
//! server, that each answer has a documented status, media type and form, and that no invalid request is accepted. The
//! streams are left out, because they do not end; `streams.rs` tests them.

use std::{path::PathBuf, process::Stdio};

use milvaion_api::permissions::Role;
use milvaion_test_support::paths;
use serde_json::{Value, json};
use tokio::process::Command;

use super::harness::{ApiHarness, echo};

/// The checks that an answer must pass.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,\
                      negative_data_rejection,unsupported_method,allow_header_conformance,ignored_auth";
/// The number of generated requests of each operation and phase.
const EXAMPLES: &str = "5";

fn program() -> PathBuf {
    let program = paths::repository_root().join("target/tools/api/bin/schemathesis");
    assert!(program.exists(), "{} is missing: `sh xtask/install.sh test` installs it", program.display());
    program
}

/// Runs all checks as one caller, with requests of some phases. Returns the report if one fails.
async fn check(harness: &ApiHarness, token: &str, phases: &str) -> Result<(), String> {
    let port = harness.server.address.port();
    let output = Command::new(program())
        .args(["run", &format!("http://127.0.0.1:{port}/api/openapi.json")])
        .args(["--header", &format!("Authorization: Bearer {token}")])
        .args(["--checks", CHECKS, "--max-examples", EXAMPLES, "--phases", phases])
        .args(["--exclude-operation-id", "streamEvents", "--exclude-operation-id", "streamLog"])
        .args(["--seed", "1", "--generation-database", "none", "--no-color", "--warnings", "off"])
        .args(["--request-timeout", "30", "--continue-on-failure"])
        .current_dir(std::env::temp_dir())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("schemathesis starts");
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(report.contains("Test Phases"), "it tested nothing: {report} {}", String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(()) } else { Err(report) }
}

mod exhaustive {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn generated_requests_find_no_violation() {
        let harness =
            ApiHarness::with(|config| config.http.api_rate_limit = 1_000_000.try_into().expect("positive")).await;
        let admin = harness.token(&harness.admin).await;
        // Something to list.
        let mut job = echo("Report");
        job["schedule"] = json!({ "kind": "cron", "expression": "0 9 * * 1-5", "zone": "Europe/Warsaw" });
        let id = harness.job(&admin, job).await["id"].as_str().expect("an id").to_owned();
        harness.call(&admin, "POST", &format!("/jobs/{id}/run"), Value::Null).await.ok();
        // A Viewer is refused most requests, an Admin none. `access_matrix.rs` tests what each role may do.
        for role in [Role::Viewer, Role::Admin] {
            let user = harness.user(role.slug(), role).await;
            let token = harness.token(&user).await;
            // What a Viewer may do, an Admin may do too; what it may not do is refused before the body is read.
            let phases = if role == Role::Admin { "examples,coverage,fuzzing,stateful" } else { "examples,coverage" };
            let found = check(&harness, &token, phases).await;
            assert!(found.is_ok(), "as {}: {}", role.label(), found.unwrap_err());
        }
        harness.server.stop().await;
    }
}
