//! Jobs, and the user who edits them.

use chrono::{DateTime, Utc};
use milvaion_api::{
    permissions::Role,
    requests::{JobForm, JobInput},
    views::CurrentUser,
};
use milvaion_protocol::id::{JobId, UserId};
use milvaion_schedule::{rules::Rules, schedule::Schedule};
use milvaion_server::{
    clock::Clock,
    command::RequestUser,
    store::{Store, jobs::AuditStamp},
};

/// Returns a user with every permission.
#[must_use]
pub fn admin() -> RequestUser {
    let user =
        CurrentUser { id: UserId::default(), name: "Ana".into(), email: "ana@example.org".into(), role: Role::Admin };
    RequestUser { user, address: None }
}

/// Returns a job of type `echo` for worker `w`, with the default rules.
#[must_use]
pub fn echo_job(schedule: Schedule) -> JobInput {
    JobInput {
        display_name: "Hello".into(),
        description: String::new(),
        tags: Vec::new(),
        worker_id: "w".into(),
        job_type: "echo".into(),
        job_data: serde_json::json!({"say": "hello"}),
        schedule,
        is_active: true,
        priority: 3,
        timeout_seconds: None,
        rules: Rules::default(),
    }
}

/// Returns the form of a manual job of type `echo` for worker `w`.
#[must_use]
pub fn form(name: &str) -> JobForm {
    JobForm {
        display_name: name.into(),
        target: "w/echo".into(),
        input_mode: "json".into(),
        input_json: r#"{"say": "hello"}"#.into(),
        kind: "manual".into(),
        is_active: "on".into(),
        ..JobForm::default()
    }
}

/// Inserts an echo job with `due` as its next due time. Neither Redis nor a server is notified.
///
/// # Panics
///
/// Panics if PostgreSQL fails.
pub async fn insert(store: &Store, clock: &Clock, schedule: Schedule, due: Option<DateTime<Utc>>) -> JobId {
    insert_job(store, clock, &echo_job(schedule), due).await
}

/// Inserts a job with `due` as its next due time. Neither Redis nor a server is notified.
///
/// # Panics
///
/// Panics if PostgreSQL fails.
pub async fn insert_job(store: &Store, clock: &Clock, job: &JobInput, due: Option<DateTime<Utc>>) -> JobId {
    let id = clock.job_id();
    let stamp = AuditStamp { by: "test", at: clock.now(), address: None };
    store.insert_job(id, job, due, stamp).await.expect("the job is stored");
    id
}
