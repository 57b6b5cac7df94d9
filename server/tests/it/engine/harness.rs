//! A server whose clock is moved by hand, and a worker whose runs end when the test says so.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex},
};

use chrono::{DateTime, Duration, Utc};
use milvaion_api::{requests::JobInput, views::OccurrenceRow};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    status::OccurrenceStatus,
};
use milvaion_schedule::{rules::Rules, schedule::Schedule};
use milvaion_server::{clock::Clock, config::ServerConfig, lifecycle::Server, store::jobs::AuditStamp};
use milvaion_worker::{Job, JobContext, JobError};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use milvaion_test_support::{self as common, stack};

/// The gate: runs wait at it.
#[derive(Clone, Default)]
pub(crate) struct GatedJob {
    inner: Arc<Mutex<GateState>>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct GateState {
    started: Vec<OccurrenceId>,
    waiting: VecDeque<OccurrenceId>,
    open: HashMap<OccurrenceId, RunEnding>,
    most: usize,
}

/// How a run is to end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RunEnding {
    Well,
    Fails,
    GivesUp,
    /// For so many seconds.
    Snoozes(u64),
}

impl RunEnding {
    fn result(self) -> Result<(), JobError> {
        match self {
            Self::Well => Ok(()),
            Self::Fails => Err(JobError::new("the line is dead")),
            Self::GivesUp => Err(JobError::permanent("the account is closed")),
            Self::Snoozes(seconds) => {
                Err(JobError::snooze(std::time::Duration::from_secs(seconds), "the file is not there yet"))
            }
        }
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
pub(crate) struct GatedJobInput {
    #[serde(default)]
    #[expect(dead_code, reason = "the tests' usual input has it")]
    say: String,
}

impl Job for GatedJob {
    const TYPE: &'static str = "echo";
    const DESCRIPTION: &'static str = "Waits until the test lets it end.";
    type Input = GatedJobInput;
    type Output = ();

    async fn run(&self, ctx: &JobContext, _: GatedJobInput) -> Result<(), JobError> {
        let id = ctx.occurrence_id();
        {
            let mut inside = self.inner.lock().expect("nobody panicked");
            inside.started.push(id);
            inside.waiting.push_back(id);
            inside.most = inside.most.max(inside.waiting.len());
        }
        loop {
            let changed = self.changed.notified();
            if let Some(ending) = self.inner.lock().expect("nobody panicked").open.remove(&id) {
                return ending.result();
            }
            tokio::select! {
                () = changed => {}
                () = ctx.cancelled().cancelled() => {
                    self.inner.lock().expect("nobody panicked").waiting.retain(|one| *one != id);
                    return Ok(());
                }
            }
        }
    }
}

impl GatedJob {
    /// What has started, in order.
    pub(crate) fn started(&self) -> Vec<OccurrenceId> {
        self.inner.lock().expect("nobody panicked").started.clone()
    }

    /// How many ran at once at most.
    pub(crate) fn most(&self) -> usize {
        self.inner.lock().expect("nobody panicked").most
    }

    /// Lets the run that began first end. None when nothing runs.
    pub(crate) fn let_one_end(&self) -> Option<OccurrenceId> {
        self.end_one(RunEnding::Well)
    }

    /// Ends the run that began first. None when nothing runs.
    pub(crate) fn end_one(&self, ending: RunEnding) -> Option<OccurrenceId> {
        let mut inside = self.inner.lock().expect("nobody panicked");
        let id = inside.waiting.pop_front()?;
        inside.open.insert(id, ending);
        drop(inside);
        self.changed.notify_waiters();
        Some(id)
    }
}

/// Everything one test needs.
pub(crate) struct ManualClockHarness {
    pub(crate) config: ServerConfig,
    pub(crate) server: Server,
    pub(crate) clock: Clock,
    pub(crate) gate: GatedJob,
    stop: CancellationToken,
}

impl ManualClockHarness {
    /// Opens one. Its clock stands at a whole minute near the real time, so that today's partitions are there.
    pub(crate) async fn open() -> Self {
        let config = stack::config().await;
        let real = milvaion_server::clock::machine_now().timestamp();
        let clock = Clock::manual(DateTime::from_timestamp(real - real % 60, 0).expect("an instant"));
        let server = Server::start(&config, clock.clone()).await.expect("the server starts");
        // Who asks it to look before it leads is told of nothing, which says nothing.
        stack::eventually("leading", || async { server.leadership.borrow().may_work().then_some(()) }).await;
        let gate = GatedJob::default();
        let harness = Self { config, server, clock, gate, stop: CancellationToken::new() };
        harness.start_worker();
        harness
    }

    /// Starts an instance of the worker, at the same gate.
    pub(crate) fn start_worker(&self) {
        stack::worker_with(&self.config, &self.stop, |worker| worker.job(self.gate.clone()));
    }

    /// Makes a job that is due as its timetable says, or first at `due`.
    pub(crate) async fn job(&self, schedule: Schedule, rules: Rules, due: Option<DateTime<Utc>>) -> JobId {
        let id = self.clock.job_id();
        let job = JobInput { rules, ..common::job(schedule) };
        let edit = AuditStamp { by: "test", at: self.clock.now() };
        self.server.store.insert_job(id, &job, due, edit).await.expect("the job is stored");
        self.server.cache.note_due(&[(id, due)]).await.expect("Redis answers");
        self.server.cache.announce_schedule_change().await.expect("Redis answers");
        id
    }

    /// Lets time pass.
    pub(crate) async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.server.cache.announce_schedule_change().await.expect("Redis answers");
        // It sleeps until its next appointment in real time, which does not pass here.
        self.server.jobs.activate_slot_granter.notify_one();
    }

    /// Waits until the job has `count` occurrences; by due instant.
    pub(crate) async fn occurrences(&self, job: JobId, count: usize) -> Vec<OccurrenceRow> {
        stack::eventually(&format!("occurrence number {count}"), || async {
            let mut rows = self.rows(job).await;
            rows.sort_by_key(|row| row.scheduled_for);
            (rows.len() >= count).then_some(rows)
        })
        .await
    }

    /// Waits until an occurrence is in `status`.
    pub(crate) async fn becomes(&self, job: JobId, id: OccurrenceId, status: OccurrenceStatus) -> OccurrenceRow {
        stack::eventually(status.label(), || async {
            self.rows(job).await.into_iter().find(|row| row.id == id && row.status == status)
        })
        .await
    }

    /// Waits until `count` runs have started.
    pub(crate) async fn starts(&self, count: usize) -> Vec<OccurrenceId> {
        stack::eventually(&format!("start number {count}"), || async {
            let started = self.gate.started();
            (started.len() >= count).then_some(started)
        })
        .await
    }

    pub(crate) async fn rows(&self, job: JobId) -> Vec<OccurrenceRow> {
        stack::all(&self.server, None).await.into_iter().filter(|row| row.job_id == job).collect()
    }

    /// When the job is due next.
    pub(crate) async fn next(&self, job: JobId) -> Option<DateTime<Utc>> {
        self.server.store.job(job).await.expect("answered").expect("there").next_fire_at
    }

    pub(crate) async fn close(self) {
        while self.gate.let_one_end().is_some() {}
        self.stop.cancel();
        self.server.stop().await;
    }
}
