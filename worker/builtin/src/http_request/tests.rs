//! Against a real HTTP server on this machine, which the guard is told to allow.

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
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_worker::{CancellationToken, testing::TestReport};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::*;
use crate::{
    context::tests::{all_of, test_run},
    guard::tests::ScriptedLookup,
};

const SECRETS: &[(&str, &str)] = &[("key", "c4n4ry-key"), ("pass", "c4n4ry:p&ss")];

/// What arrived, one line for each request: method, path with query, the headers of interest, body.
type ReceivedRequests = Arc<Mutex<Vec<String>>>;

#[derive(Clone, Default)]
struct TestSite {
    seen: ReceivedRequests,
    tokens: Arc<AtomicUsize>,
    /// How many bytes of the endless answer were fetched.
    fetched: Arc<AtomicUsize>,
}

async fn serve(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// A site that writes down who calls: `/echo` says so, `/status/N` answers N, `/to?X` points to X, `/token` gives tokens
/// that `/guarded` accepts but for the first.
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
    let of_interest: Vec<_> = headers
        .iter()
        .filter(|(name, _)| ["authorization", "x-a", "x-api-key", "accept", "cookie"].contains(&name.as_str()))
        .filter(|(_, value)| *value != "*/*")
        .map(|(name, value)| format!("{name}={}", value.to_str().expect("text")))
        .collect();
    let line = format!("{method} {uri} [{}] {}", of_interest.join(","), String::from_utf8_lossy(&body));
    site.seen.lock().expect("free").push(line.clone());
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
    let who = headers.get(header::AUTHORIZATION).map_or("", |value| value.to_str().expect("text"));
    site.seen.lock().expect("free").push(format!("token {who} {body}"));
    // Another client's tokens are about to expire when they are given.
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
    HttpRequest::new(EgressGuard::new(vec!["127.0.0.1".parse().expect("a rule")], Vec::new(), Vec::new(), false), None)
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
async fn what_is_asked_arrives_and_the_answer_is_the_result() {
    let (url, site) = start_test_site().await;
    let record = call(json!({
        "url": format!("{url}/echo?a=1"), "method": "POST", "query": {"b c": "&"}, "headers": {"x-a": "1"}, "body": "text"
    }))
    .await;
    let result = result(&record);
    assert_eq!(site.seen.lock().expect("free").concat(), "POST /echo?a=1&b+c=%26 [x-a=1] text");
    assert_eq!((&result["status"], &result["truncated"]), (&json!(200), &json!(false)));
    assert!(result["body"].as_str().is_some_and(|body| body.starts_with("POST /echo")), "{result}");
    // The log shows the path but not the query.
    assert!(record.lines[0].message.ends_with("/echo"), "{}", record.lines[0].message);
}

#[tokio::test]
async fn an_inside_address_is_refused_unless_it_is_allowed() {
    let (url, site) = start_test_site().await;
    let closed = HttpRequest::new(EgressGuard::new(Vec::new(), Vec::new(), Vec::new(), false), None);
    let record = test_run(closed, &[], json!({"url": format!("{url}/echo")})).run().await;
    assert!(exception(&record).contains("127.0.0.1, which is not public"), "{record:?}");
    assert!(site.seen.lock().expect("free").is_empty(), "nothing was called");
}

#[tokio::test]
async fn the_connection_is_made_to_the_address_that_was_judged() {
    let (url, site) = start_test_site().await;
    let port = url.rsplit(':').next().expect("a port");
    // A name that only this resolver knows, and only once.
    let guard = EgressGuard::new(vec!["127.0.0.1".parse().expect("a rule")], Vec::new(), Vec::new(), false);
    let guard = guard.with_lookup(ScriptedLookup::new(&[&["127.0.0.1"], &["127.0.0.2"]]));
    let job = HttpRequest::new(guard, None);
    let record = test_run(job, &[], json!({"url": format!("http://judged.test:{port}/echo")})).run().await;
    result(&record);
    assert_eq!(site.seen.lock().expect("free").len(), 1);
}

#[tokio::test]
async fn statuses_are_success_worth_another_try_or_the_end() {
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
        assert!(failure.to_string().ends_with("The answer begins: busy"), "{failure}");
    }
    assert!(check_status(204, &headers, &expected, &retried, "", "").is_ok());

    let (url, _) = start_test_site().await;
    let record = call(json!({"url": format!("{url}/status/503?key=hidden")})).await;
    let text = exception(&record);
    assert!(text.contains("answered 503") && text.contains("the body") && !text.contains("hidden"), "{text}");
    assert_eq!(record.end().retry_after_ms, Some(17_000), "{text}");
    let kept = result(&call(json!({"url": format!("{url}/status/404"), "expectedStatus": ["404"]})).await);
    assert_eq!(kept["status"], 404);
    assert!(kept["headers"].get("set-cookie").is_none() && kept["headers"].get("retry-after").is_some(), "{kept}");
}

#[tokio::test]
async fn a_connection_that_fails_is_worth_another_try() {
    let port = TcpListener::bind("127.0.0.1:0").await.expect("a free port").local_addr().expect("bound").port();
    let input: HttpRequestInput =
        serde_json::from_value(json!({"url": format!("http://127.0.0.1:{port}/?k=hidden")})).expect("an input");
    let failure = job().caller.send(&input.request().expect("a request")).await.expect_err("nobody listens");
    assert!(!failure.is_permanent() && !failure.to_string().contains("hidden"), "{failure}");
    assert!(failure.to_string().contains("refused"), "{failure}");
}

#[tokio::test]
async fn each_kind_of_authentication_arrives_and_none_is_told() {
    for (auth, arrived) in [
        (
            json!({"type": "basic", "username": "u", "password": "{{secret:pass}}"}),
            "GET /echo [authorization=Basic dTpjNG40cnk6cCZzcw==] ",
        ),
        (json!({"type": "bearer", "token": "{{secret:key}}"}), "GET /echo [authorization=Bearer c4n4ry-key] "),
        (
            json!({"type": "apiKey", "name": "X-Api-Key", "value": "{{secret:key}}"}),
            "GET /echo [x-api-key=c4n4ry-key] ",
        ),
        (
            json!({"type": "apiKey", "name": "k", "value": "{{secret:pass}}", "in": "query"}),
            "GET /echo?k=c4n4ry%3Ap%26ss [] ",
        ),
    ] {
        let (url, site) = start_test_site().await;
        let record = call(json!({"url": format!("{url}/echo"), "auth": auth})).await;
        assert_eq!(*site.seen.lock().expect("free"), [arrived]);
        // The site repeats everything in its answer.
        assert!(result(&record)["body"].as_str().is_some_and(|body| body.contains("{{")), "{record:?}");
        let all = all_of(&record);
        assert!(!all.contains("c4n4ry") && !all.contains("NG40cnk"), "{all}");
    }
}

#[tokio::test]
async fn a_token_is_asked_for_once_and_again_when_it_is_refused() {
    let (url, site) = start_test_site().await;
    let input = json!({"url": format!("{url}/guarded"), "auth": {
        "type": "oauth2", "tokenUrl": format!("{url}/token"), "clientId": "me", "clientSecret": "{{secret:pass}}", "scope": "a b"
    }});
    let job = Arc::new(job());
    for _ in 0..3 {
        let record = test_run(SharedHttpRequest(job.clone()), SECRETS, input.clone()).run().await;
        assert_eq!(result(&record)["body"], "welcome");
        assert!(!all_of(&record).contains("t0ken-"), "{record:?}");
    }
    // The first was refused once; the second served three runs.
    assert_eq!(site.tokens.load(Ordering::SeqCst), 2);
    let seen = site.seen.lock().expect("free").clone();
    // me:c4n4ry%3Ap%26ss
    assert_eq!(seen[0], "token Basic bWU6YzRuNHJ5JTNBcCUyNnNz grant_type=client_credentials&scope=a+b");
}

#[tokio::test]
async fn a_token_is_not_used_beyond_its_end_and_a_refusal_is_not_asked_about_twice() {
    let (url, site) = start_test_site().await;
    let auth = |scope: &str| {
        json!({
            "type": "oauth2", "tokenUrl": format!("{url}/token"), "clientId": "me", "clientSecret": "{{secret:key}}",
            "scope": scope, "sendAs": "body"
        })
    };
    let job = Arc::new(job());
    for _ in 0..2 {
        let input = json!({"url": format!("{url}/echo"), "auth": auth("brief")});
        result(&test_run(SharedHttpRequest(job.clone()), SECRETS, input).run().await);
    }
    assert_eq!(site.tokens.load(Ordering::SeqCst), 2, "each had expired when it was given");
    assert!(site.seen.lock().expect("free")[0].ends_with("scope=brief&client_id=me&client_secret=c4n4ry-key"));
    let input = json!({"url": format!("{url}/status/401"), "auth": auth("refused")});
    let record = test_run(SharedHttpRequest(job), SECRETS, input).run().await;
    assert!(exception(&record).contains("answered 401"), "{record:?}");
    assert_eq!(site.tokens.load(Ordering::SeqCst), 4, "one token, and one more");
}

/// A job that several runs share, as they do in a worker.
struct SharedHttpRequest(Arc<HttpRequest>);

impl BuiltinJob for SharedHttpRequest {
    const TYPE: &'static str = HttpRequest::TYPE;
    const DESCRIPTION: &'static str = HttpRequest::DESCRIPTION;
    type Input = HttpRequestInput;
    type Output = HttpRequestOutput;

    async fn run(&self, context: &BuiltinContext, input: HttpRequestInput) -> Result<HttpRequestOutput, BuiltinError> {
        self.0.run(context, input).await
    }
}

#[tokio::test]
async fn a_redirect_is_followed_only_when_asked_and_three_times_at_the_most() {
    let (url, site) = start_test_site().await;
    let record = call(json!({"url": format!("{url}/to?302,/echo")})).await;
    assert!(exception(&record).contains("set followRedirects"), "{record:?}");
    let record =
        call(json!({"url": format!("{url}/to?302,/echo"), "followRedirects": true, "method": "POST", "body": "b"}))
            .await;
    result(&record);
    let record =
        call(json!({"url": format!("{url}/to?307,/echo"), "followRedirects": true, "method": "POST", "body": "b"}))
            .await;
    result(&record);
    assert_eq!(*site.seen.lock().expect("free"), ["GET /echo [] ", "POST /echo [] b"]);
    // Each hop is a `/to` that points to the rest.
    let hops = |count: usize| format!("{url}{}", "/to?302,".repeat(count) + "/echo");
    result(&call(json!({"url": hops(3), "followRedirects": true})).await);
    let record = call(json!({"url": hops(4), "followRedirects": true})).await;
    assert!(exception(&record).contains("more than 3 times"), "{record:?}");
}

#[tokio::test]
async fn another_host_is_given_neither_credentials_nor_headers_nor_body() {
    let ((first, seen_first), (second, seen)) = (start_test_site().await, start_test_site().await);
    let auth = json!({"type": "bearer", "token": "{{secret:key}}"});
    let headers = json!({"x-a": "1", "cookie": "c=1", "accept": "text/plain"});
    let input = |url: String| json!({"url": url, "auth": auth, "headers": headers, "followRedirects": true});
    result(&call(input(format!("{first}/to?302,{second}/echo"))).await);
    assert_eq!(*seen.seen.lock().expect("free"), ["GET /echo [accept=text/plain] "]);
    // The same host is given them again, though not the headers it lost on the way round.
    result(&call(input(format!("{first}/to?302,/echo"))).await);
    assert!(seen_first.seen.lock().expect("free")[0].contains("authorization=Bearer c4n4ry-key"));
    let mut input = input(format!("{first}/to?307,{second}/echo"));
    input["method"] = json!("POST");
    input["body"] = json!("{{secret:pass}}");
    let record = call(input).await;
    assert!(exception(&record).contains("would be given the body"), "{record:?}");
    assert_eq!(seen.seen.lock().expect("free").len(), 1);
}

#[tokio::test]
async fn every_hop_is_judged_like_the_first() {
    let (url, _) = start_test_site().await;
    for target in
        ["http://127.0.0.2/", "http://[::1]/", "http://169.254.169.254/", "file:///etc/passwd", "http://a:b@127.0.0.1/"]
    {
        let record = call(json!({"url": format!("{url}/to?302,{target}"), "followRedirects": true})).await;
        let text = exception(&record);
        assert!(
            text.contains("not public") || text.contains("only http://") || text.contains("user name"),
            "{target}: {text}"
        );
    }
}

#[tokio::test]
async fn an_endless_answer_and_a_bomb_are_cut() {
    let (url, site) = start_test_site().await;
    let endless = call(json!({"url": format!("{url}/endless")})).await;
    let result_of = result(&endless);
    assert_eq!(result_of["truncated"], true);
    assert!(result_of["body"].as_str().is_some_and(|body| body.len() > 50_000), "most of 64 KiB");
    assert!(endless.end().result.as_deref().is_some_and(|text| text.len() <= crate::context::MAX_RESULT_BYTES));
    assert!(endless.lines.iter().any(|line| line.message.contains("1048576 bytes, and more")), "{:?}", endless.lines);

    // What lies in the buffers of two sockets, and no more.
    let fetched = site.fetched.load(Ordering::Relaxed);
    assert!(fetched < 32 * 1024 * 1024, "{fetched}");

    // 256 MiB of zeros, in a quarter of a megabyte.
    let zip =
        std::process::Command::new("sh").args(["-c", "head -c 268435456 /dev/zero | gzip -9"]).output().expect("gzip");
    let bomb = Bytes::from(zip.stdout);
    let router = Router::new().route("/", any(move || async move { ([(header::CONTENT_ENCODING, "gzip")], bomb) }));
    let record = call(json!({"url": format!("{}/", serve(router).await)})).await;
    assert_eq!(result(&record)["truncated"], true);
    assert!(record.lines.iter().any(|line| line.message.contains("1048576 bytes, and more")), "{:?}", record.lines);
}

#[tokio::test]
async fn silence_ends_in_time_and_a_cancelled_call_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("bound"));
    let record = call(json!({"url": url, "timeoutSeconds": 1})).await;
    assert!(exception(&record).contains("within 1 s"), "{record:?}");
    let token = CancellationToken::new();
    token.cancel();
    let record = test_run(job(), &[], json!({"url": url})).cancelled_by(token, "by ann").run().await;
    assert_eq!(record.status(), OccurrenceStatus::Cancelled);
}

#[tokio::test]
async fn a_body_must_be_as_expected() {
    let (url, _) = start_test_site().await;
    let input = |text: &str| json!({"url": format!("{url}/echo"), "expectBody": [{"type": "contains", "text": text}]});
    result(&call(input("GET /echo")).await);
    let record = call(input("POST")).await;
    assert!(exception(&record).contains("as `expectBody` wants it: the body has no \"POST\""), "{record:?}");
}

#[tokio::test]
async fn wrong_input_names_the_field_and_repeats_no_secret() {
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
        (json!({"url": "http://localhost", "auth": {"type": "bearer", "tokens": "a"}}), "`auth"),
        (json!({"url": "http://localhost", "expectBody": [{"type": "matches", "pattern": "("}]}), "`expectBody`"),
        (json!({"url": "http://localhost", "other": 1}), "`other`"),
    ] {
        let record = call(input.clone()).await;
        assert!(exception(&record).contains(field), "{input}: {record:?}");
        assert!(!all_of(&record).contains("c4n4ry"), "{record:?}");
    }
}
