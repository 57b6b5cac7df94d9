//! Occurrences that a program creates with one request.

use http::StatusCode;
use milvaion_api::permissions::Role;
use milvaion_client::{Client, Enqueue, EnqueueClient, Enqueued};
use milvaion_test_support::database::TestConnection;
use serde_json::json;

use super::harness::ApiHarness;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_enqueue_and_cancel_occurrences() {
    let harness = ApiHarness::new().await;
    request_has_a_result_for_each_occurrence(&harness).await;
    client_library_enqueues_with_a_token(&harness).await;
    delayed_occurrences_are_counted_and_cancelled(&harness).await;
    harness.server.stop().await;
}

async fn request_has_a_result_for_each_occurrence(harness: &ApiHarness) {
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
    let parent = harness.call(&token, "GET", &format!("/occurrences/{parent}"), json!(null)).await.ok();
    assert!(parent["triggerToken"].as_str().is_some_and(|token| token.starts_with("script (")), "{parent}");

    let viewer = harness.user("vera", Role::Viewer).await;
    let viewer = harness.token(&viewer).await;
    let refused = harness.call(&viewer, "POST", "/occurrences", occurrences).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
}

async fn client_library_enqueues_with_a_token(harness: &ApiHarness) {
    let token = harness.token(&harness.admin).await;
    let job = json!({"displayName": "Hello", "workerId": "w", "jobType": "echo", "schedule": {"kind": "manual"}});
    harness.call(&token, "PUT", "/jobs/by-key/library", job).await.ok();
    let url = format!("http://127.0.0.1:{}", harness.server.address.port());
    let client = EnqueueClient::new(Client::new(&url, &token).expect("a valid address"));
    let first = client.enqueue(Enqueue::job("library").unique("a")).await.expect("accepted");
    assert_eq!(
        client.enqueue(Enqueue::job("library").unique("a")).await.expect("answered"),
        Enqueued::Duplicate(first.id())
    );
}

async fn delayed_occurrences_are_counted_and_cancelled(harness: &ApiHarness) {
    let token = harness.token(&harness.admin).await;
    let mut ids = Vec::new();
    // The first job has more than the 500 that one statement cancels.
    for (key, requests) in [("delayed", 2), ("delayed-too", 1)] {
        let job = json!({"displayName": key, "workerId": "w", "jobType": "echo", "schedule": {"kind": "manual"}});
        let job = harness.call(&token, "PUT", &format!("/jobs/by-key/{key}"), job).await.ok();
        ids.push(job["id"].as_str().expect("an id").to_owned());
        let later = harness.server.clock.now() + chrono::Duration::hours(1);
        let delayed = json!({"occurrences": vec![json!({"jobKey": key, "notBefore": later}); 300]});
        for _ in 0..requests {
            harness.call(&token, "POST", "/occurrences", delayed.clone()).await.ok();
        }
        harness.call(&token, "POST", "/occurrences", json!({"occurrences": [{"jobKey": key}]})).await.ok();
    }
    let count = async |job: usize| {
        let job = harness.call(&token, "GET", &format!("/jobs/{}", ids[job]), json!(null)).await.ok();
        job["delayedOccurrences"].as_i64()
    };
    assert_eq!((count(0).await, count(1).await), (Some(600), Some(300)));

    let path = format!("/jobs/{}/cancel-delayed", ids[0]);
    let cancel = async |reason: &str| harness.call(&token, "POST", &path, json!({"reason": reason})).await;
    assert_eq!(cancel(&"x".repeat(501)).await.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(cancel("wrong input").await.ok(), json!({"cancelled": 600, "more": false}));
    assert_eq!(cancel("again").await.ok(), json!({"cancelled": 0, "more": false}));
    assert_eq!((count(0).await, count(1).await), (Some(0), Some(300)), "those of another job stay");
    let queued = format!("/occurrences?status=queued&jobId={}", ids[0]);
    let queued = harness.call(&token, "GET", &queued, json!(null)).await.ok();
    assert_eq!(queued["items"].as_array().map(Vec::len), Some(1), "what is not delayed stays");
    let mut connection = TestConnection::open(&harness.config.database.url).await;
    let cancelled =
        "SELECT count(*) FROM history WHERE status = 'cancelled' AND note LIKE 'Cancelled by%: wrong input'";
    assert_eq!(connection.count(cancelled).await, 600);
    let audited =
        "SELECT count(*) FROM audit_log WHERE action = 'occurrence.cancel' AND after ->> 'reason' = 'wrong input'";
    assert_eq!(connection.count(audited).await, 600);

    let missing = harness.call(&token, "POST", &format!("/jobs/{}/cancel-delayed", uuid::Uuid::nil()), json!({})).await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND);
}
