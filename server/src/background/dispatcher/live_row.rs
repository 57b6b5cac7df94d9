//! The row of a new occurrence, as live events show it.

use milvaion_api::views::{OccurrenceRow, TriggerSource};
use milvaion_protocol::status::OccurrenceStatus;

use crate::store::plan::{DueJob, NewScheduledRun, ScheduledRunResult};

/// Builds the row of an occurrence that was just created.
pub(super) fn live_row(job: &DueJob, fire: &NewScheduledRun, created: &ScheduledRunResult) -> OccurrenceRow {
    OccurrenceRow {
        id: fire.occurrence_id,
        job_id: job.id,
        job_name: job.display_name.clone(),
        status: created.status,
        version: 1,
        trigger: TriggerSource::Schedule,
        attempt: 1,
        scheduled_for: fire.due,
        started_at: None,
        ended_at: (created.status == OccurrenceStatus::Skipped).then(|| created.id.created_at()),
        duration_ms: None,
        instance_id: None,
        progress: None,
        note: created.note.clone(),
        waits_until: None,
        cancel_requested_at: None,
    }
}
