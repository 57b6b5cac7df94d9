//! The OpenAPI document and the page that shows it.

use milvaion_server::http::rest::document;
use milvaion_test_support::paths;

use super::harness::ApiHarness;

/// The variable that makes the test write the file.
const WRITE: &str = "WRITE_OPENAPI";

#[test]
fn document_in_the_repository_is_up_to_date() {
    let path = paths::repository_root().join("docs/api/openapi.json");
    let text = format!("{}\n", serde_json::to_string_pretty(&document()).expect("JSON"));
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, &text).expect("written");
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(stored == text, "docs/api/openapi.json is out of date: run this test with {WRITE}=1");
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
    let served: serde_json::Value = serde_json::from_str(&get("/api/openapi.json").await).expect("JSON");
    assert_eq!(served, document());
    let page = get("/api/docs").await;
    for part in ["/api/v1/jobs/by-key/{key}", "id=\"problem-invalid-fields\"", "maxRetries", "/api/docs.css"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(get("/api/docs.css").await.contains("focus-visible"));
    harness.server.stop().await;
}
