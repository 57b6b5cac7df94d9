//! A server with a job nobody runs; the test says what a worker would report of it.

use chrono::Duration;
use milvaion_app::backend::TriggerInput;
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::StatusReport,
    status::OccurrenceStatus,
};
use milvaion_server::{config::ServerConfig, domain::transition::fold, lifecycle::Server};

use milvaion_test_support::stack;

/// A server with a job nobody runs.
pub(crate) async fn harness() -> (ServerConfig, Server, JobId) {
    let config = stack::config().await;
    let server = stack::server(&config).await;
    let id = server.jobs.save(&stack::admin(), &stack::form("Import")).await.expect("saved");
    (config, server, id)
}

pub(crate) async fn queued(server: &Server, job: JobId) -> OccurrenceId {
    server.jobs.run_now(&stack::admin(), job, TriggerInput::default()).await.expect("triggered")
}

/// A worker reports `status`, as of `age` minutes ago.
pub(crate) async fn report(
    server: &Server,
    id: OccurrenceId,
    status: OccurrenceStatus,
    exception: Option<&str>,
    age: i64,
) {
    let report = StatusReport {
        exception: exception.map(str::to_owned),
        ..StatusReport::new(id, 1, "w-1", status, server.clock.now() - Duration::minutes(age))
    };
    let at = report.timestamp;
    assert_eq!(server.store.apply(&fold(vec![report]), at).await.expect("answered").rows.len(), 1);
}

/// An occurrence that failed like this, on record.
pub(crate) async fn failed(server: &Server, job: JobId, exception: &str, age: i64) -> OccurrenceId {
    let id = queued(server, job).await;
    report(server, id, OccurrenceStatus::Failed, Some(exception), age).await;
    id
}
