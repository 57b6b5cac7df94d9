//! Log lines of occurrences.

use chrono::{DateTime, Utc};
use milvaion_protocol::{
    id::OccurrenceId,
    message::{AttemptLogBounds, LogLevel, LogLine, MAX_ATTEMPT_LINES},
};
use serde_json::Value;
use uuid::Uuid;

use super::{Result, Store, occurrences::filed_since, partitions::with_partitions};
use crate::domain::log_trim::gap_text;

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
    /// Appends log lines, dated `now`. Lines of unknown occurrences are left out. A line that was appended before is
    /// appended again; readers take one row for each number. Returns the number of appended lines.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then no line was appended.
    pub async fn append_logs(&self, lines: &[(OccurrenceId, LogLine)], now: DateTime<Utc>) -> Result<u64> {
        with_partitions!(self, now, self.try_append_logs(lines, now))
    }

    async fn try_append_logs(&self, lines: &[(OccurrenceId, LogLine)], now: DateTime<Utc>) -> Result<u64> {
        let ids: Vec<Uuid> = lines.iter().map(|(id, _)| id.0).collect();
        let mut known = ids.clone();
        known.sort_unstable();
        known.dedup();
        let seqs: Vec<i64> = lines.iter().map(|(_, line)| line.seq).collect();
        let ats: Vec<DateTime<Utc>> = lines.iter().map(|(_, line)| line.at).collect();
        let levels: Vec<i16> = lines.iter().map(|(_, line)| line.level.code()).collect();
        let messages: Vec<&str> = lines.iter().map(|(_, line)| line.message.as_str()).collect();
        let data: Vec<Option<&Value>> = lines.iter().map(|(_, line)| line.data.as_ref()).collect();
        let done = sqlx::query!(
            "WITH known AS (
                SELECT k.id FROM unnest($1::uuid[], $2::timestamptz[]) AS k (id, filed_since)
                 CROSS JOIN LATERAL (
                    SELECT 1 FROM occurrences o WHERE o.id = k.id AND o.filed_at >= k.filed_since LIMIT 1) o
             )
             INSERT INTO occurrence_logs (occurrence_id, arrived_at, seq, at, level, message, data)
             SELECT l.id, $9, l.seq, l.at, l.level, l.message, l.data
               FROM unnest($3::uuid[], $4::bigint[], $5::timestamptz[], $6::smallint[], $7::text[], $8::jsonb[])
                 AS l (id, seq, at, level, message, data)
              WHERE l.id IN (SELECT id FROM known)",
            &known,
            &known.iter().map(|id| filed_since(OccurrenceId(*id))).collect::<Vec<_>>(),
            &ids,
            &seqs,
            &ats,
            &levels,
            &messages as &[&str],
            &data as &[Option<&Value>],
            now
        )
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected())
    }

    /// Trims the log of an attempt, whose lines begin at `first_seq`, if it exceeds its bounds: keeps the first and the last
    /// lines, and replaces those between them by one line with the number of the first of them. It says how many lines are
    /// missing by their numbers, including those that the worker dropped.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails; then no line was deleted.
    pub async fn trim_log(
        &self,
        id: OccurrenceId,
        first_seq: i64,
        bounds: AttemptLogBounds,
        now: DateTime<Utc>,
    ) -> Result<()> {
        with_partitions!(self, now, self.try_trim_log(id, first_seq, bounds, now))
    }

    async fn try_trim_log(
        &self,
        id: OccurrenceId,
        first_seq: i64,
        bounds: AttemptLogBounds,
        now: DateTime<Utc>,
    ) -> Result<()> {
        let (head, tail, text) = (bounds.head(), bounds.tail(), gap_text(bounds));
        let mut tx = self.pool().begin().await?;
        // Another server may trim the same log for another batch. A separate statement, so that the next one sees its changes.
        let lock = format!("milvaion.log:{id}:{first_seq}");
        sqlx::query!("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", lock.as_str()).execute(&mut tx).await?;
        // The field `linesNotKept` marks the line that an earlier trim left. The first lines end before it, even if it would
        // fit in their bounds; otherwise each trim would leave such a line.
        sqlx::query!(
            "WITH stored AS (
                SELECT seq, min(at) AS at, max(octet_length(message) + coalesce(octet_length(data::text), 0)) AS bytes,
                       bool_or(data -> 'linesNotKept' IS NOT NULL) AS is_gap
                  FROM occurrence_logs
                 WHERE occurrence_id = $1 AND arrived_at >= $2 AND seq >= $3::bigint AND seq <= $4::bigint
                 GROUP BY seq
             ), counted AS (
                SELECT seq, at, row_number() OVER w AS line, sum(bytes) OVER w AS bytes_to, bytes,
                       count(*) OVER () AS lines, sum(bytes) OVER () AS all_bytes, bool_or(is_gap) OVER w AS is_after_gap
                  FROM stored WINDOW w AS (ORDER BY seq)
             ), placed AS (
                SELECT seq, at,
                       line <= $5::bigint AND bytes_to <= $6::bigint AND NOT is_after_gap AS is_head,
                       lines - line < $7::bigint AND all_bytes - bytes_to + bytes <= $8::bigint AS is_tail
                  FROM counted WHERE lines > $5::bigint + $7::bigint + 1 OR all_bytes > $6::bigint + $8::bigint
             ), gap AS (
                SELECT coalesce(max(seq) FILTER (WHERE is_head) + 1, $3::bigint) AS first,
                       coalesce(min(seq) FILTER (WHERE is_tail), max(seq) + 1) AS next,
                       coalesce(min(at) FILTER (WHERE is_tail), max(at)) AS at,
                       max(seq) = $4::bigint AS has_used_all_numbers
                  FROM placed HAVING count(*) > 0
             ), deleted AS (
                DELETE FROM occurrence_logs l USING gap g
                 WHERE l.occurrence_id = $1 AND l.arrived_at >= $2 AND l.seq >= g.first AND l.seq < g.next
             )
             INSERT INTO occurrence_logs (occurrence_id, arrived_at, seq, at, level, message, data)
             SELECT $1, $9, g.first, g.at, $10::smallint,
                    CASE WHEN g.has_used_all_numbers THEN 'at least ' ELSE '' END
                    || (g.next - g.first) || $11::text,
                    jsonb_build_object('linesNotKept', g.next - g.first)
               FROM gap g",
            id.0,
            filed_since(id),
            first_seq,
            first_seq.saturating_add(MAX_ATTEMPT_LINES - 1),
            head.lines,
            head.bytes,
            tail.lines,
            tail.bytes,
            now,
            LogLevel::Warn.code(),
            text.as_str()
        )
        .execute(&mut tx)
        .await?;
        tx.commit().await?;
        Ok(())
    }

    /// Returns the last `limit` lines before `before`, oldest first.
    pub async fn log_before(&self, id: OccurrenceId, before: i64, limit: i64) -> Result<Vec<LogLine>> {
        self.newest_log_lines(id, i64::MIN, before, limit).await
    }

    /// Returns the last `limit` lines between `after` and `before`, both excluded, oldest first.
    pub async fn newest_log_lines(
        &self,
        id: OccurrenceId,
        after: i64,
        before: i64,
        limit: i64,
    ) -> Result<Vec<LogLine>> {
        let mut rows = sqlx::query_as!(
            LogLineRow,
            "SELECT DISTINCT ON (seq) seq, at, level, message, data FROM occurrence_logs
              WHERE occurrence_id = $1 AND arrived_at >= $2 AND seq > $3 AND seq < $4
              ORDER BY seq DESC LIMIT $5",
            id.0,
            filed_since(id),
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
    pub async fn oldest_log_lines(
        &self,
        id: OccurrenceId,
        after: i64,
        before: i64,
        limit: i64,
    ) -> Result<Vec<LogLine>> {
        let rows = sqlx::query_as!(
            LogLineRow,
            "SELECT DISTINCT ON (seq) seq, at, level, message, data FROM occurrence_logs
              WHERE occurrence_id = $1 AND arrived_at >= $2 AND seq > $3 AND seq < $4
              ORDER BY seq LIMIT $5",
            id.0,
            filed_since(id),
            after,
            before,
            limit
        )
        .fetch_all(self.pool())
        .await?;
        Ok(rows.into_iter().map(LogLine::from).collect())
    }

    /// Returns the number of lines between `after` and `before`, both excluded.
    pub async fn count_log_lines(&self, id: OccurrenceId, after: i64, before: i64) -> Result<i64> {
        Ok(sqlx::query_scalar!(
            r#"SELECT count(DISTINCT seq) AS "count!" FROM occurrence_logs
                WHERE occurrence_id = $1 AND arrived_at >= $2 AND seq > $3 AND seq < $4"#,
            id.0,
            filed_since(id),
            after,
            before
        )
        .fetch_one(self.pool())
        .await?)
    }
}
