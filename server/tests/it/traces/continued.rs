//! The trace of a request passes through a server that records none.

use milvaion_test_support::{runs, wait, worker_env};
use serde_json::{Value, json};

use crate::rest::harness::{ApiHarness, echo};

const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";
const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Runs a job with a header `traceparent`, and returns the occurrence.
async fn run_with(api: &ApiHarness, token: &str, job: &Value, traceparent: &str) -> Value {
    let path = format!("/jobs/{}/run", job["id"].as_str().expect("an id"));
    api.call_with(token, "POST", &path, json!({}), ("traceparent", traceparent)).await.ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn occurrence_continues_the_trace_of_its_request() {
    let api = ApiHarness::with(|config| {
        config.http.trace_url_template = Some("https://traces.example.org/{trace_id}/view".into());
    })
    .await;
    let token = api.token(&api.admin).await;
    let worker = worker_env::start(&api.config);
    let job = api.job(&token, echo("Traced")).await;
    let run = run_with(&api, &token, &job, TRACEPARENT).await;
    assert_eq!(run["traceId"], TRACE_ID);
    assert_eq!(run["traceUrl"], format!("https://traces.example.org/{TRACE_ID}/view"));
    // The end moves the row to another table.
    let id = run["id"].as_str().expect("an id").parse().expect("an occurrence id");
    assert_eq!(runs::ended(&api.server, id).await.trace_id, TRACE_ID);

    // A malformed header is ignored.
    let run = run_with(&api, &token, &job, "00-nothing").await;
    assert_eq!(run["traceId"].as_str(), Some(run["id"].as_str().expect("an id").replace('-', "").as_str()));
    worker.stop().await;
    api.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_of_a_failure_continues_the_trace_of_its_request() {
    let api = ApiHarness::new().await;
    let token = api.token(&api.admin).await;
    let worker = worker_env::start(&api.config);
    let mut definition = echo("Fails");
    definition["jobData"] = json!({ "say": "fail" });
    let job = api.job(&token, definition).await;
    let path = format!("/jobs/{}/run", job["id"].as_str().expect("an id"));
    let run = api.call(&token, "POST", &path, json!({})).await.ok();
    let failed = run["id"].as_str().expect("an id").to_owned();
    wait::until("the failure", async || {
        api.call(&token, "GET", &format!("/occurrences/{failed}"), Value::Null).await.body["status"] == "failed"
    })
    .await;
    let header = ("traceparent", TRACEPARENT);
    let retry = api.call_with(&token, "POST", &format!("/occurrences/{failed}/retry"), json!({}), header).await.ok();
    assert_eq!(retry["traceId"], TRACE_ID, "{retry}");
    worker.stop().await;
    api.server.stop().await;
}
