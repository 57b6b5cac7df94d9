//! The decisions of one batch: for each due job, whether it runs now and when it is due next.
//!
//! Deciding is arithmetic. For most jobs it takes microseconds; a job with full calendars, or one that catches up on many
//! misfires, takes up to a second. Such a batch is decided on a thread of its own, so that no connection, lease or page
//! waits for it, and it ends early when it takes too long: the jobs that are left are still due at the next tick.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use chrono::{DateTime, Utc};
use milvaion_protocol::id::{CalendarId, JobId};
use milvaion_schedule::{
    calendar::Calendar,
    due::{CatchUp, DueAction, DueDecision, EffectiveSchedule, MISFIRE_GRACE},
    rules::MisfirePolicy,
};
use tokio::time::Instant;

use super::{DispatchReport, Dispatcher, unreadable::unreadable_part};
use crate::store::{calendars::CalendarSet, create::NewRun, due_times::DueTimeMove, plan::DueJob};

/// The longest time for the decisions of one batch. At least one job is decided.
const MAX_DECIDING: Duration = Duration::from_millis(250);
/// The most jobs whose catch-up is remembered. Without it, a decision takes longer but is the same.
const MAX_CATCH_UPS: usize = 10_000;

/// The walks over misfires of the jobs that are catching up, kept from one batch to the next. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct CatchUps(Arc<Mutex<HashMap<JobId, (i32, CatchUp)>>>);

impl CatchUps {
    fn get(&self, job: &DueJob) -> Option<CatchUp> {
        let walks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        walks.get(&job.id).filter(|(version, _)| *version == job.version).map(|(_, walk)| *walk)
    }

    fn set(&self, job: &DueJob, walk: Option<CatchUp>, now: DateTime<Utc>) {
        let mut walks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match walk {
            Some(walk) => {
                if walks.len() >= MAX_CATCH_UPS {
                    walks.retain(|_, (_, walk)| now - walk.decided_at <= MISFIRE_GRACE);
                }
                if walks.len() < MAX_CATCH_UPS {
                    walks.insert(job.id, (job.version, walk));
                }
            }
            None => {
                walks.remove(&job.id);
            }
        }
    }
}

/// A batch of jobs that can be read, with what its decisions need.
#[derive(Debug)]
struct Batch {
    jobs: Vec<DueJob>,
    calendars: HashMap<CalendarId, Calendar>,
    catch_ups: CatchUps,
    /// Jobs whose due time was dispatched before, by a clock that was ahead.
    repeated: HashSet<JobId>,
    now: DateTime<Utc>,
}

impl Batch {
    /// Returns true if the decisions may take long.
    fn is_costly(&self) -> bool {
        let catches_up =
            |job: &DueJob| job.rules.misfire == MisfirePolicy::CatchUp && self.now - job.next_fire_at > MISFIRE_GRACE;
        self.jobs.iter().any(|job| !job.rules.calendars.is_empty() || catches_up(job))
    }

    /// Decides about the jobs in their order, until `until` at the latest.
    fn decide(&self, until: Instant) -> Vec<DueDecision> {
        let mut decisions = Vec::with_capacity(self.jobs.len());
        for job in &self.jobs {
            if !decisions.is_empty() && Instant::now() > until {
                break;
            }
            decisions.push(self.decide_job(job));
        }
        decisions
    }

    fn decide_job(&self, job: &DueJob) -> DueDecision {
        let calendars: Vec<&Calendar> = job.rules.calendars.iter().filter_map(|id| self.calendars.get(id)).collect();
        // A batch contains only jobs with a schedule.
        let manual = milvaion_schedule::schedule::Schedule::Manual;
        let schedule = EffectiveSchedule::new(job.id, job.schedule.as_ref().unwrap_or(&manual), &job.rules, &calendars);
        let due = job.next_fire_at;
        let known = self.catch_ups.get(job);
        let mut decision = schedule.decide(due, self.now, known);
        if decision.catch_up != known {
            self.catch_ups.set(job, decision.catch_up, self.now);
        }
        if self.repeated.contains(&job.id) {
            // Up to the last due time, others may not have been dispatched. Once it has passed, they are too old.
            let after = job.last_fire_at.filter(|last| *last < self.now).unwrap_or(due).max(due);
            decision.next_fire_at = schedule.following(after, after);
        }
        decision
    }
}

impl Dispatcher {
    /// Decides about due jobs. Returns the jobs and their occurrences; jobs that are left out are still due, or need
    /// none.
    pub(super) async fn decide(
        &self,
        jobs: Vec<DueJob>,
        now: DateTime<Utc>,
        report: &mut DispatchReport,
    ) -> anyhow::Result<(Vec<DueJob>, Vec<NewRun>)> {
        let ids: HashSet<CalendarId> = jobs.iter().flat_map(|job| job.rules.calendars.iter().copied()).collect();
        let calendars = if ids.is_empty() { CalendarSet::default() } else { self.store.calendars_by_id(&ids).await? };
        let mut readable = Vec::with_capacity(jobs.len());
        let mut repeated = HashSet::new();
        for job in jobs {
            // One unreadable row must not stop the other jobs.
            if let Some(part) = unreadable_part(&job, &calendars) {
                self.unreadable.note(&job, &part);
                report.unreadable += 1;
                continue;
            }
            let was_passed = job.last_fire_at.is_some_and(|last| last >= job.next_fire_at);
            if was_passed && self.store.has_scheduled_run(job.id, job.next_fire_at).await? {
                repeated.insert(job.id);
            }
            readable.push(job);
        }
        let calendars = calendars.readable;
        let batch = Batch { jobs: readable, calendars, catch_ups: self.catch_ups.clone(), repeated, now };
        let (batch, decisions) = if batch.is_costly() {
            let until = Instant::now() + MAX_DECIDING;
            tokio::task::spawn_blocking(move || {
                let decisions = batch.decide(until);
                (batch, decisions)
            })
            .await?
        } else {
            let decisions = batch.decide(Instant::now() + MAX_DECIDING);
            (batch, decisions)
        };
        let Batch { jobs, repeated, .. } = batch;
        let mut runs = Vec::with_capacity(decisions.len());
        let mut passed = Vec::new();
        for (job, decision) in jobs.iter().zip(decisions) {
            if repeated.contains(&job.id) {
                let (was, next) = (Some(job.next_fire_at), decision.next_fire_at);
                passed.push(DueTimeMove { id: job.id, version: job.version, was, next });
                continue;
            }
            // It would be due again at once and for ever, and with enough others it would fill every batch.
            if decision.next_fire_at.is_some_and(|next| next <= job.next_fire_at) {
                self.unreadable.note(job, "a due time after the present one");
                report.unreadable += 1;
                continue;
            }
            runs.push(NewRun {
                id: self.clock.occurrence_id(),
                job_id: job.id,
                due: Some(job.next_fire_at),
                version: job.version,
                next_fire_at: decision.next_fire_at,
                is_skipped: decision.action == DueAction::Skip,
                note: decision.note,
                ..NewRun::default()
            });
        }
        if !passed.is_empty() {
            report.repeated = self.store.move_due_times(&passed).await?.len();
        }
        Ok((jobs, runs))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use milvaion_schedule::{rules::Rules, schedule::Schedule};
    use serde_json::Value;

    use super::*;

    /// Returns a job that is due every minute.
    pub(in crate::background::dispatcher) fn job(id: u128, rules: Rules, due: DateTime<Utc>) -> DueJob {
        DueJob {
            id: JobId(uuid::Uuid::from_u128(id)),
            display_name: String::new(),
            worker_id: String::new(),
            job_type: String::new(),
            job_data: Value::Null,
            schedule: Some(Schedule::every(60)),
            next_fire_at: due,
            last_fire_at: None,
            rules,
            unreadable_rule: None,
            version: 1,
            priority: 3,
            timeout_seconds: None,
        }
    }

    fn batch(jobs: Vec<DueJob>) -> Batch {
        let now = DateTime::UNIX_EPOCH + chrono::Duration::hours(10);
        Batch { jobs, calendars: HashMap::new(), catch_ups: CatchUps::default(), repeated: HashSet::new(), now }
    }

    #[tokio::test(start_paused = true)]
    async fn batch_that_takes_too_long_ends_after_one_job() {
        let jobs = (0..3).map(|id| job(id, Rules::default(), DateTime::UNIX_EPOCH)).collect();
        let batch = batch(jobs);
        assert_eq!(batch.decide(Instant::now()).len(), 3);
        let past = Instant::now();
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(batch.decide(past).len(), 1);
    }

    #[test]
    fn walk_over_misfires_is_kept_for_the_next_batch_of_the_same_version() {
        let rules = Rules { misfire: MisfirePolicy::CatchUp, catch_up_limit: 5, ..Rules::default() };
        let mut batch = batch(vec![job(1, rules, DateTime::UNIX_EPOCH)]);
        let until = Instant::now() + Duration::from_secs(60);
        let decision = batch.decide(until).remove(0);
        assert_eq!(decision.action, DueAction::Skip);
        let walk = batch.catch_ups.get(&batch.jobs[0]).expect("the walk is kept");
        assert_eq!(Some(walk.first), decision.next_fire_at);
        batch.jobs[0].version = 2;
        assert_eq!(batch.catch_ups.get(&batch.jobs[0]), None);
    }

    #[test]
    fn repeated_due_time_is_passed_without_the_others_before_the_last() {
        let (due, now) = (DateTime::UNIX_EPOCH, batch(Vec::new()).now);
        let minutes = chrono::Duration::minutes;
        for (last, next) in [(now + minutes(5), due + minutes(1)), (due + minutes(30), due + minutes(31))] {
            let mut repeated = job(1, Rules::default(), due);
            repeated.last_fire_at = Some(last);
            let mut batch = batch(vec![repeated]);
            batch.repeated.insert(batch.jobs[0].id);
            assert_eq!(batch.decide(Instant::now() + Duration::from_secs(60))[0].next_fire_at, Some(next));
        }
    }
}
