//! The team without a script: the list with its filter, invitations, the page of a user, and the reset link.

use axum::http::StatusCode;
use milvaion_api::permissions::Role;
use milvaion_protocol::id::UserId;

use super::done;
use crate::common::{
    FakeBackend, PageResponse,
    fake::team::{barbara, edsger, grace, linus, session_of_grace, tim},
    get, post, post_as_script, samples,
};

fn page_of(id: UserId) -> String {
    format!("/team/{id}")
}

fn own_id() -> UserId {
    samples::me(Role::Admin).id
}

/// Returns the rows of the table, without the header.
fn rows(page: &PageResponse) -> Vec<&str> {
    let table = page.body.split_once("id=\"team\"").and_then(|(_, rest)| rest.split_once("</table>"));
    let (table, _) = table.expect("the page has the table of the team");
    table.split("<tr").skip(2).collect()
}

#[tokio::test]
async fn team_lists_users_and_invitations_with_their_state() {
    let page = get(&FakeBackend::signed_in(Role::Admin).ready(), "/team").await;
    page.assert_contains(&["6 users and invitations", "href=\"/export/team.csv\"", "rel=\"external\"", "Download CSV"]);
    let found = rows(&page);
    assert_eq!(found.len(), 6);
    let row = |name: &str| *found.iter().find(|row| row.contains(name)).expect("the user is listed");
    let expected = [
        ("Ada", "data-state=\"active\"", "Admin"),
        ("Grace", "data-state=\"active\"", "Operator"),
        ("Linus", "data-state=\"locked\"", "Viewer"),
        ("Edsger", "data-state=\"deactivated\"", "Operator"),
        ("Barbara", "data-state=\"invited\"", "Viewer"),
        ("Tim", "data-state=\"invited\"", "Operator"),
    ];
    for (name, state, role) in expected {
        assert!(row(name).contains(state) && row(name).contains(role), "{name}: {}", row(name));
        let is_invitation = ["Barbara", "Tim"].contains(&name);
        assert_eq!(row(name).contains("action=\"/api/renew_invite\""), is_invitation, "{name}");
        assert_eq!(row(name).contains("action=\"/api/revoke_invite\""), is_invitation, "{name}");
    }
    assert!(row("Grace").contains(&format!("href=\"{}\"", page_of(grace()))), "{}", row("Grace"));
    assert!(row("Grace").contains("grace@example.org") && row("Grace").contains("2 sessions"), "{}", row("Grace"));
    assert!(row("Barbara").contains("Expires ") && !row("Barbara").contains("Expired "), "{}", row("Barbara"));
    assert!(row("Tim").contains("Expired "), "{}", row("Tim"));
    get(&FakeBackend::signed_in(Role::Admin).empty().ready(), "/team")
        .await
        .assert_contains(&["1 user or invitation", "You are the only user."]);
}

#[tokio::test]
async fn filter_of_the_address_narrows_the_team() {
    let fake = FakeBackend::signed_in(Role::Admin).ready();
    let page = get(&fake, "/team?q=GRA&role=operator&state=active").await;
    page.assert_contains(&["1 of 6 users and invitations", "value=\"GRA\"", "value=\"operator\" selected"]);
    page.assert_contains(&["value=\"active\" selected", "Remove the filter"]);
    assert_eq!(rows(&page).len(), 1);
    let invited = get(&fake, "/team?q=&role=&state=invited").await;
    invited.assert_contains(&["2 of 6 users and invitations", "href=\"/export/team.csv?state=invited\""]);
    assert_eq!(rows(&invited).len(), 2);
    let none = get(&fake, "/team?q=nothing").await;
    none.assert_contains(&["0 of 6 users and invitations", "No user or invitation matches", "Show the whole team"]);
    assert!(rows(&none).is_empty());
    let invalid = get(&fake, "/team?role=boss&q=gra").await;
    assert_eq!(invalid.status, StatusCode::BAD_REQUEST);
    invalid.assert_contains(&["The filter role has the value", "href=\"/team?q=gra\""]).assert_lacks(&["id=\"team\""]);
}

#[tokio::test]
async fn link_of_an_invitation_is_replaced_and_revoked() {
    let fake = FakeBackend::signed_in(Role::Admin).ready();
    let answer = post(&fake, "/api/renew_invite", &format!("id={}", tim())).await;
    assert_eq!(answer.location.as_deref(), Some("/team"));
    get(&fake, "/team").await.assert_contains(&["has a new link", "/invite?token=renewed"]);
    get(&fake, "/team").await.assert_lacks(&["/invite?token=renewed"]);
    post(&fake, "/api/revoke_invite", &format!("id={}", barbara())).await;
    get(&fake, "/team").await.assert_contains(&["The invitation is revoked.", "5 users and invitations"]);
    assert_eq!(done(&fake), ["renew Tim", "revoke Barbara"]);
    let again = post(&fake, "/api/revoke_invite", &format!("id={}", barbara())).await;
    assert_eq!(again.location.as_deref(), Some("/team"));
    get(&fake, "/team").await.assert_contains(&["This invitation was used or revoked."]);
    let unnamed = post(&fake, "/api/invite_user", "name=&role=admin").await;
    assert_eq!(unnamed.location.as_deref(), Some("/team"));
    get(&fake, "/team").await.assert_contains(&["Enter a name", "value=\"admin\" checked", "aria-invalid=\"true\""]);
}

#[tokio::test]
async fn page_of_an_active_user_shows_rights_sessions_and_jobs() {
    let fake = FakeBackend::signed_in(Role::Admin).ready();
    let page = get(&fake, &page_of(grace())).await;
    assert_eq!(page.status, StatusCode::OK);
    page.assert_contains(&["Grace · Team · Milvaion</title>", "grace@example.org", "data-state=\"active\""]);
    // Without scripts the rights of every other role are listed.
    page.assert_contains(&["From Operator to Viewer", "Rights lost as Viewer", "<span>run jobs<!></span>"]);
    page.assert_contains(&["From Operator to Admin", "Rights gained as Admin", "<span>delete jobs<!></span>"]);
    page.assert_contains(&["Chrome on Windows", "Safari on iPhone", "203.0.113.7"]);
    page.assert_contains(&["created 3 jobs", &format!("href=\"/jobs/{}\"", samples::job_id()), "2 more jobs."]);
    for call in ["change_role", "end_user_sessions", "create_reset_link", "set_user_active"] {
        page.assert_contains(&[&format!("action=\"/api/{call}\"")]);
    }
    page.assert_contains(&["All sessions and API tokens of the user end at once", "It works once, for 24 hours."]);
    page.assert_lacks(&[
        "This session",
        "aria-disabled=\"true\" aria-describedby",
        "/api/remove_user",
        "/api/unlock_user",
    ]);
    page.assert_lacks(&["This is your own role", "is the last Admin"]);
}

#[tokio::test]
async fn page_of_a_locked_user_explains_the_lock_and_the_open_link() {
    let page = get(&FakeBackend::signed_in(Role::Admin).ready(), &page_of(linus())).await;
    page.assert_contains(&["id=\"locked\"", "2026-11-21 14:17:00 UTC", "action=\"/api/unlock_user\""]);
    page.assert_contains(&["devices on which the user has signed in before can still sign in"]);
    page.assert_contains(&["id=\"open-reset\"", "ada@example.org", "action=\"/api/revoke_reset_link\""]);
    page.assert_contains(&["No session. The user is signed out everywhere.", "This user has created no jobs."]);
}

#[tokio::test]
async fn page_of_a_deactivated_user_offers_reactivation_and_removal() {
    let page = get(&FakeBackend::signed_in(Role::Admin).ready(), &page_of(edsger())).await;
    page.assert_contains(&["id=\"deactivated\"", "Reactivate", "action=\"/api/remove_user\"", "Remove user…"]);
    page.assert_contains(&["the e-mail address becomes free", "Reactivate the user first."]);
    page.assert_lacks(&["Deactivate…", "action=\"/api/create_reset_link\""]);
}

#[tokio::test]
async fn last_admin_and_the_own_account_are_protected() {
    let alone = get(&FakeBackend::signed_in(Role::Admin).ready(), &page_of(own_id())).await;
    alone.assert_contains(&["This user is the last Admin, so the role cannot be changed.", "This session"]);
    alone
        .assert_contains(&["You cannot deactivate your own account."])
        .assert_lacks(&["action=\"/api/set_user_active\""]);
    let fake = FakeBackend::signed_in(Role::Admin).second_admin().ready();
    let page = get(&fake, &page_of(own_id())).await;
    page.assert_contains(&["This is your own role.", "I understand that I lose", "name=\"confirm_self\""]);
    page.assert_lacks(&["is the last Admin", "action=\"/api/set_user_active\""]);
    let form = format!("id={}&role=viewer", own_id());
    let refused = post(&fake, "/api/change_role", &form).await;
    assert_eq!(refused.location, Some(page_of(own_id())));
    let page = get(&fake, &page_of(own_id())).await;
    page.assert_contains(&["Confirm that you lose rights.", "value=\"viewer\" checked"]);
    assert!(done(&fake).is_empty());
    let confirmed = post(&fake, "/api/change_role", &format!("{form}&confirm_self=true")).await;
    // The own page is no longer allowed.
    assert_eq!(confirmed.location.as_deref(), Some("/"));
    assert_eq!(done(&fake), ["Ada becomes viewer"]);
}

#[tokio::test]
async fn actions_on_a_user_are_plain_forms() {
    let fake = FakeBackend::signed_in(Role::Admin).ready();
    let (one, two, three) = (grace(), linus(), edsger());
    let session = session_of_grace(2);
    let posts = [
        ("change_role", format!("id={one}&role=admin"), one, "The role is now Admin."),
        ("end_user_sessions", format!("id={one}&session={session}"), one, "1 session was ended."),
        ("create_reset_link", format!("id={one}"), one, "/reset?token=reset"),
        ("set_user_active", format!("id={one}&active=false"), one, "The user is deactivated."),
        ("unlock_user", format!("id={two}"), two, "The user is unlocked."),
        ("revoke_reset_link", format!("id={two}"), two, "The reset link is revoked."),
        ("end_user_sessions", format!("id={two}"), two, "0 sessions were ended."),
        ("set_user_active", format!("id={three}&active=true"), three, "The user is reactivated."),
    ];
    for (call, form, id, notice) in posts {
        let answer = post(&fake, &format!("/api/{call}"), &form).await;
        assert_eq!((answer.status, answer.location), (StatusCode::FOUND, Some(page_of(id))), "{call}");
        get(&fake, &page_of(id)).await.assert_contains(&[notice]);
    }
    let removed = post(&fake, "/api/remove_user", &format!("id={one}")).await;
    assert_eq!(removed.location.as_deref(), Some("/team"));
    get(&fake, "/team").await.assert_contains(&["The user is removed.", "5 users and invitations"]);
    let expected = [
        "Grace becomes admin",
        "end 1 of Grace",
        "reset link for Grace",
        "deactivate Grace",
        "unlock Linus",
        "revoke the reset link of Linus",
        "end 0 of Linus",
        "reactivate Edsger",
        "remove Grace",
    ];
    assert_eq!(done(&fake), expected);
}

#[tokio::test]
async fn refused_actions_show_their_reason_on_the_page() {
    let fake = FakeBackend::signed_in(Role::Admin).ready();
    let posts = [
        ("change_role", format!("id={}&role=viewer", own_id()), own_id(), "The last Admin keeps the role."),
        (
            "set_user_active",
            format!("id={}&active=false", own_id()),
            own_id(),
            "You cannot deactivate your own account.",
        ),
        ("remove_user", format!("id={}", grace()), grace(), "Deactivate the user first."),
        ("create_reset_link", format!("id={}", edsger()), edsger(), "Reactivate the user first."),
        ("revoke_reset_link", format!("id={}", grace()), grace(), "No reset link is open."),
    ];
    for (call, form, id, reason) in posts {
        let answer = post(&fake, &format!("/api/{call}"), &form).await;
        assert_eq!(answer.location, Some(page_of(id)), "{call}");
        get(&fake, &page_of(id)).await.assert_contains(&["1 problem needs attention", reason]);
        let script = post_as_script(&fake, &format!("/api/{call}"), &form).await;
        assert!(script.status.is_client_error() && script.location.is_none(), "{call}: {}", script.status);
    }
    assert!(done(&fake).is_empty());
}

#[tokio::test]
async fn unknown_user_is_not_found_and_other_roles_are_denied() {
    let fake = FakeBackend::signed_in(Role::Admin).ready();
    let unknown = UserId::from_parts(samples::at(0), [99; 10]);
    for path in [page_of(unknown), "/team/nobody".to_owned()] {
        let page = get(&fake, &path).await;
        assert_eq!(page.status, StatusCode::NOT_FOUND, "{path}");
        page.assert_contains(&["Not found", "This user does not exist or has been removed."]);
    }
    for role in [Role::Viewer, Role::Operator] {
        let fake = FakeBackend::signed_in(role).ready();
        for path in ["/team".to_owned(), page_of(grace())] {
            let page = get(&fake, &path).await;
            assert_eq!(page.status, StatusCode::FORBIDDEN, "{path} as {role:?}");
            page.assert_contains(&["Not allowed", "Only Admin may view the team", "ask an Admin to change your role"])
                .assert_lacks(&["grace@example.org"]);
        }
    }
    let signed_out = get(&FakeBackend::signed_out().ready(), &page_of(grace())).await;
    assert_eq!(signed_out.status, StatusCode::FOUND);
}

#[tokio::test]
async fn reset_link_sets_a_passphrase_without_a_session() {
    let fake = FakeBackend::signed_out().ready();
    let page = get(&fake, "/reset?token=reset").await;
    assert_eq!(page.status, StatusCode::OK);
    page.assert_contains(&[
        "Set a new passphrase",
        "value=\"grace@example.org\"",
        "autocomplete=\"username\"",
        " readonly",
    ]);
    page.assert_contains(&["autocomplete=\"new-password\"", "action=\"/api/accept_link\"", "ends all sessions"]);
    let short = post(&fake, "/api/accept_link", "token=reset&page=reset&passphrase=short").await;
    assert_eq!(short.location.as_deref(), Some("/reset?token=reset"));
    let again = get(&fake, "/reset?token=reset").await;
    again.assert_contains(&["Use at least 12 characters.", "aria-invalid=\"true\""]).assert_lacks(&["value=\"short\""]);
    let set = post(&fake, "/api/accept_link", "token=reset&page=reset&passphrase=seven+patient+lanterns").await;
    assert_eq!((set.status, set.location.as_deref()), (StatusCode::FOUND, Some("/")));
    assert_eq!(done(&fake), ["reset the passphrase of Grace"]);
}

#[tokio::test]
async fn invalid_reset_link_names_the_remedy() {
    let page = get(&FakeBackend::signed_out().ready(), "/reset?token=spent").await;
    assert_eq!(page.status, StatusCode::NOT_FOUND);
    page.assert_contains(&["This link no longer works", "Ask an Admin for a new link.", "href=\"/login\""]);
    page.assert_lacks(&["action=\"/api/accept_link\""]);
}
