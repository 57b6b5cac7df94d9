//! Jobs that are due every second, and the checks of their occurrences afterwards.

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
use milvaion_server::{config::ServerConfig, lifecycle::Server};
use milvaion_test_support::{
    database::TestConnection,
    jobs, runs, server_env, wait,
    worker_env::{self, RunningWorker},
};

/// A server, a worker and jobs.
pub(crate) struct OutageWorkload {
    pub(crate) config: ServerConfig,
    pub(crate) server: Server,
    pub(crate) worker: RunningWorker,
    /// The jobs that are due every second.
    pub(crate) jobs: Vec<JobId>,
}

impl OutageWorkload {
    /// Starts a server and a worker, without jobs.
    pub(crate) async fn open(config: ServerConfig) -> Self {
        let server = server_env::start(&config).await;
        let worker = worker_env::start(&config);
        Self { config, server, worker, jobs: Vec::new() }
    }

    /// Inserts `count` jobs that are due every second, evenly spread over the second. They catch up with all due times that
    /// pass during an outage.
    pub(crate) async fn every_second(&mut self, count: usize) {
        let now = self.server.clock.now();
        let first = DateTime::from_timestamp(now.timestamp() + 2, 0).expect("a valid time");
        let rules = Rules {
            misfire: MisfirePolicy::CatchUp,
            overlap: OverlapPolicy::Allow,
            catch_up_limit: 1_000,
            ..Rules::default()
        };
        let step = Duration::seconds(1) / i32::try_from(count).expect("a small number");
        for n in 0..count {
            let due = first + step * i32::try_from(n).expect("a small number");
            let id = self.insert(Schedule::every(1), rules.clone(), due).await;
            self.jobs.push(id);
        }
    }

    /// Inserts a job, and notifies Redis, if it responds, and the server.
    pub(crate) async fn insert(&self, schedule: Schedule, rules: Rules, due: DateTime<Utc>) -> JobId {
        let job = JobInput { rules, ..jobs::echo_job(schedule) };
        let id = jobs::insert_job(&self.server.store, &self.server.clock, &job, Some(due)).await;
        let _ = self.server.cache.note_due(&[(id, Some(due))]).await;
        self.server.dispatcher.activate_dispatcher.notify_one();
        id
    }

    /// Waits until `count` more occurrences have been created.
    pub(crate) async fn wait_for_occurrences(&self, count: usize) {
        let already = self.rows().await.len();
        wait::eventually(&format!("{count} more occurrences"), || async {
            (self.rows().await.len() >= already + count).then_some(())
        })
        .await;
    }

    /// Waits until `count` more runs have started.
    pub(crate) async fn wait_for_runs(&self, count: usize) {
        let already = self.worker.started().len();
        wait::eventually(&format!("{count} more runs"), || async {
            (self.worker.started().len() >= already + count).then_some(())
        })
        .await;
    }

    /// Disables the jobs and waits until all occurrences have ended.
    pub(crate) async fn finish(&self) -> OutageVerdict {
        let mut connection = TestConnection::open(&self.config.database.url).await;
        connection.execute("UPDATE jobs SET is_active = false").await;
        // As an edit does.
        connection
            .execute(
                "WITH j AS (UPDATE jobs SET version = version + 1 RETURNING id, version),
                      v AS (INSERT INTO job_versions SELECT j.id, j.version, o.definition, o.changed_at, o.changed_by
                              FROM j JOIN job_versions o ON o.job_id = j.id AND o.version = j.version - 1)
                 UPDATE job_due d SET next_fire_at = NULL, version = j.version FROM j WHERE d.job_id = j.id",
            )
            .await;
        OutageVerdict { rows: self.wait_for_ends().await, started: self.worker.started() }
    }

    /// Waits until all occurrences have ended.
    async fn wait_for_ends(&self) -> Vec<OccurrenceRow> {
        let since = tokio::time::Instant::now();
        loop {
            let rows = self.rows().await;
            let open: Vec<_> = rows.iter().filter(|row| !row.status.is_final()).collect();
            let Some(first) = open.first() else { return rows };
            if since.elapsed() > wait::WAIT_TIMEOUT {
                let started: HashSet<_> = self.worker.started().into_iter().collect();
                let view = self.server.store.occurrence(first.id, 1, first.scheduled_for).await;
                panic!(
                    "{} of {} occurrences did not end, {} of them were started; the first: {view:?}",
                    open.len(),
                    rows.len(),
                    open.iter().filter(|row| started.contains(&row.id)).count()
                );
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }

    pub(crate) async fn close(self) {
        self.worker.stop().await;
        self.server.stop().await;
    }

    /// Returns all occurrences. Waits for the database if it is away.
    pub(crate) async fn rows(&self) -> Vec<OccurrenceRow> {
        wait::eventually("a database that responds", || async {
            let filter = milvaion_api::page::OccurrenceFilter { limit: 200, ..Default::default() };
            self.server.store.occurrences(&filter).await.ok()
        })
        .await;
        runs::all(&self.server, None).await
    }
}

/// The occurrences after an outage, and the runs that the worker started.
pub(crate) struct OutageVerdict {
    rows: Vec<OccurrenceRow>,
    started: Vec<OccurrenceId>,
}

impl OutageVerdict {
    /// Checks that each due time has at most one occurrence, and that each occurrence was started once and completed.
    pub(crate) fn check_no_duplicates_or_failures(&self) {
        let mut seen = HashSet::new();
        for row in &self.rows {
            assert!(
                seen.insert((row.job_id, row.scheduled_for)),
                "{:?} has two occurrences",
                (row.job_id, row.scheduled_for)
            );
            assert_eq!(row.status, OccurrenceStatus::Completed, "{row:?}");
        }
        let mut starts: HashMap<OccurrenceId, usize> = HashMap::new();
        for id in &self.started {
            *starts.entry(*id).or_default() += 1;
        }
        for row in &self.rows {
            assert_eq!(starts.remove(&row.id), Some(1), "{} must be started once", row.id);
        }
        assert!(starts.is_empty(), "runs without an occurrence: {starts:?}");
    }

    /// Checks that jobs which catch up have an occurrence for every second.
    pub(crate) fn check_nothing_lost(&self, jobs: &[JobId]) {
        for job in jobs {
            let mut due_times: Vec<_> = self.of_job(*job).map(|row| row.scheduled_for).collect();
            due_times.sort();
            assert!(!due_times.is_empty(), "{job} has no occurrence");
            for pair in due_times.windows(2) {
                assert_eq!(pair[1] - pair[0], Duration::seconds(1), "{job} has no occurrence between {pair:?}");
            }
        }
    }

    /// Returns the longest delay between the due time and the creation of the occurrences that were due in a window.
    pub(crate) fn max_lateness(&self, from: DateTime<Utc>, until: DateTime<Utc>) -> Duration {
        let due = self.rows.iter().filter(|row| (from..until).contains(&row.scheduled_for));
        due.map(|row| row.id.created_at() - row.scheduled_for).max().expect("an occurrence was due in the window")
    }

    fn of_job(&self, job: JobId) -> impl Iterator<Item = &OccurrenceRow> {
        self.rows.iter().filter(move |row| row.job_id == job)
    }
}
