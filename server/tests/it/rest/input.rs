//! Requests that are refused, and the fields that their refusals name.

use http::{StatusCode, header};
use milvaion_server::http::rest::endpoints;
use serde_json::{Value, json};

use super::harness::{ApiHarness, answer, echo, path_of_missing};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_name_their_reason() {
    let harness = ApiHarness::new().await;
    invalid_fields_are_named(&harness).await;
    every_operation_refuses_unknown_names(&harness).await;
    unknown_and_invalid_parameters_are_named(&harness).await;
    unreadable_bodies_and_unknown_paths_are_problems(&harness).await;
    let token = harness.token(&harness.admin).await;
    let listed = harness.call(&token, "GET", "/jobs", Value::Null).await.ok();
    assert_eq!(listed["items"], json!([]), "a refused request creates nothing");
    harness.server.stop().await;
}

async fn invalid_fields_are_named(harness: &ApiHarness) {
    let token = harness.token(&harness.admin).await;
    let with = |pointer: &str, value: Value| {
        let mut job = echo("Report");
        let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
        job.pointer_mut(parent).expect("a parent")[name] = value;
        job
    };
    let cases = [
        (with("/displayname", "x".into()), "displayname"),
        (with("/displayName", "".into()), "displayName"),
        (with("/priority", 9.into()), "priority"),
        (with("/priority", "high".into()), "priority"),
        (with("/tags", json!(["a", ""])), "tags.1"),
        (with("/workerId", "no spaces".into()), "workerId"),
        (with("/rules", json!({ "maxRetry": 3 })), "rules.maxRetry"),
        (with("/rules", json!({ "maxRetries": 101 })), "rules.maxRetries"),
        (with("/rules", json!({ "overlap": "both" })), "rules.overlap"),
        (
            with("/schedule", json!({ "kind": "cron", "expression": "61 * * * *", "zone": "UTC" })),
            "schedule.expression",
        ),
        (with("/schedule", json!({ "kind": "cron", "expression": "* * * * *", "zone": "Mars" })), "schedule.zone"),
        (with("/schedule", json!({ "kind": "cron", "expression": "0 10 * * ? *" })), "schedule.expression"),
        (with("/schedule", json!({ "kind": "every", "seconds": 0 })), "schedule.seconds"),
        (with("/schedule", json!({ "kind": "once", "at": "9999-12-31T23:59:59-14:00" })), "schedule.at"),
        (with("/schedule", json!({ "kind": "once", "at": "2020-01-01T00:00:00Z" })), "schedule.at"),
        (with("/jobData/say", "a\0b".into()), "jobData.say"),
        (with("/rules", json!({ "calendars": ["01980000-0000-7000-8000-000000000001"] })), "rules.calendars"),
    ];
    for (body, field) in cases {
        let refused = harness.call(&token, "POST", "/jobs", body.clone()).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{body} {}", refused.body);
        assert_eq!(refused.invalid_fields(), [field], "{body} {}", refused.body);
    }
    let missing = harness.call(&token, "POST", "/jobs", json!({ "displayName": "x" })).await;
    assert_eq!(missing.invalid_fields(), ["workerId", "jobType", "schedule"], "{}", missing.body);
}

async fn every_operation_refuses_unknown_names(harness: &ApiHarness) {
    let token = harness.token(&harness.admin).await;
    for endpoint in endpoints() {
        let (method, path) = (endpoint.operation.method, path_of_missing(&endpoint.operation));
        let refused = harness.call(&token, method, &format!("{path}?unknown=1"), Value::Null).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{method} {path} {}", refused.body);
        assert_eq!(refused.invalid_fields(), ["unknown"], "{method} {path} {}", refused.body);
        if endpoint.body.is_some() {
            let refused = harness.call(&token, method, &path, json!({ "unknown": 1 })).await;
            assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{method} {path} {}", refused.body);
            assert!(refused.invalid_fields().contains(&"unknown"), "{method} {path} {}", refused.body);
        }
    }
}

async fn unknown_and_invalid_parameters_are_named(harness: &ApiHarness) {
    let token = harness.token(&harness.admin).await;
    for (path, field) in [
        ("/jobs?activ=true", "activ"),
        ("/jobs?active=maybe", "active"),
        ("/jobs?limit=0", "limit"),
        ("/jobs?limit=1&limit=2", "limit"),
        ("/jobs?text=%00", "text"),
        ("/occurrences?status=done", "status"),
        ("/occurrences?since=yesterday", "since"),
        ("/jobs?after=x", "after"),
        ("/jobs/42", "id"),
        ("/failures?after=x", "after"),
        ("/audit?before=x", "before"),
    ] {
        let refused = harness.call(&token, "GET", path, Value::Null).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{path} {}", refused.body);
        assert_eq!(refused.invalid_fields(), [field], "{path} {}", refused.body);
    }
}

async fn unreadable_bodies_and_unknown_paths_are_problems(harness: &ApiHarness) {
    let token = harness.token(&harness.admin).await;
    let post = async |content_type: &str, body: Vec<u8>| {
        let request = harness.request("POST", "/jobs").bearer_auth(&token).header(header::CONTENT_TYPE, content_type);
        answer(request.body(body).send().await.expect("a response")).await.status
    };
    assert_eq!(post("application/json", b"{".to_vec()).await, StatusCode::BAD_REQUEST);
    assert_eq!(post("application/json", vec![0xff]).await, StatusCode::BAD_REQUEST);
    assert_eq!(post("application/json", b"".to_vec()).await, StatusCode::BAD_REQUEST);
    assert_eq!(post("text/plain", b"{}".to_vec()).await, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(post("application/json", vec![b' '; 600 * 1024]).await, StatusCode::PAYLOAD_TOO_LARGE);
    let deep = "[".repeat(100_000).into_bytes();
    assert_eq!(post("application/json", deep).await, StatusCode::BAD_REQUEST);
    let rounded = br#"{"displayName":"x","jobData":{"n":12345678901234567890123}}"#.to_vec();
    assert_eq!(post("application/json", rounded).await, StatusCode::BAD_REQUEST, "a number would be rounded");
    let long = harness.call(&token, "GET", &format!("/jobs?text={}", "x".repeat(9_000)), Value::Null).await;
    assert_eq!(long.status, StatusCode::BAD_REQUEST, "{}", long.body);
    assert_eq!(harness.call(&token, "GET", "/nothing", Value::Null).await.status, StatusCode::NOT_FOUND);
    let wrong = harness.call(&token, "PATCH", "/jobs", Value::Null).await;
    assert_eq!((wrong.status, wrong.header("allow")), (StatusCode::METHOD_NOT_ALLOWED, "GET, HEAD, POST"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_beyond_the_rate_says_when_to_repeat_it() {
    let harness = ApiHarness::with(|config| config.http.api_rate_limit = 10.try_into().expect("positive")).await;
    let (token, other) = (harness.token(&harness.admin).await, harness.token(&harness.admin).await);
    let first = harness.call(&token, "GET", "/account", Value::Null).await;
    assert_eq!(first.header("ratelimit-policy"), "\"minute\";q=10;w=60");
    assert!(first.header("ratelimit").starts_with("\"minute\";r=9;t="), "{}", first.header("ratelimit"));
    let mut refused = harness.call(&token, "GET", "/account", Value::Null).await;
    for _ in 0..20 {
        refused = harness.call(&token, "GET", "/account", Value::Null).await;
    }
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    let wait: u64 = refused.header("retry-after").parse().expect("seconds");
    assert!((1..=7).contains(&wait), "{wait}");
    assert_eq!(harness.call(&other, "GET", "/account", Value::Null).await.status, StatusCode::OK);
    harness.server.stop().await;
}
