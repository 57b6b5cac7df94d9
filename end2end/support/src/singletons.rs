//! An instance that offers singleton loops: it runs the scripts of the protocol against a real Redis, as the SDK does.

use milvaion_protocol::{
    singleton::{HEARTBEAT_SCRIPT, LoopState, RELEASE_SCRIPT},
    topology::RedisKeys,
};
use redis::{FromRedisValue, aio::MultiplexedConnection};

/// The lease in milliseconds, longer than any test.
const LEASE_MS: u64 = 300_000;

/// The answer to a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopHeartbeat {
    /// 0 if another instance or none holds the lease, 1 if it was renewed, 2 if it was taken.
    pub result: u8,
    /// The epoch in force.
    pub epoch: u64,
    /// The holder; empty without one.
    pub holder: String,
    /// True if the loop is disabled.
    pub is_disabled: bool,
    /// True if the instance is asked to yield.
    pub is_yield_requested: bool,
}

/// An instance of a worker.
#[derive(Debug)]
pub struct LoopInstance {
    /// The id.
    pub id: String,
    redis: MultiplexedConnection,
    keys: RedisKeys,
}

impl LoopInstance {
    /// Connects an instance to a Redis.
    ///
    /// # Panics
    ///
    /// Panics if Redis does not respond.
    pub async fn connect(url: &str, keys: &RedisKeys, id: &str) -> Self {
        let client = redis::Client::open(url).expect("a valid URL");
        let redis = client.get_multiplexed_async_connection().await.expect("Redis responds");
        Self { id: id.to_owned(), redis, keys: keys.clone() }
    }

    /// Sends a command to Redis.
    ///
    /// # Panics
    ///
    /// Panics if Redis fails.
    pub async fn redis<T: FromRedisValue>(&mut self, command: &redis::Cmd) -> T {
        command.query_async(&mut self.redis).await.expect("Redis responds")
    }

    /// Returns the state that it publishes for a loop.
    #[must_use]
    pub fn state(&self) -> LoopState {
        LoopState {
            worker_id: "prices".to_owned(),
            host: format!("host of {}", self.id),
            schedule: "every 100ms".to_owned(),
            lease_ms: LEASE_MS,
            heartbeat_ms: 3_000,
            ..LoopState::default()
        }
    }

    /// Sends a heartbeat for a loop of which it holds `epoch`, or 0.
    ///
    /// # Panics
    ///
    /// Panics if Redis fails.
    pub async fn heartbeat(&mut self, name: &str, epoch: u64, state: &LoopState) -> LoopHeartbeat {
        let keys = &self.keys;
        let mut command = redis::cmd("EVAL");
        command
            .arg(HEARTBEAT_SCRIPT)
            .arg(7)
            .arg(keys.singleton_lease(name))
            .arg(keys.singleton_epoch(name))
            .arg(keys.singleton_state(name))
            .arg(keys.singleton_disabled(name))
            .arg(keys.singleton_yield(name))
            .arg(keys.singleton_instances(name))
            .arg(keys.singletons())
            .arg(&self.id)
            .arg(epoch)
            .arg(LEASE_MS)
            .arg(epoch)
            .arg(1)
            .arg(name);
        for (field, value) in state.fields() {
            command.arg(field).arg(value);
        }
        let (result, epoch, holder, disabled, yielding, _, _): (u8, u64, String, u8, u8, String, String) =
            self.redis(&command).await;
        LoopHeartbeat { result, epoch, holder, is_disabled: disabled == 1, is_yield_requested: yielding == 1 }
    }

    /// Takes the lease of a loop, and returns the epoch.
    ///
    /// # Panics
    ///
    /// Panics if Redis fails, or if the lease is not free.
    pub async fn take(&mut self, name: &str) -> u64 {
        let answer = self.heartbeat(name, 0, &self.state()).await;
        assert_eq!(answer.result, 2, "{answer:?}");
        answer.epoch
    }

    /// Releases the lease of a loop. With `is_last`, the instance no longer offers the loop.
    ///
    /// # Panics
    ///
    /// Panics if Redis fails.
    pub async fn release(&mut self, name: &str, epoch: u64, is_last: bool) {
        let keys = &self.keys;
        let mut command = redis::cmd("EVAL");
        command
            .arg(RELEASE_SCRIPT)
            .arg(4)
            .arg(keys.singleton_lease(name))
            .arg(keys.singleton_state(name))
            .arg(keys.singleton_yield(name))
            .arg(keys.singleton_instances(name))
            .arg(&self.id)
            .arg(epoch)
            .arg(keys.singleton_channel())
            .arg(name)
            .arg(u8::from(is_last));
        let _: u8 = self.redis(&command).await;
    }
}
