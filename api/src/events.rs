//! The live events for browsers.
//!
//! The server that commits a change publishes the event after the commit to every server, and each server sends it to
//! its browsers. An event carries the row as of then with the row's `version`, so that a late event cannot overwrite a
//! newer one. Nothing depends on the delivery of an event: a browser that missed one receives [`LiveEvent::Resync`] and
//! reads its page again.
//!
//! Besides events, a stream carries the user of its session, when the stream opens and when the role changes
//! ([`SESSION_FRAME`]), and the reason for which the session ended ([`SESSION_END_FRAME`]). Both come from the server's
//! own check of the session, never from another server. It begins with the build of the dashboard that this server has
//! ([`BUILD_FRAME`]), so that a page of another build can offer to reload.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::views::OccurrenceRow;
use milvaion_protocol::id::{CalendarId, JobId, OccurrenceId, UserId};

/// The name of the frame with the signed-in user, as the JSON of a [`CurrentUser`](crate::views::CurrentUser).
pub const SESSION_FRAME: &str = "session";
/// The name of the frame with the slug of the [`StreamEndReason`], which is the last frame of its stream.
pub const SESSION_END_FRAME: &str = "session-end";
/// The name of the frame with the name of the server's build of the dashboard. A server without a build sends none.
pub const BUILD_FRAME: &str = "build";

/// The reason for which a server ended a stream for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEndReason {
    /// The session was signed out, in another tab or by a new sign-in.
    SignedOut,
    /// The session was not used for too long or reached its maximum age.
    Expired,
    /// The session was ended from another device, or by an Admin.
    Revoked,
    /// The passphrase was changed, which ends all other sessions of the user.
    PassphraseChanged,
    /// The user was deactivated or deleted, or the role allows no reading.
    Deactivated,
}

impl StreamEndReason {
    /// Returns the name in the frame.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::SignedOut => "signed-out",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::PassphraseChanged => "passphrase-changed",
            Self::Deactivated => "deactivated",
        }
    }

    /// Returns the reason with this name. An unknown name comes from a newer server and counts as signed out.
    #[must_use]
    pub fn of_slug(slug: &str) -> Self {
        match slug {
            "expired" => Self::Expired,
            "revoked" => Self::Revoked,
            "passphrase-changed" => Self::PassphraseChanged,
            "deactivated" => Self::Deactivated,
            _ => Self::SignedOut,
        }
    }
}

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
// Externally tagged, because serde reads any other form into a buffer first: every page would load a second decoder of
// each type in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
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
    /// Runs wrote log lines. The event has none of them: a page that shows such a log reads it after its last line. Each
    /// server publishes at most two of these events in a second.
    Log {
        /// The ids of the occurrences; empty if they are more than an event names.
        ids: Vec<OccurrenceId>,
    },
    /// A calendar was created, changed or deleted, or its change was applied to more of its jobs.
    Calendar {
        /// The id of the calendar.
        id: CalendarId,
    },
    /// Worker instances started or stopped.
    Workers,
    /// The cluster was paused or resumed.
    Cluster,
    /// Alerts started to fire or were resolved, or an alert rule or channel changed.
    Alerts,
    /// A session of this user ended, or the user's role changed. Servers check their streams of this user again. The
    /// event is never sent to a browser.
    Session {
        /// The id of the user.
        #[serde(rename = "userId")]
        user_id: UserId,
    },
    /// Events may have been missed, so the page must be read again.
    Resync,
}

impl LiveEvent {
    /// Returns true if the log of an occurrence may have new lines.
    #[must_use]
    pub fn concerns_log(&self, id: OccurrenceId) -> bool {
        matches!(self, Self::Log { ids } if ids.is_empty() || ids.contains(&id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_about_many_logs_concerns_each() {
        let (one, other) = (OccurrenceId::from_parts(DateTime::UNIX_EPOCH, [1; 10]), OccurrenceId::default());
        assert!(LiveEvent::Log { ids: vec![one] }.concerns_log(one));
        assert!(!LiveEvent::Log { ids: vec![one] }.concerns_log(other));
        assert!(LiveEvent::Log { ids: Vec::new() }.concerns_log(other));
        assert!(!LiveEvent::Resync.concerns_log(one));
    }
}
