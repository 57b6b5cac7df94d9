//! The rights of every role at every operation, and the origin of sessions.

use http::StatusCode;
use milvaion_api::permissions::Role;
use milvaion_server::http::rest::endpoints;
use serde_json::Value;

use super::harness::{ApiHarness, echo, path_of_missing, send};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_check_role_and_origin() {
    let harness = ApiHarness::new().await;
    each_role_uses_its_operations_only(&harness).await;
    session_changes_something_only_from_our_own_pages(&harness).await;
    harness.server.stop().await;
}

async fn each_role_uses_its_operations_only(harness: &ApiHarness) {
    let mut callers = vec![("a caller without a token", None, String::new())];
    for (name, role) in [("vera", Role::Viewer), ("oscar", Role::Operator), ("alice", Role::Admin)] {
        let user = harness.user(name, role).await;
        callers.push((name, Some(role), harness.token(&user).await));
    }
    let (some, others) = callers.split_at(2);
    let (some, others) = tokio::join!(wrong_answers(harness, some), wrong_answers(harness, others));
    let wrong = [some, others].concat();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Calls every operation as each of these callers, and returns the wrong answers.
async fn wrong_answers(harness: &ApiHarness, callers: &[(&str, Option<Role>, String)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for endpoint in endpoints() {
        let operation = endpoint.operation;
        let path = path_of_missing(&operation);
        for (name, role, token) in callers {
            let request = harness.request(operation.method, &path);
            let request = if token.is_empty() { request } else { request.bearer_auth(token) };
            let body = if endpoint.body.is_some() { Value::Object(Default::default()) } else { Value::Null };
            // A stream does not end, so only the head of the answer is read.
            let request = request.header("content-type", "application/json").body(body.to_string());
            let status = request.send().await.expect("a response").status();
            let expected = match role {
                None => Some(StatusCode::UNAUTHORIZED),
                Some(role) if !role.allows(operation.permission) => Some(StatusCode::FORBIDDEN),
                Some(_) => None,
            };
            let is_refused = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
            if expected.map_or(is_refused, |expected| status != expected) || status.is_server_error() {
                wrong.push(format!("{} {path} answers {status} to {name}", operation.method));
            }
        }
    }
    wrong
}

#[test]
fn every_operation_is_declared_once() {
    let endpoints = endpoints();
    let mut names: Vec<_> = endpoints.iter().map(|endpoint| endpoint.operation.id).collect();
    let mut doors: Vec<_> =
        endpoints.iter().map(|endpoint| (endpoint.operation.path, endpoint.operation.method)).collect();
    let total = names.len();
    assert!(total > 50, "{total}");
    names.sort_unstable();
    names.dedup();
    doors.sort_unstable();
    doors.dedup();
    assert_eq!((names.len(), doors.len()), (total, total));
    for endpoint in endpoints {
        let operation = endpoint.operation;
        // A plan has a body and changes nothing.
        let is_read = operation.method == "GET" || operation.id == "planFiles";
        assert!(is_read || operation.permission.mutates(), "{} changes something with a right to read", operation.id);
    }
}

async fn session_changes_something_only_from_our_own_pages(harness: &ApiHarness) {
    let cookie = harness.cookie(&harness.admin).await;
    let post = async |site: &str| {
        let request = harness.request("POST", "/jobs").header("cookie", &cookie).header("sec-fetch-site", site);
        send(request, echo("Report")).await.status
    };
    assert_eq!(post("cross-site").await, StatusCode::FORBIDDEN);
    assert_eq!(post("same-origin").await, StatusCode::CREATED);
    let read = harness.request("GET", "/jobs").header("cookie", &cookie).header("sec-fetch-site", "cross-site");
    assert_eq!(send(read, Value::Null).await.status, StatusCode::OK);
    // A token is a right of its own, wherever the request comes from.
    let token = harness.token(&harness.admin).await;
    let request = harness.request("POST", "/jobs").bearer_auth(token).header("sec-fetch-site", "cross-site");
    assert_eq!(send(request, echo("Report")).await.status, StatusCode::CREATED);
}
