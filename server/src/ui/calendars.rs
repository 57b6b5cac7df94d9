//! Calendars for the pages: in words, with the next blackouts in the calendar's own time zone.

use chrono::{DateTime, NaiveTime, Utc};
use chrono_tz::Tz;
use milvaion_api::{
    calendar_form::CalendarForm,
    views::{BlackoutView, CalendarRow, CalendarView},
};
use milvaion_app::error::AppError;
use milvaion_protocol::id::CalendarId;
use milvaion_schedule::{
    calendar::{BlackoutPeriod, Calendar},
    schedule::parse_zone,
};

use crate::{
    command::calendars::not_found,
    store::{Store, calendars::StoredCalendar},
};

/// The number of upcoming blackouts that are shown.
const UPCOMING_BLACKOUTS: usize = 5;
/// The most jobs that the page of a calendar names.
const MAX_LISTED_JOBS: i64 = 20;

/// Builds the rows of the calendar list.
#[must_use]
pub fn rows(calendars: Vec<StoredCalendar>, now: DateTime<Utc>) -> Vec<CalendarRow> {
    calendars
        .into_iter()
        .map(|stored| {
            let row = CalendarRow {
                id: stored.id,
                name: stored.name,
                zone: String::new(),
                words: "This server cannot read this calendar. Upgrade this server.".into(),
                jobs: stored.jobs,
                pending_jobs: stored.pending_jobs,
                next: None,
            };
            let Some(calendar) = stored.calendar else { return row };
            let zone = parse_zone(&calendar.zone).unwrap_or(Tz::UTC);
            CalendarRow {
                words: calendar.describe(now.with_timezone(&zone).date_naive()),
                next: calendar.next_blackouts(now, 1).first().map(|blackout| blackout_view(*blackout, zone, now)),
                zone: calendar.zone,
                ..row
            }
        })
        .collect()
}

/// Returns one calendar with the jobs that use it.
///
/// # Errors
///
/// Returns `NotFound` if the calendar does not exist, and `Conflict` if this version cannot read it.
pub async fn view(store: &Store, id: CalendarId) -> Result<CalendarView, AppError> {
    let stored = store.calendar(id).await?.ok_or_else(not_found)?;
    let calendar = stored.calendar.ok_or_else(|| {
        AppError::Conflict(
            "This server cannot read this calendar, which a newer server has saved. Upgrade this server.".into(),
        )
    })?;
    Ok(CalendarView {
        id,
        version: stored.version,
        calendar,
        jobs: store.calendar_job_names(id, MAX_LISTED_JOBS).await?,
        jobs_total: stored.jobs,
        pending_jobs: stored.pending_jobs,
        modified_at: stored.modified_at,
        modified_by: stored.modified_by,
    })
}

/// Returns the next blackouts of a calendar.
#[must_use]
pub fn upcoming_blackouts(calendar: &Calendar, now: DateTime<Utc>) -> Vec<BlackoutView> {
    let zone = parse_zone(&calendar.zone).unwrap_or(Tz::UTC);
    let blackouts = calendar.next_blackouts(now, UPCOMING_BLACKOUTS);
    blackouts.into_iter().map(|blackout| blackout_view(blackout, zone, now)).collect()
}

/// Returns the calendar that a form changes and the version it was read at, or `None` for a new calendar.
///
/// # Errors
///
/// Returns `NotFound` for an invalid id, and `Conflict` for an invalid version.
pub fn edited_version(form: &CalendarForm) -> Result<Option<(CalendarId, i32)>, AppError> {
    if form.id.is_empty() {
        return Ok(None);
    }
    let id = form.id.parse().map_err(|_| not_found())?;
    let version = form.version.parse().map_err(|_| {
        AppError::Conflict("This form has no valid version. Reload the page and repeat your change.".into())
    })?;
    Ok(Some((id, version)))
}

/// Formats a blackout in the time zone of its calendar.
fn blackout_view(blackout: BlackoutPeriod, zone: Tz, now: DateTime<Utc>) -> BlackoutView {
    let is_now = blackout.from <= now;
    let from = blackout.from.with_timezone(&zone);
    let Some(to) = blackout.to.map(|to| to.with_timezone(&zone)) else {
        let in_zone =
            if is_now { "Now, without end".into() } else { from.format("%a %Y-%m-%d %H:%M, without end").to_string() };
        return BlackoutView { from: blackout.from, to: None, in_zone, is_now };
    };
    let is_whole_days = from.time() == NaiveTime::MIN && to.time() == NaiveTime::MIN;
    let last = to.date_naive().pred_opt().unwrap_or_default();
    let in_zone = if is_now {
        to.format("Now, until %a %Y-%m-%d %H:%M %Z").to_string()
    } else if is_whole_days && last == from.date_naive() {
        from.format("%a %Y-%m-%d, all day").to_string()
    } else if is_whole_days {
        format!("{} to {}", from.format("%a %Y-%m-%d"), last.format("%a %Y-%m-%d"))
    } else if from.date_naive() == to.date_naive() {
        format!("{} to {}", from.format("%a %Y-%m-%d %H:%M"), to.format("%H:%M %Z"))
    } else {
        format!("{} to {}", from.format("%a %Y-%m-%d %H:%M"), to.format("%a %Y-%m-%d %H:%M %Z"))
    };
    BlackoutView { from: blackout.from, to: blackout.to, in_zone, is_now }
}

#[cfg(test)]
mod tests {
    use milvaion_schedule::calendar::WeeklyWindow;

    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().expect("instant")
    }

    fn texts(calendar: &Calendar, now: &str) -> Vec<String> {
        upcoming_blackouts(calendar, at(now)).into_iter().map(|blackout| blackout.in_zone).collect()
    }

    #[test]
    fn blackouts_use_the_time_zone_of_the_calendar() {
        let window = |weekday, from: &str, to: &str| WeeklyWindow {
            weekday,
            from: from.parse().expect("time"),
            to: to.parse().expect("time"),
        };
        let days = ["2026-12-24", "2026-12-25", "2027-01-01"].map(|day| day.parse().expect("date"));
        let mut calendar =
            Calendar { name: "x".into(), zone: "Europe/Warsaw".into(), dates: days.to_vec(), windows: Vec::new() };
        assert_eq!(
            texts(&calendar, "2026-12-01T00:00:00Z"),
            ["Thu 2026-12-24 to Fri 2026-12-25", "Fri 2027-01-01, all day"]
        );
        assert_eq!(texts(&calendar, "2026-12-24T12:00:00Z")[0], "Now, until Sat 2026-12-26 00:00 CET");
        calendar.dates.clear();
        calendar.windows = vec![window(3, "08:00:00", "09:30:00"), window(5, "22:00:00", "06:00:00")];
        assert_eq!(
            texts(&calendar, "2026-07-01T12:00:00Z")[..2],
            ["Fri 2026-07-03 22:00 to Sat 2026-07-04 06:00 CEST", "Wed 2026-07-08 08:00 to 09:30 CEST"]
        );
        calendar.windows = (0..7).map(|weekday| window(weekday, "00:00:00", "00:00:00")).collect();
        assert_eq!(texts(&calendar, "2026-07-01T12:00:00Z"), ["Now, without end"]);
    }
}
