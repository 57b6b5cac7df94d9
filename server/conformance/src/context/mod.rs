//! The context of one case: a server, a prefix of its own on the broker and in Redis, and the workers that the case starts.
//!
//! Nothing is shared between cases except the services, so they run side by side. `observation` waits for what a worker
//! does, and compares it with the expectation.

mod observation;

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use milvaion_protocol::{
    id::JobId,
    message::JobMessage,
    topology::{RedisKeys, Topology},
};
use redis::{AsyncCommands, aio::MultiplexedConnection};
use serde_json::Value;

use crate::{
    broker::{FakeServer, PublishMark},
    clock,
    failure::CaseFailure,
    proxy::{DeliveryTap, FaultyNetwork, NetworkFault},
    record::ClaimPolicy,
    settings::{KitService, KitSettings, ServiceControl},
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

/// The time for which runs may continue after SIGTERM, in seconds, unless a case changes it.
const DEFAULT_GRACE_SECONDS: u32 = 2;

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
    Checkpoint,
}

impl TestJob {
    const ALL: [Self; 8] =
        [Self::Echo, Self::Sleep, Self::Fail, Self::Snooze, Self::Log, Self::Progress, Self::Block, Self::Checkpoint];

    const fn name(self) -> &'static str {
        match self {
            Self::Echo => "conformance-echo",
            Self::Sleep => "conformance-sleep",
            Self::Fail => "conformance-fail",
            Self::Snooze => "conformance-snooze",
            Self::Log => "conformance-log",
            Self::Progress => "conformance-progress",
            Self::Block => "conformance-block",
            Self::Checkpoint => "conformance-checkpoint",
        }
    }
}

/// Everything that one case uses.
pub(crate) struct CaseContext {
    pub(crate) server: FakeServer,
    pub(crate) keys: RedisKeys,
    settings: Arc<KitSettings>,
    redis: Mutex<MultiplexedConnection>,
    topology: Topology,
    prefix: String,
    key_prefix: String,
    worker_id: Mutex<String>,
    grace_seconds: AtomicU32,
    critical_slots: AtomicU32,
    folder: PathBuf,
    started: AtomicUsize,
    taps: Mutex<Vec<DeliveryTap>>,
}

impl CaseContext {
    pub(crate) async fn open(settings: Arc<KitSettings>) -> Result<Self, CaseFailure> {
        let word = clock::random_word();
        let (prefix, key_prefix) = (format!("conformance-{word}"), format!("conformance:{word}:"));
        let topology = Topology::new(prefix.clone());
        let folder = settings.folder.join(&word);
        std::fs::create_dir_all(&folder)?;
        let server = FakeServer::open(settings.amqp_url(), topology.clone(), settings.reader.clone()).await?;
        Ok(Self {
            server,
            keys: RedisKeys::new(key_prefix.clone()),
            redis: Mutex::new(settings.redis.clone()),
            topology,
            prefix,
            key_prefix,
            worker_id: Mutex::new("conformance".to_owned()),
            grace_seconds: AtomicU32::new(DEFAULT_GRACE_SECONDS),
            critical_slots: AtomicU32::new(0),
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

    /// Changes the time for which runs may continue after SIGTERM, before a worker is started.
    pub(crate) fn set_grace(&self, seconds: u32) {
        self.grace_seconds.store(seconds, Ordering::Relaxed);
    }

    /// Asks for slots that are reserved for critical runs, before a worker is started.
    pub(crate) fn reserve_slots(&self, slots: u32) {
        self.critical_slots.store(slots, Ordering::Relaxed);
    }

    /// Restarts a service, and connects to both again.
    ///
    /// # Errors
    ///
    /// Returns the end of the case: skipped if the services belong to others, failed if the service does not start.
    pub(crate) async fn restart(&self, service: KitService, away: Duration) -> Result<(), CaseFailure> {
        let control = self.control()?;
        control.restart(service, away).await.map_err(|reason| CaseFailure::new("a restart of the service", reason))?;
        let redis = self.settings.connect_redis().await?;
        *self.redis.lock().unwrap_or_else(PoisonError::into_inner) = redis;
        if service == KitService::RabbitMq {
            self.server.reopen(self.settings.amqp_url()).await?;
        }
        Ok(())
    }

    /// Returns the control over the services, or the end of a case that needs it.
    pub(crate) fn control(&self) -> Result<&dyn ServiceControl, CaseFailure> {
        self.settings
            .control
            .as_deref()
            .ok_or_else(|| CaseFailure::skipped("It restarts services, and these do not belong to the kit."))
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

    /// Starts a worker instance that cannot reach Redis, and waits until it consumes the queues of these job types.
    pub(crate) async fn begin_without_redis(&self, jobs: &[TestJob]) -> Result<WorkerProcess, CaseFailure> {
        self.server.start().await?;
        for &job in jobs {
            self.server.declare_job_queue(&self.worker_id(), self.job_type(job)).await?;
        }
        let mut worker = self.launch_with(NetworkFault { is_down: true, ..NetworkFault::default() }).await?;
        self.ready(&mut worker, jobs, 1).await?;
        Ok(worker)
    }

    /// Starts a worker instance, and waits for nothing.
    pub(crate) async fn launch(&self) -> Result<WorkerProcess, CaseFailure> {
        self.launch_with(NetworkFault::default()).await
    }

    async fn launch_with(&self, redis_fault: NetworkFault) -> Result<WorkerProcess, CaseFailure> {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let tap = DeliveryTap::new(&self.topology);
        self.lock_taps().push(tap.clone());
        let broker = FaultyNetwork::before(self.settings.amqp_address, Some(tap.clone())).await?;
        let redis = FaultyNetwork::before(self.settings.redis_address, None).await?;
        redis.set(redis_fault);
        let state = self.folder.join("state");
        std::fs::create_dir_all(&state)?;
        let environment = [
            ("AMQP_URL", self.settings.amqp_url_at(broker.port())),
            ("REDIS_URL", self.settings.redis_url_at(redis.port())),
            ("MILVAION_WORKER_ID", self.worker_id()),
            ("MILVAION_PREFIX", self.prefix.clone()),
            ("MILVAION_KEY_PREFIX", self.key_prefix.clone()),
            ("MILVAION_SHUTDOWN_GRACE_SECONDS", self.grace_seconds.load(Ordering::Relaxed).to_string()),
            ("MILVAION_CRITICAL_SLOTS", self.critical_slots.load(Ordering::Relaxed).to_string()),
            ("MILVAION_CONFORMANCE_LEDGER", self.ledger().display().to_string()),
            ("XDG_STATE_HOME", state.display().to_string()),
        ];
        let environment = environment.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let output = self.folder.join(format!("worker-{number}.log"));
        WorkerProcess::start(&self.settings.command, environment, (broker, redis), tap, output)
    }

    /// Waits until the queues of these job types have as many consumers as instances.
    pub(crate) async fn ready(
        &self,
        worker: &mut WorkerProcess,
        jobs: &[TestJob],
        instances: u32,
    ) -> Result<(), CaseFailure> {
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

    /// Publishes the messages of several runs that sleep, for a worker that is to have more of them than it can run.
    pub(crate) async fn send_sleeps(&self, count: usize, milliseconds: u32) -> Result<Vec<JobMessage>, CaseFailure> {
        let mut jobs = Vec::new();
        for _ in 0..count {
            let job = self.job(TestJob::Sleep, serde_json::json!({ "ms": milliseconds }));
            self.send(&job).await?;
            jobs.push(job);
        }
        Ok(jobs)
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

    fn ledger(&self) -> PathBuf {
        self.folder.join("ledger")
    }

    // Redis.

    /// Returns a connection to Redis that no fault disturbs.
    pub(crate) fn redis(&self) -> MultiplexedConnection {
        self.redis.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
