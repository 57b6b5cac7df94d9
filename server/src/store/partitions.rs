//! Daily and monthly partitions, which are created ahead of time and dropped after their retention.

use chrono::{DateTime, Days, Duration, Months, NaiveDate, NaiveTime, Utc};
use sqlx::{AssertSqlSafe, Executor};

use super::{Result, Store};

/// Number of days for which partitions are created ahead. A server that was down for longer creates them at start.
const PARTITION_DAYS_AHEAD: i64 = 7;
/// Number of days for which the monthly partitions of the audit log are created ahead.
const AUDIT_DAYS_AHEAD: i64 = 62;
/// Minimum size, in blocks, of a partition to analyze: below it a full scan for one row is cheap.
const MIN_ANALYZE_BLOCKS: i64 = 32;
/// Growth factor since the last ANALYZE from which a partition is analyzed again.
const ANALYZE_GROWTH_FACTOR: i64 = 4;
/// Maximum number of rows that one statement deletes, so that no statement holds its locks for long.
const DELETE_BATCH_SIZE: i64 = 1_000;
/// Maximum number of such statements in one call; the rest follows in the next call.
const MAX_DELETE_BATCHES: usize = 500;

/// The tables with daily partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DailyTable {
    /// The occurrences.
    Occurrences,
    /// The log lines of occurrences.
    Logs,
}

impl DailyTable {
    const fn table(self) -> &'static str {
        match self {
            Self::Occurrences => "occurrences",
            Self::Logs => "occurrence_logs",
        }
    }

    /// Returns the name of a day's partition.
    #[must_use]
    pub fn partition(self, day: NaiveDate) -> String {
        format!("{}_{}", self.table(), day.format("%Y%m%d"))
    }
}

/// The result of dropping a partition whose retention has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionDropOutcome {
    /// It was dropped.
    Removed,
    /// It was kept, because an occurrence in it is still open.
    HasOpenRuns,
    /// It was kept, because a reader holds a lock; the next tick tries again.
    Locked,
}

impl Store {
    /// Creates missing partitions: of each day from yesterday to seven days ahead, and of each month of the audit log up
    /// to two months ahead. Returns the number created.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn ensure_partitions(&self, now: DateTime<Utc>) -> Result<i32> {
        let from = (now - Duration::days(1)).date_naive();
        let upto = (now + Duration::days(PARTITION_DAYS_AHEAD)).date_naive();
        let months = (now + Duration::days(AUDIT_DAYS_AHEAD)).date_naive();
        Ok(sqlx::query_scalar!(
            r#"SELECT ensure_partitions($1, $2) + ensure_audit_partitions($1, $3) AS "made!""#,
            from,
            upto,
            months
        )
        .fetch_one(self.pool())
        .await?)
    }

    /// Returns the days of a table's partitions that ended at or before `before`, oldest first.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn partition_days_before(&self, daily: DailyTable, before: DateTime<Utc>) -> Result<Vec<NaiveDate>> {
        let names = self.partition_names(daily.table()).await?;
        let day = |name: String| {
            let digits = name.strip_prefix(daily.table())?.strip_prefix('_')?;
            NaiveDate::parse_from_str(digits, "%Y%m%d").ok()
        };
        // A day ends at the midnight of the next day.
        Ok(names.into_iter().filter_map(day).filter(|day| midnight(*day + Days::new(1)) <= before).collect())
    }

    /// Drops one day's partition, unless an occurrence of that day is still open. Waits at most two seconds for readers
    /// of the table, so that other statements do not queue behind this one for long.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn drop_partition(&self, daily: DailyTable, day: NaiveDate) -> Result<PartitionDropOutcome> {
        let mut tx = self.pool().begin().await?;
        tx.execute("SET LOCAL lock_timeout = '2s'").await?;
        let has_open = sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT 1 FROM occurrences WHERE created_at >= $1 AND created_at < $2 AND status IN (0, 1, 6))
                      AS "open!""#,
            midnight(day),
            midnight(day + Days::new(1))
        )
        .fetch_one(&mut *tx)
        .await?;
        if has_open {
            return Ok(PartitionDropOutcome::HasOpenRuns);
        }
        // The name is built from a date, never from user input.
        let (table, partition) = (daily.table(), daily.partition(day));
        for statement in
            [format!("ALTER TABLE {table} DETACH PARTITION {partition}"), format!("DROP TABLE {partition}")]
        {
            if let Err(error) = tx.execute(AssertSqlSafe(statement)).await {
                return if is_lock_timeout(&error) { Ok(PartitionDropOutcome::Locked) } else { Err(error.into()) };
            }
        }
        tx.commit().await?;
        Ok(PartitionDropOutcome::Removed)
    }

    /// Drops the months of the audit log that ended at or before `before`. Waits at most two seconds for readers of each.
    /// Returns the name of each partition with the outcome.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn drop_audit_months(&self, before: DateTime<Utc>) -> Result<Vec<(String, PartitionDropOutcome)>> {
        let mut outcomes = Vec::new();
        for partition in self.partition_names("audit_log").await? {
            let month = partition.strip_prefix("audit_log_").map(|digits| format!("{digits}01"));
            let first = month.and_then(|day| NaiveDate::parse_from_str(&day, "%Y%m%d").ok());
            // A month ends at the midnight of the first day of the next month.
            let Some(end) = first.and_then(|first| first.checked_add_months(Months::new(1))) else { continue };
            if midnight(end) > before {
                continue;
            }
            let mut tx = self.pool().begin().await?;
            tx.execute("SET LOCAL lock_timeout = '2s'").await?;
            // The name is built from a date, never from user input.
            let dropped = tx.execute(AssertSqlSafe(format!("DROP TABLE {partition}"))).await;
            let outcome = match dropped {
                Ok(_) => {
                    tx.commit().await?;
                    PartitionDropOutcome::Removed
                }
                Err(error) if is_lock_timeout(&error) => PartitionDropOutcome::Locked,
                Err(error) => return Err(error.into()),
            };
            outcomes.push((partition, outcome));
        }
        Ok(outcomes)
    }

    /// Returns the names of a table's partitions, in the order of their dates.
    async fn partition_names(&self, table: &str) -> Result<Vec<String>> {
        Ok(sqlx::query_scalar!(
            r#"SELECT c.relname AS "name!" FROM pg_inherits i
                 JOIN pg_class c ON c.oid = i.inhrelid
                 JOIN pg_class p ON p.oid = i.inhparent
                WHERE p.relname = $1 AND p.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
                ORDER BY c.relname"#,
            table
        )
        .fetch_all(self.pool())
        .await?)
    }

    /// Runs ANALYZE on the partitions of a day and of the day before that have grown to several times their size at the
    /// last ANALYZE, so that cached plans are replanned. Returns their names.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn analyze_grown_partitions(&self, day: NaiveDate) -> Result<Vec<String>> {
        let days: Vec<String> = [DailyTable::Occurrences, DailyTable::Logs]
            .iter()
            .flat_map(|daily| [day, day - Days::new(1)].map(|day| daily.partition(day)))
            .collect();
        let grown = sqlx::query_scalar!(
            r#"SELECT c.relname AS "name!" FROM pg_class c
                WHERE c.relname = ANY($1::text[]) AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
                  AND pg_relation_size(c.oid) / current_setting('block_size')::bigint >= greatest($2::bigint, $3::bigint * c.relpages)"#,
            &days,
            MIN_ANALYZE_BLOCKS,
            ANALYZE_GROWTH_FACTOR
        )
        .fetch_all(self.pool())
        .await?;
        for partition in &grown {
            // The name is built from a date, never from user input.
            self.pool().execute(AssertSqlSafe(format!("ANALYZE {partition}"))).await?;
        }
        Ok(grown)
    }

    /// Deletes failures older than `before`, a thousand at a time. Returns their number.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn delete_old_failures(&self, before: DateTime<Utc>) -> Result<u64> {
        let mut total = 0;
        for _ in 0..MAX_DELETE_BATCHES {
            let deleted = sqlx::query!(
                "DELETE FROM failed_occurrences WHERE occurrence_id IN
                    (SELECT occurrence_id FROM failed_occurrences WHERE failed_at < $1 ORDER BY failed_at LIMIT $2)",
                before,
                DELETE_BATCH_SIZE
            )
            .execute(self.pool())
            .await?
            .rows_affected();
            total += deleted;
            if deleted < DELETE_BATCH_SIZE.unsigned_abs() {
                break;
            }
        }
        Ok(total)
    }

    /// Deletes dead letters older than `before`, a thousand at a time. Returns their number.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn delete_old_dead_letters(&self, before: DateTime<Utc>) -> Result<u64> {
        let mut total = 0;
        for _ in 0..MAX_DELETE_BATCHES {
            let deleted = sqlx::query!(
                "DELETE FROM dead_letters WHERE id IN
                    (SELECT id FROM dead_letters WHERE received_at < $1 ORDER BY received_at LIMIT $2)",
                before,
                DELETE_BATCH_SIZE
            )
            .execute(self.pool())
            .await?
            .rows_affected();
            total += deleted;
            if deleted < DELETE_BATCH_SIZE.unsigned_abs() {
                break;
            }
        }
        Ok(total)
    }

    /// Deletes slots of occurrences that have ended or no longer exist. A correct server leaves none, because each
    /// statement that ends an occurrence deletes its slot. Returns their number.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails.
    pub async fn delete_stale_slots(&self) -> Result<u64> {
        Ok(sqlx::query!(
            "DELETE FROM slots s WHERE NOT EXISTS
                (SELECT 1 FROM occurrences o
                  WHERE o.id = s.occurrence_id AND o.created_at = s.created_at AND o.status IN (0, 1, 6))"
        )
        .execute(self.pool())
        .await?
        .rows_affected())
    }
}

/// Returns true if a statement failed because a lock was not granted in time.
fn is_lock_timeout(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|error| error.code()).is_some_and(|code| code == "55P03")
}

fn midnight(day: NaiveDate) -> DateTime<Utc> {
    day.and_time(NaiveTime::MIN).and_utc()
}
