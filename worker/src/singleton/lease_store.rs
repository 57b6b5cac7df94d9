//! The lease of a loop in Redis.
//!
//! Each operation is one of the two scripts of the protocol; see [`milvaion_protocol::singleton`]. The trait exists because
//! [`testing`](crate::testing) runs a loop without any service.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use futures::future::BoxFuture;
use milvaion_protocol::{
    singleton::{HEARTBEAT_SCRIPT, LoopState, RELEASE_SCRIPT},
    topology::RedisKeys,
};
use redis::Script;

use crate::net::redis::{RedisConnection, RedisUnavailable};

static HEARTBEAT: LazyLock<Script> = LazyLock::new(|| Script::new(HEARTBEAT_SCRIPT));
static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(RELEASE_SCRIPT));

/// The position of the instance in the election of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ElectionPosition {
    /// The instance holds no lease.
    Follower,
    /// The instance has taken the lease, and no instance held it before.
    Elected,
    /// The instance has renewed its lease.
    Leader,
}

/// One heartbeat.
#[derive(Clone, Debug)]
pub(crate) struct LoopHeartbeat {
    /// The epoch of the held lease.
    pub(crate) held: Option<u64>,
    /// The highest epoch that this instance has seen.
    pub(crate) seen: u64,
    /// True if a free lease is taken.
    pub(crate) takes: bool,
    /// The state to publish if the instance leads.
    pub(crate) state: LoopState,
}

/// The answer to a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeartbeatAnswer {
    pub(crate) position: ElectionPosition,
    /// The epoch in force.
    pub(crate) epoch: u64,
    /// The instance that holds the lease; empty if none does.
    pub(crate) holder: String,
    /// True if a user has disabled the loop.
    pub(crate) is_disabled: bool,
    /// True if a user asks this instance to hand the loop over.
    pub(crate) yields: bool,
    /// The time since the last run of any leader ended, by the clock of Redis and of that leader.
    pub(crate) since_last_end: Option<Duration>,
}

/// The lease of one loop.
pub(crate) trait LeaseStore: Send + Sync + 'static {
    /// Takes, renews or observes the lease.
    fn heartbeat(&self, heartbeat: LoopHeartbeat) -> BoxFuture<'static, Result<HeartbeatAnswer, RedisUnavailable>>;

    /// Releases the lease with this epoch, and publishes the last state. Without an epoch, and with `leaves`, only removes
    /// the instance from those that offer the loop.
    fn release(
        &self,
        epoch: Option<u64>,
        leaves: bool,
        state: Option<LoopState>,
    ) -> BoxFuture<'static, Result<(), RedisUnavailable>>;
}

/// The lease of one loop in Redis.
pub(crate) struct RedisLeaseStore {
    pub(crate) redis: RedisConnection,
    pub(crate) keys: RedisKeys,
    pub(crate) instance_id: String,
    pub(crate) name: Arc<str>,
    pub(crate) lease: Duration,
}

impl LeaseStore for RedisLeaseStore {
    fn heartbeat(&self, heartbeat: LoopHeartbeat) -> BoxFuture<'static, Result<HeartbeatAnswer, RedisUnavailable>> {
        let (keys, name) = (&self.keys, &*self.name);
        let mut script = HEARTBEAT.prepare_invoke();
        script
            .key(keys.singleton_lease(name))
            .key(keys.singleton_epoch(name))
            .key(keys.singleton_state(name))
            .key(keys.singleton_disabled(name))
            .key(keys.singleton_yield(name))
            .key(keys.singleton_instances(name))
            .key(keys.singletons())
            .arg(&self.instance_id)
            .arg(heartbeat.held.unwrap_or(0))
            .arg(u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX))
            .arg(heartbeat.seen)
            .arg(u8::from(heartbeat.takes))
            .arg(name);
        for (field, value) in heartbeat.state.fields() {
            script.arg(field).arg(value);
        }
        let redis = self.redis.clone();
        Box::pin(async move {
            let (number, mut connection) = redis.current();
            let request = script.invoke_async::<(u8, u64, String, u8, u8, i64, String)>(&mut connection);
            let (result, epoch, holder, disabled, yields, now, ended) = redis.answer(number, request).await?;
            let since = ended.parse().ok().map(|ended: i64| u64::try_from(now.saturating_sub(ended)).unwrap_or(0));
            Ok(HeartbeatAnswer {
                position: match result {
                    1 => ElectionPosition::Leader,
                    2 => ElectionPosition::Elected,
                    _ => ElectionPosition::Follower,
                },
                epoch,
                holder,
                is_disabled: disabled == 1,
                yields: yields == 1,
                since_last_end: since.map(Duration::from_millis),
            })
        })
    }

    fn release(
        &self,
        epoch: Option<u64>,
        leaves: bool,
        state: Option<LoopState>,
    ) -> BoxFuture<'static, Result<(), RedisUnavailable>> {
        let (keys, name) = (&self.keys, &*self.name);
        let mut script = RELEASE.prepare_invoke();
        script
            .key(keys.singleton_lease(name))
            .key(keys.singleton_state(name))
            .key(keys.singleton_yield(name))
            .key(keys.singleton_instances(name))
            .arg(&self.instance_id)
            .arg(epoch.unwrap_or(0))
            .arg(keys.singleton_channel())
            .arg(name)
            .arg(u8::from(leaves));
        for (field, value) in state.iter().flat_map(LoopState::fields) {
            script.arg(field).arg(value);
        }
        let redis = self.redis.clone();
        Box::pin(async move {
            let (number, mut connection) = redis.current();
            redis.answer(number, script.invoke_async::<u8>(&mut connection)).await?;
            Ok(())
        })
    }
}
