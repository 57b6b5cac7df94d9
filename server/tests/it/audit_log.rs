//! The audit log: pages, filters, counted refusals, months and downloads.

use chrono::{DateTime, Days, TimeDelta, Utc};
use http::{StatusCode, header};
use milvaion_api::{
    audit::{AuditFilter, AuditObject, AuditResult},
    permissions::Role,
    views::CurrentUser,
};
use milvaion_app::{
    backend::{AuditBackend, RequestUser, TeamBackend},
    error::AppError,
};
use milvaion_server::{
    command::{invite, sign_in::PassphraseHasher},
    http::session::{self, PostgresSessionStore, SessionOrigin},
    lifecycle::Server,
    store::{Store, audit::AuditEntry, partitions::PartitionDropOutcome},
};
use milvaion_test_support::{
    database::{self, TestConnection},
    jobs, server_env,
};
use serde_json::{Value, json};
use tower_sessions::Session;

fn now() -> DateTime<Utc> {
    milvaion_server::clock::machine_now()
}

/// Inserts one row per second, the newest one now: `count` actions of `ana` on a job, every third one a sign-in of `bo`.
async fn fill(store: &Store, count: i64) {
    let now = now();
    for n in 0..count {
        let at = now - TimeDelta::seconds(count - n);
        let entry = match n % 3 {
            0 => AuditEntry::new(at, "bo@example.org", "sign-in", "user:1"),
            1 => AuditEntry::new(at, "ana@example.org", "job.pause", "job:1"),
            _ => AuditEntry::new(at, "ana@example.org", "job.run", format!("job:{n}")),
        };
        store.audit(&entry).await.expect("it is stored");
    }
}

async fn all_pages(store: &Store, filter: AuditFilter, limit: u32) -> Vec<i64> {
    let (mut ids, mut filter) = (Vec::new(), filter);
    loop {
        let page = store.audit_page(&filter, limit).await.expect("the query succeeds");
        ids.extend(page.rows.iter().map(|row| row.cursor.id));
        match page.next {
            Some(next) => filter.before = Some(next.parse().expect("a cursor")),
            None => return ids,
        }
    }
}

#[tokio::test]
async fn pages_neither_repeat_nor_skip_rows() {
    let store = database::fresh().await;
    fill(&store, 45).await;
    let mut filter = AuditFilter::default();
    let first = store.audit_page(&filter, 10).await.expect("the query succeeds");
    // A new row arrives at the start and does not move the others.
    store.audit(&AuditEntry::new(now(), "cy@example.org", "sign-in", "user:2")).await.expect("it is stored");
    filter.before = Some(first.next.expect("more rows").parse().expect("a cursor"));
    let mut ids: Vec<_> = first.rows.iter().map(|row| row.cursor.id).collect();
    ids.extend(all_pages(&store, filter, 10).await);
    assert_eq!(ids.len(), 45);
    assert!(ids.windows(2).all(|pair| pair[0] > pair[1]), "{ids:?}");
}

#[tokio::test]
async fn each_filter_selects_its_rows() {
    let store = database::fresh().await;
    fill(&store, 30).await;
    let refused = AuditEntry::new(now(), "bo@example.org", "refuse", "user:1");
    store.audit_refusal(&refused, "refuse:1").await.expect("it is stored");
    let old = AuditEntry::new(now() - TimeDelta::days(3), "ana@example.org", "job.create", "job:1");
    database_month(&store, old.at).await;
    store.audit(&old).await.expect("it is stored");
    let count = async |filter: AuditFilter| all_pages(&store, filter, 7).await.len();
    let all = AuditFilter::default;
    let today = now().date_naive();
    assert_eq!(count(all()).await, 32);
    assert_eq!(count(AuditFilter { who: "bo@example.org".into(), ..all() }).await, 11);
    assert_eq!(count(AuditFilter { action: "job.pause".into(), ..all() }).await, 10);
    assert_eq!(count(AuditFilter { action: "job.".into(), ..all() }).await, 21);
    assert_eq!(count(AuditFilter { action: "calendar.".into(), ..all() }).await, 0);
    assert_eq!(count(AuditFilter { object: "job:1".into(), ..all() }).await, 11);
    assert_eq!(count(AuditFilter { result: Some(AuditResult::Refused), ..all() }).await, 1);
    assert_eq!(count(AuditFilter { result: Some(AuditResult::Done), ..all() }).await, 31);
    let two_days_ago = today - Days::new(2);
    assert_eq!(count(AuditFilter { since: Some(two_days_ago), ..all() }).await, 31);
    assert_eq!(count(AuditFilter { until: Some(two_days_ago), ..all() }).await, 1);
    let combined = AuditFilter {
        who: "ana@example.org".into(),
        action: "job.".into(),
        object: "job:1".into(),
        until: Some(two_days_ago),
        ..all()
    };
    assert_eq!(count(combined).await, 1);
}

/// Creates the partitions around a time, which may lie in the last month.
async fn database_month(store: &Store, at: DateTime<Utc>) {
    store.ensure_partitions(at).await.expect("partitions can be created");
}

#[tokio::test]
async fn refusals_of_an_hour_are_one_row() {
    let url = database::create().await;
    let store = database::open(&url).await;
    let start = now();
    for n in 0..100 {
        let address = if n < 50 { "192.0.2.1" } else { "192.0.2.2" };
        let at = start + TimeDelta::seconds(n);
        let entry = AuditEntry::new(at, "unknown", "sign-in.refuse", "account:unknown").from(Some(address.into()));
        store.audit_refusal(&entry, "sign-in.refuse:unknown").await.expect("it is stored");
    }
    let rows = store.audit_entries(None, 10).await.expect("the query succeeds");
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].repeats, rows[0].result), (100, AuditResult::Refused));
    assert_eq!(rows[0].address.as_deref(), Some("192.0.2.1"));
    assert!(rows[0].has_other_addresses);
    assert_eq!(rows[0].last_at.map(|at| at.timestamp()), Some((start + TimeDelta::seconds(99)).timestamp()));

    let later = AuditEntry::new(start + TimeDelta::hours(1), "unknown", "sign-in.refuse", "account:unknown");
    store.audit_refusal(&later, "sign-in.refuse:unknown").await.expect("it is stored");
    assert_eq!(store.audit_entries(None, 10).await.expect("the query succeeds").len(), 2);
}

#[tokio::test]
async fn concurrent_refusals_are_one_row() {
    let store = database::fresh().await;
    let entry = AuditEntry::new(now(), "unknown", "sign-in.refuse", "account:unknown");
    futures::future::join_all((0..20).map(|_| store.audit_refusal(&entry, "key"))).await;
    let rows = store.audit_entries(None, 10).await.expect("the query succeeds");
    assert_eq!(rows.iter().map(|row| row.repeats).collect::<Vec<_>>(), [20]);
}

#[tokio::test]
async fn rows_cannot_be_changed_or_deleted() {
    let url = database::create().await;
    let store = database::open(&url).await;
    let entry = AuditEntry::new(now(), "unknown", "sign-in.refuse", "account:unknown");
    store.audit_refusal(&entry, "key").await.expect("it is stored");
    store.audit(&AuditEntry::new(now(), "ana@example.org", "job.run", "job:1")).await.expect("it is stored");
    let pool = sqlx::PgPool::connect(&url).await.expect("PostgreSQL responds");
    for statement in [
        "DELETE FROM audit_log",
        "UPDATE audit_log SET who = 'eve' WHERE action = 'job.run'",
        "UPDATE audit_log SET repeats = 2 WHERE action = 'job.run'",
        "UPDATE audit_log SET repeats = repeats + 1, who = 'eve' WHERE result = 'refused'",
        "UPDATE audit_log SET last_at = now() WHERE result = 'refused'",
    ] {
        let error = sqlx::query(statement).execute(&pool).await.expect_err(statement).to_string();
        assert!(error.contains("only ever added to"), "{statement}: {error}");
    }
}

#[tokio::test]
async fn whole_expired_months_are_dropped() {
    let url = database::create().await;
    let store = database::open(&url).await;
    let mut connection = TestConnection::open(&url).await;
    connection.execute("SELECT ensure_audit_partitions('2026-01-15', '2026-03-15')").await;
    for day in ["2026-01-31", "2026-02-01", "2026-03-31"] {
        let at = format!("{day}T12:00:00Z").parse().expect("a valid time");
        store.audit(&AuditEntry::new(at, "ana@example.org", "job.run", "job:1")).await.expect("it is stored");
    }
    // February has not ended before its last day is old enough.
    let before = "2026-02-28T23:59:59Z".parse().expect("a valid time");
    let dropped = store.drop_audit_months(before).await.expect("the query succeeds");
    assert_eq!(dropped, [("audit_log_202601".to_owned(), PartitionDropOutcome::Removed)]);
    assert_eq!(store.audit_entries(None, 10).await.expect("the query succeeds").len(), 2);
    assert_eq!(store.drop_audit_months(before).await.expect("the query succeeds"), []);
}

#[tokio::test]
async fn months_exist_in_advance() {
    let url = database::create().await;
    let store = database::open(&url).await;
    for days in [0, 30, 60] {
        let entry = AuditEntry::new(now() + TimeDelta::days(days), "ana@example.org", "job.run", "job:1");
        store.audit(&entry).await.expect("the month has a partition");
    }
}

/// A server with an Admin, an Operator and a Viewer.
struct AuditedServer {
    server: Server,
    http: reqwest::Client,
    users: Vec<(CurrentUser, String)>,
}

impl AuditedServer {
    async fn new() -> Self {
        let config = server_env::config().await;
        let server = server_env::start(&config).await;
        let link = invite::setup_link(&server.store, &server.clock).await.expect("stored").expect("no user yet");
        let mut users = vec![join(&server, &link, "ana").await];
        let admin = RequestUser { user: users[0].0.clone(), address: None };
        for (name, role) in [("oscar", Role::Operator), ("vera", Role::Viewer)] {
            let link = server.backend.invite_user(&admin, name, role).await.expect("invited");
            users.push(join(&server, &link, name).await);
        }
        Self { server, http: reqwest::Client::new(), users }
    }

    fn user(&self, role: Role) -> RequestUser {
        let (user, _) = self.users.iter().find(|(user, _)| user.role == role).expect("a user of each role");
        RequestUser { user: user.clone(), address: None }
    }

    fn cookie(&self, role: Role) -> &str {
        &self.users.iter().find(|(user, _)| user.role == role).expect("a user of each role").1
    }

    fn address(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.server.address.port())
    }

    async fn post(&self, function: &str, form: &str) -> String {
        let request = self
            .http
            .post(self.address(&format!("/api/{function}")))
            .header("sec-fetch-site", "same-origin")
            .header(header::COOKIE, self.cookie(Role::Admin))
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(form.to_owned());
        let response = request.send().await.expect("a response");
        assert_eq!(response.status(), StatusCode::OK, "{function}");
        response.text().await.expect("a body")
    }

    async fn get(&self, path: &str, role: Option<Role>) -> reqwest::Response {
        let request = self.http.get(self.address(path)).header("sec-fetch-site", "same-origin");
        let request = match role {
            Some(role) => request.header(header::COOKIE, self.cookie(role)),
            None => request,
        };
        request.send().await.expect("a response")
    }
}

async fn join(server: &Server, link: &str, name: &str) -> (CurrentUser, String) {
    let token = link.split_once("?token=").expect("a path with a token").1;
    let (hasher, email) = (PassphraseHasher::new(), format!("{name}@example.org"));
    let me = invite::accept(&server.store, &server.clock, &hasher, None, token, name, &email, "violet tram under snow")
        .await
        .expect("accepted");
    let sessions = std::sync::Arc::new(PostgresSessionStore::new(server.store.clone(), server.clock.clone()));
    let session = Session::new(None, sessions, None);
    session::sign_in_session(&session, &me, server.clock.now(), SessionOrigin::default()).await.expect("it is stored");
    let cookie = format!("milvaion_session={}", session.id().expect("a valid id"));
    (me, cookie)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_carry_author_address_reason_and_name() {
    let audited = AuditedServer::new().await;
    let store = &audited.server.store;
    let id = jobs::insert(store, &audited.server.clock, milvaion_schedule::schedule::Schedule::Manual, None).await;
    audited.post("set_job_active", &format!("id={id}&active=false&reason=the+disk+is+full")).await;
    audited.post("pause_cluster", "reason=an+upgrade").await;
    audited.post("resume_cluster", "").await;
    audited.post("delete_job", &format!("id={id}")).await;
    let filter = AuditFilter { who: "ana@example.org".into(), ..AuditFilter::default() };
    let rows = store.audit_page(&filter, 50).await.expect("the query succeeds").rows;
    for action in ["job.pause", "cluster.pause", "cluster.resume", "job.delete"] {
        let row = rows.iter().find(|row| row.action == action).unwrap_or_else(|| panic!("{action} is recorded"));
        assert_eq!(row.address.as_deref(), Some("127.0.0.1"), "{action}");
    }
    let pause = rows.iter().find(|row| row.action == "job.pause").expect("it is recorded");
    assert_eq!((pause.reason.as_deref(), &pause.after), (Some("the disk is full"), &None));
    // The job no longer exists, but its definition has the name.
    let delete = rows.iter().find(|row| row.action == "job.delete").expect("it is recorded");
    assert_eq!(delete.object_name.as_deref(), Some("Hello"));
    audited.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_follow_the_role() {
    let audited = AuditedServer::new().await;
    let backend = &audited.server.backend;
    let (admin, operator) = (audited.user(Role::Admin), audited.user(Role::Operator));
    let id = milvaion_protocol::id::JobId::default();
    let entry =
        AuditEntry::new(now(), "ana@example.org", "job.run", format!("job:{id}")).from(Some("192.0.2.1".into()));
    audited.server.store.audit(&entry).await.expect("it is stored");
    let slice = backend.object_audit(&admin, AuditObject::Job(id), None).await.expect("allowed");
    assert_eq!(slice.rows[0].address.as_deref(), Some("192.0.2.1"));
    let slice = backend.object_audit(&operator, AuditObject::Job(id), None).await.expect("allowed");
    assert_eq!((slice.rows.len(), slice.rows[0].address.as_deref()), (1, None));
    let of_user = backend.object_audit(&operator, AuditObject::User(admin.id), None).await;
    assert!(matches!(of_user, Err(AppError::Denied(_))), "{of_user:?}");
    // By the user, or about the user.
    let of_user = backend.object_audit(&admin, AuditObject::User(operator.id), None).await.expect("allowed");
    assert!(of_user.rows.iter().any(|row| row.action == "invite.accept"), "{of_user:?}");
    let own = backend.own_audit(&operator, None).await.expect("allowed");
    assert_eq!(own.rows, of_user.rows);
    audited.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn downloads_hold_the_filtered_rows_in_order() {
    let audited = AuditedServer::new().await;
    let store = &audited.server.store;
    fill(store, 3_300).await;
    let formula = AuditEntry::new(now(), "ana@example.org", "job.run", "=1+1");
    store.audit(&formula).await.expect("it is stored");

    let response = audited.get("/export/audit.ndjson?who=ana%40example.org&action=job.", Some(Role::Admin)).await;
    assert_eq!(response.status(), StatusCode::OK);
    let disposition = response.headers()[header::CONTENT_DISPOSITION].to_str().expect("text").to_owned();
    assert!(disposition.starts_with("attachment; filename=\"milvaion-audit-20"), "{disposition}");
    let body = response.text().await.expect("a complete body");
    let lines: Vec<Value> = body.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 2_201);
    let filter = AuditFilter { who: "ana@example.org".into(), action: "job.".into(), ..AuditFilter::default() };
    let shown = store.audit_page(&filter, 5).await.expect("the query succeeds").rows;
    let shown: Vec<Value> = shown.iter().map(|row| json!(row)).collect();
    assert_eq!(lines[..5], shown[..]);

    let body = audited.get("/export/audit.csv?action=job.run", Some(Role::Admin)).await.text().await.expect("a body");
    let mut lines = body.lines();
    assert!(lines.next().is_some_and(|head| head.starts_with("at,last_at,repeats,who,action,object,")), "{body}");
    assert!(lines.next().is_some_and(|row| row.contains(",job.run,'=1+1,")), "{body}");
    assert_eq!(lines.count(), 1_100);
    assert_eq!(store.audit_entries(Some("audit:all"), 10).await.expect("the query succeeds").len(), 2);
    audited.server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn downloads_are_for_admins_and_check_their_parameters() {
    let audited = AuditedServer::new().await;
    for file in ["team.csv", "audit.csv", "audit.ndjson"] {
        let path = format!("/export/{file}");
        assert_eq!(audited.get(&path, None).await.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(audited.get(&path, Some(Role::Viewer)).await.status(), StatusCode::FORBIDDEN);
        assert_eq!(audited.get(&path, Some(Role::Operator)).await.status(), StatusCode::FORBIDDEN);
    }
    let team = audited.get("/export/team.csv?role=viewer", Some(Role::Admin)).await.text().await.expect("a body");
    let rows: Vec<_> = team.lines().collect();
    assert_eq!(rows.len(), 2, "{team}");
    assert!(rows[1].starts_with("vera,vera@example.org,viewer,active,"), "{team}");
    for (path, parameter) in
        [("audit.csv?since=today", "since"), ("audit.csv?result=maybe", "result"), ("team.csv?role=root", "role")]
    {
        let refused = audited.get(&format!("/export/{path}"), Some(Role::Admin)).await;
        assert!(refused.status().is_client_error(), "{path}");
        assert!(refused.text().await.expect("a body").contains(parameter), "{path}");
    }
    assert_eq!(audited.get("/export/jobs.csv", Some(Role::Admin)).await.status(), StatusCode::NOT_FOUND);
    audited.server.stop().await;
}
