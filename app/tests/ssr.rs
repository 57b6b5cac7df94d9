//! Every page as the server sends it: complete, with the right status, readable without a script.

mod audit;
mod common;
mod forms;

use axum::http::StatusCode;
use common::{FakeBackend, get, get_with_cookies, samples};
use milvaion_api::permissions::Role;
use milvaion_app::lazy_pages::{PAGES, Page};
use milvaion_protocol::status::OccurrenceStatus;

/// Markup that would violate the content security policy.
const CSP_VIOLATIONS: [&str; 3] = [" style=", " onclick=", "<style"];

#[tokio::test]
async fn every_page_is_complete_and_has_one_heading() {
    let fake = FakeBackend::signed_in(Role::Admin).ready();
    let job = samples::job_id();
    let occurrence = samples::occurrence_id(0);
    let pages = [
        ("/".to_owned(), "Overview"),
        ("/jobs".to_owned(), "Jobs"),
        ("/jobs/new".to_owned(), "New job"),
        (format!("/jobs/{job}"), "nightly report"),
        (format!("/jobs/{job}/edit"), "nightly report"),
        ("/occurrences".to_owned(), "Occurrences"),
        (format!("/occurrences/{occurrence}"), "nightly report"),
        ("/calendars".to_owned(), "Calendars"),
        ("/calendars/new".to_owned(), "New calendar"),
        (format!("/calendars/{}/edit", samples::calendar_id()), "Edit Holidays"),
        ("/failed".to_owned(), "order &lt;b&gt;7&lt;/b&gt; not found"),
        ("/failed?tab=dead-letters".to_owned(), "Dead letters"),
        (format!("/failed/{}", samples::group().fingerprint), "12 open of 1,234 failures"),
        (format!("/failed/{occurrence}"), "Retry this failure"),
        (format!("/jobs/{job}?tab=history"), "View changes"),
        (format!("/jobs/{job}?tab=history&from=2&to=1"), "From version 2 (current) to version 1"),
        ("/alerts".to_owned(), "Alerts"),
        ("/alerts?state=all".to_owned(), "Resolved"),
        ("/alerts/rules".to_owned(), "Alert rules"),
        ("/alerts/rules/new".to_owned(), "New alert rule"),
        (format!("/alerts/rules/{}", common::fake::alerts::rule_id(1)), "Alerts of this rule"),
        ("/alerts/channels".to_owned(), "Alert channels"),
        ("/alerts/channels/new".to_owned(), "New alert channel"),
        (format!("/alerts/channels/{}", common::fake::alerts::channel_id(1)), "Send a test"),
        ("/workers".to_owned(), "Workers"),
        ("/singleton-loops".to_owned(), "Singleton loops"),
        ("/team".to_owned(), "Team"),
        (format!("/team/{}", common::fake::team::grace()), "Chrome on Windows"),
        ("/audit".to_owned(), "Audit log"),
        ("/account".to_owned(), "Account"),
        ("/tokens".to_owned(), "API tokens"),
        ("/menu".to_owned(), "Menu"),
        ("/help".to_owned(), "Help"),
    ];
    let opened: Vec<_> = pages.iter().filter_map(|(path, _)| Page::of(path)).map(|page| page.path).collect();
    for page in PAGES.iter().filter(|page| !page.is_door()) {
        assert!(opened.contains(&page.path), "this test does not open {}", page.path);
    }
    for (path, heading) in pages {
        let page = get(&fake, &path).await;
        assert_eq!(page.status, StatusCode::OK, "{path}");
        page.assert_contains(&[heading, " · Milvaion</title>", "Skip to content"]).assert_lacks(&CSP_VIOLATIONS);
        assert_eq!(page.body.matches("<h1").count(), 1, "{path} must have exactly one h1");
        page.assert_lacks(&["Loading…"]);
    }
}

#[tokio::test]
async fn signed_out_reader_is_redirected_to_sign_in() {
    let fake = FakeBackend::signed_out().ready();
    let overview = get(&fake, "/").await;
    assert_eq!((overview.status, overview.location.as_deref()), (StatusCode::FOUND, Some("/login")));
    let list = get(&fake, "/occurrences?status=failed").await;
    assert_eq!(list.status, StatusCode::FOUND);
    assert_eq!(list.location.as_deref(), Some("/login?next=/occurrences%3Fstatus%3Dfailed"));
    assert_eq!(get(&fake, "/login").await.status, StatusCode::OK);
}

#[tokio::test]
async fn missing_and_forbidden_pages_have_their_status() {
    let viewer = FakeBackend::signed_in(Role::Viewer).ready();
    let lost = get(&viewer, &format!("/occurrences/{}", samples::occurrence_id(9))).await;
    assert_eq!(lost.status, StatusCode::NOT_FOUND);
    lost.assert_contains(&["kept for 30 days", "<h1"]);
    assert_eq!(get(&viewer, "/occurrences/nonsense").await.status, StatusCode::NOT_FOUND);
    let team = get(&viewer, "/team").await;
    assert_eq!(team.status, StatusCode::FORBIDDEN);
    team.assert_contains(&["Only Admin may view the team"]);
}

#[tokio::test]
async fn part_that_is_down_is_named_on_every_page() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    for path in ["/", "/jobs", "/occurrences", "/workers", "/help"] {
        let page = get(&fake, path).await;
        page.assert_contains(&[
            "data-part=\"RabbitMQ\"",
            "#part-rabbitmq\">RabbitMQ<",
            " does not respond.",
            "First noticed at",
        ]);
        page.assert_contains(&["2026-11-21 14:02:20 UTC"]).assert_lacks(&["data-part=\"PostgreSQL\""]);
    }
}

#[tokio::test]
async fn outage_of_postgresql_is_explained_on_every_page() {
    let fake = FakeBackend::signed_in(Role::Admin).database_down().ready();
    for path in ["/", "/jobs", "/occurrences?status=failed", "/failed", "/workers", "/team"] {
        let page = get(&fake, path).await;
        assert_eq!(page.status, StatusCode::SERVICE_UNAVAILABLE, "{path}");
        assert_eq!(page.retry_after.as_deref(), Some("5"), "{path}");
        page.assert_contains(&["<nav", "data-part=\"PostgreSQL\"", "First noticed at", "2026-11-21 14:02:20 UTC"]);
        page.assert_contains(&["Service unavailable · Milvaion</title>", "Runs that have started continue"]);
        page.assert_contains(&["Start PostgreSQL", "Reload this page in a moment."]).assert_lacks(&CSP_VIOLATIONS);
        assert_eq!(page.body.matches("<h1").count(), 1, "{path} must have exactly one h1");
    }
    get(&fake, "/help").await.assert_contains(&["data-part=\"PostgreSQL\"", "<h1"]);
}

#[tokio::test]
async fn overview_states_its_window_and_links_to_lists() {
    let page = get(&FakeBackend::signed_in(Role::Viewer).ready(), "/").await;
    page.assert_contains(&[
        "in the last hour",
        "1,234",
        "/occurrences?status=failed",
        "View as table",
        "RabbitMQ",
        "Down",
    ]);
    page.assert_contains(&["data-status=\"failed\"", "<rect", "Next occurrences", "status 500 instead of 200"]);
    page.assert_contains(&["Open failures", "href=\"/failed\"", "10,000+"]);
    page.assert_contains(&["href=\"/jobs?state=active\"", "aria-live=\"polite\" aria-atomic=\"false\""]);
    page.assert_contains(&["Live instances", "of 2 instances seen in the last 24 hours"]);
}

#[tokio::test]
async fn overview_tiles_carry_the_window_of_the_address() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    let hour = get(&fake, "/").await;
    hour.assert_contains(&[
        "/occurrences?status=failed&amp;window=1h",
        "href=\"/?window=24h\"",
        "Ended in the last hour",
    ]);
    hour.assert_contains(&["href=\"/occurrences?status=queued\"", "href=\"/occurrences?status=running\""]);
    hour.assert_lacks(&["/occurrences?status=unknown"]);
    let day = get(&fake, "/?window=24h").await;
    day.assert_contains(&["/occurrences?status=timed-out&amp;window=24h", "Ended in the last 24 hours"]);
    day.assert_contains(&["1,235 occurrences ended in the last 24 hours"]);
    let invalid = get(&fake, "/?window=2h").await;
    assert_eq!(invalid.status, StatusCode::BAD_REQUEST);
    invalid.assert_contains(&["Use 1h, 24h or 7d."]).assert_lacks(&["class=\"tile\""]);
}

#[tokio::test]
async fn invalid_filter_lists_nothing() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    for query in ["status=foo", "status=", "job=7", "window=2h", "before=x", "status=failed&status=completed"] {
        let page = get(&fake, &format!("/occurrences?{query}")).await;
        assert_eq!(page.status, StatusCode::BAD_REQUEST, "{query}");
        page.assert_contains(&["filter-error", "href=\"/occurrences\""]).assert_lacks(&["<table", "Filter by status"]);
    }
}

#[tokio::test]
async fn list_of_one_job_names_it() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    let id = samples::job_id();
    let page = get(&fake, &format!("/occurrences?job={id}&window=24h")).await;
    page.assert_contains(&["nightly report", "Filter by job", "href=\"/occurrences?window=24h\"", ", show all jobs"]);
    page.assert_contains(&["Occurrences that are open or ended in the last 24 hours."]);
    // The occurrences of a deleted job are kept.
    let deleted = get(&fake, &format!("/occurrences?job={}", samples::calendar_id())).await;
    assert_eq!(deleted.status, StatusCode::OK);
    deleted.assert_contains(&["nightly report (deleted)"]);
    let none = get(&fake, &format!("/occurrences?job={id}&status=failed&window=1h")).await;
    none.assert_contains(&["No occurrence of nightly report became Failed in the last hour.", "Show all statuses"]);
    none.assert_contains(&["Show all times", "Show all jobs"]);
}

#[tokio::test]
async fn document_has_the_data_of_the_layout_and_the_position_before_it() {
    for path in ["/".to_owned(), "/occurrences".to_owned(), format!("/jobs/{}", samples::job_id())] {
        let page = get(&FakeBackend::signed_in(Role::Viewer).ready(), &path).await;
        page.assert_contains(&["name=\"milvaion-position\" content=\"5e1-0c\""]);
        page.assert_contains(&["name=\"milvaion-boot\" content=\"{&quot;me&quot;:{"]);
    }
    // A page without the layout, which loads the document of a page that has it.
    get(&FakeBackend::signed_out().ready(), "/login").await.assert_lacks(&["name=\"milvaion-boot\" content"]);
}

#[tokio::test]
async fn text_typed_in_a_dialog_is_guarded() {
    let busy = || FakeBackend::signed_in(Role::Admin);
    for (fake, path, id) in [
        (busy(), "/".to_owned(), "pause-all-reason"),
        (busy(), format!("/jobs/{}", samples::job_id()), "pause-reason"),
        (busy(), format!("/failed/{}", samples::group().fingerprint), "retry-note"),
        (
            busy().with_status(OccurrenceStatus::Running),
            format!("/occurrences/{}", samples::occurrence_id(0)),
            "cancel-reason",
        ),
    ] {
        let page = get(&fake.ready(), &path).await;
        // The guard finds its forms by the attribute, and compares only controls that have a name.
        let (before, after) = page.body.split_once(&format!("id=\"{id}\"")).expect(id);
        let form = before.rsplit_once("<form").and_then(|(_, form)| form.split_once('>')).expect("a form").0;
        assert!(form.contains("data-guarded=\"true\""), "{path}: {form}");
        let input = before.rsplit_once('<').expect("an element").1;
        let rest = after.split_once('>').expect("an element").0;
        assert!(format!("{input}{rest}").contains(" name=\""), "{path}: {input}{rest}");
    }
}

#[tokio::test]
async fn new_installation_shows_its_first_steps() {
    let operator = get(&FakeBackend::signed_in(Role::Operator).empty().ready(), "/").await;
    operator.assert_contains(&["First steps", "/jobs/new", "A worker is connected"]);
    let viewer = get(&FakeBackend::signed_in(Role::Viewer).empty().ready(), "/").await;
    viewer.assert_contains(&["First steps", "An Operator or an Admin can create jobs", "Run a sample job"]);
    viewer.assert_lacks(&["/jobs/new", "/api/run_sample_job"]);
}

#[tokio::test]
async fn list_is_filtered_and_paged_without_a_script() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    let first = get(&fake, "/occurrences?status=completed").await;
    let older = format!("/occurrences?status=completed&amp;before={}", samples::occurrence_id(0));
    first.assert_contains(&[&older, "/occurrences?status=queued", "1.2 s", "local-1", "UTC"]);
    let second = get(&fake, &format!("/occurrences?before={}", samples::occurrence_id(0))).await;
    second.assert_contains(&["Newest"]).assert_lacks(&["Older"]);
    get(&fake, "/occurrences?status=failed").await.assert_contains(&["No occurrence matches this filter"]);
    get(&FakeBackend::signed_in(Role::Viewer).empty().ready(), "/occurrences")
        .await
        .assert_contains(&["No occurrences yet"]);
}

#[tokio::test]
async fn occurrence_page_escapes_text_from_jobs() {
    let path = format!("/occurrences/{}", samples::occurrence_id(0));
    let failed =
        get(&FakeBackend::signed_in(Role::Operator).with_status(OccurrenceStatus::Failed).ready(), &path).await;
    failed.assert_contains(&["Failed: status 500 instead of 200", "Timeline", "Run job again", "body: oops"]);
    failed.assert_contains(&["&lt;b&gt;refused&lt;/b&gt;", "data-level=\"error\"", "?log_before=1000000"]);
    failed.assert_contains(&["<span data-color=\"green\">request<"]);
    failed.assert_lacks(&["<b>refused</b>", "\u{1b}"]);
    failed.assert_contains(&[&format!("/jobs/{}?run_again={}", samples::job_id(), samples::occurrence_id(0))]);
    let viewer = get(&FakeBackend::signed_in(Role::Viewer).ready(), &path).await;
    viewer.assert_contains(&["Completed in 1.2 s", "\"status\": 200"]).assert_lacks(&["Run job again"]);
    viewer.assert_lacks(&["Duplicate start"]);
    let place = |id: &str| viewer.body.find(&format!("id=\"{id}\""));
    assert!(place("result-title") < place("log-title"), "a short result stands above the log");
    let duplicate_starts = get(&FakeBackend::signed_in(Role::Viewer).duplicate_starts().ready(), &path).await;
    duplicate_starts.assert_contains(&[
        "Duplicate start: attempt 1 was started by local-1 and also by local-2.",
        "data-kind=\"warn\"",
    ]);
    let late =
        FakeBackend::signed_in(Role::Viewer).with_status(OccurrenceStatus::Cancelled).started_after_end().ready();
    get(&late, &path).await.assert_contains(&[
        "local-2 started attempt 1 although the occurrence was already cancelled.",
        "started after the end: the occurrence was already cancelled",
    ]);
    let waits = FakeBackend::signed_in(Role::Viewer).with_status(OccurrenceStatus::Queued).without_worker().ready();
    get(&waits, &path).await.assert_contains(&["Queued: no live worker offers local/http-request."]);
}

#[tokio::test]
async fn cancel_request_is_shown_until_the_end() {
    let fake = FakeBackend::signed_in(Role::Operator).with_status(OccurrenceStatus::Running).cancelling().ready();
    let page = get(&fake, &format!("/occurrences/{}", samples::occurrence_id(0))).await;
    page.assert_contains(&[
        "Cancelling, requested by ada@example.org: wrong input. Worker instance local-1 has not reported the end",
        "Cancel requested",
        "aria-describedby=\"occurrence-explanation\"",
        "data-status=\"running\"",
    ]);
    page.assert_lacks(&["<dt>Note</dt>"]);
    get(&fake, "/occurrences").await.assert_contains(&["Cancelling…"]);
}

#[tokio::test]
async fn log_states_its_zone() {
    let page =
        get(&FakeBackend::signed_in(Role::Viewer).ready(), &format!("/occurrences/{}", samples::occurrence_id(0)))
            .await;
    page.assert_contains(&["Times in UTC"]);
}

#[tokio::test]
async fn times_are_in_the_zone_of_the_cookie() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    let page = format!("/occurrences/{}", samples::occurrence_id(0));
    let local = get_with_cookies(&fake, &page, "theme=dark; zone=America/New_York").await;
    local.assert_contains(&["data-zone=\"America/New_York\"", "Times in America/New_York", "09:02:00 UTC−5<"]);
    local.assert_contains(&["Time zone: ", "<span>Local<", "Switch to UTC.", "data-theme=\"dark\""]);
    let encoded = get_with_cookies(&fake, "/occurrences", "zone=Asia%2FKathmandu").await;
    encoded.assert_contains(&["data-zone=\"Asia/Kathmandu\"", " UTC+5:45<"]).assert_lacks(&[" UTC<"]);
    for cookies in ["zone=America/New_York; zone_mode=utc", "zone=\"><b>", "zone=Nowhere/Town", "zone="] {
        let utc = get_with_cookies(&fake, &page, cookies).await;
        utc.assert_contains(&["Times in UTC", "14:02:00 UTC<", "<span>UTC<"]).assert_lacks(&["data-zone="]);
    }
}

#[tokio::test]
async fn times_follow_the_chosen_zone_and_clock() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    let page = format!("/occurrences/{}", samples::occurrence_id(0));
    let chosen = "zone=America/New_York; zone_chosen=Asia/Kathmandu; clock=12";
    let own = get_with_cookies(&fake, &page, chosen).await;
    own.assert_contains(&["data-zone=\"Asia/Kathmandu\"", "data-clock=\"12\"", "07:47:00 PM UTC+5:45<"]);
    own.assert_contains(&["Times in Asia/Kathmandu", "<span>Chosen<"]).assert_lacks(&["UTC−5"]);
    let utc = get_with_cookies(&fake, &page, &format!("{chosen}; zone_mode=utc")).await;
    utc.assert_contains(&["02:02:00 PM UTC<"]).assert_lacks(&["data-zone="]);
    // A cookie that the form would refuse counts as none.
    let unknown = get_with_cookies(&fake, &page, "zone=America/New_York; zone_chosen=Nowhere/Town; clock=13").await;
    unknown.assert_contains(&["data-zone=\"America/New_York\"", "09:02:00 UTC−5<"]).assert_lacks(&["data-clock="]);
}

#[tokio::test]
async fn occurrence_page_leads_to_its_trace() {
    let path = format!("/occurrences/{}", samples::occurrence_id(0));
    let page = get(&FakeBackend::signed_in(Role::Viewer).ready(), &path).await;
    page.assert_contains(&[
        "019a9b3f7c007abc8def0123456789ab",
        "Copy trace id",
        "href=\"https://traces.example.org/trace/019a9b3f7c007abc8def0123456789ab\"",
    ]);
}

#[tokio::test]
async fn skipped_occurrence_shows_its_reason() {
    let fake = FakeBackend::signed_in(Role::Viewer).with_status(OccurrenceStatus::Skipped).ready();
    for path in ["/occurrences".to_owned(), format!("/jobs/{}", samples::job_id())] {
        get(&fake, &path).await.assert_contains(&["Skipped", "the due time is in a blackout."]);
    }
    let page = get(&fake, &format!("/occurrences/{}", samples::occurrence_id(0))).await;
    page.assert_contains(&["Skipped: the due time is in a blackout."]).assert_lacks(&["Skipped: Skipped"]);
}

#[tokio::test]
async fn earlier_log_lines_have_an_address() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    let page = get(&fake, &format!("/occurrences/{}?log_before=1000000", samples::occurrence_id(0))).await;
    page.assert_contains(&["an earlier line", "Show newest lines"]).assert_lacks(&["refused"]);
}

#[tokio::test]
async fn unreadable_job_filter_lists_nothing() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    for query in ["state=sleeping", "after=page-2"] {
        let page = get(&fake, &format!("/jobs?{query}")).await;
        assert_eq!(page.status, StatusCode::BAD_REQUEST, "{query}");
        page.assert_contains(&["<h1", "This address cannot be shown"]).assert_lacks(&["nightly report", "Loading…"]);
    }
    get(&fake, "/jobs?state=active&q=").await.assert_contains(&["nightly report"]);
}

#[tokio::test]
async fn tags_of_a_job_lead_to_the_jobs_that_have_them() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    for path in ["/jobs".to_owned(), format!("/jobs/{}", samples::job_id())] {
        get(&fake, &path).await.assert_contains(&["href=\"/jobs?tag=billing\"", ">billing<"]);
    }
    let page = get(&fake, "/jobs?q=a&tag=billing&state=active").await;
    page.assert_contains(&[
        "Tag: ",
        "href=\"/jobs?q=a&amp;state=active\"",
        "/jobs?q=a&amp;tag=billing&amp;state=paused",
    ]);
    page.assert_contains(&["name=\"tag\" value=\"billing\""]);
}

#[tokio::test]
async fn parts_of_the_installation_are_explained() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    let help = get(&fake, "/help").await;
    let overview = get(&fake, "/").await;
    for (name, anchor) in [("PostgreSQL", "part-postgresql"), ("RabbitMQ", "part-rabbitmq")] {
        overview.assert_contains(&[&format!("<a href=\"/help#{anchor}\">{name}<")]);
        help.assert_contains(&[&format!("<dt id=\"{anchor}\">{name}<")]);
    }
}

#[tokio::test]
async fn job_is_run_again_with_the_input_of_the_run() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let job = format!("/jobs/{}", samples::job_id());
    let input = "9/&lt;report&gt;";
    let again = get(&fake, &format!("{job}?run_again={}", samples::occurrence_id(0))).await;
    assert_eq!(again.body.matches(input).count(), 2, "in the dialog, and in the section without scripts");
    again.assert_contains(&["This is the input of an earlier run."]);
    let deleted = get(&fake, &format!("{job}?run_again={}", samples::job_id())).await;
    assert_eq!(deleted.status, StatusCode::OK);
    deleted.assert_contains(&["is deleted, and its input with it"]).assert_lacks(&[input]);
    for query in ["", "?run_again=nonsense"] {
        get(&fake, &format!("{job}{query}")).await.assert_contains(&["9/report"]).assert_lacks(&[input]);
    }
}

#[tokio::test]
async fn job_page_links_to_all_its_occurrences() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    let id = samples::job_id();
    let link = format!("/occurrences?job={id}");
    get(&fake, &format!("/jobs/{id}")).await.assert_contains(&[&link, "All occurrences of this job"]);
}

#[tokio::test]
async fn workers_page_shows_instances_and_job_types() {
    let page = get(&FakeBackend::signed_in(Role::Operator).ready(), "/workers").await;
    page.assert_contains(&[
        "1 of 2 instances live",
        "Instances seen in the last 24 hours",
        ">Active<",
        "critical 1 (3 waiting), 2 reserved for critical",
        "local-2",
        ">Lost<",
        "http-request",
        "The URL to request.",
    ]);
    page.assert_contains(&["1 lost instance"]);
    assert_eq!(page.body.matches("1 of 8").count(), 1, "an instance that is not alive runs nothing");
    page.assert_contains(&["/jobs/new?type=local"]);
    let notice = "Its outbox &lt;b&gt;cannot&lt;/b&gt; be written.";
    assert_eq!(page.body.matches(notice).count(), 1, "only the live instance has a notice");
    get(&FakeBackend::signed_in(Role::Viewer).empty().ready(), "/workers")
        .await
        .assert_contains(&["No workers connected"]);
}

#[tokio::test]
async fn theme_of_the_cookie_is_in_the_first_response() {
    use axum::{body::Body, http::Request};

    let request =
        Request::builder().uri("/help").header("cookie", "zone=UTC; theme=dark").header("accept", "text/html");
    let page =
        common::send(FakeBackend::signed_in(Role::Viewer).ready(), request.body(Body::empty()).expect("a request"))
            .await;
    page.assert_contains(&["data-theme=\"dark\""]);
}

#[tokio::test]
async fn plain_form_notice_is_shown_once() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    let flash = milvaion_app::backend::FlashMessage {
        form: "notice".into(),
        notice: Some("Job saved.".into()),
        ..Default::default()
    };
    fake.flashes.lock().expect("the mutex is not poisoned").push(flash);
    get(&fake, "/workers").await.assert_contains(&["Job saved."]);
    get(&fake, "/workers").await.assert_lacks(&["Job saved."]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_readers_each_get_a_complete_page() {
    let readers: Vec<_> = (0..8)
        .map(|_| {
            tokio::spawn(async {
                let fake = FakeBackend::signed_in(Role::Admin).ready();
                for path in ["/", "/jobs", "/occurrences", "/workers", "/team"].repeat(8) {
                    let answer = tokio::time::timeout(std::time::Duration::from_secs(10), get(&fake, path)).await;
                    assert_eq!(answer.unwrap_or_else(|_| panic!("{path} hangs")).status, StatusCode::OK, "{path}");
                }
            })
        })
        .collect();
    for reader in readers {
        reader.await.expect("the reader task does not panic");
    }
}

#[tokio::test]
async fn menu_lists_the_pages_of_the_role() {
    for (role, reads_team) in [(Role::Viewer, false), (Role::Operator, false), (Role::Admin, true)] {
        let page = get(&FakeBackend::signed_in(role).ready(), "/menu").await;
        assert_eq!(page.status, StatusCode::OK);
        let list = page.body.split_once("id=\"pages\"").and_then(|(_, rest)| rest.split_once("</ul>"));
        let (list, _) = list.expect("the page lists the pages");
        for path in ["/", "/jobs", "/occurrences", "/failed", "/workers", "/calendars", "/help"] {
            assert!(list.contains(&format!("href=\"{path}\"")), "{role:?} cannot reach {path}: {list}");
        }
        for path in ["/team", "/audit"] {
            assert_eq!(list.contains(&format!("href=\"{path}\"")), reads_team, "{role:?}: {path}");
        }
        // One form in the user menu and one on the page.
        assert_eq!(page.body.matches("action=\"/api/sign_out\"").count(), 2, "{role:?}");
    }
}

#[tokio::test]
async fn bottom_bar_marks_the_menu_as_current() {
    let fake = FakeBackend::signed_in(Role::Admin).ready();
    let calendar = format!("/calendars/{}/edit", samples::calendar_id());
    let pages = [
        ("/menu", true),
        ("/alerts/rules", true),
        ("/workers", true),
        ("/singleton-loops", true),
        (calendar.as_str(), true),
        ("/team", true),
        ("/tokens", true),
        ("/help", true),
        ("/", false),
    ];
    for (path, is_current) in pages.into_iter().chain([("/jobs", false), ("/occurrences", false)]) {
        let page = get(&fake, path).await;
        let bar = page.body.split_once("aria-label=\"Main, compact\"").and_then(|(_, rest)| rest.split_once("</nav>"));
        let (bar, _) = bar.expect("the page has a bottom bar");
        let link = bar.split("<a ").find(|link| link.contains("href=\"/menu\"")).expect("the bar links to the menu");
        assert_eq!(link.contains("aria-current=\"page\""), is_current, "{path}: {link}");
    }
}
