//! Partitions, which are created ahead of time and dropped after their retention.
//!
//! Nothing here may make other statements wait. A partition is created by itself and then attached, and detached
//! concurrently before it is dropped; none of these steps waits for readers of the table, or lets others wait, for longer
//! than two seconds. There is no default partition, which would forbid both.
//!
//! Operators detach partitions too, to archive them. What they have detached is never dropped: the server marks a partition
//! by its comment before it detaches it, and drops a detached table only if it has the mark.
//!
//! The bounds are read from the catalogue, never from names or settings; `domain::partitions` says which are missing.

use std::time::Duration as StdDuration;

use chrono::{DateTime, Duration, Months, NaiveDate, NaiveTime, Utc};
use milvaion_protocol::id::OccurrenceId;
use sqlx::{AssertSqlSafe, Executor, PgConnection, PgExecutor};

use super::{Result, Store};
use crate::domain::partitions::{PartitionBounds, PartitionWidth, missing_partitions};

/// Number of days for which the monthly partitions of the audit log are created ahead.
const AUDIT_DAYS_AHEAD: i64 = 62;
/// Retention of the receipts of requested occurrences.
pub const RECEIPT_RETENTION: Duration = Duration::days(7);
/// The comment of a partition that the server has begun to detach. It holds no quotation mark.
pub const DROP_MARK: &str = "milvaion: expired, the server detaches and drops this partition";
/// The longest time that VACUUM may take on one table.
const VACUUM_LIMIT: StdDuration = StdDuration::from_secs(600);

/// Runs statements that insert rows dated `now`. If a partition is missing, because the clock was set forward, it is created
/// and the statements run once more. A macro, because the future of a generic function of this kind is not `Send`.
macro_rules! with_partitions {
    ($store:expr, $now:expr, $statements:expr) => {
        match $statements.await {
            Err(error) if error.is_missing_partition() => {
                $store.ensure_partitions($now).await?;
                $statements.await
            }
            done => done,
        }
    };
}
pub(super) use with_partitions;

/// The tables whose partitions follow a retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionedTable {
    /// The ended occurrences, by the time at which the end was recorded.
    History,
    /// The log lines of occurrences, by arrival.
    Logs,
    /// The long inputs of occurrences, by the creation of the occurrence.
    Inputs,
    /// The receipts of requested occurrences, by the creation of the occurrence.
    Receipts,
}

/// All of them.
pub const PARTITIONED_TABLES: [PartitionedTable; 4] =
    [PartitionedTable::History, PartitionedTable::Logs, PartitionedTable::Inputs, PartitionedTable::Receipts];

impl PartitionedTable {
    /// Returns the name of the table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::History => "history",
            Self::Logs => "occurrence_logs",
            Self::Inputs => "run_inputs",
            Self::Receipts => "receipts",
        }
    }

    /// Returns the name of the partition that begins on a day.
    #[must_use]
    pub fn partition(self, first_day: NaiveDate) -> String {
        format!("{}_{}", self.name(), first_day.format("%Y%m%d"))
    }
}

/// A partition in the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Partition {
    name: String,
    from: DateTime<Utc>,
    to: DateTime<Utc>,
    /// True if a detachment was interrupted.
    is_detaching: bool,
    /// True if the server began to detach it, and not an operator.
    is_marked: bool,
}

/// The result of dropping a partition whose retention has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionDropOutcome {
    /// It was dropped.
    Removed,
    /// It was kept, because an occurrence that is still kept needs a row of it.
    IsNeeded,
    /// It was kept, because a reader holds a lock; the next tick tries again.
    Locked,
}

/// The time between two looks for expired data from which on the time has jumped, and for which nothing is deleted then.
const JUMP: chrono::Duration = chrono::Duration::days(1);
/// The time by which the time must go back to undo a jump.
const BACK: chrono::Duration = chrono::Duration::hours(1);

impl Store {
    /// Records a look for expired data at `now`. Returns the end of the time in which nothing may be deleted, because the
    /// time has jumped since the look before.
    pub async fn note_maintenance(&self, now: DateTime<Utc>) -> Result<Option<DateTime<Utc>>> {
        let held_until = sqlx::query_scalar!(
            "INSERT INTO maintenance_state AS m (last_tick_at) VALUES ($1)
             ON CONFLICT (is_only) DO UPDATE
                SET held_until = CASE WHEN m.last_tick_at < $2 THEN $3
                                      WHEN m.last_tick_at > $4 THEN NULL
                                      ELSE m.held_until END,
                    last_tick_at = $1
             RETURNING held_until",
            now,
            now - JUMP,
            now + JUMP,
            now + BACK
        )
        .fetch_one(self.pool())
        .await?;
        Ok(held_until.filter(|until| *until > now))
    }

    /// Creates missing partitions: from yesterday to seven days ahead, and of each month of the audit log up to two months
    /// ahead. Returns the number created.
    pub async fn ensure_partitions(&self, now: DateTime<Utc>) -> Result<i32> {
        let mut tx = self.pool().begin().await?;
        sqlx::query!("SELECT pg_advisory_xact_lock(hashtext('milvaion.ensure_partitions'))").execute(&mut tx).await?;
        let mut made = 0;
        for table in PARTITIONED_TABLES {
            let width = PartitionWidth::for_retention(self.retention_of(table));
            let existing: Vec<PartitionBounds> =
                partitions(&mut tx, table).await?.into_iter().map(|partition| (partition.from, partition.to)).collect();
            for (from, to) in missing_partitions(&existing, width, now) {
                // Names and bounds are built from dates, never from user input.
                let parent = table.name();
                let name = free_name(&mut tx, &table.partition(from.date_naive())).await?;
                let (from, to) = (from.to_rfc3339(), to.to_rfc3339());
                tx.execute(AssertSqlSafe(format!("CREATE TABLE {name} (LIKE {parent} INCLUDING ALL)"))).await?;
                let attach =
                    format!("ALTER TABLE {parent} ATTACH PARTITION {name} FOR VALUES FROM ('{from}') TO ('{to}')");
                tx.execute(AssertSqlSafe(attach)).await?;
                made += 1;
            }
        }
        tx.commit().await?;
        // The last one, because it waits for readers of the audit log. It is created two months ahead, so it can wait.
        let mut tx = self.pool().begin().await?;
        tx.execute("SET LOCAL lock_timeout = '2s'").await?;
        let audit = sqlx::query_scalar!(
            r#"SELECT ensure_audit_partitions($1, $2) AS "made!""#,
            (now - Duration::days(1)).date_naive(),
            (now + Duration::days(AUDIT_DAYS_AHEAD)).date_naive()
        )
        .fetch_one(&mut tx)
        .await;
        match audit {
            Ok(audit) => {
                tx.commit().await?;
                Ok(made + audit)
            }
            Err(error) if is_lock_timeout(&error) => Ok(made),
            Err(error) => Err(error.into()),
        }
    }

    /// Drops the partitions of a table that ended at or before `before`, oldest first, and what an interrupted drop has left.
    /// Returns the name of each with the outcome.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`](super::StoreError) if PostgreSQL fails, also if an operator has begun to detach a partition
    /// and not completed it, because PostgreSQL detaches one at a time.
    pub async fn drop_partitions(
        &self,
        table: PartitionedTable,
        before: DateTime<Utc>,
    ) -> Result<Vec<(String, PartitionDropOutcome)>> {
        let mut connection = self.pool().acquire().await?;
        let mut outcomes = Vec::new();
        let detached = connection.run(async |connection| detached_partitions(connection, table).await).await?;
        for name in detached {
            let dropped = connection.run(async |connection| drop_table(connection, &name).await).await;
            outcomes.push(drop_outcome(name, dropped)?);
        }
        let mut existing = connection.run(async |connection| partitions(connection, table).await).await?;
        existing.retain(|partition| if partition.is_detaching { partition.is_marked } else { partition.to <= before });
        // PostgreSQL detaches one partition at a time.
        existing.sort_by_key(|partition| (!partition.is_detaching, partition.from));
        for partition in existing {
            if table == PartitionedTable::Inputs && self.has_run_with_input(&partition).await? {
                outcomes.push((partition.name, PartitionDropOutcome::IsNeeded));
                continue;
            }
            let mut done = connection.run(async |connection| detach(connection, table, &partition).await).await;
            if done.is_ok() {
                done = connection.run(async |connection| drop_table(connection, &partition.name).await).await;
            }
            let outcome = drop_outcome(partition.name, done)?;
            let is_locked = outcome.1 == PartitionDropOutcome::Locked;
            outcomes.push(outcome);
            if is_locked {
                break;
            }
        }
        Ok(outcomes)
    }

    /// Returns true if an occurrence is still kept whose input is in this partition of the inputs.
    async fn has_run_with_input(&self, partition: &Partition) -> Result<bool> {
        let first_id = |instant| OccurrenceId::from_parts(instant, [0; 10]).0;
        Ok(sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT 1 FROM runs WHERE id >= $1 AND id < $2 AND has_long_input)
                   OR EXISTS (SELECT 1 FROM history WHERE id >= $1 AND id < $2 AND has_long_input) AS "is_kept!""#,
            first_id(partition.from),
            first_id(partition.to)
        )
        .fetch_one(self.pool())
        .await?)
    }

    /// Removes dead rows from the tables whose rows are short-lived, if one has more than `dead_rows` of them. Autovacuum
    /// looks at a table once a minute at best, and may be busy with a large one for hours. Returns the tables.
    pub async fn vacuum_busy_tables(&self, dead_rows: i64) -> Result<Vec<String>> {
        let busy = sqlx::query_scalar!(
            r#"SELECT relname AS "name!" FROM pg_stat_user_tables
                WHERE schemaname = current_schema() AND relname IN ('runs', 'job_due', 'stats_deltas') AND n_dead_tup > $1"#,
            dead_rows
        )
        .fetch_all(self.pool())
        .await?;
        for table in &busy {
            let mut connection = self.pool().acquire().await?;
            // The name is one of the three above.
            let vacuum = format!("VACUUM {table}");
            connection
                .run_within(VACUUM_LIMIT, async |connection| {
                    connection.execute("SET statement_timeout = 0").await?;
                    let done = connection.execute(AssertSqlSafe(vacuum)).await;
                    connection.execute("RESET statement_timeout").await?;
                    done
                })
                .await?;
        }
        Ok(busy)
    }

    /// Drops the months of the audit log that ended at or before `before`. Waits at most two seconds for readers of each.
    /// Returns the name of each partition with the outcome.
    pub async fn drop_audit_months(&self, before: DateTime<Utc>) -> Result<Vec<(String, PartitionDropOutcome)>> {
        let partitions = self.partition_names("audit_log").await?;
        let mut connection = self.pool().acquire().await?;
        let mut outcomes = Vec::new();
        for partition in partitions {
            let month = partition.strip_prefix("audit_log_").map(|digits| format!("{digits}01"));
            let first = month.and_then(|day| NaiveDate::parse_from_str(&day, "%Y%m%d").ok());
            // A month ends at the midnight of the first day of the next month.
            let Some(end) = first.and_then(|first| first.checked_add_months(Months::new(1))) else { continue };
            if midnight(end) <= before {
                let dropped = connection.run(async |connection| drop_table(connection, &partition).await).await;
                outcomes.push(drop_outcome(partition, dropped)?);
            }
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
}

/// Returns the partitions of a table, in the order of time.
async fn partitions(connection: impl PgExecutor<'_>, table: PartitionedTable) -> sqlx::Result<Vec<Partition>> {
    sqlx::query_as!(
        Partition,
        r#"SELECT name AS "name!", bounds[1]::timestamptz AS "from!", bounds[2]::timestamptz AS "to!",
                  is_detaching AS "is_detaching!", is_marked AS "is_marked!"
             FROM (SELECT c.relname AS name, i.inhdetachpending AS is_detaching,
                          coalesce(obj_description(c.oid, 'pg_class') = $2, false) AS is_marked,
                          regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''(.*)''\) TO \(''(.*)''\)') AS bounds
                     FROM pg_inherits i
                     JOIN pg_class c ON c.oid = i.inhrelid
                     JOIN pg_class p ON p.oid = i.inhparent
                    WHERE p.relname = $1
                      AND p.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())) c
            ORDER BY 2"#,
        table.name(),
        DROP_MARK
    )
    .fetch_all(connection)
    .await
}

/// Returns a name that no table has: `name`, or one that begins with it if an operator has detached the partition of that
/// name and kept it.
async fn free_name(connection: impl PgExecutor<'_>, name: &str) -> sqlx::Result<String> {
    sqlx::query_scalar!(
        r#"SELECT c.name AS "name!" FROM generate_series(1, 100) n
            CROSS JOIN LATERAL (SELECT $1::text || CASE WHEN n > 1 THEN '_' || n ELSE '' END AS name) c
            WHERE to_regclass(c.name) IS NULL ORDER BY n LIMIT 1"#,
        name
    )
    .fetch_one(connection)
    .await
}

/// Marks and detaches a partition. Waits at most two seconds for each lock.
async fn detach(connection: &mut PgConnection, table: PartitionedTable, partition: &Partition) -> sqlx::Result<()> {
    connection.execute("SET lock_timeout = '2s'").await?;
    let done = mark_and_detach(connection, table, partition).await;
    connection.execute("RESET lock_timeout").await?;
    done
}

/// Marks and detaches a partition, or completes its detachment. One that was not even begun leaves no mark, because an
/// operator may detach the partition next.
async fn mark_and_detach(
    connection: &mut PgConnection,
    table: PartitionedTable,
    partition: &Partition,
) -> sqlx::Result<()> {
    // The names come from the catalogue.
    let (parent, name) = (table.name(), &partition.name);
    if partition.is_detaching {
        let finalize = format!("ALTER TABLE {parent} DETACH PARTITION {name} FINALIZE");
        return connection.execute(AssertSqlSafe(finalize)).await.map(drop);
    }
    connection.execute(AssertSqlSafe(format!("COMMENT ON TABLE {name} IS '{DROP_MARK}'"))).await?;
    let detach = format!("ALTER TABLE {parent} DETACH PARTITION {name} CONCURRENTLY");
    let done = connection.execute(AssertSqlSafe(detach)).await.map(drop);
    if done.is_err() {
        let is_attached = |other: &Partition| other.name == *name && !other.is_detaching;
        if partitions(&mut *connection, table).await?.iter().any(is_attached) {
            connection.execute(AssertSqlSafe(format!("COMMENT ON TABLE {name} IS NULL"))).await?;
        }
    }
    done
}

/// Drops a table. Waits at most two seconds for its lock.
async fn drop_table(connection: &mut PgConnection, name: &str) -> sqlx::Result<()> {
    connection.execute("SET lock_timeout = '2s'").await?;
    // The name comes from the catalogue.
    let done = connection.execute(AssertSqlSafe(format!("DROP TABLE {name}"))).await;
    connection.execute("RESET lock_timeout").await?;
    done.map(drop)
}

/// Logs that a partition was dropped, and returns its name with the outcome.
fn drop_outcome(name: String, done: sqlx::Result<()>) -> Result<(String, PartitionDropOutcome)> {
    match done {
        Ok(()) => {
            tracing::info!(partition = name, "the expired partition {name} was dropped");
            Ok((name, PartitionDropOutcome::Removed))
        }
        Err(error) if is_lock_timeout(&error) => Ok((name, PartitionDropOutcome::Locked)),
        Err(error) => Err(error.into()),
    }
}

/// Returns the tables that the server has detached from a table and not dropped, because the process ended in between or a
/// reader held a lock.
async fn detached_partitions(connection: impl PgExecutor<'_>, table: PartitionedTable) -> sqlx::Result<Vec<String>> {
    sqlx::query_scalar!(
        r#"SELECT c.relname AS "name!" FROM pg_class c
            WHERE c.relkind = 'r' AND NOT c.relispartition AND starts_with(c.relname, $1::text || '_')
              AND obj_description(c.oid, 'pg_class') = $2
              AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())"#,
        table.name(),
        DROP_MARK
    )
    .fetch_all(connection)
    .await
}

/// Returns true if a statement failed because a lock was not granted in time.
fn is_lock_timeout(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|error| error.code()).is_some_and(|code| code == "55P03")
}

fn midnight(day: NaiveDate) -> DateTime<Utc> {
    day.and_time(NaiveTime::MIN).and_utc()
}
