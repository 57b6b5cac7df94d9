//! Repeated requests with an idempotency key.

use chrono::TimeDelta;
use http::StatusCode;
use milvaion_protocol::id::OccurrenceId;
use milvaion_server::store::{api_requests::Registration, retention::ExpiringTable};
use serde_json::{Value, json};

use super::harness::{ApiHarness, echo};

const KEY: (&str, &str) = ("idempotency-key", "deploy 42");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_requests_are_carried_out_once() {
    let harness = ApiHarness::new().await;
    repeated_request_gets_the_first_answer(&harness).await;
    concurrent_repetitions_run_a_job_once(&harness).await;
    refused_request_leaves_its_key_free(&harness).await;
    secret_is_not_repeated(&harness).await;
    request_with_an_unknown_outcome_is_not_repeated(&harness).await;
    harness.server.stop().await;
}

async fn repeated_request_gets_the_first_answer(harness: &ApiHarness) {
    let token = harness.token(&harness.admin).await;
    let first = harness.call_with(&token, "POST", "/jobs", echo("Repeated"), KEY).await;
    let again = harness.call_with(&token, "POST", "/jobs", echo("Repeated"), KEY).await;
    assert_eq!((first.status, again.status), (StatusCode::CREATED, StatusCode::CREATED));
    assert_eq!(again.body, first.body);
    assert_eq!(again.header("location"), first.header("location"));
    assert_eq!((first.header("idempotency-replayed"), again.header("idempotency-replayed")), ("", "true"));
    let other = harness.call_with(&token, "POST", "/jobs", echo("Other"), KEY).await;
    assert_eq!(other.invalid_fields(), ["Idempotency-Key"], "the key of another request");
    let of_another = harness.token(&harness.admin).await;
    let separate = harness.call_with(&of_another, "POST", "/jobs", echo("Repeated"), KEY).await;
    assert_ne!(separate.ok()["id"], first.body["id"], "keys of callers are independent");
    let listed = harness.call(&token, "GET", "/jobs?text=repeated", Value::Null).await.ok();
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(2));
}

async fn concurrent_repetitions_run_a_job_once(harness: &ApiHarness) {
    let token = harness.token(&harness.admin).await;
    let id = harness.job(&token, echo("Report")).await["id"].as_str().expect("an id").to_owned();
    let path = format!("/jobs/{id}/run");
    let run = |_| harness.call_with(&token, "POST", &path, json!({ "reason": "deployed" }), KEY);
    let answers = futures::future::join_all((0..8).map(run)).await;
    let occurrences: std::collections::BTreeSet<_> =
        answers.into_iter().map(|answer| answer.ok()["id"].to_string()).collect();
    assert_eq!(occurrences.len(), 1);
    let listed = harness.call(&token, "GET", &format!("/occurrences?jobId={id}"), Value::Null).await.ok();
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(listed["items"][0]["status"], "queued");
}

async fn refused_request_leaves_its_key_free(harness: &ApiHarness) {
    let token = harness.token(&harness.admin).await;
    let id = harness.job(&token, echo("Report")).await["id"].as_str().expect("an id").to_owned();
    harness.call(&token, "POST", &format!("/jobs/{id}/pause"), Value::Null).await.ok();
    let path = format!("/jobs/{id}/run");
    let refused = harness.call_with(&token, "POST", &path, Value::Null, KEY).await;
    assert_eq!(refused.status, StatusCode::CONFLICT);
    harness.call(&token, "POST", &format!("/jobs/{id}/resume"), Value::Null).await.ok();
    let queued = harness.call_with(&token, "POST", &path, Value::Null, KEY).await;
    assert_eq!(queued.status, StatusCode::ACCEPTED);
}

async fn secret_is_not_repeated(harness: &ApiHarness) {
    let token = harness.token(&harness.admin).await;
    let new = json!({ "name": "ci", "role": "viewer" });
    let created = harness.call_with(&token, "POST", "/tokens", new.clone(), KEY).await;
    assert_eq!(created.status, StatusCode::CREATED);
    let again = harness.call_with(&token, "POST", "/tokens", new, KEY).await;
    assert_eq!(again.status, StatusCode::CONFLICT);
    assert!(!again.body.to_string().contains(created.body["secret"].as_str().expect("a secret")));
}

async fn request_with_an_unknown_outcome_is_not_repeated(harness: &ApiHarness) {
    let created = harness.create_token(&harness.admin, |_| {}).await;
    let (store, now) = (&harness.server.store, harness.server.clock.now());
    let first = harness.call_with(&created.secret, "POST", "/jobs", echo("Report"), ("idempotency-key", "done")).await;
    assert_eq!(first.status, StatusCode::CREATED);
    // A server that died after it had registered the request.
    let caller = format!("token:{}", created.token.id);
    let fingerprint = fingerprint("/jobs", &echo("Lost"));
    let long_ago = now - TimeDelta::minutes(5);
    let registered = store.register_api_request(&caller, KEY.1, &fingerprint, long_ago).await.expect("stored");
    assert_eq!(registered, Registration::New);
    let refused = harness.call_with(&created.secret, "POST", "/jobs", echo("Lost"), KEY).await;
    assert_eq!(refused.status, StatusCode::CONFLICT, "{}", refused.body);
    assert!(refused.body["detail"].as_str().expect("text").contains("is unknown"), "{}", refused.body);
    let deleted = store.delete_expired(ExpiringTable::ApiRequests, now - TimeDelta::minutes(1)).await;
    assert_eq!(deleted.expect("deleted"), 1);
    let new = harness.call_with(&created.secret, "POST", "/jobs", echo("Lost"), KEY).await;
    assert_eq!(new.status, StatusCode::CREATED);

    // What can be carried out again makes the ids of the first request, which may have created the occurrences.
    let occurrences = json!({ "occurrences": [{ "jobKey": "missing" }] });
    let (path, key) = ("/occurrences", ("idempotency-key", "enqueue"));
    let fingerprint = self::fingerprint(path, &occurrences);
    store.register_api_request(&caller, key.1, &fingerprint, long_ago).await.expect("stored");
    let repeated = harness.call_with(&created.secret, "POST", path, occurrences, key).await.ok();
    let id: OccurrenceId = repeated["results"][0]["id"].as_str().expect("an id").parse().expect("an id");
    assert_eq!(id.created_at().timestamp_millis(), long_ago.timestamp_millis());
}

/// Returns the fingerprint of a POST request as the server takes it. `path` is the one below `/api/v1`.
fn fingerprint(path: &str, body: &Value) -> [u8; 32] {
    use sha2::Digest;
    let mut hasher = sha2::Sha256::new();
    for part in ["POST".as_bytes(), path.as_bytes(), body.to_string().as_bytes()] {
        hasher.update(part.len().to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize().into()
}
