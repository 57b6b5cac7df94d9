//! Due jobs become occurrences, and occurrences become messages.
//!
//! The dispatcher sleeps until the earliest due instant that Redis knows, or until somebody says that the schedule
//! changed. It never polls while Redis is there. When Redis is away, or holds less than everything, PostgreSQL itself is
//! asked for the earliest instant, and at least once a second, for another server's change cannot reach us then.
//!
//! Any number of servers may dispatch at once. The compare-and-swap in the store lets one of them fire a given (job, due
//! instant), so there is nothing to agree on beforehand; a leader would save effort, not errors.
//!
//! Publishing does not hold up the next tick: up to `IN_FLIGHT` batches wait for their confirms at the same time. What
//! is not confirmed stays unpublished in PostgreSQL and belongs to the republisher.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use protocol::{
    event::Event,
    id::{JobId, OccurrenceId},
    status::OccurrenceStatus,
    view::{OccurrenceRow, Trigger},
};
use tokio::sync::{Notify, Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use super::board::Board;
use crate::{
    broker::publisher::{Outgoing, Publisher},
    cache::Cache,
    clock::Clock,
    config::background::BackgroundConfig,
    domain::{
        due,
        message::{Queued, message},
    },
    live::Hub,
    store::{
        Store,
        plan::{DueJob, Fire},
    },
};

/// What it is called on the board.
pub const NAME: &str = "dispatcher";
/// How many batches may wait for confirms.
const IN_FLIGHT: usize = 8;
/// The longest sleep: the board must hear from the loop even when nothing is due for a year.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);
/// The pause when everything due is being fired by another server.
const BUSY_ELSEWHERE: Duration = Duration::from_millis(20);

/// Fires what is due.
#[derive(Clone, Debug)]
pub struct Dispatcher {
    /// The truth.
    pub store: Store,
    /// The fast clock.
    pub cache: Cache,
    /// The way to workers.
    pub publisher: Publisher,
    /// The way to browsers.
    pub hub: Hub,
    /// What time it is.
    pub clock: Clock,
    /// Woken when the schedule changed.
    pub wake: Arc<Notify>,
    /// Woken when the index in Redis is not to be believed.
    pub rebuild: Arc<Notify>,
    /// Woken when a message did not get through.
    pub republish: Arc<Notify>,
    /// Batch size and sweep.
    pub config: BackgroundConfig,
    /// Batches on the way to the broker.
    pub flights: TaskTracker,
    /// Bounds them.
    pub gate: Arc<Semaphore>,
}

/// What one tick did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ticked {
    /// Jobs that were due.
    pub due: usize,
    /// Occurrences made; the rest was fired, edited or paused by somebody else meanwhile.
    pub fired: Vec<OccurrenceId>,
    /// Jobs taken out because their schedule cannot be read.
    pub parked: usize,
}

impl Dispatcher {
    /// A gate of the right size.
    #[must_use]
    pub fn gate() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(IN_FLIGHT))
    }

    /// Fires one batch of what is due now.
    ///
    /// # Errors
    ///
    /// When the database does not answer; then nothing was fired.
    pub async fn tick(&self) -> anyhow::Result<Ticked> {
        let now = self.clock.now();
        let jobs = self.store.due(now, self.config.dispatch_batch).await?;
        let mut ticked = Ticked { due: jobs.len(), ..Ticked::default() };
        let mut fires = Vec::with_capacity(jobs.len());
        for job in &jobs {
            // One unreadable row must not stop the others.
            let Some(schedule) = &job.schedule else {
                tracing::error!(job.id = %job.id, job.name = job.display_name, "a job's schedule cannot be read; the job is paused");
                self.store.park(job.id, "Its schedule cannot be read by this version: edit the job.").await?;
                ticked.parked += 1;
                continue;
            };
            let firing = due::fire(schedule, job.next_fire_at, job.end_at, now);
            fires.push(Fire {
                job_id: job.id,
                version: job.version,
                due: firing.scheduled_for,
                next_fire_at: firing.next_fire_at,
                occurrence_id: self.clock.occurrence_id(),
            });
        }
        if fires.is_empty() {
            return Ok(ticked);
        }
        ticked.fired = self.store.fire(&fires, now).await?;
        let made: std::collections::HashSet<OccurrenceId> = ticked.fired.iter().copied().collect();
        let mut messages = Vec::with_capacity(made.len());
        let mut rows = Vec::with_capacity(made.len());
        let mut due_again = Vec::with_capacity(made.len());
        let mut by_id: std::collections::HashMap<JobId, DueJob> = jobs.into_iter().map(|job| (job.id, job)).collect();
        for fire in fires.iter().filter(|fire| made.contains(&fire.occurrence_id)) {
            let Some(job) = by_id.remove(&fire.job_id) else { continue };
            due_again.push((fire.job_id, fire.next_fire_at));
            rows.push(row(&job, fire));
            messages.push(outgoing(job, fire, now));
        }
        self.send(messages).await;
        self.hub.publish(now, vec![Event::Occurrences { rows }]);
        if let Err(error) = self.cache.note_due(&due_again).await {
            tracing::debug!(error = %error, "Redis did not hear when jobs are due again");
        }
        Ok(ticked)
    }

    /// Publishes a batch and marks what the broker has, without waiting for it.
    async fn send(&self, messages: Vec<Outgoing>) {
        if messages.is_empty() {
            return;
        }
        let this = self.clone();
        // Closed only when the process ends.
        let Ok(permit) = self.gate.clone().acquire_owned().await else { return };
        self.flights.spawn(async move {
            let _permit = permit;
            let sent = this.publisher.publish(&messages).await;
            if sent.len() < messages.len() {
                this.republish.notify_one();
            }
            if let Err(error) = this.store.mark_published(&sent, this.clock.now()).await {
                tracing::warn!(error = %error, "published occurrences could not be marked; they will be sent once more and dropped by the worker");
            }
        });
    }

    /// Ticks for ever, until `stop`.
    pub async fn run(self, board: Board, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let pause = match self.tick().await {
                Ok(ticked) => {
                    if !ticked.fired.is_empty() {
                        tracing::debug!(jobs.due = ticked.due, occurrences.fired = ticked.fired.len(), "dispatched");
                    }
                    board.beat(NAME, LONGEST_SLEEP, None);
                    if ticked.fired.is_empty() && ticked.due > ticked.parked {
                        BUSY_ELSEWHERE
                    } else if ticked.due > 0 {
                        continue;
                    } else {
                        self.sleep_length().await
                    }
                }
                Err(error) => {
                    let reason = crate::error::chain(error.as_ref());
                    tracing::warn!(error = reason, "nothing could be fired; the database is asked again in a second");
                    board.beat(NAME, LONGEST_SLEEP, Some(reason));
                    Duration::from_secs(1)
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.wake.notified() => {}
                () = stop.cancelled() => {}
            }
        }
        self.flights.close();
        self.flights.wait().await;
    }

    /// How long there is nothing to do.
    async fn sleep_length(&self) -> Duration {
        let now = self.clock.now();
        match self.cache.earliest().await {
            Ok((Some(at), true)) if at > now => until(at, now).min(LONGEST_SLEEP),
            // The index says something is due, the truth says nothing is: mend those members.
            Ok((Some(_), true)) => {
                if let Err(error) = self.mend(now).await {
                    tracing::warn!(error = %error, "the schedule in Redis could not be mended");
                    return self.config.sweep;
                }
                Duration::ZERO
            }
            Ok((None, true)) => LONGEST_SLEEP,
            Ok((_, false)) => {
                self.rebuild.notify_one();
                self.ask_the_truth(now).await.min(LONGEST_SLEEP)
            }
            // Another server's change cannot reach us, so look at least once a sweep.
            Err(_) => self.ask_the_truth(now).await.min(self.config.sweep),
        }
    }

    async fn ask_the_truth(&self, now: DateTime<Utc>) -> Duration {
        match self.store.earliest_due().await {
            Ok(Some(at)) => until(at, now),
            Ok(None) => LONGEST_SLEEP,
            Err(_) => self.config.sweep,
        }
    }

    async fn mend(&self, now: DateTime<Utc>) -> anyhow::Result<()> {
        let members = self.cache.due_members(now, 1_000).await?;
        let ids: Vec<Uuid> = members.iter().filter_map(|member| Uuid::parse_str(member).ok()).collect();
        let truth = self.store.due_instants(&ids).await?;
        let known: std::collections::HashSet<String> = truth.iter().map(|(id, _)| id.to_string()).collect();
        let gone: Vec<String> = members.into_iter().filter(|member| !known.contains(member)).collect();
        self.cache.forget(&gone).await?;
        let truth: Vec<_> = truth.into_iter().map(|(id, at)| (id, Some(at))).collect();
        self.cache.note_due(&truth).await?;
        Ok(())
    }
}

fn until(at: DateTime<Utc>, now: DateTime<Utc>) -> Duration {
    (at - now).to_std().unwrap_or(Duration::ZERO)
}

fn row(job: &DueJob, fire: &Fire) -> OccurrenceRow {
    OccurrenceRow {
        id: fire.occurrence_id,
        job_id: job.id,
        job_name: job.display_name.clone(),
        status: OccurrenceStatus::Queued,
        version: 1,
        trigger: Trigger::Schedule,
        attempt: 1,
        scheduled_for: fire.due,
        started_at: None,
        ended_at: None,
        duration_ms: None,
        instance_id: None,
        progress: None,
        note: None,
    }
}

fn outgoing(job: DueJob, fire: &Fire, now: DateTime<Utc>) -> Outgoing {
    let queued = Queued {
        id: fire.occurrence_id,
        job_id: job.id,
        job_name: job.display_name,
        worker_id: job.worker_id.clone(),
        job_type: job.job_type,
        job_data: job.job_data,
        scheduled_for: fire.due,
        attempt: 1,
        max_retries: job.max_retries,
        priority: job.priority,
        timeout_seconds: job.timeout_seconds,
    };
    Outgoing { worker_id: job.worker_id, message: message(queued, now), republished: false }
}
