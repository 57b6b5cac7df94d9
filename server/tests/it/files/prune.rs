//! The jobs that an apply deletes.

use http::StatusCode;
use serde_json::{Value, json};

use super::{Files, file, tagged, with};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prune_deletes_only_jobs_without_a_document() {
    let files = Files::new().await;
    prune_deletes_only_jobs_of_files_with_the_tag(&files).await;
    all_files_of_a_request_protect_their_jobs(&files).await;
    new_key_of_a_job_has_a_warning(&files).await;
    files.stop().await;
}

async fn prune_deletes_only_jobs_of_files_with_the_tag(files: &Files) {
    let all = [tagged("prune-kept", &["x"]), tagged("prune-gone", &["x", "y"]), tagged("prune-other-tag", &["y"])];
    files.apply(&file("a.yaml", &all)).await.ok();
    let mut by_program = tagged("prune-by-program", &["x"]);
    by_program.as_object_mut().expect("fields").remove("kind");
    files.harness.job(&files.token, by_program).await;

    let mut request = file("a.yaml", &[tagged("prune-kept", &["x"])]);
    let applied = files.apply(&request).await.ok();
    assert_eq!(files.keys("prune-").await.len(), 4, "without prune nothing is deleted");
    let warning = applied["warnings"][0].as_str().unwrap_or_default();
    assert!(warning.starts_with("2 jobs of these files have no document any more: prune-"), "{applied}");
    let of_tag = files.plan(&with(request.clone(), "tag", "x".into())).await.ok();
    assert_eq!(of_tag["warnings"][0], "1 job with the tag x has no document: prune-gone. --prune deletes it.");
    request["prune"] = json!({ "tag": "x" });
    let plan = files.plan(&request).await.ok();
    let expected =
        "1 job of these files has no document any more: prune-other-tag. --prune with the tag x does not delete it.";
    assert_eq!(plan["warnings"], json!([expected]));
    assert_eq!(plan["deleted"].as_array().map(Vec::len), Some(1));
    assert_eq!((&plan["deleted"][0]["key"], &plan["deleted"][0]["file"]), (&json!("prune-gone"), &json!("a.yaml")));
    assert_eq!(files.keys("prune-").await.len(), 4, "a plan deletes nothing");
    request["prune"]["expected"] = 2.into();
    assert_eq!(files.apply(&request).await.status, StatusCode::CONFLICT, "another number than in the plan");
    assert_eq!(files.keys("prune-").await.len(), 4);
    request["prune"]["expected"] = 1.into();
    assert_eq!(files.apply(&request).await.ok()["deleted"], plan["deleted"]);
    let mut left = files.keys("prune-").await;
    left.sort_unstable();
    assert_eq!(left, ["prune-by-program", "prune-kept", "prune-other-tag"]);
    request["prune"]["expected"] = 0.into();
    assert_eq!(files.apply(&request).await.ok()["deleted"], json!([]));
}

async fn all_files_of_a_request_protect_their_jobs(files: &Files) {
    files.apply(&file("a.yaml", &[tagged("moved-1", &["z"]), tagged("moved-2", &["z"])])).await.ok();
    let moved = json!({
        "files": [{ "name": "a.yaml", "documents": [tagged("moved-1", &["z"])] }, { "name": "b.yaml", "documents": [tagged("moved-2", &["z"])] }],
        "prune": { "tag": "z" },
    });
    assert_eq!(files.apply(&moved).await.ok()["deleted"], json!([]));
    assert_eq!(files.stored("moved-2").await.ok()["source"]["file"], "b.yaml", "the job has moved to another file");
    let bad = with(
        moved,
        "files",
        json!([{ "name": "a.yaml", "documents": [with(tagged("moved-1", &["z"]), "priority", 9.into())] }]),
    );
    assert_eq!(files.apply(&bad).await.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(files.keys("moved-").await.len(), 2, "a bad document deletes nothing");
    for files_of_empty in [json!([]), json!([{ "name": "a.yaml", "documents": [] }])] {
        let empty = json!({ "files": files_of_empty, "prune": { "tag": "z" } });
        assert_eq!(files.plan(&empty).await.invalid_fields(), ["files"]);
        assert_eq!(files.apply(&empty).await.invalid_fields(), ["files"], "an empty input deletes nothing");
    }
    assert_eq!(files.keys("moved-").await.len(), 2);
    let empty = json!({ "files": [], "prune": { "tag": "" } });
    assert_eq!(files.apply(&empty).await.invalid_fields(), ["prune.tag"], "there is no prune without a tag");
    assert_eq!(files.apply(&Value::Null).await.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
}

async fn new_key_of_a_job_has_a_warning(files: &Files) {
    let every = |key: &str| with(tagged(key, &["k"]), "schedule", json!({ "kind": "every", "seconds": 86_400 }));
    files.apply(&file("keys.yaml", &[every("key-old")])).await.ok();
    let mut renamed = file("keys.yaml", &[every("key-new")]);
    let warnings = |plan: &Value| plan["files"][0]["documents"][0]["warnings"].to_string();
    let plan = files.plan(&renamed).await.ok();
    assert!(warnings(&plan).contains("the job key-old has the same job type, schedule and input"), "{plan}");
    assert!(warnings(&plan).contains("no live instance of the worker w offers"), "{plan}");
    renamed["prune"] = json!({ "tag": "k" });
    let plan = files.plan(&renamed).await.ok();
    assert!(!warnings(&plan).contains("key-old"), "it is deleted: {plan}");
}
