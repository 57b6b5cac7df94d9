//! Every form of the dashboard, posted as a browser without scripts posts it.

mod account;
mod action_errors;
mod alerts;
mod calendars;
mod cancel_and_pause;
mod failures;
mod singletons;
mod team;
mod tokens;
mod versions;

use axum::http::StatusCode;
use milvaion_api::{
    permissions::{ALL_PERMISSIONS, Role},
    rules_form,
};

use crate::common::{
    FakeBackend,
    fake::{
        alerts::{channel_id, rule_id},
        team::grace,
    },
    get, post, post_as_script, post_from, samples,
};

/// A valid job form, encoded as a browser encodes it.
const VALID_JOB_FORM: &str = "form%5Bid%5D=&form%5Bversion%5D=&form%5Bdisplay_name%5D=Hourly+check&form%5Btarget%5D=local%2Fhttp-request\
                     &form%5Binput_mode%5D=form&form%5Binput%5D%5Burl%5D=http%3A%2F%2Flocalhost%2F&form%5Binput_json%5D=%7B%7D\
                     &form%5Bkind%5D=cron&form%5Bcron%5D=0+*+*+*+*&form%5Bzone%5D=Europe%2FWarsaw&form%5Bevery%5D=10\
                     &form%5Bevery_unit%5D=minutes&form%5Bonce%5D=&form%5Bis_active%5D=on&form%5Bpriority%5D=3\
                     &form%5Btimeout_seconds%5D=&form%5Btags%5D=a%2C+b&form%5Bdescription%5D=";

fn done(fake: &FakeBackend) -> Vec<String> {
    fake.done.lock().expect("the mutex is not poisoned").clone()
}

#[tokio::test]
async fn sign_in_returns_to_the_requested_page() {
    let fake = FakeBackend::signed_out().ready();
    get(&fake, "/login?next=/jobs%3Fq%3Da").await.assert_contains(&[
        "action=\"/api/sign_in\"",
        "method=\"post\"",
        "value=\"/jobs?q=a\"",
        "autocomplete=\"current-password\"",
    ]);
    let form = "email=ada%40example.org&passphrase=correct+horse+battery&next=%2Fjobs%3Fq%3Da";
    let answer = post(&fake, "/api/sign_in", form).await;
    assert_eq!((answer.status, answer.location.as_deref()), (StatusCode::FOUND, Some("/jobs?q=a")));
    let elsewhere =
        post(&fake, "/api/sign_in", "email=a&passphrase=correct+horse+battery&next=%2F%2Fevil.example").await;
    assert_eq!(elsewhere.location.as_deref(), Some("/"));
}

#[tokio::test]
async fn wrong_passphrase_is_reported_and_not_kept() {
    let fake = FakeBackend::signed_out().ready();
    let answer = post(&fake, "/api/sign_in", "email=ada%40example.org&passphrase=not-this-one&next=%2Fjobs").await;
    assert_eq!(answer.location.as_deref(), Some("/login?next=/jobs"));
    let page = get(&fake, "/login?next=/jobs").await;
    page.assert_contains(&[
        "The e-mail address or the passphrase is wrong.",
        "value=\"ada@example.org\"",
        "aria-invalid=\"true\"",
    ]);
    page.assert_lacks(&["not-this-one"]);
    get(&fake, "/login?next=/jobs").await.assert_lacks(&["passphrase is wrong"]);
}

#[tokio::test]
async fn sign_in_page_mentions_the_setup_link_before_setup() {
    get(&FakeBackend::signed_out().empty().ready(), "/login").await.assert_contains(&["prints a setup link"]);
    get(&FakeBackend::signed_out().ready(), "/login").await.assert_lacks(&["prints a setup link"]);
    let inside = get(&FakeBackend::signed_in(Role::Viewer).ready(), "/login?next=/jobs").await;
    assert_eq!((inside.status, inside.location.as_deref()), (StatusCode::FOUND, Some("/jobs")));
}

#[tokio::test]
async fn one_time_link_creates_an_account_or_explains() {
    let fake = FakeBackend::signed_out().ready();
    get(&fake, "/setup?token=setup").await.assert_contains(&[
        "Set up Milvaion",
        "value=\"setup\"",
        "At least 12 characters",
    ]);
    get(&fake, "/invite?token=good").await.assert_contains(&["You were invited as Operator", "value=\"Grace\""]);
    let spent = get(&fake, "/setup?token=old").await;
    assert_eq!(spent.status, StatusCode::NOT_FOUND);
    spent.assert_contains(&["restart the server"]);
    get(&fake, "/invite").await.assert_contains(&["Ask the Admin who sent it"]);

    let short = "token=setup&page=setup&name=Ada&email=ada%40example.org&passphrase=short";
    let answer = post(&fake, "/api/accept_link", short).await;
    assert_eq!(answer.location.as_deref(), Some("/setup?token=setup"));
    let page = get(&fake, "/setup?token=setup").await;
    page.assert_contains(&["Use at least 12 characters.", "value=\"Ada\"", "value=\"ada@example.org\""])
        .assert_lacks(&["value=\"short\""]);

    let right = "token=good&page=invite&name=Grace&email=g%40example.org&passphrase=long+enough+this";
    let answer = post(&fake, "/api/accept_link", right).await;
    assert_eq!((answer.status, answer.location.as_deref()), (StatusCode::FOUND, Some("/")));
    assert_eq!(done(&fake), ["accept Grace"]);
}

#[tokio::test]
async fn job_is_created_without_a_script() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let page = get(&fake, "/jobs/new?type=local%2Fhttp-request").await;
    page.assert_contains(&[
        "name=\"form[input][url]\"",
        "name=\"form[input_json]\"",
        "name=\"form[kind]\"",
        "The URL to request.",
    ]);
    page.assert_contains(&["<option value=\"Europe/Warsaw\">", "name=\"then\"", "formaction=\"/api/check_job\""]);

    let answer = post(&fake, "/api/save_job", VALID_JOB_FORM).await;
    assert_eq!(answer.status, StatusCode::FOUND, "{}", answer.body);
    assert_eq!(answer.location, Some(format!("/jobs/{}", samples::job_id())));
    assert_eq!(done(&fake), ["save Hourly check"]);
    get(&fake, &format!("/jobs/{}", samples::job_id())).await.assert_contains(&["The job is created."]);

    post(&fake, "/api/save_job", &format!("{VALID_JOB_FORM}&then=run")).await;
    assert_eq!(done(&fake)[1..], ["save Hourly check", "trigger "]);
}

#[tokio::test]
async fn refused_first_run_is_reported_with_its_reason() {
    let fake = FakeBackend::signed_in(Role::Operator).paused("upgrade").ready();
    let answer = post(&fake, "/api/save_job", &format!("{VALID_JOB_FORM}&then=run")).await;
    assert_eq!(answer.location, Some(format!("/jobs/{}", samples::job_id())));
    assert_eq!(done(&fake), ["save Hourly check"]);
    let page = get(&fake, &format!("/jobs/{}", samples::job_id())).await;
    page.assert_contains(&[
        "data-kind=\"warn\"",
        "The job is created, but it is not queued to run now. All schedules are paused (upgrade).",
    ]);
    page.assert_lacks(&["created and queued"]);
}

#[tokio::test]
async fn sign_in_page_states_only_known_reasons() {
    let fake = FakeBackend::signed_out().ready();
    get(&fake, "/login?next=/jobs&reason=signed-out")
        .await
        .assert_contains(&["Your session has ended. Sign in to continue."]);
    for reason in ["", "&reason=", "&reason=closed", "&reason=%3Cb%3E"] {
        get(&fake, &format!("/login?next=/jobs{reason}")).await.assert_lacks(&["Sign in to continue"]);
    }
}

#[tokio::test]
async fn signed_out_form_leads_to_the_sign_in_page() {
    let fake = FakeBackend::signed_out().ready();
    let form = "/jobs/new?type=local/http-request";
    let sign_in = "/login?next=/jobs/new%3Ftype%3Dlocal/http-request&reason=form-not-sent";
    for (call, values) in [("/api/save_job", VALID_JOB_FORM), ("/api/check_job", VALID_JOB_FORM)] {
        let answer = post_from(&fake, form, call, values).await;
        assert_eq!((answer.status, answer.location.as_deref()), (StatusCode::FOUND, Some(sign_in)), "{call}");
    }
    get(&fake, sign_in).await.assert_contains(&["The form was not sent: nothing was changed", "Sign in to continue."]);
    let script = post_as_script(&fake, "/api/save_job", VALID_JOB_FORM).await;
    assert_eq!((script.status, script.location), (StatusCode::UNAUTHORIZED, None));
    // Only a local path is followed after the sign-in.
    for page in ["//evil.example/jobs", ""] {
        let answer = post_from(&fake, page, "/api/save_job", VALID_JOB_FORM).await;
        assert_eq!(answer.location.as_deref(), Some("/login?next=/&reason=form-not-sent"), "{page:?}");
    }
    assert!(done(&fake).is_empty());
}

#[tokio::test]
async fn denied_form_returns_to_its_page_with_the_reason() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let page = format!("/jobs/{}", samples::job_id());
    let answer = post_from(&fake, &page, "/api/delete_job", &format!("id={}", samples::job_id())).await;
    assert_eq!((answer.status, answer.location.as_deref()), (StatusCode::FOUND, Some(page.as_str())));
    get(&fake, &page).await.assert_contains(&["data-kind=\"warn\"", "You are Operator. Only Admin may "]);
    get(&fake, &page).await.assert_lacks(&["Only Admin may "]);
    assert!(done(&fake).is_empty());
}

#[tokio::test]
async fn page_has_at_most_one_error_summary_with_an_id() {
    let fake = FakeBackend::signed_in(Role::Admin).ready();
    let job = format!("/jobs/{}", samples::job_id());
    let user = format!("/team/{}", grace());
    for path in [
        "/",
        "/jobs/new",
        job.as_str(),
        "/calendars/new",
        "/failed?tab=dead-letters",
        "/team",
        "/tokens",
        user.as_str(),
    ] {
        let page = get(&fake, path).await;
        let found = page.body.matches("id=\"error-summary\"").count();
        assert!(found <= 1, "{path} has {found} elements of this id");
    }
}

#[tokio::test]
async fn copy_of_a_job_starts_as_a_new_job() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let page = get(&fake, &format!("/jobs/new?from={}", samples::job_id())).await;
    page.assert_contains(&["value=\"Copy of ", ">New job<", ">Create<"]);
    page.assert_lacks(&[&format!("value=\"{}\"", samples::job_id())]);
    assert!(done(&fake).is_empty());
}

#[tokio::test]
async fn refused_job_form_keeps_input_and_marks_errors() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let wrong = VALID_JOB_FORM
        .replace("=0+*+*+*+*", "=61+*+*+*+*")
        .replace("=Hourly+check", "=")
        .replace("%5Burl%5D=http%3A%2F%2Flocalhost%2F", "%5Burl%5D=");
    let answer = post(&fake, "/api/save_job", &wrong).await;
    assert_eq!(answer.location.as_deref(), Some("/jobs/new?type=local/http-request"));
    assert!(done(&fake).is_empty());
    let page = get(&fake, "/jobs/new?type=local%2Fhttp-request").await;
    page.assert_contains(&[
        "3 problems need attention",
        "href=\"#f-display_name\"",
        "href=\"#f-cron\"",
        "href=\"#f-input-url\"",
    ]);
    page.assert_contains(&[
        "Enter a name for the job",
        "value=\"61 * * * *\"",
        "value=\"a, b\"",
        "aria-invalid=\"true\"",
    ]);
    get(&fake, "/jobs/new").await.assert_lacks(&["Enter a name for the job"]);
}

#[tokio::test]
async fn rules_are_shown_in_words_and_defaults_collapsed() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let fresh = get(&fake, "/jobs/new").await;
    fresh.assert_contains(&[
        "name=\"form[rules][overlap]\" value=\"allow\" checked",
        "Wait for the previous run to end",
        "Run each missed due time",
    ]);
    fresh.assert_contains(&["name=\"form[every_from]\" value=\"fire\" checked", "The end of the previous run"]);
    fresh.assert_contains(&["id=\"f-rules-jitter_seconds\"", "id=\"f-rules-start_at\"", "type=\"datetime-local\""]);
    fresh.assert_contains(&["No retries: a failed attempt ends the occurrence."]);
    assert_eq!(open_sections(&fresh.body), [false; 5], "start, blackouts, overlap, failures, limits");

    let edit = get(&fake, &format!("/jobs/{}/edit", samples::job_id())).await;
    assert_eq!(open_sections(&edit.body), [true, true, true, false, false], "sections with changed fields are open");
    // The sample's start is 14:02 UTC, and its schedule is in the time zone of Warsaw.
    edit.assert_contains(&["value=\"2026-11-22T15:02:00\"", "name=\"form[rules][overlap]\" value=\"queue\" checked"]);
    for rule in rules_form::default_fields().keys() {
        edit.assert_contains(&[format!("name=\"form[rules][{rule}]\"").as_str()]);
    }
    edit.assert_contains(&["value=\"4\"", "value=\"25\"", "after 5 s, 10 s, 20 s and 40 s, each up to 25 % sooner."]);
}

#[tokio::test]
async fn invalid_rules_come_back_as_typed() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let rules = "&form%5Brules%5D%5Bstart_at%5D=2027-03-28T02%3A30&form%5Brules%5D%5Boverlap%5D=replace\
                 &form%5Brules%5D%5Bmisfire%5D=catch_up&form%5Brules%5D%5Bcatch_up_limit%5D=lots\
                 &form%5Brules%5D%5Bconcurrency_key%5D=tenant-7&form%5Brules%5D%5Bend_at%5D=tomorrow\
                 &form%5Brules%5D%5Bauto_disable_window_seconds%5D=60&form%5Brules%5D%5Bmax_retries%5D=7";
    let answer = post(&fake, "/api/save_job", &format!("{VALID_JOB_FORM}{rules}")).await;
    assert_eq!(answer.location.as_deref(), Some("/jobs/new?type=local/http-request"));
    assert!(done(&fake).is_empty());
    let page = get(&fake, "/jobs/new?type=local%2Fhttp-request").await;
    page.assert_contains(&[
        "4 problems need attention",
        "href=\"#f-rules-start_at\"",
        "href=\"#f-rules-catch_up_limit\"",
    ]);
    page.assert_contains(&["does not exist in Europe/Warsaw", "got lots", "Enter the number of failures"]);
    page.assert_contains(&["value=\"2027-03-28T02:30\"", "value=\"lots\"", "value=\"tomorrow\"", "value=\"tenant-7\""]);
    page.assert_contains(&["value=\"replace\" checked", "value=\"catch_up\" checked", "Up to 7 retries"]);
    assert_eq!(open_sections(&page.body), [true, false, true, true, false], "sections with errors are open");

    let right = rules.replace("2027-03-28T02%3A30", "2027-03-28T03%3A30").replace("lots", "5");
    let right = right.replace("tomorrow", "").replace("window_seconds%5D=60", "window_seconds%5D=");
    let answer = post(&fake, "/api/save_job", &format!("{VALID_JOB_FORM}{right}")).await;
    assert_eq!(answer.location, Some(format!("/jobs/{}", samples::job_id())), "{}", answer.body);
}

/// Returns for each collapsible section of the job form, in order, true if it is open.
fn open_sections(body: &str) -> Vec<bool> {
    let form = body.split("id=\"job-form\"").nth(1).and_then(|rest| rest.split("</form>").next());
    let sections = form.expect("a job form").split("<details").skip(1);
    sections.map(|section| section.split('>').next().is_some_and(|tag| tag.contains("open"))).collect()
}

#[tokio::test]
async fn check_shows_the_next_runs_and_saves_nothing() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let answer = post(&fake, "/api/check_job", VALID_JOB_FORM).await;
    assert_eq!(answer.location.as_deref(), Some("/jobs/new?type=local/http-request"));
    let page = get(&fake, "/jobs/new?type=local%2Fhttp-request").await;
    page.assert_contains(&[
        "Nothing is saved yet.",
        "2026-11-22 09:00 CET",
        "value=\"Hourly check\"",
        "value=\"http://localhost/\"",
    ]);
    assert!(done(&fake).is_empty());
}

#[tokio::test]
async fn edit_form_starts_with_the_current_definition() {
    let fake = FakeBackend::signed_in(Role::Operator).ready();
    let page = get(&fake, &format!("/jobs/{}/edit", samples::job_id())).await;
    page.assert_contains(&[
        "value=\"nightly report\"",
        "value=\"0 9 * * *\"",
        "value=\"http://127.0.0.1:9/report\"",
        "Requests the report.",
    ]);
    page.assert_contains(&["name=\"form[version]\" value=\"2\""]).assert_lacks(&["Create and run now"]);
    assert_eq!(get(&fake, "/jobs/nonsense/edit").await.status, StatusCode::NOT_FOUND);
    let viewer = FakeBackend::signed_in(Role::Viewer).ready();
    assert_eq!(get(&viewer, "/jobs/new").await.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn job_form_without_workers_explains_the_next_step() {
    let fake = FakeBackend::signed_in(Role::Operator).empty().ready();
    get(&fake, "/jobs/new").await.assert_contains(&["No job types available"]);
    get(&fake, "/jobs").await.assert_contains(&["No jobs yet", "Create the first job"]);
    get(&fake, "/jobs?q=x").await.assert_contains(&["No job matches", "Show all jobs"]);
}

#[tokio::test]
async fn job_page_shows_only_the_permitted_actions() {
    let path = format!("/jobs/{}", samples::job_id());
    let admin = get(&FakeBackend::signed_in(Role::Admin).ready(), &path).await;
    admin.assert_contains(&[
        "Requests the report.",
        "At 09:00",
        "2026-11-22 09:00 CET",
        "Run now",
        "Delete…",
        "/edit\"",
        "data-status=\"active\"",
    ]);
    // Of the rules, only those that differ from the defaults are listed.
    admin.assert_contains(&[
        "<dt>Overlap policy",
        "Wait for the previous run to end",
        "<dt>Starts",
        "2026-11-22 14:02:00 UTC",
    ]);
    admin.assert_contains(&["up to 30 seconds later"]).assert_lacks(&["<dt>Misfire policy"]);
    admin.assert_contains(&["<dt>Retries", "Up to 4 retries, after 5 s, 10 s, 20 s and 40 s, each up to 25 % sooner<"]);
    let calendar = format!("href=\"/calendars/{}/edit\"", samples::calendar_id());
    admin.assert_contains(&["<dt>Blackout calendars", &calendar, ">Holidays<", "Runs due in a blackout are skipped"]);
    let operator = get(&FakeBackend::signed_in(Role::Operator).ready(), &format!("{path}?confirm=delete")).await;
    operator.assert_contains(&["Run now", "Pause"]).assert_lacks(&["Delete"]);
    let viewer = get(&FakeBackend::signed_in(Role::Viewer).ready(), &path).await;
    viewer.assert_contains(&["Definition", "href=\"/calendars\">Holidays<"]).assert_lacks(&[
        "Run now",
        "action=\"/api/set_job_active\"",
        "/edit\"",
        "action=\"/api/trigger_job\"",
    ]);
    let confirmation = get(&FakeBackend::signed_in(Role::Admin).ready(), &format!("{path}?confirm=delete")).await;
    confirmation.assert_contains(&["Delete job nightly report?", "action=\"/api/delete_job\""]);
}

#[tokio::test]
async fn run_pause_and_delete_are_plain_forms() {
    let fake = FakeBackend::signed_in(Role::Admin).ready();
    let id = samples::job_id();
    let run = post(&fake, "/api/trigger_job", &format!("id={id}")).await;
    assert_eq!(run.location, Some(format!("/occurrences/{}", samples::occurrence_id(0))));
    let pause = post(&fake, "/api/set_job_active", &format!("id={id}&active=false&back=%2Fjobs%3Fq%3Da")).await;
    assert_eq!(pause.location.as_deref(), Some("/jobs?q=a"));
    let resume = post(&fake, "/api/set_job_active", &format!("id={id}&active=true")).await;
    assert_eq!(resume.location, Some(format!("/jobs/{id}")));
    let delete = post(&fake, "/api/delete_job", &format!("id={id}")).await;
    assert_eq!(delete.location.as_deref(), Some("/jobs"));
    assert_eq!(done(&fake), ["trigger ", "pause", "resume", "delete"]);
    get(&fake, "/jobs").await.assert_contains(&["nightly report", "/occurrences/", "Completed, "]);
}

#[tokio::test]
async fn invitation_link_is_shown_once() {
    let fake = FakeBackend::signed_in(Role::Admin).ready();
    get(&fake, "/team").await.assert_contains(&[
        "Invite a user",
        "name=\"role\"",
        "ada@example.org",
        "6 users and invitations",
    ]);
    let answer = post(&fake, "/api/invite_user", "name=Grace&role=operator").await;
    assert_eq!(answer.location.as_deref(), Some("/team"));
    get(&fake, "/team").await.assert_contains(&["Grace can now join as Operator", "/invite?token=good"]);
    get(&fake, "/team").await.assert_lacks(&["/invite?token=good"]);
    assert_eq!(done(&fake), ["invite Grace as operator"]);
}

#[tokio::test]
async fn sample_job_leads_to_its_occurrence() {
    let fake = FakeBackend::signed_in(Role::Operator).empty().ready();
    let key = format!("sample-{}", samples::at(30).timestamp_millis());
    let page = get(&fake, "/").await;
    page.assert_contains(&["action=\"/api/run_sample_job\"", &format!("value=\"{key}\""), "Run a sample job"]);
    page.assert_lacks(&["No live worker offers the job type demo"]);
    let answer = post(&fake, "/api/run_sample_job", &format!("idempotency_key={key}")).await;
    let occurrence = format!("/occurrences/{}", samples::occurrence_id(0));
    assert_eq!((answer.status, answer.location.as_deref()), (StatusCode::FOUND, Some(occurrence.as_str())));
    assert_eq!(done(&fake), [format!("sample {key}")]);
}

#[tokio::test]
async fn sample_job_without_a_worker_states_the_reason() {
    let fake = FakeBackend::signed_in(Role::Operator).empty().without_worker().ready();
    let reason = "No live worker offers the job type demo. Start milvaion-worker.";
    get(&fake, "/").await.assert_contains(&["aria-disabled=\"true\"", reason]);
    let answer = post(&fake, "/api/run_sample_job", "idempotency_key=k").await;
    assert_eq!(answer.location.as_deref(), Some("/"));
    get(&fake, "/").await.assert_contains(&["The sample job has no live worker."]);
}

#[tokio::test]
async fn server_refuses_forbidden_calls_of_any_role() {
    let id = samples::job_id();
    let calls = [
        ("/api/trigger_job", format!("id={id}"), Role::Operator),
        ("/api/set_job_active", format!("id={id}&active=false"), Role::Operator),
        ("/api/save_job", VALID_JOB_FORM.to_owned(), Role::Operator),
        ("/api/check_job", VALID_JOB_FORM.to_owned(), Role::Operator),
        ("/api/save_calendar", calendars::VALID_CALENDAR_FORM.to_owned(), Role::Operator),
        ("/api/check_calendar", calendars::VALID_CALENDAR_FORM.to_owned(), Role::Operator),
        ("/api/delete_calendar", format!("id={}", samples::calendar_id()), Role::Operator),
        ("/api/cancel_occurrence", format!("id={}", samples::occurrence_id(0)), Role::Operator),
        ("/api/cancel_delayed", format!("id={id}"), Role::Operator),
        ("/api/skip_due", format!("id={id}&due=2026-11-21T15%3A02%3A00Z"), Role::Operator),
        ("/api/retry_failure", format!("id={}", samples::occurrence_id(0)), Role::Operator),
        ("/api/retry_failures", format!("ids%5B%5D={}", samples::occurrence_id(0)), Role::Operator),
        ("/api/resolve_failures", format!("ids%5B%5D={}", samples::occurrence_id(0)), Role::Operator),
        ("/api/resolve_dead_letters", format!("ids%5B%5D={}", samples::dead_letter().id), Role::Operator),
        ("/api/restore_version", format!("id={id}&version=1&expected=2"), Role::Operator),
        ("/api/pause_cluster", "reason=the+disk+is+full".to_owned(), Role::Operator),
        ("/api/resume_cluster", String::new(), Role::Operator),
        ("/api/control_loop", "name=price-feed&action=disable".to_owned(), Role::Operator),
        ("/api/run_sample_job", String::new(), Role::Operator),
        ("/api/save_alert_rule", alerts::VALID_RULE_FORM.to_owned(), Role::Operator),
        ("/api/mute_alert_rule", format!("id={}&length=1h", rule_id(1)), Role::Operator),
        ("/api/unmute_alert_rule", format!("id={}", rule_id(1)), Role::Operator),
        ("/api/delete_alert_rule", format!("id={}&version=3", rule_id(1)), Role::Operator),
        ("/api/save_alert_channel", alerts::VALID_CHANNEL_FORM.to_owned(), Role::Admin),
        ("/api/delete_alert_channel", format!("id={}&version=5", channel_id(3)), Role::Admin),
        ("/api/test_alert_channel", format!("id={}", channel_id(1)), Role::Admin),
        ("/api/delete_job", format!("id={id}"), Role::Admin),
        ("/api/invite_user", "name=Eve&role=admin".to_owned(), Role::Admin),
        ("/api/renew_invite", format!("id={id}"), Role::Admin),
        ("/api/revoke_invite", format!("id={id}"), Role::Admin),
        ("/api/change_role", format!("id={id}&role=admin"), Role::Admin),
        ("/api/set_user_active", format!("id={id}&active=false"), Role::Admin),
        ("/api/remove_user", format!("id={id}"), Role::Admin),
        ("/api/create_reset_link", format!("id={id}"), Role::Admin),
        ("/api/revoke_reset_link", format!("id={id}"), Role::Admin),
        ("/api/unlock_user", format!("id={id}"), Role::Admin),
        ("/api/end_user_sessions", format!("id={id}"), Role::Admin),
    ];
    // Every changing permission needs a role that at least one of these calls needs too. Every role may change the own
    // account.
    assert!(
        ALL_PERMISSIONS
            .iter()
            .filter(|action| action.mutates() && action.required_role() > Role::Viewer)
            .all(|action| calls.iter().any(|call| call.2 == action.required_role()))
    );
    for (path, form, needed) in &calls {
        for role in [Role::Viewer, Role::Operator, Role::Admin] {
            let fake = FakeBackend::signed_in(role).ready();
            let answer = post(&fake, path, form).await;
            assert_eq!(answer.status, StatusCode::FOUND, "{path} as {role:?}");
            if role < *needed {
                let script = post_as_script(&fake, path, form).await;
                assert_eq!((script.status, script.location), (StatusCode::FORBIDDEN, None), "{path} as {role:?}");
                assert!(done(&fake).is_empty(), "{path} as {role:?}");
                get(&fake, "/").await.assert_contains(&[&format!("You are {}. Only ", role.label())]);
            }
        }
    }
}
