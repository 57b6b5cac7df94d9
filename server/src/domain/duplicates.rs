//! Which reports of a batch may tell of a second start.
//!
//! An attempt that is started twice is rare, and finding out costs a look at the database; so only reports that give a
//! reason are looked at: those that changed nothing, those that changed what another instance had said it runs, and those
//! of a batch in which two instances speak of one attempt.
//! What is then found in the row is judged by [`milvaion_api::duplicates`].

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use milvaion_protocol::{id::OccurrenceId, message::StatusReport, status::OccurrenceStatus};

/// A report that says that its instance started an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedStart {
    /// Of which occurrence.
    pub occurrence_id: OccurrenceId,
    /// Which attempt.
    pub attempt: i32,
    /// Who.
    pub instance_id: String,
    /// When, by its clock.
    pub at: DateTime<Utc>,
}

/// The starts that a batch of reports tells of.
#[derive(Clone, Debug, Default)]
pub struct ReportedStarts {
    starts: Vec<ReportedStart>,
    /// Attempts that several instances speak of.
    contested: HashSet<(OccurrenceId, i32)>,
}

impl ReportedStarts {
    /// Those in `reports`: each that says Running, and each end that only who ran it can tell. Progress tells nothing
    /// new, and an attempt may be reported as cancelled by who never started it.
    #[must_use]
    pub fn of(reports: &[StatusReport]) -> Self {
        let mut told = Self::default();
        let mut first: HashMap<(OccurrenceId, i32), &str> = HashMap::with_capacity(reports.len());
        for report in reports {
            let tells = match report.status {
                OccurrenceStatus::Running => report.progress.is_none(),
                OccurrenceStatus::Completed | OccurrenceStatus::Failed | OccurrenceStatus::TimedOut => true,
                _ => false,
            };
            if !tells {
                continue;
            }
            let attempt = i32::try_from(report.attempt).unwrap_or(i32::MAX);
            let key = (report.occurrence_id, attempt);
            match first.get(&key) {
                Some(instance) if *instance == report.instance_id => continue,
                Some(_) => drop(told.contested.insert(key)),
                None => drop(first.insert(key, &report.instance_id)),
            }
            told.starts.push(ReportedStart {
                occurrence_id: report.occurrence_id,
                attempt,
                instance_id: report.instance_id.clone(),
                at: report.timestamp,
            });
        }
        told
    }

    /// Those worth a look. `undisputed` are the occurrences that the batch has changed, without those that were another
    /// instance's until then.
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

    use super::*;

    fn id(n: u8) -> OccurrenceId {
        OccurrenceId::from_parts(DateTime::UNIX_EPOCH, [n; 10])
    }

    fn report(n: u8, attempt: u32, instance: &str, status: OccurrenceStatus) -> StatusReport {
        let json = serde_json::json!({
            "occurrenceId": id(n), "attempt": attempt, "instanceId": instance, "status": status,
            "timestamp": DateTime::UNIX_EPOCH,
        });
        serde_json::from_value(json).expect("a report")
    }

    fn suspects(reports: &[StatusReport], changed: &[u8]) -> Vec<(OccurrenceId, i32, String)> {
        let changed = changed.iter().copied().map(id).collect();
        let suspects = ReportedStarts::of(reports).suspects(&changed);
        suspects.into_iter().map(|start| (start.occurrence_id, start.attempt, start.instance_id)).collect()
    }

    #[test]
    fn a_batch_that_changed_every_row_gives_no_reason_to_look() {
        use OccurrenceStatus as S;
        let reports = [report(1, 1, "a", S::Running), report(1, 1, "a", S::Completed), report(2, 1, "b", S::Running)];
        assert_eq!(suspects(&reports, &[1, 2]), []);
    }

    #[test]
    fn what_changed_nothing_is_looked_at_unless_it_tells_of_no_start() {
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
    fn two_instances_in_one_batch_are_looked_at_even_if_it_changed_the_row() {
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
}
