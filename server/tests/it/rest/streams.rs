//! The streams of events and of logs.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use futures::StreamExt;
use milvaion_api::tokens::CreatedToken;
use milvaion_app::backend::TokenBackend;
use milvaion_protocol::{
    id::OccurrenceId,
    message::{LogLevel, LogLine},
};
use milvaion_test_support::{wait, worker_env};
use serde_json::{Value, json};

use super::harness::{ApiHarness, echo};

/// A frame of a stream: its name, its id and its data.
type Frame = (String, String, String);

/// Reads frames until `is_last` returns true or the stream ends.
async fn frames(response: reqwest::Response, is_last: impl Fn(&Frame) -> bool) -> Vec<Frame> {
    assert_eq!(response.status(), 200);
    let mut chunks = response.bytes_stream();
    let (mut text, mut found) = (String::new(), Vec::new());
    let read = async {
        while let Some(chunk) = chunks.next().await {
            text.push_str(std::str::from_utf8(&chunk.expect("a chunk")).expect("text"));
            while let Some((frame, rest)) = text.clone().split_once("\n\n") {
                text = rest.to_owned();
                let field = |name: &str| {
                    let line = frame.lines().find_map(|line| line.strip_prefix(name));
                    line.map(str::trim).unwrap_or_default().to_owned()
                };
                let frame = (field("event:"), field("id:"), field("data:"));
                let is_end = is_last(&frame);
                if !frame.0.is_empty() {
                    found.push(frame);
                }
                if is_end {
                    return;
                }
            }
        }
    };
    tokio::time::timeout(wait::WAIT_TIMEOUT, read).await.expect("in time");
    found
}

async fn open(harness: &ApiHarness, token: &str, path: &str, last: &str) -> reqwest::Response {
    let request = harness.request("GET", path).bearer_auth(token);
    let request = if last.is_empty() { request } else { request.header("last-event-id", last) };
    request.send().await.expect("a response")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_streams_follow_the_document() {
    let harness = ApiHarness::new().await;
    let token = harness.token(&harness.admin).await;
    let (path, ()) = tokio::join!(
        log_is_streamed_until_the_run_has_ended(&harness, &token),
        log_stream_ends_when_its_job_loses_the_tag(&harness, &token)
    );
    log_of_an_earlier_run_ends_at_once(&harness, &token, &path).await;
    harness.server.stop().await;
}

/// Returns the path of the stream, whose run has ended.
async fn log_is_streamed_until_the_run_has_ended(harness: &ApiHarness, token: &str) -> String {
    let id = harness.job(token, echo("Report")).await["id"].as_str().expect("an id").to_owned();
    let run = harness.call(token, "POST", &format!("/jobs/{id}/run"), Value::Null).await.ok();
    let path = format!("/occurrences/{}/log/stream", run["id"].as_str().expect("an id"));
    // The stream opens before the run starts.
    let response = open(harness, token, &path, "").await;
    let worker = worker_env::start(&harness.config);
    let seen = frames(response, |_| false).await;
    let of = |name: &str| seen.iter().filter(|frame| frame.0 == name).cloned().collect::<Vec<_>>();
    let lines = of("line");
    assert_eq!(lines.len(), 1, "{seen:?}");
    assert!(lines[0].2.contains("received: hello"), "{lines:?}");
    assert_eq!(seen.last().map(|(name, _, data)| (name.as_str(), data.as_str())), Some(("end", "completed")));
    assert!(of("status").len() >= 2, "queued and completed at least: {seen:?}");
    let resumed = frames(open(harness, token, &path, &lines[0].1).await, |_| false).await;
    assert!(resumed.iter().all(|frame| frame.0 != "line"), "no line is repeated: {resumed:?}");
    assert_eq!(resumed.last().map(|frame| frame.0.as_str()), Some("end"));
    worker.stop().await;
    path
}

async fn log_stream_ends_when_its_job_loses_the_tag(harness: &ApiHarness, token: &str) {
    let limited = harness.create_token(&harness.admin, |new| new.tag = Some("billing".into())).await.secret;
    // No worker offers the type, so the run stays open.
    let mut job = echo("Invoices");
    (job["jobType"], job["tags"]) = ("invoices".into(), json!(["billing"]));
    let id = harness.job(token, job.clone()).await["id"].as_str().expect("an id").to_owned();
    let run = harness.call(token, "POST", &format!("/jobs/{id}/run"), Value::Null).await.ok();
    let path = format!("/occurrences/{}/log/stream", run["id"].as_str().expect("an id"));
    let response = open(harness, &limited, &path, "").await;
    job["tags"] = json!([]);
    harness.call(token, "PUT", &format!("/jobs/{id}"), job).await.ok();
    let seen = frames(response, |_| false).await;
    assert!(seen.iter().all(|frame| frame.0 != "end"), "{seen:?}");
}

async fn log_of_an_earlier_run_ends_at_once(harness: &ApiHarness, token: &str, path: &str) {
    // The first stream has waited for late lines, so the time for them has passed.
    let since = Instant::now();
    let seen = frames(open(harness, token, path, "").await, |_| false).await;
    assert!(since.elapsed() < Duration::from_millis(1_500), "{:?}", since.elapsed());
    let names: Vec<&str> = seen.iter().map(|frame| frame.0.as_str()).collect();
    assert_eq!(names, ["line", "status", "end"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_streams_follow_the_document() {
    let harness = ApiHarness::new().await;
    stream_ends_with_its_token(&harness).await;
    events_are_filtered_and_resumed(&harness).await;
    log_lines_are_events_of_their_occurrence(&harness).await;
    harness.server.stop().await;
}

async fn events_are_filtered_and_resumed(harness: &ApiHarness) {
    let token = harness.token(&harness.admin).await;
    let create = async |name: &str| harness.job(&token, echo(name)).await["id"].as_str().expect("an id").to_owned();
    let (one, other) = (create("One").await, create("Other").await);
    let response = open(harness, &token, &format!("/events?jobId={one}"), "").await;
    for job in [&other, &one] {
        harness.call(&token, "POST", &format!("/jobs/{job}/run"), Value::Null).await.ok();
    }
    let is_occurrence = |frame: &Frame| frame.0 == "occurrences";
    let seen = frames(response, is_occurrence).await;
    let last = seen.last().expect("a frame");
    let data: Value = serde_json::from_str(&last.2).expect("JSON");
    assert_eq!(data["items"][0]["jobId"], one.as_str());
    assert_eq!(data["items"][0]["status"], "queued");
    // What happens while no connection is open arrives with the next one.
    harness.call(&token, "POST", &format!("/jobs/{one}/pause"), Value::Null).await.ok();
    let resumed = open(harness, &token, &format!("/events?jobId={one}"), &last.1).await;
    let missed = frames(resumed, |frame| frame.0 == "job").await;
    assert_eq!(missed.len(), 1, "{missed:?}");
    let unknown = open(harness, &token, "/events", "an id of another time").await;
    assert_eq!(frames(unknown, |frame| !frame.0.is_empty()).await[0].0, "resync");
}

/// Stores log lines as a server does that receives them.
async fn log(harness: &ApiHarness, id: OccurrenceId, seqs: Range<i64>) {
    let (at, level) = (harness.server.clock.now(), LogLevel::default());
    let line = |seq| (id, LogLine { seq, at, level, message: format!("line {seq}"), data: None });
    let lines: Vec<(OccurrenceId, LogLine)> = seqs.map(line).collect();
    harness.server.store.append_logs(&lines, at).await.expect("stored");
    harness.server.hub.note_log_lines([id]);
}

async fn log_lines_are_events_of_their_occurrence(harness: &ApiHarness) {
    let token = harness.token(&harness.admin).await;
    let job = harness.job(&token, echo("Talkative")).await["id"].as_str().expect("an id").to_owned();
    let run = harness.call(&token, "POST", &format!("/jobs/{job}/run"), Value::Null).await.ok();
    let id: OccurrenceId = run["id"].as_str().expect("an id").parse().expect("an id");
    log(harness, id, 1..3).await;
    let path = format!("/events?occurrenceId={id}");
    let next_lines = async |last: &str, seqs: Range<i64>| {
        let response = open(harness, &token, &path, last).await;
        log(harness, id, seqs).await;
        let seen = frames(response, |frame| frame.0 == "log").await;
        let (_, frame_id, data) = seen.last().expect("a frame").clone();
        let data: Value = serde_json::from_str(&data).expect("JSON");
        assert_eq!(data["occurrenceId"], id.to_string());
        let lines = data["lines"].as_array().expect("lines").iter();
        (frame_id, lines.map(|line| line["seq"].as_i64().expect("a number")).collect::<Vec<_>>())
    };
    let (last, lines) = next_lines("", 3..5).await;
    assert_eq!(lines, [3, 4], "the stream begins with the next line");
    // What is written while no connection is open arrives with the next one.
    log(harness, id, 5..7).await;
    assert_eq!(next_lines(&last, 7..7).await.1, [5, 6]);
}

async fn stream_ends_with_its_token(harness: &ApiHarness) {
    let CreatedToken { token, secret } = harness.create_token(&harness.admin, |_| {}).await;
    let response = open(harness, &secret, "/events", "").await;
    harness.server.backend.revoke_token(&harness.admin, token.id).await.expect("revoked");
    assert!(frames(response, |_| false).await.iter().all(|frame| frame.0 != "occurrences"));
}
