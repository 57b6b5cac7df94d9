//! The sabotages of background tasks: what a fault test has behind a disabled protection; see [`faults`](crate::faults).

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
};

use chrono::{DateTime, Utc};
use milvaion_protocol::id::OccurrenceId;

use super::dispatcher::Dispatcher;
use crate::{
    broker::publisher::OutgoingMessage,
    domain::{
        lost_run::{LostRunDecision, MIN_HEARTBEAT_TIMEOUT, StaleRun, decide_lost_run},
        message::QueuedRun,
    },
    engine::sender::outgoing,
    faults::is_sabotaged,
    store::{create::NewRun, plan::DueJob},
};

impl Dispatcher {
    /// Removes the jobs that Redis does not list as due.
    pub(super) async fn sabotage_due_jobs(&self, jobs: &mut Vec<DueJob>, until: DateTime<Utc>) {
        if is_sabotaged("trust_due_index") {
            let due = self.cache.due_entries(until, 100_000).await.unwrap_or_default();
            let members: HashSet<String> = due.into_iter().map(|(member, _)| member).collect();
            jobs.retain(|job| members.contains(&job.id.to_string()));
        }
    }

    /// Sends the messages of rows that are not committed, for jobs whose runs never wait for a slot and are never
    /// skipped. Returns the occurrences of these messages.
    pub(super) async fn sabotage_order(
        &self,
        jobs: &[DueJob],
        runs: &[NewRun],
        now: DateTime<Utc>,
    ) -> HashSet<OccurrenceId> {
        if !is_sabotaged("publish_before_commit") {
            return HashSet::new();
        }
        let messages: Vec<OutgoingMessage> = runs
            .iter()
            .filter(|run| !run.is_skipped)
            .filter_map(|run| Some((jobs.iter().find(|job| job.id == run.job_id)?, run)))
            .filter(|(job, _)| !job.rules.needs_slot())
            .map(|(job, run)| outgoing(queued_run(job, run.id), now))
            .collect();
        let early = messages.iter().map(|out| out.message.occurrence_id).collect();
        self.sender.publish_batch(&messages).await;
        early
    }
}

/// Returns what the message of an occurrence needs that is not created yet.
fn queued_run(job: &DueJob, id: OccurrenceId) -> QueuedRun {
    let job = job.clone();
    QueuedRun {
        id,
        job_id: job.id,
        job_name: job.display_name,
        worker_id: job.worker_id,
        job_type: job.job_type,
        job_data: job.job_data,
        scheduled_for: job.next_fire_at,
        attempt: 1,
        max_retries: i16::try_from(job.rules.max_retries).unwrap_or(0),
        priority: job.priority,
        timeout_seconds: job.timeout_seconds,
        ..QueuedRun::default()
    }
}

/// Returns the occurrences that are newer than all that were published again before; all without the sabotage.
pub(super) fn newer_than_before(mut found: Vec<QueuedRun>) -> Vec<QueuedRun> {
    static NEWEST: Mutex<Option<OccurrenceId>> = Mutex::new(None);
    if is_sabotaged("skip_republish_lookback") {
        let mut newest = NEWEST.lock().unwrap_or_else(PoisonError::into_inner);
        found.retain(|queued| newest.is_none_or(|seen| queued.id > seen));
        *newest = found.iter().map(|queued| queued.id).max().or(*newest);
    }
    found
}

/// Counts the heartbeat timeout by wall clock, including the outages of the server, if `is_sabotaged`. Calls `lose` for each
/// run that is lost by it, and returns the others.
pub(super) fn by_wall_clock(
    stale: Vec<StaleRun>,
    is_sabotaged: bool,
    mut lose: impl FnMut(&StaleRun, LostRunDecision),
) -> Vec<StaleRun> {
    if !is_sabotaged {
        return stale;
    }
    let is_lost = |run: &StaleRun| !run.is_unreported && run.age >= run.heartbeat_timeout.max(MIN_HEARTBEAT_TIMEOUT);
    let (aged, others): (Vec<_>, Vec<_>) = stale.into_iter().partition(is_lost);
    for run in aged {
        lose(&run, decide_lost_run(run.on_lost, run.requeues, run.is_cancelled, run.is_stopping));
    }
    others
}
