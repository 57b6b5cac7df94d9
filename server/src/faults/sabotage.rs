//! The sabotages: implementations of the seams that disable one protection each, for builds with the feature `faults`.
//!
//! The table in the parent module says what each of them breaks, and what reveals it.

use std::{
    collections::HashSet,
    mem,
    sync::{Mutex, PoisonError},
};

use chrono::{DateTime, Utc};
use milvaion_api::failures::FailureCause;
use milvaion_protocol::id::OccurrenceId;
use milvaion_schedule::due::DueAction;

use super::{is_sabotaged, seams::Seams};
use crate::{
    background::dispatcher::{Dispatcher, batch::outgoing},
    broker::publisher::{ConfirmedMessage, OutgoingMessage},
    clock::Clock,
    domain::{
        declarations::InstanceDeclaration,
        lost_run::{LostRunDecision, MIN_HEARTBEAT_TIMEOUT, StaleRun, decide_lost_run},
        message::QueuedOccurrence,
        transition::AttemptChange,
    },
    store::{
        Result, Store,
        dead_letters::DeadLetteredRun,
        enqueue::EnqueuedRun,
        plan::{DueJob, NewScheduledRun},
    },
};

/// The server with the protections that a test has disabled.
#[derive(Debug)]
pub(crate) struct Sabotaged {
    /// The newest occurrence that was published again, for `skip_republish_lookback`.
    newest_republished: Mutex<Option<OccurrenceId>>,
}

impl Sabotaged {
    pub(super) const fn new() -> Self {
        Self { newest_republished: Mutex::new(None) }
    }
}

impl Seams for Sabotaged {
    fn fence(&self, epoch: i64) -> Option<i64> {
        (!is_sabotaged("skip_fence")).then_some(epoch)
    }

    /// Removes the jobs that Redis does not list as due.
    async fn due_jobs(&self, dispatcher: &Dispatcher, jobs: &mut Vec<DueJob>, until: DateTime<Utc>) {
        if is_sabotaged("trust_due_index") {
            let due = dispatcher.cache.due_entries(until, 100_000).await.unwrap_or_default();
            let members: HashSet<String> = due.into_iter().map(|(member, _)| member).collect();
            jobs.retain(|job| members.contains(&job.id.to_string()));
        }
    }

    /// Sends the messages of rows that are not committed, for jobs whose runs never wait for a slot and are never
    /// skipped.
    async fn before_creating(
        &self,
        dispatcher: &Dispatcher,
        jobs: &[DueJob],
        runs: &[NewScheduledRun],
        now: DateTime<Utc>,
    ) -> HashSet<OccurrenceId> {
        if !is_sabotaged("publish_before_commit") {
            return HashSet::new();
        }
        let messages: Vec<OutgoingMessage> = runs
            .iter()
            .filter(|run| run.action == DueAction::Run)
            .filter_map(|run| Some((jobs.iter().find(|job| job.id == run.job_id)?, run)))
            .filter(|(job, _)| !job.rules.needs_slot())
            .map(|(job, run)| outgoing(job.clone(), run, false, now))
            .collect();
        let early = messages.iter().map(|out| out.message.occurrence_id).collect();
        dispatcher.sender.publish_batch(&messages).await;
        early
    }

    /// Writes back the due times that were read, so that every compare matches.
    async fn before_swap(&self, store: &Store, runs: &[NewScheduledRun]) -> Result<()> {
        if !is_sabotaged("skip_compare_and_swap") {
            return Ok(());
        }
        for run in runs {
            sqlx::query(
                "UPDATE job_due d SET next_fire_at = $3 FROM jobs j
                  WHERE j.id = $1 AND d.job_id = $1 AND d.version = $2 AND j.is_active
                    AND d.next_fire_at IS DISTINCT FROM $3",
            )
            .bind(run.job_id.0)
            .bind(run.version)
            .bind(run.due)
            .execute(store.pool())
            .await?;
        }
        Ok(())
    }

    fn is_mandatory(&self) -> bool {
        !is_sabotaged("skip_mandatory_flag")
    }

    fn waits_for_confirms(&self) -> bool {
        !is_sabotaged("skip_publisher_confirms")
    }

    /// Fails the occurrences whose messages were not confirmed.
    async fn after_publish(
        &self,
        store: &Store,
        clock: &Clock,
        messages: &[OutgoingMessage],
        confirmed: &[ConfirmedMessage],
    ) {
        if !is_sabotaged("fail_unpublished") {
            return;
        }
        let confirmed: HashSet<OccurrenceId> = confirmed.iter().map(|(id, _)| *id).collect();
        for out in messages.iter().filter(|out| !confirmed.contains(&out.message.occurrence_id)) {
            let run = DeadLetteredRun {
                id: out.message.occurrence_id,
                attempt: i32::try_from(out.message.attempt).unwrap_or(i32::MAX),
                cause: FailureCause::Rejected,
                reason: "Its message could not be published.".to_owned(),
                fingerprint: "unpublished".to_owned(),
                by_worker: false,
            };
            if let Err(error) = store.fail_dead_lettered(&run, clock.now()).await {
                tracing::warn!(error = %error, "the sabotage fail_unpublished could not fail occurrence {}", run.id);
            }
        }
    }

    /// Keeps only occurrences that are newer than all that were published again before.
    fn unsent(&self, found: &mut Vec<QueuedOccurrence>) {
        if is_sabotaged("skip_republish_lookback") {
            let mut newest = self.newest_republished.lock().unwrap_or_else(PoisonError::into_inner);
            found.retain(|queued| newest.is_none_or(|seen| queued.id > seen));
            *newest = found.iter().map(|queued| queued.id).max().or(*newest);
        }
    }

    fn acknowledges_first(&self) -> bool {
        is_sabotaged("ack_before_commit")
    }

    /// Applies each report to the attempt in force.
    async fn reports(&self, store: &Store, changes: &mut [AttemptChange]) -> Result<()> {
        if !is_sabotaged("skip_attempt_check") {
            return Ok(());
        }
        let ids: Vec<_> = changes.iter().map(|change| change.occurrence_id).collect();
        let recorded = store.recorded_attempts(&ids).await?;
        for change in changes {
            if let Some(recorded) = recorded.get(&change.occurrence_id) {
                change.attempt = recorded.attempt;
            }
        }
        Ok(())
    }

    /// Deletes the receipts of earlier deliveries, so that nothing shows that an occurrence exists.
    async fn before_enqueueing(&self, store: &Store, runs: &[EnqueuedRun]) -> Result<()> {
        if is_sabotaged("skip_receipts") {
            let ids: Vec<uuid::Uuid> = runs.iter().map(|run| run.id.0).collect();
            sqlx::query("DELETE FROM receipts WHERE run_id = ANY($1)").bind(ids).execute(store.pool()).await?;
        }
        Ok(())
    }

    /// Gives all instances one version, so that the one that started last decides.
    fn declarations(&self, instances: &mut [InstanceDeclaration]) {
        if is_sabotaged("trust_any_version") {
            for instance in instances {
                instance.version.clear();
            }
        }
    }

    fn can_hear(&self, is_receiving: bool) -> bool {
        is_receiving || is_sabotaged("skip_observed_time")
    }

    /// Counts the heartbeat timeout by wall clock, including the outages of the server.
    fn take_lost(&self, stale: &mut Vec<StaleRun>) -> Vec<(StaleRun, LostRunDecision)> {
        // The seam above decides first, and each sabotage is asked for once.
        if !self.can_hear(false) {
            return Vec::new();
        }
        let (aged, others) = mem::take(stale).into_iter().partition::<Vec<_>, _>(|run| {
            !run.is_unreported && run.age >= run.heartbeat_timeout.max(MIN_HEARTBEAT_TIMEOUT)
        });
        *stale = others;
        aged.into_iter()
            .map(|run| {
                let decision = decide_lost_run(run.on_lost, run.requeues, run.is_cancelled, run.is_stopping);
                (run, decision)
            })
            .collect()
    }
}
