//! The matching of local times: bits and calendar arithmetic, without zones.
//!
//! Local time is a number here: seconds since 1970-01-01T00:00:00 *on the local clock*. The search therefore needs
//! neither allocation nor fallible arithmetic. It works month by month: the matching days of a month are a 32-bit mask,
//! computed in a few instructions. The rarest pattern is 29 February on a given weekday, across a century without a
//! leap year. It is found, or given up, after at most 41 steps.

use chrono::{Datelike, NaiveDate};

/// The seconds in a day of local time.
const SECONDS_PER_DAY: i64 = 86_400;

/// The days from 0001-01-01 to 1970-01-01, plus one: the difference between chrono's day count and ours.
const EPOCH_FROM_CE: i64 = 719_163;

/// The first supported local time: 0001-01-01T00:00:00.
pub(crate) const MIN_LOCAL_TIME: i64 = -62_135_596_800;

/// The last supported local time: 9999-12-31T23:59:59. Cronos, the library that defines the dialect, ends there too,
/// and so does RFC 3339.
pub(crate) const MAX_LOCAL_TIME: i64 = 253_402_300_799;

/// The matching days of the month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MonthDays {
    /// A set of days, bit `d` for day `d`.
    Listed(u32),
    /// The day this many days before the last day of the month.
    Last(u32),
    /// The weekday (Monday to Friday) nearest to this day, in the same month.
    WeekdayNear(u32),
    /// The weekday nearest to the day this many days before the last day of the month.
    WeekdayNearLast(u32),
}

/// The matching days of the week; Sunday is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeekDays {
    /// A set of weekdays, bit `d` for weekday `d`.
    Listed(u32),
    /// The last such weekday of the month.
    Last(u32),
    /// The `.1`-th weekday `.0` of the month.
    Nth(u32, u32),
}

/// Every day of the week.
pub(crate) const ANY_WEEKDAY: WeekDays = WeekDays::Listed(0x7f);

/// Every day of the month.
pub(crate) const ANY_MONTHDAY: MonthDays = MonthDays::Listed(0xffff_fffe);

/// A pattern of local times. Bit `n` of a field stands for the value `n`. No field is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CronMatcher {
    pub(crate) seconds: u64,
    pub(crate) minutes: u64,
    pub(crate) hours: u64,
    pub(crate) month_days: MonthDays,
    pub(crate) months: u64,
    pub(crate) week_days: WeekDays,
}

impl CronMatcher {
    /// Returns the first matching local time at or after `from`; none if the calendar ends before it.
    pub(crate) fn next(&self, from: i64) -> Option<i64> {
        self.search(from).0
    }

    /// Like [`next`](Self::next), with the number of months that were searched.
    fn search(&self, from: i64) -> (Option<i64>, u32) {
        let from = from.max(MIN_LOCAL_TIME);
        if from > MAX_LOCAL_TIME {
            return (None, 0);
        }
        let (days, second) = (from.div_euclid(SECONDS_PER_DAY), from.rem_euclid(SECONDS_PER_DAY));
        let Some(date) = date(days) else { return (None, 0) };
        let month = self.month_mask(date.year(), date.month());
        let today = month & (1 << date.day()) != 0 && self.months & (1 << date.month()) != 0;
        if today && let Some(time) = self.time(second as u32) {
            return (Some(days * SECONDS_PER_DAY + i64::from(time)), 1);
        }
        let (mut year, mut number, mut steps) = (date.year(), date.month(), 1);
        // In the first month only the later days count.
        let mut mask = if date.day() >= 31 { 0 } else { month & (u32::MAX << (date.day() + 1)) };
        if self.months & (1 << number) == 0 {
            mask = 0;
        }
        while mask == 0 {
            number = match next_bit(self.months, number + 1) {
                Some(number) => number,
                None => {
                    year += 1;
                    first_bit(self.months)
                }
            };
            if year > 9999 {
                return (None, steps);
            }
            mask = self.month_mask(year, number);
            steps += 1;
        }
        let found = NaiveDate::from_ymd_opt(year, number, mask.trailing_zeros()).map(|date| {
            let days = i64::from(date.num_days_from_ce()) - EPOCH_FROM_CE;
            let time = (first_bit(self.hours) * 60 + first_bit(self.minutes)) * 60 + first_bit(self.seconds);
            days * SECONDS_PER_DAY + i64::from(time)
        });
        (found, steps)
    }

    /// Returns true if any date matches. Matching depends only on the length of a month and on the weekday of its first
    /// day. All such pairs occur, so trying each of them is enough.
    pub(crate) fn can_match(&self) -> bool {
        (1..=12).filter(|month| self.months & (1 << month) != 0).any(|month| {
            let lengths: &[u32] = match month {
                2 => &[28, 29],
                4 | 6 | 9 | 11 => &[30],
                _ => &[31],
            };
            lengths.iter().any(|length| (0..7).any(|first| self.mask(first, *length) != 0))
        })
    }

    /// Returns the first matching second of the day at or after `second`.
    fn time(&self, second: u32) -> Option<u32> {
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let join = |hour: u32, minute: u32, second: u32| (hour * 60 + minute) * 60 + second;
        if self.hours & (1 << hour) != 0 {
            if self.minutes & (1 << minute) != 0
                && let Some(second) = next_bit(self.seconds, second)
            {
                return Some(join(hour, minute, second));
            }
            if let Some(minute) = next_bit(self.minutes, minute + 1) {
                return Some(join(hour, minute, first_bit(self.seconds)));
            }
        }
        next_bit(self.hours, hour + 1).map(|hour| join(hour, first_bit(self.minutes), first_bit(self.seconds)))
    }

    /// Returns the matching days of a month. The month itself is not checked.
    fn month_mask(&self, year: i32, month: u32) -> u32 {
        let length = match month {
            2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let first = NaiveDate::from_ymd_opt(year, month, 1).map_or(0, |date| date.weekday().num_days_from_sunday());
        self.mask(first, length)
    }

    /// Returns the matching days of a month with `length` days whose first day is the weekday `first`.
    fn mask(&self, first: u32, length: u32) -> u32 {
        let listed = match self.month_days {
            MonthDays::Listed(bits) => bits,
            MonthDays::Last(before) if before < length => 1 << (length - before),
            MonthDays::WeekdayNear(day) if day <= length => 1 << weekday_near(day, first, length),
            MonthDays::WeekdayNearLast(before) if before < length => 1 << weekday_near(length - before, first, length),
            _ => return 0,
        };
        let week = match self.week_days {
            WeekDays::Listed(bits) => {
                // Rotated so that the first of the month is bit 0, then repeated for five weeks.
                let rotated = u64::from((bits >> first | bits << (7 - first)) & 0x7f);
                ((rotated | rotated << 7 | rotated << 14 | rotated << 21 | rotated << 28) << 1) as u32
            }
            WeekDays::Last(day) => {
                let last = (first + length - 1) % 7;
                1 << (length - (last + 7 - day) % 7)
            }
            WeekDays::Nth(day, nth) => {
                let day = 1 + (day + 7 - first) % 7 + 7 * (nth - 1);
                if day > length {
                    return 0;
                }
                1 << day
            }
        };
        let inside = ((1_u64 << (length + 1)) - 2) as u32;
        listed & week & inside
    }
}

/// Returns the weekday nearest to `day`, always in the same month. For Saturday the 1st it returns Monday the 3rd, for
/// a Sunday at the end of the month the Friday before it.
fn weekday_near(day: u32, first: u32, length: u32) -> u32 {
    match (first + day - 1) % 7 {
        6 if day == 1 => 3,
        6 => day - 1,
        0 if day == length => day - 2,
        0 => day + 1,
        _ => day,
    }
}

fn date(days: i64) -> Option<NaiveDate> {
    NaiveDate::from_num_days_from_ce_opt(i32::try_from(days + EPOCH_FROM_CE).ok()?)
}

fn next_bit(bits: u64, from: u32) -> Option<u32> {
    let rest = bits.checked_shr(from).unwrap_or(0);
    (rest != 0).then(|| from + rest.trailing_zeros())
}

fn first_bit(bits: u64) -> u32 {
    bits.trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cron::CronExpression;

    /// Bounds the longest search from many years, for patterns chosen to be rare.
    #[test]
    fn search_is_bounded_for_rare_patterns() {
        for expression in
            ["0 0 29 2 MON", "0 0 29 2 SUN#5", "0 0 31 12 1#5", "0 0 L-30 * MON", "0 0 LW 2 1", "59 59 23 31 12 SAT"]
        {
            let matcher = *CronExpression::parse(expression).expect(expression).matcher();
            for year in (1..=9999).step_by(3) {
                let from =
                    NaiveDate::from_ymd_opt(year, 3, 1).expect("a valid date").and_hms_opt(0, 0, 0).expect("midnight");
                let (_, steps) = matcher.search(from.and_utc().timestamp());
                assert!(steps <= 132, "{expression} from {year}: {steps} months");
            }
        }
    }

    #[test]
    fn search_ends_at_the_calendar_bounds() {
        let every = CronExpression::parse("* * * * * *").expect("a valid expression");
        assert_eq!(every.matcher().next(i64::MIN), Some(MIN_LOCAL_TIME));
        assert_eq!(every.matcher().next(MAX_LOCAL_TIME), Some(MAX_LOCAL_TIME));
        assert_eq!(every.matcher().next(MAX_LOCAL_TIME + 1), None);
        assert_eq!(every.matcher().next(i64::MAX), None);
        assert_eq!(
            CronExpression::parse("0 0 29 2 *")
                .expect("a valid expression")
                .matcher()
                .next(MAX_LOCAL_TIME - 3 * 365 * SECONDS_PER_DAY),
            None
        );
    }
}
