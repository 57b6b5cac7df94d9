//! The OpenAPI document and the page that shows it.

use milvaion_server::http::rest::{document, files_schema};
use milvaion_test_support::paths;
use serde_json::Value;

use super::harness::ApiHarness;

/// The variable that makes the test write the file.
const WRITE: &str = "WRITE_OPENAPI";

/// Compares a file beside the documentation with what the code makes, or writes it.
fn check_file(name: &str, content: &Value) {
    let path = paths::repository_root().join("docs/api").join(name);
    let text = format!("{}\n", serde_json::to_string_pretty(content).expect("JSON"));
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, &text).expect("written");
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(stored == text, "docs/api/{name} is out of date: run this test with {WRITE}=1");
}

#[test]
fn document_in_the_repository_is_up_to_date() {
    check_file("openapi.json", &document());
    check_file("jobs-file.schema.json", &files_schema());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn document_and_page_are_served() {
    let harness = ApiHarness::new().await;
    let port = harness.server.address.port();
    let get = async |path: &str| {
        let response = reqwest::get(format!("http://127.0.0.1:{port}{path}")).await.expect("a response");
        assert_eq!(response.status(), 200, "{path}");
        response.text().await.expect("a body")
    };
    let served: Value = serde_json::from_str(&get("/api/openapi.json").await).expect("JSON");
    assert_eq!(served, document());
    let schema: Value = serde_json::from_str(&get("/api/jobs-file.schema.json").await).expect("JSON");
    assert_eq!(schema, files_schema());
    let page = get("/api/docs").await;
    for part in ["/api/v1/jobs/by-key/{key}", "id=\"problem-invalid-fields\"", "maxRetries", "/api/docs.css"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(get("/api/docs.css").await.contains("focus-visible"));
    harness.server.stop().await;
}
