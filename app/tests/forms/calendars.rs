//! Calendars without a script: created, edited, refused, deleted, and selected by a job.

use axum::http::StatusCode;
use milvaion_api::permissions::Role;

use super::{VALID_JOB_FORM, done};
use crate::common::{FakeBackend, get, post, samples};

/// A valid calendar form, encoded as a browser encodes it, with one empty spare row.
pub(super) const VALID_CALENDAR_FORM: &str = "form%5Bid%5D=&form%5Bversion%5D=&form%5Bname%5D=Quiet+hours&form%5Bzone%5D=Europe%2FWarsaw\
                                &form%5Bdates%5D=2026-12-24+to+2026-12-26%0D%0A2027-01-01\
                                &form%5Bwindows%5D%5B0%5D%5Bsat%5D=on&form%5Bwindows%5D%5B0%5D%5Bsun%5D=on\
                                &form%5Bwindows%5D%5B0%5D%5Bfrom%5D=22%3A00&form%5Bwindows%5D%5B0%5D%5Bto%5D=06%3A00\
                                &form%5Bwindows%5D%5B11%5D%5Bfrom%5D=&form%5Bwindows%5D%5B11%5D%5Bto%5D=";

#[tokio::test]
async fn list_shows_blackout_times_and_the_next_blackout() {
    let edit = format!("href=\"/calendars/{}/edit\"", samples::calendar_id());
    let operator = get(&FakeBackend::signed_in(Role::Operator).ready(), "/calendars").await;
    operator.assert_contains(&[
        &edit,
        "Holidays",
        "Europe/Warsaw",
        "2026-12-24 to 2026-12-26",
        "Thu 2026-12-24 to Sat",
        "1 job",
    ]);
    operator.assert_contains(&["href=\"/calendars/new\""]);
    let viewer = get(&FakeBackend::signed_in(Role::Viewer).ready(), "/calendars").await;
    viewer.assert_contains(&["Holidays", "1 job"]).assert_lacks(&[&edit, "href=\"/calendars/new\""]);
    let empty = get(&FakeBackend::signed_in(Role::Operator).empty().ready(), "/calendars").await;
    empty.assert_contains(&["No calendars yet", "Create the first calendar"]);
}

#[tokio::test]
async fn calendar_is_created_without_a_script() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let page = get(&fake, "/calendars/new").await;
    page.assert_contains(&[
        "name=\"form[windows][2][mon]\"",
        "name=\"form[windows][0][from]\"",
        "name=\"form[dates]\"",
    ]);
    page.assert_contains(&["formaction=\"/api/check_calendar\"", "<option value=\"Europe/Warsaw\">"]);
    let answer = post(&fake, "/api/save_calendar", VALID_CALENDAR_FORM).await;
    assert_eq!((answer.status, answer.location.as_deref()), (StatusCode::FOUND, Some("/calendars")), "{}", answer.body);
    assert_eq!(
        done(&fake),
        ["save calendar Quiet hours: Sat, Sun 22:00–06:00 the next day; 2026-12-24 to 2026-12-26, 2027-01-01"]
    );
    get(&fake, "/calendars").await.assert_contains(&["The calendar is created."]);
}

#[tokio::test]
async fn check_shows_the_next_blackouts_and_saves_nothing() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let answer = post(&fake, "/api/check_calendar", VALID_CALENDAR_FORM).await;
    assert_eq!(answer.location.as_deref(), Some("/calendars/new"));
    let page = get(&fake, "/calendars/new").await;
    page.assert_contains(&["Nothing is saved yet.", "Thu 2026-12-24 to Sat 2026-12-26", "value=\"Quiet hours\""]);
    assert!(done(&fake).is_empty());
}

#[tokio::test]
async fn refused_calendar_form_keeps_its_input() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let wrong =
        VALID_CALENDAR_FORM.replace("=Quiet+hours", "=").replace("2027-01-01", "New+Year").replace("=06%3A00", "=");
    let answer = post(&fake, "/api/save_calendar", &wrong).await;
    assert_eq!(answer.location.as_deref(), Some("/calendars/new"));
    assert!(done(&fake).is_empty());
    let page = get(&fake, "/calendars/new").await;
    page.assert_contains(&[
        "3 problems need attention",
        "href=\"#f-name\"",
        "href=\"#f-dates\"",
        "href=\"#f-windows-0\"",
    ]);
    page.assert_contains(&[": got New Year", "Enter an end time", "2026-12-24 to 2026-12-26\r\nNew Year</textarea>"]);
    page.assert_contains(&["name=\"form[windows][0][sat]\" value=\"on\" checked", "value=\"22:00\""]);
}

#[tokio::test]
async fn edit_form_names_the_jobs_that_use_the_calendar() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let path = format!("/calendars/{}/edit", samples::calendar_id());
    let page = get(&fake, &path).await;
    page.assert_contains(&[
        "value=\"Holidays\"",
        "2026-12-24 to 2026-12-26</textarea>",
        "name=\"form[version]\" value=\"3\"",
    ]);
    page.assert_contains(&[
        "name=\"form[windows][0][fri]\" value=\"on\" checked",
        "value=\"22:00\"",
        ">nightly report<",
    ]);
    page.assert_contains(&["The change is being applied to 1 job."]);
    page.assert_lacks(&["action=\"/api/delete_calendar\""]);
    assert_eq!(get(&fake, "/calendars/nonsense/edit").await.status, StatusCode::NOT_FOUND);

    get(&fake, &format!("{path}?confirm=delete"))
        .await
        .assert_contains(&["Delete calendar Holidays?", "/api/delete_calendar"]);
    let answer = post(&fake, "/api/delete_calendar", &format!("id={}", samples::calendar_id())).await;
    assert_eq!(answer.location.as_deref(), Some(path.as_str()));
    let refused = get(&fake, &path).await;
    refused.assert_contains(&["nightly report still uses Holidays", "value=\"Holidays\""]);
    refused.assert_lacks(&["1 problem needs attention"]);
}

#[tokio::test]
async fn job_form_selects_calendars() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let name = format!("name=\"form[rules][calendar_{}]\" value=\"on\"", samples::calendar_id());
    get(&fake, "/jobs/new")
        .await
        .assert_contains(&[&name, "Run when the blackout ends"])
        .assert_lacks(&[&format!("{name} checked")]);
    let edit = get(&fake, &format!("/jobs/{}/edit", samples::job_id())).await;
    edit.assert_contains(&[&format!("{name} checked")]);

    // The selection comes back after a refusal.
    let ticked = format!("&form%5Brules%5D%5Bcalendar_{}%5D=on", samples::calendar_id());
    let wrong = VALID_JOB_FORM.replace("=Hourly+check", "=");
    post(&fake, "/api/save_job", &format!("{wrong}{ticked}")).await;
    get(&fake, "/jobs/new?type=local%2Fhttp-request").await.assert_contains(&[&format!("{name} checked")]);
    let none = get(&FakeBackend::signed_in(Role::Operator).empty().ready(), "/jobs/new").await;
    none.assert_contains(&["No calendars yet.", "href=\"/calendars/new\""]);
}
