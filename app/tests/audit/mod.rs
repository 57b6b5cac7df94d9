//! The audit page and the slices on other pages, as the server sends them.

use std::sync::Arc;

use axum::{
    body::Body,
    http::{Request, StatusCode, header},
};
use milvaion_api::permissions::Role;

use crate::{
    CSP_VIOLATIONS,
    common::{FakeBackend, PageResponse, get, samples, send},
};

/// Returns the HTML of the row with this action.
fn row<'a>(body: &'a str, action: &str) -> &'a str {
    let start = body.find(&format!("data-action=\"{action}\"")).expect("the page has a row with this action");
    let rest = &body[start..];
    &rest[..rest.find("</tr>").expect("the row ends")]
}

/// Calls a server function as the script of a page does.
async fn call(fake: Arc<FakeBackend>, path: &str) -> PageResponse {
    let request = Request::builder().uri(path).header(header::ACCEPT, "application/json").body(Body::empty());
    send(fake, request.expect("a valid request")).await
}

/// Returns the text of HTML without tags and comments.
fn text(html: &str) -> String {
    let mut text = String::new();
    for part in html.split('<') {
        text.push_str(part.split_once('>').map_or("", |(_, text)| text));
    }
    text
}

#[track_caller]
fn assert_row(body: &str, action: &str, words: &[&str], links: &[&str]) {
    let row = row(body, action);
    let shown = text(row);
    for word in words {
        assert!(shown.contains(word), "{action} does not show {word:?}: {shown}");
    }
    for link in links {
        assert!(row.contains(&format!("href=\"{link}\"")), "{action} does not link to {link:?}: {row}");
    }
}

#[tokio::test]
async fn rows_state_actor_action_object_result_and_reason() {
    let fake = FakeBackend::signed_in(Role::Admin).ready();
    let page = get(&fake, "/audit").await;
    assert_eq!(page.status, StatusCode::OK);
    page.assert_contains(&["<title>Audit log · Milvaion</title>", "Audit log<!></h1>"]).assert_lacks(&CSP_VIOLATIONS);
    let job = format!("/jobs/{}", samples::job_id());
    let pause = ["ada@example.org", "Paused the job", "nightly report", "Done", "the disk is full", "192.0.2.7"];
    assert_row(&page.body, "job.pause", &pause, &["/audit?who=ada%40example.org", &job]);
    let tried = ["vera@example.org", "Tried to run jobs", "Refused"];
    assert_row(&page.body, "refuse", &tried, &[&format!("/team/{}", samples::me(Role::Admin).id)]);
    let run = format!("/occurrences/{}", samples::occurrence_id(0));
    assert_row(&page.body, "job.run", &["Ran the job", "2 new values"], &[&job, &run]);

    let second = get(&fake, &format!("/audit?before={}-40", samples::at(40).timestamp_micros())).await;
    assert_row(
        &second.body,
        "occurrence.cancel",
        &["Cancelled the run", "oscar@example.org", "1 changed field"],
        &[&run],
    );
    let calendar = format!("/calendars/{}/edit", samples::calendar_id());
    assert_row(&second.body, "calendar.delete", &["Deleted the calendar", "Holidays", "1 removed value"], &[&calendar]);
    assert_row(&second.body, "galaxy.align", &["system", "galaxy.align", "planet:9"], &["/audit?who=system"]);
}

#[tokio::test]
async fn counted_refusals_state_number_end_and_addresses() {
    let page = get(&FakeBackend::signed_in(Role::Admin).ready(), "/audit").await;
    let end = milvaion_app::format::utc(samples::at(120));
    let words =
        ["unknown", "Failed to sign in", "Unknown account", "Refused", "×37 until ", "and other addresses", &end];
    assert_row(&page.body, "sign-in.refuse", &words, &["/audit?who=unknown"]);
    assert!(!row(&page.body, "job.pause").contains("until"));
}

#[tokio::test]
async fn change_lists_only_the_fields_that_differ() {
    let page = get(&FakeBackend::signed_in(Role::Admin).ready(), "/audit").await;
    let update = row(&page.body, "job.update");
    for field in ["displayName", "rules.maxRetries", "jobData"] {
        assert!(update.contains(&format!("data-field=\"{field}\"")), "{field}: {update}");
    }
    assert!(!update.contains("overlap"), "{update}");
    let shown = text(update);
    for word in ["3 changed fields", "before", "after", "report", "nightly report", "long long…", "the end"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
}

#[tokio::test]
async fn hostile_texts_are_escaped() {
    let page = get(&FakeBackend::signed_in(Role::Admin).ready(), "/audit").await;
    page.assert_contains(&[
        "&lt;script&gt;alert(1)",
        "&lt;b&gt;bold",
        "&lt;i&gt;1",
        "&lt;u&gt;field",
        "&lt;s&gt;value",
    ]);
    page.assert_lacks(&["<script>alert(1)", "<b>bold", "<img src=x", "<i>1", "<u>field", "<s>value", "<em>teleport"]);
}

#[tokio::test]
async fn pager_and_exports_carry_the_filter() {
    let fake = FakeBackend::signed_in(Role::Admin).ready();
    let first = get(&fake, "/audit?since=2020-01-01").await;
    let cursor = format!("{}-40", samples::at(40).timestamp_micros());
    first.assert_contains(&[
        &format!("href=\"/audit?since=2020-01-01&amp;before={cursor}\""),
        "href=\"/export/audit.csv?since=2020-01-01\" rel=\"external\"",
        "href=\"/export/audit.ndjson?since=2020-01-01\" rel=\"external\"",
        "6 entries",
    ]);
    first.assert_lacks(&["Newest</a>", "rel=\"prev\""]);
    let second = get(&fake, &format!("/audit?since=2020-01-01&before={cursor}")).await;
    second.assert_contains(&[
        "rel=\"prev\"",
        "href=\"/audit?since=2020-01-01\"",
        "/export/audit.csv?since=2020-01-01\"",
    ]);
    second.assert_contains(&["4 entries"]).assert_lacks(&["rel=\"next\""]);
}

#[tokio::test]
async fn filters_narrow_the_list_and_fill_the_form() {
    let fake = FakeBackend::signed_in(Role::Admin).ready();
    let page = get(&fake, "/audit?who=ada%40example.org&action=job.&result=done").await;
    page.assert_contains(&["data-action=\"job.pause\"", "value=\"ada@example.org\"", "Clear filters", "3 entries"]);
    page.assert_lacks(&["data-action=\"sign-in\"", "data-action=\"refuse\""]);
    for value in ["job.", "done"] {
        let option = page.body.split("<option").find(|option| option.contains(&format!("value=\"{value}\"")));
        assert!(option.is_some_and(|option| option.contains(" selected")), "{value} is not chosen");
    }
    // An action that this version does not know stays a choice.
    let unknown = get(&fake, "/audit?action=galaxy.align").await;
    unknown.assert_contains(&["1 entry", "value=\"galaxy.align\""]);
    let object = format!("job%3A{}", samples::job_id());
    get(&fake, &format!("/audit?object={object}")).await.assert_contains(&["4 entries"]);
    get(&fake, "/audit?until=2020-01-01").await.assert_contains(&[
        "No entry matches this filter",
        "Show all entries",
        "0 entries",
    ]);
    get(&fake, "/audit?before=1-1").await.assert_contains(&["No older entries", "Show the newest", "0 entries"]);
    let empty = FakeBackend::signed_in(Role::Admin).empty().ready();
    get(&empty, "/audit").await.assert_contains(&["No entries yet", "0 entries"]);
}

#[tokio::test]
async fn invalid_filter_lists_nothing_and_names_its_parameter() {
    let fake = FakeBackend::signed_in(Role::Admin).ready();
    let cases = [
        ("action=Job%20pause", "action"),
        ("object=job", "object"),
        ("result=maybe", "result"),
        ("since=yesterday", "since"),
        ("since=2026-11-21&until=2026-11-20", "until"),
        ("before=x", "before"),
    ];
    for (query, parameter) in cases {
        let page = get(&fake, &format!("/audit?who=ada%40example.org&{query}")).await;
        assert_eq!(page.status, StatusCode::BAD_REQUEST, "{query}");
        page.assert_contains(&[&format!("data-parameter=\"{parameter}\""), "href=\"/audit?who=ada%40example.org"]);
        page.assert_lacks(&["data-action=", "/export/audit"]);
    }
}

#[tokio::test]
async fn only_admins_open_the_audit_page() {
    for role in [Role::Viewer, Role::Operator] {
        let page = get(&FakeBackend::signed_in(role).ready(), "/audit").await;
        assert_eq!(page.status, StatusCode::FORBIDDEN, "{role:?}");
        page.assert_contains(&["Only Admin may view the audit log"]).assert_lacks(&["data-action="]);
    }
    let signed_out = get(&FakeBackend::signed_out().ready(), "/audit?result=done").await;
    assert_eq!(signed_out.location.as_deref(), Some("/login?next=/audit%3Fresult%3Ddone"));
}

#[tokio::test]
async fn slices_follow_the_role() {
    let job = format!("/jobs/{}?tab=history", samples::job_id());
    let run = format!("/occurrences/{}", samples::occurrence_id(0));
    for (path, action, key) in [
        (&job, "job.pause", format!("job:{}", samples::job_id())),
        (&run, "occurrence.cancel", format!("occurrence:{}", samples::occurrence_id(0))),
    ] {
        let viewer = FakeBackend::signed_in(Role::Viewer).ready();
        get(&viewer, path).await.assert_lacks(&["audit-slice", "data-action="]);
        assert!(viewer.reads.lock().expect("the mutex is not poisoned").is_empty(), "{path}");

        let operator = FakeBackend::signed_in(Role::Operator).ready();
        let page = get(&operator, path).await;
        page.assert_contains(&["id=\"audit-slice\"", &format!("data-action=\"{action}\"")]);
        page.assert_lacks(&["192.0.2.7", "data-label=\"Address\"", "/audit?", "data-label=\"Object\""]);
        let reads = operator.reads.lock().expect("the mutex is not poisoned").join(" ");
        assert_eq!(reads, key, "{path} reads it once");

        let admin = FakeBackend::signed_in(Role::Admin).ready();
        let object = key.replace(':', "%3A");
        get(&admin, path).await.assert_contains(&["192.0.2.7", &format!("href=\"/audit?object={object}\"")]);
    }
    let operator = FakeBackend::signed_in(Role::Operator).ready();
    get(&operator, &format!("/jobs/{}", samples::job_id())).await.assert_lacks(&["audit-slice"]);
    let empty = FakeBackend::signed_in(Role::Operator).empty().ready();
    get(&empty, &run).await.assert_contains(&["No action is recorded here."]);
}

#[tokio::test]
async fn calls_check_role_and_object() {
    let key = format!("job%3A{}", samples::job_id());
    let reads = [
        ("/api/audit".to_owned(), Role::Admin),
        (format!("/api/object_audit?object={key}"), Role::Operator),
        (format!("/api/object_audit?object={key}&before=1795000123456789-42"), Role::Operator),
        ("/api/own_audit".to_owned(), Role::Viewer),
        ("/api/own_audit?before=1795000123456789-42".to_owned(), Role::Viewer),
    ];
    for (path, needed) in reads {
        for role in Role::ALL {
            let answer = call(FakeBackend::signed_in(role).ready(), &path).await;
            let expected = if role < needed { StatusCode::FORBIDDEN } else { StatusCode::OK };
            assert_eq!(answer.status, expected, "{path} as {role:?}: {}", answer.body);
        }
    }
    let operator = FakeBackend::signed_in(Role::Operator).ready();
    let wrong = call(operator, "/api/object_audit?object=planet%3A9").await;
    assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY);
    wrong.assert_contains(&["Use job:, occurrence: or user: with an id."]);
}
