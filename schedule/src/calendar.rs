//! When not to run: named sets of days and weekly windows.
//!
//! A calendar has a zone, for "not on the first of May" means something else in Warsaw than in Auckland. Jobs name the
//! calendars they keep to; what becomes of a fire inside a blackout is the job's rule, not the calendar's. Like a
//! schedule, a calendar is a value that knows no clock.

use chrono::{DateTime, Datelike, Days, Duration, NaiveDate, NaiveTime, TimeZone, Utc};
use chrono_tz::Tz;
use serde::{Deserialize, Serialize};

use crate::field_error::FieldError;
use crate::schedule::parse_zone;

pub mod describe;

/// The most days one calendar may name.
pub const MAX_CALENDAR_DATES: usize = 2_000;
/// The most weekly windows one calendar may have.
pub const MAX_WEEKLY_WINDOWS: usize = 100;
/// How many blackouts in a row are followed before they count as endless.
const MAX_CHAINED_BLACKOUTS: usize = 4_000;

/// A set of blackouts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Calendar {
    /// 1 to 100 characters, unique.
    pub name: String,
    /// An IANA name: where the days and times are meant.
    pub zone: String,
    /// Whole days, at most [`MAX_CALENDAR_DATES`].
    #[serde(default)]
    pub dates: Vec<NaiveDate>,
    /// Windows that come back every week, at most [`MAX_WEEKLY_WINDOWS`].
    #[serde(default)]
    pub windows: Vec<WeeklyWindow>,
}

/// A blackout that comes back every week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WeeklyWindow {
    /// The day it begins on: 0 is Sunday, 6 is Saturday.
    pub weekday: u8,
    /// When it begins, local time.
    pub from: NaiveTime,
    /// When it ends, local time. Not after `from`: it ends on the next day.
    pub to: NaiveTime,
}

/// A blackout as it falls: what follows from days and windows that touch or overlap is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlackoutPeriod {
    /// When it begins, or the instant that was asked for, when that lies inside.
    pub from: DateTime<Utc>,
    /// The first instant after it; none when it has no end.
    pub to: Option<DateTime<Utc>>,
}

impl Calendar {
    /// Checks the parts that a type cannot.
    ///
    /// # Errors
    ///
    /// The wrong fields.
    pub fn check(&self) -> Result<(), Vec<FieldError>> {
        let mut errors = Vec::new();
        let length = self.name.trim().chars().count();
        if !(1..=100).contains(&length) || self.name.contains(char::is_control) {
            errors.push(FieldError::new("name", "give the calendar a name of 1 to 100 printable characters"));
        }
        if let Err(message) = parse_zone(&self.zone) {
            errors.push(FieldError::new("zone", message));
        }
        if self.dates.len() > MAX_CALENDAR_DATES {
            errors.push(FieldError::new(
                "dates",
                format!("at most {MAX_CALENDAR_DATES} days: it has {}", self.dates.len()),
            ));
        }
        if self.windows.len() > MAX_WEEKLY_WINDOWS {
            errors.push(FieldError::new(
                "windows",
                format!("at most {MAX_WEEKLY_WINDOWS}: it has {}", self.windows.len()),
            ));
        }
        if let Some(window) = self.windows.iter().find(|window| window.weekday > 6) {
            let message = format!("a weekday takes 0 (Sunday) to 6 (Saturday): got {}", window.weekday);
            errors.push(FieldError::new("windows", message));
        }
        if self.dates.is_empty() && self.windows.is_empty() {
            errors.push(FieldError::new("dates", "name at least one day or one weekly window"));
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// The end of the blackout that `at` lies in; none when it lies in none. A zone that is no longer known blacks out
    /// nothing: a job that runs can be seen, one that silently does not cannot.
    #[must_use]
    pub fn blackout_end(&self, at: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let zone = parse_zone(&self.zone).ok()?;
        let local = at.with_timezone(&zone).naive_local();
        let today = local.date();
        let mut end: Option<DateTime<Utc>> = None;
        let mut reaches = |until: DateTime<Utc>| {
            if until > at {
                end = Some(end.map_or(until, |known| known.max(until)));
            }
        };
        if self.dates.contains(&today) {
            reaches(instant(zone, today.checked_add_days(Days::new(1))?, NaiveTime::MIN)?);
        }
        for window in &self.windows {
            // It may have begun today or yesterday.
            for day in [Some(today), today.pred_opt()].into_iter().flatten() {
                if day.weekday().num_days_from_sunday() != u32::from(window.weekday) {
                    continue;
                }
                let last = if window.to > window.from { day } else { day.checked_add_days(Days::new(1))? };
                let (Some(from), Some(to)) = (instant(zone, day, window.from), instant(zone, last, window.to)) else {
                    continue;
                };
                if from <= at && at < to {
                    reaches(to);
                }
            }
        }
        end
    }

    /// The next blackouts from `at` on, at most `most`; the first may be the one that `at` lies in.
    #[must_use]
    pub fn next_blackouts(&self, mut at: DateTime<Utc>, most: usize) -> Vec<BlackoutPeriod> {
        let mut falls = Vec::new();
        while falls.len() < most {
            let from = if self.blackout_end(at).is_some() { Some(at) } else { self.next_begin(at) };
            let Some(from) = from else { break };
            // Where the chain was given up it is black still.
            let to = blackout_end(&[self], from).filter(|to| self.blackout_end(*to).is_none());
            falls.push(BlackoutPeriod { from, to });
            let Some(to) = to else { break };
            at = to;
        }
        falls
    }

    /// The first instant after `at` at which a day or a window begins.
    fn next_begin(&self, at: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let zone = parse_zone(&self.zone).ok()?;
        let today = at.with_timezone(&zone).date_naive();
        let days = self.dates.iter().filter_map(|day| instant(zone, *day, NaiveTime::MIN));
        // Eight days, for today's may be over; one more, for a clock that is moved.
        let week = (0..=8).filter_map(|n| today.checked_add_days(Days::new(n)));
        let windows = week.flat_map(|day| {
            let weekday = day.weekday().num_days_from_sunday();
            let its_own = self.windows.iter().filter(move |window| u32::from(window.weekday) == weekday);
            its_own.filter_map(move |window| instant(zone, day, window.from))
        });
        days.chain(windows).filter(|begin| *begin > at).min()
    }
}

/// The end of the blackout that `at` lies in under any of `calendars`, following blackouts that touch; none when `at`
/// lies in none. A chain that never ends gives the instant at which it was given up.
#[must_use]
pub fn blackout_end(calendars: &[&Calendar], at: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let mut end = None;
    let mut probe = at;
    for _ in 0..MAX_CHAINED_BLACKOUTS {
        match calendars.iter().filter_map(|calendar| calendar.blackout_end(probe)).max() {
            Some(until) => {
                end = Some(until);
                probe = until;
            }
            None => break,
        }
    }
    end
}

/// A local time as an instant; in a gap, the first instant after it.
fn instant(zone: Tz, day: NaiveDate, time: NaiveTime) -> Option<DateTime<Utc>> {
    let mut local = day.and_time(time);
    for _ in 0..=48 {
        if let Some(at) = zone.from_local_datetime(&local).earliest() {
            return Some(at.with_timezone(&Utc));
        }
        local += Duration::minutes(30);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().expect("instant")
    }

    fn time(text: &str) -> NaiveTime {
        text.parse().expect("time")
    }

    fn nights() -> Calendar {
        Calendar {
            name: "Friday night and May Day".into(),
            zone: "Europe/Warsaw".into(),
            dates: vec!["2026-05-01".parse().expect("date"), "2026-05-02".parse().expect("date")],
            windows: vec![WeeklyWindow { weekday: 5, from: time("22:00:00"), to: time("06:00:00") }],
        }
    }

    #[test]
    fn a_day_is_black_by_the_calendar_s_own_clock() {
        let calendar = nights();
        // Midnight in Warsaw is 22:00 UTC the day before in summer.
        assert_eq!(calendar.blackout_end(at("2026-04-30T21:59:59Z")), None);
        assert_eq!(calendar.blackout_end(at("2026-05-01T12:00:00Z")), Some(at("2026-05-01T22:00:00Z")));
    }

    #[test]
    fn a_window_may_cross_midnight() {
        let calendar = nights();
        assert_eq!(calendar.blackout_end(at("2026-11-20T20:59:00Z")), None);
        assert_eq!(calendar.blackout_end(at("2026-11-20T21:00:00Z")), Some(at("2026-11-21T05:00:00Z")));
        assert_eq!(calendar.blackout_end(at("2026-11-21T04:59:59Z")), Some(at("2026-11-21T05:00:00Z")));
        assert_eq!(calendar.blackout_end(at("2026-11-21T05:00:00Z")), None);
    }

    #[test]
    fn blackouts_that_touch_are_one() {
        let calendar = nights();
        // 1 May 2026 is a Friday: two whole days, and the night between reaches into the second.
        assert_eq!(blackout_end(&[&calendar], at("2026-05-01T12:00:00Z")), Some(at("2026-05-02T22:00:00Z")));
    }

    #[test]
    fn the_next_blackouts_are_told_in_order_and_those_that_touch_as_one() {
        let fall = |from, to| BlackoutPeriod { from: at(from), to: Some(at(to)) };
        assert_eq!(
            nights().next_blackouts(at("2026-04-28T12:00:00Z"), 3),
            [
                // Two whole days with the night between them.
                fall("2026-04-30T22:00:00Z", "2026-05-02T22:00:00Z"),
                fall("2026-05-08T20:00:00Z", "2026-05-09T04:00:00Z"),
                fall("2026-05-15T20:00:00Z", "2026-05-16T04:00:00Z"),
            ]
        );
        assert_eq!(
            nights().next_blackouts(at("2026-05-09T01:00:00Z"), 1),
            [fall("2026-05-09T01:00:00Z", "2026-05-09T04:00:00Z")],
            "what has begun is told from the instant that was asked for"
        );
        let mut over = nights();
        over.windows.clear();
        assert_eq!(over.next_blackouts(at("2026-06-01T00:00:00Z"), 3), [], "days that are over come no more");
    }

    #[test]
    fn a_blackout_without_end_is_told_as_one() {
        let midnight = NaiveTime::MIN;
        let windows = (0..7).map(|weekday| WeeklyWindow { weekday, from: midnight, to: midnight }).collect();
        let always = Calendar { dates: Vec::new(), windows, ..nights() };
        let now = at("2026-05-09T01:00:00Z");
        assert_eq!(always.next_blackouts(now, 3), [BlackoutPeriod { from: now, to: None }]);
    }

    #[test]
    fn an_empty_or_unplaced_calendar_is_refused() {
        let calendar = Calendar { name: String::new(), zone: "Mars/Olympus".into(), dates: vec![], windows: vec![] };
        let fields: Vec<_> = calendar.check().expect_err("wrong").into_iter().map(|error| error.field).collect();
        assert_eq!(fields, ["name", "zone", "dates"]);
        assert!(nights().check().is_ok());
    }
}
