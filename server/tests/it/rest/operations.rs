//! Occurrences, failures, calendars, the cluster, users and the audit log.

use http::StatusCode;
use milvaion_test_support::{wait, worker_env};
use serde_json::{Value, json};

use super::harness::{ApiHarness, echo};

/// Waits until an occurrence has ended and returns it.
async fn ended(harness: &ApiHarness, token: &str, id: &str) -> Value {
    let path = format!("/occurrences/{id}");
    wait::eventually("the end of the occurrence", || async {
        let occurrence = harness.call(token, "GET", &path, Value::Null).await.ok();
        Some(occurrence).filter(|occurrence| !occurrence["endedAt"].is_null())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_follow_the_document() {
    let harness = ApiHarness::new().await;
    failed_run_is_listed_retried_and_resolved(&harness).await;
    calendar_is_created_replaced_and_deleted(&harness).await;
    cluster_is_paused_and_resumed(&harness).await;
    users_are_invited_changed_and_removed(&harness).await;
    harness.server.stop().await;
}

async fn failed_run_is_listed_retried_and_resolved(harness: &ApiHarness) {
    let worker = worker_env::start(&harness.config);
    let token = harness.token(&harness.admin).await;
    let id = harness.job(&token, echo("Report")).await["id"].as_str().expect("an id").to_owned();
    let run = harness.call(&token, "POST", &format!("/jobs/{id}/run"), json!({ "input": { "say": "fail" } })).await;
    assert_eq!((run.status, &run.body["input"]["say"]), (StatusCode::ACCEPTED, &json!("fail")));
    assert_eq!(run.body["trigger"], "api");
    let failed_id = run.body["id"].as_str().expect("an id").to_owned();
    let failed = ended(harness, &token, &failed_id).await;
    assert_eq!((&failed["status"], &failed["note"]), (&json!("failed"), &json!("failed on request")));
    assert_eq!(failed["changes"][0]["status"], "queued");

    let failures = harness.call(&token, "GET", &format!("/failures?jobId={id}"), Value::Null).await.ok();
    assert_eq!(failures["items"][0]["occurrenceId"], failed_id.as_str());
    let groups = harness.call(&token, "GET", "/failures/groups", Value::Null).await.ok();
    assert_eq!(groups["items"][0]["open"], 1);
    let retry_path = format!("/occurrences/{failed_id}/retry");
    let retried = harness.call(&token, "POST", &retry_path, json!({ "input": { "say": "well" } })).await;
    assert_eq!((retried.status, &retried.body["retryOf"]), (StatusCode::CREATED, &json!(failed_id)));
    let well = ended(harness, &token, retried.body["id"].as_str().expect("an id")).await;
    assert_eq!((&well["status"], &well["result"]), (&json!("completed"), &json!("well")));
    assert!(well["triggerToken"].as_str().is_some_and(|token| token.starts_with("script (")), "{well}");
    let again = harness.call(&token, "POST", &retry_path, Value::Null).await;
    assert_eq!(again.status, StatusCode::CONFLICT, "it was retried");

    let resolve = json!({ "selection": { "ids": [failed_id] }, "note": "seen" });
    let resolved = harness.call(&token, "POST", "/failures/resolve", resolve).await.ok();
    assert_eq!((&resolved["done"], &resolved["skipped"]), (&json!(0), &json!(1)), "a retry resolves it");
    let cancelled = harness.call(&token, "POST", &format!("/occurrences/{failed_id}/cancel"), Value::Null).await;
    assert_eq!(cancelled.status, StatusCode::CONFLICT, "it has ended");
    let resolve = |expected| json!({ "selection": { "filter": { "jobId": id } }, "expected": expected });
    let nothing = harness.call(&token, "POST", "/failures/resolve", resolve(json!(0))).await.ok();
    assert_eq!((&nothing["done"], &nothing["more"]), (&json!(0), &json!(false)));
    let unseen =
        harness.call(&token, "POST", "/failures/resolve", json!({ "selection": { "filter": { "jobId": id } } }));
    assert_eq!(unseen.await.invalid_fields(), ["expected"]);
    let unbounded = json!({ "selection": { "filter": {} }, "expected": 10 });
    let refused = harness.call(&token, "POST", "/failures/retry", unbounded).await;
    assert_eq!(refused.invalid_fields(), ["filter"], "all failures are never meant");
    worker.stop().await;
}

async fn calendar_is_created_replaced_and_deleted(harness: &ApiHarness) {
    let token = harness.token(&harness.admin).await;
    let holidays = json!({ "name": "Holidays", "zone": "Europe/Warsaw", "dates": ["2099-12-24", "2099-12-25"] });
    let created = harness.call(&token, "POST", "/calendars", holidays.clone()).await;
    assert_eq!((created.status, created.header("etag")), (StatusCode::CREATED, "\"1\""), "{}", created.body);
    let path = format!("/calendars/{}", created.body["id"].as_str().expect("an id"));
    let mut longer = holidays;
    longer["windows"] = json!([{ "weekday": 6, "from": "00:00:00", "to": "06:00:00" }]);
    let replaced = harness.call_with(&token, "PUT", &path, longer.clone(), ("if-match", "\"1\"")).await;
    assert_eq!((replaced.status, replaced.header("etag")), (StatusCode::OK, "\"2\""), "{}", replaced.body);
    let stale = harness.call_with(&token, "PUT", &path, longer, ("if-match", "\"1\"")).await;
    assert_eq!(stale.status, StatusCode::PRECONDITION_FAILED);
    let empty = harness.call(&token, "POST", "/calendars", json!({ "name": "Empty", "zone": "UTC" })).await;
    assert_eq!(empty.invalid_fields(), ["dates"]);

    let mut job = echo("Report");
    job["rules"] = json!({ "calendars": [created.body["id"]] });
    harness.job(&token, job).await;
    let used = harness.call(&token, "DELETE", &path, Value::Null).await;
    assert_eq!(used.status, StatusCode::CONFLICT, "a job uses it");
    assert_eq!(harness.call(&token, "GET", &path, Value::Null).await.ok()["jobs"][0]["displayName"], "Report");
}

async fn cluster_is_paused_and_resumed(harness: &ApiHarness) {
    let token = harness.token(&harness.admin).await;
    let without_reason = harness.call(&token, "POST", "/cluster/pause", Value::Null).await;
    assert_eq!(without_reason.invalid_fields(), ["reason"]);
    let paused = harness.call(&token, "POST", "/cluster/pause", json!({ "reason": "upgrade" })).await.ok();
    assert_eq!((&paused["pause"]["reason"], &paused["pause"]["by"]), (&json!("upgrade"), &json!("ana@example.org")));
    let resumed = harness.call(&token, "POST", "/cluster/resume", Value::Null).await.ok();
    assert!(resumed["pause"].is_null());
    let health = harness.call(&token, "GET", "/health", Value::Null).await.ok();
    assert_eq!(health["items"][0]["name"], "PostgreSQL");
    harness.job(&token, echo("Counted")).await;
    let statistics = harness.call(&token, "GET", "/statistics?window=24h", Value::Null).await.ok();
    assert_eq!(statistics["window"], "24h");
    assert!(statistics["jobsTotal"].as_u64().is_some_and(|jobs| jobs >= 1), "{statistics}");
}

async fn users_are_invited_changed_and_removed(harness: &ApiHarness) {
    let token = harness.token(&harness.admin).await;
    let link = harness.call(&token, "POST", "/users/invitations", json!({ "name": "Vera", "role": "viewer" })).await;
    assert_eq!(link.status, StatusCode::CREATED);
    assert!(link.body["path"].as_str().expect("a path").starts_with("/invite?token="));
    let vera = harness.user("vera", milvaion_api::permissions::Role::Viewer).await;
    let path = format!("/users/{}", vera.id);
    let promoted = harness.call(&token, "PUT", &format!("{path}/role"), json!({ "role": "operator" })).await.ok();
    assert_eq!(promoted["user"]["role"], "operator");
    let active = harness.call(&token, "DELETE", &path, Value::Null).await;
    assert_eq!(active.status, StatusCode::CONFLICT, "an active user is not deleted");
    harness.call(&token, "POST", &format!("{path}/deactivate"), Value::Null).await.ok();
    assert_eq!(harness.call(&token, "DELETE", &path, Value::Null).await.status, StatusCode::NO_CONTENT);
    let own = format!("/users/{}/deactivate", harness.admin.id);
    let last = harness.call(&token, "POST", &own, Value::Null).await;
    assert_eq!(last.status, StatusCode::CONFLICT, "the last Admin stays");
    let audit = harness.call(&token, "GET", "/audit?action=user.", Value::Null).await.ok();
    assert!(audit["items"].as_array().expect("rows").len() >= 3);
}
