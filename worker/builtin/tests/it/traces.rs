//! The spans of the program, sent to a receiver.

use axum::{Router, http::HeaderMap, routing::get};
use milvaion_test_support::trace_receiver::TraceReceiver;
use serde_json::json;
use tokio::net::TcpListener;

use crate::builtin::WorkerHarness;

const SENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";

/// Starts a site that answers with the `traceparent` of the request. Returns its address.
async fn site() -> String {
    let echo = |headers: HeaderMap| async move {
        headers.get("traceparent").and_then(|value| value.to_str().ok()).unwrap_or("none").to_owned()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/", get(echo))).await });
    format!("http://{address}/?key=canary")
}

#[tokio::test]
async fn attempt_continues_the_trace_and_the_request_of_the_job_too() {
    let receiver = TraceReceiver::start().await;
    let mut harness = WorkerHarness::start(&[
        ("MILVAION_HTTP_ALLOW", "127.0.0.0/8"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.endpoint),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test"),
    ])
    .await;
    let input = json!({ "url": site().await });
    let occurrence = harness.publish_in_trace("http-request", input.clone(), Some(SENT)).await;
    let end = harness.ended(occurrence).await;
    // The trace of an occurrence whose server sends no traces.
    let own = harness.publish_in_trace("http-request", input, None).await;
    harness.ended(own).await;
    let output = harness.stop().await;

    let attempt = receiver.span("the attempt", |span| span.name == "attempt" && span.trace_id == TRACE_ID).await;
    assert_eq!((attempt.service.as_str(), attempt.parent_id.as_str()), ("milvaion-worker", "b7ad6b7169203331"));
    assert_eq!(attempt.attribute("occurrence.id"), occurrence.to_string());
    assert_eq!(end.traceparent, Some(format!("00-{TRACE_ID}-{}-01", attempt.span_id)));
    let request = receiver.span("the request", |span| span.name == "GET" && span.trace_id == TRACE_ID).await;
    assert_eq!((request.parent_id, request.kind), (attempt.span_id, 3));
    let result = end.result.expect("the answer of the site");
    assert!(result.contains(&format!("00-{TRACE_ID}-{}-01", request.span_id)), "{result}");
    let trace_id = own.0.simple().to_string();
    let first = receiver.span("the attempt", |span| span.name == "attempt" && span.trace_id == trace_id).await;
    assert_eq!(first.parent_id, trace_id[16..]);
    for span in receiver.all() {
        assert!(!format!("{span:?}").contains("canary"), "{span:?}");
    }
    assert!(!output.contains("traces cannot be sent"), "{output}");
}

#[tokio::test]
async fn unsampled_trace_passes_without_a_span() {
    let receiver = TraceReceiver::start().await;
    let mut harness = WorkerHarness::start(&[
        ("MILVAION_HTTP_ALLOW", "127.0.0.0/8"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.endpoint),
    ])
    .await;
    let unsampled = SENT.replace("-01", "-00");
    let occurrence = harness.publish_in_trace("http-request", json!({ "url": site().await }), Some(&unsampled)).await;
    let end = harness.ended(occurrence).await;
    let traceparent = end.traceparent.expect("it is repeated");
    assert!(traceparent.starts_with(&format!("00-{TRACE_ID}-")) && traceparent.ends_with("-00"), "{traceparent}");
    assert!(end.result.expect("the answer of the site").contains("none"), "the called system decides for itself");
    harness.stop().await;
    assert!(receiver.all().is_empty(), "{:?}", receiver.all());
}
