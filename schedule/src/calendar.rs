//! Blackout calendars: named sets of days and weekly windows in which jobs must not start.
//!
//! A calendar has a time zone, because the first of May covers other instants in Warsaw than in Auckland. A job names
//! its calendars; what happens to a due time inside a blackout is a policy of the job, not of the calendar. Like a
//! schedule, a calendar is a plain value and reads no clock.

use chrono::{DateTime, Datelike, Days, Duration, NaiveDate, NaiveTime, TimeZone, Timelike, Utc};
use chrono_tz::Tz;
use serde::{Deserialize, Serialize};

use crate::field_error::FieldError;
use crate::printable::check_printable;
use crate::schedule::{parse_zone, read_trimmed};

pub mod describe;
pub mod search;

use search::{Blackout, BlackoutSearch};

/// The maximum number of days in a calendar.
pub const MAX_CALENDAR_DATES: usize = 2_000;
/// The maximum number of weekly windows in a calendar.
pub const MAX_WEEKLY_WINDOWS: usize = 100;
/// The length of a week, in seconds.
const WEEK_SECONDS: u32 = 7 * 86_400;

/// A set of blackouts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Calendar {
    /// The unique name, 1 to 100 characters.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 100)))]
    pub name: String,
    /// The IANA name of the time zone of the days and times.
    #[serde(deserialize_with = "read_trimmed")]
    pub zone: String,
    /// The days that are blacked out as a whole, at most [`MAX_CALENDAR_DATES`].
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 2_000)))]
    pub dates: Vec<NaiveDate>,
    /// The windows that recur every week, at most [`MAX_WEEKLY_WINDOWS`].
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(max = 100)))]
    pub windows: Vec<WeeklyWindow>,
}

/// A blackout that recurs every week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WeeklyWindow {
    /// The weekday on which it begins: 0 is Sunday, 6 is Saturday.
    #[cfg_attr(feature = "schema", schemars(range(max = 6)))]
    pub weekday: u8,
    /// The local start time.
    pub from: NaiveTime,
    /// The local end time. If it is not after `from`, the window ends on the next day.
    pub to: NaiveTime,
}

/// One blackout as a period of time. Days and windows that touch or overlap form one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlackoutPeriod {
    /// The start, or the instant of the request if that lies inside the blackout.
    pub from: DateTime<Utc>,
    /// The first instant after the blackout; none if it has no end.
    pub to: Option<DateTime<Utc>>,
}

impl Calendar {
    /// Checks the constraints that the types do not express.
    ///
    /// # Errors
    ///
    /// Returns the invalid fields.
    pub fn check(&self) -> Result<(), Vec<FieldError>> {
        let mut errors = Vec::new();
        let length = self.name.trim().chars().count();
        if !(1..=100).contains(&length) {
            errors.push(FieldError::new("name", "the name must have 1 to 100 characters"));
        } else if let Err(message) = check_printable(self.name.trim()) {
            errors.push(FieldError::new("name", message));
        }
        if let Err(message) = parse_zone(&self.zone) {
            errors.push(FieldError::new("zone", message));
        }
        if self.dates.len() > MAX_CALENDAR_DATES {
            errors.push(FieldError::new(
                "dates",
                format!("at most {MAX_CALENDAR_DATES} days are allowed: got {}", self.dates.len()),
            ));
        }
        if self.windows.len() > MAX_WEEKLY_WINDOWS {
            errors.push(FieldError::new(
                "windows",
                format!("at most {MAX_WEEKLY_WINDOWS} weekly windows are allowed: got {}", self.windows.len()),
            ));
        }
        if let Some(window) = self.windows.iter().find(|window| window.weekday > 6) {
            let message = format!("a weekday must be 0 (Sunday) to 6 (Saturday): got {}", window.weekday);
            errors.push(FieldError::new("windows", message));
        }
        if self.covers_the_week() {
            let message = "the weekly windows cover the whole week, so no job would ever run: leave a part of it free";
            errors.push(FieldError::new("windows", message));
        }
        if self.dates.is_empty() && self.windows.is_empty() {
            errors.push(FieldError::new("dates", "add at least one day or one weekly window"));
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// Returns true if the weekly windows leave no instant of a week free.
    fn covers_the_week(&self) -> bool {
        let second = |time: NaiveTime| time.num_seconds_from_midnight();
        let mut spans: Vec<(u32, u32)> = Vec::new();
        for window in &self.windows {
            let from = u32::from(window.weekday % 7) * 86_400 + second(window.from);
            let next_day = if window.to > window.from { 0 } else { 86_400 };
            let to = from - second(window.from) + next_day + second(window.to);
            spans.push((from, to.min(WEEK_SECONDS)));
            // A window of Saturday may end on Sunday, which is the first day of a week.
            spans.extend((to > WEEK_SECONDS).then(|| (0, to - WEEK_SECONDS)));
        }
        spans.sort_unstable();
        let covered = spans.into_iter().fold(0, |end, (from, to)| if from <= end { end.max(to) } else { end });
        covered == WEEK_SECONDS
    }

    /// Returns the end of the blackout at `at`; none if there is no blackout. A calendar with an unknown zone has no
    /// blackouts, because users notice a job that runs but do not notice a job that silently does not.
    #[must_use]
    pub fn blackout_end(&self, at: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let zone = parse_zone(&self.zone).ok()?;
        let local = at.with_timezone(&zone).naive_local();
        let today = local.date();
        let mut end: Option<DateTime<Utc>> = None;
        let mut extend = |until: DateTime<Utc>| {
            if until > at {
                end = Some(end.map_or(until, |known| known.max(until)));
            }
        };
        if self.dates.contains(&today) {
            extend(instant(zone, today.checked_add_days(Days::new(1))?, NaiveTime::MIN)?);
        }
        for window in &self.windows {
            // The window may have begun today or yesterday.
            for day in [Some(today), today.pred_opt()].into_iter().flatten() {
                if day.weekday().num_days_from_sunday() != u32::from(window.weekday) {
                    continue;
                }
                let last = if window.to > window.from { day } else { day.checked_add_days(Days::new(1))? };
                let (Some(from), Some(to)) = (instant(zone, day, window.from), instant(zone, last, window.to)) else {
                    continue;
                };
                if from <= at && at < to {
                    extend(to);
                }
            }
        }
        end
    }

    /// Returns the next `limit` blackouts from `at` on. The first one may contain `at`.
    #[must_use]
    pub fn next_blackouts(&self, mut at: DateTime<Utc>, limit: usize) -> Vec<BlackoutPeriod> {
        let mut periods = Vec::new();
        while periods.len() < limit {
            let from = if self.blackout_end(at).is_some() { Some(at) } else { self.next_begin(at) };
            let Some(from) = from else { break };
            let to = match BlackoutSearch::new(&[self], from).at(from) {
                Blackout::Until(end) => Some(end),
                Blackout::None | Blackout::Endless => None,
            };
            periods.push(BlackoutPeriod { from, to });
            let Some(to) = to else { break };
            at = to;
        }
        periods
    }

    /// Returns the first instant after `at` at which a day or a window begins.
    fn next_begin(&self, at: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let zone = parse_zone(&self.zone).ok()?;
        let today = at.with_timezone(&zone).date_naive();
        let days = self.dates.iter().filter_map(|day| instant(zone, *day, NaiveTime::MIN));
        // Eight days, because today's window may have ended; one more for clock changes.
        let week = (0..=8).filter_map(|n| today.checked_add_days(Days::new(n)));
        let windows = week.flat_map(|day| {
            let weekday = day.weekday().num_days_from_sunday();
            let of_day = self.windows.iter().filter(move |window| u32::from(window.weekday) == weekday);
            of_day.filter_map(move |window| instant(zone, day, window.from))
        });
        days.chain(windows).filter(|begin| *begin > at).min()
    }
}

/// Returns the instant of a local time. For a local time in a clock change's gap, returns the first instant after it.
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
        text.parse().expect("a valid instant")
    }

    fn time(text: &str) -> NaiveTime {
        text.parse().expect("a valid time")
    }

    fn nights() -> Calendar {
        Calendar {
            name: "Friday night and May Day".into(),
            zone: "Europe/Warsaw".into(),
            dates: ["2026-05-01", "2026-05-02"].map(|text| text.parse().expect("a valid date")).to_vec(),
            windows: vec![WeeklyWindow { weekday: 5, from: time("22:00:00"), to: time("06:00:00") }],
        }
    }

    #[test]
    fn day_follows_the_calendars_zone() {
        let calendar = nights();
        // Midnight in Warsaw is 22:00 UTC the day before in summer.
        assert_eq!(calendar.blackout_end(at("2026-04-30T21:59:59Z")), None);
        assert_eq!(calendar.blackout_end(at("2026-05-01T12:00:00Z")), Some(at("2026-05-01T22:00:00Z")));
    }

    #[test]
    fn window_may_cross_midnight() {
        let calendar = nights();
        assert_eq!(calendar.blackout_end(at("2026-11-20T20:59:00Z")), None);
        assert_eq!(calendar.blackout_end(at("2026-11-20T21:00:00Z")), Some(at("2026-11-21T05:00:00Z")));
        assert_eq!(calendar.blackout_end(at("2026-11-21T04:59:59Z")), Some(at("2026-11-21T05:00:00Z")));
        assert_eq!(calendar.blackout_end(at("2026-11-21T05:00:00Z")), None);
    }

    #[test]
    fn adjoining_blackouts_are_one() {
        let calendar = nights();
        // 1 May 2026 is a Friday: two whole days, joined by Friday night's window.
        let calendars = [&calendar];
        let may_day = at("2026-05-01T12:00:00Z");
        let found = BlackoutSearch::new(&calendars, may_day).at(may_day);
        assert_eq!(found, Blackout::Until(at("2026-05-02T22:00:00Z")));
    }

    #[test]
    fn next_blackouts_are_ordered_and_merged() {
        let period = |from, to| BlackoutPeriod { from: at(from), to: Some(at(to)) };
        assert_eq!(
            nights().next_blackouts(at("2026-04-28T12:00:00Z"), 3),
            [
                // Two whole days, joined by Friday night's window.
                period("2026-04-30T22:00:00Z", "2026-05-02T22:00:00Z"),
                period("2026-05-08T20:00:00Z", "2026-05-09T04:00:00Z"),
                period("2026-05-15T20:00:00Z", "2026-05-16T04:00:00Z"),
            ]
        );
        assert_eq!(
            nights().next_blackouts(at("2026-05-09T01:00:00Z"), 1),
            [period("2026-05-09T01:00:00Z", "2026-05-09T04:00:00Z")],
            "a current blackout begins at the instant of the request"
        );
        let mut dates_only = nights();
        dates_only.windows.clear();
        assert_eq!(dates_only.next_blackouts(at("2026-06-01T00:00:00Z"), 3), [], "past days are not returned");
    }

    #[test]
    fn endless_blackout_has_no_end() {
        let midnight = NaiveTime::MIN;
        let windows = (0..7).map(|weekday| WeeklyWindow { weekday, from: midnight, to: midnight }).collect();
        let always = Calendar { dates: Vec::new(), windows, ..nights() };
        let now = at("2026-05-09T01:00:00Z");
        assert_eq!(always.next_blackouts(now, 3), [BlackoutPeriod { from: now, to: None }]);
    }

    #[test]
    fn calendar_that_leaves_nothing_free_is_refused() {
        let window = |weekday, from, to| WeeklyWindow { weekday, from: time(from), to: time(to) };
        let with = |windows: Vec<WeeklyWindow>| Calendar { windows, ..nights() };
        let nightly = |weekday| window(weekday, "20:00:00", "08:00:00");
        let daily = |weekday| window(weekday, "08:00:00", "20:00:00");
        let all = with((0..7).map(nightly).chain((0..7).map(daily)).collect());
        let errors = all.check().expect_err("refused");
        assert_eq!(errors.iter().map(|error| error.field.as_str()).collect::<Vec<_>>(), ["windows"]);
        let whole_days = with((0..7).map(|weekday| window(weekday, "00:00:00", "00:00:00")).collect());
        assert!(whole_days.check().is_err());
        let one_minute_free = with((0..7).map(|weekday| window(weekday, "00:01:00", "00:00:00")).collect());
        assert_eq!(one_minute_free.check(), Ok(()));
        let without_sunday_morning = with((0..7).map(nightly).chain((1..7).map(daily)).collect());
        assert_eq!(without_sunday_morning.check(), Ok(()));
    }

    #[test]
    fn empty_calendar_and_unknown_zone_are_refused() {
        let calendar = Calendar { name: String::new(), zone: "Mars/Olympus".into(), dates: vec![], windows: vec![] };
        let fields: Vec<_> = calendar.check().expect_err("invalid").into_iter().map(|error| error.field).collect();
        assert_eq!(fields, ["name", "zone", "dates"]);
        assert!(nights().check().is_ok());
    }
}
