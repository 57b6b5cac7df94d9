//! What a token may do, and when it ends.

use chrono::TimeDelta;
use http::StatusCode;
use milvaion_api::{permissions::Role, tokens::NewToken};
use milvaion_app::{
    backend::{TeamBackend, TokenBackend},
    error::AppError,
};
use milvaion_server::command::tokens;
use serde_json::{Value, json};

use super::harness::{ApiHarness, echo};
use crate::users::harness::{UserHarness, by};

fn new_token(role: Role) -> NewToken {
    NewToken {
        name: "ci".into(),
        role,
        read_only: false,
        tag: None,
        expires_in_days: None,
        never_expires: false,
        service: false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_follow_the_document() {
    let harness = ApiHarness::new().await;
    token_ends_with_its_owner_and_its_revocation(&harness).await;
    read_only_token_changes_nothing(&harness).await;
    token_with_a_tag_reaches_only_its_jobs(&harness).await;
    audit_log_names_the_token_of_a_change(&harness).await;
    occurrence_keeps_the_token_that_created_it(&harness).await;
    list_of_tokens_has_pages(&harness).await;
    last_use_of_a_token_is_shown(&harness).await;
    harness.server.stop().await;
}

async fn token_ends_with_its_owner_and_its_revocation(harness: &ApiHarness) {
    let oscar = harness.user("oscar", Role::Operator).await;
    let (kept, revoked) = (harness.token(&oscar).await, harness.create_token(&oscar, |_| {}).await);
    let status = async |token: &str| harness.call(token, "GET", "/jobs", Value::Null).await.status;
    assert_eq!(status(&revoked.secret).await, StatusCode::OK);
    harness.server.backend.revoke_token(&oscar, revoked.token.id).await.expect("revoked");
    assert_eq!(status(&revoked.secret).await, StatusCode::UNAUTHORIZED);
    assert_eq!(status(&kept).await, StatusCode::OK);
    harness.server.backend.change_role(&harness.admin, oscar.id, Role::Viewer, false).await.expect("changed");
    assert_eq!(harness.call(&kept, "POST", "/jobs", echo("x")).await.status, StatusCode::FORBIDDEN);
    harness.server.backend.set_user_active(&harness.admin, oscar.id, false).await.expect("deactivated");
    assert_eq!(status(&kept).await, StatusCode::UNAUTHORIZED);
    for other in ["milvaion_unknown", "", &"x".repeat(5_000)] {
        assert_eq!(status(other).await, StatusCode::UNAUTHORIZED, "{other}");
    }
}

#[tokio::test]
async fn rotated_token_works_for_another_day() {
    let harness = UserHarness::new().await;
    let ana = by(&harness.admin().await);
    let (store, clock) = (&harness.store, &harness.clock);
    let is_usable = async |secret: &str| {
        let found = tokens::principal(store, clock, secret).await.expect("read");
        found.is_some_and(|token| token.state.is_usable())
    };
    let days = |days| NewToken { expires_in_days: Some(days), ..new_token(Role::Admin) };
    let old = tokens::create(store, clock, &ana, &days(30)).await.expect("created");
    let new = tokens::rotate(store, clock, &ana, old.token.id).await.expect("rotated");
    assert_eq!(new.token.expires_at, Some(clock.now() + TimeDelta::days(30)));
    assert!(is_usable(&old.secret).await && is_usable(&new.secret).await);
    let twice = tokens::rotate(store, clock, &ana, old.token.id).await;
    assert!(matches!(twice, Err(AppError::Conflict(_))), "{twice:?}");
    clock.advance(TimeDelta::hours(23));
    assert!(is_usable(&old.secret).await);
    clock.advance(TimeDelta::hours(1));
    assert!(!is_usable(&old.secret).await && is_usable(&new.secret).await);
    clock.advance(TimeDelta::days(29));
    assert!(!is_usable(&new.secret).await, "it has expired");
    assert_eq!(harness.audited(&format!("token:{}", new.token.id)).await, ["token.rotate"]);
}

#[tokio::test]
async fn token_has_no_more_rights_than_its_owner() {
    let harness = UserHarness::new().await;
    let ana = harness.admin().await;
    let (oscar, ana) = (by(&harness.join(&ana, "oscar", Role::Operator).await), by(&ana));
    let (store, clock) = (&harness.store, &harness.clock);
    let refused = tokens::create(store, clock, &oscar, &new_token(Role::Admin)).await.expect_err("refused");
    assert!(refused.field_message("role").is_some(), "{refused:?}");
    let created = tokens::create(store, clock, &oscar, &new_token(Role::Operator)).await.expect("created");
    let service = NewToken { service: true, never_expires: true, ..new_token(Role::Operator) };
    let service = tokens::create(store, clock, &ana, &service).await.expect("created");
    assert_eq!((service.token.owner.as_deref(), service.token.expires_at), (None, None));
    let found = tokens::principal(store, clock, &service.secret).await.expect("read").expect("a token");
    assert_eq!(found.user.email, "service:ci");
    assert_eq!(tokens::list(store, clock, &oscar, false).await.expect("listed"), std::slice::from_ref(&created.token));
    assert!(matches!(tokens::list(store, clock, &oscar, true).await, Err(AppError::Denied(_))));
    assert_eq!(tokens::list(store, clock, &ana, true).await.expect("listed").len(), 2);
    let of_another = tokens::revoke(store, clock, &oscar, service.token.id).await;
    assert!(matches!(of_another, Err(AppError::NotFound(_))));
    tokens::revoke(store, clock, &ana, created.token.id).await.expect("an Admin revokes any token");
}

async fn read_only_token_changes_nothing(harness: &ApiHarness) {
    let token = harness.create_token(&harness.admin, |new| new.read_only = true).await.secret;
    assert_eq!(harness.call(&token, "GET", "/users", Value::Null).await.status, StatusCode::OK);
    for (method, path, body) in
        [("POST", "/jobs", echo("x")), ("POST", "/tokens", json!({ "name": "more", "role": "admin" }))]
    {
        let refused = harness.call(&token, method, path, body).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{path}");
    }
}

async fn token_with_a_tag_reaches_only_its_jobs(harness: &ApiHarness) {
    let admin = harness.token(&harness.admin).await;
    let token = harness.create_token(&harness.admin, |new| new.tag = Some("billing".into())).await.secret;
    let tagged = |name: &str, tag: &str| {
        let mut job = echo(name);
        job["tags"] = json!([tag]);
        job
    };
    let id = |job: &Value| job["id"].as_str().expect("an id").to_owned();
    let own = id(&harness.job(&admin, tagged("Invoices", "billing")).await);
    let other = id(&harness.job(&admin, tagged("Backups", "storage")).await);
    let of_own = id(&harness.call(&admin, "POST", &format!("/jobs/{own}/run"), Value::Null).await.ok());
    let of_other = id(&harness.call(&admin, "POST", &format!("/jobs/{other}/run"), Value::Null).await.ok());
    let gone = id(&harness.job(&admin, tagged("Old backups", "storage")).await);
    let of_gone = id(&harness.call(&admin, "POST", &format!("/jobs/{gone}/run"), Value::Null).await.ok());
    harness.call(&admin, "DELETE", &format!("/jobs/{gone}"), Value::Null).await.ok();
    // Its first version belongs to another tag.
    let moved = id(&harness.job(&admin, tagged("Moved", "storage")).await);
    harness.call(&admin, "PUT", &format!("/jobs/{moved}"), tagged("Moved", "billing")).await.ok();
    let listed = harness.call(&token, "GET", "/jobs", Value::Null).await.ok();
    assert_eq!(listed["items"].as_array().expect("items").len(), 2);
    let child_of = |parent: &str| json!({ "occurrences": [{ "jobKey": "none", "parentId": parent }] });
    for (method, path, body, expected) in [
        ("GET", format!("/jobs/{own}"), Value::Null, 200),
        ("GET", format!("/jobs/{other}"), Value::Null, 403),
        ("POST", format!("/jobs/{own}/pause"), Value::Null, 200),
        ("POST", format!("/jobs/{other}/pause"), Value::Null, 403),
        ("GET", format!("/occurrences/{of_own}"), Value::Null, 200),
        ("GET", format!("/occurrences/{of_other}/log"), Value::Null, 403),
        ("GET", format!("/occurrences/{of_gone}"), Value::Null, 403),
        ("GET", format!("/occurrences?jobId={gone}"), Value::Null, 403),
        ("POST", format!("/jobs/{moved}/versions/1/restore"), Value::Null, 403),
        ("GET", "/occurrences".into(), Value::Null, 422),
        ("GET", format!("/occurrences?jobId={own}"), Value::Null, 200),
        ("GET", format!("/occurrences?jobId={other}"), Value::Null, 403),
        ("POST", "/jobs".into(), tagged("New", "billing"), 201),
        ("POST", "/jobs".into(), tagged("New", "storage"), 403),
        ("PUT", format!("/jobs/{own}"), tagged("Taken away", "storage"), 403),
        ("PUT", "/jobs/by-key/new".into(), tagged("New", "storage"), 403),
        ("POST", "/occurrences".into(), child_of(&of_own), 200),
        ("POST", "/occurrences".into(), child_of(&of_other), 403),
        ("GET", "/statistics".into(), Value::Null, 403),
        ("GET", "/events".into(), Value::Null, 403),
        ("POST", "/tokens".into(), json!({ "name": "wider", "role": "admin" }), 403),
    ] {
        let answer = harness.call(&token, method, &path, body).await;
        assert_eq!(answer.status.as_u16(), expected, "{method} {path} {}", answer.body);
    }
}

async fn audit_log_names_the_token_of_a_change(harness: &ApiHarness) {
    let viewer = harness.user("vera", Role::Viewer).await;
    let (admin, viewer) = (harness.create_token(&harness.admin, |_| {}).await, harness.token(&viewer).await);
    let job = harness.job(&admin.secret, echo("Backup")).await["id"].as_str().expect("an id").to_owned();
    let run = format!("/jobs/{job}/run");
    harness.call_with(&admin.secret, "POST", &run, Value::Null, ("idempotency-key", "release 42")).await.ok();
    let refused = harness.call(&viewer, "POST", &format!("/jobs/{job}/pause"), Value::Null).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    let cookie = harness.cookie(&harness.admin).await;
    let paused = harness.request("POST", &format!("/jobs/{job}/pause")).header("cookie", cookie);
    super::harness::send(paused.header("sec-fetch-site", "same-origin"), Value::Null).await.ok();
    let rows = harness.call(&admin.secret, "GET", "/audit", Value::Null).await.ok();
    let token_of = |action: &str| {
        let rows = rows["items"].as_array().expect("items");
        let row = rows.iter().find(|row| row["action"] == action);
        row.unwrap_or_else(|| panic!("{action}: {rows:?}"))["token"].clone()
    };
    let label = format!("script (milvaion_…{})", admin.token.hint);
    for action in ["job.create", "job.run"] {
        assert_eq!(token_of(action), label, "{action}");
    }
    assert!(token_of("refuse").as_str().is_some_and(|token| token.starts_with("script (milvaion_…")));
    assert_eq!(token_of("job.pause"), Value::Null, "a session has no token");
}

async fn occurrence_keeps_the_token_that_created_it(harness: &ApiHarness) {
    let (token, other) = (harness.create_token(&harness.admin, |_| {}).await, harness.token(&harness.admin).await);
    let job = harness.job(&other, echo("Deploy")).await["id"].as_str().expect("an id").to_owned();
    let run = format!("/jobs/{job}/run");
    let key = ("idempotency-key", "release 43");
    let queued = harness.call_with(&token.secret, "POST", &run, Value::Null, key).await.ok();
    let label = format!("script (milvaion_…{})", token.token.hint);
    assert_eq!(queued["triggerToken"], label);
    let path = format!("/occurrences/{}", queued["id"].as_str().expect("an id"));
    harness.call(&other, "POST", &format!("{path}/cancel"), Value::Null).await.ok();
    let ended = harness.call(&other, "GET", &path, Value::Null).await.ok();
    assert_eq!((&ended["status"], &ended["triggerToken"]), (&json!("cancelled"), &json!(label)));
    let of_session = harness.request("POST", &run).header("cookie", harness.cookie(&harness.admin).await);
    let of_session = super::harness::send(of_session.header("sec-fetch-site", "same-origin"), Value::Null).await.ok();
    assert_eq!(of_session["triggerToken"], Value::Null, "a session has no token");
}

async fn list_of_tokens_has_pages(harness: &ApiHarness) {
    let paula = harness.user("paula", Role::Operator).await;
    let secret = harness.create_token(&paula, |new| new.name = "token 0".into()).await.secret;
    for n in 1..5 {
        harness.create_token(&paula, |new| new.name = format!("token {n}")).await;
    }
    let mut names = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = harness.call(&secret, "GET", &format!("/tokens?limit=2{cursor}"), Value::Null).await.ok();
        let items = page["items"].as_array().expect("items");
        assert!((1..=2).contains(&items.len()), "{page}");
        names.extend(items.iter().map(|item| item["name"].as_str().expect("a name").to_owned()));
        match page["next"].as_str() {
            Some(next) => cursor = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(names, ["token 4", "token 3", "token 2", "token 1", "token 0"]);
}

#[tokio::test]
async fn active_token_is_marked_in_its_last_week() {
    let harness = UserHarness::new().await;
    let ana = by(&harness.admin().await);
    let (store, clock) = (&harness.store, &harness.clock);
    let new = NewToken { expires_in_days: Some(30), ..new_token(Role::Admin) };
    let token = tokens::create(store, clock, &ana, &new).await.expect("created").token;
    let is_marked = async || tokens::get(store, clock, &ana, token.id).await.expect("read").expires_soon;
    clock.advance(TimeDelta::days(23) - TimeDelta::minutes(1));
    assert!(!is_marked().await);
    clock.advance(TimeDelta::minutes(1));
    assert!(is_marked().await);
    tokens::revoke(store, clock, &ana, token.id).await.expect("revoked");
    assert!(!is_marked().await, "a revoked token needs no replacement");
}

async fn last_use_of_a_token_is_shown(harness: &ApiHarness) {
    let created = harness.create_token(&harness.admin, |_| {}).await;
    assert_eq!(created.token.last_used_at, None);
    harness.call(&created.secret, "GET", "/job-types", Value::Null).await.ok();
    let used = harness.server.backend.token(&harness.admin, created.token.id).await.expect("read");
    assert!(used.last_used_at.is_some());
    assert_eq!(used.last_used_address.as_deref(), Some("127.0.0.1"));
    assert_eq!(used.last_used_route.as_deref(), Some("GET /api/v1/job-types"));
}
