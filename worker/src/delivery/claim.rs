//! Claims on occurrences: the exclusive right of an instance to run an attempt.
//!
//! A broker may deliver a message twice, and a publisher whose confirmation was lost publishes it twice. The claim
//! makes the second delivery harmless. It is one key in Redis, `running:{occurrence}`, with one of two values:
//!
//! - `{instance}:{attempt}` while the attempt runs, with a lease as long as the heartbeat timeout of an instance. Each
//!   heartbeat renews it.
//! - `done:{attempt}` for a day afterwards, for duplicates that arrive late.
//!
//! The key expires a day after the lease. While more than a day of its lifetime remains, its holder is alive.
//! Afterwards the key records that an instance claimed this attempt and was lost. Such an attempt may have begun, so it
//! is not started a second time (see [`admission`](crate::delivery::admission)). Without this extra day, an expired
//! lease could not be distinguished from a claim that never existed. In the same way, `done` no longer proves that the
//! end was reported if the server has not received it within ten minutes: the report was lost with the process that had
//! it.
//!
//! Deliveries do not access Redis one by one. The [`claim_batcher`](crate::delivery::claim_batcher) collects claims and
//! ends, and one script settles all of them. A higher attempt replaces the claim of a lower one, because the server
//! sends it only after it has given up the lower one. A granted claim includes the value of the occurrence's `cancel:`
//! key, so that an occurrence that was cancelled while it waited in the queue does not start, without a further round
//! trip.
//!
//! A Redis that was emptied remembers neither what was cancelled while it waited in the queue nor what has ended. The key
//! `claims_since` has the time since when it remembers, and each claim returns it: a message that was published before is
//! checked with the server, although its delivery is the first.
//!
//! An outage of Redis affects no run: a first delivery starts without a claim, and only a possible duplicate waits.
//! Possible duplicates are also checked with the server, by the [`claim_check`](crate::delivery::claim_check).

use std::{sync::LazyLock, time::Duration};

use chrono::{DateTime, Utc};
use milvaion_protocol::{
    claims,
    id::OccurrenceId,
    message::{HEARTBEAT_INTERVAL_SECONDS, INSTANCE_TIMEOUT_SECONDS},
    topology::RedisKeys,
};
use redis::{RedisResult, Script};

use crate::net::redis::{RedisConnection, RedisUnavailable};

/// Lease of a claim in milliseconds: the heartbeat timeout of an instance.
const CLAIM_LEASE_MS: i64 = INSTANCE_TIMEOUT_SECONDS * 1000;
/// Retention of a claim in milliseconds after the end of the attempt, or after an expired lease.
const CLAIM_RETENTION_MS: i64 = 24 * 3600 * 1000;
/// Maximum time in milliseconds for the report of an end to arrive: as long as the server waits for a late one.
const MAX_REPORT_DELAY_MS: i64 = 10 * 60 * 1000;
/// Lifetime of a claim's key in milliseconds if it is not renewed.
const CLAIM_KEY_TTL_MS: i64 = CLAIM_LEASE_MS + CLAIM_RETENTION_MS;

/// The time since when Redis remembers if it has none that can be read: every message is checked with the server then.
const UNKNOWN_SINCE: DateTime<Utc> = DateTime::<Utc>::MAX_UTC;

/// An occurrence and the number of its attempt.
pub(crate) type AttemptKey = (OccurrenceId, u32);

/// The result of a claim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ClaimResult {
    /// This instance holds the claim.
    Granted {
        /// The value of the occurrence's `cancel:` key, if it has one.
        cancel: Option<String>,
        /// The time since when Redis remembers, by its clock.
        since: DateTime<Utc>,
    },
    /// This attempt has ended, or a later one was claimed.
    Ended,
    /// This attempt ended so long ago that its end should have been reported.
    EndedUnreported,
    /// Another instance holds the claim.
    Held {
        /// The id of the instance.
        by: String,
        /// The remaining lease, unless it is renewed.
        lease: Duration,
    },
    /// Another instance held the claim, and its lease has expired.
    Abandoned {
        /// The id of the instance.
        by: String,
    },
    /// Redis lost its data a moment ago, so that a claim of another instance may be missing until its next renewal. Only a
    /// possible duplicate receives this result, and nothing is claimed.
    TooEarly {
        /// The time until it can be claimed.
        wait: Duration,
    },
}

/// An attempt to claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClaimRequest {
    /// The occurrence and its attempt.
    pub(crate) attempt: AttemptKey,
    /// True if another instance may run the attempt.
    pub(crate) may_be_duplicate: bool,
}

/// The keys in which the server asks the holder of a run for something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerRequests {
    /// The value of the `cancel:` key.
    pub(crate) cancel: Option<String>,
    /// The value of the `revoke:` key: lower attempts must be given back.
    pub(crate) revoked_below: Option<u32>,
}

/// The claims of one instance in Redis.
#[derive(Clone)]
pub(crate) struct ClaimStore {
    redis: RedisConnection,
    keys: RedisKeys,
    instance_id: String,
}

// Settles claims, then ends. KEYS: the key of the time since when Redis remembers, for each claim its claim key and its
// cancel key, then for each end its claim key. ARGV: the instance, the lifetimes of claims and of ends, the number of
// claims, the lease, for each claim its attempt and 1 if it may be a duplicate, then for each end its attempt. A claim is
// granted unless the key holds an attempt at least as high. The answer to each claim has three values: the current holder
// (empty if granted), the remaining lifetime of its key, and the value of the cancel key. They follow the time since when
// Redis remembers, which is set if it is missing. Within a lease after this time, what may be a duplicate is not claimed, and
// its answer has no holder, and the time that is left: a living holder renews its claim within its lease.
// An end is marked unless another instance has claimed the attempt or a later one. It settles in one round trip what
// `claims::CLAIM_SCRIPT` and `claims::DONE_SCRIPT` settle one by one.
static SETTLE_SCRIPT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        local claims, lease = tonumber(ARGV[4]), tonumber(ARGV[5])
        local time = redis.call('TIME')
        local now = time[1] * 1000 + math.floor(time[2] / 1000)
        redis.call('SET', KEYS[1], string.format('%d', now), 'NX')
        local since = redis.call('GET', KEYS[1])
        local age = now - (tonumber(since) or 0)
        -- A later time than the present is that of another clock.
        local wait = age >= 0 and age < lease and lease - age or 0
        local answer = {since}
        for i = 1, claims do
            local key, attempt = KEYS[2 * i], ARGV[4 + 2 * i]
            local mark = ARGV[1] .. ':' .. attempt
            local held = redis.call('GET', key)
            local other = held and held ~= mark and tonumber(string.match(held, ':(%d+)$'))
            if wait > 0 and ARGV[5 + 2 * i] == '1' then
                answer[3 * i - 1], answer[3 * i], answer[3 * i + 1] = '', tostring(wait), ''
            elseif other and other >= tonumber(attempt) then
                answer[3 * i - 1], answer[3 * i], answer[3 * i + 1] = held, tostring(redis.call('PTTL', key)), ''
            else
                redis.call('SET', key, mark, 'PX', ARGV[2])
                answer[3 * i - 1], answer[3 * i] = '', '0'
                answer[3 * i + 1] = redis.call('GET', KEYS[2 * i + 1]) or ''
            end
        end
        for i = 2 * claims + 1, #ARGV - 5 do
            local key, attempt = KEYS[i + 1], ARGV[5 + i]
            local held = redis.call('GET', key)
            local other = held and held ~= ARGV[1] .. ':' .. attempt and tonumber(string.match(held, ':(%d+)$'))
            if not other or other < tonumber(attempt) then
                redis.call('SET', key, 'done:' .. attempt, 'PX', ARGV[3])
            end
        end
        return answer
        ",
    )
});

static RENEW_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(claims::RENEW_SCRIPT));

static RELEASE_SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(claims::RELEASE_SCRIPT));

impl ClaimStore {
    /// Prepares a connection that opens on first use and reconnects when it is lost. Must be called in the runtime that
    /// uses it.
    pub(crate) fn new(url: &str, keys: RedisKeys, instance_id: &str) -> RedisResult<Self> {
        Ok(Self { redis: RedisConnection::new(url)?, keys, instance_id: instance_id.to_owned() })
    }

    /// Returns the connection.
    pub(crate) const fn redis(&self) -> &RedisConnection {
        &self.redis
    }

    /// Opens the connection before the first delivery needs it, and sets the time since when Redis remembers. A failure has
    /// no consequence.
    pub(crate) async fn warm_up(&self) {
        if let Err(error) = self.settle(&[], &[]).await {
            tracing::warn!(
                error = %error,
                "Redis is unavailable: occurrences start without a claim; check REDIS_URL if this persists"
            );
        }
    }

    /// Claims some attempts and marks others as ended, so that late duplicates are dropped. Takes one round trip.
    /// Returns the results of the claims in order.
    ///
    /// # Errors
    /// Returns [`RedisUnavailable`] if Redis does not answer. The claims and the marks may or may not have been
    /// written.
    pub(crate) async fn settle(
        &self,
        claims: &[ClaimRequest],
        ends: &[AttemptKey],
    ) -> Result<Vec<ClaimResult>, RedisUnavailable> {
        let (number, mut redis) = self.redis.current();
        let mut settle = SETTLE_SCRIPT.prepare_invoke();
        settle.key(self.keys.claims_since());
        settle
            .arg(&self.instance_id)
            .arg(CLAIM_KEY_TTL_MS)
            .arg(CLAIM_RETENTION_MS)
            .arg(claims.len())
            .arg(CLAIM_LEASE_MS);
        for &ClaimRequest { attempt: (occurrence, attempt), may_be_duplicate } in claims {
            settle.key(self.keys.running(occurrence)).key(self.keys.cancel_request(occurrence));
            settle.arg(attempt).arg(u8::from(may_be_duplicate));
        }
        for &(occurrence, attempt) in ends {
            settle.key(self.keys.running(occurrence)).arg(attempt);
        }
        let answer: Vec<String> = self.redis.answer(number, settle.invoke_async(&mut redis)).await?;
        let (since, values) = answer.split_first().map_or((UNKNOWN_SINCE, [].as_slice()), |(since, values)| {
            let since = since.parse().ok().and_then(DateTime::from_timestamp_millis);
            (since.unwrap_or(UNKNOWN_SINCE), values)
        });
        Ok(values
            .chunks_exact(3)
            .zip(claims)
            .map(|(values, claim)| match values {
                [held, left, _] if !held.is_empty() => held_by(held, left, claim.attempt.1),
                [_, left, _] if left != "0" => {
                    ClaimResult::TooEarly { wait: Duration::from_millis(left.parse().unwrap_or_default()) }
                }
                [.., cancel] => {
                    ClaimResult::Granted { cancel: Some(cancel.clone()).filter(|text| !text.is_empty()), since }
                }
                [] => ClaimResult::Granted { cancel: None, since },
            })
            .collect())
    }

    /// Releases a claim that this instance holds and that has not ended. If this fails, the key stays for a day, and
    /// the instance that receives the message reports the attempt as lost.
    pub(crate) async fn release(&self, (occurrence, attempt): AttemptKey) {
        let (number, mut redis) = self.redis.current();
        let mut release = RELEASE_SCRIPT.prepare_invoke();
        release.key(self.keys.running(occurrence)).arg(self.claim_value(attempt));
        if let Err(error) = self.redis.answer::<()>(number, release.invoke_async(&mut redis)).await {
            tracing::debug!(
                occurrence.id = %occurrence,
                error = %error,
                "cannot release the claim of occurrence {occurrence}"
            );
        }
    }

    /// Returns the requests of the server about these occurrences, where there are any.
    ///
    /// # Errors
    /// Returns [`RedisUnavailable`] if Redis does not answer.
    pub(crate) async fn requests(
        &self,
        occurrences: &[OccurrenceId],
    ) -> Result<Vec<(OccurrenceId, ServerRequests)>, RedisUnavailable> {
        let (number, mut redis) = self.redis.current();
        let mut found = Vec::new();
        for chunk in occurrences.chunks(250) {
            let mut get = redis::cmd("MGET");
            for occurrence in chunk {
                get.arg(self.keys.cancel_request(*occurrence)).arg(self.keys.revocation(*occurrence));
            }
            let texts: Vec<Option<String>> = self.redis.answer(number, get.query_async(&mut redis)).await?;
            for (occurrence, texts) in chunk.iter().zip(texts.chunks_exact(2)) {
                let requests = ServerRequests {
                    cancel: texts[0].clone(),
                    revoked_below: texts[1].as_ref().and_then(|text| text.parse().ok()),
                };
                if requests != ServerRequests::default() {
                    found.push((*occurrence, requests));
                }
            }
        }
        Ok(found)
    }

    /// Writes the heartbeat of the instance and renews its claims. Returns the runs that are superseded, because a
    /// later attempt was claimed in the meantime.
    ///
    /// # Errors
    /// Returns [`RedisUnavailable`] if Redis does not answer.
    pub(crate) async fn renew(&self, running: &[AttemptKey]) -> Result<Vec<AttemptKey>, RedisUnavailable> {
        let (number, mut redis) = self.redis.current();
        let mut heartbeat = redis::cmd("SET");
        heartbeat
            .arg(self.keys.heartbeat(&self.instance_id))
            .arg(crate::clock::now().timestamp_millis())
            .arg("PX")
            .arg(CLAIM_LEASE_MS);
        self.redis.answer::<()>(number, heartbeat.query_async(&mut redis)).await?;
        let mut superseded = Vec::new();
        for chunk in running.chunks(500) {
            let mut renew = RENEW_SCRIPT.prepare_invoke();
            renew.arg(CLAIM_KEY_TTL_MS);
            for (occurrence, attempt) in chunk {
                renew.key(self.keys.running(*occurrence)).arg(self.claim_value(*attempt));
            }
            // The script counts from 1.
            let lost: Vec<(usize, String)> = self.redis.answer(number, renew.invoke_async(&mut redis)).await?;
            // An equal attempt runs twice, and the first end that is reported counts. Ending it here would report that end.
            superseded.extend(lost.into_iter().filter_map(|(index, held)| {
                let key = chunk.get(index.wrapping_sub(1)).copied()?;
                let other: u32 = held.rsplit_once(':')?.1.parse().ok()?;
                (other > key.1).then_some(key)
            }));
        }
        Ok(superseded)
    }

    /// Deletes the heartbeat of the instance, because it stops in an orderly way.
    ///
    /// # Errors
    /// Returns [`RedisUnavailable`] if Redis does not answer.
    pub(crate) async fn remove_heartbeat(&self) -> Result<(), RedisUnavailable> {
        let (number, mut redis) = self.redis.current();
        self.redis
            .answer(number, redis::cmd("DEL").arg(self.keys.heartbeat(&self.instance_id)).query_async(&mut redis))
            .await
    }

    /// Returns the value of the claim key while this instance runs `attempt`.
    fn claim_value(&self, attempt: u32) -> String {
        format!("{}:{attempt}", self.instance_id)
    }
}

/// Interprets the claim of another holder for `attempt`. `left` is the remaining lifetime of its key in milliseconds.
fn held_by(held: &str, left: &str, attempt: u32) -> ClaimResult {
    let (by, held_attempt) = held.rsplit_once(':').unwrap_or((held, ""));
    // A key without expiry has a negative lifetime.
    let left_ms = left.parse::<i64>().unwrap_or_default();
    if by == "done"
        && held_attempt.parse() == Ok(attempt)
        && (0..CLAIM_RETENTION_MS - MAX_REPORT_DELAY_MS).contains(&left_ms)
    {
        return ClaimResult::EndedUnreported;
    }
    if by == "done" || held_attempt.parse::<u32>().is_ok_and(|held| held > attempt) {
        return ClaimResult::Ended;
    }
    let by = by.to_owned();
    let milliseconds = |left| Duration::from_millis(u64::try_from(left).unwrap_or_default());
    match left_ms - CLAIM_RETENTION_MS {
        lease if lease > 0 => ClaimResult::Held { by, lease: milliseconds(lease) },
        // The holder writes a lease without the retention, or the key is about to expire.
        _ if left_ms <= CLAIM_LEASE_MS => ClaimResult::Held { by, lease: milliseconds(left_ms) },
        _ => ClaimResult::Abandoned { by },
    }
}

/// Interval at which the heartbeat and the claims are renewed.
pub(crate) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(HEARTBEAT_INTERVAL_SECONDS);

#[cfg(test)]
mod tests;
