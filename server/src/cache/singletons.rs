//! Singleton loops: their keys, which workers write, and the keys by which operators control them.
//!
//! All times are those of Redis, because the scores and the states are. Every function that writes publishes the name of
//! the loop afterwards, so that its instances react at once and not with their next heartbeat.

use std::{collections::HashMap, time::Duration};

use futures::{StreamExt, TryStreamExt, stream};
use milvaion_api::{
    alerts::is_loop_name,
    singletons::{LoopDisabled, MAX_LISTED_INSTANCES},
};
use milvaion_protocol::singleton::{LOOP_INSTANCE_TTL_MS, LOOP_RETENTION_MS, LoopState, MAX_LOOPS};
use redis::{AsyncCommands, RedisError};
use serde_json::json;

use super::{Cache, within_limit};
use crate::domain::singletons::LoopKeys;

/// The number of loops that are read at once.
const CONCURRENT_READS: usize = 100;
/// The maximum number of loops that [`Cache::drop_old_loops`] deletes at once.
const DROPPED_LOOPS: usize = 100;
/// The time for which a leader is asked to yield.
const YIELD_TTL: Duration = Duration::from_secs(30);

/// Deletes the keys of a loop, except for its epoch: an epoch must never be granted twice. Nothing is deleted while the
/// lease is held or an instance offers the loop.
///
/// KEYS: the lease, the state, the instances, the disabling key, the yield key, and the names of all loops. ARGV: the name,
/// and the time in milliseconds for which an instance counts. Returns 1 if the keys are deleted.
const FORGET_SCRIPT: &str = r"
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if redis.call('EXISTS', KEYS[1]) == 1 then
    return 0
end
if redis.call('ZCOUNT', KEYS[3], string.format('(%d', now - ARGV[2]), '+inf') > 0 then
    return 0
end
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
redis.call('ZREM', KEYS[6], ARGV[1])
return 1";

/// Deletes a key if it still has the value that was read.
const DELETE_SAME_SCRIPT: &str = r"
if redis.call('GET', KEYS[1]) == ARGV[1] then
    return redis.call('DEL', KEYS[1])
end
return 0";

/// The names of the loops that Redis has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoopNames {
    /// The time of Redis in milliseconds since 1970.
    pub now_ms: i64,
    /// The names, each with the time of the last heartbeat of any instance in milliseconds since 1970. The newest are
    /// first, and there are at most [`MAX_LOOPS`].
    pub names: Vec<(String, i64)>,
    /// True if there are more.
    pub is_truncated: bool,
}

/// The answers about one loop, in the order of the requests.
type LoopAnswers = (
    Option<String>,
    i64,
    Option<u64>,
    HashMap<String, Vec<u8>>,
    Option<String>,
    Option<String>,
    u64,
    Vec<(String, f64)>,
);

/// Returns the answer of `TIME` in milliseconds.
const fn milliseconds((seconds, microseconds): (i64, i64)) -> i64 {
    seconds * 1_000 + microseconds / 1_000
}

impl Cache {
    /// Returns the names of the loops.
    pub async fn loop_names(&self) -> Result<LoopNames, RedisError> {
        let key = self.keys.singletons();
        let limit = isize::try_from(MAX_LOOPS).unwrap_or(isize::MAX);
        let mut pipe = redis::pipe();
        pipe.cmd("TIME").zcard(&key).zrevrange_withscores(&key, 0, limit - 1);
        let (time, count, names): ((i64, i64), usize, Vec<(String, f64)>) =
            within_limit(pipe.query_async(&mut self.connection())).await?;
        let names = names.into_iter().filter(|(name, _)| is_loop_name(name));
        Ok(LoopNames {
            now_ms: milliseconds(time),
            names: names.map(|(name, score)| (name, score as i64)).collect(),
            is_truncated: count > MAX_LOOPS,
        })
    }

    /// Returns the time of Redis, and the time of the last heartbeat of any instance for a loop, both in milliseconds since
    /// 1970.
    pub async fn loop_seen(&self, name: &str) -> Result<(i64, Option<i64>), RedisError> {
        let mut pipe = redis::pipe();
        pipe.cmd("TIME").zscore(self.keys.singletons(), name);
        let (time, seen): ((i64, i64), Option<f64>) = within_limit(pipe.query_async(&mut self.connection())).await?;
        Ok((milliseconds(time), seen.map(|score| score as i64)))
    }

    /// Returns the keys of the loops, in the order of `names`. `now_ms` is the time of Redis.
    pub async fn loop_keys(&self, names: &[String], now_ms: i64) -> Result<Vec<LoopKeys>, RedisError> {
        let reads: Vec<_> = names.iter().map(|name| self.keys_of_loop(name, now_ms)).collect();
        within_limit(stream::iter(reads).buffered(CONCURRENT_READS).try_collect()).await
    }

    async fn keys_of_loop(&self, name: &str, now_ms: i64) -> Result<LoopKeys, RedisError> {
        let keys = &self.keys;
        let (lease, instances) = (keys.singleton_lease(name), keys.singleton_instances(name));
        let oldest = format!("({}", now_ms - LOOP_INSTANCE_TTL_MS);
        let limit = isize::try_from(MAX_LISTED_INSTANCES).unwrap_or(isize::MAX);
        let mut pipe = redis::pipe();
        pipe.get(&lease)
            .pttl(&lease)
            .get(keys.singleton_epoch(name))
            .hgetall(keys.singleton_state(name))
            .get(keys.singleton_disabled(name))
            .get(keys.singleton_yield(name))
            .zcount(&instances, &oldest, "+inf")
            .zrevrangebyscore_limit_withscores(&instances, "+inf", &oldest, 0, limit);
        let (lease, remaining, epoch, fields, disabled, yield_from, instance_count, instances): LoopAnswers =
            pipe.query_async(&mut self.connection()).await?;
        // A worker in another language may have written other bytes than UTF-8.
        let fields: HashMap<String, String> =
            fields.into_iter().map(|(field, value)| (field, String::from_utf8_lossy(&value).into_owned())).collect();
        let field = |name: &str| fields.get(name).map(String::as_str);
        Ok(LoopKeys {
            name: name.to_owned(),
            last_seen_ms: None,
            lease,
            lease_remaining_ms: remaining,
            epoch: epoch.unwrap_or_default(),
            state_instance: field("instance").unwrap_or_default().to_owned(),
            updated_at_ms: field("updatedAt").and_then(|at| at.parse().ok()),
            state: LoopState::read(field),
            disabled,
            yield_from,
            instance_count,
            instances: instances.into_iter().map(|(id, score)| (id, score as i64)).collect(),
        })
    }

    /// Disables a loop for its instances.
    pub async fn disable_loop(&self, name: &str, disabled: &LoopDisabled) -> Result<(), RedisError> {
        let value = json!({ "by": disabled.by, "at": disabled.at }).to_string();
        let mut pipe = redis::pipe();
        pipe.set(self.keys.singleton_disabled(name), value).ignore();
        pipe.publish(self.keys.singleton_channel(), name).ignore();
        within_limit(pipe.query_async(&mut self.connection())).await
    }

    /// Enables a loop for its instances.
    pub async fn enable_loop(&self, name: &str) -> Result<(), RedisError> {
        let mut pipe = redis::pipe();
        pipe.del(self.keys.singleton_disabled(name)).ignore();
        pipe.publish(self.keys.singleton_channel(), name).ignore();
        within_limit(pipe.query_async(&mut self.connection())).await
    }

    /// Enables a loop for its instances if it is still disabled by this value. Returns true if it was.
    pub async fn enable_loop_disabled_by(&self, name: &str, value: &str) -> Result<bool, RedisError> {
        let mut command = redis::cmd("EVAL");
        command.arg(DELETE_SAME_SCRIPT).arg(1).arg(self.keys.singleton_disabled(name)).arg(value);
        let is_deleted: bool = within_limit(command.query_async(&mut self.connection())).await?;
        if is_deleted {
            self.announce_loop(name).await?;
        }
        Ok(is_deleted)
    }

    /// Asks the leader `instance` to hand a loop over to another instance.
    pub async fn ask_to_yield(&self, name: &str, instance: &str) -> Result<(), RedisError> {
        let mut pipe = redis::pipe();
        pipe.set_ex(self.keys.singleton_yield(name), instance, YIELD_TTL.as_secs()).ignore();
        pipe.publish(self.keys.singleton_channel(), name).ignore();
        within_limit(pipe.query_async(&mut self.connection())).await
    }

    /// Deletes the keys of a loop that no instance offers and no instance leads, except for its epoch. Returns false, and
    /// deletes nothing, for any other loop.
    pub async fn forget_loop(&self, name: &str) -> Result<bool, RedisError> {
        let keys = &self.keys;
        let mut command = redis::cmd("EVAL");
        command
            .arg(FORGET_SCRIPT)
            .arg(6)
            .arg(keys.singleton_lease(name))
            .arg(keys.singleton_state(name))
            .arg(keys.singleton_instances(name))
            .arg(keys.singleton_disabled(name))
            .arg(keys.singleton_yield(name))
            .arg(keys.singletons())
            .arg(name)
            .arg(LOOP_INSTANCE_TTL_MS);
        within_limit(command.query_async(&mut self.connection())).await
    }

    /// Deletes loops that no instance has offered for 30 days, at most 100. Returns their number. `now_ms` is the time of
    /// Redis.
    pub async fn drop_old_loops(&self, now_ms: i64) -> Result<usize, RedisError> {
        let key = self.keys.singletons();
        let limit = isize::try_from(DROPPED_LOOPS).unwrap_or(isize::MAX);
        let oldest = now_ms - LOOP_RETENTION_MS;
        let mut connection = self.connection();
        let names: Vec<String> = within_limit(connection.zrangebyscore_limit(&key, "-inf", oldest, 0, limit)).await?;
        let mut dropped = 0;
        for name in names {
            dropped += usize::from(self.forget_loop(&name).await?);
        }
        Ok(dropped)
    }

    async fn announce_loop(&self, name: &str) -> Result<(), RedisError> {
        let mut connection = self.connection();
        within_limit(connection.publish(self.keys.singleton_channel(), name)).await
    }
}
