//! The due times of a job, and the decision whether a due time runs or is skipped.
//!
//! An [`EffectiveSchedule`] is a schedule together with the rules that modify it: start and end, jitter, blackouts and
//! misfires. The preview, the commands and the dispatcher all use it, so that a shown due time is the actual one.
//!
//! There are two kinds of instants. A *base* time comes from the schedule alone. A *due* time is a base time moved by
//! the job's jitter and, if its blackout policy is to postpone, to the end of a blackout. Only due times leave this
//! module.

use std::collections::VecDeque;

use crate::{
    calendar::{Calendar, blackout_end},
    cron::CronExpression,
    rules::{BlackoutPolicy, MisfirePolicy, Rules},
    schedule::{Schedule, parse_zone},
};
use chrono::{DateTime, Duration, Utc};
use chrono_tz::Tz;
use milvaion_protocol::id::JobId;

/// The lateness up to which a due time is not a misfire. Within it the scheduler was busy, or held back by a clock
/// step, but not away.
pub const MISFIRE_GRACE: Duration = Duration::seconds(60);
/// The maximum number of misfires that are counted one by one.
const MAX_COUNTED_MISFIRES: usize = 1_000;
/// The maximum number of due times that one decision of the policy `catch_up` walks over.
const MAX_CATCH_UP_SCAN: usize = 50_000;
/// The maximum number of blackouts that a search for a due time passes.
const MAX_BLACKOUT_SCAN: usize = 500;

/// The kind of occurrence that a due time creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DueAction {
    /// An occurrence that runs.
    Run,
    /// A skipped occurrence whose note gives the reason.
    Skip,
}

/// The decision about one due time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueDecision {
    /// The kind of occurrence to create.
    pub action: DueAction,
    /// The reason for a skip, or the misfires that the occurrence covers as well.
    pub note: Option<String>,
    /// The next due time; none if no due time is left, or if it depends on the end of the run.
    pub next_fire_at: Option<DateTime<Utc>>,
}

/// A schedule together with the rules that modify it.
#[derive(Debug)]
pub struct EffectiveSchedule<'a> {
    schedule: &'a Schedule,
    rules: &'a Rules,
    calendars: &'a [&'a Calendar],
    cron: Option<(CronExpression, Tz)>,
    /// The jitter of the job; zero for schedules that do not recur.
    offset: Duration,
}

impl<'a> EffectiveSchedule<'a> {
    /// Builds the effective schedule of a job with the given calendars.
    #[must_use]
    pub fn new(id: JobId, schedule: &'a Schedule, rules: &'a Rules, calendars: &'a [&'a Calendar]) -> Self {
        let cron = match schedule {
            Schedule::Cron { expression, zone } => CronExpression::parse(expression).ok().zip(parse_zone(zone).ok()),
            _ => None,
        };
        let recurs = matches!(schedule, Schedule::Cron { .. } | Schedule::Every { .. });
        let offset = if recurs { jitter(id, rules.jitter_seconds) } else { Duration::zero() };
        Self { schedule, rules, calendars, cron, offset }
    }

    /// Returns the first due time of a job that was just defined, edited or resumed. Due times during a pause are not
    /// caught up. The job's last due time `last`, which may be after `now`, is not repeated.
    #[must_use]
    pub fn first(&self, last: Option<DateTime<Utc>>, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let from = last.map_or(now, |last| last.max(now));
        self.following(from, from)
    }

    /// Returns the first due time after `due` and not before `at_least`.
    #[must_use]
    pub fn following(&self, due: DateTime<Utc>, at_least: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let mut after = due - self.offset;
        let mut least = at_least - self.offset;
        for _ in 0..MAX_BLACKOUT_SCAN {
            let base = self.next_base(after, least)?;
            let at = base + self.offset;
            let Some(end) = blackout_end(self.calendars, at) else { return self.before_end(at) };
            if self.rules.blackout == BlackoutPolicy::Postpone {
                return self.after_blackouts(end);
            }
            after = base;
            least = end - self.offset;
        }
        None
    }

    /// Decides about the due time `due` at the instant `now`.
    #[must_use]
    pub fn decide(&self, due: DateTime<Utc>, now: DateTime<Utc>) -> DueDecision {
        if let Some(end) = blackout_end(self.calendars, due) {
            return self.blacked_out(due, end, now);
        }
        if self.schedule.delay_after_end().is_some() {
            // The next due time is counted from the end of the run that starts now.
            return DueDecision { action: DueAction::Run, note: None, next_fire_at: None };
        }
        let on_time = now - due <= MISFIRE_GRACE;
        match self.rules.misfire {
            MisfirePolicy::CatchUp if on_time => {
                DueDecision { action: DueAction::Run, note: None, next_fire_at: self.following(due, due) }
            }
            MisfirePolicy::CatchUp => self.catch_up(due, now),
            MisfirePolicy::Skip if !on_time => {
                let (missed, next) = self.missed(due, now);
                let note = format!(
                    "Skipped: missed {} while no scheduler was running. The job's misfire policy is skip.",
                    due_times(missed + 1)
                );
                DueDecision { action: DueAction::Skip, note: Some(note), next_fire_at: next }
            }
            MisfirePolicy::Skip | MisfirePolicy::FireOnce => {
                let (missed, next) = self.missed(due, now);
                let note = (missed > 0).then(|| format!("also covers {} that passed before it ran", due_times(missed)));
                DueDecision { action: DueAction::Run, note, next_fire_at: next }
            }
        }
    }

    /// Returns the number of due times after `due` up to and including `now`, and the first one after `now`.
    fn missed(&self, due: DateTime<Utc>, now: DateTime<Utc>) -> (usize, Option<DateTime<Utc>>) {
        let mut count = 0;
        let mut next = self.following(due, due);
        while let Some(at) = next.filter(|at| *at <= now) {
            count += 1;
            if count >= MAX_COUNTED_MISFIRES {
                return (count, self.following(at, now + Duration::microseconds(1)));
            }
            next = self.following(at, at);
        }
        (count, next)
    }

    /// Runs the newest misfires within the catch-up limit and window, oldest first, and skips the earlier ones.
    fn catch_up(&self, due: DateTime<Utc>, now: DateTime<Utc>) -> DueDecision {
        let limit = self.rules.catch_up_limit as usize;
        let from = now - Duration::seconds(self.rules.catch_up_window_seconds.into());
        let mut kept: VecDeque<DateTime<Utc>> = VecDeque::new();
        let mut at = if due >= from { Some(due) } else { self.following(due, from) };
        let mut scanned = 0;
        while let Some(instant) = at.filter(|at| *at <= now && scanned < MAX_CATCH_UP_SCAN) {
            kept.push_back(instant);
            if kept.len() > limit {
                kept.pop_front();
            }
            scanned += 1;
            at = self.following(instant, instant);
        }
        match kept.front() {
            Some(first) if *first == due => {
                DueDecision { action: DueAction::Run, note: None, next_fire_at: self.following(due, due) }
            }
            first => {
                let next = first.copied().or_else(|| self.following(due, now + Duration::microseconds(1)));
                let note = format!(
                    "Skipped: missed while no scheduler was running, and outside the job's catch-up limits (at most {} \
                     runs, at most {} s back).",
                    limit, self.rules.catch_up_window_seconds
                );
                DueDecision { action: DueAction::Skip, note: Some(note), next_fire_at: next }
            }
        }
    }

    /// Decides about a due time in a blackout. It exists if a calendar changed after the due time was computed, or if
    /// the due time was counted from the end of a run.
    fn blacked_out(&self, due: DateTime<Utc>, end: DateTime<Utc>, now: DateTime<Utc>) -> DueDecision {
        let (next, note) = match self.rules.blackout {
            BlackoutPolicy::Skip => {
                // Due times that were missed meanwhile are left to the misfire policy, one after the other.
                let least = if self.schedule.delay_after_end().is_some() { now.max(end) } else { end };
                (self.following(due, least), "Skipped: the due time is in a blackout.".to_owned())
            }
            BlackoutPolicy::Postpone => {
                let next = self.after_blackouts(end);
                let until = end.format("%Y-%m-%d %H:%M UTC");
                (next, format!("Postponed: the due time is in a blackout until {until}."))
            }
        };
        DueDecision { action: DueAction::Skip, note: Some(note), next_fire_at: next }
    }

    /// Returns the due time at the end of a blackout. Jitter applies here too, or all postponed jobs would start at
    /// once.
    fn after_blackouts(&self, mut end: DateTime<Utc>) -> Option<DateTime<Utc>> {
        for _ in 0..MAX_BLACKOUT_SCAN {
            let at = end + self.offset;
            match blackout_end(self.calendars, at) {
                None => return self.before_end(at),
                Some(later) => end = later,
            }
        }
        None
    }

    fn before_end(&self, at: DateTime<Utc>) -> Option<DateTime<Utc>> {
        Some(at).filter(|at| self.rules.end_at.is_none_or(|end| *at < end))
    }

    /// Returns the first base time after `after`, not before `least` and not before the start. An interval is counted
    /// from the job's start if it has one, otherwise from `after`.
    fn next_base(&self, after: DateTime<Utc>, least: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let least = self.rules.start_at.map_or(least, |start| least.max(start));
        match self.schedule {
            Schedule::Cron { .. } => {
                let (cron, zone) = self.cron.as_ref()?;
                // Base times are whole seconds, so starting a millisecond before `least` includes `least` itself.
                cron.next_after(*zone, after.max(least - Duration::milliseconds(1)))
            }
            Schedule::Every { seconds, .. } => {
                let step = Duration::try_seconds(i64::try_from(*seconds).ok()?)?;
                let anchor = match self.rules.start_at {
                    Some(start) if start > after => return steps(start, step, least, 0),
                    Some(start) if self.schedule.delay_after_end().is_none() => {
                        return steps(start, step, least.max(after + Duration::microseconds(1)), 0);
                    }
                    _ => after,
                };
                steps(anchor, step, least, 1)
            }
            Schedule::Once { at, .. } => Some(*at).filter(|at| *at > after && *at >= least),
            Schedule::Manual => None,
        }
    }
}

/// Returns the first `anchor + n × step` that is not before `least`, with `n` at least `fewest`.
fn steps(anchor: DateTime<Utc>, step: Duration, least: DateTime<Utc>, fewest: i64) -> Option<DateTime<Utc>> {
    let step = step.num_microseconds()?.max(1);
    let gap = (least - anchor).num_microseconds()?;
    let n = if gap <= 0 { 0 } else { (gap - 1) / step + 1 };
    anchor.checked_add_signed(Duration::microseconds(n.max(fewest).checked_mul(step)?))
}

/// Returns the jitter of a job. It is derived from the job's id, so that it is the same on every server and after every
/// restart.
fn jitter(id: JobId, seconds: u32) -> Duration {
    let tail = id.0.as_u64_pair().1;
    let span = u64::from(seconds) * 1_000 + 1;
    Duration::milliseconds(i64::try_from(tail % span).unwrap_or(0))
}

fn due_times(count: usize) -> String {
    match count {
        1 => "1 due time".to_owned(),
        n if n >= MAX_COUNTED_MISFIRES => format!("{MAX_COUNTED_MISFIRES} or more due times"),
        n => format!("{n} due times"),
    }
}

#[cfg(test)]
mod tests;
