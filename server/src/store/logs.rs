//! Log lines of occurrences.

use chrono::{DateTime, Utc};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{LogLevel, LogLine},
};
use serde_json::Value;
use uuid::Uuid;

use super::{Result, Store};

/// A stored log line.
#[derive(Debug)]
struct LogLineRow {
    seq: i64,
    at: DateTime<Utc>,
    level: i16,
    message: String,
    data: Option<Value>,
}

impl From<LogLineRow> for LogLine {
    fn from(row: LogLineRow) -> Self {
        let LogLineRow { seq, at, level, message, data } = row;
        Self { seq, at, level: LogLevel::from_code(level), message, data }
    }
}

impl Store {
    /// Appends log lines. Lines that are stored already, and lines of unknown occurrences, are left out. Returns the
    /// number of new lines.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then no line was appended.
    pub async fn append_logs(&self, lines: &[(OccurrenceId, LogLine)]) -> Result<u64> {
        let ids: Vec<Uuid> = lines.iter().map(|(id, _)| id.0).collect();
        let created: Vec<DateTime<Utc>> = lines.iter().map(|(id, _)| id.created_at()).collect();
        let seqs: Vec<i64> = lines.iter().map(|(_, line)| line.seq).collect();
        let ats: Vec<DateTime<Utc>> = lines.iter().map(|(_, line)| line.at).collect();
        let levels: Vec<i16> = lines.iter().map(|(_, line)| line.level.code()).collect();
        let messages: Vec<&str> = lines.iter().map(|(_, line)| line.message.as_str()).collect();
        let data: Vec<Option<&Value>> = lines.iter().map(|(_, line)| line.data.as_ref()).collect();
        let done = sqlx::query!(
            "INSERT INTO occurrence_logs (occurrence_id, created_at, seq, at, level, message, data)
             SELECT l.* FROM unnest($1::uuid[], $2::timestamptz[], $3::bigint[], $4::timestamptz[], $5::smallint[],
                                    $6::text[], $7::jsonb[]) AS l (id, created_at, seq, at, level, message, data)
              -- Also excludes lines whose partition was dropped or never existed.
              WHERE EXISTS (SELECT 1 FROM occurrences o WHERE o.id = l.id AND o.created_at = l.created_at)
             ON CONFLICT DO NOTHING",
            &ids,
            &created,
            &seqs,
            &ats,
            &levels,
            &messages as &[&str],
            &data as &[Option<&Value>]
        )
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected())
    }

    /// Returns the last `limit` lines before `before`, oldest first.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn log_before(&self, id: OccurrenceId, before: i64, limit: i64) -> Result<Vec<LogLine>> {
        self.newest_log_lines(id, i64::MIN, before, limit).await
    }

    /// Returns the last `limit` lines between `after` and `before`, both excluded, oldest first.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn newest_log_lines(
        &self,
        id: OccurrenceId,
        after: i64,
        before: i64,
        limit: i64,
    ) -> Result<Vec<LogLine>> {
        let mut rows = sqlx::query_as!(
            LogLineRow,
            "SELECT seq, at, level, message, data FROM occurrence_logs
              WHERE occurrence_id = $1 AND created_at = $2 AND seq > $3 AND seq < $4
              ORDER BY seq DESC LIMIT $5",
            id.0,
            id.created_at(),
            after,
            before,
            limit
        )
        .fetch_all(self.pool())
        .await?;
        rows.reverse();
        Ok(rows.into_iter().map(LogLine::from).collect())
    }

    /// Returns the first `limit` lines between `after` and `before`, both excluded, oldest first.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn oldest_log_lines(
        &self,
        id: OccurrenceId,
        after: i64,
        before: i64,
        limit: i64,
    ) -> Result<Vec<LogLine>> {
        let rows = sqlx::query_as!(
            LogLineRow,
            "SELECT seq, at, level, message, data FROM occurrence_logs
              WHERE occurrence_id = $1 AND created_at = $2 AND seq > $3 AND seq < $4
              ORDER BY seq LIMIT $5",
            id.0,
            id.created_at(),
            after,
            before,
            limit
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(LogLine::from).collect())
    }

    /// Returns the number of lines between `after` and `before`, both excluded.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn count_log_lines(&self, id: OccurrenceId, after: i64, before: i64) -> Result<i64> {
        Ok(sqlx::query_scalar!(
            r#"SELECT count(*) AS "count!" FROM occurrence_logs
                WHERE occurrence_id = $1 AND created_at = $2 AND seq > $3 AND seq < $4"#,
            id.0,
            id.created_at(),
            after,
            before
        )
        .fetch_one(self.pool())
        .await?)
    }
}
