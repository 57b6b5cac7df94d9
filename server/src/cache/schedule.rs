//! The due index: a sorted set of jobs by due time. The dispatcher sleeps until its first entry.
//!
//! PostgreSQL decides what is due. An entry that is too early costs a tick without work, which corrects it. An entry that
//! is too late delays its job until another one is due, so no writer may replace a newer entry by an older one: each
//! writes only over the entry that it knows, or looks at PostgreSQL once more after it has written.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use milvaion_protocol::id::JobId;
use redis::{AsyncCommands, RedisError};
use uuid::Uuid;

use super::Cache;

/// Returns the score of a due time: seconds with a fraction. A double represents this century's microseconds with an
/// error below one microsecond.
fn score(at: DateTime<Utc>) -> f64 {
    at.timestamp_micros() as f64 / 1e6
}

/// Replaces entries that are missing or have the expected score. Arguments: member, expected score, new score or an empty
/// text for none; for each entry. Returns the number of entries that were replaced.
const REPLACE_SCRIPT: &str = r"
    local replaced = 0
    for i = 1, #ARGV, 3 do
        local score = redis.call('ZSCORE', KEYS[1], ARGV[i])
        if not score or tonumber(score) == tonumber(ARGV[i + 1]) then
            if ARGV[i + 2] ~= '' then
                redis.call('ZADD', KEYS[1], ARGV[i + 2], ARGV[i])
            else
                redis.call('ZREM', KEYS[1], ARGV[i])
            end
            replaced = replaced + 1
        end
    end
    return replaced";
/// The most entries of one request. Redis serves nothing else meanwhile, so a request takes a few milliseconds.
pub const REQUEST_ENTRIES: usize = 1_000;

/// A change of an entry that was read before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DueChange {
    /// The job.
    pub id: JobId,
    /// The score of the entry as it was read; `None` if there was none. An entry with another score is newer and stays.
    pub seen: Option<f64>,
    /// The due time; `None` removes the entry.
    pub at: Option<DateTime<Utc>>,
}

impl DueChange {
    /// Returns the change of a job that was fired at `due` and is due again at `next`.
    #[must_use]
    pub fn fired(id: JobId, due: DateTime<Utc>, next: Option<DateTime<Utc>>) -> Self {
        Self { id, seen: Some(score(due)), at: next }
    }
}

/// Returns the key that marks the index as complete. It is lost together with the index.
fn complete_mark(key: &str) -> String {
    format!("{key}:complete")
}

impl Cache {
    /// Writes the due times of jobs. `None` removes a job.
    pub async fn note_due(&self, jobs: &[(JobId, Option<DateTime<Utc>>)]) -> Result<(), RedisError> {
        if jobs.is_empty() {
            return Ok(());
        }
        let key = self.keys.schedule();
        let mut pipe = redis::pipe();
        for (id, at) in jobs {
            match at {
                Some(at) => pipe.zadd(&key, id.to_string(), score(*at)).ignore(),
                None => pipe.zrem(&key, id.to_string()).ignore(),
            };
        }
        pipe.query_async(&mut self.connection()).await
    }

    /// Returns the earliest due time, and true if the index is complete. A Redis that was emptied or replaced holds
    /// only the entries written since, and lacks the mark that a rebuild sets.
    pub async fn earliest(&self) -> Result<(Option<DateTime<Utc>>, bool), RedisError> {
        let key = self.keys.schedule();
        let (head, complete): (Vec<(String, f64)>, bool) = redis::pipe()
            .zrange_withscores(&key, 0, 0)
            .exists(complete_mark(&key))
            .query_async(&mut self.connection())
            .await?;
        let at = head.first().and_then(|(_, score)| DateTime::from_timestamp_micros((score * 1e6).round() as i64));
        Ok((at, complete))
    }

    /// Marks the index as complete.
    pub async fn mark_complete(&self) -> Result<(), RedisError> {
        self.connection().set(complete_mark(&self.keys.schedule()), 1).await
    }

    /// Applies changes, each only while its entry is missing or as it was seen. Returns the number that were applied.
    pub async fn replace_due(&self, changes: &[DueChange]) -> Result<usize, RedisError> {
        let mut replaced = 0;
        for chunk in changes.chunks(REQUEST_ENTRIES) {
            let mut command = redis::cmd("EVAL");
            command.arg(REPLACE_SCRIPT).arg(1).arg(self.keys.schedule());
            for change in chunk {
                command.arg(change.id.to_string()).arg(change.seen.unwrap_or(f64::NAN).to_string());
                command.arg(change.at.map_or_else(String::new, |at| score(at).to_string()));
            }
            replaced += command.query_async::<usize>(&mut self.connection()).await?;
        }
        Ok(replaced)
    }

    /// Writes the due times of jobs that were just changed in PostgreSQL, and then compares them with `stored`, which
    /// reads the due times of these jobs again. Two servers may change a job at the same time and write their entries in
    /// the other order.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis or `stored` fails.
    pub async fn note_changed<E: From<RedisError>>(
        &self,
        jobs: &[(JobId, Option<DateTime<Utc>>)],
        stored: impl AsyncFnOnce(&[Uuid]) -> Result<Vec<(JobId, DateTime<Utc>)>, E>,
    ) -> Result<(), E> {
        self.note_due(jobs).await?;
        let ids: Vec<Uuid> = jobs.iter().map(|(id, _)| id.0).collect();
        let stored: HashMap<JobId, DateTime<Utc>> = stored(&ids).await?.into_iter().collect();
        let outdated: Vec<DueChange> = jobs
            .iter()
            .filter(|(id, at)| stored.get(id) != at.as_ref())
            .map(|(id, at)| DueChange { id: *id, seen: at.map(score), at: stored.get(id).copied() })
            .collect();
        self.replace_due(&outdated).await?;
        Ok(())
    }

    /// Returns the entries with a due time up to `upto`, at most `limit`, with their scores.
    pub async fn due_entries(&self, upto: DateTime<Utc>, limit: isize) -> Result<Vec<(String, f64)>, RedisError> {
        self.connection().zrangebyscore_limit_withscores(self.keys.schedule(), "-inf", score(upto), 0, limit).await
    }

    /// Removes members, regardless of their score.
    pub async fn remove_members(&self, ids: &[String]) -> Result<(), RedisError> {
        if ids.is_empty() {
            return Ok(());
        }
        self.connection().zrem(self.keys.schedule(), ids).await
    }

    /// Returns the scores of at most [`REQUEST_ENTRIES`] jobs, in their order.
    pub async fn scores(&self, ids: &[JobId]) -> Result<Vec<Option<f64>>, RedisError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let members: Vec<String> = ids.iter().map(ToString::to_string).collect();
        self.connection().zscore_multiple(self.keys.schedule(), &members).await
    }

    /// Returns the number of entries.
    pub async fn due_count(&self) -> Result<usize, RedisError> {
        self.connection().zcard(self.keys.schedule()).await
    }

    /// Returns a part of all entries with their scores, and the cursor of the next part; 0 begins and ends. An entry that
    /// is there the whole time is returned at least once.
    pub async fn scan_due(&self, cursor: u64) -> Result<(u64, Vec<(String, f64)>), RedisError> {
        let mut command = redis::cmd("ZSCAN");
        command.arg(self.keys.schedule()).arg(cursor).arg("COUNT").arg(REQUEST_ENTRIES);
        command.query_async(&mut self.connection()).await
    }

    /// Returns true if a score stands for the instant `at`.
    #[must_use]
    pub fn matches_score(found: f64, at: DateTime<Utc>) -> bool {
        (found - score(at)).abs() < 2e-6
    }
}
