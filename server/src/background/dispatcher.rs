//! Due jobs become occurrences, and occurrences become messages.
//!
//! The dispatcher sleeps until the earliest due instant that Redis knows, or until somebody says that the schedule
//! changed. It never polls while Redis is there. When Redis is away, or holds less than everything, PostgreSQL itself is
//! asked for the earliest instant, and at least once a second, for another server's change cannot reach us then.
//!
//! One server dispatches, the one that leads; its fencing epoch is checked in the statement that fires. Correctness does
//! not hang on that: the compare-and-swap in the store lets one server fire a given (job, due instant), however many try,
//! which is why all of them dispatch while Redis is away and nobody can lead.
//!
//! To read, to decide and to commit takes milliseconds, and a row is needed before its message may leave. So both are
//! done [`HEAD_START`] before the instant, and when it comes there is only the message to send. Nothing is sent early, and
//! nothing is decided early that the remaining milliseconds could change: what waits for its turn, or would be skipped
//! because an earlier occurrence is open, is looked at again when it is due.
//!
//! Publishing does not hold up the next tick; see [`super::sender`].

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, Utc};
use milvaion_api::{
    events::LiveEvent,
    views::{OccurrenceRow, TriggerSource},
};
use milvaion_protocol::{
    id::{CalendarId, JobId, OccurrenceId},
    status::OccurrenceStatus,
};
use milvaion_schedule::calendar::Calendar;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{lease::Leadership, sender::MessageSender, task_status::TaskStatuses};
use crate::{
    broker::publisher::OutgoingMessage,
    cache::Cache,
    clock::Clock,
    config::background::BackgroundConfig,
    domain::{
        message::{QueuedOccurrence, message},
        send_time::send_time,
    },
    faults,
    live::Hub,
    store::{
        Store,
        plan::{DueJob, NewScheduledRun, ScheduledRunResult},
    },
};
use milvaion_schedule::due::{DueAction, EffectiveSchedule};

/// What it is called on the board.
pub const NAME: &str = "dispatcher";
/// How long before it is due an occurrence is made. Longer than the look and the commit take on a busy machine, and too
/// short for anybody to notice that a job was edited or paused after its occurrence was made.
pub const HEAD_START: Duration = Duration::from_millis(20);
/// The longest sleep: the board must hear from the loop even when nothing is due for a year.
const MAX_SLEEP: Duration = Duration::from_secs(30);
/// How often a paused cluster is looked at, should the wake-up of whoever resumes it get lost.
const PAUSED_RECHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long the first tick waits for a way to the broker. Without a broker occurrences are recorded all the same.
const STARTUP_BROKER_TIMEOUT: Duration = Duration::from_secs(3);
/// The pause when everything due is being fired by another server.
const CONTENTION_PAUSE: Duration = Duration::from_millis(20);

/// Fires what is due.
#[derive(Clone, Debug)]
pub struct Dispatcher {
    /// The truth.
    pub store: Store,
    /// The fast clock.
    pub cache: Cache,
    /// The way to workers.
    pub sender: MessageSender,
    /// The way to browsers.
    pub hub: Hub,
    /// What time it is.
    pub clock: Clock,
    /// Whether this server is to dispatch.
    pub leadership: watch::Receiver<Leadership>,
    /// Woken when the schedule changed.
    pub activate_dispatcher: Arc<Notify>,
    /// Woken when the index in Redis is not to be believed.
    pub activate_due_index: Arc<Notify>,
    /// Woken when something was made that waits for a slot.
    pub activate_slot_granter: Arc<Notify>,
    /// Batch size and sweep.
    pub config: BackgroundConfig,
}

/// What one tick did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DispatchReport {
    /// Jobs that were due, and those whose occurrence was made ahead.
    pub due: usize,
    /// Up to which instant was looked.
    pub scanned_until: DateTime<Utc>,
    /// The latest instant of what may not be made before it comes. Until then there is nothing to do ahead.
    pub deferred_until: Option<DateTime<Utc>>,
    /// Occurrences made; the rest was fired, edited or paused by somebody else meanwhile.
    pub fired: Vec<OccurrenceId>,
    /// Jobs taken out because their schedule cannot be read.
    pub parked: usize,
    /// Nothing was made because the cluster is paused.
    pub is_paused: bool,
    /// Nothing was looked at because a clock was put forward or back; for so long.
    pub held_for: Option<Duration>,
}

impl Dispatcher {
    /// Fires one batch of what is due now or in a moment.
    ///
    /// # Errors
    ///
    /// When the database does not answer; then nothing was fired.
    pub async fn tick(&self) -> anyhow::Result<DispatchReport> {
        self.look(HEAD_START).await
    }

    /// Fires one batch of what is due at most `ahead` from now.
    async fn look(&self, ahead: Duration) -> anyhow::Result<DispatchReport> {
        // An old leader that was frozen stops here, or at the latest at the fence in the statement.
        let epoch = match &*self.leadership.borrow() {
            Leadership::Leader(term) if term.is_valid() => (!faults::sabotaged("skip_fence")).then(|| term.epoch()),
            Leadership::Leaderless => None,
            Leadership::Leader(_) | Leadership::Follower => return Ok(DispatchReport::default()),
        };
        if let Some(left) = self.clock.held_for() {
            return Ok(DispatchReport { held_for: Some(left), ..DispatchReport::default() });
        }
        let now = self.clock.now();
        let scanned_until = now + ahead;
        let mut jobs = self.store.due_jobs(scanned_until, self.config.dispatch_batch).await?;
        let mut ticked = DispatchReport { scanned_until, ..DispatchReport::default() };
        jobs.retain(|job| {
            let is_now = job.next_fire_at <= now || !takes_turns(job);
            if !is_now {
                ticked.deferred_until = ticked.deferred_until.max(Some(job.next_fire_at));
            }
            is_now
        });
        ticked.due = jobs.len();
        if faults::sabotaged("trust_due_index") {
            self.believe_redis(&mut jobs, scanned_until).await;
        }
        let fires = self.judge(&jobs, now, &mut ticked).await?;
        if fires.is_empty() {
            return Ok(ticked);
        }
        let early = if faults::sabotaged("publish_before_commit") {
            self.send_early(&jobs, &fires, now).await
        } else {
            HashSet::new()
        };
        faults::point("dispatch.before_commit");
        let made: HashMap<OccurrenceId, ScheduledRunResult> = self
            .store
            .create_scheduled_runs(&fires, epoch, now)
            .await?
            .into_iter()
            .map(|made| (made.id, made))
            .collect();
        faults::point("dispatch.after_commit");
        // What was refused ahead (an earlier occurrence is open) is asked for again when it is due.
        let refused = fires.iter().filter(|fire| fire.due > now && !made.contains_key(&fire.occurrence_id));
        for fire in refused {
            ticked.due -= 1;
            ticked.deferred_until = ticked.deferred_until.max(Some(fire.due));
        }
        if made.is_empty() {
            ticked.is_paused = self.store.is_cluster_paused().await?;
            return Ok(ticked);
        }
        let mut messages: BTreeMap<DateTime<Utc>, Vec<OutgoingMessage>> = BTreeMap::new();
        let mut rows = Vec::with_capacity(made.len());
        let mut due_again = Vec::with_capacity(made.len());
        let mut by_id: HashMap<JobId, DueJob> = jobs.into_iter().map(|job| (job.id, job)).collect();
        let mut is_held = false;
        for fire in &fires {
            let Some(made) = made.get(&fire.occurrence_id) else { continue };
            let Some(job) = by_id.remove(&fire.job_id) else { continue };
            ticked.fired.push(made.id);
            due_again.push((fire.job_id, fire.next_fire_at));
            rows.push(row(&job, fire, made));
            is_held |= made.is_held;
            if made.status == OccurrenceStatus::Queued && !made.is_held && !early.contains(&made.id) {
                messages.entry(send_time(fire.due, now)).or_default().push(outgoing(job, fire, now));
            }
        }
        for (at, messages) in messages {
            if at > now {
                self.sender.send_after(tokio::time::sleep(until(at, self.clock.now())), messages);
            } else {
                self.sender.send(messages).await;
            }
        }
        if is_held {
            self.activate_slot_granter.notify_one();
        }
        self.hub.publish(now, vec![LiveEvent::Occurrences { rows }]);
        if let Err(error) = self.cache.note_due(&due_again).await {
            tracing::debug!(error = %error, "Redis did not hear when jobs are due again");
            // Should it be there again, its index lacks them: they would be late until the next comparison.
            self.activate_due_index.notify_one();
        }
        Ok(ticked)
    }

    /// What each due job's timetable says about this fire.
    async fn judge(
        &self,
        jobs: &[DueJob],
        now: DateTime<Utc>,
        ticked: &mut DispatchReport,
    ) -> anyhow::Result<Vec<NewScheduledRun>> {
        let named: HashSet<CalendarId> = jobs.iter().flat_map(|job| job.rules.calendars.iter().copied()).collect();
        let calendars = if named.is_empty() { HashMap::new() } else { self.store.calendars_by_id(&named).await? };
        let mut fires = Vec::with_capacity(jobs.len());
        for job in jobs {
            // One unreadable row must not stop the others.
            let Some(schedule) = job.schedule.as_ref().filter(|schedule| schedule.check().is_ok()) else {
                tracing::error!(job.id = %job.id, job.name = job.display_name, "a job's schedule cannot be read; the job is paused");
                self.store
                    .pause_unreadable_job(
                        job.id,
                        job.version,
                        "Its schedule cannot be read by this version: edit the job.",
                    )
                    .await?;
                ticked.parked += 1;
                continue;
            };
            let kept: Vec<&Calendar> = job.rules.calendars.iter().filter_map(|id| calendars.get(id)).collect();
            let firing = EffectiveSchedule::new(job.id, schedule, &job.rules, &kept).decide(job.next_fire_at, now);
            fires.push(NewScheduledRun {
                job_id: job.id,
                version: job.version,
                due: job.next_fire_at,
                next_fire_at: firing.next_fire_at,
                occurrence_id: self.clock.occurrence_id(),
                action: firing.action,
                note: firing.note,
            });
        }
        Ok(fires)
    }

    /// Sabotage: sends the messages of rows that are not there yet, of jobs whose rows are never held or skipped. Returns
    /// whose.
    async fn send_early(
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

    /// Sabotage: of what is due by the truth, leaves what Redis says is due.
    async fn believe_redis(&self, jobs: &mut Vec<DueJob>, upto: DateTime<Utc>) {
        let members: HashSet<String> =
            self.cache.due_members(upto, 100_000).await.unwrap_or_default().into_iter().collect();
        jobs.retain(|job| members.contains(&job.id.to_string()));
    }

    /// Ticks for ever while this server leads, or while nobody can; until `stop`.
    pub async fn run(mut self, task_statuses: TaskStatuses, stop: CancellationToken) {
        // What was due before the server started would otherwise be made before there is a way to send it.
        let _ = tokio::time::timeout(STARTUP_BROKER_TIMEOUT, stop.run_until_cancelled(self.sender.wait_until_ready()))
            .await;
        let mut deferred_until: Option<DateTime<Utc>> = None;
        while !stop.is_cancelled() {
            let works = self.leadership.borrow_and_update().may_work();
            if !works {
                task_statuses.record_standby(NAME, MAX_SLEEP);
                tokio::select! {
                    _ = tokio::time::timeout(MAX_SLEEP, self.leadership.changed()) => {}
                    () = stop.cancelled() => {}
                }
                continue;
            }
            deferred_until = deferred_until.filter(|at| *at > self.clock.now());
            let pause = match self.look(ahead(deferred_until)).await {
                Ok(ticked) => {
                    deferred_until = deferred_until.max(ticked.deferred_until);
                    if !ticked.fired.is_empty() {
                        tracing::debug!(jobs.due = ticked.due, occurrences.fired = ticked.fired.len(), "dispatched");
                    }
                    task_statuses.record_tick(NAME, MAX_SLEEP, None);
                    if let Some(left) = ticked.held_for {
                        left.min(MAX_SLEEP)
                    } else if ticked.is_paused {
                        PAUSED_RECHECK_INTERVAL
                    } else if ticked.fired.is_empty() && ticked.due > ticked.parked {
                        CONTENTION_PAUSE
                    } else if ticked.due > 0 {
                        continue;
                    } else {
                        self.sleep_length(&ticked, ahead(deferred_until)).await
                    }
                }
                Err(error) => {
                    let reason = crate::error::chain(error.as_ref());
                    tracing::warn!(error = reason, "nothing could be fired; the database is asked again in a second");
                    task_statuses.record_tick(NAME, MAX_SLEEP, Some(reason));
                    Duration::from_secs(1)
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.activate_dispatcher.notified() => {}
                _ = self.leadership.changed() => {}
                () = stop.cancelled() => {}
            }
        }
    }

    /// How long there is nothing to do, when the next look is `ahead` of what it looks for.
    async fn sleep_length(&self, ticked: &DispatchReport, ahead: Duration) -> Duration {
        let now = self.clock.now() + ahead;
        match self.cache.earliest().await {
            Ok((Some(at), true)) if at > ticked.scanned_until || ticked.deferred_until.is_some() => {
                until(at, now).min(MAX_SLEEP)
            }
            // The index says something is due, the truth says nothing is: mend those members.
            Ok((Some(_), true)) => {
                if let Err(error) = self.mend(ticked.scanned_until).await {
                    tracing::warn!(error = %error, "the schedule in Redis could not be mended");
                    return self.config.sweep;
                }
                Duration::ZERO
            }
            Ok((None, true)) => MAX_SLEEP,
            Ok((_, false)) => {
                self.activate_due_index.notify_one();
                self.ask_the_truth(now).await.min(MAX_SLEEP)
            }
            // Another server's change cannot reach us, so look at least once a sweep.
            Err(_) => self.ask_the_truth(now).await.min(self.config.sweep),
        }
    }

    async fn ask_the_truth(&self, now: DateTime<Utc>) -> Duration {
        match self.store.earliest_due_time().await {
            Ok(Some(at)) => until(at, now),
            Ok(None) => MAX_SLEEP,
            Err(_) => self.config.sweep,
        }
    }

    async fn mend(&self, now: DateTime<Utc>) -> anyhow::Result<()> {
        let members = self.cache.due_members(now, 1_000).await?;
        let ids: Vec<Uuid> = members.iter().filter_map(|member| Uuid::parse_str(member).ok()).collect();
        let truth = self.store.due_times(&ids).await?;
        let known: std::collections::HashSet<String> = truth.iter().map(|(id, _)| id.to_string()).collect();
        let gone: Vec<String> = members.into_iter().filter(|member| !known.contains(member)).collect();
        self.cache.remove_members(&gone).await?;
        let truth: Vec<_> = truth.into_iter().map(|(id, at)| (id, Some(at))).collect();
        self.cache.note_due(&truth).await?;
        Ok(())
    }
}

/// How far a look reaches ahead while something that `deferred_until` its instant would only be found again.
fn ahead(deferred_until: Option<DateTime<Utc>>) -> Duration {
    if deferred_until.is_some() { Duration::ZERO } else { HEAD_START }
}

/// Whether the job's occurrences are let go one after another. The releaser does that at once, so they are not made ahead.
fn takes_turns(job: &DueJob) -> bool {
    job.rules.job_limit().is_some() || job.rules.key_limit.is_some()
}

fn until(at: DateTime<Utc>, now: DateTime<Utc>) -> Duration {
    (at - now).to_std().unwrap_or(Duration::ZERO)
}

fn row(job: &DueJob, fire: &NewScheduledRun, made: &ScheduledRunResult) -> OccurrenceRow {
    OccurrenceRow {
        id: fire.occurrence_id,
        job_id: job.id,
        job_name: job.display_name.clone(),
        status: made.status,
        version: 1,
        trigger: TriggerSource::Schedule,
        attempt: 1,
        scheduled_for: fire.due,
        started_at: None,
        ended_at: (made.status == OccurrenceStatus::Skipped).then(|| made.id.created_at()),
        duration_ms: None,
        instance_id: None,
        progress: None,
        note: made.note.clone(),
        waits_until: None,
    }
}

fn outgoing(job: DueJob, fire: &NewScheduledRun, now: DateTime<Utc>) -> OutgoingMessage {
    let queued = QueuedOccurrence {
        id: fire.occurrence_id,
        job_id: job.id,
        job_name: job.display_name,
        worker_id: job.worker_id.clone(),
        job_type: job.job_type,
        job_data: job.job_data,
        scheduled_for: fire.due,
        attempt: 1,
        failures: 0,
        max_retries: i16::try_from(job.rules.max_retries).unwrap_or(0),
        priority: job.priority,
        timeout_seconds: job.timeout_seconds,
    };
    OutgoingMessage { worker_id: job.worker_id, message: message(queued, now), republished: false }
}
