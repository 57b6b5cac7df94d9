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
    calendar::{
        Calendar,
        search::{Blackout, BlackoutSearch},
    },
    cron::CronExpression,
    instant,
    rules::{BlackoutPolicy, MisfirePolicy, Rules},
    schedule::{Schedule, parse_zone},
};
use chrono::{DateTime, Duration, Utc};
use chrono_tz::Tz;
use milvaion_protocol::id::JobId;

/// The lateness up to which a due time is not a misfire. Within it the scheduler was busy, or held back by a clock
/// step, but not away.
pub const MISFIRE_GRACE: Duration = Duration::seconds(60);
/// The time by which a due time may be dispatched ahead.
pub const MAX_AHEAD: Duration = Duration::seconds(1);
/// The maximum number of misfires that are counted one by one.
const MAX_COUNTED_MISFIRES: usize = 1_000;
/// The maximum number of due times that one decision of the policy `catch_up` walks over.
const MAX_CATCH_UP_SCAN: usize = 50_000;

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
    /// What the policy `catch_up` decided about the misfires that follow.
    pub catch_up: Option<CatchUp>,
}

/// The misfires that the policy `catch_up` runs. Finding the first of them takes a walk over all misfires. The caller passes
/// it on to the next decision, so that the walk is not repeated for each misfire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatchUp {
    /// The first due time that runs.
    pub first: DateTime<Utc>,
    /// The instant of the walk: later due times are not counted yet.
    pub decided_at: DateTime<Utc>,
}

impl CatchUp {
    /// Returns true if the misfire `due` runs at `now`. A walk counts for a minute, because misfires get too old to run.
    fn covers(self, due: DateTime<Utc>, now: DateTime<Utc>) -> bool {
        self.first <= due && due <= self.decided_at && now - self.decided_at <= MISFIRE_GRACE
    }
}

impl DueDecision {
    fn run(note: Option<String>, next_fire_at: Option<DateTime<Utc>>) -> Self {
        Self { action: DueAction::Run, note, next_fire_at, catch_up: None }
    }

    fn skip(note: impl Into<String>, next_fire_at: Option<DateTime<Utc>>) -> Self {
        Self { action: DueAction::Skip, note: Some(note.into()), next_fire_at, catch_up: None }
    }
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
    /// caught up. The job's last due time `last` is not repeated if it is at most [`MAX_AHEAD`] after `now`. A later one
    /// comes from a clock that was ahead, and the job would be silent until then, or was skipped, which a resume ends.
    #[must_use]
    pub fn first(&self, last: Option<DateTime<Utc>>, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        if let Some(last) = last.filter(|last| (now..now + MAX_AHEAD).contains(last)) {
            return self.following(last, last);
        }
        // An interval that begins now begins at a base time, or the offset would be taken off and added again.
        let from = if self.begins_at(now) { now + self.offset } else { now };
        self.following(from, from)
    }

    /// Returns true if the schedule is an interval that is counted from `now`, and not from the job's start.
    fn begins_at(&self, now: DateTime<Utc>) -> bool {
        let Schedule::Every { .. } = self.schedule else { return false };
        match self.rules.start_at {
            None => true,
            Some(start) => self.counts_from_end() && start <= now - self.offset,
        }
    }

    /// Returns true if the next due time is counted from the end of a run.
    #[must_use]
    pub fn counts_from_end(&self) -> bool {
        self.schedule.delay_after_end().is_some()
    }

    /// Returns the due time of a job after its calendars changed, at `now`. `due` is its present one, `last` its last one.
    /// An interval keeps its rhythm: it is counted from the last due time, or from the present one if there is no last.
    /// A last due time that a user skipped ahead is not due again.
    #[must_use]
    pub fn after_calendar_change(
        &self,
        last: Option<DateTime<Utc>>,
        due: Option<DateTime<Utc>>,
        now: DateTime<Utc>,
    ) -> Option<DateTime<Utc>> {
        // If the present due time is not after it, a clock that was ahead has dispatched the last one.
        if let Some(skipped) = last.filter(|last| *last > now && due.is_none_or(|due| due > *last)) {
            return self.following(skipped, skipped);
        }
        let Schedule::Every { seconds, .. } = self.schedule else { return self.first(last, now) };
        match (last.filter(|last| *last <= now), due) {
            (Some(last), _) => self.following(last, now),
            // A blackout that no longer exists may have moved it by several intervals.
            (None, Some(due)) => self.in_rhythm(due, *seconds, now, self.offset),
            (None, None) => self.first(None, now),
        }
    }

    /// Returns the due time of a job whose last due time `last`, or last edit, is after `now`, because a clock was ahead.
    /// `due` is its present one. An interval keeps its rhythm.
    #[must_use]
    pub fn after_clock_ahead(
        &self,
        last: Option<DateTime<Utc>>,
        due: Option<DateTime<Utc>>,
        now: DateTime<Utc>,
    ) -> Option<DateTime<Utc>> {
        let Schedule::Every { seconds, .. } = self.schedule else { return self.following(now, now) };
        match due.or(last) {
            Some(known) => self.in_rhythm(known, *seconds, now, Duration::zero()),
            None => self.first(None, now),
        }
    }

    /// Returns the first due time from `now` on that is a whole number of intervals of `seconds` before or after `known`. One
    /// before `known` is at least `margin` after `now`.
    fn in_rhythm(
        &self,
        known: DateTime<Utc>,
        seconds: u64,
        now: DateTime<Utc>,
        margin: Duration,
    ) -> Option<DateTime<Utc>> {
        let step = i64::try_from(seconds).ok()?.checked_mul(1_000)?.max(1);
        let steps = (known - now - margin).num_milliseconds().max(0) / step;
        let before = known - Duration::try_milliseconds(step.checked_mul(steps + 1)?)?;
        self.following(before, now)
    }

    /// Returns the first due time after `due` and not before `at_least`; none if there is none before the end of the
    /// schedule, or if blackouts exclude all due times for years.
    #[must_use]
    pub fn following(&self, due: DateTime<Utc>, at_least: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let mut blackouts = BlackoutSearch::new(self.calendars, due.max(at_least));
        let mut after = due - self.offset;
        let mut least = at_least - self.offset;
        let mut postponed: Option<DateTime<Utc>> = None;
        loop {
            let next = self.next_base(after, least).and_then(|base| Some((base, self.before_end(base + self.offset)?)));
            let Some((base, at)) = next.filter(|(_, at)| postponed.is_none_or(|postponed| *at < postponed)) else {
                return postponed;
            };
            match blackouts.at(at) {
                Blackout::None => return Some(at),
                Blackout::Until(end) => {
                    if self.rules.blackout == BlackoutPolicy::Postpone {
                        postponed = postponed.or_else(|| self.after_blackouts(end, &mut blackouts));
                        if self.counts_from_end() {
                            return postponed;
                        }
                    }
                    // Also after a postponed run: with jitter, a due time after the blackout may come first, and would be
                    // lost. It runs, and stands for the postponed ones.
                    after = base;
                    least = end - self.offset;
                }
                Blackout::Endless => return postponed,
            }
        }
    }

    /// Decides about the due time `due` at the instant `now`. `catch_up` is that of the decision before, if there was
    /// one.
    #[must_use]
    pub fn decide(&self, due: DateTime<Utc>, now: DateTime<Utc>, catch_up: Option<CatchUp>) -> DueDecision {
        let mut blackouts = BlackoutSearch::new(self.calendars, due);
        match blackouts.at(due) {
            Blackout::None => {}
            Blackout::Until(end) => return DueDecision { catch_up, ..self.blacked_out(due, end, now) },
            Blackout::Endless => return DueDecision::skip("Skipped: the due time is in a blackout without end.", None),
        }
        if let Some(missed) = self.rules.missed_start(due, now) {
            // The misfire policy applies to the due times that may still start.
            return DueDecision { catch_up, ..DueDecision::skip(missed.note, self.following(due, missed.earliest)) };
        }
        if self.schedule.delay_after_end().is_some() {
            // The next due time is counted from the end of the run that starts now.
            return DueDecision::run(None, None);
        }
        let on_time = now - due <= MISFIRE_GRACE;
        match self.rules.misfire {
            MisfirePolicy::CatchUp if on_time => DueDecision::run(None, self.following(due, due)),
            MisfirePolicy::CatchUp => match catch_up.filter(|walk| walk.covers(due, now)) {
                Some(walk) => DueDecision { catch_up: Some(walk), ..DueDecision::run(None, self.following(due, due)) },
                None => self.catch_up(due, now),
            },
            MisfirePolicy::Skip if !on_time => {
                let (missed, next) = self.missed(due, now);
                let note = format!(
                    "Skipped: missed {}, because no scheduler was running or the cluster was paused. The job's misfire policy \
                     is skip.",
                    due_times(missed + 1)
                );
                DueDecision::skip(note, next)
            }
            MisfirePolicy::Skip | MisfirePolicy::FireOnce => {
                let (missed, next) = self.missed(due, now);
                let note = (missed > 0).then(|| format!("also covers {} that passed before it ran", due_times(missed)));
                DueDecision::run(note, next)
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
        // A walk that ended before `now` does not know the newest misfires.
        let is_complete = at.is_none_or(|at| at > now);
        let walk = kept.front().filter(|_| is_complete).map(|first| CatchUp { first: *first, decided_at: now });
        match kept.front() {
            Some(first) if *first == due => {
                DueDecision { catch_up: walk, ..DueDecision::run(None, self.following(due, due)) }
            }
            first => {
                let next = first.copied().or_else(|| self.following(due, now + Duration::microseconds(1)));
                let note = format!(
                    "Skipped: missed, because no scheduler was running or the cluster was paused, and outside the job's \
                     catch-up limits (at most {} runs, at most {} s back).",
                    limit, self.rules.catch_up_window_seconds
                );
                DueDecision { catch_up: walk, ..DueDecision::skip(note, next) }
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
                let mut next = self.after_blackouts(end, &mut BlackoutSearch::new(self.calendars, end));
                if !self.counts_from_end() {
                    // As in `following`, a due time may come before the jitter has passed.
                    next = next.into_iter().chain(self.following(due, end)).min();
                }
                let until = end.format("%Y-%m-%d %H:%M UTC");
                (next, format!("Postponed: the due time is in a blackout until {until}."))
            }
        };
        DueDecision::skip(note, next)
    }

    /// Returns the due time at the end of a blackout. Jitter applies here too, or all postponed jobs would start at
    /// once.
    fn after_blackouts(&self, mut end: DateTime<Utc>, blackouts: &mut BlackoutSearch<'_>) -> Option<DateTime<Utc>> {
        loop {
            let at = end + self.offset;
            match blackouts.at(at) {
                Blackout::None => return self.before_end(at),
                Blackout::Until(later) => end = later,
                Blackout::Endless => return None,
            }
        }
    }

    fn before_end(&self, at: DateTime<Utc>) -> Option<DateTime<Utc>> {
        Some(at).filter(|at| instant::is_in_range(*at) && self.rules.end_at.is_none_or(|end| *at < end))
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
