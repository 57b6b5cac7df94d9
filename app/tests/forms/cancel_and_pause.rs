//! What stops: one occurrence that is cancelled, and everything at once.

use axum::http::StatusCode;
use milvaion_api::permissions::Role;
use milvaion_protocol::status::OccurrenceStatus;

use super::done;
use crate::common::{FakeBackend, get, post, samples};

fn page_of_occurrence() -> String {
    format!("/occurrences/{}", samples::occurrence_id(0))
}

#[tokio::test]
async fn only_what_is_open_can_be_cancelled_and_only_by_those_who_may() {
    let path = page_of_occurrence();
    for status in milvaion_protocol::status::ALL_STATUSES {
        for role in [Role::Viewer, Role::Operator, Role::Admin] {
            let page = get(&FakeBackend::signed_in(role).with_status(status).ready(), &path).await;
            assert_eq!(page.status, StatusCode::OK, "{status}");
            if role == Role::Viewer || status.is_final() {
                page.assert_lacks(&["Cancel…", "Cancel occurrence", "/api/cancel_occurrence"]);
            } else {
                page.assert_contains(&[
                    "Cancel…",
                    "Cancel this occurrence of nightly report?",
                    "Keep it",
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
async fn cancelling_says_what_it_will_do_and_what_it_did() {
    let path = page_of_occurrence();
    let form = format!("id={}&reason=wrong+input", samples::occurrence_id(0));
    let outcomes = [
        (OccurrenceStatus::Queued, "will not run", "The occurrence is cancelled."),
        (OccurrenceStatus::Running, "is asked to end it, and asked again", "The worker was asked to end it."),
        (OccurrenceStatus::Unknown, "Its worker was lost", "The occurrence is cancelled."),
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
async fn a_cancellation_that_is_refused_says_why() {
    let path = page_of_occurrence();
    let id = samples::occurrence_id(0);
    let late = FakeBackend::signed_in(Role::Operator).with_status(OccurrenceStatus::Failed).ready();
    let answer = post(&late, "/api/cancel_occurrence", &format!("id={id}")).await;
    assert_eq!(answer.location, Some(path.clone()));
    let page = get(&late, &path).await;
    page.assert_contains(&["This occurrence has ended already: it is Failed."])
        .assert_lacks(&["/api/cancel_occurrence"]);

    let wordy = FakeBackend::signed_in(Role::Operator).with_status(OccurrenceStatus::Queued).ready();
    let reason = "why".repeat(200);
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
async fn a_pause_of_everything_is_told_to_everybody_and_ended_by_those_who_may() {
    for role in [Role::Viewer, Role::Operator] {
        let fake = FakeBackend::signed_in(role).paused("the <b>disk</b> is full").ready();
        let page = get(&fake, "/").await;
        page.assert_contains(&["<div role=\"status\"><div data-kind=\"warn\" id=\"paused\""]);
        page.assert_contains(&["Paused by grace@example.org since <time", "2026-11-21 14:02:00 UTC"]);
        page.assert_contains(&[": the &lt;b&gt;disk&lt;/b&gt; is full. Nothing is fired until somebody resumes."]);
        page.assert_lacks(&["Pause all schedules"]);
        if role == Role::Viewer {
            page.assert_lacks(&["/api/resume_cluster"]);
        } else {
            page.assert_contains(&["action=\"/api/resume_cluster\""]);
        }
    }
    // It stands before the first steps of a new installation as well.
    let new = FakeBackend::signed_in(Role::Viewer).empty().paused("not yet").ready();
    get(&new, "/").await.assert_contains(&["First steps", ": not yet. Nothing is fired until somebody resumes."]);
    let viewer = get(&FakeBackend::signed_in(Role::Viewer).ready(), "/").await;
    viewer.assert_lacks(&["Paused by", "Pause all schedules", "/api/pause_cluster"]);
}

#[tokio::test]
async fn everything_is_paused_for_a_reason_and_resumed_by_plain_forms() {
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
    get(&fake, "/").await.assert_contains(&["Say why", "aria-invalid=\"true\"", "<details open class=\"hide-js\">"]);
    assert!(done(&fake).is_empty());

    let answer = post(&fake, "/api/pause_cluster", "reason=the+disk+is+full").await;
    assert_eq!(answer.location.as_deref(), Some("/"));
    get(&fake, "/").await.assert_contains(&["All schedules are paused.", ": the disk is full. Nothing is fired"]);
    let answer = post(&fake, "/api/resume_cluster", "").await;
    assert_eq!(answer.location.as_deref(), Some("/"));
    get(&fake, "/")
        .await
        .assert_contains(&["All schedules are resumed.", "Pause all schedules…"])
        .assert_lacks(&["Paused by"]);
    assert_eq!(done(&fake), ["pause everything: the disk is full", "resume everything"]);
}
