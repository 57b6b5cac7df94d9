//! What an apply saves, and when it saves nothing.

use http::StatusCode;
use serde_json::{Value, json};

use super::{Files, calendar, file, job, outcomes, with};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_applied_as_a_whole() {
    let files = Files::new().await;
    file_creates_changes_and_keeps(&files).await;
    values_that_are_stored_in_another_form_are_no_change(&files).await;
    one_bad_document_saves_nothing(&files).await;
    calendars_are_saved_before_the_jobs_that_name_them(&files).await;
    file_without_a_state_keeps_a_pause(&files).await;
    job_whose_single_due_time_has_passed_is_created(&files).await;
    alert_rule_is_created_changed_and_checked(&files).await;
    number_of_documents_is_bounded(&files).await;
    plan_of_many_changes_is_bounded(&files, 80).await;
    files.stop().await;
}

async fn file_creates_changes_and_keeps(files: &Files) {
    let first = file("jobs/a.yaml", &[job("kept"), job("edited")]);
    assert_eq!(outcomes(&files.plan(&first).await.ok()), ["created \"kept\"", "created \"edited\""]);
    assert!(files.keys("kept").await.is_empty(), "a plan changes nothing");
    let applied = files.apply(&first).await.ok();
    assert_eq!(outcomes(&applied), ["created \"kept\"", "created \"edited\""]);
    let stored = files.stored("kept").await.ok();
    assert_eq!(
        (&stored["source"], &stored["version"]),
        (&json!({ "kind": "file", "file": "jobs/a.yaml", "edited": null }), &json!(1))
    );

    let retries = with(job("edited"), "rules", json!({ "maxRetries": 3 }));
    let second = file("jobs/a.yaml", &[job("kept"), with(retries, "priority", 5.into())]);
    let plan = files.plan(&second).await.ok();
    assert_eq!(outcomes(&plan), ["unchanged \"kept\"", "changed \"edited\""]);
    let expected =
        json!([{ "field": "priority", "before": 3, "after": 5 }, { "field": "rules.maxRetries", "after": 3 }]);
    assert_eq!(plan["files"][0]["documents"][1]["changes"], expected);
    assert_eq!(files.apply(&second).await.ok(), plan);
    let stored = files.stored("edited").await.ok();
    assert_eq!((&stored["definition"]["rules"]["maxRetries"], &stored["version"]), (&json!(3), &json!(2)));
    assert_eq!(outcomes(&files.apply(&second).await.ok()), ["unchanged \"kept\"", "unchanged \"edited\""]);
    assert_eq!(files.stored("edited").await.ok()["version"], 2, "an equal file makes no version");
}

async fn values_that_are_stored_in_another_form_are_no_change(files: &Files) {
    let rules = json!({ "startAt": "2030-01-01T00:00:00.123456789Z", "endAt": "2031-01-01T01:00:00+01:00" });
    let job = with(with(job("form"), "rules", rules), "displayName", "  Report ".into());
    let job = with(with(job, "tags", json!(["x", " x", "y"])), "jobData", json!({ "n": 1e300, "m": 1.0, "k": -0.0 }));
    let dates = json!(["2030-12-25", "2030-12-24", "2030-12-25"]);
    let request = file("a.yaml", &[job, with(calendar(" Winter "), "dates", dates)]);
    files.apply(&request).await.ok();
    assert_eq!(outcomes(&files.plan(&request).await.ok()), ["unchanged \"form\"", "unchanged \"Winter\""]);
}

async fn one_bad_document_saves_nothing(files: &Files) {
    let bad = [
        (with(job("bad-2"), "rules", json!({ "maxRetries": 101 })), "rules.maxRetries"),
        (with(job("bad-2"), "rules", json!({ "maxRetry": 1 })), "rules.maxRetry"),
        (with(job("bad-2"), "priority", "high".into()), "priority"),
        (
            with(job("bad-2"), "schedule", json!({ "kind": "cron", "expression": "61 * * * *", "zone": "UTC" })),
            "schedule.expression",
        ),
        (with(job("bad-2"), "rules", json!({ "calendars": ["Missing"] })), "rules.calendars.0"),
        (with(job("bad-2"), "key", "No spaces".into()), "key"),
        (with(job("bad-2"), "kind", "Pod".into()), "kind"),
        (with(calendar("c"), "zone", "Mars".into()), "zone"),
        (job("bad-1"), "key"),
    ];
    for (document, field) in bad {
        let one = file("a.yaml", &[job("bad-1"), document.clone()]);
        let refused = files.apply(&one).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{document} {}", refused.body);
        assert_eq!(refused.invalid_fields(), [format!("files.0.documents.1.{field}")], "{}", refused.body);
        let two = json!({ "files": [
            { "name": "a.yaml", "documents": [job("bad-1")] }, { "name": "b.yaml", "documents": [document] },
        ]});
        let refused = files.apply(&two).await;
        assert_eq!(refused.invalid_fields(), [format!("files.1.documents.0.{field}")], "{}", refused.body);
    }
    assert!(files.keys("bad-").await.is_empty(), "nothing is saved, also not of the other file");
}

async fn calendars_are_saved_before_the_jobs_that_name_them(files: &Files) {
    let using = |key: &str, name: &str| with(job(key), "rules", json!({ "calendars": [name], "blackout": "postpone" }));
    let request = json!({ "files": [
        { "name": "a.yaml", "documents": [using("uses-1", "Holidays"), using("uses-2", "Quiet")] },
        { "name": "z.yaml", "documents": [calendar("Quiet"), calendar("Holidays")] },
    ]});
    files.apply(&request).await.ok();
    assert!(files.plan(&request).await.ok()["files"].as_array().expect("files").len() == 2);
    let calendars = files.harness.call(&files.token, "GET", "/calendars", Value::Null).await.ok();
    let calendars = calendars["items"].as_array().expect("a list");
    let holidays = calendars.iter().find(|calendar| calendar["name"] == "Holidays").expect("it is saved");
    assert_eq!(holidays["jobs"], 1);
    assert_eq!(files.stored("uses-1").await.ok()["definition"]["rules"]["calendars"], json!([holidays["id"]]));

    let longer = with(calendar("Quiet"), "dates", json!(["2030-12-24"]));
    let moved = file("z.yaml", &[longer, using("uses-1", "Quiet")]);
    let plan = files.apply(&moved).await.ok();
    assert_eq!(outcomes(&plan), ["changed \"Quiet\"", "changed \"uses-1\""]);
    let change = json!([{ "field": "rules.calendars", "before": ["Holidays"], "after": ["Quiet"] }]);
    assert_eq!(plan["files"][0]["documents"][1]["changes"], change, "the plan has names");
    let cycle = json!({ "files": [
        { "name": "a.yaml", "documents": [calendar("Quiet"), using("uses-1", "Holidays")] },
        { "name": "b.yaml", "documents": [calendar("Holidays"), using("uses-2", "Quiet")] },
    ]});
    assert_eq!(files.plan(&cycle).await.status, StatusCode::CONFLICT);
}

async fn file_without_a_state_keeps_a_pause(files: &Files) {
    let due = with(job("paused"), "schedule", json!({ "kind": "cron", "expression": "0 9 * * *", "zone": "UTC" }));
    files.apply(&file("a.yaml", std::slice::from_ref(&due))).await.ok();
    let stored = files.stored("paused").await.ok();
    assert!(!stored["nextDueAt"].is_null());
    let id = stored["id"].as_str().expect("an id").to_owned();
    let pause = json!({ "reason": "incident" });
    files.harness.call(&files.token, "POST", &format!("/jobs/{id}/pause"), pause).await.ok();
    assert!(files.stored("paused").await.ok()["source"]["edited"].is_null(), "a pause is no edit of the definition");
    assert_eq!(
        outcomes(&files.apply(&file("a.yaml", std::slice::from_ref(&due))).await.ok()),
        ["unchanged \"paused\""]
    );
    let renamed = with(due.clone(), "displayName", "Renamed".into());
    files.apply(&file("a.yaml", &[renamed])).await.ok();
    let stored = files.stored("paused").await.ok();
    assert_eq!((&stored["isActive"], &stored["nextDueAt"]), (&json!(false), &Value::Null));
    let plan = files.apply(&file("a.yaml", &[with(due.clone(), "isActive", true.into())])).await.ok();
    assert_eq!(outcomes(&plan), ["changed \"paused\""]);
    let stored = files.stored("paused").await.ok();
    assert!(stored["isActive"] == true && !stored["nextDueAt"].is_null(), "{stored}");
}

async fn job_whose_single_due_time_has_passed_is_created(files: &Files) {
    let past = with(job("past"), "schedule", json!({ "kind": "once", "at": "2020-01-01T00:00:00Z" }));
    let request = file("a.yaml", &[past]);
    let plan = files.apply(&request).await.ok();
    assert_eq!(outcomes(&plan), ["created \"past\""]);
    let warnings = &plan["files"][0]["documents"][0]["warnings"];
    assert!(warnings[0].as_str().is_some_and(|text| text.starts_with("schedule.at has passed")), "{plan}");
    let stored = files.stored("past").await.ok();
    assert_eq!((&stored["isActive"], &stored["nextDueAt"]), (&json!(true), &Value::Null));
    let again = files.plan(&request).await.ok();
    assert_eq!(outcomes(&again), ["unchanged \"past\""]);
    assert_eq!(again["files"][0]["documents"][0]["warnings"], json!([]), "the plan that created it has warned");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_applies_and_edits_all_succeed() {
    let files = Files::new().await;
    let every = |key: &str, seconds: u64| with(job(key), "schedule", json!({ "kind": "every", "seconds": seconds }));
    let keys: Vec<String> = (0..20).map(|n| format!("job-{n}")).collect();
    let forwards: Vec<_> = keys.iter().map(|key| every(key, 1)).collect();
    let backwards: Vec<_> = keys.iter().rev().map(|key| every(key, 2)).collect();
    let (forwards, backwards) = (file("f.yaml", &forwards), file("b.yaml", &backwards));
    for _ in 0..3 {
        let applies = (0..4).map(|n| files.apply(if n % 2 == 0 { &forwards } else { &backwards }));
        for answer in futures::future::join_all(applies).await {
            // One that lost the race several times is refused as a whole.
            assert!(answer.status == StatusCode::OK || answer.status == StatusCode::CONFLICT, "{}", answer.body);
        }
    }
    files.apply(&forwards).await.ok();
    assert_eq!(files.plan(&forwards).await.ok()["files"][0]["documents"][0]["outcome"], "unchanged");
    assert_eq!(files.keys("job-").await.len(), 20);
    assert_eq!(files.harness.server.store.count_mismatched_due_times().await.expect("counted"), 0);
    files.stop().await;
}

async fn number_of_documents_is_bounded(files: &Files) {
    let many: Vec<_> = (0..1_000).map(|n| calendar(&n.to_string())).collect();
    let too_many =
        json!({ "files": [{ "name": "a.yaml", "documents": many }, { "name": "b.yaml", "documents": [job("b")] }] });
    let refused = files.plan(&too_many).await;
    assert_eq!(refused.invalid_fields(), ["files"], "{}", refused.body);
    let empty = json!({ "name": "a.yaml", "documents": [] });
    let refused = files.plan(&json!({ "files": vec![empty; 501] })).await;
    assert_eq!(refused.invalid_fields(), ["files"], "{}", refused.body);
}

/// Applies a file of many documents, and plans a change of each that is longer than the changes of a plan may be.
async fn plan_of_many_changes_is_bounded(files: &Files, documents: usize) {
    let described = |letter: &str| -> Vec<_> {
        let description = Value::from(letter.repeat(500));
        (0..documents).map(|n| with(job(&format!("many-{n}")), "description", description.clone())).collect()
    };
    let applied = files.apply(&file("a.yaml", &described("🌑"))).await.ok();
    assert_eq!(applied["files"][0]["documents"].as_array().map(Vec::len), Some(documents));
    let plan = files.plan(&file("a.yaml", &described("🌕"))).await.ok();
    assert!(plan.to_string().len() < 1_000_000, "{}", plan.to_string().len());
    let planned = &plan["files"][0]["documents"];
    assert_eq!((&planned[0]["more"], &planned[documents - 1]["more"]), (&json!(false), &json!(true)));
}

async fn alert_rule_is_created_changed_and_checked(files: &Files) {
    let rule = json!({ "kind": "AlertRule", "name": "Mail is slow", "tags": ["mail"], "severity": "critical",
                       "condition": { "kind": "late_start", "seconds": 60 } });
    let request = file("alerts.yaml", std::slice::from_ref(&rule));
    assert_eq!(outcomes(&files.apply(&request).await.ok()), ["created \"Mail is slow\""]);
    assert_eq!(outcomes(&files.apply(&request).await.ok()), ["unchanged \"Mail is slow\""]);
    let changed =
        file("alerts.yaml", &[with(rule.clone(), "condition", json!({ "kind": "late_start", "seconds": 90 }))]);
    let plan = files.apply(&changed).await.ok();
    assert_eq!(
        plan["files"][0]["documents"][0]["changes"],
        json!([{ "field": "condition.seconds", "before": 60, "after": 90 }])
    );
    let unknown = file("alerts.yaml", &[with(rule.clone(), "channels", json!(["Pager"]))]);
    assert_eq!(files.apply(&unknown).await.invalid_fields(), ["files.0.documents.0.channels"]);
    let about_jobs = with(rule, "condition", json!({ "kind": "dead_letter" }));
    let refused = files.apply(&file("alerts.yaml", &[about_jobs])).await;
    assert_eq!(refused.invalid_fields(), ["files.0.documents.0.tags"]);
}

mod exhaustive {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn thousand_documents_are_applied_together() {
        let files = Files::new().await;
        plan_of_many_changes_is_bounded(&files, 1_000).await;
        files.stop().await;
    }
}
