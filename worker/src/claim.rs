//! The claim on an occurrence: who runs it, so that nobody else does.
//!
//! A broker may deliver a message twice, and a publisher whose confirmation was lost sends it twice. The claim is what
//! makes the second copy harmless. It is one key in Redis, `running:{occurrence}`, that holds
//!
//! - `{instance}:{attempt}` while the attempt runs: leased for as long as an instance may be silent, renewed with each
//!   heartbeat, so that it outlives its holder by seconds only;
//! - `done:{attempt}` for a day afterwards, for copies that come late.
//!
//! A claim is one round trip, on the way of every start. A higher attempt takes over from a lower one: the server sends
//! it only after it has given the lower one up.
//!
//! Losing Redis costs no run: a first copy starts without a claim, and only a copy that may be a second one waits. A
//! copy of that kind will also be checked with the server, which answers from PostgreSQL; that question belongs between
//! the claim and the start, in the consumer.

use std::{sync::LazyLock, time::Duration};

use protocol::{
    id::OccurrenceId,
    message::{HEARTBEAT_SECONDS, LOST_AFTER_SECONDS},
    topology::Keys,
};
use redis::{
    Client, RedisResult, Script,
    aio::{ConnectionManager, ConnectionManagerConfig},
};

/// How long Redis may take to answer before it counts as away.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a claim lasts unrenewed, in milliseconds: as long as an instance may be silent.
const LEASE_MS: i64 = LOST_AFTER_SECONDS * 1000;
/// How long an ended attempt is remembered, in milliseconds.
const REMEMBER_MS: i64 = 24 * 3600 * 1000;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreachable {
    #[error("Redis did not answer within {} s", PATIENCE.as_secs())]
    Silent,
    #[error("Redis: {0}")]
    Failed(#[from] redis::RedisError),
}

/// The answer to a claim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It is ours.
    Granted,
    /// This attempt, or a later one, has ended already.
    Ended,
    /// Somebody else has it.
    Held {
        /// The instance.
        by: String,
        /// How long it lasts unless renewed.
        lease: Duration,
    },
}

/// The claims of one instance.
#[derive(Clone)]
pub(crate) struct Claims {
    redis: ConnectionManager,
    keys: Keys,
    instance_id: String,
}

// Grants unless an attempt at least as high is there already; answers what is there.
static CLAIM: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        local held = redis.call('GET', KEYS[1])
        if held and held ~= ARGV[1] then
            local attempt = tonumber(string.match(held, ':(%d+)$'))
            if attempt and attempt >= tonumber(ARGV[2]) then
                return {held, redis.call('PTTL', KEYS[1])}
            end
        end
        redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
        return {'', 0}
        ",
    )
});

// Renews what is still ours and puts back what is gone (Redis was wiped); answers which have gone to somebody else.
static RENEW: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        local lost = {}
        for i, key in ipairs(KEYS) do
            local held = redis.call('GET', key)
            if held == ARGV[i + 1] or not held then
                redis.call('SET', key, ARGV[i + 1], 'PX', ARGV[1])
            else
                lost[#lost + 1] = i
            end
        end
        return lost
        ",
    )
});

// Marks the end, unless a later attempt has taken over.
static FINISH: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        local held = redis.call('GET', KEYS[1])
        if held == ARGV[1] or not held then
            redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
        end
        return 0
        ",
    )
});

impl Claims {
    /// Prepares a connection that is made at the first use and made again whenever it is lost. Must be called inside the
    /// runtime that will use it.
    pub(crate) fn new(url: &str, keys: Keys, instance_id: &str) -> RedisResult<Self> {
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(PATIENCE))
            .set_connection_timeout(Some(PATIENCE))
            .set_max_delay(Duration::from_secs(1));
        let redis = ConnectionManager::new_lazy_with_config(Client::open(url)?, config)?;
        Ok(Self { redis, keys, instance_id: instance_id.to_owned() })
    }

    /// Opens the connection before the first delivery needs it. Failing is no harm.
    pub(crate) async fn warm_up(&self) {
        let mut redis = self.redis.clone();
        let ping: Result<(), _> = within(redis::cmd("PING").query_async(&mut redis)).await;
        if let Err(error) = ping {
            tracing::warn!(error = %error, "Redis is away; occurrences start without a claim until it is back");
        }
    }

    /// Claims an attempt.
    ///
    /// # Errors
    /// When Redis does not answer. The claim may then be ours or not.
    pub(crate) async fn claim(&self, occurrence: OccurrenceId, attempt: u32) -> Result<Answer, Unreachable> {
        let mut redis = self.redis.clone();
        let (held, lease): (String, i64) = within(
            CLAIM
                .key(self.keys.running(occurrence))
                .arg(self.mark(attempt))
                .arg(attempt)
                .arg(LEASE_MS)
                .invoke_async(&mut redis),
        )
        .await?;
        if held.is_empty() {
            return Ok(Answer::Granted);
        }
        let by = held.rsplit_once(':').map_or(held.as_str(), |(holder, _)| holder);
        if by == "done" {
            return Ok(Answer::Ended);
        }
        Ok(Answer::Held { by: by.to_owned(), lease: Duration::from_millis(lease.max(0).unsigned_abs()) })
    }

    /// Marks an attempt as ended, so that a late copy is dropped.
    pub(crate) async fn finish(&self, occurrence: OccurrenceId, attempt: u32) -> Result<(), Unreachable> {
        let mut redis = self.redis.clone();
        within(
            FINISH
                .key(self.keys.running(occurrence))
                .arg(self.mark(attempt))
                .arg(format!("done:{attempt}"))
                .arg(REMEMBER_MS)
                .invoke_async(&mut redis),
        )
        .await
    }

    /// Gives the instance's sign of life and renews its claims. Answers which runs were claimed by somebody else in the
    /// meantime.
    pub(crate) async fn beat(&self, running: &[(OccurrenceId, u32)]) -> Result<Vec<OccurrenceId>, Unreachable> {
        let mut redis = self.redis.clone();
        let mut sign = redis::cmd("SET");
        sign.arg(self.keys.heartbeat(&self.instance_id))
            .arg(crate::clock::now().timestamp_millis())
            .arg("PX")
            .arg(LEASE_MS);
        within::<()>(sign.query_async(&mut redis)).await?;
        let mut lost = Vec::new();
        for some in running.chunks(500) {
            let mut renew = RENEW.prepare_invoke();
            renew.arg(LEASE_MS);
            for (occurrence, attempt) in some {
                renew.key(self.keys.running(*occurrence)).arg(self.mark(*attempt));
            }
            let places: Vec<usize> = within(renew.invoke_async(&mut redis)).await?;
            lost.extend(
                places
                    .into_iter()
                    .filter_map(|place| some.get(place.wrapping_sub(1)))
                    .map(|(occurrence, _)| *occurrence),
            );
        }
        Ok(lost)
    }

    /// Takes the sign of life back: the instance has left in good order.
    pub(crate) async fn leave(&self) -> Result<(), Unreachable> {
        let mut redis = self.redis.clone();
        within(redis::cmd("DEL").arg(self.keys.heartbeat(&self.instance_id)).query_async(&mut redis)).await
    }

    fn mark(&self, attempt: u32) -> String {
        format!("{}:{attempt}", self.instance_id)
    }
}

/// How often the sign of life and the claims are renewed.
pub(crate) const BEAT: Duration = Duration::from_secs(HEARTBEAT_SECONDS);

// The connection's own timeouts do not cover the wait for a reconnect under way.
async fn within<T>(answer: impl Future<Output = RedisResult<T>>) -> Result<T, Unreachable> {
    match tokio::time::timeout(PATIENCE, answer).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Unreachable::Silent),
    }
}
