//! Cancelling one occurrence, and pausing all schedules.

use axum::http::StatusCode;
use milvaion_api::permissions::Role;
use milvaion_protocol::status::OccurrenceStatus;

use super::done;
use crate::common::{FakeBackend, get, post, samples};

fn occurrence_path() -> String {
    format!("/occurrences/{}", samples::occurrence_id(0))
}

#[tokio::test]
async fn cancel_needs_an_open_occurrence_and_permission() {
    let path = occurrence_path();
    for status in milvaion_protocol::status::ALL_STATUSES {
        for role in [Role::Viewer, Role::Operator, Role::Admin] {
            let page = get(&FakeBackend::signed_in(role).with_status(status).ready(), &path).await;
            assert_eq!(page.status, StatusCode::OK, "{status}");
            if role == Role::Viewer || status.is_final() {
                page.assert_lacks(&["Cancel run", "/api/cancel_occurrence"]);
            } else {
                page.assert_contains(&[
                    "Cancel run…",
                    "Cancel this run of nightly report?",
                    "Keep run",
                    "maxlength=\"500\"",
                ]);
                page.assert_contains(&[
                    "action=\"/api/cancel_occurrence\"",
                    "id=\"plain-cancel-reason\" name=\"reason\"",
                ]);
            }
        }
    }
}

#[tokio::test]
async fn cancel_describes_its_effect_and_its_outcome() {
    let path = occurrence_path();
    let form = format!("id={}&reason=wrong+input", samples::occurrence_id(0));
    let outcomes = [
        (OccurrenceStatus::Queued, "will not run", "The occurrence is cancelled."),
        (
            OccurrenceStatus::Running,
            "A cancel request is sent to the worker",
            "A cancel request was sent to the worker.",
        ),
        (OccurrenceStatus::Unknown, "in case the run is still active there", "The occurrence is cancelled."),
    ];
    for (status, before, after) in outcomes {
        let fake = FakeBackend::signed_in(Role::Operator).with_status(status).ready();
        get(&fake, &path).await.assert_contains(&[before]).assert_lacks(&[after]);
        let answer = post(&fake, "/api/cancel_occurrence", &form).await;
        assert_eq!((answer.status, answer.location), (StatusCode::FOUND, Some(path.clone())), "{status}");
        assert_eq!(done(&fake), ["cancel wrong input"]);
        get(&fake, &path).await.assert_contains(&[after]);
        get(&fake, &path).await.assert_lacks(&[after]);
    }
}

#[tokio::test]
async fn refused_cancellation_shows_the_reason() {
    let path = occurrence_path();
    let id = samples::occurrence_id(0);
    let late = FakeBackend::signed_in(Role::Operator).with_status(OccurrenceStatus::Failed).ready();
    let answer = post(&late, "/api/cancel_occurrence", &format!("id={id}")).await;
    assert_eq!(answer.location, Some(path.clone()));
    let page = get(&late, &path).await;
    page.assert_contains(&["This occurrence has already ended: it is Failed."])
        .assert_lacks(&["/api/cancel_occurrence"]);

    let wordy = FakeBackend::signed_in(Role::Operator).with_status(OccurrenceStatus::Queued).ready();
    let reason = "x".repeat(501);
    post(&wordy, "/api/cancel_occurrence", &format!("id={id}&reason={reason}")).await;
    let page = get(&wordy, &path).await;
    page.assert_contains(&[
        "at most 500 characters",
        "aria-invalid=\"true\"",
        &reason,
        "<details open class=\"hide-js\">",
    ]);
    assert!(done(&wordy).is_empty());
}

#[tokio::test]
async fn cluster_pause_is_shown_to_all_and_ended_by_operators() {
    for role in [Role::Viewer, Role::Operator] {
        let fake = FakeBackend::signed_in(role).paused("the <b>disk</b> is full").ready();
        let job = format!("/jobs/{}", samples::job_id());
        for path in ["/", "/jobs", &job, "/occurrences", "/failed", "/workers", "/calendars", "/help"] {
            let page = get(&fake, path).await;
            page.assert_contains(&[
                "<div role=\"alert\" aria-atomic=\"false\"><div",
                "data-kind=\"warn\" id=\"paused\"",
            ]);
            page.assert_contains(&["Paused by grace@example.org since <time", "2026-11-21 14:02:00 UTC"]);
            page.assert_contains(&[
                ": the &lt;b&gt;disk&lt;/b&gt; is full. No schedule starts a run until the pause ends.",
            ]);
            page.assert_lacks(&["Pause all schedules"]);
            if role == Role::Viewer {
                page.assert_lacks(&["/api/resume_cluster"]);
            } else {
                page.assert_contains(&["action=\"/api/resume_cluster\""]);
            }
        }
    }
    // No due time starts a run now, so the overview counts down to none.
    let countdown = "class=\"countdown\"";
    let paused = FakeBackend::signed_in(Role::Viewer).paused("upgrade").ready();
    get(&paused, "/").await.assert_contains(&["When the cluster resumes", "Due <"]).assert_lacks(&[countdown]);
    get(&FakeBackend::signed_in(Role::Viewer).ready(), "/").await.assert_contains(&[countdown]);
    // The banner is shown above the first steps of a new installation as well.
    let new = FakeBackend::signed_in(Role::Viewer).empty().paused("not yet").ready();
    get(&new, "/").await.assert_contains(&["First steps", ": not yet. No schedule starts a run until the pause ends."]);
    let viewer = get(&FakeBackend::signed_in(Role::Viewer).ready(), "/").await;
    viewer.assert_lacks(&["Paused by", "Pause all schedules", "/api/pause_cluster"]);
}

#[tokio::test]
async fn cluster_is_paused_and_resumed_by_plain_forms() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let page = get(&fake, "/").await;
    page.assert_contains(&[
        "Pause all schedules…",
        "action=\"/api/pause_cluster\"",
        "id=\"plain-pause-all-reason\" name=\"reason\"",
    ]);
    page.assert_lacks(&["Paused by"]);

    let answer = post(&fake, "/api/pause_cluster", "reason=+").await;
    assert_eq!((answer.status, answer.location.as_deref()), (StatusCode::FOUND, Some("/")));
    get(&fake, "/").await.assert_contains(&[
        "Give a reason",
        "aria-invalid=\"true\"",
        "<details open class=\"hide-js\">",
    ]);
    assert!(done(&fake).is_empty());

    let answer = post(&fake, "/api/pause_cluster", "reason=the+disk+is+full").await;
    assert_eq!(answer.location.as_deref(), Some("/"));
    get(&fake, "/")
        .await
        .assert_contains(&["All schedules are paused.", ": the disk is full. No schedule starts a run"]);
    let answer = post(&fake, "/api/resume_cluster", "").await;
    assert_eq!(answer.location.as_deref(), Some("/"));
    get(&fake, "/")
        .await
        .assert_contains(&["All schedules are resumed.", "Pause all schedules…"])
        .assert_lacks(&["Paused by"]);
    assert_eq!(done(&fake), ["pause everything: the disk is full", "resume everything"]);
}

#[tokio::test]
async fn delayed_occurrences_are_counted_and_cancelled_by_operators() {
    let path = format!("/jobs/{}", samples::job_id());
    let list = format!("href=\"/occurrences?delayed=true&amp;job={}\"", samples::job_id());
    let viewer = FakeBackend::signed_in(Role::Viewer).ready();
    get(&viewer, &path).await.assert_contains(&[&list, "3 occurrences"]).assert_lacks(&["Cancel all delayed"]);
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    get(&fake, &path).await.assert_contains(&["Cancel 3 occurrences of nightly report that are delayed?"]);
    get(&fake, &format!("{path}?confirm=cancel-delayed"))
        .await
        .assert_contains(&["id=\"cancel-delayed\"", "action=\"/api/cancel_delayed\""]);
    let answer = post(&fake, "/api/cancel_delayed", &format!("id={}", samples::job_id())).await;
    assert_eq!((answer.status, answer.location), (StatusCode::FOUND, Some(path.clone())));
    assert_eq!(done(&fake), ["cancel delayed "]);
    get(&fake, &path).await.assert_contains(&["3 delayed occurrences are cancelled."]);
}

#[tokio::test]
async fn next_run_is_skipped_by_a_form_that_names_it() {
    let path = format!("/jobs/{}", samples::job_id());
    let question = format!("{path}?confirm=skip-due");
    let viewer = FakeBackend::signed_in(Role::Viewer).ready();
    get(&viewer, &question).await.assert_lacks(&["Skip next run", "/api/skip_due"]);
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    get(&fake, &path).await.assert_contains(&["Skip the next run of nightly report?"]).assert_lacks(&["/api/skip_due"]);
    get(&fake, &question).await.assert_contains(&[
        "id=\"skip-due\"",
        "action=\"/api/skip_due\"",
        "name=\"due\" value=\"2026-11-21T15:02:00Z\"",
    ]);
    let form = format!("id={}&due=2026-11-21T15%3A02%3A00Z", samples::job_id());
    let answer = post(&fake, "/api/skip_due", &form).await;
    assert_eq!((answer.status, answer.location), (StatusCode::FOUND, Some(path.clone())));
    assert_eq!(done(&fake), ["skip 2026-11-21 15:02:00 UTC"]);
    get(&fake, &path).await.assert_contains(&["The run is skipped."]);
}

/// A page that the browser opens reads its rows with the filter in the query of the address, where each value is a text.
#[tokio::test]
async fn rows_are_read_with_a_status_in_the_query() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    for query in ["filter%5Bstatus%5D=2", "filter%5Bstatus%5D=7&filter%5Bwindow%5D=1h", "filter%5Bdelayed%5D=true"] {
        get(&fake, &format!("/api/occurrences?{query}&filter%5Blimit%5D=0")).await.assert_contains(&["{\"rows\":["]);
    }
    let wrong = get(&fake, "/api/occurrences?filter%5Bstatus%5D=8&filter%5Blimit%5D=0").await;
    wrong.assert_contains(&["8 is not an occurrence status"]);
}
