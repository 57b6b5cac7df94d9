//! The stage of one case: a server, a prefix of its own on the broker and in Redis, and the workers that the case starts.
//!
//! Nothing is shared between cases except the services, so they run side by side.

use std::{
    future::Future,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::{JobMessage, StatusReport},
    status::OccurrenceStatus,
    topology::{RedisKeys, Topology},
};
use redis::{AsyncCommands, aio::MultiplexedConnection};
use serde_json::Value;

use crate::{
    broker::{FakeServer, PublishMark},
    clock,
    failure::CaseFailure,
    proxy::{DeliveryTap, FaultyNetwork},
    record::ClaimPolicy,
    settings::KitSettings,
    worker_process::WorkerProcess,
};

/// The time within which a worker must consume its queues after its start.
pub(crate) const READY_WITHIN: Duration = Duration::from_secs(20);
/// The time within which a short run must have ended.
pub(crate) const END_WITHIN: Duration = Duration::from_secs(12);
/// The time between two looks at a condition.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// The time since when Redis has held its data, as most cases begin.
const REDIS_AGE_MS: i64 = 3_600_000;
/// The remaining life of a claim beside its lease, in milliseconds.
pub(crate) const CLAIM_RETENTION_MS: i64 = 24 * 3600 * 1000;

/// The job types that the worker under test offers. `docs/conformance.md` describes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TestJob {
    Echo,
    Sleep,
    Fail,
    Snooze,
    Log,
    Progress,
    Block,
}

impl TestJob {
    const ALL: [Self; 7] = [Self::Echo, Self::Sleep, Self::Fail, Self::Snooze, Self::Log, Self::Progress, Self::Block];

    const fn name(self) -> &'static str {
        match self {
            Self::Echo => "conformance-echo",
            Self::Sleep => "conformance-sleep",
            Self::Fail => "conformance-fail",
            Self::Snooze => "conformance-snooze",
            Self::Log => "conformance-log",
            Self::Progress => "conformance-progress",
            Self::Block => "conformance-block",
        }
    }
}

/// Everything that one case uses.
pub(crate) struct Stage {
    pub(crate) server: FakeServer,
    pub(crate) keys: RedisKeys,
    settings: Arc<KitSettings>,
    redis: MultiplexedConnection,
    topology: Topology,
    prefix: String,
    key_prefix: String,
    worker_id: Mutex<String>,
    folder: PathBuf,
    started: AtomicUsize,
    taps: Mutex<Vec<DeliveryTap>>,
}

impl Stage {
    pub(crate) async fn open(settings: Arc<KitSettings>) -> Result<Self, CaseFailure> {
        let word = clock::random_word();
        let (prefix, key_prefix) = (format!("conformance-{word}"), format!("conformance:{word}:"));
        let topology = Topology::new(prefix.clone());
        let folder = settings.folder.join(&word);
        std::fs::create_dir_all(&folder)?;
        let server = FakeServer::open(settings.connection.clone(), topology.clone(), settings.reader.clone()).await?;
        Ok(Self {
            server,
            keys: RedisKeys::new(key_prefix.clone()),
            redis: settings.redis.clone(),
            topology,
            prefix,
            key_prefix,
            worker_id: Mutex::new("conformance".to_owned()),
            folder,
            started: AtomicUsize::new(0),
            taps: Mutex::default(),
            settings,
        })
    }

    /// Deletes everything that the case has left in the services and on disk.
    pub(crate) async fn close(&self) {
        self.server.erase().await;
        let _ = self.erase_keys().await;
        let _ = std::fs::remove_dir_all(&self.folder);
    }

    // Workers.

    /// Returns the worker id, which is also the group to which job messages are addressed.
    pub(crate) fn worker_id(&self) -> String {
        self.worker_id.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the worker id, before a worker is started.
    pub(crate) fn set_worker_id(&self, worker_id: &str) {
        worker_id.clone_into(&mut self.worker_id.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the name of a test job at the worker.
    pub(crate) fn job_type(&self, job: TestJob) -> &str {
        if job == TestJob::Echo { &self.settings.echo_type } else { job.name() }
    }

    /// Starts the server's side and the first worker instance, and waits until it consumes the queues of these job types.
    pub(crate) async fn begin(&self, jobs: &[TestJob]) -> Result<WorkerProcess, CaseFailure> {
        self.server.start().await?;
        // Redis has held its data for long, so first deliveries need no claim check.
        let since = clock::now().timestamp_millis() - REDIS_AGE_MS;
        let () = self.redis().set(self.keys.claims_since(), since).await?;
        self.worker(jobs, 1).await
    }

    /// Starts a worker instance, and waits until the queues of these job types have as many consumers as instances.
    pub(crate) async fn worker(&self, jobs: &[TestJob], instances: u32) -> Result<WorkerProcess, CaseFailure> {
        for &job in jobs {
            self.server.declare_job_queue(&self.worker_id(), self.job_type(job)).await?;
        }
        let mut worker = self.launch().await?;
        self.ready(&mut worker, jobs, instances).await?;
        Ok(worker)
    }

    /// Starts a worker instance, and waits for nothing.
    pub(crate) async fn launch(&self) -> Result<WorkerProcess, CaseFailure> {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let tap = DeliveryTap::new(&self.topology);
        self.lock_taps().push(tap.clone());
        let broker = FaultyNetwork::before(self.settings.amqp_address, Some(tap.clone())).await?;
        let redis = FaultyNetwork::before(self.settings.redis_address, None).await?;
        let state = self.folder.join("state");
        std::fs::create_dir_all(&state)?;
        let environment = [
            ("AMQP_URL", self.settings.amqp_url_at(broker.port())),
            ("REDIS_URL", self.settings.redis_url_at(redis.port())),
            ("MILVAION_WORKER_ID", self.worker_id()),
            ("MILVAION_PREFIX", self.prefix.clone()),
            ("MILVAION_KEY_PREFIX", self.key_prefix.clone()),
            ("MILVAION_SHUTDOWN_GRACE_SECONDS", "2".to_owned()),
            ("MILVAION_CONFORMANCE_LEDGER", self.ledger().display().to_string()),
            ("XDG_STATE_HOME", state.display().to_string()),
        ];
        let environment = environment.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let output = self.folder.join(format!("worker-{number}.log"));
        WorkerProcess::start(&self.settings.command, environment, (broker, redis), tap, output)
    }

    async fn ready(&self, worker: &mut WorkerProcess, jobs: &[TestJob], instances: u32) -> Result<(), CaseFailure> {
        let since = Instant::now();
        let mut missing: Vec<&str> = jobs.iter().map(|&job| self.job_type(job)).collect();
        while let Some(&job_type) = missing.last() {
            let queue = self.server.job_queue(&self.worker_id(), job_type).await;
            if queue.is_some_and(|(consumers, _)| consumers >= instances) {
                missing.pop();
                continue;
            }
            let expected = || {
                let queue = self.topology.job_queue(&self.worker_id(), job_type);
                format!("{instances} consumer(s) of the queue {queue} within {} s", READY_WITHIN.as_secs())
            };
            if let Some(status) = worker.ended() {
                return Err(CaseFailure::new(
                    expected(),
                    format!("the worker ended: {status}{}", worker.last_output()),
                ));
            }
            if since.elapsed() > READY_WITHIN {
                let consumers = queue.map_or(0, |(consumers, _)| consumers);
                return Err(CaseFailure::new(expected(), format!("{consumers}{}", worker.last_output())));
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        Ok(())
    }

    fn lock_taps(&self) -> MutexGuard<'_, Vec<DeliveryTap>> {
        self.taps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // Job messages.

    /// Builds the message about the first attempt of a new occurrence.
    pub(crate) fn job(&self, job: TestJob, input: Value) -> JobMessage {
        let (id, now) = (clock::occurrence_id(), clock::now());
        JobMessage {
            occurrence_id: id,
            job_id: JobId(clock::occurrence_id().0),
            job_name: "Conformance".to_owned(),
            job_type: self.job_type(job).to_owned(),
            job_data: input,
            correlation_id: id,
            scheduled_for: now,
            timestamp: now,
            attempt: 1,
            retry_count: 0,
            max_retries: 3,
            timeout_seconds: Some(120),
            priority: 3,
            traceparent: None,
            checkpoint: None,
            parent_id: None,
        }
    }

    /// Publishes a message for the first time.
    pub(crate) async fn send(&self, message: &JobMessage) -> Result<(), CaseFailure> {
        self.publish(message, PublishMark::First).await
    }

    /// Publishes a message.
    pub(crate) async fn publish(&self, message: &JobMessage, mark: PublishMark) -> Result<(), CaseFailure> {
        if self.server.publish_job(&self.worker_id(), message, mark).await? {
            return Ok(());
        }
        let key = Topology::routing_key(&self.worker_id(), &message.job_type, message.occurrence_id);
        Err(CaseFailure::new("a queue of the worker, bound to the exchange of jobs", format!("no queue takes {key}")))
    }

    /// Publishes a body that is no job message, under the headers of an occurrence.
    pub(crate) async fn publish_body(
        &self,
        message: &JobMessage,
        job: TestJob,
        body: &[u8],
    ) -> Result<(), CaseFailure> {
        let job_type = self.job_type(job).to_owned();
        let worker = self.worker_id();
        self.server.publish_body(&worker, &job_type, message, PublishMark::First, body).await?;
        Ok(())
    }

    /// Sets the rule by which claim checks are answered.
    pub(crate) fn answer_claims(&self, policy: ClaimPolicy) {
        self.server.record().claim_policy = policy;
    }

    // Observation.

    /// Returns the attempts of an occurrence that have begun, in the order in which the job wrote them to the ledger.
    pub(crate) fn starts(&self, occurrence: OccurrenceId) -> Vec<u32> {
        self.ledger_lines().into_iter().filter(|(id, _)| *id == occurrence).map(|(_, attempt)| attempt).collect()
    }

    /// Returns every line of the ledger.
    pub(crate) fn ledger_lines(&self) -> Vec<(OccurrenceId, u32)> {
        let text = std::fs::read_to_string(self.ledger()).unwrap_or_default();
        let read = |line: &str| {
            let (id, attempt) = line.trim().split_once(' ')?;
            Some((id.parse().ok()?, attempt.trim().parse().ok()?))
        };
        text.lines().filter_map(read).collect()
    }

    fn ledger(&self) -> PathBuf {
        self.folder.join("ledger")
    }

    /// Waits until a condition holds. Fails with the expectation and with what is seen then.
    pub(crate) async fn until<T>(
        &self,
        within: Duration,
        expected: impl Into<String>,
        mut look: impl FnMut() -> Option<T>,
        seen: impl FnOnce() -> String,
    ) -> Result<T, CaseFailure> {
        let since = Instant::now();
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            if since.elapsed() > within {
                let expected = format!("{} within {} s", expected.into(), within.as_secs_f32());
                return Err(CaseFailure::new(expected, seen()));
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Waits like [`until`](Self::until) for a condition that asks a service.
    pub(crate) async fn until_async<T, F>(
        &self,
        within: Duration,
        expected: impl Into<String>,
        mut look: impl FnMut() -> F,
        seen: impl FnOnce() -> String,
    ) -> Result<T, CaseFailure>
    where
        F: Future<Output = Option<T>>,
    {
        let since = Instant::now();
        loop {
            if let Some(found) = look().await {
                return Ok(found);
            }
            if since.elapsed() > within {
                let expected = format!("{} within {} s", expected.into(), within.as_secs_f32());
                return Err(CaseFailure::new(expected, seen()));
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Describes everything seen about an occurrence.
    pub(crate) fn describe(&self, message: &JobMessage) -> String {
        let id = message.occurrence_id;
        let answers: Vec<_> = self.lock_taps().iter().flat_map(|tap| tap.answers(id)).collect();
        let starts = self.starts(id);
        let record = self.server.record();
        let mut reports = Vec::new();
        let highest = record.sent.get(&id).copied().unwrap_or(1);
        for attempt in 1..=highest {
            for report in record.reports(id, attempt) {
                let exception = report.exception.map(|text| format!(" ({})", text.lines().next().unwrap_or_default()));
                let progress = if report.progress.is_some() { " with progress" } else { "" };
                let label = report.status.label();
                reports.push(format!("attempt {attempt} {label}{progress}{}", exception.unwrap_or_default()));
            }
        }
        if reports.len() > 6 {
            let left_out = reports.len() - 6;
            reports.truncate(6);
            reports.push(format!("{left_out} more"));
        }
        let reports = if reports.is_empty() { "no report".to_owned() } else { reports.join(", ") };
        let checks: usize = (1..=highest).map(|attempt| record.claim_checks(id, attempt).len()).sum();
        let complaints = record.complaints.first().map(|one| format!("; {one}")).unwrap_or_default();
        format!("{reports}; starts in the ledger {starts:?}; {checks} claim check(s); answers {answers:?}{complaints}")
    }

    /// Waits for the end of an attempt.
    pub(crate) async fn end(&self, message: &JobMessage, within: Duration) -> Result<StatusReport, CaseFailure> {
        let (id, attempt) = (message.occurrence_id, message.attempt);
        let expected = format!("a report of the end of attempt {attempt}");
        self.until(within, expected, || self.server.record().end(id, attempt), || self.describe(message)).await
    }

    /// Waits for the end of an attempt with a status.
    pub(crate) async fn ends_as(
        &self,
        message: &JobMessage,
        status: OccurrenceStatus,
    ) -> Result<StatusReport, CaseFailure> {
        self.ends_as_within(message, status, END_WITHIN).await
    }

    /// Waits for the end of an attempt with a status, for a time.
    pub(crate) async fn ends_as_within(
        &self,
        message: &JobMessage,
        status: OccurrenceStatus,
        within: Duration,
    ) -> Result<StatusReport, CaseFailure> {
        let report = self.end(message, within).await?;
        self.expect(report.status == status, format!("the end {}", status.label()), || self.describe(message))?;
        Ok(report)
    }

    /// Waits until an attempt has begun, by the ledger.
    pub(crate) async fn begins(&self, message: &JobMessage) -> Result<(), CaseFailure> {
        let begun = || self.starts(message.occurrence_id).contains(&message.attempt).then_some(());
        self.until(END_WITHIN, "a start in the ledger", begun, || self.describe(message)).await
    }

    /// Waits until an attempt was reported *Running*.
    pub(crate) async fn is_running(&self, message: &JobMessage) -> Result<StatusReport, CaseFailure> {
        let running = || {
            let reports = self.server.record().reports(message.occurrence_id, message.attempt);
            reports.into_iter().find(|report| report.status == OccurrenceStatus::Running)
        };
        self.until(END_WITHIN, "a report Running", running, || self.describe(message)).await
    }

    /// Waits until every delivery to a worker is answered and none waits in the queue of a job.
    pub(crate) async fn settles(
        &self,
        worker: &WorkerProcess,
        job: TestJob,
        within: Duration,
    ) -> Result<(), CaseFailure> {
        let (id, job_type) = (self.worker_id(), self.job_type(job));
        let settled = || async {
            let open = worker.tap.unanswered();
            let waiting = self.server.job_queue(&id, job_type).await.map_or(0, |(_, waiting)| waiting);
            (open == 0 && waiting == 0).then_some(())
        };
        let seen = || format!("{} delivery without an answer, or a message that waits", worker.tap.unanswered());
        self.until_async(within, "an answer to every delivery", settled, seen).await
    }

    /// Fails unless a condition holds.
    pub(crate) fn expect(
        &self,
        holds: bool,
        expected: impl Into<String>,
        seen: impl FnOnce() -> String,
    ) -> Result<(), CaseFailure> {
        if holds { Ok(()) } else { Err(CaseFailure::new(expected, seen())) }
    }

    /// Fails unless the attempts of an occurrence that have begun are these.
    pub(crate) fn expect_starts(&self, message: &JobMessage, starts: &[u32]) -> Result<(), CaseFailure> {
        let seen = self.starts(message.occurrence_id);
        self.expect(seen == starts, format!("starts of the attempts {starts:?}"), || self.describe(message))
    }

    /// Fails if a rule that holds for every message and every run was broken.
    pub(crate) fn judge_everything(&self) -> Result<(), CaseFailure> {
        if let Some(complaint) = self.server.record().complaints.first() {
            return Err(CaseFailure::new("messages that match their schemas", complaint.clone()));
        }
        for tap in self.lock_taps().iter() {
            if let Some(exchange) = tap.careless_publishing().first() {
                return Err(CaseFailure::new(
                    "every message with the flag mandatory, on a channel with publisher confirms",
                    format!("a message to {exchange} without one of them"),
                ));
            }
        }
        let mut lines = self.ledger_lines();
        lines.sort_unstable();
        for pair in lines.windows(2) {
            if pair[0] == pair[1] {
                let (id, attempt) = pair[0];
                return Err(CaseFailure::new(
                    "one start of each attempt",
                    format!("attempt {attempt} of {id} started twice"),
                ));
            }
        }
        Ok(())
    }

    // Redis.

    /// Returns a connection to Redis that no fault disturbs.
    pub(crate) fn redis(&self) -> MultiplexedConnection {
        self.redis.clone()
    }

    /// Returns the value of a key.
    pub(crate) async fn value(&self, key: String) -> Option<String> {
        self.redis().get(key).await.ok().flatten()
    }

    /// Returns the claim of an occurrence, with its time to live in milliseconds.
    pub(crate) async fn claim(&self, message: &JobMessage) -> Option<(String, i64)> {
        let key = self.keys.running(message.occurrence_id);
        let value = self.value(key.clone()).await?;
        let left: i64 = self.redis().pttl(key).await.ok()?;
        Some((value, left))
    }

    /// Writes the claim of another instance.
    pub(crate) async fn set_claim(&self, message: &JobMessage, value: &str, lease_ms: i64) -> Result<(), CaseFailure> {
        let life = u64::try_from(CLAIM_RETENTION_MS + lease_ms).unwrap_or(1);
        let () = self.redis().pset_ex(self.keys.running(message.occurrence_id), value, life).await?;
        Ok(())
    }

    /// Deletes every key of the case, as if Redis had lost its data.
    pub(crate) async fn erase_keys(&self) -> Result<(), CaseFailure> {
        let mut redis = self.redis();
        let pattern = format!("{}*", self.key_prefix);
        let keys: Vec<String> = redis::cmd("KEYS").arg(pattern).query_async(&mut redis).await?;
        if !keys.is_empty() {
            let () = redis.del(keys).await?;
        }
        Ok(())
    }
}

/// Returns the names of all job types of the contract, for its page.
pub(crate) fn job_type_names() -> Vec<&'static str> {
    TestJob::ALL.iter().map(|job| job.name()).collect()
}
