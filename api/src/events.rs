//! What browsers hear.
//!
//! An event is published after its change is committed, by the server that committed it, to every server, and by each of
//! them to its browsers. It carries the row as it was then and that row's `version`, so that a late event cannot undo a
//! newer one; but nothing depends on an event arriving: whoever misses one is told to [`LiveEvent::Resync`] and reads again.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::views::OccurrenceRow;
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::LogLine,
};

/// One event on its way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventEnvelope {
    /// Unique; every server delivers the same ids in the same order, so a browser may resume at any of them.
    pub id: String,
    /// When the change was committed.
    pub at: DateTime<Utc>,
    /// What changed.
    pub event: LiveEvent,
}

/// What changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum LiveEvent {
    /// Occurrences appeared or changed.
    Occurrences {
        /// As they are now.
        rows: Vec<OccurrenceRow>,
    },
    /// A job was created, changed, paused, resumed, or its next fire time moved.
    Job {
        /// Which.
        id: JobId,
    },
    /// A job was deleted.
    JobDeleted {
        /// Which.
        id: JobId,
    },
    /// An occurrence wrote log lines. Sent only to those who look at it.
    Log {
        /// Which.
        #[serde(rename = "occurrenceId")]
        occurrence_id: OccurrenceId,
        /// In order.
        lines: Vec<LogLine>,
    },
    /// Workers came or went.
    Workers,
    /// Everything was paused or resumed.
    Cluster,
    /// Something may have been missed: read again what is on the page.
    Resync,
}
