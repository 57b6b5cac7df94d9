//! Occurrences that a program creates with one request.

use http::StatusCode;
use milvaion_api::permissions::Role;
use milvaion_client::{Client, Enqueue, EnqueueClient, Enqueued};
use milvaion_test_support::database::TestConnection;
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

#[tokio::test]
async fn delayed_occurrences_are_counted_and_cancelled() {
    let harness = ApiHarness::new().await;
    let token = harness.token(&harness.admin).await;
    let mut ids = Vec::new();
    for key in ["hello", "other"] {
        let job = json!({"displayName": key, "workerId": "w", "jobType": "echo", "schedule": {"kind": "manual"}});
        let job = harness.call(&token, "PUT", &format!("/jobs/by-key/{key}"), job).await.ok();
        ids.push(job["id"].as_str().expect("an id").to_owned());
        let later = harness.server.clock.now() + chrono::Duration::hours(1);
        let delayed = json!({"occurrences": vec![json!({"jobKey": key, "notBefore": later}); 400]});
        for _ in 0..3 {
            harness.call(&token, "POST", "/occurrences", delayed.clone()).await.ok();
        }
        harness.call(&token, "POST", "/occurrences", json!({"occurrences": [{"jobKey": key}]})).await.ok();
    }
    let count = async |job: usize| {
        let job = harness.call(&token, "GET", &format!("/jobs/{}", ids[job]), json!(null)).await.ok();
        job["delayedOccurrences"].as_i64()
    };
    assert_eq!((count(0).await, count(1).await), (Some(1_200), Some(1_200)));

    let path = format!("/jobs/{}/cancel-delayed", ids[0]);
    let cancel = async |reason: &str| harness.call(&token, "POST", &path, json!({"reason": reason})).await;
    assert_eq!(cancel(&"x".repeat(501)).await.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(cancel("wrong input").await.ok(), json!({"cancelled": 1_200, "more": false}));
    assert_eq!(cancel("again").await.ok(), json!({"cancelled": 0, "more": false}));
    assert_eq!((count(0).await, count(1).await), (Some(0), Some(1_200)), "those of another job stay");
    let queued = format!("/occurrences?status=queued&jobId={}", ids[0]);
    let queued = harness.call(&token, "GET", &queued, json!(null)).await.ok();
    assert_eq!(queued["items"].as_array().map(Vec::len), Some(1), "what is not delayed stays");
    let mut connection = TestConnection::open(&harness.config.database.url).await;
    let cancelled =
        "SELECT count(*) FROM history WHERE status = 'cancelled' AND note LIKE 'Cancelled by%: wrong input'";
    assert_eq!(connection.count(cancelled).await, 1_200);
    let audited =
        "SELECT count(*) FROM audit_log WHERE action = 'occurrence.cancel' AND after ->> 'reason' = 'wrong input'";
    assert_eq!(connection.count(audited).await, 1_200);

    let missing = harness.call(&token, "POST", &format!("/jobs/{}/cancel-delayed", uuid::Uuid::nil()), json!({})).await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND);
    harness.server.stop().await;
}
