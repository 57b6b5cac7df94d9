//! The claim on an occurrence: who runs it, so that nobody else does.
//!
//! A broker may deliver a message twice, and a publisher whose confirmation was lost sends it twice. The claim is what
//! makes the second copy harmless. It is one key in Redis, `running:{occurrence}`, that holds
//!
//! - `{instance}:{attempt}` while the attempt runs: leased for as long as an instance may be silent, renewed with each
//!   heartbeat;
//! - `done:{attempt}` for a day afterwards, for copies that come late.
//!
//! The key lives a day longer than the lease. As long as more than that day is left, its holder lives; afterwards the
//! mark says that somebody took this attempt and was not heard of again. Such an attempt may have begun, so nobody starts
//! it a second time (see [`admission`](crate::delivery::admission)). The lease alone, gone with its holder, could not tell it from
//! one that nobody ever had. In the same way `done` means little after ten minutes in which the server was not told of the
//! end: its report was lost with the process that had it.
//!
//! Deliveries do not ask one by one: the [`claim_batcher`](crate::delivery::claim_batcher) gathers claims and ends, and one script settles them
//! all. A higher attempt takes over from a lower one: the server sends it only after it has given the lower one up. With
//! a granted claim comes what stands at the occurrence's `cancel:` key, so that what was cancelled while it waited in the
//! queue is not started, at no round trip of its own.
//!
//! Losing Redis costs no run: a first copy starts without a claim, and only a copy that may be a second one waits. A
//! copy of that kind is also checked with the server, by the [`claim_check`](crate::delivery::claim_check).

use std::{sync::LazyLock, time::Duration};

use milvaion_protocol::{
    id::OccurrenceId,
    message::{HEARTBEAT_INTERVAL_SECONDS, INSTANCE_TIMEOUT_SECONDS},
    topology::RedisKeys,
};
use redis::{
    Client, RedisResult, Script,
    aio::{ConnectionManager, ConnectionManagerConfig},
};

/// How long Redis may take to answer before it counts as away.
const REDIS_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a claim lasts unrenewed, in milliseconds: as long as an instance may be silent.
const CLAIM_LEASE_MS: i64 = INSTANCE_TIMEOUT_SECONDS * 1000;
/// How long an attempt is remembered after its end, or after the lease of a holder that fell silent, in milliseconds.
const CLAIM_RETENTION_MS: i64 = 24 * 3600 * 1000;
/// How long the report of an end may be on its way, in milliseconds: as long as the server waits for a late one.
const MAX_REPORT_DELAY_MS: i64 = 10 * 60 * 1000;
/// How long a claim's key lives unrenewed.
const CLAIM_KEY_TTL_MS: i64 = CLAIM_LEASE_MS + CLAIM_RETENTION_MS;

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum RedisUnavailable {
    #[error("Redis did not answer within {} s", REDIS_TIMEOUT.as_secs())]
    Timeout,
    #[error("Redis: {0}")]
    Failed(#[from] redis::RedisError),
}

/// An occurrence and which try it is.
pub(crate) type AttemptKey = (OccurrenceId, u32);

/// The answer to a claim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ClaimResult {
    /// It is ours.
    Granted {
        /// What stands at the occurrence's `cancel:` key, if anything does.
        cancel: Option<String>,
    },
    /// This attempt has ended already, or a later one was claimed.
    Ended,
    /// This attempt has ended so long ago that everybody should know how.
    EndedUnreported,
    /// Somebody else has it.
    Held {
        /// The instance.
        by: String,
        /// How long it lasts unless renewed.
        lease: Duration,
    },
    /// Somebody else had it, and has let the lease run out.
    Abandoned {
        /// The instance.
        by: String,
    },
}

/// The claims of one instance.
#[derive(Clone)]
pub(crate) struct ClaimStore {
    redis: ConnectionManager,
    keys: RedisKeys,
    instance_id: String,
}

// Settles claims, then ends. KEYS: for each claim its claim and its cancel key, then for each end its claim.
// ARGV: the instance, how long claims and how long ends are kept, the number of claims, then an attempt for each.
// A claim is granted unless an attempt at least as high is there already. Each claim is answered with three words: what
// is there (empty when granted), how long it lasts, and what stands at the cancel key. An end is marked unless a later
// attempt has taken over.
static SETTLE_SCRIPT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        local claims = tonumber(ARGV[4])
        local answer = {}
        for i = 1, claims do
            local key, attempt = KEYS[2 * i - 1], ARGV[4 + i]
            local mark = ARGV[1] .. ':' .. attempt
            local held = redis.call('GET', key)
            local other = held and held ~= mark and tonumber(string.match(held, ':(%d+)$'))
            if other and other >= tonumber(attempt) then
                answer[3 * i - 2], answer[3 * i - 1], answer[3 * i] = held, tostring(redis.call('PTTL', key)), ''
            else
                redis.call('SET', key, mark, 'PX', ARGV[2])
                answer[3 * i - 2], answer[3 * i - 1], answer[3 * i] = '', '0', redis.call('GET', KEYS[2 * i]) or ''
            end
        end
        for i = claims + 1, #ARGV - 4 do
            local key, attempt = KEYS[claims + i], ARGV[4 + i]
            local held = redis.call('GET', key)
            if held == ARGV[1] .. ':' .. attempt or not held then
                redis.call('SET', key, 'done:' .. attempt, 'PX', ARGV[3])
            end
        end
        return answer
        ",
    )
});

// Renews what is still ours and puts back what is gone (Redis was wiped); answers which a later attempt has taken.
static RENEW_SCRIPT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        local lost = {}
        for i, key in ipairs(KEYS) do
            local held = redis.call('GET', key)
            local other = held and held ~= ARGV[i + 1] and tonumber(string.match(held, ':(%d+)$'))
            if not held or held == ARGV[i + 1] then
                redis.call('SET', key, ARGV[i + 1], 'PX', ARGV[1])
            elseif other and other > tonumber(string.match(ARGV[i + 1], ':(%d+)$')) then
                lost[#lost + 1] = i
            end
        end
        return lost
        ",
    )
});

// Takes a claim back that is still ours.
static RELEASE_SCRIPT: LazyLock<Script> =
    LazyLock::new(|| Script::new("if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"));

impl ClaimStore {
    /// Prepares a connection that is made at the first use and made again whenever it is lost. Must be called inside the
    /// runtime that will use it.
    pub(crate) fn new(url: &str, keys: RedisKeys, instance_id: &str) -> RedisResult<Self> {
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(REDIS_TIMEOUT))
            .set_connection_timeout(Some(REDIS_TIMEOUT))
            .set_max_delay(Duration::from_secs(1));
        let redis = ConnectionManager::new_lazy_with_config(Client::open(url)?, config)?;
        Ok(Self { redis, keys, instance_id: instance_id.to_owned() })
    }

    /// Opens the connection before the first delivery needs it. Failing is no harm.
    pub(crate) async fn warm_up(&self) {
        let mut redis = self.redis.clone();
        let ping: Result<(), _> = with_timeout(redis::cmd("PING").query_async(&mut redis)).await;
        if let Err(error) = ping {
            tracing::warn!(error = %error, "Redis is away; occurrences start without a claim until it is back");
        }
    }

    /// Claims some attempts and marks others as ended, so that a late copy is dropped: one round trip. Answers the claims
    /// in their order.
    ///
    /// # Errors
    /// When Redis does not answer. The claims may then be ours or not, the ends marked or not.
    pub(crate) async fn settle(
        &self,
        claims: &[AttemptKey],
        ends: &[AttemptKey],
    ) -> Result<Vec<ClaimResult>, RedisUnavailable> {
        let mut redis = self.redis.clone();
        let mut settle = SETTLE_SCRIPT.prepare_invoke();
        settle.arg(&self.instance_id).arg(CLAIM_KEY_TTL_MS).arg(CLAIM_RETENTION_MS).arg(claims.len());
        for &(occurrence, attempt) in claims {
            settle.key(self.keys.running(occurrence)).key(self.keys.cancel_request(occurrence)).arg(attempt);
        }
        for &(occurrence, attempt) in ends {
            settle.key(self.keys.running(occurrence)).arg(attempt);
        }
        let words: Vec<String> = with_timeout(settle.invoke_async(&mut redis)).await?;
        Ok(words
            .chunks_exact(3)
            .zip(claims)
            .map(|(words, (_, attempt))| match words {
                [held, left, _] if !held.is_empty() => held_by(held, left, *attempt),
                [.., cancel] => ClaimResult::Granted { cancel: Some(cancel.clone()).filter(|text| !text.is_empty()) },
                [] => ClaimResult::Granted { cancel: None },
            })
            .collect())
    }

    /// Gives a claim back, if it is ours and has not ended. When that fails, its key stays for a day, and whoever gets the
    /// message reports the attempt as lost.
    pub(crate) async fn release(&self, (occurrence, attempt): AttemptKey) {
        let mut redis = self.redis.clone();
        let mut release = RELEASE_SCRIPT.prepare_invoke();
        release.key(self.keys.running(occurrence)).arg(self.mark(attempt));
        if let Err(error) = with_timeout::<()>(release.invoke_async(&mut redis)).await {
            tracing::debug!(occurrence.id = %occurrence, error = %error, "a claim could not be given back");
        }
    }

    /// What stands at the `cancel:` keys of these occurrences, where anything does.
    ///
    /// # Errors
    /// When Redis does not answer.
    pub(crate) async fn cancellations(
        &self,
        occurrences: &[OccurrenceId],
    ) -> Result<Vec<(OccurrenceId, String)>, RedisUnavailable> {
        let mut redis = self.redis.clone();
        let mut found = Vec::new();
        for some in occurrences.chunks(500) {
            let mut get = redis::cmd("MGET");
            for occurrence in some {
                get.arg(self.keys.cancel_request(*occurrence));
            }
            let texts: Vec<Option<String>> = with_timeout(get.query_async(&mut redis)).await?;
            found.extend(some.iter().zip(texts).filter_map(|(occurrence, text)| Some((*occurrence, text?))));
        }
        Ok(found)
    }

    /// Gives the instance's sign of life and renews its claims. Answers which runs have been overtaken: a later attempt
    /// of theirs was claimed meanwhile.
    pub(crate) async fn renew(&self, running: &[AttemptKey]) -> Result<Vec<AttemptKey>, RedisUnavailable> {
        let mut redis = self.redis.clone();
        let mut sign = redis::cmd("SET");
        sign.arg(self.keys.heartbeat(&self.instance_id))
            .arg(crate::clock::now().timestamp_millis())
            .arg("PX")
            .arg(CLAIM_LEASE_MS);
        with_timeout::<()>(sign.query_async(&mut redis)).await?;
        let mut lost = Vec::new();
        for some in running.chunks(500) {
            let mut renew = RENEW_SCRIPT.prepare_invoke();
            renew.arg(CLAIM_KEY_TTL_MS);
            for (occurrence, attempt) in some {
                renew.key(self.keys.running(*occurrence)).arg(self.mark(*attempt));
            }
            let places: Vec<usize> = with_timeout(renew.invoke_async(&mut redis)).await?;
            lost.extend(places.into_iter().filter_map(|place| some.get(place.wrapping_sub(1))).copied());
        }
        Ok(lost)
    }

    /// Takes the sign of life back: the instance has left in good order.
    pub(crate) async fn remove_heartbeat(&self) -> Result<(), RedisUnavailable> {
        let mut redis = self.redis.clone();
        with_timeout(redis::cmd("DEL").arg(self.keys.heartbeat(&self.instance_id)).query_async(&mut redis)).await
    }

    fn mark(&self, attempt: u32) -> String {
        format!("{}:{attempt}", self.instance_id)
    }
}

/// What a claim that is not ours says about `attempt`. `left` is how long its key still lives, in milliseconds.
fn held_by(held: &str, left: &str, attempt: u32) -> ClaimResult {
    let (by, held_attempt) = held.rsplit_once(':').unwrap_or((held, ""));
    // A key without an end has a negative one.
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
        // Of a worker that keeps its lease and no mark beyond it; or a mark that is forgotten in a moment.
        _ if left_ms <= CLAIM_LEASE_MS => ClaimResult::Held { by, lease: milliseconds(left_ms) },
        _ => ClaimResult::Abandoned { by },
    }
}

/// How often the sign of life and the claims are renewed.
pub(crate) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(HEARTBEAT_INTERVAL_SECONDS);

// The connection's own timeouts do not cover the wait for a reconnect under way.
pub(crate) async fn with_timeout<T>(answer: impl Future<Output = RedisResult<T>>) -> Result<T, RedisUnavailable> {
    match tokio::time::timeout(REDIS_TIMEOUT, answer).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(RedisUnavailable::Timeout),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_alive_for_its_lease_a_mark_for_a_day_and_then_forgotten() {
        let held = |lease| ClaimResult::Held { by: "w-1".to_owned(), lease: Duration::from_millis(lease) };
        let left = |ms: i64| held_by("w-1:2", &ms.to_string(), 2);
        assert_eq!(left(CLAIM_KEY_TTL_MS), held(15_000));
        assert_eq!(left(CLAIM_RETENTION_MS + 1), held(1));
        assert_eq!(left(CLAIM_RETENTION_MS), ClaimResult::Abandoned { by: "w-1".to_owned() });
        assert_eq!(left(CLAIM_LEASE_MS + 1), ClaimResult::Abandoned { by: "w-1".to_owned() });
        // Of a worker that keeps a lease only.
        assert_eq!(left(CLAIM_LEASE_MS), held(15_000));
        assert_eq!(left(-1), held(0));
    }

    #[test]
    fn what_has_ended_or_was_overtaken_is_over_whatever_is_left() {
        for (mark, left) in [
            ("done:2", CLAIM_RETENTION_MS),
            ("w-1:3", CLAIM_KEY_TTL_MS),
            ("w-1:3", CLAIM_RETENTION_MS - 1),
            ("done:7", 1),
        ] {
            assert_eq!(held_by(mark, &left.to_string(), 2), ClaimResult::Ended, "{mark}");
        }
        // Long ago, and only this very attempt.
        assert_eq!(held_by("done:2", &(CLAIM_RETENTION_MS - MAX_REPORT_DELAY_MS).to_string(), 2), ClaimResult::Ended);
        assert_eq!(
            held_by("done:2", &(CLAIM_RETENTION_MS - MAX_REPORT_DELAY_MS - 1).to_string(), 2),
            ClaimResult::EndedUnreported
        );
        assert_eq!(held_by("done:3", "1", 2), ClaimResult::Ended);
        // An instance's name may have anything in it.
        assert!(
            matches!(held_by("a:b:2", &CLAIM_KEY_TTL_MS.to_string(), 2), ClaimResult::Held { by, .. } if by == "a:b")
        );
    }
}
