//! Occurrences that a program creates with one request.

use http::StatusCode;
use milvaion_api::permissions::Role;
use milvaion_client::{Client, Enqueue, EnqueueClient, Enqueued};
use serde_json::json;

use super::harness::ApiHarness;

#[tokio::test]
async fn request_has_a_result_for_each_occurrence() {
    let harness = ApiHarness::new().await;
    let token = harness.token(&harness.admin).await;
    let job = json!({"displayName": "Hello", "workerId": "w", "jobType": "echo", "schedule": {"kind": "manual"}});
    harness.call(&token, "PUT", "/jobs/by-key/hello", job).await.ok();
    let occurrences = json!({"occurrences": [
        {"jobKey": "hello", "uniquenessKey": "a"},
        {"jobKey": "hello", "uniquenessKey": "a"},
        {"jobKey": "other"},
    ]});
    let answer = harness.call(&token, "POST", "/occurrences", occurrences.clone()).await.ok();
    let outcomes: Vec<_> = (0..3).map(|index| answer["results"][index]["outcome"].clone()).collect();
    assert_eq!(outcomes, ["accepted", "duplicate", "rejected"]);
    assert_eq!(answer["results"][1]["existingId"], answer["results"][0]["id"]);
    let parent = answer["results"][0]["id"].as_str().expect("an id").to_owned();
    let child = json!({"occurrences": [{"jobKey": "hello", "parentId": parent}]});
    let child = harness.call(&token, "POST", "/occurrences", child).await.ok();
    let children = harness.call(&token, "GET", &format!("/occurrences?parentId={parent}"), json!(null)).await.ok();
    assert_eq!(children["items"][0]["id"], child["results"][0]["id"]);
    assert_eq!(children["items"].as_array().map(Vec::len), Some(1));

    let viewer = harness.user("vera", Role::Viewer).await;
    let viewer = harness.token(&viewer).await;
    let refused = harness.call(&viewer, "POST", "/occurrences", occurrences).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    harness.server.stop().await;
}

#[tokio::test]
async fn client_library_enqueues_with_a_token() {
    let harness = ApiHarness::new().await;
    let token = harness.token(&harness.admin).await;
    let job = json!({"displayName": "Hello", "workerId": "w", "jobType": "echo", "schedule": {"kind": "manual"}});
    harness.call(&token, "PUT", "/jobs/by-key/hello", job).await.ok();
    let url = format!("http://127.0.0.1:{}", harness.server.address.port());
    let client = EnqueueClient::new(Client::new(&url, &token).expect("a valid address"));
    let first = client.enqueue(Enqueue::job("hello").unique("a")).await.expect("accepted");
    assert_eq!(
        client.enqueue(Enqueue::job("hello").unique("a")).await.expect("answered"),
        Enqueued::Duplicate(first.id())
    );
    harness.server.stop().await;
}
