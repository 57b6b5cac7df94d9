//! The planned content of the outbox file, slightly ahead of the file itself.
//!
//! The reporter records here what it accepts and what the broker has confirmed. Most of it cancels out within
//! milliseconds and never reaches the disk: an entry is written after a delay, or at once while the broker is
//! unavailable. One write is in flight at a time, and contains everything that is due by then.
//!
//! A failed write is retried until it succeeds. Until then the [`WriteGate`](super::WriteGate) is closed, so that a
//! process that could not record a run does not start one. Current runs continue, and their reports are sent as long as
//! the broker is available.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use milvaion_protocol::{id::OccurrenceId, message::StatusReport, status::OccurrenceStatus};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use super::{
    entry::{DroppedLines, EntryKind, OutboxEntry, OutboxWrite},
    location::LockedOutbox,
    store::{OutboxStore, WriteError},
};
use crate::{api::error::log_text, delivery::claim::AttemptKey, faults};

/// Delay before an entry is written. A short run with a healthy broker has ended, and its reports are confirmed,
/// before.
const WRITE_DELAY: Duration = Duration::from_millis(50);
/// Maximum number of entries in one write.
const MAX_WRITE_ENTRIES: usize = 2_000;
/// Delay before a failed write is retried.
const WRITE_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum interval between two log lines about failed writes.
const WRITE_ERROR_LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Delay before a failed last write is retried, until [`FINAL_WRITE_TIMEOUT`].
const FINAL_RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum time for the last writes, and then for closing the file.
const FINAL_WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// The id of an entry. Ids increase with time.
pub(crate) type EntryId = i64;

/// The planned content of the outbox file, and the writes that produce it.
pub(crate) struct OutboxJournal {
    /// `None` if the outbox is off. Nothing is recorded then.
    file: Option<JournalFile>,
    next: EntryId,
    /// Entries that are not part of a write yet. Older entries have lower ids.
    fresh: BTreeMap<EntryId, PendingEntry>,
    /// The starts of runs that have not ended.
    open: HashMap<AttemptKey, OpenRun>,
    /// Changes to entries that are part of an earlier write.
    changes: OutboxWrite,
    /// Time of the oldest of these changes.
    changed: Option<Instant>,
}

struct JournalFile {
    /// `None` while a write uses it.
    store: Option<OutboxStore>,
    writing: Option<BoxFuture<'static, WriteResult>>,
    /// A failed write, to be retried before any other.
    failed: Option<OutboxWrite>,
    /// Time of the next retry.
    resume: Instant,
    /// Time of the last log line about a failed write.
    logged_at: Option<Instant>,
    gate: watch::Sender<bool>,
    _lock: LockedOutbox,
}

struct WriteResult {
    store: OutboxStore,
    write: OutboxWrite,
    result: Result<(), WriteError>,
}

struct PendingEntry {
    entry: OutboxEntry,
    since: Instant,
    /// The entry of the start, if this is the end of a run with a confirmed start. Both are replaced by this entry.
    closes: Option<EntryId>,
    /// The attempt, if this is its end.
    ends: Option<AttemptKey>,
}

struct OpenRun {
    id: EntryId,
    is_confirmed: bool,
}

impl OutboxJournal {
    /// Creates a journal that records nothing.
    pub(crate) fn off() -> Self {
        Self {
            file: None,
            next: 0,
            fresh: BTreeMap::new(),
            open: HashMap::new(),
            changes: OutboxWrite::default(),
            changed: None,
        }
    }

    /// Creates a journal that writes a file. `last` is the highest id in the file.
    pub(super) fn new(store: OutboxStore, lock: LockedOutbox, last: EntryId, gate: watch::Sender<bool>) -> Self {
        let resume = Instant::now();
        let file =
            JournalFile { store: Some(store), writing: None, failed: None, resume, logged_at: None, gate, _lock: lock };
        Self { file: Some(file), next: last + 1, ..Self::off() }
    }

    /// Records a report of a start or of an end.
    pub(crate) fn report(&mut self, report: &StatusReport, body: &Arc<str>, now: Instant) -> EntryId {
        let attempt = (report.occurrence_id, report.attempt);
        if report.status == OccurrenceStatus::Running {
            let id = self.add(EntryKind::Report, None, attempt.0, body, None, now);
            if self.file.is_some() {
                self.open.insert(attempt, OpenRun { id, is_confirmed: false });
            }
            return id;
        }
        // An unconfirmed start stays, because it must be sent before the end.
        let closes = self.open.remove(&attempt).filter(|open| open.is_confirmed).map(|open| open.id);
        self.add(EntryKind::Report, Some(attempt), attempt.0, body, closes, now)
    }

    /// Records the end of a run whose start an earlier process has recorded.
    pub(crate) fn interruption(
        &mut self,
        begun: EntryId,
        report: &StatusReport,
        body: &Arc<str>,
        now: Instant,
    ) -> EntryId {
        let attempt = (report.occurrence_id, report.attempt);
        self.add(EntryKind::Report, Some(attempt), attempt.0, body, Some(begun), now)
    }

    /// Records that the broker has confirmed a start. It need not be sent any more, but the run continues.
    pub(crate) fn started(&mut self, id: EntryId, attempt: AttemptKey, now: Instant) {
        match self.open.get_mut(&attempt).filter(|open| open.id == id) {
            Some(open) => {
                open.is_confirmed = true;
                match self.fresh.get_mut(&id) {
                    Some(fresh) => fresh.entry.kind = EntryKind::Begun,
                    None => self.change(now).begun.push(id),
                }
            }
            // The end has been recorded already.
            None => self.erase(id, now),
        }
    }

    /// Records a log line.
    pub(crate) fn line(&mut self, occurrence: OccurrenceId, body: &Arc<str>, now: Instant) -> EntryId {
        self.add(EntryKind::Line, None, occurrence, body, None, now)
    }

    /// Removes an entry, because it is confirmed or was dropped.
    pub(crate) fn erase(&mut self, id: EntryId, now: Instant) {
        if self.file.is_none() {
            return;
        }
        match self.fresh.remove(&id) {
            Some(PendingEntry { closes: Some(begun), .. }) => self.erase(begun, now),
            Some(_) => {}
            None => self.change(now).gone.push(id),
        }
    }

    /// Records the number of dropped lines of an occurrence, or `None` once its log contains the notice.
    pub(crate) fn lines_dropped(&mut self, occurrence: OccurrenceId, dropped: Option<DroppedLines>, now: Instant) {
        if self.file.is_some() {
            self.change(now).dropped_lines.insert(occurrence, dropped);
        }
    }

    /// Begins a write if one is due. While the broker is unavailable, everything is due at once, because nothing
    /// cancels out.
    pub(crate) fn begin(&mut self, now: Instant, is_away: bool) {
        if self.due(is_away).is_some_and(|due| due <= now) {
            self.write(now, if is_away { Duration::ZERO } else { WRITE_DELAY });
        }
    }

    /// Returns the time at which [`begin`](Self::begin) has something to write. `None` if that needs another event
    /// first.
    pub(crate) fn due(&self, is_away: bool) -> Option<Instant> {
        let file = self.file.as_ref().filter(|file| file.writing.is_none())?;
        if file.failed.is_some() {
            return Some(file.resume);
        }
        let delay = if is_away { Duration::ZERO } else { WRITE_DELAY };
        let oldest = self.fresh.first_key_value().map(|(_, fresh)| fresh.since + delay);
        oldest.into_iter().chain(self.changed.map(|since| since + WRITE_DELAY)).min()
    }

    /// Waits until the write in flight has finished, and returns the attempts whose ends it has stored. Never completes if
    /// there is none.
    pub(crate) async fn write_finished(&mut self) -> Vec<AttemptKey> {
        let Some(file) = &mut self.file else { return std::future::pending().await };
        let Some(writing) = &mut file.writing else { return std::future::pending().await };
        let WriteResult { store, mut write, result } = writing.await;
        if result.is_ok() && !write.entries.is_empty() {
            faults::crash_point("outbox.after_write");
        }
        (file.writing, file.store) = (None, Some(store));
        let stored = if result.is_ok() { std::mem::take(&mut write.ends) } else { Vec::new() };
        file.apply(write, result);
        stored
    }

    /// Writes the remaining entries and closes the file. Logs how many reports are lost if they cannot be written in
    /// time.
    pub(crate) async fn close(mut self) {
        let writing = async {
            loop {
                if self.file.as_ref().is_some_and(|file| file.writing.is_some()) {
                    self.write_finished().await;
                }
                let Some(file) = &self.file else { return };
                if file.failed.is_some() {
                    // Another program may have locked the file for a moment, for example to read it.
                    tokio::time::sleep(FINAL_RETRY_INTERVAL).await;
                } else if self.fresh.is_empty() && self.changed.is_none() {
                    return;
                }
                self.write(Instant::now(), Duration::ZERO);
            }
        };
        let in_time = timeout(FINAL_WRITE_TIMEOUT, writing).await.is_ok();
        let Some(file) = self.file else { return };
        if !in_time || file.failed.is_some() {
            let failed = file.failed.iter().flat_map(|write| &write.entries);
            let lost = failed.chain(self.fresh.values().map(|fresh| &fresh.entry));
            let lost = lost.filter(|entry| entry.kind == EntryKind::Report).count();
            tracing::error!(
                reports = lost,
                "cannot write the outbox: {lost} reports that the broker has not confirmed are lost; check that its disk has free space"
            );
        }
        if let Some(store) = file.store {
            let _ = timeout(FINAL_WRITE_TIMEOUT, store.close()).await;
        }
    }

    fn add(
        &mut self,
        kind: EntryKind,
        ends: Option<AttemptKey>,
        occurrence: OccurrenceId,
        body: &Arc<str>,
        closes: Option<EntryId>,
        since: Instant,
    ) -> EntryId {
        let id = self.next;
        if self.file.is_some() {
            self.next += 1;
            let entry = OutboxEntry { id, kind, occurrence, body: body.clone() };
            self.fresh.insert(id, PendingEntry { entry, since, closes, ends });
        }
        id
    }

    fn change(&mut self, now: Instant) -> &mut OutboxWrite {
        self.changed.get_or_insert(now);
        &mut self.changes
    }

    /// Begins a write with every entry that has waited for `delay`.
    fn write(&mut self, now: Instant, delay: Duration) {
        let Some(file) = &mut self.file else { return };
        let Some(mut store) = file.store.take() else { return };
        let retried = file.failed.take();
        let is_retry = retried.is_some();
        let write = retried.unwrap_or_else(|| {
            let mut write = std::mem::take(&mut self.changes);
            self.changed = None;
            while write.entries.len() < MAX_WRITE_ENTRIES
                && let Some(oldest) = self.fresh.first_entry()
                && oldest.get().since + delay <= now
            {
                let PendingEntry { entry, closes, ends, .. } = oldest.remove();
                write.ends.extend(ends);
                write.entries.push(entry);
                write.gone.extend(closes);
            }
            write
        });
        let writing = async move {
            let result = if is_retry { store.retry_write(&write).await } else { store.write(&write).await };
            WriteResult { store, write, result }
        };
        file.writing = Some(writing.boxed());
    }
}

impl JournalFile {
    /// Opens or closes the gate according to the result of a write, and logs the change.
    fn apply(&mut self, write: OutboxWrite, result: Result<(), WriteError>) {
        let now = Instant::now();
        match result {
            Ok(()) => {
                if !self.gate.send_replace(true) {
                    self.logged_at = None;
                    tracing::info!("the outbox can be written again; taking new work");
                }
            }
            Err(error) => {
                self.gate.send_replace(false);
                (self.failed, self.resume) = (Some(write), now + WRITE_RETRY_INTERVAL);
                if self.logged_at.is_none_or(|at| now >= at + WRITE_ERROR_LOG_INTERVAL) {
                    self.logged_at = Some(now);
                    tracing::error!(
                        error = log_text(&error),
                        "cannot write the outbox: no new work is taken until it can be written; check that the disk of MILVAION_OUTBOX has free space"
                    );
                }
            }
        }
    }
}
