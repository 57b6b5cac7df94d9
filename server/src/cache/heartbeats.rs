//! The heartbeats and claims of workers, as the lost run detector reads them.
//!
//! A look must show whether this is still the Redis of the last look: one that was emptied, restored or replaced proves
//! nothing about a key that is missing. Each detector therefore keeps a key of its own there, its *sight*, which is lost
//! with everything else, and compares Redis's run id, which changes at each start.

use milvaion_protocol::id::OccurrenceId;
use redis::RedisError;

use super::{Cache, within_limit};
use crate::domain::heartbeat_watch::HeartbeatLook;

/// The time to live of a sight, in seconds.
const SIGHT_TTL_SECONDS: u64 = 3_600;
/// The time to live of a revocation, in seconds: as long as that of a claim.
const REVOCATION_TTL_SECONDS: u64 = 24 * 3_600;

/// Records the run id of Redis. If another one was recorded, sets the time since when Redis holds claims to the present, by
/// its own clock. An empty Redis has no such time, and the next claim sets it.
const NOTE_RUN_SCRIPT: &str = r"
local known = redis.call('GET', KEYS[2])
if known == ARGV[1] then return end
redis.call('SET', KEYS[2], ARGV[1])
if not known then return end
local time = redis.call('TIME')
redis.call('SET', KEYS[1], string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000)))";

/// The keys of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunKeys {
    /// The value of its claim.
    pub claim: Option<String>,
    /// The first attempt that is not revoked.
    pub revoked_below: Option<i32>,
}

impl Cache {
    /// Looks at the heartbeats of instances for the detector `detector`, which saw the Redis with the run id `run_id`
    /// before. Returns the look and the run id of this Redis.
    pub async fn look_at_heartbeats(
        &self,
        detector: &str,
        run_id: &str,
        instances: Vec<String>,
    ) -> Result<(HeartbeatLook, String), RedisError> {
        let sight = self.keys.sight(detector);
        let mut pipe = redis::pipe();
        pipe.cmd("INFO").arg("server").cmd("SET").arg(&sight).arg(1).arg("EX").arg(SIGHT_TTL_SECONDS).arg("GET");
        let mut get = redis::cmd("MGET");
        // At least one key, because MGET requires it.
        get.arg(&sight);
        for instance in &instances {
            get.arg(self.keys.heartbeat(instance));
        }
        pipe.add_command(get);
        let (server, seen, values): (String, Option<String>, Vec<Option<String>>) =
            within_limit(pipe.query_async(&mut self.connection())).await?;
        let found = server.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap_or_default().trim().to_owned();
        let values = instances.into_iter().zip(values.into_iter().skip(1)).collect();
        Ok((HeartbeatLook { is_same: seen.is_some() && found == run_id, values }, found))
    }

    /// Records the run id of Redis. If it has changed, Redis was started again and may have lost claims, although its copy
    /// of the data still has the time since when it holds them: this time becomes the present. Workers then check older
    /// messages with the server, and wait for the renewals of living instances before they claim what may be a duplicate.
    /// The id is kept in Redis, where an older copy has the older id, and where it outlives the servers.
    pub async fn note_redis_run(&self, run_id: &str) -> Result<(), RedisError> {
        let mut command = redis::cmd("EVAL");
        command.arg(NOTE_RUN_SCRIPT).arg(2).arg(self.keys.claims_since()).arg(self.keys.claims_run()).arg(run_id);
        within_limit(command.query_async(&mut self.connection())).await
    }

    /// Returns the claim and the revocation of each run.
    pub async fn run_keys(&self, runs: &[OccurrenceId]) -> Result<Vec<RunKeys>, RedisError> {
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        let mut get = redis::cmd("MGET");
        for run in runs {
            get.arg(self.keys.running(*run)).arg(self.keys.revocation(*run));
        }
        let values: Vec<Option<String>> = within_limit(get.query_async(&mut self.connection())).await?;
        let read = |values: &[Option<String>]| RunKeys {
            claim: values[0].clone(),
            revoked_below: values[1].as_ref().and_then(|text| text.parse().ok()),
        };
        Ok(values.chunks_exact(2).map(read).collect())
    }

    /// Revokes runs: the worker that holds one gives it up without a report that would end it. Each is named with the first
    /// attempt that may run.
    pub async fn revoke(&self, runs: &[(OccurrenceId, i32)]) -> Result<(), RedisError> {
        if runs.is_empty() {
            return Ok(());
        }
        let mut pipe = redis::pipe();
        for (run, attempt) in runs {
            pipe.set_ex(self.keys.revocation(*run), attempt, REVOCATION_TTL_SECONDS).ignore();
        }
        within_limit(pipe.query_async(&mut self.connection())).await
    }
}
