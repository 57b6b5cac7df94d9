//! A calendar in words: a summary of its blackouts, short enough for a table row.

use std::collections::BTreeMap;

use chrono::{NaiveDate, NaiveTime};

use super::{Calendar, WeeklyWindow};

/// The maximum number of date ranges that are listed. The days of further ranges are counted.
const MAX_NAMED_DATE_RANGES: usize = 3;

/// The weekdays in display order, each with its number in a [`WeeklyWindow`].
pub const WEEKDAYS: [(u8, &str); 7] =
    [(1, "Mon"), (2, "Tue"), (3, "Wed"), (4, "Thu"), (5, "Fri"), (6, "Sat"), (0, "Sun")];

impl Calendar {
    /// Describes the blackouts as of `today`. Past days are counted only if no others are left.
    ///
    /// Example: `Sat, Sun all day; 2026-12-24 to 2026-12-26, 2027-01-01 and 4 more days`.
    #[must_use]
    pub fn describe(&self, today: NaiveDate) -> String {
        let mut parts: Vec<String> = self.weekly_windows().iter().map(|(times, days)| weekly(*times, days)).collect();
        parts.extend(self.days(today));
        parts.join("; ")
    }

    /// Returns the weekly windows grouped by their times, each with its weekdays in the order of [`WEEKDAYS`].
    #[must_use]
    pub fn weekly_windows(&self) -> Vec<((NaiveTime, NaiveTime), Vec<u8>)> {
        let mut rows: BTreeMap<(NaiveTime, NaiveTime), Vec<u8>> = BTreeMap::new();
        for WeeklyWindow { weekday, from, to } in &self.windows {
            rows.entry((*from, *to)).or_default().push(*weekday);
        }
        for days in rows.values_mut() {
            days.sort_unstable_by_key(|day| weekday_index(*day));
            days.dedup();
        }
        rows.into_iter().collect()
    }

    /// Returns the days as ranges of consecutive days: the first and the last day of each.
    #[must_use]
    pub fn date_ranges(&self) -> Vec<(NaiveDate, NaiveDate)> {
        let mut dates = self.dates.clone();
        dates.sort_unstable();
        let mut ranges: Vec<(NaiveDate, NaiveDate)> = Vec::new();
        for date in dates {
            match ranges.last_mut() {
                Some((_, last)) if last.succ_opt() == Some(date) || *last == date => *last = date,
                _ => ranges.push((date, date)),
            }
        }
        ranges
    }

    fn days(&self, today: NaiveDate) -> Option<String> {
        let coming: Vec<_> = self.date_ranges().into_iter().filter(|(_, last)| *last >= today).collect();
        let past = self.dates.iter().filter(|day| **day < today).count();
        if coming.is_empty() {
            return match past {
                0 => None,
                1 => Some("1 past day".into()),
                n => Some(format!("{n} past days")),
            };
        }
        let (named, others) = coming.split_at(coming.len().min(MAX_NAMED_DATE_RANGES));
        let named: Vec<_> = named.iter().map(|(first, last)| format_date_range(*first, *last)).collect();
        let more: i64 = others.iter().map(|(first, last)| (*last - *first).num_days() + 1).sum();
        let more = usize::try_from(more).unwrap_or_default();
        let and = if more > 0 {
            format!(" and {more} more {}", if more == 1 { "day" } else { "days" })
        } else {
            String::new()
        };
        Some(format!("{}{and}", named.join(", ")))
    }
}

/// Formats a date range: one date, or the first and the last date.
#[must_use]
pub fn format_date_range(first: NaiveDate, last: NaiveDate) -> String {
    if first == last { first.to_string() } else { format!("{first} to {last}") }
}

fn weekday_index(day: u8) -> usize {
    WEEKDAYS.iter().position(|(known, _)| *known == day).unwrap_or(WEEKDAYS.len())
}

fn weekly((from, to): (NaiveTime, NaiveTime), weekdays: &[u8]) -> String {
    let days = weekday_words(weekdays);
    if from == NaiveTime::MIN && to == NaiveTime::MIN {
        return format!("{days} all day");
    }
    let next = if to > from || to == NaiveTime::MIN { "" } else { " the next day" };
    let to = if to == NaiveTime::MIN { "24:00".into() } else { format_time_of_day(to) };
    format!("{days} {}–{to}{next}", format_time_of_day(from))
}

/// Formats a time of day, with seconds only if they are not zero.
#[must_use]
pub fn format_time_of_day(time: NaiveTime) -> String {
    let text = time.format("%H:%M:%S").to_string();
    text.strip_suffix(":00").map(str::to_owned).unwrap_or(text)
}

/// Formats weekdays: `Mon–Fri`, `Sat, Sun`, `Every day`. Three or more consecutive days become a range.
fn weekday_words(weekdays: &[u8]) -> String {
    let word = |index: usize| WEEKDAYS.get(index).map_or("?", |(_, word)| *word);
    let indexes: Vec<usize> = weekdays.iter().map(|day| weekday_index(*day)).collect();
    if indexes.len() == WEEKDAYS.len() {
        return "Every day".into();
    }
    let mut words: Vec<String> = Vec::new();
    for run in indexes.chunk_by(|one, next| one + 1 == *next) {
        match run {
            [first, _, .., last] => words.push(format!("{}–{}", word(*first), word(*last))),
            few => words.extend(few.iter().map(|index| word(*index).to_owned())),
        }
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(text: &str) -> NaiveDate {
        text.parse().expect("a valid date")
    }

    fn calendar(dates: &[&str], windows: &[(u8, &str, &str)]) -> Calendar {
        let time = |text: &str| text.parse().expect("a valid time");
        Calendar {
            name: "x".into(),
            zone: "UTC".into(),
            dates: dates.iter().map(|text| day(text)).collect(),
            windows: windows
                .iter()
                .map(|(weekday, from, to)| WeeklyWindow { weekday: *weekday, from: time(from), to: time(to) })
                .collect(),
        }
    }

    fn words(dates: &[&str], windows: &[(u8, &str, &str)]) -> String {
        calendar(dates, windows).describe(day("2026-11-21"))
    }

    #[test]
    fn consecutive_days_are_one_range() {
        assert_eq!(words(&["2026-12-26", "2026-12-24", "2026-12-25"], &[]), "2026-12-24 to 2026-12-26");
        assert_eq!(words(&["2026-12-24", "2027-01-01"], &[]), "2026-12-24, 2027-01-01");
    }

    #[test]
    fn many_days_are_counted_and_past_days_are_not_listed() {
        let dates = ["2026-01-01", "2026-12-24", "2027-01-01", "2027-03-01", "2027-05-01", "2027-05-02"];
        assert_eq!(words(&dates, &[]), "2026-12-24, 2027-01-01, 2027-03-01 and 2 more days");
        assert_eq!(words(&["2026-01-01"], &[]), "1 past day");
    }

    #[test]
    fn weekdays_with_the_same_times_are_grouped() {
        let nights = [1, 2, 3, 4, 5].map(|weekday| (weekday, "22:00:00", "06:00:00"));
        assert_eq!(words(&[], &nights), "Mon–Fri 22:00–06:00 the next day");
        let weekend = [(0, "00:00:00", "00:00:00"), (6, "00:00:00", "00:00:00"), (1, "18:30:00", "00:00:00")];
        assert_eq!(words(&["2026-12-24"], &weekend), "Sat, Sun all day; Mon 18:30–24:00; 2026-12-24");
        let always = [0, 1, 2, 3, 4, 5, 6].map(|weekday| (weekday, "12:00:30", "13:00:00"));
        assert_eq!(words(&[], &always), "Every day 12:00:30–13:00");
    }
}
