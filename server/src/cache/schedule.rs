//! The sorted set of jobs by their next fire time: what the dispatcher sleeps on.

use chrono::{DateTime, Utc};
use milvaion_protocol::id::JobId;
use redis::{AsyncCommands, RedisError};

use super::Cache;

/// Seconds with a fraction. A double holds microseconds of this century exactly enough: the error is below one.
fn score(at: DateTime<Utc>) -> f64 {
    at.timestamp_micros() as f64 / 1e6
}

/// The key that stands beside a complete index and falls with it.
fn complete_mark(key: &str) -> String {
    format!("{key}:complete")
}

impl Cache {
    /// Notes when jobs are due; none takes a job out.
    ///
    /// # Errors
    ///
    /// When Redis does not answer.
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

    /// The earliest due instant, and whether the index can be believed: a Redis that was emptied or is new holds only
    /// what was noted since, and says so by lacking the mark that a rebuild leaves.
    ///
    /// # Errors
    ///
    /// When Redis does not answer.
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

    /// Leaves the mark that the index holds every job.
    ///
    /// # Errors
    ///
    /// When Redis does not answer.
    pub async fn mark_complete(&self) -> Result<(), RedisError> {
        self.connection().set(complete_mark(&self.keys.schedule()), 1).await
    }

    /// Members that the index says are due at `upto`, at most `limit`.
    ///
    /// # Errors
    ///
    /// When Redis does not answer.
    pub async fn due_members(&self, upto: DateTime<Utc>, limit: isize) -> Result<Vec<String>, RedisError> {
        self.connection().zrangebyscore_limit(self.keys.schedule(), "-inf", score(upto), 0, limit).await
    }

    /// Removes members, whatever their score.
    ///
    /// # Errors
    ///
    /// When Redis does not answer.
    pub async fn remove_members(&self, ids: &[String]) -> Result<(), RedisError> {
        if ids.is_empty() {
            return Ok(());
        }
        self.connection().zrem(self.keys.schedule(), ids).await
    }

    /// Every member, for the rebuild.
    ///
    /// # Errors
    ///
    /// When Redis does not answer.
    pub async fn scheduled(&self) -> Result<Vec<(String, f64)>, RedisError> {
        self.connection().zrange_withscores(self.keys.schedule(), 0, -1).await
    }

    /// Whether a score says the same as an instant.
    #[must_use]
    pub fn matches_score(found: f64, at: DateTime<Utc>) -> bool {
        (found - score(at)).abs() < 2e-6
    }
}
