//! The requests, retries and errors of the library.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use http::StatusCode;
use milvaion_api::rest::{JobQuery, OccurrenceQuery, PauseRequest, RunJob, StatusName};
use milvaion_client::{Client, ClientError, ClientOptions, Enqueue, EnqueueClient, EnqueueError};
use milvaion_protocol::trace::Traceparent;

use crate::{
    fake::{FakeServer, StreamEnd, document, events, no_content, page, problem, problem_with, unused_address},
    samples::{JOB, job, occurrence_detail},
};

/// Limits without waits.
pub(crate) fn quick() -> ClientOptions {
    let mut options = ClientOptions::default();
    options.retry_delay = Duration::ZERO;
    options
}

pub(crate) fn client(url: &str) -> Client {
    Client::with_options(url, "milvaion_secret", quick()).expect("a client")
}

#[tokio::test]
async fn request_carries_token_query_and_escaped_path() {
    let server = FakeServer::start(|request, _| match request.target.contains("by-key") {
        true => document(200, &job()),
        false => page(&[] as &[u8], None),
    })
    .await;
    let client = client(&format!("{}/below/", server.url));
    let query = JobQuery { text: Some("a&b ä".into()), active: Some(true), ..JobQuery::default() };
    client.jobs(&query).await.expect("a page");
    let query = OccurrenceQuery { status: Some(StatusName::TimedOut), limit: Some(7), ..OccurrenceQuery::default() };
    client.occurrences(&query).await.expect("a page");
    client.job_by_key("a/b ?").await.expect("a job");
    let targets: Vec<_> = server.received().into_iter().map(|request| request.target).collect();
    assert_eq!(
        targets,
        [
            "/below/api/v1/jobs?text=a%26b+%C3%A4&active=true",
            "/below/api/v1/occurrences?status=timed_out&limit=7",
            "/below/api/v1/jobs/by-key/a%2Fb%20%3F",
        ]
    );
    assert_eq!(server.received()[0].header("authorization"), Some("Bearer milvaion_secret"));
}

#[tokio::test]
async fn request_in_a_trace_carries_its_position() {
    let server = FakeServer::start(|_, _| document(202, &occurrence_detail(StatusName::Queued))).await;
    let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let client = client(&server.url);
    let traced = client.in_trace(&Traceparent::parse(text).expect("it is valid"));
    for client in [client, traced] {
        client.run_job(JOB.parse().expect("an id"), &RunJob::default()).await.expect("an occurrence");
    }
    let sent: Vec<_> =
        server.received().iter().map(|request| request.header("traceparent").map(str::to_owned)).collect();
    assert_eq!(sent, [None, Some(text.to_owned())]);
}

#[tokio::test]
async fn problem_is_returned_with_its_fields() {
    let server = FakeServer::start(|_, _| problem(422, "displayName: enter a name")).await;
    let error = client(&server.url).job(JOB.parse().expect("an id")).await.expect_err("a problem");
    assert_eq!(error.status(), Some(StatusCode::UNPROCESSABLE_ENTITY));
    assert_eq!(error.to_string(), "displayName: enter a name");
    assert_eq!(server.received().len(), 1, "a refusal is final");
}

#[tokio::test]
async fn temporary_failure_is_retried_with_the_same_key() {
    let server = FakeServer::start(|_, number| match number {
        1 => problem_with(429, "Too many requests.", &[("retry-after", "0")]),
        2 => problem_with(409, "The first request is still being carried out.", &[("retry-after", "0")]),
        3 => document(502, &"a proxy"),
        _ => document(202, &occurrence_detail(StatusName::Queued)),
    })
    .await;
    let run = RunJob::default();
    let client = client(&server.url);
    client.run_job(JOB.parse().expect("an id"), &run).await.expect("an occurrence");
    client.run_job(JOB.parse().expect("an id"), &run).await.expect("an occurrence");
    let received = server.received();
    let keys: Vec<_> = received.iter().map(|request| request.header("idempotency-key").expect("a key")).collect();
    assert_eq!(keys[..4].iter().collect::<HashSet<_>>().len(), 1, "one request");
    assert_ne!(keys[3], keys[4], "another request");
}

#[tokio::test]
async fn request_that_times_out_is_repeated_with_the_same_key() {
    let server = FakeServer::start(|request, number| match (request.method.as_str(), number) {
        ("POST", 1) | ("PUT", _) => events(Vec::new(), StreamEnd::Silent),
        _ => document(202, &occurrence_detail(StatusName::Queued)),
    })
    .await;
    let mut options = quick();
    options.request_timeout = Duration::from_millis(300);
    let client = Client::with_options(&server.url, "milvaion_secret", options).expect("a client");
    client.run_job(JOB.parse().expect("an id"), &RunJob::default()).await.expect("an occurrence");
    let received = server.received();
    let keys: HashSet<_> = received.iter().map(|request| request.header("idempotency-key").expect("a key")).collect();
    assert!(received.len() > 1 && keys.len() == 1, "{received:?}");

    let job = serde_json::from_value(job()["definition"].clone()).expect("a definition");
    let error = client.save_job("mail.send", &job, None).await.expect_err("no answer");
    assert!(matches!(error, ClientError::Timeout { .. }), "{error:?}");
    assert_eq!(server.received().len(), received.len() + 1, "a PUT is sent once");
}

#[tokio::test]
async fn request_is_repeated_three_times_at_most() {
    let server = FakeServer::start(|_, _| problem(503, "PostgreSQL is down.")).await;
    let error = client(&server.url).account().await.expect_err("a problem");
    assert_eq!(error.status(), Some(StatusCode::SERVICE_UNAVAILABLE));
    assert_eq!(server.received().len(), 4);
}

#[tokio::test]
async fn long_wait_is_left_to_the_caller() {
    let server = FakeServer::start(|_, _| problem_with(503, "An upgrade.", &[("retry-after", "3600")])).await;
    let started = Instant::now();
    assert!(client(&server.url).account().await.is_err());
    assert!(started.elapsed() < Duration::from_secs(30));
    assert_eq!(server.received().len(), 1);
}

#[tokio::test]
async fn changes_by_put_and_delete_are_sent_once_with_their_version() {
    let server = FakeServer::start(|request, number| match (request.method.as_str(), number) {
        (_, 1) => problem(503, "PostgreSQL is down."),
        ("DELETE", _) => no_content(),
        _ => document(201, &job()),
    })
    .await;
    let client = client(&server.url);
    let job = serde_json::from_value(job()["definition"].clone()).expect("a definition");
    assert!(client.save_job("mail.send", &job, Some(7)).await.is_err());
    let saved = client.save_job("mail.send", &job, None).await.expect("a job");
    assert!(saved.is_new);
    client.delete_job(JOB.parse().expect("an id"), Some(8)).await.expect("deleted");
    let received = server.received();
    let versions: Vec<_> = received.iter().map(|request| request.header("if-match")).collect();
    assert_eq!(versions, [Some("\"7\""), None, Some("\"8\"")]);
    assert!(received.iter().all(|request| request.header("idempotency-key").is_none()));
}

#[tokio::test]
async fn unreachable_server_is_named() {
    let url = unused_address().await;
    let error = client(&url).account().await.expect_err("no server");
    assert!(matches!(error, ClientError::Transport { .. }), "{error:?}");
    assert!(error.to_string().contains(&url), "{error}");
}

#[tokio::test]
async fn other_answers_are_not_the_api() {
    let server = FakeServer::start(|request, _| {
        if request.target.ends_with("/cluster/pause") {
            let mut response = document(301, &"");
            response.headers_mut().insert("location", http::HeaderValue::from_static("https://elsewhere.example/"));
            return response;
        }
        document(200, &"<html>")
    })
    .await;
    let client = client(&server.url);
    assert!(matches!(client.account().await, Err(ClientError::UnreadableAnswer { .. })));
    let error = client.pause_cluster(&PauseRequest::default()).await.expect_err("a redirect");
    assert!(error.to_string().contains("https://elsewhere.example/"), "{error}");
    assert_eq!(server.received().len(), 2, "a redirect is not followed");
}

/// Returns occurrences of one job.
fn occurrences(count: usize) -> Vec<Enqueue> {
    (0..count).map(|_| Enqueue::job("a")).collect()
}

/// Accepts every occurrence of a request.
fn accept(request: &crate::fake::Received) -> axum::response::Response {
    let results: Vec<_> = request.json()["occurrences"]
        .as_array()
        .expect("occurrences")
        .iter()
        .map(|occurrence| serde_json::json!({ "id": occurrence["id"], "outcome": "accepted" }))
        .collect();
    document(200, &serde_json::json!({ "results": results }))
}

#[tokio::test]
async fn enqueue_keeps_the_results_and_the_ids_of_a_request_that_fails() {
    let server = FakeServer::start(|request, number| match number {
        1 => accept(request),
        _ => problem(503, "The database does not answer."),
    })
    .await;
    let error = EnqueueClient::new(client(&server.url)).enqueue_all(occurrences(1_200)).await.expect_err("unanswered");
    assert!(error.is_retryable(), "{error}");
    let EnqueueError::Unanswered(unanswered) = error else { panic!("{error}") };
    assert_eq!((unanswered.results.len(), unanswered.occurrences.len()), (500, 700));
    assert!(unanswered.reason.contains("The database does not answer."), "{}", unanswered.reason);
    let sizes: Vec<_> =
        server.received().iter().map(|one| one.json()["occurrences"].as_array().map(Vec::len)).collect();
    assert!(sizes.iter().all(|size| *size == Some(500)), "{sizes:?}");
}

#[tokio::test]
async fn enqueue_that_the_server_refuses_creates_nothing() {
    let server = FakeServer::start(|_, _| problem(403, "The token has the role Viewer.")).await;
    let error = EnqueueClient::new(client(&server.url)).enqueue_all(occurrences(2)).await.expect_err("refused");
    assert!(!error.is_retryable() && matches!(error, EnqueueError::Api(_)), "{error}");
}
