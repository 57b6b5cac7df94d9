//! Counts what the statements about occurrences have changed, after their commit.
//!
//! Every birth, change and end of an occurrence passes one of three statements, so what these return is counted and nothing
//! else. A transaction that is rolled back counts nothing.

use std::time::Duration;

use chrono::{DateTime, Utc};
use milvaion_api::{failures::FailureCause, views::OccurrenceRow};
use milvaion_protocol::{id::OccurrenceId, status::OccurrenceStatus, trace::trace_id_text};

use super::{Store, advance::AdvancedRun, create::CreatedRun, finish::EndedRun};
use crate::{domain::transition::AttemptChange, metrics::RunLabels};

impl AdvancedRun {
    fn labels(&self) -> RunLabels<'_> {
        RunLabels { worker_id: &self.worker_id, job_type: &self.job_type, job_name: &self.row.job_name }
    }
}

impl EndedRun {
    fn labels(&self) -> RunLabels<'_> {
        RunLabels { worker_id: &self.worker_id, job_type: &self.job_type, job_name: &self.row.job_name }
    }
}

impl Store {
    /// Counts created occurrences.
    pub(super) fn measure_created(&self, created: &[CreatedRun]) {
        for run in created {
            let labels = RunLabels { worker_id: &run.worker_id, job_type: &run.job_type, job_name: &run.job_name };
            let is_skipped = run.skip_note.is_some();
            let status = if is_skipped { OccurrenceStatus::Skipped } else { OccurrenceStatus::Queued };
            self.metrics().status_reached(labels, status);
        }
    }

    /// Records the delay of scheduled occurrences that were stored at `at`. Each has a trace of its own.
    pub(super) fn measure_dispatched(&self, created: &[CreatedRun], at: DateTime<Utc>) {
        for run in created.iter().filter(|run| run.skip_note.is_none()) {
            self.metrics().created(trace_id_text(OccurrenceId(run.id), None), run.scheduled_for, at);
        }
    }

    /// Counts changes of occurrences that are still open.
    pub(super) fn measure_advanced(&self, advanced: &[AdvancedRun]) {
        for run in advanced {
            if run.has_new_status {
                self.metrics().status_reached(run.labels(), run.row.status);
            }
            if run.has_new_start {
                self.measure_start(run.labels(), &run.row, run.traceparent.as_deref());
            }
        }
    }

    /// Counts ended occurrences.
    pub(super) fn measure_ended(&self, ended: &[EndedRun]) {
        for run in ended {
            let (row, labels) = (&run.row, run.labels());
            self.metrics().status_reached(labels, row.status);
            if run.has_new_start {
                self.measure_start(labels, row, run.traceparent.as_deref());
            }
            let duration = row.duration_ms.and_then(|millis| u64::try_from(millis).ok()).map(Duration::from_millis);
            let success_at = row.ended_at.filter(|_| row.status == OccurrenceStatus::Completed);
            self.metrics().ended(labels, duration, success_at);
            if let Some(cause) = run.failure_cause.as_deref().and_then(FailureCause::parse) {
                self.metrics().failed(cause);
            }
        }
    }

    /// Records the delay with which the ends that workers reported were stored.
    pub(super) fn measure_stored(&self, changes: &[AttemptChange], ended: &[EndedRun], at: DateTime<Utc>) {
        let reported = changes.iter().filter(|change| change.status.is_final());
        let reported: std::collections::HashMap<OccurrenceId, DateTime<Utc>> =
            reported.filter_map(|change| Some((change.occurrence_id, change.ended_at?))).collect();
        for run in ended {
            if let Some(ended_at) = reported.get(&run.row.id) {
                self.metrics().stored(trace_id_text(run.row.id, run.traceparent.as_deref()), *ended_at, at);
            }
        }
    }

    /// Counts a start that was not known before, and records the delay of a first attempt.
    fn measure_start(&self, labels: RunLabels<'_>, row: &OccurrenceRow, traceparent: Option<&str>) {
        // A change to Running counts as such.
        if row.status != OccurrenceStatus::Running {
            self.metrics().status_reached(labels, OccurrenceStatus::Running);
        }
        if let Some(started_at) = row.started_at.filter(|_| row.attempt == 1) {
            self.metrics().started(trace_id_text(row.id, traceparent), row.scheduled_for, started_at);
        }
    }
}
