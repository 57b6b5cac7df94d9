//! Daily partitions, made ahead.

use chrono::{DateTime, Duration, Utc};

use super::{Result, Store};

/// How many days ahead partitions are made. A server that is down longer than that makes them when it starts.
const DAYS_AHEAD: i64 = 7;

impl Store {
    /// Makes the partitions from yesterday to a week ahead that are missing. Returns how many were made.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn ensure_partitions(&self, now: DateTime<Utc>) -> Result<i32> {
        let from = (now - Duration::days(1)).date_naive();
        let upto = (now + Duration::days(DAYS_AHEAD)).date_naive();
        Ok(sqlx::query_scalar!(r#"SELECT ensure_partitions($1, $2) AS "made!""#, from, upto)
            .fetch_one(self.pool())
            .await?)
    }

    /// Deletes counts older than `before`.
    ///
    /// # Errors
    ///
    /// When the database does not answer.
    pub async fn forget_stats(&self, before: DateTime<Utc>) -> Result<u64> {
        Ok(sqlx::query!("DELETE FROM stats_minute WHERE minute < $1", before)
            .execute(self.pool())
            .await?
            .rows_affected())
    }
}
