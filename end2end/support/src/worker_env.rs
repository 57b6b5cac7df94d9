//! A worker in the test's process, beside a server.

use std::sync::{Arc, Mutex};

use milvaion_protocol::id::OccurrenceId;
use milvaion_server::config::ServerConfig;
use milvaion_worker::{CancellationToken, Job, JobContext, JobError, Outbox, Worker, WorkerBuilder};
use tokio::task::JoinHandle;

/// A job that returns its input, and records the occurrences it started.
#[derive(Clone, Debug, Default)]
pub struct EchoJob {
    started: Arc<Mutex<Vec<OccurrenceId>>>,
}

/// The input of [`EchoJob`].
#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
pub struct EchoInput {
    /// The text to return; with `fail`, the run fails permanently.
    pub say: String,
}

impl Job for EchoJob {
    const TYPE: &'static str = "echo";
    const DESCRIPTION: &'static str = "Returns its input.";
    type Input = EchoInput;
    type Output = String;

    async fn run(&self, ctx: &JobContext, input: EchoInput) -> Result<String, JobError> {
        self.started.lock().expect("the mutex is not poisoned").push(ctx.occurrence_id());
        ctx.info(format!("received: {}", input.say));
        if input.say == "fail" { Err(JobError::permanent("failed on request\nsecond line")) } else { Ok(input.say) }
    }
}

/// A running worker. If it is dropped, it runs until the end of the test's runtime.
#[derive(Debug)]
pub struct RunningWorker {
    echo: EchoJob,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl RunningWorker {
    /// Returns the occurrences it started, in order. An occurrence that was started twice is listed twice.
    ///
    /// # Panics
    ///
    /// Panics if a run panicked while it was recorded.
    #[must_use]
    pub fn started(&self) -> Vec<OccurrenceId> {
        self.echo.started.lock().expect("the mutex is not poisoned").clone()
    }

    /// Returns the occurrences it started, sorted by id.
    ///
    /// # Panics
    ///
    /// Panics if a run panicked while it was recorded.
    #[must_use]
    pub fn started_sorted(&self) -> Vec<OccurrenceId> {
        let mut started = self.started();
        started.sort();
        started
    }

    /// Stops the worker gracefully.
    ///
    /// # Panics
    ///
    /// Panics if the worker panicked.
    pub async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("the worker stops");
    }
}

/// Starts a worker `w` with [`EchoJob`].
#[must_use]
pub fn start(config: &ServerConfig) -> RunningWorker {
    start_with_slots(config, 0)
}

/// Starts a worker `w` with [`EchoJob`] that reserves slots for critical runs.
#[must_use]
pub fn start_with_slots(config: &ServerConfig, critical_slots: u32) -> RunningWorker {
    let echo = EchoJob::default();
    let stop = CancellationToken::new();
    let task = start_with(config, &stop, |worker| worker.critical_slots(critical_slots).job(echo.clone()));
    RunningWorker { echo, stop, task }
}

/// Starts a worker `w` on a server's services and prefixes, until `stop`. `customize` adds its jobs and settings.
///
/// # Panics
///
/// Panics if the worker's configuration is invalid.
pub fn start_with(
    config: &ServerConfig,
    stop: &CancellationToken,
    customize: impl FnOnce(WorkerBuilder) -> WorkerBuilder,
) -> JoinHandle<()> {
    let builder = Worker::builder()
        .worker_id("w")
        .outbox(Outbox::Off)
        .amqp_url(&config.broker.url)
        .redis_url(&config.cache.url)
        .prefix(&config.broker.prefix)
        .key_prefix(&config.cache.key_prefix);
    let worker = customize(builder).build().expect("the configuration is valid");
    let stop = stop.clone();
    tokio::spawn(async move { worker.run_until(stop).await.expect("the worker runs") })
}
