//! Messages that a server was handling when its process ended.

use chrono::{DateTime, Duration, Utc};
use uuid::Uuid;

use super::{Result, Store};

/// The time after which an attempt no longer counts: its process has ended for another reason.
pub const REDELIVERY_MEMORY: Duration = Duration::hours(1);

impl Store {
    /// Returns true if an attempt at one of these messages has begun and not ended, in the last hour.
    pub async fn has_redelivery(&self, hashes: &[Vec<u8>], now: DateTime<Utc>) -> Result<bool> {
        let found = sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT FROM redeliveries WHERE message_hash = ANY($1) AND last_at > $2) AS "exists!""#,
            hashes,
            now - REDELIVERY_MEMORY
        )
        .fetch_one(self.pool())
        .await?;
        Ok(found)
    }

    /// Counts the begin of an attempt at each of these messages by a process. Returns the largest number of processes
    /// that have begun and not ended an attempt at one of them, this one included.
    pub async fn begin_redeliveries(&self, hashes: &[Vec<u8>], process: Uuid, now: DateTime<Utc>) -> Result<i32> {
        // In the order of the hashes, because two servers may count the same messages.
        let processes = sqlx::query_scalar!(
            r#"WITH counted AS (
                   INSERT INTO redeliveries AS r (message_hash, processes, last_process, last_at)
                   SELECT DISTINCT hash, 1, $4::uuid, $2::timestamptz FROM unnest($1::bytea[]) hash ORDER BY hash
                   ON CONFLICT (message_hash) DO UPDATE
                      SET processes = CASE WHEN r.last_at <= $3::timestamptz THEN 1
                                           WHEN r.last_process = $4 THEN r.processes
                                           ELSE r.processes + 1 END,
                          last_process = $4, last_at = $2
                   RETURNING processes
               ) SELECT coalesce(max(processes), 0) AS "processes!" FROM counted"#,
            hashes,
            now,
            now - REDELIVERY_MEMORY,
            process
        )
        .fetch_one(self.pool())
        .await?;
        Ok(processes)
    }

    /// Deletes the counts of messages that were handled or given back.
    pub async fn end_redeliveries(&self, hashes: &[Vec<u8>]) -> Result<()> {
        sqlx::query!(
            "DELETE FROM redeliveries
              WHERE message_hash = ANY(ARRAY(SELECT message_hash FROM redeliveries WHERE message_hash = ANY($1)
                                              ORDER BY message_hash FOR UPDATE))",
            hashes
        )
        .execute(self.pool())
        .await?;
        Ok(())
    }
}
