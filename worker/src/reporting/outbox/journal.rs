//! What is to be in the file, a moment before it is.
//!
//! The reporter tells the journal what it takes in and what the broker has confirmed. Most of it cancels out within
//! milliseconds and never reaches the disk: an entry is written when it has lingered, or at once while the broker is
//! away. One write is under way at a time, and takes everything that is due by then.
//!
//! A write that fails is made again until it succeeds. Until then the [`WriteGate`](super::WriteGate) is shut, so that a process
//! that could not remember a run does not start one; what runs goes on, and its reports go out as long as there is a
//! broker.

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
    location::LockedOutbox,
    store::{DroppedLines, EntryKind, OutboxEntry, OutboxStore, OutboxWrite},
};
use crate::{delivery::claim::AttemptKey, faults};

/// How long an entry may wait for its own end before it is written. A short run on a healthy broker has ended, and its
/// reports are confirmed, before that.
const WRITE_DELAY: Duration = Duration::from_millis(50);
/// The most entries of one write.
const MAX_WRITE_ENTRIES: usize = 2_000;
/// How long to wait after a write that failed.
const WRITE_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How often it is said that writing fails.
const WRITE_ERROR_LOG_INTERVAL: Duration = Duration::from_secs(60);
/// How long the last writes may take.
const FINAL_WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// The name of an entry; rising in the order of time.
pub(crate) type EntryId = i64;

/// What is to be in the file.
pub(crate) struct OutboxJournal {
    /// None: there is no file, and nothing is noted.
    file: Option<JournalFile>,
    next: EntryId,
    /// Not yet given to a write, and since when they wait: older ones have lower ids.
    fresh: BTreeMap<EntryId, PendingEntry>,
    /// The starts whose ends have not come, by attempt.
    open: HashMap<AttemptKey, OpenRun>,
    /// What changes in what was given to a write; and since when something does.
    changes: OutboxWrite,
    changed: Option<Instant>,
}

struct JournalFile {
    /// Away while a write has it.
    store: Option<OutboxStore>,
    writing: Option<BoxFuture<'static, WriteResult>>,
    /// Failed, and to be made again before any other.
    failed: Option<OutboxWrite>,
    resume: Instant,
    said: Option<Instant>,
    gate: watch::Sender<bool>,
    _lock: LockedOutbox,
}

struct WriteResult {
    store: OutboxStore,
    write: OutboxWrite,
    verdict: sqlx::Result<()>,
}

struct PendingEntry {
    entry: OutboxEntry,
    since: Instant,
    /// The start this is the end of; it goes when this comes.
    closes: Option<EntryId>,
    /// Whether this is the end of a run.
    is_end: bool,
}

struct OpenRun {
    id: EntryId,
    is_confirmed: bool,
}

impl OutboxJournal {
    /// One that notes nothing.
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

    /// One that keeps a file; `last` is the highest id in it.
    pub(super) fn new(store: OutboxStore, lock: LockedOutbox, last: EntryId, gate: watch::Sender<bool>) -> Self {
        let (resume, said) = (Instant::now(), None);
        let file = JournalFile { store: Some(store), writing: None, failed: None, resume, said, gate, _lock: lock };
        Self { file: Some(file), next: last + 1, ..Self::off() }
    }

    /// Notes a report of a start or of an end.
    pub(crate) fn report(&mut self, report: &StatusReport, body: &Arc<str>, now: Instant) -> EntryId {
        let attempt = (report.occurrence_id, report.attempt);
        if report.status == OccurrenceStatus::Running {
            let id = self.enter(EntryKind::Report, false, attempt.0, body, None, now);
            if self.file.is_some() {
                self.open.insert(attempt, OpenRun { id, is_confirmed: false });
            }
            return id;
        }
        // An unconfirmed start stays: it is to be sent before the end.
        let closes = self.open.remove(&attempt).filter(|open| open.is_confirmed).map(|open| open.id);
        self.enter(EntryKind::Report, true, attempt.0, body, closes, now)
    }

    /// Notes the end of a run of which an earlier process has left the start.
    pub(crate) fn interruption(
        &mut self,
        begun: EntryId,
        report: &StatusReport,
        body: &Arc<str>,
        now: Instant,
    ) -> EntryId {
        self.enter(EntryKind::Report, true, report.occurrence_id, body, Some(begun), now)
    }

    /// Notes that the broker has confirmed a start: it needs no sending, but the run goes on.
    pub(crate) fn started(&mut self, id: EntryId, attempt: AttemptKey, now: Instant) {
        match self.open.get_mut(&attempt).filter(|open| open.id == id) {
            Some(open) => {
                open.is_confirmed = true;
                match self.fresh.get_mut(&id) {
                    Some(fresh) => fresh.entry.kind = EntryKind::Begun,
                    None => self.change(now).begun.push(id),
                }
            }
            // Its end is here already.
            None => self.erase(id, now),
        }
    }

    /// Notes a line.
    pub(crate) fn line(&mut self, occurrence: OccurrenceId, body: &Arc<str>, now: Instant) -> EntryId {
        self.enter(EntryKind::Line, false, occurrence, body, None, now)
    }

    /// Notes that an entry is not needed any more: it is confirmed, or given up.
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

    /// Notes how many lines of an occurrence were given up; none once its log says so.
    pub(crate) fn given_up(&mut self, occurrence: OccurrenceId, given_up: Option<DroppedLines>, now: Instant) {
        if self.file.is_some() {
            self.change(now).given_up.insert(occurrence, given_up);
        }
    }

    /// Begins a write if one is due. While the broker is away everything is due at once: nothing will cancel it out.
    pub(crate) fn begin(&mut self, now: Instant, is_away: bool) {
        if self.due(is_away).is_some_and(|due| due <= now) {
            self.write(now, if is_away { Duration::ZERO } else { WRITE_DELAY });
        }
    }

    /// When [`begin`](Self::begin) has something to do; none if not before something happens.
    pub(crate) fn due(&self, is_away: bool) -> Option<Instant> {
        let file = self.file.as_ref().filter(|file| file.writing.is_none())?;
        if file.failed.is_some() {
            return Some(file.resume);
        }
        let linger = if is_away { Duration::ZERO } else { WRITE_DELAY };
        let oldest = self.fresh.first_key_value().map(|(_, fresh)| fresh.since + linger);
        oldest.into_iter().chain(self.changed.map(|since| since + WRITE_DELAY)).min()
    }

    /// Waits for the write under way; for ever if there is none.
    pub(crate) async fn write_finished(&mut self) {
        let Some(file) = &mut self.file else { return std::future::pending().await };
        let Some(writing) = &mut file.writing else { return std::future::pending().await };
        let WriteResult { store, write, verdict } = writing.await;
        if verdict.is_ok() && !write.entries.is_empty() {
            faults::point("outbox.after_write");
        }
        (file.writing, file.store) = (None, Some(store));
        file.judge(write, verdict);
    }

    /// Writes what is left and closes the file. What cannot be written in time is lost, and that is said.
    pub(crate) async fn close(mut self) {
        let writing = async {
            loop {
                if self.file.as_ref().is_some_and(|file| file.writing.is_some()) {
                    self.write_finished().await;
                }
                let has_failed = self.file.as_ref().is_none_or(|file| file.failed.is_some());
                if has_failed || (self.fresh.is_empty() && self.changed.is_none()) {
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
            tracing::error!(reports = lost, "the outbox could not be written; what the broker did not confirm is lost");
        }
        if let Some(store) = file.store {
            let _ = timeout(FINAL_WRITE_TIMEOUT, store.close()).await;
        }
    }

    fn enter(
        &mut self,
        kind: EntryKind,
        is_end: bool,
        occurrence: OccurrenceId,
        body: &Arc<str>,
        closes: Option<EntryId>,
        since: Instant,
    ) -> EntryId {
        let id = self.next;
        if self.file.is_some() {
            self.next += 1;
            let entry = OutboxEntry { id, kind, occurrence, body: body.clone() };
            self.fresh.insert(id, PendingEntry { entry, since, closes, is_end });
        }
        id
    }

    fn change(&mut self, now: Instant) -> &mut OutboxWrite {
        self.changed.get_or_insert(now);
        &mut self.changes
    }

    /// Gives a write everything that has waited for `linger`.
    fn write(&mut self, now: Instant, linger: Duration) {
        let Some(file) = &mut self.file else { return };
        let Some(mut store) = file.store.take() else { return };
        let again = file.failed.take();
        let is_again = again.is_some();
        let write = again.unwrap_or_else(|| {
            let mut write = std::mem::take(&mut self.changes);
            self.changed = None;
            while write.entries.len() < MAX_WRITE_ENTRIES
                && let Some(oldest) = self.fresh.first_entry()
                && oldest.get().since + linger <= now
            {
                let PendingEntry { entry, closes, is_end, .. } = oldest.remove();
                write.durable |= is_end;
                write.entries.push(entry);
                write.gone.extend(closes);
            }
            write
        });
        let writing = async move {
            let verdict = if is_again { store.write_again(&write).await } else { store.write(&write).await };
            WriteResult { store, write, verdict }
        };
        file.writing = Some(writing.boxed());
    }
}

impl JournalFile {
    /// Opens the gate or shuts it, and says so.
    fn judge(&mut self, write: OutboxWrite, verdict: sqlx::Result<()>) {
        let now = Instant::now();
        match verdict {
            Ok(()) => {
                if !self.gate.send_replace(true) {
                    self.said = None;
                    tracing::info!("the outbox can be written again; new work is taken");
                }
            }
            Err(error) => {
                self.gate.send_replace(false);
                (self.failed, self.resume) = (Some(write), now + WRITE_RETRY_INTERVAL);
                if self.said.is_none_or(|said| now >= said + WRITE_ERROR_LOG_INTERVAL) {
                    self.said = Some(now);
                    tracing::error!(
                        error = %error,
                        "the outbox cannot be written: no new work is taken until it can; see that the disk of MILVAION_OUTBOX has room"
                    );
                }
            }
        }
    }
}
