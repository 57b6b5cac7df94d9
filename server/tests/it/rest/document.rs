//! The OpenAPI document and the page that shows it.

use milvaion_server::http::rest::{document, endpoints, files_schema};
use milvaion_test_support::paths;
use serde_json::{Map, Value, json};

use super::harness::{ApiHarness, echo};

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

/// Compares the files. The document has the schema of every path, query and body, and reading a schema compiles it for the
/// checks of requests, so this test also finds an invalid one.
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

/// Calls the operations that read, and checks that their answers have the documented status and form.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_follow_the_document() {
    let harness = ApiHarness::new().await;
    let admin = harness.create_token(&harness.admin, |_| {}).await;
    let token = &admin.secret;
    let id = |object: &Value| object["id"].as_str().expect("an id").to_owned();
    let create = async |path: &str, definition: Value| harness.call(token, "POST", path, definition).await.ok();
    let mut job = echo("Documented");
    job["key"] = "documented".into();
    job["schedule"] = json!({ "kind": "cron", "expression": "0 9 * * 1-5", "zone": "Europe/Warsaw" });
    let job = id(&create("/jobs", job).await);
    let run = id(&create(&format!("/jobs/{job}/run"), Value::Null).await);
    // The pause makes a second version to compare.
    create(&format!("/jobs/{job}/pause"), Value::Null).await;
    let calendar = json!({ "name": "Documented", "zone": "Europe/Warsaw", "dates": ["2099-12-24"] });
    let calendar = id(&create("/calendars", calendar).await);
    let rule = json!({ "name": "Documented", "condition": { "kind": "queue_age", "seconds": 60 } });
    let rule = id(&create("/alert-rules", rule).await);
    let channel = json!({ "name": "Documented", "target": { "kind": "email", "to": ["ops@example.org"] } });
    let channel = id(&create("/alert-channels", channel).await);
    let known = [
        ("/jobs/by-key/", "documented".to_owned()),
        ("/jobs/", job),
        ("/occurrences/", run),
        ("/calendars/", calendar),
        ("/alert-rules/", rule),
        ("/alert-channels/", channel),
        ("/users/", harness.admin.id.to_string()),
        ("/tokens/", admin.token.id.to_string()),
    ];

    let document = document();
    let (mut answers, mut schemas) = (Map::new(), Map::new());
    for endpoint in endpoints().iter().filter(|endpoint| endpoint.operation.method == "GET" && !endpoint.is_stream) {
        let operation = endpoint.operation;
        let mut path = operation.path.to_owned();
        if let Some((start, rest)) = operation.path.split_once('{') {
            // There is no alert, no failure and no singleton loop.
            let Some((_, id)) = known.iter().find(|(place, _)| *place == start) else { continue };
            let (_, rest) = rest.split_once('}').expect("the end of the parameter");
            path = format!("{start}{id}{rest}");
        }
        if operation.id == "compareJobVersions" {
            path.push_str("?from=1&to=2");
        }
        let answer = harness.call(token, "GET", &path, Value::Null).await;
        assert_eq!(answer.status.as_u16(), operation.success, "{path} {}", answer.body);
        let described = &document["paths"][format!("/api/v1{}", operation.path)]["get"]["responses"]["200"];
        let schema = &described["content"]["application/json"]["schema"];
        assert!(schema.is_object(), "{path} has no schema: {described}");
        assert_eq!(answer.header("content-type"), "application/json", "{path}");
        answers.insert(operation.id.to_owned(), answer.body);
        schemas.insert(operation.id.to_owned(), schema.clone());
    }
    harness.server.stop().await;
    assert!(answers.len() > 30, "{}", answers.len());
    // The references in the schemas are paths in the document.
    let schema = json!({ "properties": schemas, "components": document["components"] });
    let validator = jsonschema::options().should_validate_formats(true).build(&schema).expect("a valid schema");
    let answers = Value::Object(answers);
    let wrong = validator.iter_errors(&answers).map(|error| format!("{}: {error}", error.instance_path()));
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
