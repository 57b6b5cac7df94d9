//! The history of a job: reading, comparing and restoring versions as a browser without scripts does.

use axum::http::StatusCode;
use milvaion_api::permissions::Role;

use super::done;
use crate::common::{FakeBackend, get, post, samples};

#[tokio::test]
async fn history_lists_authors_and_changed_fields() {
    let fake = FakeBackend::signed_in(Role::Viewer).ready();
    let path = format!("/jobs/{}?tab=history", samples::job_id());
    let page = get(&fake, &path).await;
    page.assert_contains(&["Name, Rules: max retries", "Created", "Current", "Ada", "from=1&amp;to=2#compared"]);
    page.assert_contains(&["from=2&amp;to=1#compared", "aria-current=\"page\">History"]).assert_lacks(&["/ restore"]);
    let compared = get(&fake, &format!("{path}&from=2&to=1")).await;
    compared.assert_contains(&["nightly &lt;report&gt;", "Not set", "Rules: max retries"]);
    compared.assert_lacks(&["/api/restore_version"]);
    get(&fake, &format!("{path}&from=2&to=2")).await.assert_contains(&["The two versions are identical."]);
    assert_eq!(get(&fake, &format!("{path}&from=2&to=9")).await.status, StatusCode::NOT_FOUND);
    get(&fake, &format!("{path}&from=x&to=1")).await.assert_lacks(&["id=\"compared\""]);
}

#[tokio::test]
async fn version_is_restored_unless_the_job_changed() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let job = samples::job_id();
    let path = format!("/jobs/{job}?tab=history");
    let current = get(&fake, &format!("{path}&from=2&to=1")).await;
    current.assert_contains(&[
        "action=\"/api/restore_version\"",
        "name=\"expected\" value=\"2\"",
        "name=\"version\" value=\"1\"",
    ]);
    let earlier = get(&fake, &format!("{path}&from=1&to=2")).await;
    earlier.assert_lacks(&["/api/restore_version"]);

    let answer = post(&fake, "/api/restore_version", &format!("id={job}&version=1&expected=1")).await;
    assert_eq!(answer.location.as_deref(), Some(path.as_str()));
    get(&fake, &path).await.assert_contains(&["This job was changed by another user."]);
    assert!(done(&fake).is_empty());
    let answer = post(&fake, "/api/restore_version", &format!("id={job}&version=1&expected=2")).await;
    assert_eq!((answer.status, answer.location.as_deref()), (StatusCode::FOUND, Some(path.as_str())));
    get(&fake, &path).await.assert_contains(&["Version 1 is restored, as version 3."]);
    assert_eq!(done(&fake), ["restore 1"]);
}
