//! When is a job due, and what becomes of a fire that comes late?
//!
//! A [`EffectiveSchedule`] is a schedule with the rules that bend it: start and end, jitter, blackouts, misfires. The preview,
//! the commands and the dispatcher all ask it, so that what was shown is what happens.
//!
//! Instants come in two kinds. The *base* instants are the schedule's own; a *due* instant is a base instant moved by
//! the job's jitter and, where the job postpones, to the end of a blackout. Only due instants leave this file.

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

/// A fire that comes at most so late is on time: the scheduler was busy, or held back by a clock that stepped; not away.
pub const MISFIRE_GRACE: Duration = Duration::seconds(60);
/// How many missed fires are counted before it is just "many".
const MAX_COUNTED_MISFIRES: usize = 1_000;
/// How many instants `catch_up` walks over in one go.
const MAX_CATCH_UP_SCAN: usize = 50_000;
/// How many blackouts are passed in search of a fire outside.
const MAX_BLACKOUT_SCAN: usize = 500;

/// What is made of a due instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DueAction {
    /// An occurrence that is to run.
    Run,
    /// A row that says why nothing runs.
    Skip,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueDecision {
    /// What is made.
    pub action: DueAction,
    /// Why it is skipped, or what else it stands for.
    pub note: Option<String>,
    /// When the job is due next; none when nothing is left, or when that depends on the run's end.
    pub next_fire_at: Option<DateTime<Utc>>,
}

/// A schedule and the rules that bend it.
#[derive(Debug)]
pub struct EffectiveSchedule<'a> {
    schedule: &'a Schedule,
    rules: &'a Rules,
    calendars: &'a [&'a Calendar],
    cron: Option<(CronExpression, Tz)>,
    offset: Duration,
}

impl<'a> EffectiveSchedule<'a> {
    /// The timetable of a job that keeps to `calendars`.
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

    /// When a job that was just defined, edited or resumed is due first. Time that passed while it was paused is not
    /// caught up, and what it `fired` last, which may lie ahead of `now`, is not fired again.
    #[must_use]
    pub fn first(&self, fired: Option<DateTime<Utc>>, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let from = fired.map_or(now, |fired| fired.max(now));
        self.following(from, from)
    }

    /// The first due instant after `due` and not before `at_least`.
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

    /// Judges the fire that was due at `due` and is looked at now.
    #[must_use]
    pub fn decide(&self, due: DateTime<Utc>, now: DateTime<Utc>) -> DueDecision {
        if let Some(end) = blackout_end(self.calendars, due) {
            return self.blacked_out(due, end, now);
        }
        if self.schedule.delay_after_end().is_some() {
            // Counted from the end of the run that is made now.
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
                    "Skipped: {} missed while no scheduler was there, and the job's misfire rule skips those.",
                    fires(missed + 1)
                );
                DueDecision { action: DueAction::Skip, note: Some(note), next_fire_at: next }
            }
            MisfirePolicy::Skip | MisfirePolicy::FireOnce => {
                let (missed, next) = self.missed(due, now);
                let note =
                    (missed > 0).then(|| format!("stands for {} more, which came due before it ran", fires(missed)));
                DueDecision { action: DueAction::Run, note, next_fire_at: next }
            }
        }
    }

    /// How many fires lie after `due` and not after `now`, and the first one that comes later.
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

    /// Keeps the newest missed fires that limit and window allow, oldest first, and skips what came before them.
    fn catch_up(&self, due: DateTime<Utc>, now: DateTime<Utc>) -> DueDecision {
        let limit = self.rules.catch_up_limit as usize;
        let from = now - Duration::seconds(self.rules.catch_up_window_seconds.into());
        let mut kept: VecDeque<DateTime<Utc>> = VecDeque::new();
        let mut at = if due >= from { Some(due) } else { self.following(due, from) };
        let mut walked = 0;
        while let Some(instant) = at.filter(|at| *at <= now && walked < MAX_CATCH_UP_SCAN) {
            kept.push_back(instant);
            if kept.len() > limit {
                kept.pop_front();
            }
            walked += 1;
            at = self.following(instant, instant);
        }
        match kept.front() {
            Some(first) if *first == due => {
                DueDecision { action: DueAction::Run, note: None, next_fire_at: self.following(due, due) }
            }
            first => {
                let next = first.copied().or_else(|| self.following(due, now + Duration::microseconds(1)));
                let note = format!(
                    "Skipped: missed while no scheduler was there, and beyond what the job catches up ({} at most, {} s \
                     back at most).",
                    limit, self.rules.catch_up_window_seconds
                );
                DueDecision { action: DueAction::Skip, note: Some(note), next_fire_at: next }
            }
        }
    }

    /// A calendar was changed after the due instant was worked out.
    fn blacked_out(&self, due: DateTime<Utc>, end: DateTime<Utc>, now: DateTime<Utc>) -> DueDecision {
        let (next, note) = match self.rules.blackout {
            BlackoutPolicy::Skip => {
                // What else was missed meanwhile is judged by the misfire rule, one after the other.
                let least = if self.schedule.delay_after_end().is_some() { now.max(end) } else { end };
                (self.following(due, least), "Skipped: a calendar blacks this time out.".to_owned())
            }
            BlackoutPolicy::Postpone => {
                let next = self.after_blackouts(end);
                let until = end.format("%Y-%m-%d %H:%M UTC");
                (next, format!("Postponed: a calendar blacks this time out until {until}."))
            }
        };
        DueDecision { action: DueAction::Skip, note: Some(note), next_fire_at: next }
    }

    /// The due instant at the end of a blackout. Jitter counts here too, or every postponed job would start at once.
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

    /// The first base instant after `after`, not before `least` and not before the start. An `every` rhythm is counted
    /// from the start where there is one, and from `after` where there is none.
    fn next_base(&self, after: DateTime<Utc>, least: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let least = self.rules.start_at.map_or(least, |start| least.max(start));
        match self.schedule {
            Schedule::Cron { .. } => {
                let (cron, zone) = self.cron.as_ref()?;
                // Fires lie on whole seconds, so a millisecond before `least` makes `least` itself count.
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
            Schedule::Once { at } => Some(*at).filter(|at| *at > after && *at >= least),
            Schedule::Manual => None,
        }
    }
}

/// The first `anchor + n × step` with `n` at least `fewest` that is not before `least`.
fn steps(anchor: DateTime<Utc>, step: Duration, least: DateTime<Utc>, fewest: i64) -> Option<DateTime<Utc>> {
    let step = step.num_microseconds()?.max(1);
    let gap = (least - anchor).num_microseconds()?;
    let n = if gap <= 0 { 0 } else { (gap - 1) / step + 1 };
    anchor.checked_add_signed(Duration::microseconds(n.max(fewest).checked_mul(step)?))
}

/// A job's own share of its jitter: drawn from its id, so that it is the same on every server and after every restart.
fn jitter(id: JobId, seconds: u32) -> Duration {
    let tail = id.0.as_u64_pair().1;
    let span = u64::from(seconds) * 1_000 + 1;
    Duration::milliseconds(i64::try_from(tail % span).unwrap_or(0))
}

fn fires(count: usize) -> String {
    match count {
        1 => "1 fire".to_owned(),
        n if n >= MAX_COUNTED_MISFIRES => format!("{MAX_COUNTED_MISFIRES} fires or more"),
        n => format!("{n} fires"),
    }
}

#[cfg(test)]
mod tests;
