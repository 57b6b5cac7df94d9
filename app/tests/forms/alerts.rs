//! The pages of alerts, rules and channels without a script, and the bell.

use axum::http::StatusCode;
use milvaion_api::permissions::Role;

use super::done;
use crate::common::{
    FakeBackend, PageResponse,
    fake::alerts::{alert_id, channel_id, rule_id},
    get, post, post_as_script, samples,
};

/// A valid form for a new rule, encoded as a browser encodes it. It also posts the fields of other conditions.
pub(super) const VALID_RULE_FORM: &str = "form%5Bid%5D=&form%5Bversion%5D=&form%5Bname%5D=Late+nights&form%5Bkind%5D=late_start\
                                &form%5Bcauses%5D%5Blost%5D=on&form%5Bcondition%5D%5Bpercent%5D=50\
                                &form%5Bcondition%5D%5Bseconds%5D=90&form%5Bjobs%5D=nightly%2C+weekly&form%5Btags%5D=\
                                &form%5Bseverity%5D=critical&form%5Bchannels%5D%5Bid-01a212f4-900b-7f30-8cf1-4782c14788e1%5D=Team&form%5BisEnabled%5D=on";

/// A valid form for a new channel.
pub(super) const VALID_CHANNEL_FORM: &str = "form%5Bid%5D=&form%5Bversion%5D=&form%5Bname%5D=Night+shift&form%5Bkind%5D=email\
                                   &form%5Btarget%5D%5Bto%5D=a%40example.org%0D%0Ab%40example.org\
                                   &form%5Btarget%5D%5Burl%5D=&form%5BisEnabled%5D=on";

/// Returns the rows of the first table, without the header.
fn rows(page: &PageResponse) -> Vec<&str> {
    let table = page.body.split_once("<table").and_then(|(_, rest)| rest.split_once("</table>"));
    let (table, _) = table.expect("the page has a table");
    table.split("<tr").skip(2).collect()
}

#[track_caller]
fn assert_row(row: &str, texts: &[&str]) {
    for text in texts {
        assert!(row.contains(text), "{text}: {row}");
    }
}

#[tokio::test]
async fn bell_counts_what_fires_on_every_page() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    for path in ["/", "/jobs", "/help", "/alerts"] {
        let page = get(&fake, path).await;
        page.assert_contains(&["aria-label=\"Alerts: 2 firing\"", "data-status=\"failed\""]);
    }
    fake.lock_alerts().resolve();
    let page = get(&fake, "/help").await;
    page.assert_contains(&["aria-label=\"Alerts: none firing\"", "hidden class=\"bell-count\""]);
    let outage = FakeBackend::signed_in(Role::Viewer).database_down().ready();
    get(&outage, "/help").await.assert_contains(&["aria-label=\"Alerts\""]).assert_lacks(&["none firing"]);
}

#[tokio::test]
async fn firing_alerts_are_listed_with_their_messages() {
    let page = get(&FakeBackend::signed_in(Role::Viewer).ready(), "/alerts").await;
    page.assert_contains(&["<title>Alerts · Milvaion</title>", "href=\"/alerts/rules\""]);
    page.assert_lacks(&["href=\"/alerts/channels\""]);
    let found = rows(&page);
    assert_eq!(found.len(), 2);
    assert_row(
        found[0],
        &[
            "Critical",
            "nightly &lt;b&gt;report&lt;/b&gt; failed for good",
            "status 500 instead of 200",
            &format!("href=\"/jobs/{}\"", samples::job_id()),
            &format!("href=\"/occurrences/{}\"", samples::occurrence_id(0)),
            "1,234",
            "2026-11-21 14:01:00 UTC",
            &format!("href=\"/alerts/rules/{}\"", rule_id(1)),
            "1 sent, 1 pending",
            "Pager: The receiver answered with the status 500.",
        ],
    );
    assert_row(found[1], &["Warning", "Queue of demo/mail waits", "–", "None"]);
}

#[tokio::test]
async fn filter_of_the_list_is_in_the_address() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let resolved = get(&fake, "/alerts?state=resolved").await;
    let found = rows(&resolved);
    assert_eq!(found.len(), 1);
    assert_row(found[0], &["Resolved", "An occurrence of the job completed."]);
    resolved.assert_contains(&[&format!("href=\"/alerts?state=resolved&amp;before={}\"", alert_id(3)), "rel=\"next\""]);
    let rule = get(&fake, &format!("/alerts?state=all&rule={}", rule_id(2))).await;
    assert_eq!(rows(&rule).len(), 1);
    rule.assert_contains(&[
        &format!("<option value=\"{}\" selected>Queue age<", rule_id(2)),
        &format!("href=\"/alerts?rule={}\"", rule_id(2)),
        "href=\"/alerts/channels\"",
    ]);
    let last = get(&fake, &format!("/alerts?before={}", alert_id(2))).await;
    last.assert_contains(&["No older alerts", "href=\"/alerts\""]);
    for query in ["state=loud", "rule=7", "before=x"] {
        let page = get(&fake, &format!("/alerts?{query}")).await;
        assert_eq!(page.status, StatusCode::BAD_REQUEST, "{query}");
        page.assert_contains(&["filter-error", "<h1"]).assert_lacks(&["<table"]);
    }
}

#[tokio::test]
async fn script_reads_the_same_data() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let firing = get(&fake, "/api/alerts?filter%5Bfiring%5D=true&filter%5Blimit%5D=0").await;
    firing.assert_contains(&["\"Failures\"", &alert_id(1).to_string()]).assert_lacks(&[&alert_id(3).to_string()]);
    let all = get(&fake, &format!("/api/alerts?filter%5Brule%5D={}&filter%5Blimit%5D=0", rule_id(1))).await;
    all.assert_contains(&[&alert_id(3).to_string()]).assert_lacks(&[&alert_id(2).to_string()]);
    for path in ["alert_rules", "alert_rule_page", &format!("alert_rule?id={}", rule_id(1)), "alert_channels"] {
        // The answer is the same for a browser without scripts, which is then sent back to its page.
        let answer = get(&fake, &format!("/api/{path}")).await;
        assert!(answer.status.as_u16() < 400, "{path}: {}", answer.body);
    }
}

#[tokio::test]
async fn empty_lists_explain_alerts_rules_and_channels() {
    let operator = FakeBackend::signed_in(Role::Operator).empty().ready();
    get(&operator, "/alerts").await.assert_contains(&["Nothing fires", "Set up alert rules", "href=\"/alerts/rules\""]);
    get(&operator, "/alerts?state=resolved").await.assert_contains(&["No resolved alerts"]);
    get(&operator, "/alerts?state=all").await.assert_contains(&["No alerts yet"]);
    get(&operator, "/alerts/rules").await.assert_contains(&["No alert rules", "Create the first rule"]);
    get(&operator, "/alerts/channels").await.assert_contains(&["No alert channels", "Ask an Admin to create one."]);
    let form = get(&operator, "/alerts/rules/new").await;
    form.assert_contains(&["There is no channel yet. Ask an Admin"]);
    let admin = FakeBackend::signed_in(Role::Admin).empty().ready();
    get(&admin, "/alerts/channels").await.assert_contains(&["Create the first channel"]);
    let viewer = FakeBackend::signed_in(Role::Viewer).empty().ready();
    get(&viewer, "/alerts/rules").await.assert_contains(&["No alert rules"]).assert_lacks(&["/alerts/rules/new"]);
}

#[tokio::test]
async fn rules_are_listed_with_condition_and_state() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let page = get(&fake, "/alerts/rules").await;
    page.assert_contains(&["href=\"/alerts/rules/new\""]);
    let found = rows(&page);
    assert_eq!(found.len(), 3);
    let link = format!("href=\"/alerts/rules/{}\"", rule_id(1));
    assert_row(
        found[0],
        &[&link, "An occurrence fails for good.", "Critical", "Every job", "Pager, Team", "Firing: 1"],
    );
    // A mute that has ended is no state.
    assert!(!found[0].contains("Muted"), "{}", found[0]);
    assert_row(found[1], &["Warning", "The installation", "Dashboard only", "Not firing", "Muted", "15:02:00 UTC"]);
    assert_row(found[2], &["nightly, weekly; only with the tag web", "Off"]);
}

#[tokio::test]
async fn viewer_reads_rules_and_sees_no_controls() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    get(&fake, "/alerts/rules").await.assert_lacks(&["/alerts/rules/new"]);
    let page = get(&fake, &format!("/alerts/rules/{}", rule_id(1))).await;
    page.assert_contains(&["An occurrence fails for good.", "Pager, Team", "Firing: 1", "Alerts of this rule"]);
    page.assert_contains(&["nightly &lt;b&gt;report&lt;/b&gt; failed"]);
    page.assert_lacks(&["/api/save_alert_rule", "/api/mute_alert_rule", "Delete…", "<select"]);
    for path in ["/alerts/rules/new", "/alerts/channels", "/alerts/channels/new"] {
        assert_eq!(get(&fake, path).await.status, StatusCode::FORBIDDEN, "{path}");
    }
    let operator = FakeBackend::signed_in(Role::Operator).ready();
    let page = get(&operator, "/alerts/channels").await;
    page.assert_contains(&["Team"])
        .assert_lacks(&["/alerts/channels/new", &format!("href=\"/alerts/channels/{}\"", channel_id(1))]);
}

#[tokio::test]
async fn rule_is_created_without_a_script() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let page = get(&fake, "/alerts/rules/new").await;
    for field in ["condition][percent", "condition][seconds", "condition][timesMedian", "jobs", "tags", "causes][lost"]
    {
        page.assert_contains(&[&format!("name=\"form[{field}]\"")]);
    }
    page.assert_contains(&[
        "value=\"occurrence_failed\" selected",
        "value=\"warning\" selected",
        &format!("name=\"form[channels][id-{}]\" value=\"Team\"", channel_id(1)),
        "name=\"form[isEnabled]\" value=\"on\" checked",
    ]);
    let answer = post(&fake, "/api/save_alert_rule", VALID_RULE_FORM).await;
    assert_eq!((answer.status, answer.location.as_deref()), (StatusCode::FOUND, Some("/alerts/rules")));
    let json = r#"{"name":"Late nights","condition":{"kind":"late_start","seconds":90},"jobs":["nightly","weekly"],"tags":[],"severity":"critical","channels":["Team"],"isEnabled":true}"#;
    assert_eq!(done(&fake), [format!("save alert rule new as {json}")]);
    get(&fake, "/alerts/rules").await.assert_contains(&["The alert rule Late nights is created."]);
}

#[tokio::test]
async fn refused_rule_keeps_its_input_and_marks_the_fields() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let wrong = VALID_RULE_FORM
        .replace("Late+nights", "")
        .replace("late_start", "failure_rate")
        .replace("%5D=50", "%5D=half")
        .replace("nightly%2C+weekly", &"x".repeat(101));
    let answer = post(&fake, "/api/save_alert_rule", &wrong).await;
    assert_eq!(answer.location.as_deref(), Some("/alerts/rules/new"));
    assert!(done(&fake).is_empty());
    let page = get(&fake, "/alerts/rules/new").await;
    page.assert_contains(&["problems need attention", "value=\"failure_rate\" selected", "value=\"half\""]);
    for (id, message) in [
        ("name", "Enter a name of 1 to 100 printable characters"),
        ("condition-percent", "Enter a percentage from 1 to 100"),
        ("condition-windowMinutes", "Enter a number of minutes from 1 to 1440"),
        ("jobs", "Enter texts of 1 to 100 printable characters"),
    ] {
        page.assert_contains(&[&format!("href=\"#f-{id}\""), &format!("id=\"f-{id}-error\""), message]);
    }
    page.assert_contains(&["name=\"form[causes][lost]\" value=\"on\" checked"]);
    get(&fake, "/alerts/rules/new").await.assert_lacks(&["href=\"#f-name\""]);
    let unknown = VALID_RULE_FORM.replace("late_start", "doom").replace("=critical", "=");
    post(&fake, "/api/save_alert_rule", &unknown).await;
    get(&fake, "/alerts/rules/new").await.assert_contains(&["Choose a severity"]);
}

#[tokio::test]
async fn edited_rule_shows_its_values_and_a_conflict() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let path = format!("/alerts/rules/{}", rule_id(3));
    let page = get(&fake, &path).await;
    page.assert_contains(&[
        "value=\"Slow\"",
        "value=\"long_run\" selected",
        "value=\"nightly, weekly\"",
        "value=\"web\"",
    ]);
    page.assert_contains(&["name=\"form[version]\" value=\"3\"", "by ada@example.org, version 3"]);
    page.assert_lacks(&["name=\"form[isEnabled]\" value=\"on\" checked", "action=\"/api/delete_alert_rule\""]);
    let channels = get(&fake, &format!("/alerts/rules/{}", rule_id(1))).await;
    channels.assert_contains(&[&format!("name=\"form[channels][id-{}]\" value=\"Pager\" checked", channel_id(2))]);
    let form = |version: u8| {
        let id = rule_id(3);
        let form = VALID_RULE_FORM.replace("form%5Bid%5D=&", &format!("form%5Bid%5D={id}&"));
        form.replace("form%5Bversion%5D=&", &format!("form%5Bversion%5D={version}&"))
    };
    let stale = post(&fake, "/api/save_alert_rule", &form(2)).await;
    assert_eq!(stale.location.as_deref(), Some(path.as_str()));
    let page = get(&fake, &path).await;
    page.assert_contains(&["This alert rule was changed in the meantime.", "value=\"Late nights\""]);
    let script = post_as_script(&fake, "/api/save_alert_rule", &form(2)).await;
    assert_eq!(script.status, StatusCode::CONFLICT);
    // The values of another rule are not shown.
    post(&fake, "/api/save_alert_rule", &form(2)).await;
    get(&fake, &format!("/alerts/rules/{}", rule_id(2))).await.assert_lacks(&["value=\"Late nights\""]);
    let saved = post(&fake, "/api/save_alert_rule", &form(3)).await;
    assert_eq!(saved.location.as_deref(), Some("/alerts/rules"));
    get(&fake, "/alerts/rules").await.assert_contains(&["The alert rule Late nights is saved."]);
    for path in ["/alerts/rules/nonsense", &format!("/alerts/rules/{}", rule_id(8))] {
        assert_eq!(get(&fake, path).await.status, StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn rule_is_muted_and_the_mute_ended() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let (id, path) = (rule_id(1), format!("/alerts/rules/{}", rule_id(1)));
    let page = get(&fake, &path).await;
    page.assert_contains(&[
        "action=\"/api/mute_alert_rule\"",
        "1 hour",
        "8 hours",
        "24 hours",
        "7 days",
        "Until a day",
    ]);
    let answer = post(&fake, "/api/mute_alert_rule", &format!("id={id}&length=8h&until=")).await;
    assert_eq!((answer.status, answer.location.as_deref()), (StatusCode::FOUND, Some(path.as_str())));
    let page = get(&fake, &path).await;
    page.assert_contains(&["The alert rule Failures is muted until 2026-11-21 22:02:30 UTC.", "End the mute"]);
    post(&fake, "/api/unmute_alert_rule", &format!("id={id}")).await;
    get(&fake, &path).await.assert_contains(&["The alert rule Failures sends messages again."]);
    post(&fake, "/api/mute_alert_rule", &format!("id={id}&length=until&until=2026-12-24")).await;
    assert_eq!(
        done(&fake),
        [
            "mute Failures until Some(2026-11-21T22:02:30Z)",
            "mute Failures until None",
            "mute Failures until Some(2026-12-24T00:00:00Z)",
        ]
    );
    get(&fake, "/help").await;
    for (form, message) in [
        ("length=until&until=", "Enter a day such as 2026-12-24"),
        ("length=until&until=2026-11-20", "Enter a time in the future"),
        ("length=&until=", "Choose how long the rule is muted"),
    ] {
        let answer = post(&fake, "/api/mute_alert_rule", &format!("id={id}&{form}")).await;
        assert_eq!(answer.location.as_deref(), Some(path.as_str()));
        get(&fake, &path).await.assert_contains(&["1 problem needs attention", message]);
    }
}

#[tokio::test]
async fn rule_is_deleted_after_a_confirmation() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let path = format!("/alerts/rules/{}", rule_id(2));
    get(&fake, &path).await.assert_contains(&[&format!("href=\"{path}?confirm=delete#delete\"")]);
    let page = get(&fake, &format!("{path}?confirm=delete")).await;
    page.assert_contains(&[
        "Delete rule Queue age?",
        "action=\"/api/delete_alert_rule\"",
        "name=\"version\" value=\"3\"",
    ]);
    let stale = post(&fake, "/api/delete_alert_rule", &format!("id={}&version=2", rule_id(2))).await;
    assert_eq!(stale.location.as_deref(), Some(path.as_str()));
    get(&fake, &path).await.assert_contains(&["This alert rule was changed in the meantime."]);
    let answer = post(&fake, "/api/delete_alert_rule", &format!("id={}&version=3", rule_id(2))).await;
    assert_eq!(answer.location.as_deref(), Some("/alerts/rules"));
    assert_eq!(done(&fake), ["delete alert rule Queue age"]);
    get(&fake, "/alerts/rules").await.assert_contains(&["The alert rule Queue age is deleted."]);
}

#[tokio::test]
async fn channels_are_listed_without_secrets() {
    let fake = FakeBackend::signed_in(Role::Admin).ready();
    let page = get(&fake, "/alerts/channels").await;
    page.assert_contains(&["href=\"/alerts/channels/new\""]);
    let found = rows(&page);
    assert_eq!(found.len(), 3);
    let link = format!("href=\"/alerts/channels/{}\"", channel_id(1));
    assert_row(found[0], &[&link, "E-mail", "a@example.org, b@example.org", "1 rule", "2026-11-21 14:01:10 UTC"]);
    assert_row(
        found[1],
        &["Webhook", "https://example.org/hook, signed with PAGER", "Not used yet", "the status 500."],
    );
    assert_row(found[2], &["Slack", "The address in the secret SLACK_OPS", "No rule", "Off"]);
}

#[tokio::test]
async fn channel_is_created_and_tested_without_a_script() {
    let fake = FakeBackend::signed_in(Role::Admin).ready();
    let page = get(&fake, "/alerts/channels/new").await;
    page.assert_contains(&[
        "Set the environment variable ALERT_SECRET_NAME on every server",
        "name=\"form[target][to]\"",
    ]);
    page.assert_contains(&["name=\"form[target][url]\"", "name=\"form[target][urlSecret]\""]);
    page.assert_lacks(&["Send a test", "Delete…"]);
    let answer = post(&fake, "/api/save_alert_channel", VALID_CHANNEL_FORM).await;
    let path = format!("/alerts/channels/{}", channel_id(2));
    assert_eq!((answer.status, answer.location.as_deref()), (StatusCode::FOUND, Some(path.as_str())));
    get(&fake, &path).await.assert_contains(&["The alert channel is created. Send a test to check it."]);
    let answer = post(&fake, "/api/test_alert_channel", &format!("id={}", channel_id(2))).await;
    assert_eq!(answer.location.as_deref(), Some(path.as_str()));
    get(&fake, &path).await.assert_contains(&["The receiver accepted the test message."]);
    fake.lock_alerts().test_error = Some("The name example.org has no address. Check the URL.".into());
    post(&fake, "/api/test_alert_channel", &format!("id={}", channel_id(2))).await;
    let page = get(&fake, &path).await;
    page.assert_contains(&["1 problem needs attention", "not accepted. The name example.org has no address."]);
    let script = post_as_script(&fake, "/api/test_alert_channel", &format!("id={}", channel_id(2))).await;
    assert_eq!(script.status, StatusCode::OK, "the call itself succeeded");
    let json =
        r#"{"name":"Night shift","target":{"kind":"email","to":["a@example.org","b@example.org"]},"isEnabled":true}"#;
    let tested = "test alert channel Pager".to_owned();
    assert_eq!(done(&fake), [format!("save alert channel {json}"), tested.clone(), tested.clone(), tested]);
}

#[tokio::test]
async fn refused_channel_keeps_its_input() {
    let fake = FakeBackend::signed_in(Role::Admin).ready();
    let wrong = VALID_CHANNEL_FORM.replace("Night+shift", "").replace("b%40example.org", "nobody");
    let answer = post(&fake, "/api/save_alert_channel", &wrong).await;
    assert_eq!(answer.location.as_deref(), Some("/alerts/channels/new"));
    let page = get(&fake, "/alerts/channels/new").await;
    page.assert_contains(&["2 problems need attention", "href=\"#f-name\"", "href=\"#f-target-to\""]);
    page.assert_contains(&["Enter 1 to 20 e-mail addresses", "a@example.org\r\nnobody</textarea>"]);
    let slack = format!("{}&form%5Btarget%5D%5BurlSecret%5D=UNSET", VALID_CHANNEL_FORM.replace("=email", "=slack"));
    post(&fake, "/api/save_alert_channel", &slack).await;
    let page = get(&fake, "/alerts/channels/new").await;
    page.assert_contains(&["href=\"#f-target-urlSecret\"", "This server has no secret UNSET", "value=\"UNSET\""]);
    assert!(done(&fake).is_empty());
}

#[tokio::test]
async fn channel_that_rules_use_is_not_deleted() {
    let fake = FakeBackend::signed_in(Role::Admin).ready();
    let path = |number| format!("/alerts/channels/{}", channel_id(number));
    let page = get(&fake, &format!("{}?confirm=delete", path(1))).await;
    page.assert_contains(&["Delete channel Team?", "A channel that rules use cannot be deleted"]);
    let answer = post(&fake, "/api/delete_alert_channel", &format!("id={}&version=5", channel_id(1))).await;
    assert_eq!(answer.location.as_deref(), Some(path(1).as_str()));
    get(&fake, &path(1)).await.assert_contains(&["One alert rule still uses Team.", "value=\"Team\""]);
    let answer = post(&fake, "/api/delete_alert_channel", &format!("id={}&version=5", channel_id(3))).await;
    assert_eq!(answer.location.as_deref(), Some("/alerts/channels"));
    get(&fake, "/alerts/channels").await.assert_contains(&["The alert channel Chat is deleted."]);
    assert_eq!(done(&fake), ["delete alert channel Chat"]);
}
