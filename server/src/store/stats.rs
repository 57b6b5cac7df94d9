//! The counts of reached statuses by minute.
//!
//! Every statement that changes statuses appends what it counted to `stats_deltas`, because concurrent updates of one row
//! per minute would wait for each other. The deltas are folded into `stats_folded` later. The view `stats_minute` has both,
//! so that a reader misses nothing.
//!
//! No page shows minutes after a day, but the sums of a week would read seventy thousand of them for every page that is
//! open. Counts older than that are therefore merged by quarter of an hour, which is the finest bar of a day.

use chrono::{DateTime, Utc};

use super::{Result, Store, retention::DELETE_BATCH_SIZE};

/// The most deltas that one statement folds.
pub const FOLD_BATCH: i64 = 20_000;

impl Store {
    /// Folds deltas into the counts by minute, and returns the number of deltas. More are left if it is
    /// 20,000.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; nothing was folded then.
    pub async fn fold_stats(&self) -> Result<i64> {
        // Another server may fold at the same time while no server leads; each takes other rows.
        let folded = sqlx::query_scalar!(
            r#"WITH taken AS (
                   DELETE FROM stats_deltas
                    WHERE ctid = ANY (ARRAY (SELECT ctid FROM stats_deltas LIMIT $1 FOR UPDATE SKIP LOCKED))
                   RETURNING minute, status, count, duration_ms
               ),
               folded AS (
                   INSERT INTO stats_folded AS s (minute, status, count, duration_ms)
                   SELECT minute, status, sum(count), sum(duration_ms) FROM taken
                    GROUP BY minute, status ORDER BY minute, status
                   ON CONFLICT (minute, status) DO UPDATE
                      SET count = s.count + excluded.count, duration_ms = s.duration_ms + excluded.duration_ms
               )
               SELECT count(*) AS "n!" FROM taken"#,
            FOLD_BATCH
        )
        .fetch_one(self.pool())
        .await?;
        Ok(folded)
    }

    /// Merges the counts of minutes before an instant by quarter of an hour, at most [`DELETE_BATCH_SIZE`]. Returns the
    /// number of merged rows.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; nothing was merged then.
    pub async fn merge_old_stats(&self, before: DateTime<Utc>) -> Result<u64> {
        let merged = sqlx::query_scalar!(
            r#"WITH taken AS (
                   DELETE FROM stats_folded
                    WHERE (minute, status) IN (SELECT minute, status FROM stats_folded
                                                WHERE minute < $1 AND extract(minute FROM minute)::int % 15 <> 0
                                                ORDER BY minute, status LIMIT $2 FOR UPDATE SKIP LOCKED)
                   RETURNING minute, status, count, duration_ms
               ),
               merged AS (
                   INSERT INTO stats_folded AS s (minute, status, count, duration_ms)
                   SELECT date_bin('15 minutes', minute, '2000-01-01 00:00:00+00'::timestamptz) AS quarter, status,
                          sum(count), sum(duration_ms)
                     FROM taken GROUP BY quarter, status ORDER BY quarter, status
                   ON CONFLICT (minute, status) DO UPDATE
                      SET count = s.count + excluded.count, duration_ms = s.duration_ms + excluded.duration_ms
               )
               SELECT count(*) AS "n!" FROM taken"#,
            before,
            DELETE_BATCH_SIZE
        )
        .fetch_one(self.pool())
        .await?;
        Ok(merged.unsigned_abs())
    }
}
