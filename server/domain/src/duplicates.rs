//! Selects the reports of a batch that may show a second start of an attempt, or a start after the end.
//!
//! The same instance may start an attempt twice, too, if it does not keep a table of what it runs. Its second start has
//! another time than the first; a report that is sent again has the same.
//!
//! Such a start is rare, and detecting it costs a database query. Only suspicious reports are therefore
//! looked up: reports that changed no row, reports that changed a row which another instance had reported as its own,
//! and reports of a batch in which two instances report the same attempt. [`milvaion_api::duplicates`] then judges the
//! row.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use milvaion_api::duplicates;
use milvaion_protocol::{
    id::OccurrenceId,
    message::{CancelMessage, StatusReport},
    status::OccurrenceStatus,
};

use super::message::cancel_message;

/// The start of an attempt on one instance, as a report implies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedStart {
    /// The occurrence.
    pub occurrence_id: OccurrenceId,
    /// The attempt, from 1.
    pub attempt: i32,
    /// The instance that started it.
    pub instance_id: String,
    /// The time of the report, by the instance's clock.
    pub at: DateTime<Utc>,
    /// True if the report is that of a start, so that `at` is the time of the start.
    pub is_start: bool,
}

/// The end of an occurrence, as far as it tells which starts came before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedEnd {
    /// The final status.
    pub status: OccurrenceStatus,
    /// The attempt in force at the end.
    pub attempt: i32,
    /// The instance that ran it, or that was the last to run it; none if no instance had reported it.
    pub instance_id: Option<String>,
}

impl RecordedEnd {
    /// Returns true if the occurrence ended before this start became known, unless an instance had started the attempt
    /// before. A repeated or overtaken report of the run that brought the end is no such start, and neither is one about an
    /// earlier attempt, which the server had given up before.
    #[must_use]
    pub fn was_not_started_by(&self, start: &ReportedStart) -> bool {
        self.attempt == start.attempt && self.instance_id.as_deref() != Some(&start.instance_id)
    }
}

/// A run that goes on although its occurrence has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateRun {
    /// The occurrence.
    pub id: OccurrenceId,
    /// The last attempt of the occurrence.
    pub attempt: i32,
    /// The final status of the occurrence.
    pub status: OccurrenceStatus,
}

impl LateRun {
    /// Returns the request to stop the run.
    #[must_use]
    pub fn cancel_message(self) -> CancelMessage {
        let reason = format!("The occurrence was already {}.", self.status.label().to_lowercase());
        cancel_message(self.id, self.attempt, reason)
    }
}

/// The starts that a batch of reports implies.
#[derive(Clone, Debug, Default)]
pub struct ReportedStarts {
    starts: Vec<ReportedStart>,
    /// Attempts that several instances reported.
    contested: HashSet<(OccurrenceId, i32)>,
}

impl ReportedStarts {
    /// Collects the starts in `reports`: each report of a start, and each end that only the running instance can report.
    /// Reports with progress or a checkpoint imply no new start, and an instance may report an attempt as cancelled without
    /// starting it.
    #[must_use]
    pub fn of(reports: &[StatusReport]) -> Self {
        let mut found = Self::default();
        let mut first: HashMap<(OccurrenceId, i32), (&str, DateTime<Utc>)> = HashMap::with_capacity(reports.len());
        for report in reports {
            let implies_start = match report.status {
                OccurrenceStatus::Running => report.is_start(),
                OccurrenceStatus::Completed | OccurrenceStatus::Failed | OccurrenceStatus::TimedOut => true,
                _ => false,
            };
            if !implies_start {
                continue;
            }
            let attempt = i32::try_from(report.attempt).unwrap_or(i32::MAX);
            let key = (report.occurrence_id, attempt);
            let is_start = report.status == OccurrenceStatus::Running;
            match first.get(&key) {
                // A start with another time than the one before is a second one; a repeated report is none.
                Some((instance, at)) if *instance == report.instance_id => {
                    let gap = (report.timestamp - *at).num_seconds().abs();
                    if !is_start || gap < duplicates::SAME_START_SECONDS {
                        continue;
                    }
                    found.contested.insert(key);
                }
                Some(_) => drop(found.contested.insert(key)),
                None => drop(first.insert(key, (&report.instance_id, report.timestamp))),
            }
            found.starts.push(ReportedStart {
                occurrence_id: report.occurrence_id,
                attempt,
                instance_id: report.instance_id.clone(),
                at: report.timestamp,
                is_start,
            });
        }
        found
    }

    /// Returns the starts that need a database lookup. `undisputed` are the occurrences that the batch changed, except
    /// those whose row named another instance before.
    #[must_use]
    pub fn suspects(self, undisputed: &HashSet<OccurrenceId>) -> Vec<ReportedStart> {
        let Self { mut starts, contested } = self;
        starts.retain(|start| {
            !undisputed.contains(&start.occurrence_id) || contested.contains(&(start.occurrence_id, start.attempt))
        });
        starts
    }
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::message::RunProgress;
    use serde_json::json;

    use super::*;

    fn id(n: u8) -> OccurrenceId {
        OccurrenceId::from_parts(DateTime::UNIX_EPOCH, [n; 10])
    }

    fn report(n: u8, attempt: u32, instance: &str, status: OccurrenceStatus) -> StatusReport {
        let json = serde_json::json!({
            "occurrenceId": id(n), "attempt": attempt, "instanceId": instance, "status": status,
            "timestamp": DateTime::UNIX_EPOCH,
        });
        serde_json::from_value(json).expect("a valid report")
    }

    fn suspects(reports: &[StatusReport], changed: &[u8]) -> Vec<(OccurrenceId, i32, String)> {
        let changed = changed.iter().copied().map(id).collect();
        let suspects = ReportedStarts::of(reports).suspects(&changed);
        suspects.into_iter().map(|start| (start.occurrence_id, start.attempt, start.instance_id)).collect()
    }

    #[test]
    fn batch_that_changed_every_row_has_no_suspects() {
        use OccurrenceStatus as S;
        let reports = [report(1, 1, "a", S::Running), report(1, 1, "a", S::Completed), report(2, 1, "b", S::Running)];
        assert_eq!(suspects(&reports, &[1, 2]), []);
    }

    #[test]
    fn starts_that_changed_nothing_are_suspects() {
        use OccurrenceStatus as S;
        let progress = RunProgress { percent: 1, message: String::new() };
        let reports = [
            report(1, 1, "a", S::Running),
            report(1, 1, "a", S::Failed),
            StatusReport { progress: Some(progress), ..report(2, 1, "a", S::Running) },
            report(3, 1, "a", S::Cancelled),
            report(4, 2, "b", S::Completed),
        ];
        assert_eq!(suspects(&reports, &[]), [(id(1), 1, "a".to_owned()), (id(4), 2, "b".to_owned())]);
    }

    #[test]
    fn two_instances_in_one_batch_are_suspects() {
        use OccurrenceStatus as S;
        let reports = [
            report(1, 1, "a", S::Running),
            report(1, 1, "b", S::Running),
            report(1, 1, "b", S::Completed),
            report(1, 2, "b", S::Running),
        ];
        assert_eq!(
            suspects(&reports, &[1]),
            [(id(1), 1, "a".to_owned()), (id(1), 1, "b".to_owned()), (id(1), 1, "b".to_owned())]
        );
    }

    #[test]
    fn report_during_a_run_is_no_start() {
        let start = report(1, 1, "a", OccurrenceStatus::Running);
        let later = StatusReport { timestamp: start.timestamp + chrono::TimeDelta::seconds(60), ..start.clone() };
        let checkpoint = StatusReport { checkpoint: Some(json!({ "row": 7 })), ..later.clone() };
        assert_eq!(suspects(&[start.clone(), checkpoint], &[1]), []);
        let unreadable = StatusReport { is_incomplete: true, ..later.clone() };
        assert_eq!(suspects(&[start.clone(), unreadable], &[1]), [], "its progress could not be read");
        assert_eq!(suspects(&[start, later], &[1]).len(), 2, "without either it is a second start");
    }

    #[test]
    fn second_start_by_one_instance_is_a_suspect() {
        use OccurrenceStatus as S;
        let first = report(1, 1, "a", S::Running);
        let later = |seconds| StatusReport {
            timestamp: DateTime::UNIX_EPOCH + chrono::Duration::seconds(seconds),
            ..first.clone()
        };
        assert_eq!(suspects(&[first.clone(), later(0), later(2)], &[1]), [], "one start");
        let end = StatusReport { status: S::Completed, ..later(20) };
        assert_eq!(suspects(&[first.clone(), end], &[1]), [], "the end is no start");
        assert_eq!(suspects(&[first.clone(), later(10)], &[1]).len(), 2);
    }

    #[test]
    fn run_that_brought_the_end_did_not_start_after_it() {
        let start = |attempt, instance: &str| ReportedStart {
            occurrence_id: id(1),
            attempt,
            instance_id: instance.to_owned(),
            at: DateTime::UNIX_EPOCH,
            is_start: true,
        };
        let end = |instance: Option<&str>| RecordedEnd {
            status: OccurrenceStatus::Cancelled,
            attempt: 2,
            instance_id: instance.map(str::to_owned),
        };
        assert!(end(None).was_not_started_by(&start(2, "a")), "it was cancelled in the queue");
        assert!(end(Some("b")).was_not_started_by(&start(2, "a")));
        assert!(!end(Some("a")).was_not_started_by(&start(2, "a")));
        assert!(!end(None).was_not_started_by(&start(1, "a")), "the report of an attempt that was handed back");
        let late = LateRun { id: id(1), attempt: 2, status: OccurrenceStatus::TimedOut };
        assert_eq!(late.cancel_message().reason, "The occurrence was already timed out.");
    }
}
