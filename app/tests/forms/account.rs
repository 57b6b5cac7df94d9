//! The account page and its forms.

use axum::http::StatusCode;
use milvaion_api::permissions::Role;

use super::done;
use crate::common::{FakeBackend, PageResponse, get, get_with_cookies, post, post_as_script, samples};

/// Every preference with another value than the default, encoded as a browser encodes it.
const PREFERENCES: &str = "form%5Btheme%5D=dark&form%5Bzone_mode%5D=chosen&form%5Bzone%5D=Asia%2FKathmandu\
                           &form%5Btime_style%5D=exact&form%5Bclock%5D=12";

/// Returns the part of the page from the section with this id on.
fn section<'a>(page: &'a PageResponse, id: &str) -> &'a str {
    let (_, rest) = page.body.split_once(&format!("id=\"{id}\"")).expect("the section exists");
    rest
}

#[tokio::test]
async fn account_page_has_every_section_for_every_role() {
    for (role, hint) in [
        (Role::Viewer, "An Admin can change your role."),
        (Role::Operator, "An Admin can change your role."),
        (Role::Admin, "Another Admin can change your role."),
    ] {
        let page = get(&FakeBackend::signed_in(role).ready(), "/account").await;
        assert_eq!(page.status, StatusCode::OK, "{role:?}");
        for id in ["profile", "passphrase", "sessions", "security-log", "preferences"] {
            page.assert_contains(&[&format!("href=\"#{id}\""), &format!("id=\"{id}\"")]);
        }
        page.assert_contains(&[hint, role.label(), "ada@example.org", "value=\"Ada\""]);
    }
}

#[tokio::test]
async fn signed_out_user_has_no_account_page() {
    let fake = FakeBackend::signed_out().ready();
    assert_eq!(get(&fake, "/account").await.location.as_deref(), Some("/login?next=/account"));
    for (call, form) in
        [("rename_account", "name=Eve"), ("change_passphrase", ""), ("end_own_sessions", ""), ("save_preferences", "")]
    {
        let answer = post_as_script(&fake, &format!("/api/{call}"), form).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{call}");
        assert_eq!(answer.cookies, Vec::<String>::new(), "{call}");
    }
    assert_eq!(done(&fake), Vec::<String>::new());
}

#[tokio::test]
async fn name_is_changed_by_a_plain_form() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    let answer = post(&fake, "/api/rename_account", "name=Ada+Lovelace").await;
    assert_eq!((answer.status, answer.location.as_deref()), (StatusCode::FOUND, Some("/account#profile")));
    assert_eq!(done(&fake), ["rename Ada Lovelace"]);
    get(&fake, "/account").await.assert_contains(&["Your name is changed."]);

    post(&fake, "/api/rename_account", "name=+").await;
    let page = get(&fake, "/account").await;
    page.assert_contains(&["Enter a name.", "id=\"f-name-error\""]);
    assert_eq!(page.body.matches("aria-invalid=\"true\"").count(), 1, "only the name is invalid");
}

#[tokio::test]
async fn refused_passphrase_is_reported_at_its_field() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let cases = [
        ("current=not-mine-at-all&passphrase=velvet+otter+climbs", "current", "The current passphrase is wrong."),
        ("current=correct+horse+battery&passphrase=short", "passphrase", "Use at least 12 characters."),
        (
            "current=correct+horse+battery&passphrase=password-password",
            "passphrase",
            "This passphrase is easy to guess.",
        ),
    ];
    for (form, field, message) in cases {
        let answer = post(&fake, "/api/change_passphrase", form).await;
        assert_eq!(answer.location.as_deref(), Some("/account#passphrase"));
        let page = get(&fake, "/account").await;
        page.assert_contains(&[message, &format!("href=\"#f-{field}\"")]);
        page.assert_lacks(&["not-mine-at-all", "password-password", "value=\"short\"", "correct horse battery"]);
        let (_, control) = page.body.split_once(&format!("id=\"f-{field}\"")).expect("the field exists");
        let (control, _) = control.split_once('>').expect("the control ends");
        assert!(control.contains("aria-invalid=\"true\""), "{field}: {control}");
        assert_eq!(page.body.matches("aria-invalid=\"true\"").count(), 1, "{field}");
    }
    assert_eq!(done(&fake), Vec::<String>::new());
}

#[tokio::test]
async fn passphrase_is_changed_by_a_plain_form() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    let form = "username=ada%40example.org&current=correct+horse+battery&passphrase=velvet+otter+climbs";
    let answer = post(&fake, "/api/change_passphrase", form).await;
    assert_eq!((answer.status, answer.location.as_deref()), (StatusCode::FOUND, Some("/account#passphrase")));
    assert_eq!(done(&fake), ["change passphrase"]);
    let page = get(&fake, "/account").await;
    page.assert_contains(&["Passphrase changed. All other sessions were ended."]);
    page.assert_contains(&[
        "autocomplete=\"current-password\"",
        "autocomplete=\"new-password\"",
        "name=\"username\"",
        "At least 12 characters",
    ]);
}

#[tokio::test]
async fn sessions_are_listed_and_ended_without_a_script() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    let page = get(&fake, "/account").await;
    let list = section(&page, "sessions");
    assert_eq!(list.matches("This session").count(), 1);
    for words in ["Firefox on Linux", "192.0.2.7", "Chrome on &lt;b&gt;Windows&lt;/b&gt;", "Unknown device"] {
        assert!(list.contains(words), "the list lacks {words}: {list}");
    }
    let other = samples::session_id(2);
    let link = format!("/account?end={other}#end");
    page.assert_contains(&[&link, "/account?end=others#end"]).assert_lacks(&["action=\"/api/end_own_sessions\""]);

    let asks = get(&fake, &format!("/account?end={other}")).await;
    asks.assert_contains(&["action=\"/api/end_own_sessions\"", &format!("value=\"{other}\""), "at 198.51.100.3?"]);
    // The current session is ended by signing out.
    let own = format!("/account?end={}", samples::session_id(1));
    for path in ["/account?end=nonsense", own.as_str()] {
        get(&fake, path).await.assert_lacks(&["action=\"/api/end_own_sessions\""]);
    }

    let answer = post(&fake, "/api/end_own_sessions", &format!("session={other}")).await;
    assert_eq!((answer.status, answer.location.as_deref()), (StatusCode::FOUND, Some("/account#sessions")));
    get(&fake, "/account").await.assert_contains(&["The session is ended."]);
    post(&fake, "/api/end_own_sessions", "").await;
    get(&fake, "/account").await.assert_contains(&["2 other sessions are ended."]);
    assert_eq!(done(&fake), ["end Chrome on <b>Windows</b>", "end Chrome on <b>Windows</b>, Unknown device"]);

    post(&fake, "/api/end_own_sessions", &format!("session={}", samples::session_id(9))).await;
    let page = get(&fake, "/account").await;
    assert!(section(&page, "sessions").contains("This session has already ended."));
}

#[tokio::test]
async fn preferences_are_stored_in_cookies_for_a_year() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    let answer = post(&fake, "/api/save_preferences", PREFERENCES).await;
    assert_eq!((answer.status, answer.location.as_deref()), (StatusCode::FOUND, Some("/account#preferences")));
    let rest = "Path=/; Max-Age=31536000; SameSite=Lax";
    let expected = ["theme=dark", "zone_mode=local", "zone_chosen=Asia/Kathmandu", "time_style=exact", "clock=12"];
    let expected: Vec<_> = expected.iter().chain(&["shortcuts=off"]).map(|pair| format!("{pair}; {rest}")).collect();
    assert_eq!(answer.cookies, expected);
    assert_eq!(post_as_script(&fake, "/api/save_preferences", PREFERENCES).await.cookies, expected);
    get(&fake, "/account").await.assert_contains(&["The preferences are saved."]);

    let pairs: Vec<_> = expected.iter().filter_map(|cookie| cookie.split_once(';')).map(|(pair, _)| pair).collect();
    let page = get_with_cookies(&fake, "/account", &pairs.join("; ")).await;
    assert_eq!(checked(&page), ["dark", "chosen", "exact", "12"], "the shortcuts are off");
    page.assert_contains(&["data-theme=\"dark\"", "data-zone=\"Asia/Kathmandu\"", "value=\"Asia/Kathmandu\""]);
    assert_eq!(checked(&get(&fake, "/account").await), ["system", "local", "relative", "24", "on"]);
}

#[tokio::test]
async fn browser_zone_replaces_the_chosen_one() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    let answer = post(&fake, "/api/save_preferences", &PREFERENCES.replace("chosen", "local")).await;
    assert!(answer.cookies.contains(&"zone_chosen=; Path=/; Max-Age=0; SameSite=Lax".to_owned()), "{answer:?}");
    // The button of the top bar returns from UTC to the chosen zone.
    let answer = post(&fake, "/api/save_preferences", &PREFERENCES.replace("chosen", "utc")).await;
    assert!(answer.cookies[1].starts_with("zone_mode=utc;"), "{answer:?}");
    assert!(answer.cookies[2].starts_with("zone_chosen=Asia/Kathmandu;"), "{answer:?}");
}

#[tokio::test]
async fn invalid_preferences_are_refused_by_field() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    let cases = [
        ("=dark", "=pink", "theme", "Choose one of system, light, dark."),
        ("=chosen", "=mars", "zone_mode", "Choose one of local, utc, chosen."),
        ("Asia%2FKathmandu", "Nowhere%2FTown%3B+Path", "zone", "is not a time zone"),
        ("Asia%2FKathmandu", "", "zone", "Enter an IANA name such as Europe/Warsaw."),
        ("=exact", "=vague", "time_style", "Choose one of relative, exact."),
        ("=12", "=13", "clock", "Choose one of 24, 12."),
        ("=12", "=12&form%5Bshortcuts%5D=maybe", "shortcuts", "Must be on or empty."),
    ];
    for (valid, invalid, field, message) in cases {
        let answer = post(&fake, "/api/save_preferences", &PREFERENCES.replace(valid, invalid)).await;
        assert_eq!(answer.location.as_deref(), Some("/account#preferences"), "{field}");
        assert_eq!(answer.cookies, Vec::<String>::new(), "{field}");
        let page = get(&fake, "/account").await;
        page.assert_contains(&["1 problem needs attention", message]);
        page.assert_contains(&[&format!("href=\"#f-{field}\""), &format!("id=\"f-{field}-error\"")]);
        page.assert_lacks(&["The preferences are saved."]);
    }
}

#[tokio::test]
async fn failed_sign_out_is_reported() {
    let fake = FakeBackend::signed_in(Role::Viewer).with_failing_sign_out().ready();
    let answer = post(&fake, "/api/sign_out", "").await;
    assert_eq!((answer.status, answer.location.as_deref()), (StatusCode::FOUND, Some("/")));
    get(&fake, "/").await.assert_contains(&["data-kind=\"warn\"", "The session cannot be ended."]);
}

#[tokio::test]
async fn sign_in_page_explains_a_forgotten_passphrase() {
    let page = get(&FakeBackend::signed_out().ready(), "/login").await;
    page.assert_contains(&["An Admin can create a link", "milvaion admin reset-passphrase &lt;e-mail&gt;"]);
    page.assert_lacks(&["cannot be reset"]);
}

/// Returns the values of the checked boxes and radio buttons of the preferences.
fn checked(page: &PageResponse) -> Vec<&str> {
    let controls = section(page, "preferences").split("<input ").skip(1).filter_map(|control| control.split_once('>'));
    controls
        .map(|(control, _)| control)
        .filter(|control| control.contains(" checked"))
        .filter_map(|control| control.split_once("value=\"")?.1.split_once('"'))
        .map(|(value, _)| value)
        .collect()
}
