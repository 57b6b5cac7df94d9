//! The SQLite file.
//!
//! One table holds everything in the order it happened: reports the broker has not confirmed, runs that have begun, lines.
//! A run that goes on is its *Running* report, kept after its confirmation with another mark, because that is all that is
//! needed to say later that it was interrupted.

use std::{
    collections::HashMap,
    fs::OpenOptions,
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use milvaion_protocol::id::OccurrenceId;
use sqlx::{
    ConnectOptions, Connection, QueryBuilder, Row as _, SqliteConnection,
    sqlite::{SqliteAutoVacuum, SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};

use super::{
    OutboxError,
    corruption::{QuarantinedFiles, is_corruption, quarantine},
};

/// What marks the file as ours: "MVOX" in ASCII.
const APPLICATION_ID: i32 = 0x4d56_4f58;
/// The version of the tables. A file of a later one is refused, one of an earlier one brought up to it.
const SCHEMA_VERSION: i32 = 1;
/// How often a damaged file is put aside at most; a disk that is about to die damages the next one too.
const RECREATE_INTERVAL: Duration = Duration::from_secs(60);
/// How many rows one statement writes.
const MAX_STATEMENT_ROWS: usize = 200;
/// How many bytes a write that failed asks for when it is tried again: with less free it would soon fail once more.
const PROBE_BYTES: i64 = 256 * 1024;

const CREATE_TABLES: &str = "
    -- kind: 0 a report to be sent; 1 the start of a run that goes on, as its report was; 2 a line. body: JSON.
    CREATE TABLE entry (
        id INTEGER PRIMARY KEY,
        kind INTEGER NOT NULL CHECK (kind BETWEEN 0 AND 2),
        occurrence TEXT NOT NULL,
        body TEXT NOT NULL
    );
    -- How many lines of an occurrence were given up, and the number of the last one, until its log says so.
    CREATE TABLE given_up (occurrence TEXT PRIMARY KEY, lines INTEGER NOT NULL, last INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE probe (space BLOB NOT NULL);
";

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryKind {
    /// A report the broker has not confirmed.
    Report = 0,
    /// A run that has begun: its first report, confirmed.
    Begun = 1,
    /// A line the broker has not confirmed.
    Line = 2,
}

/// One entry.
#[derive(Clone, Debug)]
pub(super) struct OutboxEntry {
    pub(super) id: i64,
    pub(super) kind: EntryKind,
    pub(super) occurrence: OccurrenceId,
    pub(super) body: Arc<str>,
}

/// How many lines of an occurrence were given up, and the number of the last of them.
pub(crate) type DroppedLines = (u64, i64);

/// What an earlier process left, in order.
#[derive(Debug, Default)]
pub(super) struct StoredEntries {
    pub(super) entries: Vec<OutboxEntry>,
    pub(super) given_up: Vec<(OccurrenceId, DroppedLines)>,
}

/// What one transaction changes.
#[derive(Debug, Default)]
pub(super) struct OutboxWrite {
    /// Comes in.
    pub(super) entries: Vec<OutboxEntry>,
    /// The report of a start, now confirmed.
    pub(super) begun: Vec<i64>,
    /// Goes.
    pub(super) gone: Vec<i64>,
    /// What has become of an occurrence's count; none is the end of it.
    pub(super) given_up: HashMap<OccurrenceId, Option<DroppedLines>>,
    /// Is to survive the loss of power too.
    pub(super) durable: bool,
}

/// An open file.
pub(super) struct OutboxStore {
    connection: SqliteConnection,
    path: PathBuf,
    is_write_durable: bool,
    /// Whether there is no file at the moment: a damaged one was put aside, and no new one could be made yet.
    is_away: bool,
    /// When a damaged file was put aside last.
    begun_anew: Option<Instant>,
    /// Damaged files that were put aside.
    pub(super) quarantined: QuarantinedFiles,
}

impl OutboxStore {
    /// Opens the file and makes it if it is not there. A damaged one is put aside, and that is said in the log and kept in
    /// `aside`.
    pub(super) async fn open(path: &Path) -> Result<Self, OutboxError> {
        match Self::try_open(path).await {
            Err(OutboxError::Damaged { reason, .. }) => {
                let aside = quarantine(path, &reason)?;
                let this = Self::try_open(path).await?;
                this.quarantined.add([aside]);
                Ok(this)
            }
            opened => opened,
        }
    }

    async fn try_open(path: &Path) -> Result<Self, OutboxError> {
        // Jobs write what they like into their logs and results, and it is nobody else's business.
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
        file.map_err(|source| OutboxError::Unusable { path: path.to_owned(), source })?;
        let connection = SqliteConnectOptions::new()
            .filename(path)
            .auto_vacuum(SqliteAutoVacuum::Incremental)
            .journal_mode(SqliteJournalMode::Wal)
            // A killed process loses nothing by it, since the system has what was written; see `durable` for the power.
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(Duration::from_secs(1))
            .disable_statement_logging()
            .connect()
            .await
            .map_err(|error| judge(path, error))?;
        let mut this = Self {
            connection,
            path: path.to_owned(),
            is_write_durable: false,
            is_away: false,
            begun_anew: None,
            quarantined: QuarantinedFiles::default(),
        };
        match this.check().await {
            Ok(()) => Ok(this),
            Err(error) => {
                // Waited for, because SQLite tidies up by name, and another file may soon have this one's.
                let _ = this.connection.close().await;
                Err(error)
            }
        }
    }

    async fn check(&mut self) -> Result<(), OutboxError> {
        let check = sqlx::query_scalar("PRAGMA quick_check(1)");
        let checked: String = check.fetch_one(&mut self.connection).await.map_err(|error| judge(&self.path, error))?;
        if checked != "ok" {
            return Err(OutboxError::Damaged { path: self.path.clone(), reason: checked });
        }
        self.bring_up().await
    }

    /// Sees to it that the tables are ours and as this version has them.
    async fn bring_up(&mut self) -> Result<(), OutboxError> {
        let sees = "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)";
        let seen: (i32, i32, i32) =
            sqlx::query_as(sees).fetch_one(&mut self.connection).await.map_err(|error| judge(&self.path, error))?;
        match seen {
            (0, 0, 0) => {
                let path = self.path.clone();
                self.all_or_nothing(async |connection| {
                    sqlx::raw_sql(CREATE_TABLES).execute(&mut *connection).await?;
                    let marks =
                        format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};");
                    sqlx::raw_sql(sqlx::AssertSqlSafe(marks)).execute(connection).await.map(drop)
                })
                .await
                .map_err(|error| judge(&path, error))
            }
            (APPLICATION_ID, SCHEMA_VERSION, _) => Ok(()),
            (APPLICATION_ID, version, _) => Err(OutboxError::NewerVersion { path: self.path.clone(), version }),
            _ => Err(OutboxError::Foreign { path: self.path.clone() }),
        }
    }

    /// Takes over everything another file holds, and leaves that empty.
    pub(super) async fn adopt(&mut self, other: &Path) -> Result<(), OutboxError> {
        // Opened first, so that it is whole and has the tables.
        let opened = Self::open(other).await?;
        self.quarantined.add(opened.quarantined.names());
        opened.close().await;
        let failed = |source| OutboxError::Closed { path: other.to_owned(), source };
        let name = other.to_string_lossy().into_owned();
        sqlx::query("ATTACH ? AS other").bind(name).execute(&mut self.connection).await.map_err(failed)?;
        let moved = self
            .all_or_nothing(async |connection| {
                let moves = "
                    INSERT INTO entry (kind, occurrence, body) SELECT kind, occurrence, body FROM other.entry ORDER BY id;
                    INSERT OR REPLACE INTO given_up SELECT * FROM other.given_up;
                    DELETE FROM other.entry;
                    DELETE FROM other.given_up;";
                sqlx::raw_sql(moves).execute(connection).await.map(drop)
            })
            .await;
        let detached = sqlx::query("DETACH other").execute(&mut self.connection).await;
        moved.and(detached.map(drop)).map_err(failed)
    }

    /// What is in it.
    pub(super) async fn stored_entries(&mut self) -> Result<StoredEntries, OutboxError> {
        let closed = |source| OutboxError::Closed { path: self.path.clone(), source };
        let mut left = StoredEntries::default();
        let rows = sqlx::query("SELECT id, kind, occurrence, body FROM entry ORDER BY id");
        for row in rows.fetch_all(&mut self.connection).await.map_err(closed)? {
            let kind = match row.get::<i32, _>(1) {
                0 => EntryKind::Report,
                1 => EntryKind::Begun,
                _ => EntryKind::Line,
            };
            // What is no id was not written by us; the row goes with the next one that has its number.
            let Ok(occurrence) = row.get::<&str, _>(2).parse() else { continue };
            left.entries.push(OutboxEntry { id: row.get(0), kind, occurrence, body: row.get::<&str, _>(3).into() });
        }
        let rows = sqlx::query("SELECT occurrence, lines, last FROM given_up");
        for row in rows.fetch_all(&mut self.connection).await.map_err(closed)? {
            let Ok(occurrence) = row.get::<&str, _>(0).parse() else { continue };
            left.given_up.push((occurrence, (row.get::<i64, _>(1).unsigned_abs(), row.get(2))));
        }
        Ok(left)
    }

    /// Makes a write once more that has failed: only if there is room for more than this one, or the file itself is what
    /// was wrong.
    pub(super) async fn write_again(&mut self, write: &OutboxWrite) -> sqlx::Result<()> {
        match self.probe().await {
            Err(error) if !self.is_away && !is_corruption(&error) => Err(error),
            _ => self.write(write).await,
        }
    }

    /// Makes one write, all of it or nothing. Making it again after it failed does no harm. A file that is found damaged
    /// is put aside, and the write made in a new one: what only the old one held is not in it.
    pub(super) async fn write(&mut self, write: &OutboxWrite) -> sqlx::Result<()> {
        match self.write_here(write).await {
            Err(error) if is_corruption(&error) || self.is_away => {
                self.begin_anew(&error).await.map_err(|error| sqlx::Error::Io(io::Error::other(error)))?;
                self.write_here(write).await
            }
            done => done,
        }
    }

    async fn begin_anew(&mut self, reason: &sqlx::Error) -> Result<(), OutboxError> {
        if !self.is_away {
            if self.begun_anew.is_some_and(|at| at.elapsed() < RECREATE_INTERVAL) {
                return Err(OutboxError::Damaged { path: self.path.clone(), reason: reason.to_string() });
            }
            self.begun_anew = Some(Instant::now());
            let aside = quarantine(&self.path, &reason.to_string())?;
            self.quarantined.add([aside]);
            let closed = |source| OutboxError::Closed { path: self.path.clone(), source };
            let nowhere = SqliteConnectOptions::new().in_memory(true).connect().await.map_err(closed)?;
            // After it was renamed and before there is a new one: SQLite tidies up by name.
            let _ = std::mem::replace(&mut self.connection, nowhere).close().await;
            self.is_away = true;
        }
        let Self { connection, is_write_durable, .. } = Self::try_open(&self.path).await?;
        (self.connection, self.is_write_durable, self.is_away) = (connection, is_write_durable, false);
        Ok(())
    }

    async fn write_here(&mut self, write: &OutboxWrite) -> sqlx::Result<()> {
        if write.durable != self.is_write_durable {
            let pragma = if write.durable { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" };
            sqlx::raw_sql(pragma).execute(&mut self.connection).await?;
            self.is_write_durable = write.durable;
        }
        self.all_or_nothing(async |connection| {
            for some in write.entries.chunks(MAX_STATEMENT_ROWS) {
                let mut insert = QueryBuilder::new("INSERT OR REPLACE INTO entry (id, kind, occurrence, body) ");
                insert.push_values(some, |mut row, entry| {
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
            for (occurrence, given_up) in &write.given_up {
                let name = occurrence.to_string();
                let query = match given_up {
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

    /// Whether there is room for more than one write.
    async fn probe(&mut self) -> sqlx::Result<()> {
        sqlx::query("INSERT INTO probe VALUES (zeroblob(?))").bind(PROBE_BYTES).execute(&mut self.connection).await?;
        sqlx::query("DELETE FROM probe").execute(&mut self.connection).await.map(drop)
    }

    /// Gives back the room that is not needed, and closes the file.
    pub(super) async fn close(mut self) {
        let last = "PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE);";
        if let Err(error) = sqlx::raw_sql(last).execute(&mut self.connection).await {
            tracing::debug!(error = %error, "the outbox could not be made smaller");
        }
        if let Err(error) = self.connection.close().await {
            tracing::warn!(outbox.path = %self.path.display(), error = %error, "the outbox was not closed in good order");
        }
    }

    /// As after a damaged file was put aside and no new one could be made, for tests.
    #[cfg(test)]
    pub(super) async fn lose_file(&mut self) {
        let nowhere = SqliteConnectOptions::new().in_memory(true).connect().await.expect("room in memory");
        let _ = std::mem::replace(&mut self.connection, nowhere).close().await;
        self.is_away = true;
    }

    /// Lets the file have at most so many pages of 4 KiB: a disk that is full, for tests.
    #[cfg(test)]
    pub(super) async fn limit(&mut self, pages: u32) {
        let pragma = format!("PRAGMA max_page_count = {pages}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(pragma)).execute(&mut self.connection).await.expect("set");
    }

    async fn all_or_nothing(
        &mut self,
        work: impl AsyncFnOnce(&mut SqliteConnection) -> sqlx::Result<()>,
    ) -> sqlx::Result<()> {
        // In plain words, because SQLite may have ended a transaction that failed by itself, and sqlx's own would not
        // know of it.
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

fn judge(path: &Path, error: sqlx::Error) -> OutboxError {
    let path = path.to_owned();
    if is_corruption(&error) {
        OutboxError::Damaged { path, reason: error.to_string() }
    } else {
        OutboxError::Closed { path, source: error }
    }
}

fn list(ids: &[i64]) -> String {
    serde_json::to_string(ids).expect("numbers are JSON")
}
