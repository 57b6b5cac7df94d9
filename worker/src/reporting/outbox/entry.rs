//! The entries of the outbox, and the changes that a write makes.
//!
//! They are apart from the file that stores them, because a worker without the feature `outbox` decides with the same
//! types and writes nothing.

use std::{collections::HashMap, sync::Arc};

use milvaion_protocol::id::OccurrenceId;

use crate::delivery::claim::AttemptKey;

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryKind {
    /// A report that the broker has not confirmed.
    Report = 0,
    /// The confirmed start of a current run.
    Begun = 1,
    /// A log line that the broker has not confirmed.
    Line = 2,
}

/// An entry of the file.
#[derive(Clone, Debug)]
pub(super) struct OutboxEntry {
    pub(super) id: i64,
    pub(super) kind: EntryKind,
    pub(super) occurrence: OccurrenceId,
    pub(super) body: Arc<str>,
}

/// The number of dropped lines of an occurrence, and the number of the last of them.
pub(crate) type DroppedLines = (u64, i64);

/// The content of a file, in order.
#[derive(Debug, Default)]
pub(super) struct StoredEntries {
    pub(super) entries: Vec<OutboxEntry>,
    pub(super) dropped_lines: Vec<(OccurrenceId, DroppedLines)>,
}

/// The changes of one transaction.
#[derive(Debug, Default)]
pub(super) struct OutboxWrite {
    /// Entries to insert.
    pub(super) entries: Vec<OutboxEntry>,
    /// Starts that are now confirmed.
    pub(super) begun: Vec<i64>,
    /// Entries to delete.
    pub(super) gone: Vec<i64>,
    /// New counts of dropped lines. `None` deletes the count.
    pub(super) dropped_lines: HashMap<OccurrenceId, Option<DroppedLines>>,
    /// The attempts whose ends are among the entries. A write with an end must survive a loss of power.
    pub(super) ends: Vec<AttemptKey>,
}
