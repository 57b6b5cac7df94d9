//! A server on a clock that only the test advances, and a worker whose runs end when the test says so.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex},
};

use chrono::{DateTime, Duration, Utc};
use milvaion_api::{requests::JobInput, views::OccurrenceRow};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::StatusReport,
    status::OccurrenceStatus,
};
use milvaion_schedule::{rules::Rules, schedule::Schedule};
use milvaion_server::{
    clock::{Clock, machine_now},
    config::ServerConfig,
    lifecycle::Server,
};
use milvaion_worker::{CancellationToken, Job, JobContext, JobError};
use tokio::sync::Notify;

use crate::{jobs, runs, server_env, wait, worker_env};

/// A job whose runs wait until the test ends them.
#[derive(Clone, Debug, Default)]
pub struct GatedJob {
    state: Arc<Mutex<GateState>>,
    changed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct GateState {
    started: Vec<OccurrenceId>,
    waiting: VecDeque<OccurrenceId>,
    endings: HashMap<OccurrenceId, RunEnding>,
    max_concurrent: usize,
}

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub enum RunEnding {
    /// Success.
    Completes,
    /// A retryable failure.
    Fails,
    /// A permanent failure.
    FailsPermanently,
    /// A snooze for this number of seconds.
    Snoozes(u64),
}

impl RunEnding {
    fn result(self) -> Result<(), JobError> {
        match self {
            Self::Completes => Ok(()),
            Self::Fails => Err(JobError::new("the connection is lost")),
            Self::FailsPermanently => Err(JobError::permanent("the account is closed")),
            Self::Snoozes(seconds) => {
                Err(JobError::snooze(std::time::Duration::from_secs(seconds), "the file is not there yet"))
            }
        }
    }
}

/// The input of [`GatedJob`], which accepts the input of [`jobs::echo_job`].
#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
pub struct GatedJobInput {
    #[serde(default)]
    #[expect(dead_code, reason = "the input of the tests' jobs contains it")]
    say: String,
}

impl Job for GatedJob {
    const TYPE: &'static str = "echo";
    const DESCRIPTION: &'static str = "Waits until the test ends it.";
    type Input = GatedJobInput;
    type Output = ();

    async fn run(&self, ctx: &JobContext, _: GatedJobInput) -> Result<(), JobError> {
        let id = ctx.occurrence_id();
        {
            let mut state = self.state.lock().expect("the mutex is not poisoned");
            state.started.push(id);
            state.waiting.push_back(id);
            state.max_concurrent = state.max_concurrent.max(state.waiting.len());
        }
        loop {
            let changed = self.changed.notified();
            if let Some(ending) = self.state.lock().expect("the mutex is not poisoned").endings.remove(&id) {
                return ending.result();
            }
            tokio::select! {
                () = changed => {}
                () = ctx.cancelled().cancelled() => {
                    self.state.lock().expect("the mutex is not poisoned").waiting.retain(|waiting| *waiting != id);
                    return Err(JobError::cancelled("the run was asked to end"));
                }
            }
        }
    }
}

impl GatedJob {
    /// Returns the occurrences that were started, in order.
    ///
    /// # Panics
    ///
    /// Panics if a run panicked while it was recorded.
    #[must_use]
    pub fn started(&self) -> Vec<OccurrenceId> {
        self.state.lock().expect("the mutex is not poisoned").started.clone()
    }

    /// Returns the highest number of runs that were executed at once.
    ///
    /// # Panics
    ///
    /// Panics if a run panicked while it was recorded.
    #[must_use]
    pub fn max_concurrent(&self) -> usize {
        self.state.lock().expect("the mutex is not poisoned").max_concurrent
    }

    /// Completes the run that started first. Returns its id, or none if nothing runs.
    pub fn complete_one(&self) -> Option<OccurrenceId> {
        self.end_one(RunEnding::Completes)
    }

    /// Ends the run that started first. Returns its id, or none if nothing runs.
    ///
    /// # Panics
    ///
    /// Panics if a run panicked while it was recorded.
    pub fn end_one(&self, ending: RunEnding) -> Option<OccurrenceId> {
        let mut state = self.state.lock().expect("the mutex is not poisoned");
        let id = state.waiting.pop_front()?;
        state.endings.insert(id, ending);
        drop(state);
        self.changed.notify_waiters();
        Some(id)
    }
}

/// A server on a manual clock, with or without a worker.
#[derive(Debug)]
pub struct ManualClockHarness {
    /// The server's configuration.
    pub config: ServerConfig,
    /// The server, which leads.
    pub server: Server,
    /// The server's clock.
    pub clock: Clock,
    /// The job type of the workers.
    pub gate: GatedJob,
    stop: CancellationToken,
}

impl ManualClockHarness {
    /// Starts a server and a worker.
    ///
    /// # Panics
    ///
    /// Panics if the server does not start, or does not lead within [`wait::WAIT_TIMEOUT`].
    pub async fn open() -> Self {
        let harness = Self::without_worker().await;
        harness.start_worker();
        harness
    }

    /// Starts a server without a worker: the test sends the reports itself. The clock starts at a whole minute close to
    /// the real time, so that the partition of its day exists.
    ///
    /// # Panics
    ///
    /// Panics if the server does not start, or does not lead within [`wait::WAIT_TIMEOUT`].
    pub async fn without_worker() -> Self {
        let config = server_env::config().await;
        let real = machine_now().timestamp();
        let clock = Clock::manual(DateTime::from_timestamp(real - real % 60, 0).expect("a valid time"));
        let server = server_env::start_on(&config, clock.clone()).await;
        // A tick before that would dispatch nothing, and the test would not know why.
        wait::eventually("the server leads", || async { server.leadership.borrow().may_work().then_some(()) }).await;
        Self { config, server, clock, gate: GatedJob::default(), stop: CancellationToken::new() }
    }

    /// Starts one more instance of the worker, with the same [`GatedJob`].
    pub fn start_worker(&self) {
        worker_env::start_with(&self.config, &self.stop, |worker| worker.job(self.gate.clone()));
    }

    /// Inserts an echo job that is first due at `due`, and notifies Redis and the server.
    ///
    /// # Panics
    ///
    /// Panics if PostgreSQL or Redis fails.
    pub async fn job(&self, schedule: Schedule, rules: Rules, due: Option<DateTime<Utc>>) -> JobId {
        let job = JobInput { rules, ..jobs::echo_job(schedule) };
        let id = jobs::insert_job(&self.server.store, &self.clock, &job, due).await;
        self.server.cache.note_due(&[(id, due)]).await.expect("Redis responds");
        self.server.cache.announce_schedule_change().await.expect("Redis responds");
        id
    }

    /// Advances the clock, and notifies the loops that sleep until a time: real time does not pass for them.
    ///
    /// # Panics
    ///
    /// Panics if Redis fails.
    pub async fn advance(&self, time: Duration) {
        self.clock.advance(time);
        self.server.cache.announce_schedule_change().await.expect("Redis responds");
        self.server.jobs.activate_slot_granter.notify_one();
    }

    /// Reports the status of an occurrence's first attempt, as a worker would. Returns true if that changed the occurrence.
    ///
    /// # Panics
    ///
    /// Panics if PostgreSQL fails.
    pub async fn report(&self, id: OccurrenceId, status: OccurrenceStatus) -> bool {
        let report = StatusReport { duration_ms: Some(3), ..StatusReport::new(id, 1, "w-1", status, self.clock.now()) };
        runs::report(&self.server.store, &self.clock, vec![report]).await > 0
    }

    /// Waits until a job has `count` occurrences. Returns all of them, sorted by due time.
    ///
    /// # Panics
    ///
    /// Panics if there are fewer after [`wait::WAIT_TIMEOUT`].
    pub async fn occurrences(&self, job: JobId, count: usize) -> Vec<OccurrenceRow> {
        wait::eventually(&format!("occurrence number {count}"), || async {
            let mut rows = self.rows(job).await;
            rows.sort_by_key(|row| row.scheduled_for);
            (rows.len() >= count).then_some(rows)
        })
        .await
    }

    /// Waits until an occurrence has a status.
    ///
    /// # Panics
    ///
    /// Panics if it does not have it after [`wait::WAIT_TIMEOUT`].
    pub async fn becomes(&self, job: JobId, id: OccurrenceId, status: OccurrenceStatus) -> OccurrenceRow {
        wait::eventually(status.label(), || async {
            self.rows(job).await.into_iter().find(|row| row.id == id && row.status == status)
        })
        .await
    }

    /// Waits until `count` runs have started. Returns all that have, in order.
    ///
    /// # Panics
    ///
    /// Panics if there are fewer after [`wait::WAIT_TIMEOUT`].
    pub async fn starts(&self, count: usize) -> Vec<OccurrenceId> {
        wait::eventually(&format!("start number {count}"), || async {
            let started = self.gate.started();
            (started.len() >= count).then_some(started)
        })
        .await
    }

    /// Returns a job's occurrences, the newest first.
    ///
    /// # Panics
    ///
    /// Panics if PostgreSQL fails.
    pub async fn rows(&self, job: JobId) -> Vec<OccurrenceRow> {
        runs::of_job(&self.server, job).await
    }

    /// Returns a job's next due time.
    ///
    /// # Panics
    ///
    /// Panics if PostgreSQL fails or there is no such job.
    pub async fn next_due(&self, job: JobId) -> Option<DateTime<Utc>> {
        self.server.store.job(job).await.expect("the job can be read").expect("the job exists").next_fire_at
    }

    /// Completes all runs and stops the server and the workers.
    pub async fn close(self) {
        while self.gate.complete_one().is_some() {}
        self.stop.cancel();
        self.server.stop().await;
    }
}
