//! A server whose clock is moved by hand, and no worker: the test says what one would report.

use chrono::{DateTime, Duration, Utc};
use milvaion_api::{requests::JobInput, views::OccurrenceRow};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::StatusReport,
    status::OccurrenceStatus,
};
use milvaion_schedule::{rules::Rules, schedule::Schedule};
use milvaion_server::{
    clock::Clock,
    domain::transition::fold,
    lifecycle::Server,
    store::{Store, jobs::AuditStamp},
};

use milvaion_test_support::{self as common, stack};

pub(crate) struct ReportingHarness {
    pub(crate) server: Server,
    pub(crate) clock: Clock,
}

impl ReportingHarness {
    pub(crate) async fn open() -> Self {
        let config = stack::config().await;
        let real = milvaion_server::clock::machine_now().timestamp();
        let clock = Clock::manual(DateTime::from_timestamp(real - real % 60, 0).expect("an instant"));
        let server = Server::start(&config, clock.clone()).await.expect("the server starts");
        Self { server, clock }
    }

    /// Makes a job that is due now.
    pub(crate) async fn job(&self, schedule: Schedule, rules: Rules) -> JobId {
        let now = self.clock.now();
        let id = insert(&self.server.store, &self.clock, JobInput { rules, ..common::job(schedule) }, now).await;
        self.look(id, now).await;
        id
    }

    /// Lets time pass.
    pub(crate) async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.server.cache.announce_schedule_change().await.expect("Redis answers");
    }

    /// Waits until the job has `count` occurrences; by due instant.
    pub(crate) async fn occurrences(&self, job: JobId, count: usize) -> Vec<OccurrenceRow> {
        stack::eventually(&format!("occurrence number {count}"), || async {
            let mut rows = rows(&self.server, job).await;
            rows.sort_by_key(|row| row.scheduled_for);
            (rows.len() >= count).then_some(rows)
        })
        .await
    }

    /// Reports as a worker would. True when that changed something.
    pub(crate) async fn tell(&self, id: OccurrenceId, status: OccurrenceStatus) -> bool {
        let report = StatusReport { duration_ms: Some(3), ..StatusReport::new(id, 1, "w-1", status, self.clock.now()) };
        let told = self.server.store.apply(&fold(vec![report]), self.clock.now()).await.expect("answered");
        !told.rows.is_empty()
    }

    async fn look(&self, id: JobId, due: DateTime<Utc>) {
        self.server.cache.note_due(&[(id, Some(due))]).await.expect("Redis answers");
        self.server.cache.announce_schedule_change().await.expect("Redis answers");
    }
}

/// Stores a job that is due at `due`, and tells nobody.
pub(crate) async fn insert(store: &Store, clock: &Clock, job: JobInput, due: DateTime<Utc>) -> JobId {
    let id = clock.job_id();
    let edit = AuditStamp { by: "test", at: clock.now() };
    store.insert_job(id, &job, Some(due), edit).await.expect("the job is stored");
    id
}

/// A job's occurrences.
pub(crate) async fn rows(server: &Server, job: JobId) -> Vec<OccurrenceRow> {
    stack::all(server, None).await.into_iter().filter(|row| row.job_id == job).collect()
}
