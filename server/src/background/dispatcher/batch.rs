//! One batch of due jobs: read, decided and created, and their messages handed to the sender.
//!
//! A batch has no state, and a failed one has created nothing. The loop that runs it decides when the next one is read
//! and how large it is.

use std::{collections::HashMap, time::Duration};

use chrono::{DateTime, Utc};
use milvaion_api::events::LiveEvent;
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    status::OccurrenceStatus,
};
use milvaion_schedule::due::MISFIRE_GRACE;
use milvaion_telemetry::occurrences::{SpanStart, record_creation};

use super::{Dispatcher, HEAD_START};
use crate::{
    cache::schedule::DueChange,
    domain::{message::QueuedRun, send_time::group_by_send_time},
    engine::leadership::Leadership,
    faults,
    store::{create::CreatedRun, plan::DueJob},
};

/// The result of one tick.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DispatchReport {
    /// The number of jobs that were due or within the head start.
    pub due: usize,
    /// The instant up to which due jobs were read.
    pub scanned_until: DateTime<Utc>,
    /// The latest due time of the jobs that may not be fired ahead. Ticks read nothing ahead until then.
    pub deferred_until: Option<DateTime<Utc>>,
    /// Occurrences created. The other due jobs were fired, edited or paused by another server or a user meanwhile.
    pub fired: Vec<OccurrenceId>,
    /// The earliest due time of the occurrences created.
    pub earliest_fired: Option<DateTime<Utc>>,
    /// Jobs that are left to a newer server, because this one cannot read them.
    pub unreadable: usize,
    /// Jobs whose due time was dispatched before, by a clock that was ahead. They were moved to the next one.
    pub repeated: usize,
    /// True if nothing was created because the cluster is paused.
    pub is_paused: bool,
    /// The time left until dispatching resumes after a clock step; nothing was read.
    pub held_for: Option<Duration>,
}

impl Dispatcher {
    /// Fires one batch of jobs that are due now or within [`HEAD_START`].
    ///
    /// # Errors
    ///
    /// Returns an error if PostgreSQL fails; nothing was fired then.
    pub async fn tick(&self) -> anyhow::Result<DispatchReport> {
        self.dispatch_batch(HEAD_START, self.config.dispatch_batch).await
    }

    /// Fires one batch of at most `limit` jobs that are due at most `ahead` from now.
    pub(super) async fn dispatch_batch(&self, ahead: Duration, limit: i64) -> anyhow::Result<DispatchReport> {
        // A former leader that was frozen stops here, or at the latest at the fence in the statement.
        let epoch = match &*self.leadership.borrow() {
            Leadership::Leader(held) if held.is_valid() => {
                (!faults::is_sabotaged("skip_fence")).then_some(held.epoch())
            }
            Leadership::Leaderless => None,
            Leadership::Leader(_) | Leadership::Follower => return Ok(DispatchReport::default()),
        };
        if let Some(left) = self.clock.held_for() {
            return Ok(DispatchReport { held_for: Some(left), ..DispatchReport::default() });
        }
        let (now, start) = (self.clock.now(), SpanStart::now());
        let scanned_until = now + ahead;
        let mut jobs = self.store.due_jobs(scanned_until, limit, &self.unreadable.left_out()).await?;
        let mut report = DispatchReport { scanned_until, ..DispatchReport::default() };
        jobs.retain(|job| {
            let is_now = job.next_fire_at <= now || !has_concurrency_limit(job);
            if !is_now {
                report.deferred_until = report.deferred_until.max(Some(job.next_fire_at));
            }
            is_now
        });
        report.due = jobs.len();
        #[cfg(feature = "faults")]
        self.sabotage_due_jobs(&mut jobs, scanned_until).await;
        let (jobs, fires) = self.decide(jobs, now, &mut report).await?;
        if fires.is_empty() {
            return Ok(report);
        }
        #[cfg(feature = "faults")]
        let early = self.sabotage_order(&jobs, &fires, now).await;
        #[cfg(not(feature = "faults"))]
        let early = std::collections::HashSet::<OccurrenceId>::new();
        faults::crash_point("dispatch.before_commit");
        let created = self.store.create_scheduled_runs(&fires, epoch, now).await?;
        let committed = self.clock.now();
        let mut created: HashMap<OccurrenceId, CreatedRun> = created.into_iter().map(|run| (run.row.id, run)).collect();
        faults::crash_point("dispatch.after_commit");
        // A job refused ahead of its due time, because an earlier occurrence is open, is tried again when it is due.
        for fire in fires.iter().filter(|fire| fire.due > Some(now) && !created.contains_key(&fire.id)) {
            report.due -= 1;
            report.deferred_until = report.deferred_until.max(fire.due);
        }
        if created.is_empty() {
            report.is_paused = self.store.is_cluster_paused().await?;
            return Ok(report);
        }
        let mut to_send: Vec<(DateTime<Utc>, QueuedRun)> = Vec::with_capacity(created.len());
        let mut rows = Vec::with_capacity(created.len());
        let mut due_again = Vec::with_capacity(created.len());
        let mut by_id: HashMap<JobId, DueJob> = jobs.into_iter().map(|job| (job.id, job)).collect();
        let mut needs_slot = false;
        for fire in &fires {
            let Some(CreatedRun { row, queued, .. }) = created.remove(&fire.id) else { continue };
            let Some(job) = by_id.remove(&fire.job_id) else { continue };
            let due = row.scheduled_for;
            report.fired.push(row.id);
            report.earliest_fired = report.earliest_fired.into_iter().chain([due]).min();
            if now - due > MISFIRE_GRACE {
                self.store.metrics().misfired(job.rules.misfire);
            }
            record_creation(row.id, "dispatch", &job.display_name, start);
            due_again.push(DueChange::fired(job.id, due, fire.next_fire_at));
            if row.status == OccurrenceStatus::Queued {
                needs_slot |= queued.is_held;
                if !has_concurrency_limit(&job) {
                    self.store.metrics().created_ahead(due, committed);
                }
                if !early.contains(&row.id) {
                    let queued = QueuedRun { job_data: job.job_data, ..queued };
                    to_send.push((due, queued));
                }
            }
            rows.push(row);
        }
        for (at, runs) in group_by_send_time(to_send, committed) {
            if at > committed {
                self.sender.send_created_after(self.timer.sleep_until(self.clock.instant_at(at)), runs);
            } else {
                self.sender.send_created(runs).await;
            }
        }
        if needs_slot {
            self.activate_slot_granter.notify_one();
        }
        self.hub.publish(now, vec![LiveEvent::Occurrences { rows }]);
        if let Err(error) = self.cache.replace_due(&due_again).await {
            tracing::debug!(error = %error, "the next due times could not be written to Redis");
            // When Redis is available again, its index lacks these entries, and the jobs would be late until the next
            // periodic rebuild. A rebuild is therefore requested now.
            self.activate_due_index.notify_one();
        }
        Ok(report)
    }
}

/// Returns true if the job has a concurrency limit. The slot granter starts such occurrences at once when a slot is
/// free, so they are not created ahead of their due time.
fn has_concurrency_limit(job: &DueJob) -> bool {
    job.rules.job_limit().is_some() || job.rules.key_limit.is_some()
}
