//! The effect of clock changes on a cron schedule, for display.
//!
//! `zone.rs` decides what a local time means on a day with a clock change. This module finds the changes in a period that
//! concern an expression, and describes what happens then. It does not repeat the rules: a note is made only where the
//! expression has a match in the hour that is lost or repeated.

use chrono::{DateTime, NaiveDateTime, Utc};
use chrono_tz::Tz;

use crate::{cron::CronExpression, zone};

/// The longest period that is examined, in days. A zone has at most four changes in it.
const MAX_PERIOD_DAYS: i64 = 370;

/// A local time of a schedule that does not exist or exists twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockChangeNote {
    /// The first local time of the schedule that is lost or repeated.
    pub local: NaiveDateTime,
    /// The due time: the first instant after a gap, or the first pass of a repeated time.
    pub due: DateTime<Utc>,
    /// The kind of clock change.
    pub effect: ClockChangeEffect,
}

/// The effect of a clock change on a local time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockChangeEffect {
    /// The time does not exist, because the clock is set forward.
    Missing,
    /// The time occurs twice, and the job is due the first time.
    FirstOfTwo,
    /// The time occurs twice, and the job is due both times.
    Both,
}

impl ClockChangeNote {
    /// Returns the note as a sentence.
    #[must_use]
    pub fn describe(&self, zone: Tz) -> String {
        let local = self.local.format("%Y-%m-%d %H:%M:%S");
        match self.effect {
            ClockChangeEffect::Missing => {
                let due = self.due.with_timezone(&zone).format("%H:%M:%S");
                format!("{local} does not exist in {zone}: the clock is set forward, and the job runs at {due}.")
            }
            ClockChangeEffect::FirstOfTwo => {
                format!("{local} occurs twice in {zone}: the clock is set back, and the job runs the first time only.")
            }
            ClockChangeEffect::Both => {
                format!("{local} occurs twice in {zone}: the clock is set back, and the job runs both times.")
            }
        }
    }
}

/// Returns the clock changes of `zone` from `from` to `until` (at most 370 days) that concern `cron`, in order.
///
/// An expression that is due in every hour has no notes: it has no time of day that a change could affect.
#[must_use]
pub fn notes(cron: &CronExpression, zone: Tz, from: DateTime<Utc>, until: DateTime<Utc>) -> Vec<ClockChangeNote> {
    if cron.is_due_every_hour() {
        return Vec::new();
    }
    let until = until.min(from + chrono::Duration::days(MAX_PERIOD_DAYS));
    let local = |second: i64| DateTime::from_timestamp(second, 0).map(|at| at.naive_utc());
    zone::changes(zone, from.timestamp(), until.timestamp())
        .into_iter()
        .filter_map(|(at, before, after)| {
            let (low, high) = (at + before.min(after), at + before.max(after));
            let hit = cron.next_local(low).filter(|hit| *hit < high)?;
            let (due, effect) = match (after > before, cron.is_interval()) {
                (true, _) => (at, ClockChangeEffect::Missing),
                (false, false) => (hit - before, ClockChangeEffect::FirstOfTwo),
                (false, true) => (hit - before, ClockChangeEffect::Both),
            };
            Some(ClockChangeNote { local: local(hit)?, due: DateTime::from_timestamp(due, 0)?, effect })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use chrono::Duration;

    use super::*;

    fn notes_of(expression: &str, zone: &str) -> Vec<String> {
        let cron = CronExpression::parse(expression).expect("an expression");
        let zone: Tz = zone.parse().expect("a zone");
        let from: DateTime<Utc> = "2026-11-22T12:00:00Z".parse().expect("an instant");
        let notes = notes(&cron, zone, from, from + Duration::days(366));
        for note in &notes {
            assert_eq!(
                cron.next_after(zone, note.due - Duration::seconds(1)),
                Some(note.due),
                "{expression}: {note:?}"
            );
        }
        notes.iter().map(|note| note.describe(zone)).collect()
    }

    #[test]
    fn lost_and_repeated_times_are_described() {
        assert_eq!(
            notes_of("30 2 * * *", "Europe/Warsaw"),
            [
                "2027-03-28 02:30:00 does not exist in Europe/Warsaw: the clock is set forward, and the job runs at \
                 03:00:00.",
                "2027-10-31 02:30:00 occurs twice in Europe/Warsaw: the clock is set back, and the job runs the first \
                 time only.",
            ]
        );
        let both = notes_of("*/20 2 * * *", "Europe/Warsaw");
        assert!(both[1].contains("2027-10-31 02:00:00") && both[1].contains("both times"), "{both:?}");
    }

    #[test]
    fn times_without_a_change_have_no_note() {
        assert!(notes_of("0 9 * * *", "Europe/Warsaw").is_empty());
        assert!(notes_of("0 3 * * *", "Europe/Warsaw").is_empty(), "03:00 exists once");
        assert!(notes_of("30 2 * * 1-5", "Europe/Warsaw").is_empty(), "the changes are on Sundays");
        assert!(notes_of("30 2 * * *", "UTC").is_empty());
        assert!(notes_of("*/15 * * * *", "Europe/Warsaw").is_empty());
        assert!(notes_of("0 * * * *", "Europe/Warsaw").is_empty());
    }
}
