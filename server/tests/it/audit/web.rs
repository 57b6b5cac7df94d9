//! The audit log of a server: who made a change from which address, and who may read it.

use http::{StatusCode, header};
use milvaion_api::{
    audit::{AuditObject, AuditRow},
    permissions::Role,
};
use milvaion_app::{
    backend::{AuditBackend, Backend, TeamBackend},
    error::AppError,
};
use milvaion_protocol::id::{CalendarId, JobId, OccurrenceId};
use milvaion_server::lifecycle::Server;
use milvaion_test_support::{jobs, server_env};
use serde::de::DeserializeOwned;

use crate::{
    event_stream::{admin, cookie, join},
    users::harness::{REQUEST_ADDRESS, by},
};

/// Calls a server function as the script of a page does. Returns its result.
async fn call<T: DeserializeOwned>(server: &Server, cookie: &str, function: &str, fields: &[(&str, &str)]) -> T {
    let address = format!("http://127.0.0.1:{}", server.address.port());
    let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
    let response = reqwest::Client::new()
        .post(format!("{address}/api/{function}"))
        .header(header::COOKIE, cookie)
        .header(header::ORIGIN, &address)
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(body)
        .send()
        .await
        .expect("a response");
    let status = response.status();
    let text = response.text().await.expect("a text");
    assert_eq!(status, StatusCode::OK, "{function}: {text}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{function}: {error}: {text}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_change_has_its_author_and_address() {
    let server = server_env::start(&server_env::config().await).await;
    let cookie = cookie(&server, &admin(&server).await).await;
    let job_fields = |id: &'static str, version: &'static str, name: &'static str| {
        [
            ("form[id]", id),
            ("form[version]", version),
            ("form[display_name]", name),
            ("form[target]", "w/echo"),
            ("form[input_mode]", "json"),
            ("form[input_json]", r#"{"say": "hello"}"#),
            ("form[kind]", "manual"),
            ("form[is_active]", "on"),
        ]
    };
    let saved: milvaion_app::api::jobs::SavedJob =
        call(&server, &cookie, "save_job", &job_fields("", "", "Report")).await;
    let job = saved.id.to_string();
    let version = server.store.job(saved.id).await.expect("read").expect("the job").version.to_string();
    let mut edit: Vec<(&str, &str)> = job_fields("", "", "Weekly report").to_vec();
    (edit[0].1, edit[1].1) = (&job, &version);
    let _: milvaion_app::api::jobs::SavedJob = call(&server, &cookie, "save_job", &edit).await;
    for active in ["false", "true"] {
        let fields = [("id", job.as_str()), ("active", active), ("reason", "disk full")];
        let _: Option<String> = call(&server, &cookie, "set_job_active", &fields).await;
    }
    let fields = [("id", job.as_str()), ("reason", "urgent")];
    let occurrence: OccurrenceId = call(&server, &cookie, "trigger_job", &fields).await;
    let fields = [("id", occurrence.to_string()), ("reason", "not today".into())];
    let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert!(call::<bool>(&server, &cookie, "cancel_occurrence", &fields).await, "no worker runs it");
    let name: String = call(&server, &cookie, "delete_job", &[("id", &job)]).await;
    assert_eq!(name, "Weekly report");

    let fields = [("form[name]", "Holidays"), ("form[zone]", "UTC"), ("form[dates]", "2030-12-24")];
    let id: CalendarId = call(&server, &cookie, "save_calendar", &fields).await;
    let version = server.store.calendar(id).await.expect("read").expect("the calendar").version.to_string();
    let calendar = id.to_string();
    let edit = [("form[id]", calendar.as_str()), ("form[version]", version.as_str())];
    let edit: Vec<_> = fields.into_iter().chain(edit).collect();
    let _: CalendarId = call(&server, &cookie, "save_calendar", &edit).await;
    let _: String = call(&server, &cookie, "delete_calendar", &[("id", &calendar)]).await;
    let () = call(&server, &cookie, "pause_cluster", &[("reason", "the warehouse moves")]).await;
    let () = call(&server, &cookie, "resume_cluster", &[]).await;

    let rows = server.store.audit_entries(None, 50).await.expect("the query succeeds");
    let rows: Vec<_> = rows.iter().rev().filter(|row| row.action != "setup").collect();
    let found: Vec<_> = rows.iter().map(|row| (row.action.as_str(), row.reason.as_deref())).collect();
    assert_eq!(
        found,
        [
            ("job.create", None),
            ("job.update", None),
            ("job.pause", Some("disk full")),
            ("job.resume", None),
            ("job.run", Some("urgent")),
            ("occurrence.cancel", Some("not today")),
            ("job.delete", None),
            ("calendar.create", None),
            ("calendar.update", None),
            ("calendar.delete", None),
            ("cluster.pause", Some("the warehouse moves")),
            ("cluster.resume", Some("the warehouse moves")),
        ]
    );
    for row in rows {
        assert_eq!((row.who.as_str(), row.address.as_deref()), ("ana@example.org", Some("127.0.0.1")), "{row:?}");
    }
    server.stop().await;
}

fn actions(rows: &[AuditRow]) -> Vec<(&str, &str)> {
    rows.iter().map(|row| (row.action.as_str(), row.who.as_str())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_read_only_their_part_of_the_log() {
    let server = server_env::start(&server_env::config().await).await;
    let ana = by(&admin(&server).await);
    let bob = by(&join(&server, &ana, "bob", Role::Operator).await);
    let backend = &server.backend;
    let job: JobId = backend.save_job(&ana, &jobs::form("Report")).await.expect("saved");
    let own_job: JobId = backend.save_job(&bob, &jobs::form("Bob's report")).await.expect("saved");
    backend.change_role(&ana, bob.id, Role::Viewer, false).await.expect("changed");
    backend.change_role(&ana, bob.id, Role::Operator, false).await.expect("changed");

    // An Operator reads the changes of a job without network addresses, and nothing about users.
    let page = backend.object_audit(&bob, AuditObject::Job(job), None).await.expect("allowed");
    assert_eq!(actions(&page.rows), [("job.create", "ana@example.org")]);
    assert!(page.rows.iter().all(|row| row.address.is_none() && !row.has_other_addresses), "{page:?}");
    let page = backend.object_audit(&ana, AuditObject::Job(job), None).await.expect("allowed");
    assert_eq!(page.rows[0].address.as_deref(), Some(REQUEST_ADDRESS));
    for id in [ana.id, bob.id] {
        let refused = backend.object_audit(&bob, AuditObject::User(id), None).await;
        assert!(matches!(refused, Err(AppError::Denied(_))), "{refused:?}");
    }

    // The rows by a user and about a user; the invitation was about no user yet.
    let own = backend.own_audit(&bob, None).await.expect("allowed");
    assert_eq!(
        actions(&own.rows),
        [
            ("user.change-role", "ana@example.org"),
            ("user.change-role", "ana@example.org"),
            ("job.create", "bob@example.org"),
            ("invite.accept", "bob@example.org"),
        ]
    );
    assert_eq!(own.rows[2].object, format!("job:{own_job}"));
    assert_eq!(own.rows[2].address.as_deref(), Some(REQUEST_ADDRESS));
    // The address of the Admin is not the user's concern.
    assert_eq!(own.rows[0].address, None);
    let of_bob = backend.object_audit(&ana, AuditObject::User(bob.id), None).await.expect("allowed");
    assert_eq!(actions(&of_bob.rows), actions(&own.rows));
    assert_eq!(of_bob.rows[0].address.as_deref(), Some(REQUEST_ADDRESS));
    server.stop().await;
}
