//! The live events for browsers.
//!
//! The server that commits a change publishes the event after the commit to every server, and each server sends it to
//! its browsers. An event carries the row as of then with the row's `version`, so that a late event cannot overwrite a
//! newer one. Nothing depends on the delivery of an event: a browser that missed one receives [`LiveEvent::Resync`] and
//! reads its page again.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::views::OccurrenceRow;
use milvaion_protocol::{
    id::{JobId, OccurrenceId},
    message::LogLine,
};

/// An event with its id and time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventEnvelope {
    /// The unique id. Every server delivers the same ids in the same order, so that a browser can resume at any of
    /// them.
    pub id: String,
    /// The time of the commit.
    pub at: DateTime<Utc>,
    /// The change.
    pub event: LiveEvent,
}

/// The change that an event reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum LiveEvent {
    /// Occurrences were created or changed.
    Occurrences {
        /// The occurrences after the change.
        rows: Vec<OccurrenceRow>,
    },
    /// A job was created, changed, paused or resumed, or its next due time changed.
    Job {
        /// The id of the job.
        id: JobId,
    },
    /// A job was deleted.
    JobDeleted {
        /// The id of the job.
        id: JobId,
    },
    /// A run wrote log lines. The event is sent only to browsers that show the occurrence.
    Log {
        /// The id of the occurrence.
        #[serde(rename = "occurrenceId")]
        occurrence_id: OccurrenceId,
        /// The lines, oldest first.
        lines: Vec<LogLine>,
    },
    /// Worker instances started or stopped.
    Workers,
    /// The cluster was paused or resumed.
    Cluster,
    /// Events may have been missed, so the page must be read again.
    Resync,
}
