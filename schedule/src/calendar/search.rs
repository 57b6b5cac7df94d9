//! The bounded search for the end of a blackout.
//!
//! Calendars may adjoin or overlap without end: nights in one calendar and days in another leave no instant free, and
//! each calendar by itself looks harmless. A search therefore has a budget of look-ups, and a distance that it looks
//! ahead. One search for a due time uses one [`BlackoutSearch`], however many blackouts it passes.

use chrono::{DateTime, Duration, Utc};

use super::Calendar;

/// The distance that a search looks ahead.
const MAX_DISTANCE: Duration = Duration::days(5 * 366);
/// The maximum number of look-ups in all calendars: two for each night of five years, with room.
const MAX_LOOKUPS: usize = 4_000;

/// What is known about an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blackout {
    /// The instant is in no blackout.
    None,
    /// The instant is in a blackout that ends at this instant, blackouts that adjoin it included.
    Until(DateTime<Utc>),
    /// The instant is in a blackout whose end was not found.
    Endless,
}

/// A search in the blackouts of some calendars.
#[derive(Debug)]
pub struct BlackoutSearch<'a> {
    calendars: &'a [&'a Calendar],
    /// The furthest end of a blackout that the search follows.
    until: DateTime<Utc>,
    /// The look-ups that are left.
    left: usize,
}

impl<'a> BlackoutSearch<'a> {
    /// Creates a search that starts at `from`.
    #[must_use]
    pub fn new(calendars: &'a [&'a Calendar], from: DateTime<Utc>) -> Self {
        let until = from.checked_add_signed(MAX_DISTANCE).unwrap_or(DateTime::<Utc>::MAX_UTC);
        Self { calendars, until, left: MAX_LOOKUPS }
    }

    /// Returns the blackout at an instant.
    pub fn at(&mut self, at: DateTime<Utc>) -> Blackout {
        let mut end = None;
        let mut probe = at;
        while !self.calendars.is_empty() {
            let Some(left) = self.left.checked_sub(1) else { return Blackout::Endless };
            self.left = left;
            match self.calendars.iter().filter_map(|calendar| calendar.blackout_end(probe)).max() {
                Some(until) if until > self.until => return Blackout::Endless,
                Some(until) => (end, probe) = (Some(until), until),
                None => break,
            }
        }
        end.map_or(Blackout::None, Blackout::Until)
    }
}

#[cfg(test)]
mod tests {
    use chrono::NaiveTime;

    use super::*;
    use crate::calendar::WeeklyWindow;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().expect("a valid instant")
    }

    fn daily(from: &str, to: &str) -> Calendar {
        let time = |text: &str| text.parse::<NaiveTime>().expect("a valid time");
        let window = |weekday| WeeklyWindow { weekday, from: time(from), to: time(to) };
        Calendar { name: "Daily".into(), zone: "UTC".into(), dates: Vec::new(), windows: (0..7).map(window).collect() }
    }

    #[test]
    fn adjoining_blackouts_are_one() {
        let (morning, evening) = (daily("06:00:00", "12:00:00"), daily("12:00:00", "18:00:00"));
        let calendars = [&morning, &evening];
        let mut search = BlackoutSearch::new(&calendars, at("2026-05-01T00:00:00Z"));
        assert_eq!(search.at(at("2026-05-01T05:59:59Z")), Blackout::None);
        assert_eq!(search.at(at("2026-05-01T07:00:00Z")), Blackout::Until(at("2026-05-01T18:00:00Z")));
    }

    #[test]
    fn calendars_that_leave_nothing_free_have_no_end() {
        let (days, nights) = (daily("06:00:00", "18:00:00"), daily("18:00:00", "06:00:00"));
        let calendars = [&days, &nights];
        let start = at("2026-05-01T00:00:00Z");
        let mut search = BlackoutSearch::new(&calendars, start);
        assert_eq!(search.at(start), Blackout::Endless);
        assert!(search.left < MAX_LOOKUPS, "the look-ups are counted");
    }

    #[test]
    fn look_ups_are_shared_by_all_instants_of_a_search() {
        let nights = daily("22:00:00", "06:00:00");
        let calendars = [&nights];
        let start = at("2026-05-01T12:00:00Z");
        let mut search = BlackoutSearch::new(&calendars, start);
        let noons = (0..).map(|day| start + Duration::days(day));
        assert_eq!(noons.take_while(|noon| search.at(*noon) == Blackout::None).count(), MAX_LOOKUPS);
    }
}
