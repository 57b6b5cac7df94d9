//! The trace of a request passes through a server that records none.

use milvaion_protocol::{id::OccurrenceId, message::StatusReport, status::OccurrenceStatus};
use milvaion_test_support::{runs, wait, worker_env};
use serde_json::{Value, json};

use crate::{
    metrics::harness::scrape,
    rest::harness::{ApiHarness, echo, send},
};

const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";
const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Runs a job with a header `traceparent` and an idempotency key, as the client does, and returns the occurrence.
async fn run_with(api: &ApiHarness, token: &str, job: &Value, traceparent: &str) -> Value {
    let path = format!("/jobs/{}/run", job["id"].as_str().expect("an id"));
    let request = api.request("POST", &path).bearer_auth(token).header("traceparent", traceparent);
    send(request.header("Idempotency-Key", traceparent), json!({})).await.ok()
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

/// Returns the trace ids of the exemplars of a histogram of delays.
fn exemplars<'a>(text: &'a str, delay: &str) -> Vec<&'a str> {
    let series = format!("milvaion_{delay}_seconds_bucket");
    let samples = text.lines().filter(|line| line.starts_with(&series));
    samples.filter_map(|line| line.split_once("# {trace_id=\"")?.1.split('"').next()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exemplars_have_the_trace_that_the_occurrence_continues() {
    let api =
        ApiHarness::with(|config| config.metrics.address = Some("127.0.0.1:0".parse().expect("an address"))).await;
    let token = api.token(&api.admin).await;
    let job = api.job(&token, echo("Traced")).await;
    let run = run_with(&api, &token, &job, TRACEPARENT).await;
    let id: OccurrenceId = run["id"].as_str().expect("an id").parse().expect("an occurrence id");
    // The broker confirms the message without a worker.
    wait::until("the confirm", async || !exemplars(&scrape(&api.server).await, "confirmed_after_due").is_empty()).await;
    let (store, clock) = (&api.server.store, &api.server.clock);
    let report = |id, status, at| StatusReport::new(id, 1, "w-1", status, at);
    for status in [OccurrenceStatus::Running, OccurrenceStatus::Completed] {
        runs::report(store, clock, vec![report(id, status, clock.now())]).await;
    }
    let text = scrape(&api.server).await;
    for delay in ["confirmed_after_due", "started_after_due", "stored_after_end"] {
        assert_eq!(exemplars(&text, delay), [TRACE_ID], "{delay}");
    }

    // A start that is reported together with the end is recorded elsewhere.
    let run = run_with(&api, &token, &job, &TRACEPARENT.replace("0af7", "1af7")).await;
    let id: OccurrenceId = run["id"].as_str().expect("an id").parse().expect("an occurrence id");
    let late = clock.now() + chrono::TimeDelta::seconds(30);
    let both = [OccurrenceStatus::Running, OccurrenceStatus::Completed].map(|status| report(id, status, late));
    runs::report(store, clock, both.into()).await;
    let text = scrape(&api.server).await;
    assert_eq!(exemplars(&text, "started_after_due"), [TRACE_ID, &TRACE_ID.replace("0af7", "1af7")]);
    api.server.stop().await;
}
