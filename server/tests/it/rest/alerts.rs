//! Alert rules and channels over the API.

use http::StatusCode;
use milvaion_api::permissions::Role;
use serde_json::{Value, json};

use super::harness::ApiHarness;

fn rule(name: &str) -> Value {
    json!({ "name": name, "condition": { "kind": "queue_age", "seconds": 60 }, "severity": "critical" })
}

fn email(name: &str) -> Value {
    json!({ "name": name, "target": { "kind": "email", "to": ["ops@example.org"] } })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alert_operations_follow_the_document() {
    let harness = ApiHarness::new().await;
    rule_is_created_replaced_muted_and_deleted(&harness).await;
    invalid_rule_and_channel_name_their_fields(&harness).await;
    test_of_a_channel_reports_the_error_with_its_remedy(&harness).await;
    harness.server.stop().await;
}

async fn rule_is_created_replaced_muted_and_deleted(harness: &ApiHarness) {
    let token = harness.create_token(&harness.admin, |new| new.name = "rules".into()).await.secret;
    let channel = harness.call(&token, "POST", "/alert-channels", email("Ops")).await.ok();
    let mut definition = rule("Mail queue");
    definition["channels"] = json!(["Ops"]);
    let created = harness.call(&token, "POST", "/alert-rules", definition.clone()).await;
    assert_eq!((created.status, created.header("etag")), (StatusCode::CREATED, "\"1\""));
    let created = created.ok();
    assert_eq!(created["definition"]["channels"], json!(["Ops"]));
    let path = format!("/alert-rules/{}", created["id"].as_str().expect("an id"));

    definition["condition"]["seconds"] = json!(120);
    let replaced = harness.call(&token, "PUT", &path, definition.clone()).await.ok();
    assert_eq!((&replaced["version"], &replaced["definition"]["condition"]["seconds"]), (&json!(2), &json!(120)));
    let stale = harness.call_with(&token, "PUT", &path, definition.clone(), ("if-match", "\"1\"")).await;
    assert_eq!(stale.status, StatusCode::PRECONDITION_FAILED);
    let until = harness.server.clock.now() + chrono::TimeDelta::hours(1);
    let muted = harness.call(&token, "POST", &format!("{path}/mute"), json!({ "until": until })).await.ok();
    assert!(muted["mutedUntil"].is_string());
    let past = json!({ "until": "2020-01-01T00:00:00Z" });
    assert_eq!(harness.call(&token, "POST", &format!("{path}/mute"), past).await.invalid_fields(), ["until"]);

    let channel = format!("/alert-channels/{}", channel["id"].as_str().expect("an id"));
    let used = harness.call(&token, "DELETE", &channel, Value::Null).await;
    assert_eq!(used.status, StatusCode::CONFLICT);
    assert!(used.body["detail"].as_str().is_some_and(|detail| detail.contains("Remove it from the rules")), "{used:?}");
    assert_eq!(harness.call(&token, "DELETE", &path, Value::Null).await.status, StatusCode::NO_CONTENT);
    assert_eq!(harness.call(&token, "GET", &path, Value::Null).await.status, StatusCode::NOT_FOUND);
    assert_eq!(harness.call(&token, "DELETE", &channel, Value::Null).await.status, StatusCode::NO_CONTENT);
    let audit = harness.call(&token, "GET", "/audit", Value::Null).await.ok();
    let rows = audit["items"].as_array().expect("items").iter();
    let own = rows.filter(|row| row["token"].as_str().is_some_and(|token| token.starts_with("rules (")));
    let actions: Vec<_> = own.filter_map(|row| row["action"].as_str()).collect();
    assert_eq!(
        actions,
        [
            "alert_channel.delete",
            "alert_rule.delete",
            "alert_rule.mute",
            "alert_rule.update",
            "alert_rule.create",
            "alert_channel.create"
        ]
    );
}

async fn invalid_rule_and_channel_name_their_fields(harness: &ApiHarness) {
    let token = harness.token(&harness.admin).await;
    let fields = async |path: &str, body: Value| {
        let answer = harness.call(&token, "POST", path, body).await;
        answer.invalid_fields().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let mut unknown = rule("x");
    unknown["channels"] = json!(["missing"]);
    assert_eq!(fields("/alert-rules", unknown).await, ["channels"]);
    let mut about_no_job = rule("x");
    about_no_job["tags"] = json!(["web"]);
    assert_eq!(fields("/alert-rules", about_no_job).await, ["tags"]);
    assert_eq!(fields("/alert-rules", rule("Misfire")).await, ["name"], "a rule of a fresh installation has the name");
    let secret = json!({ "name": "hook", "target": { "kind": "slack", "urlSecret": "NO_SUCH_SECRET" } });
    assert_eq!(fields("/alert-channels", secret).await, ["target.urlSecret"]);
    let user = json!({ "name": "hook", "target": { "kind": "webhook", "url": "https://user:pw@example.org/" } });
    assert_eq!(fields("/alert-channels", user).await, ["target.url"]);
}

async fn test_of_a_channel_reports_the_error_with_its_remedy(harness: &ApiHarness) {
    let token = harness.token(&harness.admin).await;
    let channel = harness.call(&token, "POST", "/alert-channels", email("Tested")).await.ok();
    let path = format!("/alert-channels/{}/test", channel["id"].as_str().expect("an id"));
    let result = harness.call(&token, "POST", &path, Value::Null).await.ok();
    assert_eq!(result["wasAccepted"], false);
    assert!(result["error"].as_str().is_some_and(|error| error.contains("ALERT_SMTP_URL")), "{result}");
    let operator = harness.token(&harness.user("oscar", Role::Operator).await).await;
    assert_eq!(harness.call(&operator, "POST", &path, Value::Null).await.status, StatusCode::FORBIDDEN);
    assert_eq!(harness.call(&operator, "POST", "/alert-rules", rule("Queue")).await.status, StatusCode::CREATED);
}
