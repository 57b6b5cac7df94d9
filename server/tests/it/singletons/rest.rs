//! Singleton loops over the API.

use http::StatusCode;
use milvaion_api::permissions::Role;
use milvaion_test_support::singletons::LoopInstance;
use serde_json::{Value, json};

use super::harness::LOOP;
use crate::rest::harness::ApiHarness;

async fn instance(harness: &ApiHarness, id: &str) -> LoopInstance {
    LoopInstance::connect(&harness.config.cache.url, harness.server.cache.keys(), id).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_controls_a_loop() {
    let harness = ApiHarness::new().await;
    let operator = harness.user("oscar", Role::Operator).await;
    let token = harness.token(&operator).await;
    let path = format!("/singleton-loops/{LOOP}");
    assert_eq!(harness.call(&token, "GET", &path, Value::Null).await.status, StatusCode::NOT_FOUND);
    let mut first = instance(&harness, "host:1:a").await;
    let epoch = first.take(LOOP).await;

    let list = harness.call(&token, "GET", "/singleton-loops", Value::Null).await.ok();
    assert_eq!((&list["items"][0]["name"], &list["items"][0]["status"]), (&json!(LOOP), &json!("leading")));
    let refused = harness.call(&token, "POST", &format!("{path}/yield"), Value::Null).await;
    assert_eq!(refused.status, StatusCode::CONFLICT);
    assert!(refused.body["detail"].as_str().is_some_and(|text| text.contains("No other instance")), "{refused:?}");
    assert_eq!(refused.header("content-type"), "application/problem+json");

    let mut second = instance(&harness, "host:2:b").await;
    second.heartbeat(LOOP, 0, &second.state()).await;
    let key = ("idempotency-key", "yield-1");
    for _ in 0..2 {
        let asked = harness.call_with(&token, "POST", &format!("{path}/yield"), Value::Null, key).await.ok();
        assert_eq!(asked["isYieldRequested"], json!(true));
    }
    let disabled = harness.call(&token, "POST", &format!("{path}/disable"), Value::Null).await.ok();
    assert_eq!((&disabled["status"], &disabled["disabled"]["by"]), (&json!("disabled"), &json!(operator.email)));
    let enabled = harness.call(&token, "POST", &format!("{path}/enable"), Value::Null).await.ok();
    assert_eq!((&enabled["isEnabled"], &enabled["disabled"]), (&json!(true), &Value::Null));

    assert_eq!(harness.call(&token, "DELETE", &path, Value::Null).await.status, StatusCode::CONFLICT);
    first.release(LOOP, epoch, true).await;
    second.release(LOOP, 0, true).await;
    assert_eq!(harness.call(&token, "DELETE", &path, Value::Null).await.status, StatusCode::NO_CONTENT);
    assert_eq!(harness.call(&token, "GET", &path, Value::Null).await.status, StatusCode::NOT_FOUND);
    harness.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn viewer_only_reads_loops() {
    let harness = ApiHarness::new().await;
    let token = harness.token(&harness.user("vera", Role::Viewer).await).await;
    instance(&harness, "host:1:a").await.take(LOOP).await;
    let path = format!("/singleton-loops/{LOOP}");
    assert_eq!(harness.call(&token, "GET", &path, Value::Null).await.ok()["isEnabled"], json!(true));
    for (method, path) in [
        ("POST", format!("{path}/enable")),
        ("POST", format!("{path}/disable")),
        ("POST", format!("{path}/yield")),
        ("DELETE", path),
    ] {
        assert_eq!(harness.call(&token, method, &path, Value::Null).await.status, StatusCode::FORBIDDEN, "{path}");
    }
    harness.server.stop().await;
}
