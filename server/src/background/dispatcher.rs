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
    event::Event,
    view::{OccurrenceRow, Trigger},
};
use milvaion_protocol::{
    id::{CalendarId, JobId, OccurrenceId},
    status::OccurrenceStatus,
};
use milvaion_schedule::calendar::Calendar;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{board::Board, lease::Leadership, sender::Sender};
use crate::{
    broker::publisher::Outgoing,
    cache::Cache,
    clock::Clock,
    config::background::BackgroundConfig,
    domain::{
        departure::departure,
        message::{Queued, message},
    },
    faults,
    live::Hub,
    store::{
        Store,
        plan::{DueJob, Fire, Made},
    },
};
use milvaion_schedule::due::{Timetable, Verdict};

/// What it is called on the board.
pub const NAME: &str = "dispatcher";
/// How long before it is due an occurrence is made. Longer than the look and the commit take on a busy machine, and too
/// short for anybody to notice that a job was edited or paused after its occurrence was made.
pub const HEAD_START: Duration = Duration::from_millis(20);
/// The longest sleep: the board must hear from the loop even when nothing is due for a year.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);
/// How often a paused cluster is looked at, should the wake-up of whoever resumes it get lost.
const PAUSED: Duration = Duration::from_secs(1);
/// How long the first tick waits for a way to the broker. Without a broker occurrences are recorded all the same.
const FIRST_CHANNEL: Duration = Duration::from_secs(3);
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
    pub sender: Sender,
    /// The way to browsers.
    pub hub: Hub,
    /// What time it is.
    pub clock: Clock,
    /// Whether this server is to dispatch.
    pub leadership: watch::Receiver<Leadership>,
    /// Woken when the schedule changed.
    pub wake: Arc<Notify>,
    /// Woken when the index in Redis is not to be believed.
    pub rebuild: Arc<Notify>,
    /// Woken when something was made that waits for a slot.
    pub release: Arc<Notify>,
    /// Batch size and sweep.
    pub config: BackgroundConfig,
}

/// What one tick did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ticked {
    /// Jobs that were due, and those whose occurrence was made ahead.
    pub due: usize,
    /// Up to which instant was looked.
    pub looked_upto: DateTime<Utc>,
    /// The latest instant of what may not be made before it comes. Until then there is nothing to do ahead.
    pub waits_for: Option<DateTime<Utc>>,
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
    pub async fn tick(&self) -> anyhow::Result<Ticked> {
        self.look(HEAD_START).await
    }

    /// Fires one batch of what is due at most `ahead` from now.
    async fn look(&self, ahead: Duration) -> anyhow::Result<Ticked> {
        // An old leader that was frozen stops here, or at the latest at the fence in the statement.
        let epoch = match &*self.leadership.borrow() {
            Leadership::Leader(term) if term.holds() => (!faults::sabotaged("s06")).then(|| term.epoch()),
            Leadership::Nobody => None,
            Leadership::Leader(_) | Leadership::Follower => return Ok(Ticked::default()),
        };
        if let Some(left) = self.clock.held_for() {
            return Ok(Ticked { held_for: Some(left), ..Ticked::default() });
        }
        let now = self.clock.now();
        let looked_upto = now + ahead;
        let mut jobs = self.store.due(looked_upto, self.config.dispatch_batch).await?;
        let mut ticked = Ticked { looked_upto, ..Ticked::default() };
        jobs.retain(|job| {
            let is_now = job.next_fire_at <= now || !takes_turns(job);
            if !is_now {
                ticked.waits_for = ticked.waits_for.max(Some(job.next_fire_at));
            }
            is_now
        });
        ticked.due = jobs.len();
        if faults::sabotaged("s09") {
            self.believe_redis(&mut jobs, looked_upto).await;
        }
        let fires = self.judge(&jobs, now, &mut ticked).await?;
        if fires.is_empty() {
            return Ok(ticked);
        }
        let early = if faults::sabotaged("s02") { self.send_early(&jobs, &fires, now).await } else { HashSet::new() };
        faults::point("cp01");
        let made: HashMap<OccurrenceId, Made> =
            self.store.fire(&fires, epoch, now).await?.into_iter().map(|made| (made.id, made)).collect();
        faults::point("cp05");
        // What was refused ahead (an earlier occurrence is open) is asked for again when it is due.
        let refused = fires.iter().filter(|fire| fire.due > now && !made.contains_key(&fire.occurrence_id));
        for fire in refused {
            ticked.due -= 1;
            ticked.waits_for = ticked.waits_for.max(Some(fire.due));
        }
        if made.is_empty() {
            ticked.is_paused = self.store.is_paused().await?;
            return Ok(ticked);
        }
        let mut messages: BTreeMap<DateTime<Utc>, Vec<Outgoing>> = BTreeMap::new();
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
                messages.entry(departure(fire.due, now)).or_default().push(outgoing(job, fire, now));
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
            self.release.notify_one();
        }
        self.hub.publish(now, vec![Event::Occurrences { rows }]);
        if let Err(error) = self.cache.note_due(&due_again).await {
            tracing::debug!(error = %error, "Redis did not hear when jobs are due again");
            // Should it be there again, its index lacks them: they would be late until the next comparison.
            self.rebuild.notify_one();
        }
        Ok(ticked)
    }

    /// What each due job's timetable says about this fire.
    async fn judge(&self, jobs: &[DueJob], now: DateTime<Utc>, ticked: &mut Ticked) -> anyhow::Result<Vec<Fire>> {
        let named: HashSet<CalendarId> = jobs.iter().flat_map(|job| job.rules.calendars.iter().copied()).collect();
        let calendars = if named.is_empty() { HashMap::new() } else { self.store.calendars_by_id(&named).await? };
        let mut fires = Vec::with_capacity(jobs.len());
        for job in jobs {
            // One unreadable row must not stop the others.
            let Some(schedule) = job.schedule.as_ref().filter(|schedule| schedule.check().is_ok()) else {
                tracing::error!(job.id = %job.id, job.name = job.display_name, "a job's schedule cannot be read; the job is paused");
                self.store
                    .park(job.id, job.version, "Its schedule cannot be read by this version: edit the job.")
                    .await?;
                ticked.parked += 1;
                continue;
            };
            let kept: Vec<&Calendar> = job.rules.calendars.iter().filter_map(|id| calendars.get(id)).collect();
            let firing = Timetable::new(job.id, schedule, &job.rules, &kept).fire(job.next_fire_at, now);
            fires.push(Fire {
                job_id: job.id,
                version: job.version,
                due: job.next_fire_at,
                next_fire_at: firing.next_fire_at,
                occurrence_id: self.clock.occurrence_id(),
                verdict: firing.verdict,
                note: firing.note,
            });
        }
        Ok(fires)
    }

    /// Sabotage: sends the messages of rows that are not there yet, of jobs whose rows are never held or skipped. Returns
    /// whose.
    async fn send_early(&self, jobs: &[DueJob], fires: &[Fire], now: DateTime<Utc>) -> HashSet<OccurrenceId> {
        let messages: Vec<Outgoing> = fires
            .iter()
            .filter(|fire| fire.verdict == Verdict::Run)
            .filter_map(|fire| Some((jobs.iter().find(|job| job.id == fire.job_id)?, fire)))
            .filter(|(job, _)| !job.rules.needs_slot())
            .map(|(job, fire)| outgoing(job.clone(), fire, now))
            .collect();
        let early = messages.iter().map(|out| out.message.occurrence_id).collect();
        self.sender.fly(&messages).await;
        early
    }

    /// Sabotage: of what is due by the truth, leaves what Redis says is due.
    async fn believe_redis(&self, jobs: &mut Vec<DueJob>, upto: DateTime<Utc>) {
        let members: HashSet<String> =
            self.cache.due_members(upto, 100_000).await.unwrap_or_default().into_iter().collect();
        jobs.retain(|job| members.contains(&job.id.to_string()));
    }

    /// Ticks for ever while this server leads, or while nobody can; until `stop`.
    pub async fn run(mut self, board: Board, stop: CancellationToken) {
        // What was due before the server started would otherwise be made before there is a way to send it.
        let _ = tokio::time::timeout(FIRST_CHANNEL, stop.run_until_cancelled(self.sender.ready())).await;
        let mut waits_for: Option<DateTime<Utc>> = None;
        while !stop.is_cancelled() {
            let works = self.leadership.borrow_and_update().works();
            if !works {
                board.stand_by(NAME, LONGEST_SLEEP);
                tokio::select! {
                    _ = tokio::time::timeout(LONGEST_SLEEP, self.leadership.changed()) => {}
                    () = stop.cancelled() => {}
                }
                continue;
            }
            waits_for = waits_for.filter(|at| *at > self.clock.now());
            let pause = match self.look(ahead(waits_for)).await {
                Ok(ticked) => {
                    waits_for = waits_for.max(ticked.waits_for);
                    if !ticked.fired.is_empty() {
                        tracing::debug!(jobs.due = ticked.due, occurrences.fired = ticked.fired.len(), "dispatched");
                    }
                    board.beat(NAME, LONGEST_SLEEP, None);
                    if let Some(left) = ticked.held_for {
                        left.min(LONGEST_SLEEP)
                    } else if ticked.is_paused {
                        PAUSED
                    } else if ticked.fired.is_empty() && ticked.due > ticked.parked {
                        BUSY_ELSEWHERE
                    } else if ticked.due > 0 {
                        continue;
                    } else {
                        self.sleep_length(&ticked, ahead(waits_for)).await
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
                _ = self.leadership.changed() => {}
                () = stop.cancelled() => {}
            }
        }
    }

    /// How long there is nothing to do, when the next look is `ahead` of what it looks for.
    async fn sleep_length(&self, ticked: &Ticked, ahead: Duration) -> Duration {
        let now = self.clock.now() + ahead;
        match self.cache.earliest().await {
            Ok((Some(at), true)) if at > ticked.looked_upto || ticked.waits_for.is_some() => {
                until(at, now).min(LONGEST_SLEEP)
            }
            // The index says something is due, the truth says nothing is: mend those members.
            Ok((Some(_), true)) => {
                if let Err(error) = self.mend(ticked.looked_upto).await {
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

/// How far a look reaches ahead while something that `waits_for` its instant would only be found again.
fn ahead(waits_for: Option<DateTime<Utc>>) -> Duration {
    if waits_for.is_some() { Duration::ZERO } else { HEAD_START }
}

/// Whether the job's occurrences are let go one after another. The releaser does that at once, so they are not made ahead.
fn takes_turns(job: &DueJob) -> bool {
    job.rules.job_limit().is_some() || job.rules.key_limit.is_some()
}

fn until(at: DateTime<Utc>, now: DateTime<Utc>) -> Duration {
    (at - now).to_std().unwrap_or(Duration::ZERO)
}

fn row(job: &DueJob, fire: &Fire, made: &Made) -> OccurrenceRow {
    OccurrenceRow {
        id: fire.occurrence_id,
        job_id: job.id,
        job_name: job.display_name.clone(),
        status: made.status,
        version: 1,
        trigger: Trigger::Schedule,
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
        failures: 0,
        max_retries: i16::try_from(job.rules.max_retries).unwrap_or(0),
        priority: job.priority,
        timeout_seconds: job.timeout_seconds,
    };
    Outgoing { worker_id: job.worker_id, message: message(queued, now), republished: false }
}
