//! Instances of one loop on a real Redis, and a witness of all their runs.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use milvaion_protocol::topology::RedisKeys;
use milvaion_test_support::{
    services::{redis_url, unique},
    wait::until,
};
use milvaion_worker::{CancellationToken, Tick, Worker, WorkerBuilder, WorkerError};
use redis::{AsyncCommands, aio::MultiplexedConnection};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

/// The name of the loop in all tests.
pub(super) const LOOP: &str = "price-feed";
/// The lease in most tests, with heartbeats of 300 ms.
pub(super) const LEASE: Duration = Duration::from_millis(1000);

/// One step of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) instance: &'static str,
    pub(super) epoch: u64,
    pub(super) at: Instant,
}

/// A record of every step of every run, in the order in which they happened.
#[derive(Clone, Default)]
pub(super) struct Witness(Arc<Mutex<Vec<Step>>>);

impl Witness {
    /// Records a step.
    pub(super) fn record(&self, instance: &'static str, tick: &Tick) {
        let step = Step { instance, epoch: tick.epoch(), at: Instant::now() };
        self.0.lock().expect("not poisoned").push(step);
    }

    /// Returns all steps.
    pub(super) fn steps(&self) -> Vec<Step> {
        self.0.lock().expect("not poisoned").clone()
    }

    /// Returns true if this instance has run.
    pub(super) fn has_run(&self, instance: &str) -> bool {
        self.steps().iter().any(|step| step.instance == instance)
    }

    /// Returns the time between the last step of one instance and the first one of another.
    pub(super) fn gap(&self, from: &str, to: &str) -> Duration {
        let steps = self.steps();
        let last = steps.iter().rfind(|step| step.instance == from).expect("a step of the first instance");
        let first = steps.iter().find(|step| step.instance == to).expect("a step of the second instance");
        first.at.saturating_duration_since(last.at)
    }

    /// Fails if a step with a lower epoch follows one with a higher epoch.
    pub(super) fn assert_no_overlap(&self) {
        let steps = self.steps();
        let mut sorted = steps.clone();
        sorted.sort_by_key(|step| step.epoch);
        assert_eq!(steps, sorted, "a former leader ran beside its successor");
    }
}

/// One Redis namespace with the instances of one loop.
pub(super) struct LoopEnv {
    pub(super) witness: Witness,
    pub(super) keys: RedisKeys,
    pub(super) prefix: String,
    redis: MultiplexedConnection,
}

/// A running instance.
pub(super) struct Instance {
    pub(super) id: String,
    stop: CancellationToken,
    task: JoinHandle<Result<(), WorkerError>>,
}

impl LoopEnv {
    pub(super) async fn new() -> Self {
        let prefix = format!("{}:", unique("loops"));
        let client = redis::Client::open(redis_url()).expect("a valid URL");
        let redis = client.get_multiplexed_async_connection().await.expect("Redis at REDIS_URL responds");
        Self { witness: Witness::default(), keys: RedisKeys::new(prefix.clone()), prefix, redis }
    }

    /// Returns a worker without job types. No broker listens at its address.
    pub(super) fn worker(&self) -> WorkerBuilder {
        Worker::builder().redis_url(redis_url()).amqp_url("amqp://127.0.0.1:1/%2f").key_prefix(self.prefix.clone())
    }

    /// Starts an instance whose loop runs every 20 ms and records three steps in each run.
    pub(super) fn start(&self, name: &'static str) -> Instance {
        self.start_on(name, self.worker())
    }

    /// Starts such an instance from a prepared worker.
    pub(super) fn start_on(&self, name: &'static str, worker: WorkerBuilder) -> Instance {
        let witness = self.witness.clone();
        let worker = worker.singleton(LOOP).every(Duration::from_millis(20)).lease(LEASE).run(move |tick| {
            let witness = witness.clone();
            async move {
                for _ in 0..3 {
                    witness.record(name, &tick);
                    sleep(Duration::from_millis(5)).await;
                }
                Ok(())
            }
        });
        self.run(worker)
    }

    /// Starts a worker.
    pub(super) fn run(&self, worker: WorkerBuilder) -> Instance {
        let worker = worker.build().expect("a valid worker");
        let (id, stop) = (worker.instance_id().to_owned(), CancellationToken::new());
        let task = tokio::spawn(worker.run_until(stop.clone()));
        Instance { id, stop, task }
    }

    /// Waits until an instance has run.
    pub(super) async fn until_run_by(&self, instance: &str) {
        until(&format!("instance {instance} runs the loop"), async || self.witness.has_run(instance)).await;
    }

    /// Returns a connection to Redis.
    pub(super) fn redis(&self) -> MultiplexedConnection {
        self.redis.clone()
    }

    /// Publishes that something about the loop has changed.
    pub(super) async fn announce(&self) {
        let _: () = self.redis().publish(self.keys.singleton_channel(), LOOP).await.expect("published");
    }

    /// Returns a field of the published state.
    pub(super) async fn field(&self, field: &str) -> Option<String> {
        self.redis().hget(self.keys.singleton_state(LOOP), field).await.expect("read")
    }
}

impl Instance {
    /// Stops the instance like SIGTERM, and waits for its end.
    pub(super) async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("no panic").expect("a clean end");
    }

    /// Drops the future of the worker, as a program does that loses interest in it.
    pub(super) fn abort(self) {
        self.task.abort();
    }
}
