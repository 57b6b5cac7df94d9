//! Jobs that are due every second, and what may be said about them when all is over.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Duration, Utc};
use milvaion_api::{requests::JobInput, views::OccurrenceRow};
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    status::OccurrenceStatus,
};
use milvaion_schedule::{
    rules::{MisfirePolicy, OverlapPolicy, Rules},
    schedule::Schedule,
};
use milvaion_server::{config::ServerConfig, lifecycle::Server, store::jobs::AuditStamp};
use sqlx::{Connection, Executor, PgConnection};

use milvaion_test_support::{
    self,
    stack::{self, RunningWorker},
};

/// A server, a worker, and jobs that keep both busy.
pub(crate) struct OutageWorkload {
    pub(crate) config: ServerConfig,
    pub(crate) server: Server,
    pub(crate) worker: RunningWorker,
    /// The jobs that are due every second.
    pub(crate) jobs: Vec<JobId>,
}

impl OutageWorkload {
    /// Starts a server and a worker; nothing is due yet.
    pub(crate) async fn open(config: ServerConfig) -> Self {
        let server = stack::server(&config).await;
        let worker = stack::worker(&config);
        Self { config, server, worker, jobs: Vec::new() }
    }

    /// Makes `count` jobs that are due each second, one after the other. The policy says what becomes of instants that
    /// pass while nothing fires; `CatchUp` makes every single one of them owed.
    pub(crate) async fn every_second(&mut self, count: usize, misfire: MisfirePolicy) -> Vec<JobId> {
        let now = self.server.clock.now();
        let first = DateTime::from_timestamp(now.timestamp() + 2, 0).expect("an instant");
        let rules = Rules { misfire, overlap: OverlapPolicy::Allow, catch_up_limit: 1_000, ..Rules::default() };
        let step = Duration::seconds(1) / i32::try_from(count).expect("a small number");
        let mut made = Vec::with_capacity(count);
        for n in 0..count {
            let due = first + step * i32::try_from(n).expect("a small number");
            made.push(self.insert(Schedule::every(1), rules.clone(), due).await);
        }
        self.jobs.extend(&made);
        made
    }

    /// Takes the jobs out of the schedule for a while, and waits until the broker holds nothing of theirs.
    pub(crate) async fn rest(&self) {
        self.say("UPDATE jobs SET next_fire_at = NULL, version = version + 1").await;
        self.ends().await;
    }

    /// Puts them back in: due at once, and then every second again.
    pub(crate) async fn resume(&self) {
        self.say("UPDATE jobs SET next_fire_at = now(), version = version + 1").await;
        self.server.dispatcher.activate_dispatcher.notify_one();
    }

    /// Makes one job and tells Redis, if it is there, and every server.
    pub(crate) async fn insert(&self, schedule: Schedule, rules: Rules, due: DateTime<Utc>) -> JobId {
        let id = self.server.clock.job_id();
        let job = JobInput { rules, ..milvaion_test_support::job(schedule) };
        let edit = AuditStamp { by: "test", at: self.server.clock.now() };
        self.server.store.insert_job(id, &job, Some(due), edit).await.expect("the job is stored");
        let _ = self.server.cache.note_due(&[(id, Some(due))]).await;
        self.server.dispatcher.activate_dispatcher.notify_one();
        id
    }

    /// Waits until `count` more occurrences have been recorded. Returns when that was.
    pub(crate) async fn records(&self, count: usize) -> DateTime<Utc> {
        let begun = self.server.clock.now();
        let already = self.rows().await.len();
        stack::eventually(&format!("{count} more occurrences"), || async {
            (self.rows().await.len() >= already + count).then_some(())
        })
        .await;
        begun
    }

    /// Waits until `count` more runs have started.
    pub(crate) async fn runs(&self, count: usize) {
        let already = self.worker.started().len();
        stack::eventually(&format!("{count} more runs"), || async {
            (self.worker.started().len() >= already + count).then_some(())
        })
        .await;
    }

    /// Takes the jobs out of the schedule for good and waits until everything recorded has ended.
    pub(crate) async fn settle(&self) -> OutageVerdict {
        self.say("UPDATE jobs SET is_active = false, next_fire_at = NULL, version = version + 1").await;
        OutageVerdict { rows: self.ends().await, started: self.worker.started() }
    }

    /// Waits until everything recorded has ended.
    async fn ends(&self) -> Vec<OccurrenceRow> {
        let begun = tokio::time::Instant::now();
        loop {
            let rows = self.rows().await;
            let open: Vec<_> = rows.iter().filter(|row| !row.status.is_final()).collect();
            let Some(first) = open.first() else { return rows };
            if begun.elapsed() > stack::WAIT_TIMEOUT {
                let started: HashSet<_> = self.worker.started().into_iter().collect();
                let view = self.server.store.occurrence(first.id, 1, first.scheduled_for).await;
                panic!(
                    "{} of {} occurrences never ended, {} of them were started; the first: {view:?}",
                    open.len(),
                    rows.len(),
                    open.iter().filter(|row| started.contains(&row.id)).count()
                );
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }

    async fn say(&self, statement: &'static str) {
        let mut connection = PgConnection::connect(&self.config.database.url).await.expect("PostgreSQL answers");
        connection.execute(statement).await.expect("the jobs are changed");
    }

    pub(crate) async fn close(self) {
        self.worker.stop().await;
        self.server.stop().await;
    }

    /// Every occurrence there is. A database that is away at the moment is asked again.
    pub(crate) async fn rows(&self) -> Vec<OccurrenceRow> {
        stack::eventually("a database that answers", || async {
            let filter = milvaion_api::page::OccurrenceFilter { limit: 200, ..Default::default() };
            self.server.store.occurrences(&filter).await.ok()
        })
        .await;
        stack::all(&self.server, None).await
    }
}

/// What was recorded and what was run.
pub(crate) struct OutageVerdict {
    rows: Vec<OccurrenceRow>,
    started: Vec<OccurrenceId>,
}

impl OutageVerdict {
    /// Each due instant has one row at most, each row was started exactly once, and every run is told as it went.
    pub(crate) fn nothing_double_nothing_failed(&self) {
        let mut seen = HashSet::new();
        for row in &self.rows {
            assert!(
                seen.insert((row.job_id, row.scheduled_for)),
                "{:?} was fired twice",
                (row.job_id, row.scheduled_for)
            );
            assert_eq!(row.status, OccurrenceStatus::Completed, "{row:?}");
        }
        let mut starts: HashMap<OccurrenceId, usize> = HashMap::new();
        for id in &self.started {
            *starts.entry(*id).or_default() += 1;
        }
        for row in &self.rows {
            assert_eq!(starts.remove(&row.id), Some(1), "how often {} was started", row.id);
        }
        assert!(starts.is_empty(), "runs nobody has a row for: {starts:?}");
    }

    /// Every second of these jobs, which catch up, has its row.
    pub(crate) fn nothing_lost(&self, jobs: &[JobId]) {
        for job in jobs {
            let mut instants: Vec<_> = self.of(*job).map(|row| row.scheduled_for).collect();
            instants.sort();
            assert!(!instants.is_empty(), "{job} never fired");
            for pair in instants.windows(2) {
                assert_eq!(pair[1] - pair[0], Duration::seconds(1), "{job} misses what lies between {pair:?}");
            }
        }
    }

    /// The longest that a fire due in a window was late, by when its row was made.
    pub(crate) fn lateness(&self, from: DateTime<Utc>, until: DateTime<Utc>) -> Duration {
        let due = self.rows.iter().filter(|row| (from..until).contains(&row.scheduled_for));
        due.map(|row| row.id.created_at() - row.scheduled_for).max().expect("something was due in the window")
    }

    /// How many rows were made in a window.
    pub(crate) fn made_between(&self, from: DateTime<Utc>, until: DateTime<Utc>) -> usize {
        self.rows.iter().filter(|row| (from..until).contains(&row.id.created_at())).count()
    }

    /// When the first row after an instant was made.
    pub(crate) fn first_made_after(&self, instant: DateTime<Utc>) -> DateTime<Utc> {
        let later = self.rows.iter().map(|row| row.id.created_at()).filter(|at| *at > instant);
        later.min().expect("something was made")
    }

    /// How many rows of these jobs are for instants in a window.
    pub(crate) fn due_between(&self, jobs: &[JobId], from: DateTime<Utc>, until: DateTime<Utc>) -> usize {
        let of_all = jobs.iter().flat_map(|job| self.of(*job));
        of_all.filter(|row| (from..until).contains(&row.scheduled_for)).count()
    }

    fn of(&self, job: JobId) -> impl Iterator<Item = &OccurrenceRow> {
        self.rows.iter().filter(move |row| row.job_id == job)
    }
}
