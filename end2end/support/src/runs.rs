//! Occurrences: starting, reporting and reading them.

use milvaion_api::{
    page::OccurrenceFilter,
    views::{OccurrenceRow, OccurrenceView},
};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::StatusReport,
    status::OccurrenceStatus,
};
use milvaion_server::{
    clock::Clock,
    domain::{liveness, message::ConfirmedMessage, retry, transition::fold},
    lifecycle::Server,
    store::{Store, create::NewRun, reports::AppliedChanges},
};

use crate::wait;

/// Inserts a manual run of a job. Nothing is published.
///
/// # Panics
///
/// Panics if PostgreSQL fails or the run is refused.
pub async fn insert_manual(store: &Store, clock: &Clock, job_id: JobId) -> OccurrenceId {
    let run = NewRun { id: clock.occurrence_id(), job_id, by: "test".into(), ..NewRun::default() };
    let outcome = store.insert_manual_run(&run, clock.now()).await.expect("the run is stored");
    outcome.into_created().expect("the run is not refused");
    run.id
}

/// Returns the confirm of a message in the queue of a job type.
#[must_use]
pub const fn confirmed(id: OccurrenceId, attempt: i32) -> ConfirmedMessage {
    ConfirmedMessage { id, attempt, is_critical: false }
}

/// Applies status reports without retry decisions: a failed attempt ends its occurrence. Returns the number of
/// occurrences they changed.
///
/// # Panics
///
/// Panics if PostgreSQL fails.
pub async fn report(store: &Store, clock: &Clock, reports: Vec<StatusReport>) -> usize {
    store.apply(&fold(reports), clock.now()).await.expect("the reports are applied").rows.len()
}

/// Applies status reports with the retry decisions of the ingest.
///
/// # Panics
///
/// Panics if PostgreSQL fails.
pub async fn report_with_retries(store: &Store, clock: &Clock, reports: Vec<StatusReport>) -> AppliedChanges {
    let now = clock.now();
    let mut changes = fold(reports);
    let attempts: Vec<_> = changes.iter().map(|change| (change.occurrence_id, change.attempt)).collect();
    let contexts = store.retry_contexts(&attempts).await.expect("the retry contexts can be read");
    for change in &mut changes {
        if let Some(context) = contexts.get(&change.occurrence_id) {
            retry::decide(change, context, now);
        }
    }
    store.apply(&changes, now).await.expect("the reports are applied")
}

/// Returns all occurrences, the newest first, or those with one status.
///
/// # Panics
///
/// Panics if PostgreSQL fails.
pub async fn all(server: &Server, status: Option<OccurrenceStatus>) -> Vec<OccurrenceRow> {
    let mut rows = Vec::new();
    let mut filter = OccurrenceFilter { status, limit: 200, ..OccurrenceFilter::default() };
    loop {
        let page = server.store.occurrences(&filter).await.expect("the list can be read");
        rows.extend(page.rows);
        match page.next {
            Some(next) => filter.before = Some(next.parse().expect("an occurrence id")),
            None => return rows,
        }
    }
}

/// Returns a job's occurrences, the newest first.
///
/// # Panics
///
/// Panics if PostgreSQL fails.
pub async fn of_job(server: &Server, job: JobId) -> Vec<OccurrenceRow> {
    all(server, None).await.into_iter().filter(|row| row.job_id == job).collect()
}

/// Waits until an occurrence has ended.
///
/// # Panics
///
/// Panics if it does not end within [`wait::WAIT_TIMEOUT`].
pub async fn ended(server: &Server, id: OccurrenceId) -> OccurrenceView {
    wait::eventually("the end of the occurrence", || async {
        let view = server.store.occurrence(id, 100, liveness::alive_since(server.clock.now())).await.ok()??;
        view.row.status.is_final().then_some(view)
    })
    .await
}
