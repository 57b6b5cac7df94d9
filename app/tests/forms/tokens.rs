//! The page of the API tokens without a script: the lists, the form for a new token, rotation and revocation.

use axum::http::StatusCode;
use milvaion_api::permissions::Role;

use super::done;
use crate::common::{
    FakeBackend, PageResponse,
    fake::tokens::{SECRET, token_id},
    get, post, post_as_script,
};

/// A valid form for a new token, encoded as a browser encodes it.
const VALID_TOKEN_FORM: &str = "all=false&form%5Bname%5D=nightly+import&form%5Brole%5D=viewer&form%5Btag%5D=\
                                &form%5Blifetime%5D=90&form%5BexpiresInDays%5D=";

/// Returns the rows of the table, without the header.
fn rows(page: &PageResponse) -> Vec<&str> {
    let table = page.body.split_once("id=\"tokens\"").and_then(|(_, rest)| rest.split_once("</table>"));
    let (table, _) = table.expect("the page has the table of the tokens");
    table.split("<tr").skip(2).collect()
}

/// Returns the part of the page with the form for a new token.
fn form(page: &PageResponse) -> &str {
    let form = page.body.split_once("id=\"new-token\"").and_then(|(_, rest)| rest.split_once("</form>"));
    form.expect("the page has the form").0
}

#[tokio::test]
async fn own_tokens_are_listed_with_rights_state_and_last_use() {
    let page = get(&FakeBackend::signed_in(Role::Viewer).ready(), "/tokens").await;
    assert_eq!(page.status, StatusCode::OK);
    page.assert_contains(&["API tokens · Milvaion</title>"]);
    page.assert_lacks(&["grafana", "deploy", "All tokens", ">Owner<"]);
    let found = rows(&page);
    assert_eq!(found.len(), 4);
    for (row, state) in found.iter().zip(["Active", "Rotated", "Expired", "Revoked"]) {
        assert!(row.contains(state), "{state}: {row}");
        assert_eq!(row.contains("?rotate="), state == "Active", "{row}");
        assert_eq!(row.contains("Expires soon"), state == "Active", "{row}");
        assert_eq!(row.contains("?revoke="), ["Active", "Rotated"].contains(&state), "{row}");
    }
    for text in [
        "ci &lt;b&gt;main&lt;/b&gt;",
        "milvaion_…xyz1",
        "Viewer",
        "Read only",
        "Only jobs with the tag billing",
        "2026-11-22 14:02:00 UTC",
        "203.0.113.9",
        "GET /api/v1/jobs",
    ] {
        assert!(found[0].contains(text), "{text}: {}", found[0]);
    }
    assert!(found[1].contains("Not used yet"), "{}", found[1]);
}

#[tokio::test]
async fn only_admins_see_the_tokens_of_others_and_of_services() {
    let admin = FakeBackend::signed_in(Role::Admin).ready();
    let own = get(&admin, "/tokens").await;
    own.assert_contains(&["href=\"/tokens?all=1\"", "Your tokens", "All tokens"]).assert_lacks(&["grafana"]);
    let all = get(&admin, "/tokens?all=1").await;
    let found = rows(&all);
    assert_eq!(found.len(), 6);
    assert!(found[4].contains("grace@example.org"), "{}", found[4]);
    assert!(found[5].contains("Service token") && found[5].contains("Never"), "{}", found[5]);
    assert!(found[5].contains(&format!("href=\"/tokens?all=1&amp;revoke={}#confirm\"", token_id(6))), "{}", found[5]);
    for role in [Role::Viewer, Role::Operator] {
        let page = get(&FakeBackend::signed_in(role).ready(), "/tokens?all=1").await;
        assert_eq!(page.status, StatusCode::FORBIDDEN, "{role:?}");
        page.assert_lacks(&["grafana"]);
    }
}

#[tokio::test]
async fn empty_list_explains_tokens_and_the_next_step() {
    let page = get(&FakeBackend::signed_in(Role::Operator).empty().ready(), "/tokens").await;
    page.assert_contains(&["No API tokens", "A script or CI system uses a token", "href=\"#f-name\""]);
    assert!(rows(&page).is_empty());
}

#[tokio::test]
async fn form_offers_only_what_the_role_may_create() {
    for (role, roles) in [(Role::Viewer, 1), (Role::Operator, 2), (Role::Admin, 3)] {
        let page = get(&FakeBackend::signed_in(role).ready(), "/tokens").await;
        let form = form(&page);
        let offered = Role::ALL.into_iter().filter(|choice| form.contains(&format!("value=\"{}\"", choice.slug())));
        assert_eq!(offered.count(), roles, "{role:?}");
        assert!(form.contains("value=\"viewer\" selected") && form.contains("value=\"90\" selected"), "{role:?}");
        for days in ["30 days", "365 days", "value=\"custom\""] {
            assert!(form.contains(days), "{days} as {role:?}");
        }
        assert_eq!(form.contains("value=\"never\""), role == Role::Admin, "{role:?}");
        assert_eq!(form.contains("Service token"), role == Role::Admin, "{role:?}");
    }
}

#[tokio::test]
async fn secret_of_a_new_token_is_shown_once() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    get(&fake, "/tokens").await.assert_lacks(&[SECRET]);
    let answer = post(&fake, "/api/create_token", VALID_TOKEN_FORM).await;
    assert_eq!((answer.status, answer.location.as_deref()), (StatusCode::FOUND, Some("/tokens")));
    assert_eq!(done(&fake), ["create token nightly import as viewer for 90 days"]);
    let page = get(&fake, "/tokens").await;
    page.assert_contains(&["The token nightly import is created.", "it is shown only now"]);
    page.assert_contains(&[&format!("curl -H \"Authorization: Bearer {SECRET}\" https://HOST/api/v1/jobs")]);
    assert_eq!(rows(&page).len(), 5);
    get(&fake, "/tokens").await.assert_lacks(&[SECRET, "is created"]);
    let script = post_as_script(&fake, "/api/create_token", VALID_TOKEN_FORM).await;
    assert_eq!((script.status, script.location.as_deref()), (StatusCode::OK, None));
    script.assert_contains(&[SECRET]);
    get(&fake, "/tokens").await.assert_lacks(&[SECRET]);
}

#[tokio::test]
async fn new_service_token_is_shown_in_the_list_of_all_tokens() {
    let fake = FakeBackend::signed_in(Role::Admin).ready();
    let never = VALID_TOKEN_FORM.replace("lifetime%5D=90", "lifetime%5D=never");
    let answer = post(&fake, "/api/create_token", &format!("{never}&form%5Bservice%5D=on")).await;
    assert_eq!(answer.location.as_deref(), Some("/tokens?all=1"));
    get(&fake, "/tokens?all=1").await.assert_contains(&["The service token nightly import is created", SECRET]);
    assert_eq!(done(&fake), ["create token nightly import as viewer for ever"]);
}

#[tokio::test]
async fn refused_token_keeps_its_input_and_marks_the_fields() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let wrong = "all=false&form%5Bname%5D=&form%5Brole%5D=admin&form%5BreadOnly%5D=on&form%5Btag%5D=a%2Cb\
                 &form%5Blifetime%5D=custom&form%5BexpiresInDays%5D=a+week";
    let answer = post(&fake, "/api/create_token", wrong).await;
    assert_eq!(answer.location.as_deref(), Some("/tokens"));
    assert!(done(&fake).is_empty());
    let page = get(&fake, "/tokens").await;
    page.assert_contains(&["4 problems need attention", "aria-invalid=\"true\"", "value=\"custom\" selected"]);
    for (field, message) in [
        ("name", "Enter a name of 1 to 100 printable characters"),
        ("role", "Choose Operator or a lower role"),
        ("tag", "Enter one tag of 1 to 50 characters"),
        ("expiresInDays", "Enter a number of days from 1 to 3,650"),
    ] {
        page.assert_contains(&[&format!("href=\"#f-{field}\""), &format!("id=\"f-{field}-error\""), message]);
    }
    page.assert_contains(&["value=\"a,b\"", "value=\"a week\""]);
    let check = form(&page).split("<input ").find(|input| input.contains("form[readOnly]")).expect("a checkbox");
    assert!(check.contains(" checked"), "{check}");
    get(&fake, "/tokens").await.assert_lacks(&["4 problems", "Enter a name of"]);

    let forged = VALID_TOKEN_FORM.replace("lifetime%5D=90", "lifetime%5D=never");
    post(&fake, "/api/create_token", &format!("{forged}&form%5Bservice%5D=on")).await;
    assert!(done(&fake).is_empty());
    get(&fake, "/tokens").await.assert_contains(&[
        "Only an Admin can create a token that never expires",
        "Only an Admin can create a service token",
    ]);
}

#[tokio::test]
async fn rotation_is_confirmed_and_shows_the_new_secret_once() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    let page = get(&fake, &format!("/tokens?rotate={}", token_id(1))).await;
    page.assert_contains(&["Rotate token ci &lt;b&gt;main&lt;/b&gt;?", "still works for 24 hours"]);
    page.assert_contains(&["action=\"/api/rotate_token\"", &format!("name=\"id\" value=\"{}\"", token_id(1))]);
    let answer = post(&fake, "/api/rotate_token", &format!("id={}&all=false", token_id(1))).await;
    assert_eq!((answer.status, answer.location.as_deref()), (StatusCode::FOUND, Some("/tokens")));
    let page = get(&fake, "/tokens").await;
    page.assert_contains(&["has a new secret. The old one still works for 24 hours.", SECRET]);
    assert_eq!(rows(&page).iter().filter(|row| row.contains("Rotated")).count(), 2);
    get(&fake, "/tokens").await.assert_lacks(&[SECRET]);
    // The rotated token cannot be rotated again.
    let again = post(&fake, "/api/rotate_token", &format!("id={}&all=false", token_id(1))).await;
    assert_eq!(again.location.as_deref(), Some("/tokens"));
    get(&fake, "/tokens").await.assert_contains(&["1 problem needs attention", "is no longer active."]);
    assert_eq!(done(&fake), ["rotate token ci <b>main</b>"]);
}

#[tokio::test]
async fn revocation_is_confirmed_and_keeps_the_record() {
    let fake = FakeBackend::signed_in(Role::Admin).ready();
    let page = get(&fake, &format!("/tokens?all=1&revoke={}", token_id(5))).await;
    page.assert_contains(&["Revoke token grafana?", "action=\"/api/revoke_token\"", "name=\"all\" value=\"true\""]);
    let answer = post(&fake, "/api/revoke_token", &format!("id={}&all=true", token_id(5))).await;
    assert_eq!((answer.status, answer.location.as_deref()), (StatusCode::FOUND, Some("/tokens?all=1")));
    let page = get(&fake, "/tokens?all=1").await;
    page.assert_contains(&["The token grafana is revoked."]);
    let found = rows(&page);
    assert!(found.len() == 6 && found[4].contains("Revoked") && !found[4].contains("revoke="), "{}", found[4]);
    // A token that is no longer usable has no confirmation.
    let late = get(&fake, &format!("/tokens?all=1&revoke={}", token_id(5))).await;
    late.assert_lacks(&["Revoke token grafana?"]);
    assert_eq!(done(&fake), ["revoke token grafana"]);
}

#[tokio::test]
async fn tokens_of_others_cannot_be_changed_below_admin() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    for call in ["/api/rotate_token", "/api/revoke_token"] {
        let form = format!("id={}", token_id(5));
        assert_eq!(post_as_script(&fake, call, &form).await.status, StatusCode::NOT_FOUND, "{call}");
        post(&fake, call, &form).await;
        get(&fake, "/tokens").await.assert_contains(&["This token does not exist."]);
    }
    assert!(done(&fake).is_empty());
    let signed_out = get(&FakeBackend::signed_out().ready(), "/tokens").await;
    assert_eq!(signed_out.location.as_deref(), Some("/login?next=/tokens"));
}

#[tokio::test]
async fn tokens_are_reachable_from_the_account_and_the_menus() {
    for role in [Role::Viewer, Role::Admin] {
        let fake = FakeBackend::signed_in(role).ready();
        // The user menu has one link, and these pages have another.
        for path in ["/account", "/menu"] {
            let page = get(&fake, path).await;
            assert_eq!(page.body.matches("href=\"/tokens\"").count(), 2, "{path} as {role:?}");
        }
    }
}
