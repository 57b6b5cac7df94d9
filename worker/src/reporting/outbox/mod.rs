//! The local durable store of unsent reports and log lines.
//!
//! Reports and log lines wait for the broker in memory, where the reporter and the log buffer keep their order and the
//! bounds of lines. The outbox mirrors them on disk, in a SQLite file. If the process is killed, the next process
//! continues from the file: it sends what was not confirmed, and reports as interrupted every run that had begun and
//! has no end. This happens long before the server detects the missing heartbeats.
//!
//! ```text
//!  reporter, log_buffer ──► journal ──► store ──► {worker}-{system}-0.sqlite
//!          ▲              │ gate: closed while the file cannot be written
//!          │              ▼
//!          │           consumer
//!          └── recovery: the unsent entries of earlier processes
//! ```
//!
//! # Writes
//!
//! The broker has a report a few milliseconds after it was made, and a short run has ended by then. Writing every
//! report would cost more than the run itself, and record nothing that the broker is not about to receive. The
//! [`journal`] therefore delays entries by 50 ms. Most are confirmed in this time and are never written: a short run
//! with a healthy broker costs no write. Entries that live longer are on disk: runs that continue, and everything while
//! the broker is unavailable, because nothing is delayed then. A kill can lose the last 50 ms. The server detects a run
//! that began in them by its missing heartbeats, as it would without an outbox. A run that ended in them is reported as
//! lost. This changes nothing if the broker had its end already, and otherwise the run is repeated. So that this takes
//! seconds, a run is marked as ended in Redis when the broker has confirmed its end or this file contains it.
//!
//! # Durability
//!
//! A killed process loses no report that has waited longer than 50 ms. Loss of *power* is different: SQLite in WAL mode
//! with `synchronous = NORMAL` may then lose the last writes, though never their order. Only a write that contains the
//! end of a run, which usually means that the broker is unavailable, waits until the disk has stored it.
//!
//! A damaged file is renamed and a new one is created, both at the start and later, and the log names both. The current
//! process still has its own entries of the old file in memory. They are lost only if it is killed before the broker
//! has confirmed them. Current runs have no entry in the new file: if their process is killed, the server detects them
//! by their missing heartbeats. Heartbeats carry an [`OutboxWarning`], so that the dashboard shows the problem.
//!
//! Reports are never dropped: without a broker no work arrives, so their number is limited by the number of runs. Lines
//! beyond `MILVAION_OUTBOX_LINES` (100,000) or `MILVAION_OUTBOX_MEGABYTES` (64) are dropped, the oldest first. The
//! bounds apply to memory and file alike, because one mirrors the other. The log of the run reports the number.
//!
//! # Attempts with an unconfirmed start
//!
//! The delivery of a run is acknowledged when its *Running* report is confirmed. If it was never confirmed and the process
//! died, the broker redelivered the message. What happens to it depends on the claim:
//!
//! | The attempt | The claim | Consequence |
//! |---|---|---|
//! | has no end | outlives the process | the instance that receives the message reports the attempt as lost; the lines of this file are sent, and the *Running* report is discarded |
//! | has a result, or is snoozed | says that the attempt has ended | duplicates are dropped; everything is sent |
//! | was handed back at a shutdown | was released | another instance starts the same attempt, whose lines have the same numbers; everything is discarded |
//!
//! If the report was confirmed, the number of the next attempt protects all later events: the server ignores reports about
//! an earlier attempt.

mod corruption;
mod entry;
mod journal;
mod location;
mod recovery;
#[cfg(feature = "outbox")]
mod store;
#[cfg(not(feature = "outbox"))]
#[path = "no_store.rs"]
mod store;
mod system;

#[cfg(all(test, feature = "outbox"))]
mod tests;

use std::path::PathBuf;

use milvaion_protocol::message::{MAX_NOTICE_BYTES, truncate_text};
use tokio::sync::watch;

pub use self::location::Outbox;
pub(crate) use self::system::OutboxSystem;
use self::{corruption::CorruptFiles, location::LockedOutboxes, store::OutboxStore};
pub(crate) use self::{
    entry::DroppedLines,
    journal::{EntryId, OutboxJournal},
    recovery::RecoveredReports,
};
use crate::api::error::{OutboxError, log_text};

/// The gate for new work, closed while the outbox cannot be written. Clones share the same gate.
#[derive(Clone)]
pub(crate) struct WriteGate(watch::Receiver<bool>);

impl WriteGate {
    /// Creates a gate that is open while the value is true.
    #[cfg(test)]
    pub(crate) const fn new(is_open: watch::Receiver<bool>) -> Self {
        Self(is_open)
    }

    /// Returns true if new work may be taken.
    pub(crate) fn is_open(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until new work may be taken.
    pub(crate) async fn open(&self) {
        if *self.0.borrow() {
            return;
        }
        // A journal that has ended does not close the gate: the worker stops then, and takes no work for that reason.
        let _ = self.0.clone().wait_for(|is_open| *is_open).await;
    }
}

/// The problems of an outbox that the dashboard shows.
#[derive(Clone)]
pub(crate) struct OutboxWarning {
    gate: WriteGate,
    path: PathBuf,
    corrupt_files: CorruptFiles,
}

impl OutboxWarning {
    /// Returns the text for the next heartbeat, or `None` if there is no problem.
    pub(crate) fn notice(&self) -> Option<String> {
        let closed = (!self.gate.is_open()).then(|| {
            format!(
                "No new work is taken: the outbox {} cannot be written. Check that its disk has free space; the log of the worker has details.",
                self.path.display()
            )
        });
        let corrupt = self.corrupt_files.names().into_iter().map(|name| {
            format!(
                "A damaged outbox was renamed to {}. Reports that only this file contained are lost, unless they can be recovered from it.",
                name.display()
            )
        });
        let all: Vec<String> = closed.into_iter().chain(corrupt).collect();
        (!all.is_empty()).then(|| truncate_text(all.join(" "), MAX_NOTICE_BYTES))
    }
}

/// An open outbox.
pub(crate) struct OpenOutbox {
    /// Writes the file, for the reporter.
    pub(crate) journal: OutboxJournal,
    /// Closes while the file cannot be written, for the consumer.
    pub(crate) gate: WriteGate,
    /// The warning that heartbeats carry.
    pub(crate) warning: OutboxWarning,
    /// Unsent entries of earlier processes.
    pub(crate) recovered: RecoveredReports,
    /// True if there is a file.
    pub(crate) is_durable: bool,
}

/// Locks an outbox and opens its file, which belongs to `system`.
///
/// # Errors
/// Returns [`OutboxError`] if no file can be locked, created or opened, and [`OutboxError::NotBuilt`] if the SDK was built
/// without the feature `outbox`.
pub(crate) async fn open(outbox: &Outbox, worker_id: &str, system: &OutboxSystem) -> Result<OpenOutbox, OutboxError> {
    let (sender, gate) = watch::channel(true);
    let gate = WriteGate(gate);
    let Some((mut store, LockedOutboxes { own, orphans })) = open_own(outbox, worker_id, system).await? else {
        let warning =
            OutboxWarning { gate: gate.clone(), path: PathBuf::new(), corrupt_files: CorruptFiles::default() };
        return Ok(OpenOutbox {
            journal: OutboxJournal::off(),
            gate,
            warning,
            recovered: RecoveredReports::default(),
            is_durable: false,
        });
    };
    for orphan in &orphans {
        // The file of another process is no reason not to start. The next start finds it again.
        let path = orphan.path.display();
        match store.adopt(&orphan.path).await {
            Ok(()) => tracing::debug!(outbox.path = %path, "adopted the entries of the orphaned outbox {path}"),
            Err(error) => tracing::warn!(
                outbox.path = %path,
                error = log_text(&error),
                "cannot adopt the entries of the orphaned outbox {path}; the next start tries again"
            ),
        }
    }
    for (path, found, entries) in unsent_of_other_systems(outbox, worker_id, system).await {
        let path = path.display();
        tracing::warn!(
            outbox.path = %path,
            entries,
            "the outbox {path} holds {entries} unsent entries of another system ({found}), and this worker belongs to {system} and does not send them: start a worker with that broker, virtual host and MILVAION_PREFIX to send them, or delete the file if its reports are no longer needed"
        );
    }
    let stored = store.stored_entries().await?;
    let last = stored.entries.last().map_or(0, |entry| entry.id);
    let recovered = RecoveredReports::from_entries(stored);
    let path = own.path.display();
    tracing::info!(
        outbox.path = %path,
        reports = recovered.reports.len(),
        interrupted = recovered.interrupted.len(),
        lines = recovered.lines.len(),
        "opened the outbox {path}"
    );
    let corrupt_files = store.corrupt_files.clone();
    let warning = OutboxWarning { gate: gate.clone(), path: own.path.clone(), corrupt_files };
    let journal = OutboxJournal::new(store, own, last, sender);
    Ok(OpenOutbox { journal, gate, warning, recovered, is_durable: true })
}

/// Returns the outboxes of other systems beside this one that have unsent entries and no process, such as those that were
/// written before the broker got another address, with the system and the number of entries of each.
async fn unsent_of_other_systems(
    outbox: &Outbox,
    worker_id: &str,
    system: &OutboxSystem,
) -> Vec<(PathBuf, OutboxSystem, u64)> {
    let mut found = Vec::new();
    for path in location::of_other_systems(outbox, worker_id, system) {
        if let Some((system, entries)) = OutboxStore::peek(&path).await
            && entries > 0
        {
            found.push((path, system, entries));
        }
    }
    found
}

/// Locks and opens the file of this process. In a folder, files of other systems are skipped.
async fn open_own(
    outbox: &Outbox,
    worker_id: &str,
    system: &OutboxSystem,
) -> Result<Option<(OutboxStore, LockedOutboxes)>, OutboxError> {
    // Checked before a folder is created.
    if !cfg!(feature = "outbox") && *outbox != Outbox::Off {
        return Err(OutboxError::NotBuilt);
    }
    let mut first = 0;
    loop {
        let Some(locked) = location::acquire(outbox, worker_id, system, first)? else { return Ok(None) };
        match (OutboxStore::open(&locked.own.path, system).await, locked.own.number) {
            // A file that was copied or renamed.
            (Err(error @ OutboxError::OtherSystem { .. }), Some(number)) => {
                tracing::warn!(outbox.path = %locked.own.path.display(), "skipping an outbox: {error}");
                first = number + 1;
            }
            (opened, _) => return Ok(Some((opened?, locked))),
        }
    }
}
