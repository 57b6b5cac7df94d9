//! Faults that a test injects into the dispatcher. Each removes one protection; see `faults`.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use milvaion_protocol::id::OccurrenceId;
use milvaion_schedule::due::DueAction;

use super::{Dispatcher, outgoing};
use crate::{
    broker::publisher::OutgoingMessage,
    store::plan::{DueJob, NewScheduledRun},
};

impl Dispatcher {
    /// Publishes the messages of rows that are not committed, for jobs whose rows never wait for a slot and are never
    /// skipped. Returns the occurrences of the published messages.
    pub(super) async fn publish_uncommitted(
        &self,
        jobs: &[DueJob],
        fires: &[NewScheduledRun],
        now: DateTime<Utc>,
    ) -> HashSet<OccurrenceId> {
        let messages: Vec<OutgoingMessage> = fires
            .iter()
            .filter(|fire| fire.action == DueAction::Run)
            .filter_map(|fire| Some((jobs.iter().find(|job| job.id == fire.job_id)?, fire)))
            .filter(|(job, _)| !job.rules.needs_slot())
            .map(|(job, fire)| outgoing(job.clone(), fire, now))
            .collect();
        let early = messages.iter().map(|out| out.message.occurrence_id).collect();
        self.sender.publish_batch(&messages).await;
        early
    }

    /// Removes the due jobs that Redis does not list as due.
    pub(super) async fn retain_due_in_redis(&self, jobs: &mut Vec<DueJob>, upto: DateTime<Utc>) {
        let members: HashSet<String> =
            self.cache.due_members(upto, 100_000).await.unwrap_or_default().into_iter().collect();
        jobs.retain(|job| members.contains(&job.id.to_string()));
    }
}
