//! Singleton loops in Redis: the lease that one instance of the fleet holds, and the state that its holder publishes.
//!
//! A singleton loop uses Redis only. Each instance that offers the loop sends a heartbeat every few seconds, which is one
//! script: it takes the lease if it is free, renews it if the instance holds it, and otherwise reports the holder. All
//! decisions about the lease are made inside the script, because the key may expire between a read and a write.
//!
//! Each change of the holder raises the epoch, the fencing token of the loop. A lease in one Redis is best effort: a Redis
//! that lost its data, or was replaced by an older copy, can grant it to a second instance. A system that stores the
//! highest epoch beside its data, and refuses lower ones, is safe then as well. An epoch must therefore never be granted
//! twice, whatever Redis forgets. It is one more than the highest that Redis or the instance has seen, and at least the
//! Unix time in seconds by the clock of Redis. Because of the clock, an empty Redis continues with higher epochs even if
//! every instance was restarted too.
//!
//! The scripts are here, and not in the SDK, because workers in other languages run the same ones. The protocol page shows
//! them, and a test compares the two.

use serde::{Deserialize, Serialize};

/// The maximum length of the name of a singleton loop, in bytes. Names have letters, digits, `-`, `_` and `.`.
pub const MAX_LOOP_NAME_BYTES: usize = 100;
/// The maximum number of singleton loops that the server shows, and the maximum in one instance.
pub const MAX_LOOPS: usize = 1000;
/// The number of runs in [`LoopState::recent`].
pub const RECENT_RUNS: usize = 20;
/// The maximum length of [`LoopState::last_error`], in bytes.
pub const MAX_LOOP_ERROR_BYTES: usize = 500;
/// The time in milliseconds after its last heartbeat at which an instance no longer counts as one that offers the loop.
pub const LOOP_INSTANCE_TTL_MS: i64 = 60_000;
/// The time in milliseconds after the last heartbeat of any instance at which a loop is forgotten: 30 days.
pub const LOOP_RETENTION_MS: i64 = 30 * 24 * 3600 * 1000;

/// The heartbeat of one instance for one loop: takes, renews or observes the lease.
///
/// KEYS: the lease, the epoch, the state, the disabling key, the yield key, the instances, and the names of all loops.
/// ARGV: the instance, the epoch that it holds or 0, the lease in milliseconds, the highest epoch that it has seen, 1 if it
/// takes a free lease and 0 if it does not, the name of the loop, then the fields of the state and their values.
///
/// Returns the result (0 another instance holds the lease or none does, 1 renewed, 2 taken), the epoch in force, the id of
/// the holder or an empty string, 1 if the loop is disabled, 1 if the instance is asked to yield, the time of Redis in
/// milliseconds, and the end of the last run as the state has it or an empty string.
pub const HEARTBEAT_SCRIPT: &str = r"local time = redis.call('TIME')
local now = string.format('%d%03d', time[1], math.floor(time[2] / 1000))
redis.call('ZADD', KEYS[7], now, ARGV[6])
redis.call('ZADD', KEYS[6], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[6], '-inf', tonumber(now) - 60000)
redis.call('PEXPIRE', KEYS[6], 60000)
local disabled = redis.call('EXISTS', KEYS[4])
local yield = redis.call('GET', KEYS[5]) == ARGV[1] and 1 or 0
local held = redis.call('GET', KEYS[1])
local holder = held and string.match(held, '^(.*):%d+$') or held or ''
local result, epoch = 0, redis.call('GET', KEYS[2]) or '0'
if held == ARGV[1] .. ':' .. ARGV[2] then
    result, epoch = 1, ARGV[2]
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
elseif ARGV[5] == '1' and disabled == 0 and (not held or holder == ARGV[1]) then
    local next = math.max(tonumber(epoch) + 1, tonumber(ARGV[4]) + 1, tonumber(time[1]))
    result, epoch, holder = 2, string.format('%d', next), ARGV[1]
    redis.call('SET', KEYS[2], epoch)
    redis.call('SET', KEYS[1], ARGV[1] .. ':' .. epoch, 'PX', ARGV[3])
elseif held and redis.call('PTTL', KEYS[1]) < 0 then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
local ended = redis.call('HGET', KEYS[3], 'lastEnd') or ''
if result > 0 then
    redis.call('HSET', KEYS[3], 'instance', ARGV[1], 'epoch', epoch, 'updatedAt', now, unpack(ARGV, 7))
    redis.call('PEXPIRE', KEYS[3], 2592000000)
end
return {result, epoch, holder, disabled, yield, now, ended}
";

/// The release of a lease, or the goodbye of an instance that does not hold it.
///
/// KEYS: the lease, the state, the yield key, and the instances. ARGV: the instance, the epoch that it holds or 0, the
/// channel, the name of the loop, 1 if the instance no longer offers the loop and 0 if it does, then the fields of the
/// state and their values. Returns 1 if the lease was released, and 0 if the instance did not hold it.
pub const RELEASE_SCRIPT: &str = r"if ARGV[5] == '1' then
    redis.call('ZREM', KEYS[4], ARGV[1])
end
if redis.call('GET', KEYS[1]) ~= ARGV[1] .. ':' .. ARGV[2] then
    return 0
end
redis.call('DEL', KEYS[1])
if #ARGV > 5 then
    redis.call('HSET', KEYS[2], unpack(ARGV, 6))
end
if redis.call('GET', KEYS[3]) == ARGV[1] then
    redis.call('DEL', KEYS[3])
end
redis.call('PUBLISH', ARGV[3], ARGV[4])
return 1
";

/// The rhythm of a loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum LoopKind {
    /// The next run starts a fixed time after the end of the last one.
    #[default]
    Interval,
    /// Runs start on a fixed grid. A tick during a run is dropped.
    FixedRate,
    /// Runs start at the due times of a cron expression.
    Cron,
}

impl LoopKind {
    /// Returns the value of the field `kind`.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Interval => "interval",
            Self::FixedRate => "fixed-rate",
            Self::Cron => "cron",
        }
    }

    /// Reads the value of the field `kind`. An unknown value gives `None`.
    #[must_use]
    pub fn from_slug(slug: &str) -> Option<Self> {
        [Self::Interval, Self::FixedRate, Self::Cron].into_iter().find(|kind| kind.slug() == slug)
    }
}

/// The end of one run of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum LoopOutcome {
    /// It returned without an error.
    Ok,
    /// It returned an error, panicked or exceeded its timeout.
    Error,
    /// It was cancelled, because the instance stopped leading.
    Cancelled,
}

/// One run in [`LoopState::recent`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LoopRun {
    /// The start, in milliseconds since 1970.
    pub start: i64,
    /// The duration in milliseconds.
    pub duration_ms: f64,
    /// The time from due to start in milliseconds.
    pub late_ms: f64,
    /// The end.
    pub outcome: LoopOutcome,
}

/// The state that the leader of a loop publishes with each renewal: the fields of the hash, except `instance`, `epoch` and
/// `updatedAt`, which the script writes. Counters begin at zero with each leader. Times are milliseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoopState {
    /// The worker id of the leader.
    pub worker_id: String,
    /// The host name of the leader.
    pub host: String,
    /// The kind of rhythm.
    pub kind: LoopKind,
    /// The rhythm in words, such as `every 100ms`.
    pub schedule: String,
    /// The lease in milliseconds.
    pub lease_ms: u64,
    /// The time between two heartbeats in milliseconds.
    pub heartbeat_ms: u64,
    /// The time since when this instance leads.
    pub since: i64,
    /// The number of due ticks: those that ran and those that were dropped.
    pub ticks: u64,
    /// The number of runs that ended.
    pub runs: u64,
    /// The number of ticks that were dropped, because a run was in progress or the process was late.
    pub dropped: u64,
    /// The number of runs that ended with an error.
    pub errors: u64,
    /// The start of the run in progress, if there is one.
    pub running_since: Option<i64>,
    /// The start of the last run that ended.
    pub last_start: Option<i64>,
    /// The end of the last run that ended. A new leader of an interval loop counts the interval from it.
    pub last_end: Option<i64>,
    /// The median duration of the last runs in milliseconds.
    pub p50_ms: f64,
    /// The 99th percentile of the duration of the last runs in milliseconds.
    pub p99_ms: f64,
    /// The median time from due to start of the last runs in milliseconds.
    pub late_p50_ms: f64,
    /// The 99th percentile of the time from due to start of the last runs in milliseconds.
    pub late_p99_ms: f64,
    /// The last runs, at most [`RECENT_RUNS`], the newest last.
    pub recent: Vec<LoopRun>,
    /// The text of the last error, at most [`MAX_LOOP_ERROR_BYTES`].
    pub last_error: Option<String>,
    /// The time of the last error.
    pub last_error_at: Option<i64>,
}

impl LoopState {
    /// Returns the fields and their values. Optional fields without a value are left out, so that those of an earlier leader
    /// stay, except `runningSince`, which is empty.
    #[must_use]
    pub fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = vec![
            ("workerId", self.worker_id.clone()),
            ("host", self.host.clone()),
            ("kind", self.kind.slug().to_owned()),
            ("schedule", self.schedule.clone()),
            ("leaseMs", self.lease_ms.to_string()),
            ("heartbeatMs", self.heartbeat_ms.to_string()),
            ("since", self.since.to_string()),
            ("ticks", self.ticks.to_string()),
            ("runs", self.runs.to_string()),
            ("dropped", self.dropped.to_string()),
            ("errors", self.errors.to_string()),
            ("runningSince", self.running_since.map(|at| at.to_string()).unwrap_or_default()),
            ("p50Ms", decimal(self.p50_ms)),
            ("p99Ms", decimal(self.p99_ms)),
            ("lateP50Ms", decimal(self.late_p50_ms)),
            ("lateP99Ms", decimal(self.late_p99_ms)),
            ("recent", serde_json::to_string(&self.recent).unwrap_or_default()),
        ];
        let optional =
            [("lastStart", self.last_start), ("lastEnd", self.last_end), ("lastErrorAt", self.last_error_at)];
        fields.extend(optional.into_iter().filter_map(|(name, at)| Some((name, at?.to_string()))));
        fields.extend(self.last_error.clone().map(|text| ("lastError", text)));
        fields
    }

    /// Reads the fields of the hash. A field that is missing or cannot be read has its default, because a worker of another
    /// version or language may have written it.
    #[must_use]
    pub fn read<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Self {
        let text = |name: &str| get(name).unwrap_or_default().to_owned();
        let count = |name: &str| get(name).and_then(|value| value.parse().ok()).unwrap_or_default();
        let time = |name: &str| get(name).and_then(|value| value.parse().ok());
        let number = |name: &str| get(name).and_then(|value| value.parse().ok()).filter(|n: &f64| n.is_finite());
        let mut recent: Vec<LoopRun> =
            get("recent").and_then(|value| serde_json::from_str(value).ok()).unwrap_or_default();
        recent.drain(..recent.len().saturating_sub(RECENT_RUNS));
        Self {
            worker_id: text("workerId"),
            host: text("host"),
            kind: get("kind").and_then(LoopKind::from_slug).unwrap_or_default(),
            schedule: text("schedule"),
            lease_ms: count("leaseMs"),
            heartbeat_ms: count("heartbeatMs"),
            since: time("since").unwrap_or_default(),
            ticks: count("ticks"),
            runs: count("runs"),
            dropped: count("dropped"),
            errors: count("errors"),
            running_since: time("runningSince"),
            last_start: time("lastStart"),
            last_end: time("lastEnd"),
            p50_ms: number("p50Ms").unwrap_or_default(),
            p99_ms: number("p99Ms").unwrap_or_default(),
            late_p50_ms: number("lateP50Ms").unwrap_or_default(),
            late_p99_ms: number("lateP99Ms").unwrap_or_default(),
            recent,
            last_error: get("lastError").filter(|text| !text.is_empty()).map(str::to_owned),
            last_error_at: time("lastErrorAt"),
        }
    }
}

/// Formats milliseconds with three decimals.
fn decimal(number: f64) -> String {
    format!("{number:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_read_as_it_was_written() {
        let state = LoopState {
            worker_id: "prices".to_owned(),
            host: "a".to_owned(),
            kind: LoopKind::FixedRate,
            schedule: "fixed rate 100ms".to_owned(),
            lease_ms: 10_000,
            heartbeat_ms: 3000,
            since: 1_764_000_000_000,
            ticks: 12,
            runs: 10,
            dropped: 2,
            errors: 1,
            running_since: None,
            last_start: Some(1_764_000_000_100),
            last_end: Some(1_764_000_000_120),
            p50_ms: 1.25,
            p99_ms: 20.0,
            late_p50_ms: 0.5,
            late_p99_ms: 1.125,
            recent: vec![LoopRun {
                start: 1_764_000_000_100,
                duration_ms: 20.0,
                late_ms: 0.5,
                outcome: LoopOutcome::Error,
            }],
            last_error: Some("no price".to_owned()),
            last_error_at: Some(1_764_000_000_120),
        };
        let fields = state.fields();
        let read =
            LoopState::read(|name| fields.iter().find(|(field, _)| *field == name).map(|(_, value)| value.as_str()));
        assert_eq!(read, state);
    }

    #[test]
    fn unreadable_fields_have_their_defaults() {
        let read = LoopState::read(|name| match name {
            "kind" => Some("lunar"),
            "runs" => Some("many"),
            "p99Ms" => Some("NaN"),
            "recent" => Some("[{}]"),
            "schedule" => Some("every 1s"),
            _ => None,
        });
        assert_eq!(read, LoopState { schedule: "every 1s".to_owned(), ..LoopState::default() });
    }
}
