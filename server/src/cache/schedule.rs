//! The due index: a sorted set of jobs by due time. The dispatcher sleeps until its first entry.

use chrono::{DateTime, Utc};
use milvaion_protocol::id::JobId;
use redis::{AsyncCommands, RedisError};

use super::Cache;

/// Returns the score of a due time: seconds with a fraction. A double represents this century's microseconds with an
/// error below one microsecond.
fn score(at: DateTime<Utc>) -> f64 {
    at.timestamp_micros() as f64 / 1e6
}

/// Returns the key that marks the index as complete. It is lost together with the index.
fn complete_mark(key: &str) -> String {
    format!("{key}:complete")
}

impl Cache {
    /// Writes the due times of jobs. `None` removes a job.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis fails.
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
    ///
    /// # Errors
    ///
    /// Returns an error if Redis fails.
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
    ///
    /// # Errors
    ///
    /// Returns an error if Redis fails.
    pub async fn mark_complete(&self) -> Result<(), RedisError> {
        self.connection().set(complete_mark(&self.keys.schedule()), 1).await
    }

    /// Returns the members with a due time up to `upto`, at most `limit`.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis fails.
    pub async fn due_members(&self, upto: DateTime<Utc>, limit: isize) -> Result<Vec<String>, RedisError> {
        self.connection().zrangebyscore_limit(self.keys.schedule(), "-inf", score(upto), 0, limit).await
    }

    /// Removes members, regardless of their score.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis fails.
    pub async fn remove_members(&self, ids: &[String]) -> Result<(), RedisError> {
        if ids.is_empty() {
            return Ok(());
        }
        self.connection().zrem(self.keys.schedule(), ids).await
    }

    /// Returns every member with its score, for the rebuild.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis fails.
    pub async fn scheduled(&self) -> Result<Vec<(String, f64)>, RedisError> {
        self.connection().zrange_withscores(self.keys.schedule(), 0, -1).await
    }

    /// Returns true if a score stands for the instant `at`.
    #[must_use]
    pub fn matches_score(found: f64, at: DateTime<Utc>) -> bool {
        (found - score(at)).abs() < 2e-6
    }
}
