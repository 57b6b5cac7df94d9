//! The thread of all loops of a worker, and the channel that announces changes.
//!
//! A heartbeat every three seconds is enough to keep a lease, and too slow for a hand-over. An instance that releases a
//! lease publishes the name of its loop, and so does the server when a user enables or disables a loop or asks for a
//! hand-over. Each instance subscribes once for all of its loops and sends the next heartbeat at once. A lost message
//! only means that the change takes effect with the next heartbeat.

use std::{collections::HashMap, net::TcpListener, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt};
use milvaion_protocol::{backoff::Backoff, topology::RedisKeys};
use milvaion_timer::PreciseTimer;
use tokio::{runtime::Handle, sync::Notify, task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    api::error::WorkerError,
    clock,
    control::heartbeat::host_name,
    control::metrics::{HealthServer, WorkerMetrics},
    control::own_thread::OwnThread,
    net::redis::{RedisConnection, RedisUnavailable, with_timeout},
    singleton::{
        SingletonLoop,
        lease_store::{LeaseStore, RedisLeaseStore},
        loop_clock::LoopClock,
        loop_runner::{LoopRunner, LoopRunnerContext},
        loop_timer::LoopTimer,
    },
};

/// The delay before a loop whose own code has failed is started again.
const RESTART_DELAY: Duration = Duration::from_secs(1);

/// The parts of a worker that the thread needs.
pub(crate) struct LoopThreadConfig {
    pub(crate) loops: Vec<SingletonLoop>,
    pub(crate) redis_url: String,
    pub(crate) keys: RedisKeys,
    pub(crate) worker_id: String,
    pub(crate) instance_id: String,
    pub(crate) metrics: WorkerMetrics,
    /// The listener of the health endpoint, if the worker has no control thread that serves it.
    pub(crate) health: Option<TcpListener>,
}

/// Starts the thread. Runs are spawned on the runtime of the caller.
///
/// # Errors
/// Returns [`WorkerError::LoopThread`] if the operating system refuses the thread, its runtime or its timer.
pub(crate) fn start(config: LoopThreadConfig) -> Result<OwnThread, WorkerError> {
    let program = Handle::current();
    let timer = PreciseTimer::start("worker-timer", Duration::ZERO).map_err(WorkerError::LoopThread)?;
    OwnThread::start("worker-loops", move |stop| async move {
        if let Err(error) = run(config, program, timer, stop).await {
            tracing::error!(error = %error, "cannot start the singleton loops; check REDIS_URL");
        }
    })
    .map_err(WorkerError::LoopThread)
}

async fn run(
    config: LoopThreadConfig,
    program: Handle,
    timer: PreciseTimer,
    stop: CancellationToken,
) -> redis::RedisResult<()> {
    let LoopThreadConfig { loops, redis_url, keys, worker_id, instance_id, metrics, health } = config;
    let redis = RedisConnection::new(&redis_url)?;
    if loops.is_empty() {
        metrics.loops_are_disabled();
    }
    if let Some(listener) = health {
        tokio::spawn(HealthServer { metrics: metrics.clone(), broker: None }.serve(listener));
    }
    let wakes: HashMap<Arc<str>, Arc<Notify>> = loops.iter().map(|spec| (spec.name.clone(), Arc::default())).collect();
    let listener = tokio::spawn(listen(redis.clone(), keys.singleton_channel(), wakes.clone()));
    let host = host_name();
    let mut runners = JoinSet::new();
    for spec in loops {
        let store = {
            let (redis, keys, instance_id) = (redis.clone(), keys.clone(), instance_id.clone());
            let (name, lease) = (spec.name.clone(), spec.options.lease);
            move || RedisLeaseStore {
                redis: redis.clone(),
                keys: keys.clone(),
                instance_id: instance_id.clone(),
                name: name.clone(),
                lease,
            }
        };
        let context = {
            let (program, stop, metrics) = (program.clone(), stop.clone(), metrics.singleton(&spec.name));
            let (worker_id, host, timer) = (worker_id.clone(), host.clone(), timer.clone());
            let (wake, store) = (wakes[&spec.name].clone(), store.clone());
            move || LoopRunnerContext {
                store: Box::new(store()),
                clock: LoopClock::System,
                timer: LoopTimer::precise(timer.clone()),
                program: program.clone(),
                metrics: metrics.clone(),
                wake: wake.clone(),
                stop: stop.clone(),
                worker_id: worker_id.clone(),
                host: host.clone(),
                observer: None,
            }
        };
        runners.spawn(keep_running(spec, stop.clone(), context, store));
    }
    runners.join_all().await;
    // An expression without a further due time ends its loop, and the thread must not end before the worker.
    stop.cancelled().await;
    listener.abort();
    Ok(())
}

/// Runs a loop, and starts it again if its code panics, so that no defect of ours keeps a lease without a loop.
async fn keep_running(
    spec: SingletonLoop,
    stop: CancellationToken,
    context: impl Fn() -> LoopRunnerContext,
    store: impl Fn() -> RedisLeaseStore,
) {
    loop {
        let runner = LoopRunner::new(spec.clone(), context());
        if AssertUnwindSafe(runner.run()).catch_unwind().await.is_ok() {
            return;
        }
        let name = &*spec.name;
        tracing::error!(
            singleton = name,
            "the leader election of singleton loop {name} has failed and is started again; please report this"
        );
        let _ = store().release(None, true, None).await;
        if stop.run_until_cancelled(sleep(RESTART_DELAY)).await.is_none() {
            return;
        }
    }
}

/// Listens on the channel and reconnects whenever the connection is lost.
async fn listen(redis: RedisConnection, channel: String, wakes: HashMap<Arc<str>, Arc<Notify>>) {
    let mut backoff = Backoff::default();
    loop {
        if let Err(error) = subscribe(&redis, &channel, &wakes, &mut backoff).await {
            tracing::debug!(error = %error, "changes of singleton loops take effect with their next heartbeat");
        }
        sleep(backoff.next_delay(clock::jitter())).await;
    }
}

/// Applies messages until the connection is closed.
async fn subscribe(
    redis: &RedisConnection,
    channel: &str,
    wakes: &HashMap<Arc<str>, Arc<Notify>>,
    backoff: &mut Backoff,
) -> Result<(), RedisUnavailable> {
    let mut replacements = redis.replacements();
    let mut subscriber = with_timeout(redis.client().get_async_pubsub()).await?;
    with_timeout(subscriber.subscribe(channel)).await?;
    backoff.reset();
    // A message may have been lost before the subscription.
    wakes.values().for_each(|wake| wake.notify_one());
    let mut messages = subscriber.on_message();
    loop {
        let message = tokio::select! {
            message = messages.next() => message,
            _ = replacements.changed() => None,
        };
        let Some(message) = message else { return Ok(()) };
        if let Some(wake) = message.get_payload::<String>().ok().and_then(|name| wakes.get(name.as_str()).cloned()) {
            wake.notify_one();
        }
    }
}
