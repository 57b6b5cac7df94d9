//! The SQLite file of the outbox.
//!
//! One table holds everything in the order of its occurrence: reports that the broker has not confirmed, runs that have
//! begun, and lines. A current run is its *Running* report, kept after the confirmation under another kind, because it
//! contains all that is needed to report an interruption later.

use std::{
    fs::OpenOptions,
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use sqlx::{
    ConnectOptions, Connection, QueryBuilder, Row as _, SqliteConnection,
    sqlite::{SqliteAutoVacuum, SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};

use super::{
    corruption::{CorruptFiles, is_corruption, set_aside},
    entry::{EntryKind, OutboxEntry, OutboxWrite, StoredEntries},
    system::OutboxSystem,
};
use crate::api::error::{OutboxError, log_text};

/// The error of a write.
pub(super) type WriteError = sqlx::Error;

/// Identifies the file as an outbox: "MVOX" in ASCII.
const APPLICATION_ID: i32 = 0x4d56_4f58;
/// Schema version. A file with a later version is refused.
const SCHEMA_VERSION: i32 = 2;
/// The schema version of files without a system.
const VERSION_WITHOUT_SYSTEM: i32 = 1;
/// Minimum interval between two replacements of a damaged file, because a failing disk damages the next one too.
const RECREATE_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of rows in one statement.
const MAX_STATEMENT_ROWS: usize = 200;
/// Bytes that must be free before a failed write is retried. With less, it would soon fail again.
const PROBE_BYTES: i64 = 256 * 1024;

const CREATE_TABLES: &str = "
    -- kind: 0 a report to send; 1 the start of a current run, as it was reported; 2 a log line. body: JSON.
    CREATE TABLE entry (
        id INTEGER PRIMARY KEY,
        kind INTEGER NOT NULL CHECK (kind BETWEEN 0 AND 2),
        occurrence TEXT NOT NULL,
        body TEXT NOT NULL
    );
    -- The number of dropped lines of an occurrence and the number of the last one, until its log contains the notice.
    CREATE TABLE given_up (occurrence TEXT PRIMARY KEY, lines INTEGER NOT NULL, last INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE probe (space BLOB NOT NULL);
";

const CREATE_SYSTEM: &str = "
    -- One row: the system whose reports the file holds.
    CREATE TABLE system (broker TEXT NOT NULL, vhost TEXT NOT NULL, prefix TEXT NOT NULL);
";

/// An open outbox file.
pub(super) struct OutboxStore {
    connection: SqliteConnection,
    path: PathBuf,
    system: OutboxSystem,
    is_write_durable: bool,
    /// True if there is no file at the moment: a damaged one was renamed, and no new one could be created yet.
    is_missing: bool,
    /// Time of the last replacement of a damaged file.
    recreated_at: Option<Instant>,
    /// Damaged files that were renamed.
    pub(super) corrupt_files: CorruptFiles,
}

impl OutboxStore {
    /// Opens the file, or creates it if it does not exist. A damaged file is renamed, logged and added to
    /// `corrupt_files`.
    ///
    /// # Errors
    /// Returns [`OutboxError`] if the file cannot be opened, or belongs to another program, another system or a later
    /// version.
    pub(super) async fn open(path: &Path, system: &OutboxSystem) -> Result<Self, OutboxError> {
        match Self::try_open(path, system).await {
            Err(OutboxError::Damaged { reason, .. }) => {
                let renamed = set_aside(path, &reason)?;
                let this = Self::try_open(path, system).await?;
                this.corrupt_files.add([renamed]);
                Ok(this)
            }
            opened => opened,
        }
    }

    async fn try_open(path: &Path, system: &OutboxSystem) -> Result<Self, OutboxError> {
        // Only this user may read the file, because logs and results of jobs may contain confidential data.
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
        file.map_err(|source| OutboxError::Unusable { path: path.to_owned(), source })?;
        let connection = SqliteConnectOptions::new()
            .filename(path)
            .auto_vacuum(SqliteAutoVacuum::Incremental)
            .journal_mode(SqliteJournalMode::Wal)
            // A killed process loses nothing, because the kernel has the written data. For a loss of power see
            // `durable`.
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(Duration::from_secs(1))
            .disable_statement_logging()
            .connect()
            .await
            .map_err(|error| classify(path, error))?;
        let mut this = Self {
            connection,
            path: path.to_owned(),
            system: system.clone(),
            is_write_durable: false,
            is_missing: false,
            recreated_at: None,
            corrupt_files: CorruptFiles::default(),
        };
        match this.check().await {
            Ok(()) => Ok(this),
            Err(error) => {
                // Awaited, because SQLite deletes its files by name, and a new file may soon have the same name.
                let _ = this.connection.close().await;
                Err(error)
            }
        }
    }

    async fn check(&mut self) -> Result<(), OutboxError> {
        let check = sqlx::query_scalar("PRAGMA quick_check(1)");
        let checked: String =
            check.fetch_one(&mut self.connection).await.map_err(|error| classify(&self.path, error))?;
        if checked != "ok" {
            return Err(OutboxError::Damaged { path: self.path.clone(), reason: checked });
        }
        self.prepare_schema().await?;
        self.check_system().await
    }

    /// Creates the tables in an empty file, and checks the schema version of any other.
    async fn prepare_schema(&mut self) -> Result<(), OutboxError> {
        let versions = "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)";
        let found: (i32, i32, i32) = sqlx::query_as(versions)
            .fetch_one(&mut self.connection)
            .await
            .map_err(|error| classify(&self.path, error))?;
        let (path, system) = (self.path.clone(), self.system.clone());
        let tables = match found {
            (0, 0, 0) => Some(CREATE_TABLES),
            // Written for a system that is not known. It is that of the worker to which the file was given.
            (APPLICATION_ID, VERSION_WITHOUT_SYSTEM, _) => Some(""),
            (APPLICATION_ID, SCHEMA_VERSION, _) => None,
            (APPLICATION_ID, version, _) => return Err(OutboxError::NewerVersion { path, version }),
            _ => return Err(OutboxError::Foreign { path }),
        };
        let Some(tables) = tables else { return Ok(()) };
        self.in_transaction(async |connection| {
            sqlx::raw_sql(tables).execute(&mut *connection).await?;
            sqlx::raw_sql(CREATE_SYSTEM).execute(&mut *connection).await?;
            insert_system(connection, system).await?;
            let versions = format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};");
            sqlx::raw_sql(sqlx::AssertSqlSafe(versions)).execute(connection).await.map(drop)
        })
        .await
        .map_err(|error| classify(&path, error))
    }

    /// Checks that the file was written for the system of this worker. An empty file of another system becomes one of this
    /// system, such as after the broker got another address.
    async fn check_system(&mut self) -> Result<(), OutboxError> {
        let path = self.path.clone();
        let failed = |error| classify(&path, error);
        let found = read_system(&mut self.connection).await.map_err(failed)?;
        if found == self.system {
            return Ok(());
        }
        if count_entries(&mut self.connection).await.map_err(failed)? > 0 {
            let (found, own) = (found.to_string(), self.system.to_string());
            return Err(OutboxError::OtherSystem { path: path.clone(), found, own });
        }
        let system = self.system.clone();
        self.in_transaction(async |connection| {
            sqlx::raw_sql("DELETE FROM system").execute(&mut *connection).await?;
            insert_system(connection, system).await
        })
        .await
        .map_err(failed)?;
        tracing::info!(outbox.path = %path.display(), "the empty outbox {} of another system ({found}) is used", path.display());
        Ok(())
    }

    /// Returns the system of a file and the number of its entries, and changes nothing. Returns `None` if the file cannot be
    /// read.
    pub(super) async fn peek(path: &Path) -> Option<(OutboxSystem, u64)> {
        let options = SqliteConnectOptions::new().filename(path).read_only(true).disable_statement_logging();
        let mut connection = options.connect().await.ok()?;
        let read = async {
            let system = read_system(&mut connection).await?;
            Ok::<_, sqlx::Error>((system, count_entries(&mut connection).await?))
        };
        let read = read.await.ok();
        let _ = connection.close().await;
        read
    }

    /// Moves all entries of another file into this one. They are deleted there only when this file has them for certain,
    /// also after a loss of power: the two files are not written atomically. If that fails in between, the next adoption
    /// finds them in both and does not copy them again.
    ///
    /// # Errors
    /// Returns [`OutboxError`] if the other file cannot be opened, or the entries cannot be moved. It then keeps them.
    pub(super) async fn adopt(&mut self, other: &Path) -> Result<(), OutboxError> {
        // Opened separately first, so that it is undamaged, has the tables and belongs to this system.
        let opened = Self::open(other, &self.system).await?;
        self.corrupt_files.add(opened.corrupt_files.names());
        opened.close().await;
        let failed = |source| closed_error(other, source);
        let name = other.to_string_lossy().into_owned();
        sqlx::query("ATTACH ? AS other").bind(name).execute(&mut self.connection).await.map_err(failed)?;
        let moved = self.move_attached().await;
        let detached = sqlx::query("DETACH other").execute(&mut self.connection).await;
        moved.and(detached.map(drop)).map_err(failed)
    }

    async fn move_attached(&mut self) -> sqlx::Result<()> {
        self.set_durable(true).await?;
        self.in_transaction(async |connection| {
            let copies = "
                INSERT INTO entry (kind, occurrence, body) SELECT kind, occurrence, body FROM other.entry
                    WHERE (kind, occurrence, body) NOT IN (SELECT kind, occurrence, body FROM main.entry) ORDER BY id;
                INSERT OR REPLACE INTO given_up SELECT * FROM other.given_up;";
            sqlx::raw_sql(copies).execute(connection).await.map(drop)
        })
        .await?;
        self.in_transaction(async |connection| {
            let deletes = "DELETE FROM other.entry; DELETE FROM other.given_up;";
            sqlx::raw_sql(deletes).execute(connection).await.map(drop)
        })
        .await
    }

    /// Sets whether writes survive a loss of power.
    async fn set_durable(&mut self, is_durable: bool) -> sqlx::Result<()> {
        if is_durable != self.is_write_durable {
            let pragma = if is_durable { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" };
            sqlx::raw_sql(pragma).execute(&mut self.connection).await?;
            self.is_write_durable = is_durable;
        }
        Ok(())
    }

    /// Reads all entries.
    ///
    /// # Errors
    /// Returns [`OutboxError::Closed`] if the file cannot be read.
    pub(super) async fn stored_entries(&mut self) -> Result<StoredEntries, OutboxError> {
        let closed = |source| closed_error(&self.path, source);
        let mut stored = StoredEntries::default();
        let rows = sqlx::query("SELECT id, kind, occurrence, body FROM entry ORDER BY id");
        for row in rows.fetch_all(&mut self.connection).await.map_err(closed)? {
            let kind = match row.get::<i32, _>(1) {
                0 => EntryKind::Report,
                1 => EntryKind::Begun,
                _ => EntryKind::Line,
            };
            // A row without a valid id was not written by a worker. A later entry with the same number replaces it.
            let Ok(occurrence) = row.get::<&str, _>(2).parse() else { continue };
            stored.entries.push(OutboxEntry { id: row.get(0), kind, occurrence, body: row.get::<&str, _>(3).into() });
        }
        let rows = sqlx::query("SELECT occurrence, lines, last FROM given_up");
        for row in rows.fetch_all(&mut self.connection).await.map_err(closed)? {
            let Ok(occurrence) = row.get::<&str, _>(0).parse() else { continue };
            stored.dropped_lines.push((occurrence, (row.get::<i64, _>(1).unsigned_abs(), row.get(2))));
        }
        Ok(stored)
    }

    /// Retries a failed write, but only if there is space for more than this one, or if the file itself was the
    /// problem.
    ///
    /// # Errors
    /// Returns the error of SQLite. The write can be retried again.
    pub(super) async fn retry_write(&mut self, write: &OutboxWrite) -> sqlx::Result<()> {
        match self.probe().await {
            Err(error) if !self.is_missing && !is_corruption(&error) => Err(error),
            _ => self.write(write).await,
        }
    }

    /// Performs one write in a transaction. Repeating a failed write does no harm. If the file is found damaged, it is
    /// renamed and the write goes to a new file, which does not contain the other entries of the old one.
    ///
    /// # Errors
    /// Returns the error of SQLite. The write can be retried.
    pub(super) async fn write(&mut self, write: &OutboxWrite) -> sqlx::Result<()> {
        match self.write_once(write).await {
            Err(error) if is_corruption(&error) || self.is_missing => {
                self.recreate(&error).await.map_err(|error| sqlx::Error::Io(io::Error::other(error)))?;
                self.write_once(write).await
            }
            done => done,
        }
    }

    async fn recreate(&mut self, reason: &sqlx::Error) -> Result<(), OutboxError> {
        if !self.is_missing {
            if self.recreated_at.is_some_and(|at| at.elapsed() < RECREATE_INTERVAL) {
                return Err(OutboxError::Damaged { path: self.path.clone(), reason: reason.to_string() });
            }
            self.recreated_at = Some(Instant::now());
            let renamed = set_aside(&self.path, &reason.to_string())?;
            self.corrupt_files.add([renamed]);
            let closed = |source| closed_error(&self.path, source);
            let in_memory = SqliteConnectOptions::new().in_memory(true).connect().await.map_err(closed)?;
            // Closed after the rename and before a new file exists, because SQLite deletes its files by name.
            let _ = std::mem::replace(&mut self.connection, in_memory).close().await;
            self.is_missing = true;
        }
        let Self { connection, is_write_durable, .. } = Self::try_open(&self.path, &self.system).await?;
        (self.connection, self.is_write_durable, self.is_missing) = (connection, is_write_durable, false);
        Ok(())
    }

    async fn write_once(&mut self, write: &OutboxWrite) -> sqlx::Result<()> {
        self.set_durable(!write.ends.is_empty()).await?;
        self.in_transaction(async |connection| {
            for entries in write.entries.chunks(MAX_STATEMENT_ROWS) {
                let mut insert = QueryBuilder::new("INSERT OR REPLACE INTO entry (id, kind, occurrence, body) ");
                insert.push_values(entries, |mut row, entry| {
                    row.push_bind(entry.id)
                        .push_bind(entry.kind as i32)
                        .push_bind(entry.occurrence.to_string())
                        .push_bind(entry.body.clone());
                });
                insert.build().execute(&mut *connection).await?;
            }
            if !write.begun.is_empty() {
                let update = "UPDATE entry SET kind = 1 WHERE id IN (SELECT value FROM json_each(?))";
                sqlx::query(update).bind(list(&write.begun)).execute(&mut *connection).await?;
            }
            if !write.gone.is_empty() {
                let delete = "DELETE FROM entry WHERE id IN (SELECT value FROM json_each(?))";
                sqlx::query(delete).bind(list(&write.gone)).execute(&mut *connection).await?;
            }
            for (occurrence, dropped) in &write.dropped_lines {
                let name = occurrence.to_string();
                let query = match dropped {
                    Some((lines, last)) => sqlx::query("INSERT OR REPLACE INTO given_up VALUES (?, ?, ?)")
                        .bind(name)
                        .bind(i64::try_from(*lines).unwrap_or(i64::MAX))
                        .bind(*last),
                    None => sqlx::query("DELETE FROM given_up WHERE occurrence = ?").bind(name),
                };
                query.execute(&mut *connection).await?;
            }
            Ok(())
        })
        .await
    }

    /// Checks that there is space for more than one write.
    async fn probe(&mut self) -> sqlx::Result<()> {
        sqlx::query("INSERT INTO probe VALUES (zeroblob(?))").bind(PROBE_BYTES).execute(&mut self.connection).await?;
        sqlx::query("DELETE FROM probe").execute(&mut self.connection).await.map(drop)
    }

    /// Returns unused space to the file system and closes the file.
    pub(super) async fn close(mut self) {
        let last = "PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE);";
        if let Err(error) = sqlx::raw_sql(last).execute(&mut self.connection).await {
            tracing::debug!(error = log_text(&error), "cannot shrink the outbox");
        }
        if let Err(error) = self.connection.close().await {
            tracing::warn!(
                outbox.path = %self.path.display(),
                error = log_text(&error),
                "the outbox {} was not closed in an orderly way; the next start recovers it", self.path.display()
            );
        }
    }

    /// Creates the state after a damaged file was renamed and no new one could be created, for tests.
    #[cfg(test)]
    pub(super) async fn lose_file(&mut self) {
        let in_memory = SqliteConnectOptions::new().in_memory(true).connect().await.expect("memory is available");
        let _ = std::mem::replace(&mut self.connection, in_memory).close().await;
        self.is_missing = true;
    }

    /// Limits the file to a number of pages of 4 KiB, like a full disk, for tests.
    #[cfg(test)]
    pub(super) async fn limit(&mut self, pages: u32) {
        let pragma = format!("PRAGMA max_page_count = {pages}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(pragma)).execute(&mut self.connection).await.expect("set");
    }

    async fn in_transaction(
        &mut self,
        work: impl AsyncFnOnce(&mut SqliteConnection) -> sqlx::Result<()>,
    ) -> sqlx::Result<()> {
        // Explicit statements are used, because SQLite may have rolled back a failed transaction itself, which sqlx's
        // own transactions would not notice.
        sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut self.connection).await?;
        let done = match work(&mut self.connection).await {
            Ok(()) => sqlx::raw_sql("COMMIT").execute(&mut self.connection).await.map(drop),
            failed => failed,
        };
        if done.is_err() {
            let _ = sqlx::raw_sql("ROLLBACK").execute(&mut self.connection).await;
        }
        done
    }
}

/// Returns the system whose reports a file holds.
async fn read_system(connection: &mut SqliteConnection) -> sqlx::Result<OutboxSystem> {
    let found: Option<(String, String, String)> =
        sqlx::query_as("SELECT broker, vhost, prefix FROM system").fetch_optional(connection).await?;
    Ok(found.map(|(broker, vhost, prefix)| OutboxSystem { broker, vhost, prefix }).unwrap_or_default())
}

async fn insert_system(connection: &mut SqliteConnection, system: OutboxSystem) -> sqlx::Result<()> {
    let insert = sqlx::query("INSERT INTO system VALUES (?, ?, ?)");
    insert.bind(system.broker).bind(system.vhost).bind(system.prefix).execute(connection).await.map(drop)
}

/// Returns the number of entries of a file, including counts of dropped lines.
async fn count_entries(connection: &mut SqliteConnection) -> sqlx::Result<u64> {
    let count = "SELECT (SELECT count(*) FROM entry) + (SELECT count(*) FROM given_up)";
    sqlx::query_scalar::<_, i64>(count).fetch_one(connection).await.map(i64::unsigned_abs)
}

fn classify(path: &Path, error: sqlx::Error) -> OutboxError {
    if is_corruption(&error) {
        OutboxError::Damaged { path: path.to_owned(), reason: error.to_string() }
    } else {
        closed_error(path, error)
    }
}

fn closed_error(path: &Path, error: sqlx::Error) -> OutboxError {
    OutboxError::Closed { path: path.to_owned(), source: error.into() }
}

fn list(ids: &[i64]) -> String {
    serde_json::to_string(ids).expect("numbers are JSON")
}
