//! What outlives the process.
//!
//! Reports and log lines wait for the broker in memory, where the reporter and the log_buffer keep them in order and, as for
//! lines, within bounds. The outbox is the image of that on disk, a SQLite file, from which the next process goes on when
//! this one was killed: it sends what was not confirmed, and reports as interrupted what had begun and has no end, long
//! before the server would have missed the heartbeats.
//!
//! ```text
//!  reporter, log_buffer ──► journal ──► store ──► {worker}-0.sqlite
//!          ▲              │ gate: shut while the file cannot be written
//!          │              ▼
//!          │           consumer
//!          └── recovery: what an earlier process did not get rid of
//! ```
//!
//! # What is written when
//!
//! A report is known to the broker a few milliseconds after it was made, and a short run is over by then. Writing each
//! would cost more than running it, and say nothing that the broker is not about to know. The [`journal`] therefore holds
//! entries back for 50 ms, in which most are confirmed and vanish: a short run on a healthy broker costs no write. What
//! lives longer is on disk: a run that goes on, and everything from the moment the broker is away, for then nothing is
//! held back. What a kill can cost is the last 50 ms: a run that began in them is found by the server, by the missing
//! heartbeats, as it would be without any outbox; one that ended in them is reported as lost, which changes nothing if
//! the broker had its end already, and otherwise runs it again.
//!
//! # What is promised
//!
//! A killed process loses no report that had waited longer than that. Loss of *power* is another matter: SQLite in WAL
//! mode with `synchronous = NORMAL` may then forget the last writes, though never the order of them. Only a write with
//! the end of a run in it, which as a rule means that the broker is away, waits until the disk has it.
//!
//! A file that is damaged is put aside and a new one begun, at the start as later, and the log names both. What a process
//! itself had put there it has in memory still: only if it is killed before the broker has it is that lost. What runs at
//! that moment has no mark in the new file: should its process be killed, the server finds it by its silence. Heartbeats
//! carry a [`OutboxWarning`], so that it is seen where people look.
//!
//! Reports are never given up: without a broker no work arrives, so there are as many as there were runs. Lines are, the
//! oldest first, beyond `MILVAION_OUTBOX_LINES` (100,000) or `MILVAION_OUTBOX_MEGABYTES` (64), which bound memory and
//! file alike, because one is the image of the other; the log says how many.
//!
//! # An attempt the broker has not heard of
//!
//! The delivery of a run is acknowledged when its *Running* report is confirmed. Was that never confirmed and the run did
//! not end, then the broker has handed the message to somebody else when this process died, and the same attempt begins
//! again there. To report it as interrupted would end the new run, and its lines would take the numbers of the new
//! run's: both are dropped. Was it confirmed, then the next attempt's number protects whatever has happened
//! since: the server ignores what is said about an earlier one.

mod corruption;
mod journal;
mod location;
mod recovery;
mod store;

#[cfg(test)]
mod tests;

use std::{io, path::PathBuf};

use milvaion_protocol::message::{MAX_NOTICE_BYTES, truncate_text};
use tokio::sync::watch;

pub use self::location::Outbox;
use self::{corruption::QuarantinedFiles, location::LockedOutboxes, store::OutboxStore};
pub(crate) use self::{
    journal::{EntryId, OutboxJournal},
    recovery::Recovered,
    store::DroppedLines,
};

/// Why there is no outbox.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutboxError {
    #[error(
        "MILVAION_OUTBOX names {path:?}, which another process holds: give each process a file of its own, or name a folder, which processes may share."
    )]
    InUse { path: PathBuf },
    #[error("every outbox in {folder:?} is held: let MILVAION_OUTBOX name another folder.")]
    FolderFull { folder: PathBuf },
    #[error(
        "the outbox {path:?} cannot be used ({source}): let MILVAION_OUTBOX name a folder this process may write, or set it to off and lose what a killed process has not told."
    )]
    Unusable { path: PathBuf, source: io::Error },
    #[error(
        "the outbox {path:?} cannot be opened ({source}): see that its disk has room and that this process may write it, let MILVAION_OUTBOX name another folder, or set it to off."
    )]
    Closed { path: PathBuf, source: sqlx::Error },
    #[error("the outbox {path:?} is damaged ({reason}).")]
    Damaged { path: PathBuf, reason: String },
    #[error("{path:?} is a SQLite file of something else: let MILVAION_OUTBOX name another one.")]
    Foreign { path: PathBuf },
    #[error(
        "the outbox {path:?} was written by a later version of this program (its tables have version {version}): start that one, or move the file away."
    )]
    NewerVersion { path: PathBuf, version: i32 },
}

/// Whether what happens can be remembered. Cloning gives the same one.
#[derive(Clone)]
pub(crate) struct WriteGate(watch::Receiver<bool>);

impl WriteGate {
    /// Whether new work may be taken.
    pub(crate) fn is_open(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until new work may be taken.
    pub(crate) async fn open(&self) {
        if *self.0.borrow() {
            return;
        }
        // A journal that has gone shuts no gate: the worker ends then, and takes no work for that reason.
        let _ = self.0.clone().wait_for(|is_open| *is_open).await;
    }
}

/// What people should know of an outbox without reading the worker's log.
#[derive(Clone)]
pub(crate) struct OutboxWarning {
    gate: WriteGate,
    path: PathBuf,
    quarantined: QuarantinedFiles,
}

impl OutboxWarning {
    /// What to say with the next heartbeat; none if all is well.
    pub(crate) fn notice(&self) -> Option<String> {
        let shut = (!self.gate.is_open()).then(|| {
            format!(
                "No new work is taken: the outbox {} cannot be written. See that its disk has room; the worker's log says more.",
                self.path.display()
            )
        });
        let damaged = self.quarantined.names().into_iter().map(|aside| {
            format!(
                "A damaged outbox was put aside as {}: what only it held is lost, unless it can be read from there.",
                aside.display()
            )
        });
        let all: Vec<String> = shut.into_iter().chain(damaged).collect();
        (!all.is_empty()).then(|| truncate_text(all.join(" "), MAX_NOTICE_BYTES))
    }
}

/// An outbox ready for use.
pub(crate) struct OpenOutbox {
    /// For the reporter.
    pub(crate) journal: OutboxJournal,
    /// For whoever takes work.
    pub(crate) gate: WriteGate,
    /// For whoever speaks to people.
    pub(crate) warning: OutboxWarning,
    /// From earlier processes.
    pub(crate) recovered: Recovered,
    /// Whether there is a file at all.
    pub(crate) is_durable: bool,
}

/// Takes a place and opens its file.
pub(crate) async fn open(outbox: &Outbox, worker_id: &str) -> Result<OpenOutbox, OutboxError> {
    let (shut, gate) = watch::channel(true);
    let gate = WriteGate(gate);
    let Some(LockedOutboxes { own, orphans }) = location::acquire(outbox, worker_id)? else {
        let warning =
            OutboxWarning { gate: gate.clone(), path: PathBuf::new(), quarantined: QuarantinedFiles::default() };
        return Ok(OpenOutbox {
            journal: OutboxJournal::off(),
            gate,
            warning,
            recovered: Recovered::default(),
            is_durable: false,
        });
    };
    let mut store = OutboxStore::open(&own.path).await?;
    for orphan in &orphans {
        // Another process's file is no reason not to start; it is there the next time too.
        match store.adopt(&orphan.path).await {
            Ok(()) => tracing::debug!(outbox.path = %orphan.path.display(), "an outbox that nobody held was emptied"),
            Err(error) => tracing::warn!(error = %error, "what an earlier process left is not taken over"),
        }
    }
    let left = store.stored_entries().await?;
    let last = left.entries.last().map_or(0, |entry| entry.id);
    let recovered = Recovered::from_entries(left);
    tracing::info!(
        outbox.path = %own.path.display(),
        reports = recovered.reports.len(),
        interrupted = recovered.interrupted.len(),
        lines = recovered.lines.len(),
        "the outbox is open"
    );
    let warning = OutboxWarning { gate: gate.clone(), path: own.path.clone(), quarantined: store.quarantined.clone() };
    Ok(OpenOutbox { journal: OutboxJournal::new(store, own, last, shut), gate, warning, recovered, is_durable: true })
}
