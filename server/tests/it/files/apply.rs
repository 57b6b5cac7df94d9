//! What an apply saves, and when it saves nothing.

use http::StatusCode;
use serde_json::{Value, json};

use super::{Files, calendar, file, job, outcomes, with};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_creates_changes_and_keeps() {
    let files = Files::new().await;
    let first = file("jobs/a.yaml", &[job("a"), job("b")]);
    assert_eq!(outcomes(&files.plan(&first).await.ok()), ["created \"a\"", "created \"b\""]);
    assert!(files.keys().await.is_empty(), "a plan changes nothing");
    let applied = files.apply(&first).await.ok();
    assert_eq!(outcomes(&applied), ["created \"a\"", "created \"b\""]);
    let stored = files.stored("a").await.ok();
    assert_eq!(
        (&stored["source"], &stored["version"]),
        (&json!({ "kind": "file", "file": "jobs/a.yaml", "edited": null }), &json!(1))
    );

    let retries = with(job("b"), "rules", json!({ "maxRetries": 3 }));
    let second = file("jobs/a.yaml", &[job("a"), with(retries, "priority", 5.into())]);
    let plan = files.plan(&second).await.ok();
    assert_eq!(outcomes(&plan), ["unchanged \"a\"", "changed \"b\""]);
    let expected =
        json!([{ "field": "priority", "before": 3, "after": 5 }, { "field": "rules.maxRetries", "after": 3 }]);
    assert_eq!(plan["files"][0]["documents"][1]["changes"], expected);
    assert_eq!(files.apply(&second).await.ok(), plan);
    let stored = files.stored("b").await.ok();
    assert_eq!((&stored["definition"]["rules"]["maxRetries"], &stored["version"]), (&json!(3), &json!(2)));
    assert_eq!(outcomes(&files.apply(&second).await.ok()), ["unchanged \"a\"", "unchanged \"b\""]);
    assert_eq!(files.stored("b").await.ok()["version"], 2, "an equal file makes no version");
    files.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_that_are_stored_in_another_form_are_no_change() {
    let files = Files::new().await;
    let rules = json!({ "startAt": "2030-01-01T00:00:00.123456789Z", "endAt": "2031-01-01T01:00:00+01:00" });
    let job = with(with(job("a"), "rules", rules), "displayName", "  Report ".into());
    let job = with(with(job, "tags", json!(["x", " x", "y"])), "jobData", json!({ "n": 1e300, "m": 1.0, "k": -0.0 }));
    let dates = json!(["2030-12-25", "2030-12-24", "2030-12-25"]);
    let request = file("a.yaml", &[job, with(calendar(" Holidays "), "dates", dates)]);
    files.apply(&request).await.ok();
    assert_eq!(outcomes(&files.plan(&request).await.ok()), ["unchanged \"a\"", "unchanged \"Holidays\""]);
    files.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_bad_document_saves_nothing() {
    let files = Files::new().await;
    let bad = [
        (with(job("b"), "rules", json!({ "maxRetries": 101 })), "rules.maxRetries"),
        (with(job("b"), "rules", json!({ "maxRetry": 1 })), "rules.maxRetry"),
        (with(job("b"), "priority", "high".into()), "priority"),
        (
            with(job("b"), "schedule", json!({ "kind": "cron", "expression": "61 * * * *", "zone": "UTC" })),
            "schedule.expression",
        ),
        (with(job("b"), "schedule", json!({ "kind": "once", "at": "2020-01-01T00:00:00Z" })), "schedule.at"),
        (with(job("b"), "rules", json!({ "calendars": ["Missing"] })), "rules.calendars.0"),
        (with(job("b"), "key", "No spaces".into()), "key"),
        (with(job("b"), "kind", "Pod".into()), "kind"),
        (with(calendar("c"), "zone", "Mars".into()), "zone"),
        (job("a"), "key"),
    ];
    for (document, field) in bad {
        let one = file("a.yaml", &[job("a"), document.clone()]);
        let refused = files.apply(&one).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{document} {}", refused.body);
        assert_eq!(refused.invalid_fields(), [format!("files.0.documents.1.{field}")], "{}", refused.body);
        let two = json!({ "files": [
            { "name": "a.yaml", "documents": [job("a")] }, { "name": "b.yaml", "documents": [document] },
        ]});
        let refused = files.apply(&two).await;
        assert_eq!(refused.invalid_fields(), [format!("files.1.documents.0.{field}")], "{}", refused.body);
    }
    assert!(files.keys().await.is_empty(), "nothing is saved, also not of the other file");
    files.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calendars_are_saved_before_the_jobs_that_name_them() {
    let files = Files::new().await;
    let using = |key: &str, name: &str| with(job(key), "rules", json!({ "calendars": [name], "blackout": "postpone" }));
    let request = json!({ "files": [
        { "name": "a.yaml", "documents": [using("a", "Holidays"), using("b", "Quiet")] },
        { "name": "z.yaml", "documents": [calendar("Quiet"), calendar("Holidays")] },
    ]});
    files.apply(&request).await.ok();
    assert!(files.plan(&request).await.ok()["files"].as_array().expect("files").len() == 2);
    let calendars = files.harness.call(&files.token, "GET", "/calendars", Value::Null).await.ok();
    let id = calendars["items"][0]["id"].clone();
    assert_eq!((&calendars["items"][0]["name"], &calendars["items"][0]["jobs"]), (&json!("Holidays"), &json!(1)));
    assert_eq!(files.stored("a").await.ok()["definition"]["rules"]["calendars"], json!([id]));

    let longer = with(calendar("Quiet"), "dates", json!(["2030-12-24"]));
    let moved = file("z.yaml", &[longer, using("a", "Quiet")]);
    let plan = files.apply(&moved).await.ok();
    assert_eq!(outcomes(&plan), ["changed \"Quiet\"", "changed \"a\""]);
    let change = json!([{ "field": "rules.calendars", "before": ["Holidays"], "after": ["Quiet"] }]);
    assert_eq!(plan["files"][0]["documents"][1]["changes"], change, "the plan has names");
    let cycle = json!({ "files": [
        { "name": "a.yaml", "documents": [calendar("Quiet"), using("a", "Holidays")] },
        { "name": "b.yaml", "documents": [calendar("Holidays"), using("b", "Quiet")] },
    ]});
    assert_eq!(files.plan(&cycle).await.status, StatusCode::CONFLICT);
    files.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_without_a_state_keeps_a_pause() {
    let files = Files::new().await;
    let due = with(job("a"), "schedule", json!({ "kind": "cron", "expression": "0 9 * * *", "zone": "UTC" }));
    files.apply(&file("a.yaml", std::slice::from_ref(&due))).await.ok();
    let stored = files.stored("a").await.ok();
    assert!(!stored["nextDueAt"].is_null());
    let id = stored["id"].as_str().expect("an id").to_owned();
    let pause = json!({ "reason": "incident" });
    files.harness.call(&files.token, "POST", &format!("/jobs/{id}/pause"), pause).await.ok();
    assert!(files.stored("a").await.ok()["source"]["edited"].is_null(), "a pause is no edit of the definition");
    assert_eq!(outcomes(&files.apply(&file("a.yaml", std::slice::from_ref(&due))).await.ok()), ["unchanged \"a\""]);
    let renamed = with(due.clone(), "displayName", "Renamed".into());
    files.apply(&file("a.yaml", &[renamed])).await.ok();
    let stored = files.stored("a").await.ok();
    assert_eq!((&stored["isActive"], &stored["nextDueAt"]), (&json!(false), &Value::Null));
    let plan = files.apply(&file("a.yaml", &[with(due.clone(), "isActive", true.into())])).await.ok();
    assert_eq!(outcomes(&plan), ["changed \"a\""]);
    let stored = files.stored("a").await.ok();
    assert!(stored["isActive"] == true && !stored["nextDueAt"].is_null(), "{stored}");
    files.stop().await;
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
    assert_eq!(files.keys().await.len(), 20);
    assert_eq!(files.harness.server.store.count_mismatched_due_times().await.expect("counted"), 0);
    files.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn number_of_documents_is_bounded() {
    let files = Files::new().await;
    let many: Vec<_> = (0..1_000).map(|n| job(&format!("job-{n}"))).collect();
    let too_many =
        json!({ "files": [{ "name": "a.yaml", "documents": many }, { "name": "b.yaml", "documents": [job("b")] }] });
    let refused = files.plan(&too_many).await;
    assert_eq!(refused.invalid_fields(), ["files"], "{}", refused.body);
    let applied = files.apply(&file("a.yaml", &many)).await.ok();
    assert_eq!(applied["files"][0]["documents"].as_array().map(Vec::len), Some(1_000));
    let changed: Vec<_> = many.into_iter().map(|job| with(job, "description", "x".repeat(2_000).into())).collect();
    let plan = files.plan(&file("a.yaml", &changed)).await.ok();
    assert!(plan.to_string().len() < 1_000_000, "{}", plan.to_string().len());
    assert_eq!(plan["files"][0]["documents"][999]["more"], true);
    files.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alert_rule_is_created_changed_and_checked() {
    let files = Files::new().await;
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
    files.stop().await;
}
