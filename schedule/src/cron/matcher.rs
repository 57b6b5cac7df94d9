//! Which local times match: bits and a calendar, nothing else.
//!
//! Local time is a number here: seconds since 1970-01-01T00:00:00 *by the wall clock*, so that the search needs neither
//! allocation nor fallible arithmetic. A month is judged as a whole: its matching days are one 32-bit mask, made in a
//! few instructions, and the search moves from month to month. The rarest pattern there is, a 29 February on a given
//! weekday across a century without a leap year, is therefore found (or given up) after at most 41 steps.

use chrono::{Datelike, NaiveDate};

/// Seconds in a day of the wall clock.
const SECONDS_PER_DAY: i64 = 86_400;

/// Days from 0001-01-01 to 1970-01-01, plus one: what chrono's day count adds to ours.
const EPOCH_FROM_CE: i64 = 719_163;

/// The first local time there is: 0001-01-01T00:00:00.
pub(crate) const MIN_LOCAL_TIME: i64 = -62_135_596_800;

/// The last local time there is: 9999-12-31T23:59:59. The library whose dialect this is ends there too, and so does
/// RFC 3339.
pub(crate) const MAX_LOCAL_TIME: i64 = 253_402_300_799;

/// Days of the month that match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MonthDays {
    /// Bit `d` is day `d`.
    Listed(u32),
    /// So many days before the last one.
    Last(u32),
    /// The weekday (Monday to Friday) nearest to this day, in the same month.
    WeekdayNear(u32),
    /// The weekday nearest to so many days before the last one.
    WeekdayNearLast(u32),
}

/// Days of the week that match; Sunday is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeekDays {
    /// Bit `d` is weekday `d`.
    Listed(u32),
    /// The last such day of the month.
    Last(u32),
    /// The `.1`-th weekday `.0` of the month.
    Nth(u32, u32),
}

/// Every day of the week.
pub(crate) const ANY_WEEKDAY: WeekDays = WeekDays::Listed(0x7f);

/// Every day of the month.
pub(crate) const ANY_MONTHDAY: MonthDays = MonthDays::Listed(0xffff_fffe);

/// A pattern of local times. Bit `n` of a field stands for the value `n`; no field is empty.
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
    /// The first matching local time at or after `from`; none when the calendar ends before.
    pub(crate) fn next(&self, from: i64) -> Option<i64> {
        self.search(from).0
    }

    /// The same, and how many months were looked at.
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
        // In the first month only later days count.
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

    /// Whether any date at all matches. A month is known by its length and the weekday it begins with, and every such
    /// pair comes round, so there are few to try.
    pub(crate) fn can_fire(&self) -> bool {
        (1..=12).filter(|month| self.months & (1 << month) != 0).any(|month| {
            let lengths: &[u32] = match month {
                2 => &[28, 29],
                4 | 6 | 9 | 11 => &[30],
                _ => &[31],
            };
            lengths.iter().any(|length| (0..7).any(|first| self.mask(first, *length) != 0))
        })
    }

    /// The first matching second of the day at or after `second`.
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

    /// The matching days of a month, whether or not the month itself matches.
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

    /// The matching days of a month of `length` days that begins with the weekday `first`.
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
                // Turned so that the first of the month is bit 0, then laid side by side for five weeks.
                let turned = u64::from((bits >> first | bits << (7 - first)) & 0x7f);
                ((turned | turned << 7 | turned << 14 | turned << 21 | turned << 28) << 1) as u32
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

/// The weekday nearest to `day`. It never leaves the month: a Saturday the 1st becomes Monday the 3rd, a Sunday at the
/// end becomes the Friday before.
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

    /// The longest search from any month of any year, for patterns chosen to be rare.
    #[test]
    fn no_search_looks_at_more_than_a_lifetime_of_months() {
        for expression in
            ["0 0 29 2 MON", "0 0 29 2 SUN#5", "0 0 31 12 1#5", "0 0 L-30 * MON", "0 0 LW 2 1", "59 59 23 31 12 SAT"]
        {
            let matcher = *CronExpression::parse(expression).expect(expression).matcher();
            for year in (1..=9999).step_by(3) {
                let from = NaiveDate::from_ymd_opt(year, 3, 1).expect("date").and_hms_opt(0, 0, 0).expect("time");
                let (_, steps) = matcher.search(from.and_utc().timestamp());
                assert!(steps <= 132, "{expression} from {year}: {steps} months");
            }
        }
    }

    #[test]
    fn the_calendar_has_two_ends() {
        let every = CronExpression::parse("* * * * * *").expect("valid");
        assert_eq!(every.matcher().next(i64::MIN), Some(MIN_LOCAL_TIME));
        assert_eq!(every.matcher().next(MAX_LOCAL_TIME), Some(MAX_LOCAL_TIME));
        assert_eq!(every.matcher().next(MAX_LOCAL_TIME + 1), None);
        assert_eq!(every.matcher().next(i64::MAX), None);
        assert_eq!(
            CronExpression::parse("0 0 29 2 *")
                .expect("valid")
                .matcher()
                .next(MAX_LOCAL_TIME - 3 * 365 * SECONDS_PER_DAY),
            None
        );
    }
}
