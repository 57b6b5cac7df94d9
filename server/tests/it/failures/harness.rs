//! A server without a worker: the test sends the reports itself.

use chrono::Duration;
use milvaion_app::backend::TriggerInput;
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::StatusReport,
    status::OccurrenceStatus,
};
use milvaion_server::{config::ServerConfig, domain::transition::fold, lifecycle::Server};
use milvaion_test_support::{jobs, server_env};

/// Starts a server and saves a job.
pub(crate) async fn harness() -> (ServerConfig, Server, JobId) {
    let config = server_env::config().await;
    let server = server_env::start(&config).await;
    let id = server.jobs.save(&jobs::admin(), &jobs::form("Import")).await.expect("saved");
    (config, server, id)
}

/// Starts a manual run, which stays queued.
pub(crate) async fn queued(server: &Server, job: JobId) -> OccurrenceId {
    server.jobs.run_now(&jobs::admin(), job, TriggerInput::default()).await.expect("triggered")
}

/// Reports the status of an occurrence's first attempt, as a worker would have done `age` minutes ago.
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
    assert_eq!(server.store.apply(&fold(vec![report]), at).await.expect("the query succeeds").rows.len(), 1);
}

/// Creates a failure that happened `age` minutes ago.
pub(crate) async fn failed(server: &Server, job: JobId, exception: &str, age: i64) -> OccurrenceId {
    let id = queued(server, job).await;
    report(server, id, OccurrenceStatus::Failed, Some(exception), age).await;
    id
}
