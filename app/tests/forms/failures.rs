//! Failures and dead letters: listing, retrying and resolving them as a browser without scripts does.

use axum::http::StatusCode;
use milvaion_api::permissions::Role;
use milvaion_protocol::status::OccurrenceStatus;

use super::done;
use crate::common::{FakeBackend, get, post, samples};

fn group_path() -> String {
    format!("/failed/{}", samples::group().fingerprint)
}

#[tokio::test]
async fn causes_are_filtered_and_paged_by_address() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    let page = get(&fake, "/failed?state=all").await;
    page.assert_contains(&["order &lt;b&gt;7&lt;/b&gt; not found", "1,234", " and 2 other jobs", "Retries used up"]);
    page.assert_contains(&["href=\"/failed/0123456789abcdef?state=all\"", "/failed?state=all&amp;after=1234~"]);
    page.assert_lacks(&["<b>7</b>", "One job only"]);
    let of_job = get(&fake, &format!("/failed?job={}", samples::job_id())).await;
    of_job.assert_contains(&["One job only", "href=\"/failed\" aria-current=\"true\"", "name=\"job\""]);
    get(&fake, "/failed?cause=exhausted").await.assert_contains(&["1,234", "<option value=\"exhausted\" selected"]);
    get(&fake, "/failed?cause=lost").await.assert_contains(&["No failure matches"]);
    get(&fake, "/failed?after=1~1~x").await.assert_contains(&["First page"]).assert_lacks(&["Next page"]);
    get(&FakeBackend::signed_in(Role::Viewer).empty().ready(), "/failed").await.assert_contains(&["No open failures"]);
    assert_eq!(get(&fake, "/failed/ffffffffffffffff").await.status, StatusCode::NOT_FOUND);
    assert_eq!(get(&fake, &format!("/failed/{}", samples::occurrence_id(9))).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn invalid_filter_lists_nothing() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let long = "x".repeat(201);
    for (path, parameter, reset) in [
        ("/failed?state=all&job=nonsense".to_owned(), "job", "/failed?state=all"),
        ("/failed?state=foo".into(), "state", "/failed"),
        ("/failed?cause=ended".into(), "cause", "/failed"),
        ("/failed?after=1~1".into(), "after", "/failed"),
        ("/failed?before=1".into(), "before", "/failed"),
        ("/failed?tab=letters".into(), "tab", "/failed"),
        (format!("/failed?q={long}"), "q", "/failed"),
        (format!("{}?cause=lost", group_path()), "cause", "/failed/0123456789abcdef"),
        (format!("{}?job=nonsense", group_path()), "job", "/failed/0123456789abcdef"),
        ("/failed?tab=dead-letters&state=foo".into(), "state", "/failed?tab=dead-letters"),
        ("/failed?tab=dead-letters&before=x".into(), "before", "/failed?tab=dead-letters"),
    ] {
        let page = get(&fake, &path).await;
        assert_eq!(page.status, StatusCode::BAD_REQUEST, "{path}");
        page.assert_contains(&[
            "Nothing is listed",
            &format!("The filter {parameter} has the value"),
            &format!("href=\"{reset}\""),
        ]);
        page.assert_lacks(&["<tbody>", "id=\"dead-letters\"", "name=\"ids[]\"", "/api/resolve_", "1,234", &long]);
    }
    assert_eq!(get(&fake, "/failed?cause=&q=").await.status, StatusCode::OK, "a form sends its empty fields too");
}

#[tokio::test]
async fn retried_occurrence_links_to_the_failed_one_and_names_its_origin() {
    let path = format!("/occurrences/{}", samples::occurrence_id(0));
    let failed = format!("href=\"/occurrences/{}\"", samples::occurrence_id(1));
    let again = FakeBackend::signed_in(Role::Viewer).with_status(OccurrenceStatus::Completed).ready();
    let origin = [" by ada@example.org", " with the token deploy (milvaion_…x7f2)"];
    get(&again, &path).await.assert_contains(&["<dt>Retry of", &failed]).assert_contains(&origin);
    let first = FakeBackend::signed_in(Role::Viewer).with_status(OccurrenceStatus::Failed).ready();
    get(&first, &path).await.assert_contains(&["<dt>Trigger"]).assert_lacks(&["<dt>Retry of", &failed, " the token"]);
}

#[tokio::test]
async fn viewers_find_no_boxes_and_buttons_for_failures() {
    let changes = ["/api/retry_failure", "/api/resolve_", "name=\"ids[]\"", "Retry", "Resolve selected…"];
    for path in [group_path(), format!("/failed/{}", samples::occurrence_id(0)), "/failed?tab=dead-letters".into()] {
        let viewer = get(&FakeBackend::signed_in(Role::Viewer).ready(), &path).await;
        assert_eq!(viewer.status, StatusCode::OK, "{path}");
        viewer.assert_lacks(&changes);
        let operator = get(&FakeBackend::signed_in(Role::Operator).ready(), &path).await;
        assert!(operator.body.contains("/api/resolve_"), "{path}");
    }
}

#[tokio::test]
async fn some_or_all_failures_of_a_cause_are_resolved() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let path = group_path();
    let page = get(&fake, &path).await;
    page.assert_contains(&["12 open of 1,234 failures", "name=\"ids[]\"", "All 12 open failures of this cause"]);
    page.assert_contains(&["formaction=\"/api/resolve_failures\"", "name=\"seen\" value=\"12\""]);
    assert_eq!(page.body.matches("name=\"ids[]\"").count(), 1, "a resolved failure has no checkbox");
    let (one, two) = (samples::occurrence_id(0), samples::occurrence_id(1));
    let back = format!("back={}", path.replace('/', "%2F"));

    let some = format!("ids%5B%5D={one}&ids%5B%5D={two}&all=false&seen=12&note=again&{back}");
    let answer = post(&fake, "/api/retry_failures", &some).await;
    assert_eq!((answer.status, answer.location.as_deref()), (StatusCode::FOUND, Some(path.as_str())));
    get(&fake, &path).await.assert_contains(&["2 failures were retried."]);
    let all = format!("ids%5B%5D={one}&all=true&filter%5Bfingerprint%5D=0123456789abcdef&seen=12&note=known&{back}");
    post(&fake, "/api/resolve_failures", &all).await;
    get(&fake, &path).await.assert_contains(&["2 failures were resolved."]);
    assert_eq!(done(&fake), ["retry 2 of 12: again false", "resolve 2 of 12: known"]);

    post(&fake, "/api/resolve_failures", &format!("all=false&note=nothing+chosen&{back}")).await;
    get(&fake, &path).await.assert_contains(&["Choose at least one open failure", "value=\"nothing chosen\""]);
    // Neither ids nor an explicit `all`: refused, also with a filter and a number of seen failures.
    let filter = "filter%5Bfingerprint%5D=0123456789abcdef";
    post(&fake, "/api/retry_failures", &format!("{filter}&seen=12&note=no+scope&{back}")).await;
    get(&fake, &path).await.assert_contains(&["Choose at least one open failure", "value=\"no scope\""]);
    // A misspelled condition must not widen the filter.
    let misspelled = "all=true&filter%5Bfingreprint%5D=0123456789abcdef&seen=12";
    let refused = post(&fake, "/api/retry_failures", &format!("{misspelled}&{back}")).await;
    assert_ne!(refused.location.as_deref(), Some(path.as_str()), "the request is not read");
    assert!(done(&fake).len() == 2, "nothing was retried");
    post(&fake, "/api/retry_failures", &format!("all=true&seen=10000&{back}")).await;
    get(&fake, &path).await.assert_contains(&["All failures cannot be changed at once"]);
    post(&fake, "/api/retry_failures", &format!("all=true&filter%5Bcause%5D=lost&seen=1&{back}")).await;
    get(&fake, &path).await.assert_contains(&["The number of failures has grown."]);
    post(&fake, "/api/retry_failures", &format!("ids%5B%5D={one}&note={}&{back}", "x".repeat(501))).await;
    get(&fake, &path).await.assert_contains(&["At most 500 characters", "aria-invalid=\"true\""]);
    let elsewhere = post(&fake, "/api/retry_failures", &format!("ids%5B%5D={one}&back=%2F%2Fevil.example")).await;
    assert_eq!(elsewhere.location.as_deref(), Some("/failed"));
}

#[tokio::test]
async fn one_failure_is_retried_with_its_input_or_another() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let id = samples::occurrence_id(0);
    let path = format!("/failed/{id}");
    let page = get(&fake, &path).await;
    page.assert_contains(&[
        "All of its attempts failed.",
        "  at line 3",
        "&lt;/textarea&gt;&lt;script&gt;",
        "Retry this failure",
    ]);
    page.assert_contains(&[&format!("/occurrences/{id}"), "/failed/0123456789abcdef"]);
    page.assert_lacks(&["\"order\": \"</textarea>", "Retry again"]);

    let answer = post(&fake, "/api/retry_failure", &format!("id={id}&input_json=%7B&note=typo")).await;
    assert_eq!(answer.location.as_deref(), Some(path.as_str()));
    let refused = get(&fake, &path).await;
    refused.assert_contains(&["The input is not JSON", "aria-invalid=\"true\"", ">{</textarea>", "value=\"typo\""]);
    assert!(done(&fake).is_empty());
    let answer = post(&fake, "/api/retry_failure", &format!("id={id}&input_json=%7B%7D&note=typo")).await;
    assert_eq!(answer.location, Some(format!("/occurrences/{id}")));
    assert_eq!(done(&fake), ["retry 1 of 1: typo false"]);

    post(&fake, "/api/resolve_failures", &format!("ids%5B%5D={id}&note={}&back=/failed/{id}", "y".repeat(2_001))).await;
    get(&fake, &path).await.assert_contains(&["At most 2,000 characters"]);

    let resolved = get(&fake, &format!("/failed/{}", samples::resolved_failure(1).occurrence_id)).await;
    resolved.assert_contains(&["Retried", "as a new run", "grace@example.org", "the shop was closed", "Retry again"]);
    resolved.assert_contains(&["aria-labelledby=\"resolve-title\" hidden"]);
}

#[tokio::test]
async fn failed_occurrence_links_to_its_failure() {
    use milvaion_protocol::status::OccurrenceStatus;

    let path = format!("/occurrences/{}", samples::occurrence_id(0));
    let link = format!("href=\"/failed/{}\"", samples::occurrence_id(0));
    for status in milvaion_protocol::status::ALL_STATUSES {
        let page = get(&FakeBackend::signed_in(Role::Viewer).with_status(status).ready(), &path).await;
        let has_failed = matches!(status, OccurrenceStatus::Failed | OccurrenceStatus::TimedOut);
        assert_eq!(page.body.contains(&link), has_failed, "{status}");
    }
}

#[tokio::test]
async fn dead_letter_is_shown_safely_and_resolved() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let page = get(&fake, "/failed?tab=dead-letters").await;
    page.assert_contains(&[
        "It is not a job message",
        "milvaion.dlx/w.echo",
        "97.6 KiB",
        "Received 2 more times.",
        "x-death",
        &format!("href=\"/occurrences/{}\"", samples::occurrence_id(0)),
        "is missing and publishes it again",
    ]);
    page.assert_contains(&["\\x00\\x1b[31m&lt;script&gt;alert(1)", "Message body (beginning)"])
        .assert_lacks(&["<script>alert"]);
    get(&fake, "/failed?tab=dead-letters&state=resolved").await.assert_contains(&["No resolved dead letters"]);
    let id = samples::dead_letter().id;
    let back = "back=%2Ffailed%3Ftab%3Ddead-letters";
    let answer = post(&fake, "/api/resolve_dead_letters", &format!("ids%5B%5D={id}&note=noise&{back}")).await;
    assert_eq!(answer.location.as_deref(), Some("/failed?tab=dead-letters"));
    get(&fake, "/failed?tab=dead-letters").await.assert_contains(&["1 dead letter was resolved."]);
    assert_eq!(done(&fake), ["resolve 1 dead letters: noise"]);
    post(&fake, "/api/resolve_dead_letters", &format!("note=noise&{back}")).await;
    get(&fake, "/failed?tab=dead-letters")
        .await
        .assert_contains(&["Choose at least one dead letter", "value=\"noise\""]);
    get(&FakeBackend::signed_in(Role::Viewer).empty().ready(), "/failed?tab=dead-letters")
        .await
        .assert_contains(&["No dead letters"]);
}
