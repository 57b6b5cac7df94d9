//! Jobs: created, replaced, versioned and deleted.

use http::StatusCode;
use milvaion_test_support::database::TestConnection;
use serde_json::{Value, json};

use super::harness::{ApiHarness, echo};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_operations_follow_the_document() {
    let harness = ApiHarness::new().await;
    job_is_created_read_replaced_and_deleted(&harness).await;
    put_by_key_creates_once_and_then_replaces(&harness).await;
    concurrent_puts_of_a_new_key_make_one_job(&harness).await;
    save_keeps_the_limits_of_waiting_occurrences_on_request(&harness).await;
    list_is_paged_and_filtered_by_tag(&harness).await;
    job_is_paused_resumed_duplicated_and_restored(&harness).await;
    harness.server.stop().await;
}

async fn job_is_created_read_replaced_and_deleted(harness: &ApiHarness) {
    let token = harness.token(&harness.admin).await;
    let created = harness.call(&token, "POST", "/jobs", echo("Report")).await;
    assert_eq!(created.status, StatusCode::CREATED);
    assert_eq!((created.header("etag"), created.header("cache-control")), ("\"1\"", "no-store"));
    let id = created.body["id"].as_str().expect("an id").to_owned();
    let path = format!("/jobs/{id}");
    assert_eq!(created.header("location"), format!("/api/v1{path}"));

    let mut definition = harness.call(&token, "GET", &path, Value::Null).await.ok()["definition"].clone();
    definition["displayName"] = "Monthly report".into();
    definition["schedule"] = json!({ "kind": "cron", "expression": "0 9 1 * *", "zone": "Europe/Warsaw" });
    let replaced = harness.call_with(&token, "PUT", &path, definition.clone(), ("if-match", "\"1\"")).await;
    assert_eq!((replaced.status, replaced.header("etag")), (StatusCode::OK, "\"2\""), "{}", replaced.body);
    assert_eq!(replaced.body["displayName"], "Monthly report");
    assert_eq!(replaced.body["upcoming"].as_array().expect("due times").len(), 5);
    assert!(!replaced.body["nextDueAt"].is_null());

    let stale = harness.call_with(&token, "PUT", &path, definition.clone(), ("if-match", "\"1\"")).await;
    assert_eq!(stale.status, StatusCode::PRECONDITION_FAILED);
    let repeated = harness.call(&token, "PUT", &path, definition).await;
    assert_eq!(repeated.header("etag"), "\"2\"", "an equal definition is no new version");

    let stale = harness.call_with(&token, "DELETE", &path, Value::Null, ("if-match", "\"1\"")).await;
    assert_eq!(stale.status, StatusCode::PRECONDITION_FAILED);
    let deleted = harness.call_with(&token, "DELETE", &path, Value::Null, ("if-match", "W/\"2\"")).await;
    assert_eq!((deleted.status, deleted.body), (StatusCode::NO_CONTENT, Value::Null));
    assert_eq!(harness.call(&token, "GET", &path, Value::Null).await.status, StatusCode::NOT_FOUND);
}

async fn put_by_key_creates_once_and_then_replaces(harness: &ApiHarness) {
    let token = harness.token(&harness.admin).await;
    let path = "/jobs/by-key/nightly.report";
    let created = harness.call(&token, "PUT", path, echo("Nightly")).await;
    assert_eq!((created.status, created.header("etag")), (StatusCode::CREATED, "\"1\""));
    assert_eq!(created.body["key"], "nightly.report");
    let unchanged = harness.call(&token, "PUT", path, echo("Nightly")).await;
    assert_eq!((unchanged.status, unchanged.header("etag")), (StatusCode::OK, "\"1\""));
    assert_eq!(unchanged.body["id"], created.body["id"]);
    let changed = harness.call(&token, "PUT", path, echo("Every night")).await;
    assert_eq!((changed.status, changed.header("etag")), (StatusCode::OK, "\"2\""));
    assert_eq!(changed.body["id"], created.body["id"]);
    let id = created.body["id"].as_str().expect("an id");
    harness.call(&token, "POST", &format!("/jobs/{id}/pause"), json!({ "reason": "incident" })).await.ok();
    for path in [path, &format!("/jobs/{id}")] {
        let kept = harness.call(&token, "PUT", path, echo(path)).await.ok();
        assert_eq!((&kept["isActive"], &kept["pausedReason"]), (&json!(false), &json!("incident")));
    }
    let mut active = echo("Every night");
    active["isActive"] = true.into();
    assert_eq!(harness.call(&token, "PUT", path, active).await.ok()["isActive"], true);

    let mut same_key = echo("Another");
    same_key["key"] = "nightly.report".into();
    let taken = harness.call(&token, "POST", "/jobs", same_key).await;
    assert_eq!(taken.status, StatusCode::CONFLICT);
    assert!(taken.body["detail"].as_str().expect("text").contains("nightly.report"));
    let listed = harness.call(&token, "GET", "/jobs?text=every", Value::Null).await.ok();
    assert_eq!(listed["items"][0]["key"], "nightly.report");
    assert_eq!(harness.call(&token, "DELETE", path, Value::Null).await.status, StatusCode::NO_CONTENT);
    assert_eq!(harness.call(&token, "DELETE", path, Value::Null).await.status, StatusCode::NOT_FOUND);
}

async fn save_keeps_the_limits_of_waiting_occurrences_on_request(harness: &ApiHarness) {
    let token = harness.token(&harness.admin).await;
    let limited = |limit: u32| {
        let mut definition = echo("Limited");
        definition["rules"] = json!({ "overlap": "allow", "maxConcurrent": limit });
        definition
    };
    harness.call(&token, "PUT", "/jobs/by-key/limited", limited(1)).await.ok();
    let three = json!({ "occurrences": vec![json!({ "jobKey": "limited" }); 3] });
    harness.call(&token, "POST", "/occurrences", three).await.ok();
    let mut database = TestConnection::open(&harness.config.database.url).await;
    harness.call(&token, "PUT", "/jobs/by-key/limited?keepWaitingLimits=true", limited(2)).await.ok();
    assert_eq!(database.count("SELECT count(*) FROM runs WHERE slot_limit = 2").await, 0);
    harness.call(&token, "PUT", "/jobs/by-key/limited", limited(3)).await.ok();
    assert_eq!(database.count("SELECT count(*) FROM runs WHERE slot_limit = 1 AND NOT has_slot").await, 0);
}

async fn concurrent_puts_of_a_new_key_make_one_job(harness: &ApiHarness) {
    let token = harness.token(&harness.admin).await;
    let put = |n: usize| harness.call(&token, "PUT", "/jobs/by-key/one", echo(&format!("Concurrent {}", n % 2)));
    let answers = futures::future::join_all((0..8).map(put)).await;
    let created = answers.iter().filter(|answer| answer.status == StatusCode::CREATED).count();
    assert_eq!(created, 1, "{:?}", answers.iter().map(|answer| answer.status).collect::<Vec<_>>());
    // An edit that meets another one may be refused; none makes a second job.
    assert!(answers.iter().all(|answer| answer.status.is_success() || answer.status == StatusCode::CONFLICT));
    let listed = harness.call(&token, "GET", "/jobs?text=concurrent", Value::Null).await.ok();
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1));
}

async fn list_is_paged_and_filtered_by_tag(harness: &ApiHarness) {
    let token = harness.token(&harness.admin).await;
    for n in 0..5 {
        let mut job = echo(&format!("Job {n}"));
        job["tags"] = if n % 2 == 0 { json!(["paged", "even"]) } else { json!(["paged", "evening"]) };
        harness.job(&token, job).await;
    }
    let mut names = Vec::new();
    let mut path = "/jobs?tag=paged&limit=2".to_owned();
    loop {
        let page = harness.call(&token, "GET", &path, Value::Null).await.ok();
        let items = page["items"].as_array().expect("items");
        names.extend(items.iter().map(|job| job["displayName"].as_str().expect("a name").to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        let next: String = url::form_urlencoded::byte_serialize(next.as_bytes()).collect();
        path = format!("/jobs?tag=paged&limit=2&after={next}");
    }
    assert_eq!(names, ["Job 0", "Job 1", "Job 2", "Job 3", "Job 4"]);
    let even = harness.call(&token, "GET", "/jobs?tag=even", Value::Null).await.ok();
    assert_eq!(even["items"].as_array().map(Vec::len), Some(3), "a tag matches as a whole");
}

async fn job_is_paused_resumed_duplicated_and_restored(harness: &ApiHarness) {
    let token = harness.token(&harness.admin).await;
    let mut definition = echo("Backup");
    definition["schedule"] = json!({ "kind": "every", "seconds": 3600 });
    let id = harness.job(&token, definition).await["id"].as_str().expect("an id").to_owned();
    let post =
        async |action: &str, body: Value| harness.call(&token, "POST", &format!("/jobs/{id}/{action}"), body).await;
    let paused = post("pause", json!({ "reason": "migration" })).await.ok();
    assert_eq!((&paused["isActive"], &paused["pausedReason"]), (&json!(false), &json!("migration")));
    assert!(paused["nextDueAt"].is_null());
    let resumed = post("resume", Value::Null).await.ok();
    assert_eq!(resumed["isActive"], true);
    let due = json!({ "dueAt": resumed["nextDueAt"] });
    let skipped = post("skip-due", due.clone()).await.ok();
    let next = skipped["nextDueAt"].as_str().expect("a due time");
    assert_eq!(resumed["upcoming"][1], next);
    let repeated = post("skip-due", due).await;
    let reason = repeated.body["detail"].as_str().expect("text");
    assert!(repeated.status == StatusCode::CONFLICT && reason.contains(next), "{reason}");
    let copy = post("duplicate", json!({ "key": "copy" })).await.ok();
    assert_eq!((&copy["displayName"], &copy["isActive"]), (&json!("Copy of Backup"), &json!(false)));

    let mut edited = resumed["definition"].clone();
    edited["priority"] = 5.into();
    harness.call(&token, "PUT", &format!("/jobs/{id}"), edited).await.ok();
    let difference =
        harness.call(&token, "GET", &format!("/jobs/{id}/versions/compare?from=3&to=4"), Value::Null).await;
    assert_eq!(difference.ok()["changes"][0]["field"], "priority");
    post("versions/1/restore", Value::Null).await.ok();
    let versions = harness.call(&token, "GET", &format!("/jobs/{id}/versions"), Value::Null).await.ok();
    assert_eq!(versions["items"][0]["row"]["version"], 5);
    let audit = harness.call(&token, "GET", &format!("/jobs/{id}/audit"), Value::Null).await.ok();
    let actions: Vec<_> = audit["items"].as_array().expect("rows").iter().map(|row| row["action"].clone()).collect();
    assert_eq!(actions, ["job.update", "job.update", "job.skip", "job.resume", "job.pause", "job.create"]);
    assert_eq!(audit["items"][2]["before"]["nextDueAt"], resumed["nextDueAt"]);
}
