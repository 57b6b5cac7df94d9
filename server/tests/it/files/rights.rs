//! Who may plan, apply and prune.

use http::StatusCode;
use milvaion_api::permissions::Role;
use serde_json::{Value, json};

use super::{Files, calendar, file, job, tagged};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_need_the_rights_of_their_changes() {
    let files = Files::new().await;
    plan_needs_a_right_to_read_only(&files).await;
    token_with_a_tag_changes_jobs_of_its_tag_only(&files).await;
    files.stop().await;
}

async fn plan_needs_a_right_to_read_only(files: &Files) {
    let request = file("a.yaml", &[job("plain")]);
    let viewer = files.harness.user("vera", Role::Viewer).await;
    let viewer = files.harness.token(&viewer).await;
    let read_only = files.harness.create_token(&files.harness.admin, |new| new.read_only = true).await.secret;
    for token in [&viewer, &read_only] {
        let call = async |path: &str| files.harness.call(token, "POST", path, request.clone()).await.status;
        assert_eq!(call("/files/plan").await, StatusCode::OK);
        assert_eq!(call("/files/apply").await, StatusCode::FORBIDDEN);
    }
    let operator = files.harness.user("oscar", Role::Operator).await;
    let operator = files.harness.token(&operator).await;
    let mut request = file("a.yaml", &[job("plain"), calendar("Holidays")]);
    files.harness.call(&operator, "POST", "/files/apply", request.clone()).await.ok();
    request["prune"] = json!({ "tag": "unused" });
    let refused = files.harness.call(&operator, "POST", "/files/apply", request.clone()).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "only an Admin deletes jobs");
    files.harness.call(&operator, "POST", "/files/plan", request).await.ok();
}

async fn token_with_a_tag_changes_jobs_of_its_tag_only(files: &Files) {
    files
        .apply(&file(
            "a.yaml",
            &[tagged("tag-ours", &["x"]), tagged("tag-theirs", &["y"]), tagged("tag-both", &["x", "y"])],
        ))
        .await
        .ok();
    let limited = files.harness.create_token(&files.harness.admin, |new| new.tag = Some("x".into())).await.secret;
    let apply = async |request: Value| files.harness.call(&limited, "POST", "/files/apply", request).await;
    apply(file("a.yaml", &[tagged("tag-ours", &["x", "z"]), tagged("tag-new", &["x"])])).await.ok();
    for document in
        [tagged("tag-theirs", &["x"]), tagged("tag-ours", &["y"]), tagged("tag-other", &[]), calendar("Winter")]
    {
        let refused = apply(file("a.yaml", &[tagged("tag-new", &["x", "z"]), document.clone()])).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{document} {}", refused.body);
    }
    assert_eq!(files.stored("tag-new").await.ok()["tags"], json!(["x"]), "nothing of a refused file is saved");
    let mut prune = file("a.yaml", &[tagged("tag-left", &["x"])]);
    prune["prune"] = json!({ "tag": "y" });
    assert_eq!(apply(prune.clone()).await.status, StatusCode::FORBIDDEN, "a job has the tag y only");
    prune["prune"] = json!({ "tag": "x" });
    assert_eq!(apply(prune).await.ok()["deleted"].as_array().map(Vec::len), Some(3));
    assert_eq!(files.keys("tag-").await, ["tag-left", "tag-theirs"]);

    let exported = files.harness.call(&limited, "GET", "/files/export", Value::Null).await.ok();
    let exported = exported["items"].as_array().expect("documents");
    assert_eq!((exported.len(), &exported[0]["key"]), (1, &json!("tag-left")));
    let refused = files.harness.call(&limited, "GET", "/files/export?tag=y", Value::Null).await;
    assert_eq!(refused.invalid_fields(), ["tag"]);
}
