//! Counts what the statements about occurrences have changed, after their commit.
//!
//! Every birth, change and end of an occurrence passes one of three statements, so what these return is counted and nothing
//! else. A transaction that is rolled back counts nothing.

use std::time::Duration;

use chrono::{DateTime, Utc};
use milvaion_api::failures::FailureCause;
use milvaion_protocol::{id::OccurrenceId, status::OccurrenceStatus, trace::trace_id_text};

use super::{Store, create::CreatedRun, occurrences::ChangedRun};
use crate::{domain::transition::AttemptChange, metrics::RunLabels};

impl ChangedRun {
    fn labels(&self) -> RunLabels<'_> {
        RunLabels { worker_id: &self.worker_id, job_type: &self.job_type, job_name: &self.row.job_name }
    }
}

impl Store {
    /// Counts created occurrences.
    pub(super) fn measure_created<'a>(&self, created: impl IntoIterator<Item = &'a CreatedRun>) {
        for CreatedRun { row, queued, .. } in created {
            let labels =
                RunLabels { worker_id: &queued.worker_id, job_type: &queued.job_type, job_name: &row.job_name };
            self.metrics().status_reached(labels, row.status);
        }
    }

    /// Records the delay of scheduled occurrences that were stored at `at`. Each has a trace of its own.
    pub(super) fn measure_dispatched(&self, created: &[CreatedRun], at: DateTime<Utc>) {
        for row in created.iter().map(|run| &run.row).filter(|row| row.status == OccurrenceStatus::Queued) {
            self.metrics().created(trace_id_text(row.id, None), row.scheduled_for, at);
        }
    }

    /// Counts changes and ends of occurrences.
    pub(super) fn measure_changed(&self, changed: &[ChangedRun]) {
        for run in changed {
            let (row, labels) = (&run.row, run.labels());
            if run.has_new_status {
                self.metrics().status_reached(labels, row.status);
            }
            if run.has_new_start {
                self.measure_start(run);
            }
            if row.status.is_final() {
                let duration = row.duration_ms.and_then(|millis| u64::try_from(millis).ok()).map(Duration::from_millis);
                let success_at = row.ended_at.filter(|_| row.status == OccurrenceStatus::Completed);
                self.metrics().ended(labels, duration, success_at);
            }
            if let Some(cause) = run.failure_cause.as_deref().and_then(FailureCause::parse) {
                self.metrics().failed(cause);
            }
        }
    }

    /// Records the delay with which the ends that workers reported were stored.
    pub(super) fn measure_stored(&self, changes: &[AttemptChange], ended: &[ChangedRun], at: DateTime<Utc>) {
        let reported = changes.iter().filter(|change| change.status.is_final());
        let reported: std::collections::HashMap<OccurrenceId, DateTime<Utc>> =
            reported.filter_map(|change| Some((change.occurrence_id, change.ended_at?))).collect();
        for run in ended {
            if let Some(ended_at) = reported.get(&run.row.id) {
                self.metrics().stored(run.trace_id(), *ended_at, at);
            }
        }
    }

    /// Counts a start that was not known before, and records the delay of a first attempt.
    fn measure_start(&self, run: &ChangedRun) {
        let row = &run.row;
        // A change to Running counts as such.
        if row.status != OccurrenceStatus::Running {
            self.metrics().status_reached(run.labels(), OccurrenceStatus::Running);
        }
        if let Some(started_at) = row.started_at.filter(|_| row.attempt == 1) {
            self.metrics().started(run.trace_id(), row.scheduled_for, started_at);
        }
    }
}
