//! The source of a job: its file, edits elsewhere, and jobs that a file takes over.

use http::StatusCode;
use milvaion_api::requests::JobForm;
use milvaion_protocol::id::JobId;
use serde_json::{Value, json};

use super::{Files, file, job, outcomes, with};
use crate::rest::harness::echo;

/// Renames a job as the form of the dashboard does.
async fn edit_in_dashboard(files: &Files, id: JobId, name: &str) {
    let stored = files.harness.server.store.job(id).await.expect("read").expect("stored");
    let form = JobForm { display_name: name.into(), ..JobForm::from_job(id, stored.version, &stored.definition) };
    files.harness.server.jobs.save(&files.harness.admin, &form).await.expect("saved");
}

fn id_of(job: &Value) -> JobId {
    job["id"].as_str().and_then(|id| id.parse().ok()).expect("an id")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn source_of_a_job_is_kept_and_shown() {
    let files = Files::new().await;
    edit_in_the_dashboard_is_shown_and_overwritten(&files).await;
    each_door_leaves_its_source(&files).await;
    job_without_a_key_gets_the_one_of_its_file(&files).await;
    files.stop().await;
}

async fn edit_in_the_dashboard_is_shown_and_overwritten(files: &Files) {
    let request = file("jobs/a.yaml", &[job("a")]);
    files.apply(&request).await.ok();
    let id = id_of(&files.stored("a").await.ok());
    edit_in_dashboard(files, id, "Edited").await;
    let source = files.stored("a").await.ok()["source"].clone();
    assert_eq!((&source["kind"], &source["file"]), (&json!("file"), &json!("jobs/a.yaml")));
    assert_eq!(source["edited"]["by"], "ana@example.org");
    let plan = files.plan(&request).await.ok();
    let document = &plan["files"][0]["documents"][0];
    assert_eq!(document["changes"], json!([{ "field": "displayName", "before": "Edited", "after": "Job a" }]));
    assert_eq!(document["edited"], source["edited"]);

    files.apply(&request).await.ok();
    assert_eq!(files.stored("a").await.ok()["displayName"], "Job a");
    assert!(files.stored("a").await.ok()["source"]["edited"].is_null());
    edit_in_dashboard(files, id, "Edited").await;
    edit_in_dashboard(files, id, "Job a").await;
    assert!(files.stored("a").await.ok()["source"]["edited"].is_null(), "an edit that was undone is none");
    edit_in_dashboard(files, id, "Edited").await;
    let merged = file("jobs/a.yaml", &[with(job("a"), "displayName", "Edited".into())]);
    assert_eq!(outcomes(&files.apply(&merged).await.ok()), ["unchanged \"a\""]);
    assert!(files.stored("a").await.ok()["source"]["edited"].is_null(), "the file has the edit now");
}

async fn each_door_leaves_its_source(files: &Files) {
    let kind = async |id: JobId| {
        let job = files.harness.call(&files.token, "GET", &format!("/jobs/{id}"), Value::Null).await.ok();
        job["source"]["kind"].as_str().unwrap_or_default().to_owned()
    };
    let form = |name: &str, target: &str| JobForm {
        display_name: name.into(),
        target: target.into(),
        kind: "manual".into(),
        is_active: "on".into(),
        ..JobForm::default()
    };
    let dashboard = files.harness.server.jobs.save(&files.harness.admin, &form("D", "w/echo")).await.expect("saved");
    let api = id_of(&files.harness.job(&files.token, echo("A")).await);
    assert_eq!((kind(dashboard).await.as_str(), kind(api).await.as_str()), ("dashboard", "api"));
    edit_in_dashboard(files, api, "Edited").await;
    assert_eq!(kind(api).await, "api", "an edit in the dashboard keeps the source");
    files.harness.call(&files.token, "PUT", &format!("/jobs/{dashboard}"), echo("By program")).await.ok();
    assert_eq!(kind(dashboard).await, "api");

    files.apply(&file("a.yaml", &[job("of-file")])).await.ok();
    let of_file = id_of(&files.stored("of-file").await.ok());
    files.harness.call(&files.token, "PUT", "/jobs/by-key/of-file", echo("By program")).await.ok();
    assert_eq!(kind(of_file).await, "file", "its file still exists");
    assert_eq!(files.stored("of-file").await.ok()["source"]["edited"]["by"], "ana@example.org");
    let copy = files.harness.call(&files.token, "POST", &format!("/jobs/{of_file}/duplicate"), json!({})).await.ok();
    assert_eq!(kind(id_of(&copy)).await, "api", "a copy comes from no file");
}

async fn job_without_a_key_gets_the_one_of_its_file(files: &Files) {
    let created = files.harness.job(&files.token, echo("Nightly Report")).await;
    let exported = files.harness.call(&files.token, "GET", "/files/export", Value::Null).await.ok();
    let documents = exported["items"].as_array().expect("documents");
    let document = documents.iter().find(|document| document["id"] == created["id"]).expect("the job").clone();
    assert_eq!((&document["key"], &document["id"]), (&json!("nightly-report"), &created["id"]));
    let request = file("a.yaml", std::slice::from_ref(&document));
    let plan = files.plan(&request).await.ok();
    assert_eq!(
        (outcomes(&plan).join(","), &plan["files"][0]["documents"][0]["takenFrom"]),
        ("unchanged \"nightly-report\"".into(), &json!("api"))
    );
    files.apply(&request).await.ok();
    let stored = files.stored("nightly-report").await.ok();
    assert_eq!(
        (&stored["id"], &stored["version"], &stored["source"]["kind"]),
        (&created["id"], &json!(1), &json!("file"))
    );
    assert!(files.plan(&request).await.ok()["files"][0]["documents"][0]["takenFrom"].is_null());

    let rows =
        files.harness.server.store.audit_entries(Some(&format!("job:{}", id_of(&created))), 10).await.expect("read");
    let taken: Vec<_> = rows.iter().filter(|row| row.action == "job.take-from-file").collect();
    assert_eq!(taken.len(), 1, "{rows:?}");
    let third = files.harness.job(&files.token, echo("Twice")).await;
    let twice = ["twice", "again"].map(|key| with(job(key), "id", third["id"].clone()));
    assert_eq!(files.plan(&file("a.yaml", &twice)).await.invalid_fields(), ["files.0.documents.1.id"]);
    let other_key = file("a.yaml", &[with(document.clone(), "key", "renamed".into())]);
    assert_eq!(files.apply(&other_key).await.invalid_fields(), ["files.0.documents.0.key"], "a key never changes");
    files.harness.call(&files.token, "PUT", "/jobs/by-key/taken", echo("Another")).await.ok();
    let other = files.harness.job(&files.token, echo("Third")).await;
    let taken = with(with(document, "key", "taken".into()), "id", other["id"].clone());
    let refused = files.apply(&file("a.yaml", &[taken])).await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "the key of another job: {}", refused.body);
}
