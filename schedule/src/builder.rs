//! The common schedules as a form: daily, on weekdays, or on a day of the month, at one time.
//!
//! A [`CronPattern`] is a view of an expression, not a second kind of schedule: only the expression is stored. An
//! expression that is not exactly of this form has no pattern, so that the builder never changes what a user wrote. The
//! parser here reads only what the builder can write and a few other spellings of it; the browser thus needs no complete
//! parser.

/// The days of a [`CronPattern`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternDays {
    /// Every day.
    Daily,
    /// These days of the week: bit `d` for weekday `d`, where Sunday is 0. Neither none nor all.
    Weekly(u8),
    /// This day of each month, 1 to 31. Months without it are left out.
    Monthly(u8),
    /// The last day of each month.
    LastOfMonth,
}

/// A schedule with one time of day, in minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CronPattern {
    /// The days.
    pub days: PatternDays,
    /// The hour, 0 to 23.
    pub hour: u8,
    /// The minute, 0 to 59.
    pub minute: u8,
}

/// The bits of all days of the week.
const ALL_WEEKDAYS: u8 = 0x7f;
/// The bits of Monday to Friday.
const MONDAY_TO_FRIDAY: u8 = 0b011_1110;

impl CronPattern {
    /// Returns the pattern of an expression; none if the expression is not of this form.
    #[must_use]
    pub fn parse(expression: &str) -> Option<Self> {
        let mut fields: Vec<&str> = expression.split([' ', '\t']).filter(|text| !text.is_empty()).collect();
        if fields.len() == 6 && number(fields[0], 0, 59) == Some(0) {
            fields.remove(0);
        }
        let [minute, hour, month_day, "*" | "?", week_day] = fields.as_slice() else { return None };
        let is_any = |field: &str| field == "*" || field == "?";
        let days = match (is_any(month_day), is_any(week_day)) {
            (true, true) => PatternDays::Daily,
            (true, false) => match weekdays(week_day)? {
                ALL_WEEKDAYS => PatternDays::Daily,
                days => PatternDays::Weekly(days),
            },
            (false, true) if month_day.eq_ignore_ascii_case("L") => PatternDays::LastOfMonth,
            (false, true) => PatternDays::Monthly(number(month_day, 1, 31)?),
            (false, false) => return None,
        };
        Some(Self { days, hour: number(hour, 0, 23)?, minute: number(minute, 0, 59)? })
    }

    /// Returns the expression of the pattern.
    #[must_use]
    pub fn to_cron(self) -> String {
        let (month_day, week_day) = match self.days {
            PatternDays::Daily => ("*".to_owned(), "*".to_owned()),
            PatternDays::Weekly(days) => ("*".to_owned(), weekday_list(days)),
            PatternDays::Monthly(day) => (day.to_string(), "*".to_owned()),
            PatternDays::LastOfMonth => ("L".to_owned(), "*".to_owned()),
        };
        format!("{} {} {month_day} * {week_day}", self.minute, self.hour)
    }
}

/// Returns the weekdays as a field of an expression. Without a day, or with all, it is every day.
fn weekday_list(days: u8) -> String {
    match days & ALL_WEEKDAYS {
        0 | ALL_WEEKDAYS => "*".into(),
        MONDAY_TO_FRIDAY => "1-5".into(),
        days => {
            let listed: Vec<String> = (0..7).filter(|day| days & (1 << day) != 0).map(|day| day.to_string()).collect();
            listed.join(",")
        }
    }
}

/// Parses a list of weekdays and of ranges of them.
fn weekdays(field: &str) -> Option<u8> {
    field.split(',').try_fold(0, |days, item| {
        let (first, last) = match item.split_once('-') {
            Some((first, last)) => (weekday(first)?, weekday(last)?),
            None => (weekday(item)?, weekday(item)?),
        };
        // 7 is Sunday too, so a range may end there. A range that wraps is left to the expression.
        (first <= last).then(|| (first..=last).fold(days, |days, day| days | 1 << (day % 7)))
    })
}

fn weekday(text: &str) -> Option<u8> {
    const NAMES: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
    let named = (0_u8..).zip(NAMES).find(|(_, name)| text.eq_ignore_ascii_case(name)).map(|(day, _)| day);
    named.or_else(|| number(text, 0, 7))
}

/// Parses a plain number. A sign or a third digit is no plain number.
fn number(text: &str, low: u8, high: u8) -> Option<u8> {
    let is_plain = (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_plain && (low..=high).contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cron::CronExpression;

    #[test]
    fn every_pattern_is_read_back_from_its_expression() {
        let days = [PatternDays::Daily, PatternDays::LastOfMonth]
            .into_iter()
            .chain((1..=31).map(PatternDays::Monthly))
            .chain((1..ALL_WEEKDAYS).map(PatternDays::Weekly));
        for days in days {
            for (hour, minute) in [(0, 0), (9, 5), (23, 59)] {
                let pattern = CronPattern { days, hour, minute };
                let cron = pattern.to_cron();
                assert_eq!(CronPattern::parse(&cron), Some(pattern), "{cron}");
                assert!(CronExpression::parse(&cron).is_ok_and(|cron| !cron.is_interval()), "{cron}");
            }
        }
    }

    #[test]
    fn other_spellings_keep_their_meaning() {
        for spelling in [
            "0 9 * * MON-FRI",
            "00 09 * * *",
            "0 30 6 ? * sun,3",
            "5 4 * * 0-6",
            "5 4 * * 5-7",
            "5 4 31 * ?",
            "5 4 l * *",
            "5 4 * * 1,1-3,7",
        ] {
            let pattern = CronPattern::parse(spelling).unwrap_or_else(|| panic!("{spelling} has a pattern"));
            assert_eq!(CronExpression::parse(spelling), CronExpression::parse(&pattern.to_cron()), "{spelling}");
        }
    }

    #[test]
    fn other_expressions_have_no_pattern() {
        for expression in [
            "",
            "* * * * *",
            "*/5 9 * * *",
            "0 9,17 * * *",
            "0 9 1,15 * *",
            "0 9 1 * 1",
            "0 9 * 3 *",
            "5 0 9 * * *",
            "0 9 L-1 * *",
            "0 9 * * 5L",
            "0 9 * * 1#2",
            "0 9 * * FRI-MON",
            "0 9 32 * *",
            "60 9 * * *",
            "+1 9 * * *",
            "@daily",
            "0 9 * * * * *",
        ] {
            assert_eq!(CronPattern::parse(expression), None, "{expression}");
        }
    }
}
