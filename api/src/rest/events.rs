//! The events of the stream for programs.

use milvaion_protocol::{
    id::{CalendarId, JobId, OccurrenceId},
    message::LogLine,
};
use serde::{Deserialize, Serialize};

use super::Occurrence;
use crate::events::LiveEvent;

/// A change that the stream reports. Its kind is also the name of the frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ApiEvent {
    /// Occurrences were created or changed.
    Occurrences {
        /// The occurrences after the change.
        items: Vec<Occurrence>,
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
    /// A run wrote log lines. Only a stream of that occurrence reports them.
    Log {
        /// The id of the occurrence.
        #[serde(rename = "occurrenceId")]
        occurrence_id: OccurrenceId,
        /// The lines, oldest first.
        lines: Vec<LogLine>,
    },
    /// A calendar was created, changed or deleted.
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
    /// Events may have been missed: read again what the program keeps.
    Resync,
}

impl ApiEvent {
    /// Returns the kind.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Occurrences { .. } => "occurrences",
            Self::Job { .. } => "job",
            Self::JobDeleted { .. } => "job_deleted",
            Self::Log { .. } => "log",
            Self::Calendar { .. } => "calendar",
            Self::Workers => "workers",
            Self::Cluster => "cluster",
            Self::Alerts => "alerts",
            Self::Resync => "resync",
        }
    }

    /// Returns the public form of an event, as far as the filter of a stream includes it; none for events between
    /// servers and for those that the filter excludes. The stream itself reads log lines, which no event has.
    #[must_use]
    pub fn of(event: &LiveEvent, job: Option<JobId>, occurrence: Option<OccurrenceId>) -> Option<Self> {
        let is_job = |id: JobId| occurrence.is_none() && job.is_none_or(|job| job == id);
        let is_unfiltered = job.is_none() && occurrence.is_none();
        match event {
            LiveEvent::Occurrences { rows } => {
                let wanted = rows.iter().filter(|row| {
                    job.is_none_or(|job| job == row.job_id) && occurrence.is_none_or(|occurrence| occurrence == row.id)
                });
                let items: Vec<Occurrence> = wanted.cloned().map(Into::into).collect();
                (!items.is_empty()).then_some(Self::Occurrences { items })
            }
            LiveEvent::Job { id } => is_job(*id).then_some(Self::Job { id: *id }),
            LiveEvent::JobDeleted { id } => is_job(*id).then_some(Self::JobDeleted { id: *id }),
            LiveEvent::Calendar { id } => is_unfiltered.then_some(Self::Calendar { id: *id }),
            LiveEvent::Workers => is_unfiltered.then_some(Self::Workers),
            LiveEvent::Cluster => is_unfiltered.then_some(Self::Cluster),
            LiveEvent::Alerts => is_unfiltered.then_some(Self::Alerts),
            LiveEvent::Resync => Some(Self::Resync),
            LiveEvent::Log { .. } | LiveEvent::Session { .. } => None,
        }
    }
}

/// The filter of the stream of events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase")]
pub struct EventQuery {
    /// Only events of this job and its occurrences.
    pub job_id: Option<JobId>,
    /// Only events of this occurrence, and its log lines.
    pub occurrence_id: Option<OccurrenceId>,
    /// The id of the last event that the caller received. The header `Last-Event-ID` takes precedence.
    #[cfg_attr(feature = "schema", schemars(length(max = 100)))]
    pub last: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_of_a_job_excludes_other_jobs() {
        let id = JobId::from_parts(chrono::DateTime::UNIX_EPOCH, [1; 10]);
        let event = LiveEvent::Job { id };
        assert_eq!(ApiEvent::of(&event, Some(id), None), Some(ApiEvent::Job { id }));
        assert_eq!(ApiEvent::of(&event, None, None), Some(ApiEvent::Job { id }));
        assert_eq!(ApiEvent::of(&event, Some(JobId::default()), None), None);
        assert_eq!(ApiEvent::of(&LiveEvent::Workers, Some(id), None), None);
        assert_eq!(ApiEvent::of(&LiveEvent::Resync, Some(id), None), Some(ApiEvent::Resync), "it concerns all");
    }

    #[test]
    fn kind_is_the_word_in_json() {
        for event in [ApiEvent::Workers, ApiEvent::JobDeleted { id: JobId::default() }] {
            assert_eq!(serde_json::to_value(&event).expect("JSON")["kind"], event.kind());
        }
    }
}
