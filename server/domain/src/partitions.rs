//! The bounds of partitions: which ones are missing, and how wide they are.
//!
//! PostgreSQL locks every partition of a table that a statement without a bound reads, and has room for some thousand such
//! locks among all its sessions. The longer rows are kept, the wider the partitions are therefore, so that a table never has
//! many more than sixty.
//!
//! Each partition begins where the one before ends. A retention that changes, and with it the width, can neither leave a
//! gap nor overlap: the first partition of the new width reaches from the end of the last old one to the next bound of
//! its own calendar.
//!
//! Operators detach partitions to archive them. A gap that this leaves is filled only where rows may still be written.

use chrono::{DateTime, Datelike, Days, Duration, Months, NaiveDate, NaiveTime, Utc};

/// The longest retention, in days, with a partition for each day.
pub const MAX_DAILY_RETENTION: i64 = 56;
/// The longest retention, in days, with a partition for each week.
pub const MAX_WEEKLY_RETENTION: i64 = 430;
/// The longest retention, in days, with a partition for each month. A longer one is refused.
pub const MAX_RETENTION: i64 = 1_850;
/// The time for which partitions are created ahead. A server that was down for longer creates them at start.
const AHEAD: Duration = Duration::days(7);
/// The age of the oldest row that the first partition accepts.
const MAX_FIRST_AGE: Duration = Duration::days(1);

/// The width of a partition. Weeks begin on Monday; all bounds are midnights in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionWidth {
    /// One day.
    Day,
    /// One week.
    Week,
    /// One month.
    Month,
}

/// The bounds of a partition: the first instant in it, and the first one after it.
pub type PartitionBounds = (DateTime<Utc>, DateTime<Utc>);

impl PartitionWidth {
    /// Returns the width for rows that are kept for `retention`.
    #[must_use]
    pub const fn for_retention(retention: Duration) -> Self {
        let days = retention.num_days();
        if days <= MAX_DAILY_RETENTION {
            Self::Day
        } else if days <= MAX_WEEKLY_RETENTION {
            Self::Week
        } else {
            Self::Month
        }
    }

    /// Returns the last bound at or before `at`.
    fn bound_before(self, at: DateTime<Utc>) -> DateTime<Utc> {
        let day = at.date_naive();
        midnight(match self {
            Self::Day => day,
            Self::Week => day - Days::new(u64::from(day.weekday().num_days_from_monday())),
            Self::Month => day - Days::new(u64::from(day.day0())),
        })
    }

    /// Returns the first bound after `at`.
    fn bound_after(self, at: DateTime<Utc>) -> DateTime<Utc> {
        let first = self.bound_before(at);
        match self {
            Self::Day => first + Days::new(1),
            Self::Week => first + Days::new(7),
            Self::Month => first + Months::new(1),
        }
    }
}

/// Returns the partitions to create at `now`, in the order of time. `existing` are in that order too.
#[must_use]
pub fn missing_partitions(
    existing: &[PartitionBounds],
    width: PartitionWidth,
    now: DateTime<Utc>,
) -> Vec<PartitionBounds> {
    let first = width.bound_before(now - MAX_FIRST_AGE);
    let mut missing = Vec::new();
    let mut from = existing.iter().rfind(|(from, _)| *from <= first).map_or(first, |(_, to)| *to);
    if existing.iter().any(|(next, _)| first < *next) {
        // The days before are detached, and nothing is written there any more.
        from = from.max(first);
    }
    // A clock that was ahead when the first partition was created, or a partition that was detached, leaves a gap.
    for (next, to) in existing.iter().filter(|(next, _)| first < *next) {
        if from < *next {
            missing.push((from, *next));
        }
        from = *to;
    }
    while from <= now + AHEAD {
        // After a long downtime, one wide partition covers it.
        let to = width.bound_after(from.max(now - MAX_FIRST_AGE));
        missing.push((from, to));
        from = to;
    }
    missing
}

fn midnight(day: NaiveDate) -> DateTime<Utc> {
    day.and_time(NaiveTime::MIN).and_utc()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        format!("{text}Z").parse().expect("an instant")
    }

    /// Adds what is missing and returns all partitions. Panics if there is a gap or an overlap.
    fn extended(mut existing: Vec<PartitionBounds>, days: i64, now: DateTime<Utc>) -> Vec<PartitionBounds> {
        let width = PartitionWidth::for_retention(Duration::days(days));
        existing.extend(missing_partitions(&existing, width, now));
        existing.sort_unstable();
        assert!(existing.windows(2).all(|pair| pair[0].1 == pair[1].0), "{existing:?}");
        assert!(missing_partitions(&existing, width, now).is_empty(), "they are created once");
        let covers = |at: DateTime<Utc>| existing.iter().any(|(from, to)| *from <= at && at < *to);
        assert!(covers(now) && covers(now - Duration::hours(23)) && covers(now + Duration::days(7)), "{existing:?}");
        existing
    }

    #[test]
    fn width_follows_the_retention() {
        let width = |days| PartitionWidth::for_retention(Duration::days(days));
        assert_eq!([1, 56].map(width), [PartitionWidth::Day; 2]);
        assert_eq!([57, 430].map(width), [PartitionWidth::Week; 2]);
        assert_eq!([431, 1_850].map(width), [PartitionWidth::Month; 2]);
    }

    #[test]
    fn partitions_are_few_whatever_the_retention_is() {
        for days in [1, 30, 56, 57, 430, 431, 1_850] {
            let width = PartitionWidth::for_retention(Duration::days(days));
            let (mut from, now) = (at("2026-11-23T12:00:00"), at("2026-11-23T12:00:00") + Duration::days(days));
            let mut count = 0;
            while from <= now + AHEAD {
                from = width.bound_after(from);
                count += 1;
            }
            assert!(count <= 66, "{days} days need {count} partitions");
        }
    }

    #[test]
    fn bounds_are_midnights_mondays_and_first_days() {
        let now = at("2026-11-25T13:14:15");
        let first = |days| extended(Vec::new(), days, now)[0];
        assert_eq!(first(30), (at("2026-11-24T00:00:00"), at("2026-11-25T00:00:00")));
        assert_eq!(first(400), (at("2026-11-23T00:00:00"), at("2026-11-30T00:00:00")));
        assert_eq!(first(1_000), (at("2026-11-01T00:00:00"), at("2026-12-01T00:00:00")));
    }

    #[test]
    fn retention_and_clock_may_change_at_any_time() {
        let mut now = at("2026-11-25T23:59:59");
        let mut all = Vec::new();
        for (days, step) in [(30, 3), (400, 1), (400, 40), (7, 1), (1_000, 9), (30, -20), (60, 300), (30, 1)] {
            now += Duration::days(step);
            all = extended(all, days, now);
        }
    }

    #[test]
    fn detached_partition_is_created_again_while_rows_may_be_written() {
        let (begin, now) = (at("2026-11-20T12:00:00"), at("2026-11-25T12:00:00"));
        let all = extended(extended(Vec::new(), 30, begin), 30, now);
        let without = |day: &str| {
            let mut left = all.clone();
            left.retain(|(from, _)| *from != at(day));
            assert_eq!(left.len() + 1, all.len(), "{all:?}");
            missing_partitions(&left, PartitionWidth::Day, now)
        };
        for day in ["2026-11-24T00:00:00", "2026-11-25T00:00:00", "2026-12-01T00:00:00"] {
            assert_eq!(without(day), [(at(day), at(day) + Duration::days(1))]);
        }
        assert!(without("2026-11-21T00:00:00").is_empty(), "an archived day is not created again");
    }

    #[test]
    fn one_partition_covers_a_long_downtime() {
        let all = extended(Vec::new(), 30, at("2026-01-01T00:00:00"));
        let before = all.len();
        let all = extended(all, 30, at("2026-11-25T12:00:00"));
        assert_eq!(all[before], (all[before - 1].1, at("2026-11-25T00:00:00")));
    }
}
