//! The rights of every role at every door: server functions, pages, the event stream, downloads and health checks.
//!
//! One table names the permission that each door needs. The expected answers follow from the permission's role, which is
//! the table that the server itself uses. A door that is missing here fails the test with its name, so that nothing new
//! is reachable without a decision. The few routes that are neither are listed by hand.

use std::collections::BTreeSet;

use http::{Method, StatusCode, header};
use leptos::server_fn::axum::server_fn_paths;
use leptos_axum::generate_route_list;
use milvaion_api::{
    permissions::{ALL_PERMISSIONS, Permission, Role},
    views::CurrentUser,
};
use milvaion_app::{
    backend::{RequestUser, TeamBackend},
    routes::App,
};
use milvaion_server::{
    http::session::{self, PostgresSessionStore, SessionOrigin},
    lifecycle::Server,
};
use milvaion_test_support::server_env;
use tower_sessions::Session;

use crate::users::harness::{join, setup_link};

/// The requests that a door admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Requests without a session too.
    Public,
    /// Requests of users with this permission.
    Needs(Permission),
}

use Access::{Needs, Public};
use Permission::{
    CancelOccurrence, ControlLoops, DefineAlert, DefineCalendar, DefineJob, DeleteJob, Export, ManageAccount,
    ManageAlertChannels, ManageTeam, ManageTokens, PauseCluster, Read, ReadAudit, ReadObjectAudit, ReadTeam, RunJob,
    SettleFailures,
};

/// An id that belongs to nothing.
const ID: &str = "id=00000000-0000-7000-8000-000000000000";

/// The server functions: name, access, and valid parameters that change nothing. `{id}` stands for [`ID`].
const FUNCTIONS: &[(&str, Access, &str)] = &[
    ("whoami", Public, ""),
    ("sign_in_page", Public, ""),
    ("take_flash", Public, "form=none"),
    ("sign_in", Public, ""),
    ("sign_out", Public, ""),
    ("one_time_link", Public, "token=none"),
    ("accept_link", Public, "token=none"),
    ("overview", Needs(Read), ""),
    ("cluster_status", Needs(Read), ""),
    ("jobs", Needs(Read), "filter[q]="),
    ("job", Needs(Read), "{id}"),
    ("job_name", Needs(Read), "{id}"),
    ("run_input", Needs(Read), "{id}&job_id=00000000-0000-7000-8000-000000000000"),
    ("delayed_count", Needs(Read), "{id}"),
    ("job_history", Needs(Read), "{id}"),
    ("compare_versions", Needs(Read), "{id}&from=1&to=2"),
    ("occurrences", Needs(Read), ""),
    ("occurrence", Needs(Read), "{id}"),
    ("log_before", Needs(Read), "{id}&before_seq=1"),
    ("log_range", Needs(Read), "{id}&after=0&before=1"),
    ("failures", Needs(Read), ""),
    ("failure", Needs(Read), "{id}"),
    ("failure_groups", Needs(Read), ""),
    ("failure_preview", Needs(SettleFailures), "filter[text]=none"),
    ("dead_letters", Needs(Read), ""),
    ("calendars", Needs(Read), ""),
    ("alerts", Needs(Read), ""),
    ("alert_rules", Needs(Read), ""),
    ("alert_rule", Needs(Read), "{id}"),
    ("alert_rule_page", Needs(DefineAlert), ""),
    ("save_alert_rule", Needs(DefineAlert), "form[name]="),
    ("mute_alert_rule", Needs(DefineAlert), "{id}"),
    ("unmute_alert_rule", Needs(DefineAlert), "{id}"),
    ("delete_alert_rule", Needs(DefineAlert), "{id}&version=1"),
    ("alert_channels", Needs(DefineAlert), ""),
    ("alert_channel_page", Needs(ManageAlertChannels), ""),
    ("save_alert_channel", Needs(ManageAlertChannels), "form[name]="),
    ("delete_alert_channel", Needs(ManageAlertChannels), "{id}&version=1"),
    ("test_alert_channel", Needs(ManageAlertChannels), "{id}"),
    ("workers", Needs(Read), ""),
    ("singleton_loops", Needs(Read), ""),
    ("control_loop", Needs(ControlLoops), "name=price-feed&action=disable"),
    ("own_audit", Needs(Read), ""),
    ("account", Needs(ManageAccount), ""),
    ("account_page", Needs(ManageAccount), ""),
    ("rename_account", Needs(ManageAccount), ""),
    ("change_passphrase", Needs(ManageAccount), ""),
    ("end_own_sessions", Needs(ManageAccount), "session=00000000-0000-7000-8000-000000000000"),
    ("save_preferences", Needs(ManageAccount), ""),
    ("tokens", Needs(ManageTokens), ""),
    ("create_token", Needs(ManageTokens), ""),
    ("rotate_token", Needs(ManageTokens), "{id}"),
    ("revoke_token", Needs(ManageTokens), "{id}"),
    ("job_form", Needs(DefineJob), ""),
    ("check_job", Needs(DefineJob), "form[name]="),
    ("save_job", Needs(DefineJob), "form[name]="),
    ("set_job_active", Needs(DefineJob), "{id}&active=true"),
    ("skip_due", Needs(DefineJob), "{id}&due=2026-01-01T00:00:00Z"),
    ("attach_job", Needs(DefineJob), "{id}"),
    ("restore_version", Needs(DefineJob), "{id}&version=1&expected=1"),
    ("run_sample_job", Needs(DefineJob), ""),
    ("trigger_job", Needs(RunJob), "{id}"),
    ("delete_job", Needs(DeleteJob), "{id}"),
    ("calendar_form", Needs(DefineCalendar), ""),
    ("calendar", Needs(DefineCalendar), "{id}"),
    ("check_calendar", Needs(DefineCalendar), "form[name]="),
    ("save_calendar", Needs(DefineCalendar), "form[name]="),
    ("delete_calendar", Needs(DefineCalendar), "{id}"),
    ("cancel_occurrence", Needs(CancelOccurrence), "{id}"),
    ("cancel_delayed", Needs(CancelOccurrence), "{id}"),
    ("retry_failure", Needs(SettleFailures), "{id}"),
    ("retry_failures", Needs(SettleFailures), ""),
    ("resolve_failures", Needs(SettleFailures), ""),
    ("resolve_dead_letters", Needs(SettleFailures), ""),
    ("pause_cluster", Needs(PauseCluster), ""),
    ("resume_cluster", Needs(PauseCluster), ""),
    ("object_audit", Needs(ReadObjectAudit), "object=job:00000000-0000-7000-8000-000000000000"),
    ("audit", Needs(ReadAudit), ""),
    ("team", Needs(ReadTeam), ""),
    ("person", Needs(ReadTeam), "{id}"),
    ("invite_user", Needs(ManageTeam), "role=viewer"),
    ("renew_invite", Needs(ManageTeam), "{id}"),
    ("revoke_invite", Needs(ManageTeam), "{id}"),
    ("change_role", Needs(ManageTeam), "{id}&role=viewer"),
    ("set_user_active", Needs(ManageTeam), "{id}&active=true"),
    ("remove_user", Needs(ManageTeam), "{id}"),
    ("create_reset_link", Needs(ManageTeam), "{id}"),
    ("revoke_reset_link", Needs(ManageTeam), "{id}"),
    ("unlock_user", Needs(ManageTeam), "{id}"),
    ("end_user_sessions", Needs(ManageTeam), "{id}"),
];

/// The pages, by the path of their route.
const PAGES: &[(&str, Access)] = &[
    ("/setup", Public),
    ("/invite", Public),
    ("/reset", Public),
    ("/login", Public),
    ("/", Needs(Read)),
    ("/jobs", Needs(Read)),
    ("/jobs/new", Needs(DefineJob)),
    ("/jobs/{id}", Needs(Read)),
    ("/jobs/{id}/edit", Needs(DefineJob)),
    ("/calendars", Needs(Read)),
    ("/calendars/new", Needs(DefineCalendar)),
    ("/calendars/{id}/edit", Needs(DefineCalendar)),
    ("/occurrences", Needs(Read)),
    ("/occurrences/{id}", Needs(Read)),
    ("/failed", Needs(Read)),
    ("/failed/{key}", Needs(Read)),
    ("/workers", Needs(Read)),
    ("/singleton-loops", Needs(Read)),
    ("/team", Needs(ReadTeam)),
    ("/team/{id}", Needs(ReadTeam)),
    ("/audit", Needs(ReadAudit)),
    ("/account", Needs(ManageAccount)),
    ("/tokens", Needs(ManageTokens)),
    ("/alerts", Needs(Read)),
    ("/alerts/rules", Needs(Read)),
    ("/alerts/rules/new", Needs(DefineAlert)),
    ("/alerts/rules/{id}", Needs(Read)),
    ("/alerts/channels", Needs(DefineAlert)),
    ("/alerts/channels/new", Needs(ManageAlertChannels)),
    ("/alerts/channels/{id}", Needs(ManageAlertChannels)),
    // They show no data of the installation.
    ("/menu", Public),
    ("/help", Public),
];

/// The other routes of the server.
const ROUTES: &[(&str, Access)] = &[
    ("/health/live", Public),
    ("/health/ready", Public),
    ("/events", Needs(Read)),
    ("/export/team.csv", Needs(Export)),
    ("/export/audit.csv", Needs(Export)),
    ("/export/audit.ndjson", Needs(Export)),
];

/// The sender of a request.
struct Caller {
    name: &'static str,
    /// The role; none without a valid session.
    role: Option<Role>,
    cookie: String,
}

/// Returns the status that a caller gets if it is a refusal: 401 without a session, 403 below the role.
fn expected_refusal(access: Access, role: Option<Role>) -> Option<StatusCode> {
    match (access, role) {
        (Public, _) => None,
        (Needs(_), None) => Some(StatusCode::UNAUTHORIZED),
        (Needs(action), Some(role)) if role < action.required_role() => Some(StatusCode::FORBIDDEN),
        (Needs(_), Some(_)) => None,
    }
}

async fn cookie(server: &Server, me: &CurrentUser) -> String {
    let sessions = std::sync::Arc::new(PostgresSessionStore::new(server.store.clone(), server.clock.clone()));
    let session = Session::new(None, sessions, None);
    session::sign_in_session(&session, me, server.clock.now(), SessionOrigin::default()).await.expect("it is stored");
    format!("milvaion_session={}", session.id().expect("a valid id"))
}

/// Returns a caller of each role, one without a session, one whose session has ended, and a deactivated user.
async fn callers(server: &Server) -> Vec<Caller> {
    let (store, clock) = (&server.store, &server.clock);
    let ana = join(store, clock, &setup_link(store, clock).await, "ana").await;
    let admin = RequestUser { user: ana.clone(), address: None };
    let mut users = vec![ana];
    for (name, role) in [("oscar", Role::Operator), ("vera", Role::Viewer), ("dora", Role::Admin)] {
        let path = server.backend.invite_user(&admin, name, role).await.expect("invited");
        users.push(join(store, clock, &path, name).await);
    }
    let [ana, oscar, vera, dora] = users.as_slice() else { panic!("four users were created") };
    let mut callers = vec![Caller { name: "a visitor", role: None, cookie: String::new() }];
    for (name, user) in [("an Admin", ana), ("an Operator", oscar), ("a Viewer", vera)] {
        callers.push(Caller { name, role: Some(user.role), cookie: cookie(server, user).await });
    }
    let ended = cookie(server, dora).await;
    server.backend.end_user_sessions(&admin, dora.id, None).await.expect("ended");
    callers.push(Caller { name: "an ended session", role: None, cookie: ended });
    let deactivated = cookie(server, dora).await;
    server.backend.set_user_active(&admin, dora.id, false).await.expect("deactivated");
    callers.push(Caller { name: "a deactivated user", role: None, cookie: deactivated });
    callers
}

/// Sends requests to one server, without following redirects.
struct Doors {
    client: reqwest::Client,
    origin: String,
}

impl Doors {
    fn of(server: &Server) -> Self {
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().expect("a client");
        Self { client, origin: format!("http://127.0.0.1:{}", server.address.port()) }
    }

    async fn send(&self, method: Method, path: &str, form: &str, cookie: &str, site: &str) -> reqwest::Response {
        let query = if method == Method::GET && !form.is_empty() { format!("?{form}") } else { String::new() };
        let mut request = self
            .client
            .request(method.clone(), format!("{}{path}{query}", self.origin))
            .header("sec-fetch-site", site)
            // Two proxies may name their protocols.
            .header("x-forwarded-proto", "https, http")
            .header(header::ACCEPT, "application/json")
            .header(header::COOKIE, cookie);
        if method == Method::POST {
            request = request.header(header::CONTENT_TYPE, "application/x-www-form-urlencoded").body(form.to_owned());
        }
        request.send().await.expect("a response")
    }

    async fn get(&self, path: &str, cookie: &str) -> reqwest::Response {
        self.send(Method::GET, path, "", cookie, "same-origin").await
    }
}

/// Returns the server functions of the program, by name.
fn functions() -> Vec<(String, &'static str, Method)> {
    let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    server_fn_paths().map(|(path, method)| (name(path), path, method)).collect()
}

fn check(failures: &mut Vec<String>, door: &str, caller: &Caller, access: Access, status: StatusCode) {
    let is_refused = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    match expected_refusal(access, caller.role) {
        Some(expected) if status != expected => {
            failures.push(format!("{door} answers {status} to {}, not {expected}", caller.name));
        }
        None if is_refused => failures.push(format!("{door} refuses {} with {status}", caller.name)),
        _ => {}
    }
}

#[test]
fn every_door_is_in_the_table() {
    let tabled: BTreeSet<_> = FUNCTIONS.iter().map(|(name, ..)| (*name).to_owned()).collect();
    let present: BTreeSet<_> = functions().into_iter().map(|(name, ..)| name).collect();
    assert_eq!(tabled, present, "the table of server functions is out of date");
    let tabled: BTreeSet<_> = PAGES.iter().map(|(path, _)| (*path).to_owned()).collect();
    let present: BTreeSet<_> = generate_route_list(App).iter().map(|route| route.path().to_owned()).collect();
    assert_eq!(tabled, present, "the table of pages is out of date");
}

#[test]
fn every_route_has_an_access() {
    let sources = [include_str!("../../src/http/mod.rs"), include_str!("../../src/ui/mod.rs")].concat();
    let routes = sources.split(".route(").skip(1).map(|rest| rest.split('"').nth(1).expect("a path"));
    for route in routes.filter(|route| *route != "/api/{*function}") {
        let fixed = route.split('{').next().expect("a part");
        assert!(ROUTES.iter().any(|(path, _)| path.starts_with(fixed)), "ROUTES lacks {route}");
    }
}

#[test]
fn every_permission_guards_a_door() {
    let used =
        FUNCTIONS.iter().map(|(_, access, _)| access).chain(PAGES.iter().chain(ROUTES).map(|(_, access)| access));
    let used: Vec<_> = used.collect();
    for permission in ALL_PERMISSIONS {
        assert!(used.contains(&&Needs(permission)), "no door needs {permission:?}");
    }
}

/// Calls every server function as one caller, and returns the wrong answers.
async fn check_functions(doors: &Doors, caller: &Caller) -> Vec<String> {
    let mut failures = Vec::new();
    for (name, path, method) in functions() {
        let Some((_, access, form)) = FUNCTIONS.iter().find(|(tabled, ..)| *tabled == name) else {
            continue;
        };
        // A session that ends here would be missing for the other doors.
        if name == "sign_out" && caller.role.is_some() {
            continue;
        }
        let form = form.replace("{id}", ID);
        let response = doors.send(method, path, &form, &caller.cookie, "same-origin").await;
        check(&mut failures, &name, caller, *access, response.status());
    }
    failures
}

/// Requests every page and every other route as one caller, and returns the wrong answers.
async fn check_paths(doors: &Doors, caller: &Caller) -> Vec<String> {
    let mut failures = Vec::new();
    for (route, access) in PAGES {
        let path = route.replace("{id}", "00000000-0000-7000-8000-000000000000").replace("{key}", "none");
        let response = doors.get(&path, &caller.cookie).await;
        let to_login =
            response.headers().get(header::LOCATION).is_some_and(|location| location.as_bytes().starts_with(b"/login"));
        let status = if to_login { StatusCode::UNAUTHORIZED } else { response.status() };
        check(&mut failures, route, caller, *access, status);
    }
    for (path, access) in ROUTES {
        check(&mut failures, path, caller, *access, doors.get(path, &caller.cookie).await.status());
    }
    failures
}

/// Checks every door for the callers with one of these roles. `None` stands for those without a valid session.
async fn check_doors(roles: &[Option<Role>]) {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let callers = callers(&server).await;
    let doors = Doors::of(&server);
    let mut failures = Vec::new();
    for caller in callers.iter().filter(|caller| roles.contains(&caller.role)) {
        let (of_functions, of_paths) = tokio::join!(check_functions(&doors, caller), check_paths(&doors, caller));
        failures.extend(of_functions.into_iter().chain(of_paths));
    }
    server.stop().await;
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

// One test for each third of the callers, because all of them take too long for one test.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admin_passes_its_doors_only() {
    check_doors(&[Some(Role::Admin)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_passes_its_doors_only() {
    check_doors(&[Some(Role::Operator)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn viewer_and_visitors_pass_their_doors_only() {
    check_doors(&[Some(Role::Viewer), None]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_needs_a_post_from_our_own_pages() {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let callers = callers(&server).await;
    let admin = callers.iter().find(|caller| caller.role == Some(Role::Admin)).expect("an Admin");
    let doors = Doors::of(&server);
    let mut failures = Vec::new();
    for (name, path, method) in functions() {
        let access = FUNCTIONS.iter().find(|(tabled, ..)| *tabled == name).map(|(_, access, _)| *access);
        let only_reads = access.is_some_and(|access| matches!(access, Needs(action) if !action.mutates()));
        if method == Method::GET {
            continue;
        }
        if only_reads {
            failures.push(format!("{name} is a POST, but its permission only reads"));
        }
        let foreign = doors.send(Method::POST, path, "", &admin.cookie, "cross-site").await.status();
        if foreign != StatusCode::FORBIDDEN {
            failures.push(format!("{name} answers {foreign} to another site"));
        }
        let by_get = doors.send(Method::GET, path, "", &admin.cookie, "same-origin").await.status();
        if by_get.is_success() {
            failures.push(format!("{name} can be called by GET"));
        }
    }
    server.stop().await;
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
