//! The zombie detector: runs whose worker fell silent are given to another, or settled.
//!
//! The decision, and what counts as silence, is `domain::zombie`. Here is what the decision needs to know of the world:
//! which runs are silent, and whether we could have heard them. We could if both queues by which workers speak deliver to
//! this server, and hold nothing so old that an unread sign of life may be in it.

use std::{sync::Arc, time::Duration};

use milvaion_api::event::Event;
use milvaion_protocol::status::OccurrenceStatus;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{Task, lease::Leadership};
use crate::{
    broker::{Broker, depth::QueueProbe},
    cache::Cache,
    clock::Clock,
    domain::{
        lane,
        zombie::{Backlog, Fate, LATE_REPORT, MAX_RESCUES, SHORTEST_LIMIT, Silent, Watch, fate},
    },
    faults,
    live::Hub,
    store::{
        Store,
        lost::{Settled, SettledRows},
    },
};

/// How often silence is looked for.
const PERIOD: Duration = Duration::from_secs(2);
/// From when on a run counts as silent at all: one heartbeat was missed.
const MISSED_ONE: chrono::Duration = chrono::Duration::seconds(7);

/// The task.
#[derive(Debug)]
pub struct Zombies {
    /// The truth.
    pub store: Store,
    /// Told when a job is due again.
    pub cache: Cache,
    /// The way to browsers.
    pub hub: Hub,
    /// What time it is.
    pub clock: Clock,
    /// Whether workers can be heard.
    pub ears: Ears,
    /// In which term this is done.
    pub leadership: watch::Receiver<Leadership>,
    /// How long a run may be silent whose job says nothing else.
    pub limit: Duration,
    /// Wakes the dispatcher.
    pub wake: Arc<Notify>,
    /// Wakes the republisher.
    pub republish: Arc<Notify>,
    /// Wakes whoever hands out slots.
    pub release: Arc<Notify>,
    /// What is remembered from look to look; see [`Zombies::watch`].
    pub watch: Watch,
}

/// Whether workers can be heard.
#[derive(Debug)]
pub struct Ears {
    broker: Broker,
    probe: QueueProbe,
    begun: Instant,
    status: Backlog,
    registration: Backlog,
}

impl Ears {
    /// Ears at a broker.
    #[must_use]
    pub fn new(broker: Broker) -> Self {
        let probe = QueueProbe::new(broker.clone());
        Self { broker, probe, begun: Instant::now(), status: Backlog::default(), registration: Backlog::default() }
    }

    /// The present instant of the monotonic clock, and whether everything workers said up to a moment ago has been heard.
    async fn listen(&mut self) -> (Duration, bool) {
        let at = self.begun.elapsed();
        let (status, registration) = (self.broker.topology().status(), self.broker.topology().registration());
        if !self.broker.is_consuming_from(&status) || !self.broker.is_consuming_from(&registration) {
            return (at, false);
        }
        let (Ok(reports), Ok(heartbeats)) =
            (self.probe.waiting(&status).await, self.probe.waiting(&registration).await)
        else {
            return (at, false);
        };
        let reports = self.status.is_young(reports, at, SHORTEST_LIMIT);
        let heartbeats = self.registration.is_young(heartbeats, at, SHORTEST_LIMIT);
        (at, reports && heartbeats)
    }
}

/// What one tick did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// Runs that are silent at the moment.
    pub silent: usize,
    /// Given to another worker.
    pub requeued: usize,
    /// Open until a late report comes.
    pub unknown: usize,
    /// Ended: poison, cancelled, or unknown for too long.
    pub ended: usize,
}

impl Zombies {
    /// The memory to begin with.
    #[must_use]
    pub fn watch() -> Watch {
        Watch::new(PERIOD)
    }

    /// Judges what is silent, for a look at `at` of the monotonic clock by somebody who `hears` or not.
    ///
    /// # Errors
    ///
    /// When the database does not answer; then nothing was settled.
    pub async fn look(&mut self, at: Duration, hears: bool) -> anyhow::Result<Judged> {
        // By a clock that was just set, everything is silent at once.
        let hears = hears && !self.clock.is_doubtful();
        self.watch.look(at, hears);
        let by_age = faults::sabotaged("s10");
        if !hears && !by_age {
            return Ok(Judged::default());
        }
        let now = self.clock.now();
        let silent = self.store.silent(now - MISSED_ONE, self.limit, now).await?;
        let mut judged = Judged { silent: silent.len(), ..Judged::default() };
        let (aged, silent): (Vec<Silent>, Vec<Silent>) =
            silent.into_iter().partition(|run| by_age && !run.is_forgotten && run.age >= run.limit.max(SHORTEST_LIMIT));
        let mut lost = self.watch.judge(silent);
        lost.extend(aged.into_iter().map(|run| {
            let fate = fate(run.on_lost, run.rescues, run.is_cancelled);
            (run, fate)
        }));
        let mut settled = settle(&lost);
        if self.watch.seeing_for() >= SHORTEST_LIMIT {
            // Whatever waited at the broker for us has been read by now.
            settled.extend(self.store.long_unknown(now - LATE_REPORT).await?.into_iter().map(|(id, attempt)| {
                Settled {
                    id,
                    attempt,
                    was: OccurrenceStatus::Unknown,
                    sign: None,
                    status: OccurrenceStatus::Failed,
                    note: format!(
                        "lost: its worker fell silent, and no report came within {} minutes",
                        LATE_REPORT.num_minutes()
                    ),
                    cause: Some("lost"),
                    takes_turn: false,
                }
            }));
        }
        if settled.is_empty() {
            return Ok(judged);
        }
        let Some(fence) = self.leadership.borrow().mandate() else { return Ok(judged) };
        faults::point("cp16");
        let done = self.store.settle_lost(&settled, fence, now).await?;
        faults::point("cp16b");
        for row in &done.rows {
            match row.status {
                OccurrenceStatus::Queued => judged.requeued += 1,
                OccurrenceStatus::Unknown => judged.unknown += 1,
                _ => judged.ended += 1,
            }
            tracing::warn!(
                occurrence.id = %row.id,
                occurrence.attempt = row.attempt,
                job.name = row.job_name,
                becomes = row.status.word(),
                "a run's worker fell silent"
            );
        }
        self.told(done, &judged).await;
        Ok(judged)
    }

    async fn told(&self, done: SettledRows, judged: &Judged) {
        if judged.requeued > 0 {
            self.republish.notify_one();
        }
        // A slot is free, or somebody waits for a turn.
        if judged.ended > 0 || done.rows.iter().any(|row| row.waits_until.is_some()) {
            self.release.notify_one();
        }
        if !done.rows.is_empty() {
            self.hub.publish(self.clock.now(), vec![Event::Occurrences { rows: done.rows }]);
        }
    }
}

/// What becomes of lost runs. Those that have one chance left open the lane of their worker, also for who died with them.
fn settle(lost: &[(Silent, Fate)]) -> Vec<Settled> {
    let again = |fate: Fate| fate == Fate::Requeue;
    let requeued = lost.iter().filter(|(_, fate)| again(*fate));
    let opened = lane::opened(requeued.map(|(run, _)| (run.worker_id.as_str(), run.rescues + 1)));
    lost.iter()
        .map(|(run, fate)| {
            // Up to when it was heard of last: for how long nobody has heard of it says nothing about the run.
            let lived = run.started_at.map(|started| run.sign - started);
            let is_open = run.lane_is_open || opened.contains(run.worker_id.as_str());
            settle_one(run, *fate, again(*fate) && lane::takes_turn(run.rescues + 1, lived, is_open))
        })
        .collect()
}

fn settle_one(run: &Silent, fate: Fate, takes_turn: bool) -> Settled {
    let silence = run.age.as_secs();
    let (status, cause, note) = match fate {
        Fate::Requeue => {
            let when = if takes_turn { lane::IN_TURN } else { "at once" };
            let note = format!("its worker fell silent {silence} s ago; it is run again {when}");
            (OccurrenceStatus::Queued, None, note)
        }
        Fate::Poison => (
            OccurrenceStatus::Failed,
            Some("poison"),
            format!(
                "its run ended {MAX_RESCUES} workers' lives, and now one more: it is not given to another; last heard of {silence} s ago"
            ),
        ),
        Fate::Unknown => (
            OccurrenceStatus::Unknown,
            None,
            format!(
                "its worker fell silent {silence} s ago, and the job must not be run twice; a report within {} minutes still counts",
                LATE_REPORT.num_minutes()
            ),
        ),
        Fate::Cancel => (
            OccurrenceStatus::Cancelled,
            None,
            format!("it was asked to end, and its worker fell silent {silence} s ago"),
        ),
    };
    Settled {
        id: run.id,
        attempt: run.attempt,
        was: OccurrenceStatus::Running,
        sign: Some(run.sign),
        status,
        note,
        cause,
        takes_turn,
    }
}

impl Task for Zombies {
    const NAME: &'static str = "zombies";
    type Report = Judged;

    fn period(&self) -> Duration {
        PERIOD
    }

    async fn tick(&mut self) -> anyhow::Result<Judged> {
        let (at, hears) = self.ears.listen().await;
        self.look(at, hears).await
    }

    fn is_news(report: &Judged) -> bool {
        report.requeued + report.unknown + report.ended > 0
    }
}
