//! The contents of a worker's outbox, read from its file.

use std::path::PathBuf;

use milvaion_protocol::{id::OccurrenceId, message::StatusReport, status::OccurrenceStatus};
use sqlx::{ConnectOptions, Connection, SqliteConnection, sqlite::SqliteConnectOptions};

use super::WorkerTestEnv;
use crate::wait::until;

/// The entries of an outbox.
#[derive(Debug)]
pub struct OutboxContents {
    /// The unsent status reports, in order.
    pub reports: Vec<StatusReport>,
    /// The number of runs that have started and not ended.
    pub running: usize,
    /// The number of unsent log lines.
    pub log_lines: usize,
}

impl OutboxContents {
    /// Returns true if there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reports.is_empty() && self.running == 0 && self.log_lines == 0
    }
}

impl WorkerTestEnv {
    /// Returns the outbox files of all instances, in order.
    #[must_use]
    pub fn outbox_files(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(&self.outbox).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut files: Vec<PathBuf> =
            files.filter(|path| path.extension().is_some_and(|end| end == "sqlite")).collect();
        files.sort();
        files
    }

    /// Returns the outbox file of the only instance.
    ///
    /// # Panics
    ///
    /// Panics if there is none yet.
    #[must_use]
    pub fn outbox_file(&self) -> PathBuf {
        self.outbox_files().into_iter().next().expect("the outbox file exists")
    }

    /// Opens the outbox file of the only instance.
    ///
    /// # Panics
    ///
    /// Panics if there is no such file.
    pub async fn open_outbox(&self) -> SqliteConnection {
        SqliteConnectOptions::new().filename(self.outbox_file()).connect().await.expect("the outbox file exists")
    }

    /// Reads the outbox of the only instance.
    ///
    /// # Panics
    ///
    /// Panics if the file cannot be read.
    pub async fn outbox_contents(&self) -> OutboxContents {
        let mut outbox = self.open_outbox().await;
        let rows: Vec<(i32, String)> = sqlx::query_as("SELECT kind, body FROM entry ORDER BY id")
            .fetch_all(&mut outbox)
            .await
            .expect("the entries can be read");
        outbox.close().await.expect("the file is closed");
        let count = |kind| rows.iter().filter(|row| row.0 == kind).count();
        let reports = rows.iter().filter(|row| row.0 == 0);
        OutboxContents {
            reports: reports.map(|row| serde_json::from_str(&row.1).expect("a status report")).collect(),
            running: count(1),
            log_lines: count(2),
        }
    }

    /// Waits until the outbox has no entries.
    ///
    /// # Panics
    ///
    /// Panics if it has some after [`crate::wait::WAIT_TIMEOUT`].
    pub async fn wait_for_empty_outbox(&self) {
        until("an empty outbox", async || self.outbox_contents().await.is_empty()).await;
    }

    /// Waits until the outbox has this number of running runs: their start reports are confirmed, their ends are not
    /// reported.
    ///
    /// # Panics
    ///
    /// Panics if it has another number after [`crate::wait::WAIT_TIMEOUT`].
    pub async fn wait_for_running_entries(&self, runs: usize) {
        until("the runs in the outbox", async || self.outbox_contents().await.running == runs).await;
    }
}

/// Returns true if the report is one of a run's end.
#[must_use]
pub fn is_final(report: &StatusReport) -> bool {
    report.status != OccurrenceStatus::Running
}

/// Returns the occurrences of the final reports, in order.
#[must_use]
pub fn final_report_ids(reports: &[StatusReport]) -> Vec<OccurrenceId> {
    reports.iter().filter(|report| is_final(report)).map(|report| report.occurrence_id).collect()
}
