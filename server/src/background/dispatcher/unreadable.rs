//! The due jobs that this server leaves to a newer one, because it cannot read a part of them.
//!
//! During a rolling upgrade an old server may lead while a newer one writes. A default in place of what cannot be read
//! could start a run that must not start, so the job stays due until a newer server leads. It is left out of the next
//! batches, which it would fill otherwise, and looked at again now and then: it may have been edited, or its calendar.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use milvaion_protocol::id::JobId;
use tokio::time::Instant;

use crate::store::{calendars::CalendarSet, jobs::UNREADABLE_SCHEDULE, plan::DueJob};

/// The time after which a job that cannot be read is looked at again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(60);
/// The time after which a job that was not found again is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(600);

/// The jobs that cannot be read. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct UnreadableJobs(Arc<Mutex<HashMap<JobId, UnreadableJob>>>);

#[derive(Clone, Copy, Debug)]
struct UnreadableJob {
    /// The version that cannot be read. An edit makes a new one, which is looked at.
    version: i32,
    seen_at: Instant,
}

impl UnreadableJobs {
    /// Returns the jobs that the next batch leaves out, with their versions.
    #[must_use]
    pub fn left_out(&self) -> Vec<(JobId, i32)> {
        let mut jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.retain(|_, job| job.seen_at.elapsed() < FORGET_AFTER);
        let is_recent = |(_, job): &(&JobId, &UnreadableJob)| job.seen_at.elapsed() < RECHECK_INTERVAL;
        jobs.iter().filter(is_recent).map(|(id, job)| (*id, job.version)).collect()
    }

    /// Leaves a job out from now on, and logs it if it is a new one.
    pub(super) fn note(&self, job: &DueJob, part: &str) {
        let noted = UnreadableJob { version: job.version, seen_at: Instant::now() };
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(job.id, noted);
        if known.is_none_or(|known| known.version != job.version) {
            tracing::warn!(
                job.id = %job.id,
                job.name = job.display_name,
                "job {} is due and is left to a newer server, because this one cannot read {part}; upgrade this server",
                job.id
            );
        }
    }
}

/// Describes the part of a job that this version cannot read.
pub(super) fn unreadable_part(job: &DueJob, calendars: &CalendarSet) -> Option<String> {
    if job.schedule.as_ref().is_none_or(|schedule| schedule.check().is_err()) {
        return Some(UNREADABLE_SCHEDULE.to_owned());
    }
    job.unreadable_rule.clone().or_else(|| calendars.unreadable_among(&job.rules.calendars))
}

#[cfg(test)]
mod tests {
    use milvaion_schedule::{rules::Rules, schedule::Schedule};

    use super::{super::decide::tests::job, *};

    #[tokio::test(start_paused = true)]
    async fn job_is_looked_at_again_after_a_while() {
        let jobs = UnreadableJobs::default();
        let unreadable = job(1, Rules::default(), chrono::DateTime::UNIX_EPOCH);
        jobs.note(&unreadable, "the schedule");
        assert_eq!(jobs.left_out(), [(unreadable.id, 1)]);
        tokio::time::advance(RECHECK_INTERVAL).await;
        assert_eq!(jobs.left_out(), []);
        jobs.note(&DueJob { version: 2, ..unreadable.clone() }, "the schedule");
        assert_eq!(jobs.left_out(), [(unreadable.id, 2)]);
    }

    #[test]
    fn unreadable_part_is_named() {
        let readable = job(1, Rules::default(), chrono::DateTime::UNIX_EPOCH);
        let part = |job: &DueJob| unreadable_part(job, &CalendarSet::default());
        assert_eq!(part(&readable), None);
        let schedule = Some(Schedule::Cron { expression: "0 0 * * *".into(), zone: "Luna/Tycho".into() });
        assert_eq!(part(&DueJob { schedule, ..readable.clone() }).as_deref(), Some("the schedule"));
        let rule = Some("the misfire policy “later”".to_owned());
        assert_eq!(part(&DueJob { unreadable_rule: rule.clone(), ..readable }), rule);
    }
}
