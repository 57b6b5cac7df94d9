//! The places where the errors of actions are shown.

use milvaion_api::permissions::Role;
use milvaion_app::{backend::FlashMessage, error::AppError};
use milvaion_protocol::status::OccurrenceStatus;

use crate::common::{FakeBackend, fake::team::grace, get, samples};

#[tokio::test]
async fn places_of_action_errors_exist_from_the_start() {
    let admin = || FakeBackend::signed_in(Role::Admin);
    let job = format!("/jobs/{}", samples::job_id());
    let occurrence = format!("/occurrences/{}", samples::occurrence_id(0));
    let user = format!("/team/{}", grace());
    let calendar = format!("/calendars/{}/edit", samples::calendar_id());
    let pages = [
        // Run, pause and delete, the dialog of the pause, attaching to the code, cancelling what is delayed, and skipping the
        // next run. The sign-out button of the user menu is not in the page.
        (admin().ready(), job.as_str(), 7),
        (admin().paused("upgrade").ready(), "/help", 1),
        // Run and pause of the only row.
        (admin().ready(), "/jobs", 2),
        // Cancel, and the older entries of the audit log.
        (admin().with_status(OccurrenceStatus::Running).ready(), &occurrence, 2),
        (admin().ready(), &calendar, 1),
        // New link and revoke.
        (admin().ready(), "/team", 2),
        // Rotate and revoke share one.
        (admin().ready(), "/tokens", 1),
        // Unlock, role, sessions, the reset link and its revocation, access, and the older entries of the audit log.
        (admin().ready(), &user, 7),
        (admin().empty().ready(), "/", 1),
        (FakeBackend::signed_in(Role::Viewer).ready(), "/jobs", 0),
    ];
    for (fake, path, expected) in pages {
        let page = get(&fake, path).await;
        let (_, content) = page.body.split_once("<main").expect("the page has contents");
        assert_eq!(content.matches("class=\"action-error\"").count(), expected, "{path}");
        page.assert_lacks(&["Dismiss the error"]);
    }
}

#[tokio::test]
async fn signed_out_error_links_to_the_sign_in_page() {
    let path = format!("/jobs/{}", samples::job_id());
    for (error, links) in [(AppError::SignedOut, true), (AppError::Conflict("The job is paused.".into()), false)] {
        let fake = FakeBackend::signed_in(Role::Operator).ready();
        let flash = FlashMessage { form: "trigger".into(), error: Some(error.to_string()), ..FlashMessage::default() };
        fake.flashes.lock().expect("the mutex is not poisoned").push(flash);
        let page = get(&fake, &path).await;
        page.assert_contains(&["1 problem needs attention", &error.to_string()]);
        assert_eq!(page.body.contains("href=\"/login?next="), links, "{error}");
    }
}
