//! Tests against a real HTTP server on this machine, which the guard allows.

mod authentication;
mod redirects;

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{HeaderMap, Method, Uri, header},
    response::{IntoResponse, Response},
    routing::{any, post},
};
use milvaion_address_guard::testing::ScriptedLookup;
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_worker::{CancellationToken, testing::TestReport};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::*;
use crate::{
    context::tests::{all_of, test_run},
    guard::GUARD_WORDS,
};

const SECRETS: &[(&str, &str)] = &[("key", "c4n4ry-key"), ("pass", "c4n4ry:p&ss")];

/// The received requests, one line each: method, path with query, the headers of interest, body.
type ReceivedRequests = Arc<Mutex<Vec<String>>>;

#[derive(Clone, Default)]
struct TestSite {
    seen: ReceivedRequests,
    tokens: Arc<AtomicUsize>,
    /// Bytes of the endless response that were fetched.
    fetched: Arc<AtomicUsize>,
}

async fn serve(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// Starts a site that records its requests: `/echo` repeats the request, `/status/N` returns status N, `/to?S,X`
/// redirects to X with status S, and `/token` issues tokens, of which `/guarded` accepts all but the first.
async fn start_test_site() -> (String, TestSite) {
    let site = TestSite::default();
    let router = Router::new()
        .route("/echo", any(echo))
        .route("/status/{status}", any(status))
        .route("/to", any(to))
        .route("/token", post(token))
        .route("/guarded", any(guarded))
        .route("/endless", any(endless))
        .with_state(site.clone());
    (serve(router).await, site)
}

async fn echo(State(site): State<TestSite>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> String {
    let shown: Vec<_> = headers
        .iter()
        .filter(|(name, _)| ["authorization", "x-a", "x-api-key", "accept", "cookie"].contains(&name.as_str()))
        .filter(|(_, value)| *value != "*/*")
        .map(|(name, value)| format!("{name}={}", value.to_str().expect("text")))
        .collect();
    let line = format!("{method} {uri} [{}] {}", shown.join(","), String::from_utf8_lossy(&body));
    site.seen.lock().expect("the mutex is not poisoned").push(line.clone());
    line
}

async fn status(Path(status): Path<u16>) -> Response {
    let headers = [(header::RETRY_AFTER, "17"), (header::SET_COOKIE, "session=abc")];
    (StatusCode::from_u16(status).expect("a status"), headers, "the body").into_response()
}

async fn to(uri: Uri) -> Response {
    let (code, target) = uri.query().and_then(|query| query.split_once(',')).expect("a target");
    let status = StatusCode::from_u16(code.parse().expect("a code")).expect("a status");
    (status, [(header::LOCATION, target)]).into_response()
}

async fn token(State(site): State<TestSite>, headers: HeaderMap, body: String) -> Response {
    let number = site.tokens.fetch_add(1, Ordering::SeqCst) + 1;
    let credential = headers.get(header::AUTHORIZATION).map_or("", |value| value.to_str().expect("text"));
    site.seen.lock().expect("the mutex is not poisoned").push(format!("token {credential} {body}"));
    // The tokens of this scope expire at once.
    let seconds = if body.contains("scope=brief") { 0 } else { 3600 };
    axum::Json(json!({"access_token": format!("t0ken-{number}"), "expires_in": seconds})).into_response()
}

async fn guarded(headers: HeaderMap) -> Response {
    match headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()) {
        Some(text) if text.starts_with("Bearer t0ken-") && text != "Bearer t0ken-1" => "welcome".into_response(),
        _ => StatusCode::UNAUTHORIZED.into_response(),
    }
}

async fn endless(State(site): State<TestSite>) -> Body {
    Body::from_stream(futures::stream::repeat_with(move || {
        site.fetched.fetch_add(4096, Ordering::Relaxed);
        Ok::<_, std::io::Error>(Bytes::from_static(&[b'y'; 4096]))
    }))
}

fn job() -> HttpRequest {
    HttpRequest::new(
        EgressGuard::new(GUARD_WORDS, vec!["127.0.0.1".parse().expect("a rule")], Vec::new(), Vec::new(), false),
        None,
    )
}

async fn call(input: Value) -> TestReport {
    test_run(job(), SECRETS, input).run().await
}

fn result(record: &TestReport) -> Value {
    let end = record.end();
    assert_eq!(end.status, OccurrenceStatus::Completed, "{end:?}");
    serde_json::from_str(end.result.as_deref().expect("a result")).expect("JSON")
}

fn exception(record: &TestReport) -> &str {
    record.end().exception.as_deref().unwrap_or_else(|| panic!("must fail: {record:?}"))
}

#[tokio::test]
async fn request_arrives_and_response_is_the_result() {
    let (url, site) = start_test_site().await;
    let record = call(json!({
        "url": format!("{url}/echo?a=1"), "method": "POST", "query": {"b c": "&"}, "headers": {"x-a": "1"}, "body": "text"
    }))
    .await;
    let result = result(&record);
    assert_eq!(site.seen.lock().expect("the mutex is not poisoned").concat(), "POST /echo?a=1&b+c=%26 [x-a=1] text");
    assert_eq!((&result["status"], &result["truncated"]), (&json!(200), &json!(false)));
    assert!(result["body"].as_str().is_some_and(|body| body.starts_with("POST /echo")), "{result}");
    // The log shows the path but not the query.
    assert!(record.lines[0].message.ends_with("/echo"), "{}", record.lines[0].message);
}

#[tokio::test]
async fn internal_address_is_refused_unless_allowed() {
    let (url, site) = start_test_site().await;
    let closed = HttpRequest::new(EgressGuard::new(GUARD_WORDS, Vec::new(), Vec::new(), Vec::new(), false), None);
    let record = test_run(closed, &[], json!({"url": format!("{url}/echo")})).run().await;
    assert!(exception(&record).contains("127.0.0.1, which is not public"), "{record:?}");
    assert!(site.seen.lock().expect("the mutex is not poisoned").is_empty(), "no request was sent");
}

#[tokio::test]
async fn connection_uses_the_checked_address() {
    let (url, site) = start_test_site().await;
    let port = url.rsplit(':').next().expect("a port");
    // Only this resolver knows the name, and only its first answer is the site.
    let guard =
        EgressGuard::new(GUARD_WORDS, vec!["127.0.0.1".parse().expect("a rule")], Vec::new(), Vec::new(), false);
    let guard = guard.with_lookup(ScriptedLookup::new(&[&["127.0.0.1"], &["127.0.0.2"]]));
    let job = HttpRequest::new(guard, None);
    let record = test_run(job, &[], json!({"url": format!("http://checked.test:{port}/echo")})).run().await;
    result(&record);
    assert_eq!(site.seen.lock().expect("the mutex is not poisoned").len(), 1);
}

#[tokio::test]
async fn status_decides_success_retry_or_failure() {
    let (expected, retried) = {
        let input: HttpRequestInput = serde_json::from_value(json!({"url": "http://x"})).expect("an input");
        (input.expected_statuses().expect("statuses"), input.retry_statuses().expect("statuses"))
    };
    let mut headers = reqwest::header::HeaderMap::new();
    headers.insert(header::RETRY_AFTER, "17".parse().expect("a value"));
    for (status, is_permanent) in [
        (301, true),
        (400, true),
        (401, true),
        (404, true),
        (408, false),
        (425, false),
        (429, false),
        (500, false),
        (503, false),
    ] {
        let failure = check_status(status, &headers, &expected, &retried, "GET x", "busy").expect_err("a failure");
        assert_eq!(failure.is_permanent(), is_permanent, "{status}");
        assert_eq!(failure.retry_delay(), (!is_permanent).then_some(Duration::from_secs(17)), "{status}");
        assert!(failure.to_string().ends_with("The response begins: busy"), "{failure}");
    }
    assert!(check_status(204, &headers, &expected, &retried, "", "").is_ok());

    let (url, _) = start_test_site().await;
    let record = call(json!({"url": format!("{url}/status/503?key=hidden")})).await;
    let text = exception(&record);
    assert!(text.contains("returned status 503") && text.contains("the body") && !text.contains("hidden"), "{text}");
    assert_eq!(record.end().retry_after_ms, Some(17_000), "{text}");
    let kept = result(&call(json!({"url": format!("{url}/status/404"), "expectedStatus": ["404"]})).await);
    assert_eq!(kept["status"], 404);
    assert!(kept["headers"].get("set-cookie").is_none() && kept["headers"].get("retry-after").is_some(), "{kept}");
}

#[tokio::test]
async fn connection_failure_is_retryable() {
    let port = TcpListener::bind("127.0.0.1:0").await.expect("a free port").local_addr().expect("bound").port();
    let input: HttpRequestInput =
        serde_json::from_value(json!({"url": format!("http://127.0.0.1:{port}/?k=hidden")})).expect("an input");
    let failure = job().caller.send(&input.request().expect("a request")).await.expect_err("no server listens");
    assert!(!failure.is_permanent() && !failure.to_string().contains("hidden"), "{failure}");
    assert!(failure.to_string().contains("refused"), "{failure}");
}

#[tokio::test]
async fn endless_and_compressed_bodies_are_truncated() {
    let (url, site) = start_test_site().await;
    let endless = call(json!({"url": format!("{url}/endless")})).await;
    let result_of = result(&endless);
    assert_eq!(result_of["truncated"], true);
    assert!(result_of["body"].as_str().is_some_and(|body| body.len() > 50_000), "most of 64 KiB");
    assert!(endless.end().result.as_deref().is_some_and(|text| text.len() <= crate::context::MAX_RESULT_BYTES));
    assert!(endless.lines.iter().any(|line| line.message.contains("1048576 bytes, and more")), "{:?}", endless.lines);

    // No more than fits the buffers of two sockets.
    let fetched = site.fetched.load(Ordering::Relaxed);
    assert!(fetched < 32 * 1024 * 1024, "{fetched}");

    // 256 MiB of zeros, compressed to a quarter of a megabyte.
    let zip =
        std::process::Command::new("sh").args(["-c", "head -c 268435456 /dev/zero | gzip -9"]).output().expect("gzip");
    let bomb = Bytes::from(zip.stdout);
    let router = Router::new().route("/", any(move || async move { ([(header::CONTENT_ENCODING, "gzip")], bomb) }));
    let record = call(json!({"url": format!("{}/", serve(router).await)})).await;
    assert_eq!(result(&record)["truncated"], true);
    assert!(record.lines.iter().any(|line| line.message.contains("1048576 bytes, and more")), "{:?}", record.lines);
}

#[tokio::test]
async fn timeout_and_cancellation_stop_the_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("bound"));
    let record = call(json!({"url": url, "timeoutSeconds": 1})).await;
    assert!(exception(&record).contains("within 1 s"), "{record:?}");
    assert_eq!(record.status(), OccurrenceStatus::TimedOut);
    let token = CancellationToken::new();
    token.cancel();
    let record = test_run(job(), &[], json!({"url": url})).cancelled_by(token, "by ann").run().await;
    assert_eq!(record.status(), OccurrenceStatus::Cancelled);
}

#[tokio::test]
async fn body_must_meet_its_conditions() {
    let (url, _) = start_test_site().await;
    let input = |text: &str| json!({"url": format!("{url}/echo"), "expectBody": [{"type": "contains", "text": text}]});
    result(&call(input("GET /echo")).await);
    let record = call(input("POST")).await;
    assert!(
        exception(&record).contains("does not meet `expectBody`: the body does not contain \"POST\""),
        "{record:?}"
    );
}

#[tokio::test]
async fn invalid_input_names_the_field_without_secrets() {
    for (input, field) in [
        (json!({"url": "file:///etc/passwd"}), "`url`"),
        (json!({"url": "example.org"}), "`url`"),
        (json!({"url": "http://localhost/\r\nx: {{secret:key}}"}), "`url`"),
        (json!({"url": "http://u:{{secret:key}}@localhost"}), "`url`"),
        (json!({"url": "http://localhost", "timeoutSeconds": 0}), "`timeoutSeconds`"),
        (json!({"url": "http://localhost", "expectedStatus": ["20"]}), "`expectedStatus`"),
        (json!({"url": "http://localhost", "retryStatus": ["x"]}), "`retryStatus`"),
        (json!({"url": "http://localhost", "headers": {"a": "{{secret:key}}\r\nc"}}), "`headers`"),
        (json!({"url": "http://localhost", "headers": {"a\r\nb": "c"}}), "`headers`"),
        (json!({"url": "http://localhost", "headers": {"Host": "c"}}), "`headers`"),
        (json!({"url": "http://localhost", "headers": {"transfer-encoding": "chunked"}}), "`headers`"),
        (json!({"url": "http://localhost", "method": "get"}), "`method`"),
        (json!({"url": "http://localhost", "auth": {"type": "bearer", "token": "a\r\nb"}}), "`auth.token`"),
        (json!({"url": "http://localhost", "auth": {"type": "basic", "username": "a:b"}}), "`auth`"),
        (json!({"url": "http://localhost", "auth": {"type": "bearer", "tokens": "a"}}), "`auth.tokens`"),
        (json!({"url": "http://localhost", "expectBody": [{"type": "matches", "pattern": "("}]}), "`expectBody`"),
        (json!({"url": "http://localhost", "other": 1}), "`other`"),
    ] {
        let record = call(input.clone()).await;
        assert!(exception(&record).contains(field), "{input}: {record:?}");
        assert!(!all_of(&record).contains("c4n4ry"), "{record:?}");
    }
}
