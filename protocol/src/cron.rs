//! The cron dialect: what is accepted, and what is said about the rest.
//!
//! Five fields (minute first) or six (second first), day-of-week 0–7 with both 0 and 7 Sunday, names, lists, ranges,
//! steps, `L`, `W`, `#`, and the macros. When day-of-month and day-of-week are both restricted, **both** must match;
//! crontab would take either, which is why [`Cron::warnings`] says so.
//!
//! The matcher is the `croner` crate. It accepts a few things by accident (names in the wrong field, a step beyond the
//! field), so every field is checked here first, with a message that names the field and the remedy.

use chrono::{DateTime, NaiveDate, Utc};
use chrono_tz::Tz;
use croner::parser::{CronParser, Seconds, Year};
use thiserror::Error;

use crate::zone;

/// The most characters an expression may have.
pub const MAX_LENGTH: usize = 256;

/// Why an expression is refused: a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct CronError(pub String);

/// A checked expression.
#[derive(Clone, Debug)]
pub struct Cron {
    matcher: croner::Cron,
    interval: bool,
    both_days: bool,
}

struct Field {
    name: &'static str,
    low: u32,
    high: u32,
    names: &'static [&'static str],
    /// Letters beyond digits and names this field knows.
    special: &'static str,
}

const MONTHS: &[&str] = &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const DAYS: &[&str] = &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

const FIELDS: [Field; 6] = [
    Field { name: "second", low: 0, high: 59, names: &[], special: "" },
    Field { name: "minute", low: 0, high: 59, names: &[], special: "" },
    Field { name: "hour", low: 0, high: 23, names: &[], special: "" },
    Field { name: "day-of-month", low: 1, high: 31, names: &[], special: "LW" },
    Field { name: "month", low: 1, high: 12, names: MONTHS, special: "" },
    Field { name: "day-of-week", low: 0, high: 7, names: DAYS, special: "L#" },
];

impl Field {
    fn range(&self) -> String {
        match self.names {
            [] => format!("{}–{}", self.low, self.high),
            names => format!("{}–{} or {}–{}", self.low, self.high, names[0], names[names.len() - 1]),
        }
    }

    fn refuse(&self, got: &str) -> CronError {
        CronError(format!("{} takes {}: got {got}", self.name, self.range()))
    }

    fn value(&self, text: &str) -> Result<u32, CronError> {
        if let Some(at) = self.names.iter().position(|name| name.eq_ignore_ascii_case(text)) {
            return Ok(at as u32 + self.low);
        }
        if text.is_empty() || text.len() > 4 || !text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(self.refuse(if text.is_empty() { "nothing" } else { text }));
        }
        let value: u32 = text.parse().map_err(|_| self.refuse(text))?;
        if (self.low..=self.high).contains(&value) { Ok(value) } else { Err(self.refuse(text)) }
    }

    fn check(&self, text: &str) -> Result<(), CronError> {
        for item in text.split(',') {
            self.item(item)?;
        }
        Ok(())
    }

    fn item(&self, item: &str) -> Result<(), CronError> {
        if item.is_empty() {
            return Err(CronError(format!("{} has an empty place in its list: remove the extra comma", self.name)));
        }
        if item == "?" && self.special.contains('L') {
            return Ok(());
        }
        if self.special_item(item)? {
            return Ok(());
        }
        let (range, step) = match item.split_once('/') {
            Some((range, step)) => (range, Some(step)),
            None => (item, None),
        };
        if let Some(step) = step {
            let width = self.high - self.low;
            match step.parse::<u32>() {
                Ok(n) if n >= 1 && n <= width && step.bytes().all(|b| b.is_ascii_digit()) => {}
                _ => return Err(CronError(format!("the step of {} takes 1–{width}: got {step}", self.name))),
            }
        }
        if range == "*" {
            return Ok(());
        }
        match range.split_once('-') {
            Some((low, high)) => {
                self.value(low)?;
                self.value(high)?;
            }
            None => {
                self.value(range)?;
            }
        }
        Ok(())
    }

    /// `L`, `W` and `#` where the field knows them. Says whether it was one.
    fn special_item(&self, item: &str) -> Result<bool, CronError> {
        let upper = item.to_ascii_uppercase();
        if self.special.contains('W') {
            if upper == "L" || upper == "LW" {
                return Ok(true);
            }
            if let Some(offset) = upper.strip_prefix("L-") {
                self.value(offset)?;
                return Ok(true);
            }
            if let Some(day) = upper.strip_suffix('W') {
                self.value(day)?;
                return Ok(true);
            }
        }
        if self.special.contains('#') {
            if let Some((day, nth)) = upper.split_once('#') {
                self.value(day)?;
                return match nth {
                    "1" | "2" | "3" | "4" | "5" | "L" => Ok(true),
                    _ => Err(CronError(format!("after # {} takes 1–5 or L: got {nth}", self.name))),
                };
            }
            if upper == "L" {
                return Ok(true);
            }
            if let Some(day) = upper.strip_suffix('L') {
                self.value(day)?;
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Cron {
    /// Checks an expression.
    ///
    /// # Errors
    ///
    /// A sentence that names the field and the remedy.
    pub fn parse(expression: &str) -> Result<Self, CronError> {
        let expression = expression.trim();
        if expression.is_empty() {
            return Err(CronError("the expression is empty: write for example 0 9 * * MON-FRI".into()));
        }
        if expression.len() > MAX_LENGTH {
            return Err(CronError(format!(
                "the expression has {} characters: {MAX_LENGTH} are the most",
                expression.len()
            )));
        }
        let expanded = expand_macro(expression)?;
        let fields: Vec<&str> = expanded.split_ascii_whitespace().collect();
        let checks = match fields.len() {
            5 => &FIELDS[1..],
            6 => &FIELDS[..],
            n => {
                return Err(CronError(format!(
                    "an expression has 5 fields (minute hour day-of-month month day-of-week) or 6 (second first): got {n}"
                )));
            }
        };
        for (field, text) in checks.iter().zip(&fields) {
            field.check(text)?;
        }
        let joined = fields.join(" ").replace('?', "*");
        let matcher = CronParser::builder()
            .seconds(Seconds::Optional)
            .year(Year::Disallowed)
            .dom_and_dow(true)
            .build()
            .parse(&joined)
            .map_err(|error| CronError(format!("the expression cannot be read: {error}")))?;
        let offset = fields.len() - 5;
        let interval = fields[..2 + offset].iter().any(|field| field.contains(['*', '-', '/']));
        let restricted = |text: &str| !matches!(text, "*" | "?");
        let cron =
            Self { matcher, interval, both_days: restricted(fields[2 + offset]) && restricted(fields[4 + offset]) };
        cron.must_fire()?;
        Ok(cron)
    }

    /// Refuses what can never fire. Eight years hold every weekday on a 29 February that the century allows.
    fn must_fire(&self) -> Result<(), CronError> {
        let never =
            || CronError("the expression never fires: no date matches its day-of-month, month and day-of-week".into());
        let start = NaiveDate::from_ymd_opt(2024, 1, 1).and_then(|d| d.and_hms_opt(0, 0, 0)).ok_or_else(never)?;
        self.matcher.find_next_occurrence(&start, true).map(|_| ()).map_err(|_| never())
    }

    /// The first instant strictly after `after`, in `zone`; none when there is none left.
    #[must_use]
    pub fn next_after(&self, zone: Tz, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        zone::next_after(&self.matcher, self.interval, zone, after)
    }

    /// The expression as an English sentence.
    #[must_use]
    pub fn words(&self) -> String {
        self.matcher.describe()
    }

    /// What a newcomer from another cron should be told.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        if self.both_days {
            vec![
                "Day-of-month and day-of-week are both restricted: both must match. Classic crontab would run when \
                 either matches."
                    .into(),
            ]
        } else {
            Vec::new()
        }
    }
}

fn expand_macro(expression: &str) -> Result<&str, CronError> {
    if !expression.starts_with('@') {
        return Ok(expression);
    }
    match expression.to_ascii_lowercase().as_str() {
        "@hourly" => Ok("0 * * * *"),
        "@daily" | "@midnight" => Ok("0 0 * * *"),
        "@weekly" => Ok("0 0 * * 0"),
        "@monthly" => Ok("0 0 1 * *"),
        "@yearly" | "@annually" => Ok("0 0 1 1 *"),
        other => Err(CronError(format!("{other} is not a macro: @hourly, @daily, @weekly, @monthly and @yearly are"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(expression: &str) -> String {
        Cron::parse(expression).expect_err(expression).0
    }

    fn next(expression: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
        let cron = Cron::parse(expression).expect(expression);
        let zone: Tz = zone.parse().expect("zone");
        let mut at: DateTime<Utc> = after.parse().expect("instant");
        let mut hits = Vec::new();
        for _ in 0..count {
            at = cron.next_after(zone, at).expect("fires");
            hits.push(at.with_timezone(&zone).to_rfc3339());
        }
        hits
    }

    #[test]
    fn a_refusal_names_the_field_and_the_remedy() {
        assert_eq!(refused("0 0 * * 8"), "day-of-week takes 0–7 or SUN–SAT: got 8");
        assert_eq!(refused("60 * * * *"), "minute takes 0–59: got 60");
        assert_eq!(refused("* * MON * *"), "day-of-month takes 1–31: got MON");
        assert!(refused("*/60 * * * *").contains("the step of minute takes 1–59"));
        assert!(refused("0 0 ,1 * *").contains("empty place"));
        assert!(refused("* * *").contains("5 fields"));
        assert!(refused("0 0 30 2 *").contains("never fires"));
        assert!(refused("@often").contains("not a macro"));
        assert!(refused(&"1,".repeat(200)).contains("256"));
    }

    #[test]
    fn what_people_write_is_accepted() {
        for expression in [
            "* * * * *",
            "*/15 9-17 * * MON-FRI",
            "0 0 9 * * 0",
            "0 0 L * *",
            "0 0 15W * *",
            "0 9 * * 5#2",
            "0 9 * * 5L",
            "@daily",
            "0 0 ? * 1",
        ] {
            Cron::parse(expression).expect(expression);
        }
    }

    #[test]
    fn both_days_restricted_means_both_must_match_and_is_said() {
        assert_eq!(
            next("0 0 13 * FRI", "UTC", "2026-01-01T00:00:00Z", 2),
            ["2026-02-13T00:00:00+00:00", "2026-03-13T00:00:00+00:00"]
        );
        assert_eq!(Cron::parse("0 0 13 * FRI").expect("valid").warnings().len(), 1);
    }

    #[test]
    fn a_time_in_the_gap_fires_right_after_it_once() {
        assert_eq!(
            next("30 2 * * *", "Europe/Warsaw", "2027-03-27T12:00:00Z", 2),
            ["2027-03-28T03:00:00+02:00", "2027-03-29T02:30:00+02:00"]
        );
        assert_eq!(
            next("0,30 2 * * *", "Europe/Warsaw", "2027-03-27T12:00:00Z", 2),
            ["2027-03-28T03:00:00+02:00", "2027-03-29T02:00:00+02:00"]
        );
    }

    #[test]
    fn a_time_that_exists_twice_fires_once_for_an_appointment() {
        assert_eq!(
            next("30 2 * * *", "Europe/Warsaw", "2026-10-24T12:00:00Z", 2),
            ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]
        );
        assert_eq!(
            next("0,30 2 * * *", "Europe/Warsaw", "2026-10-24T12:00:00Z", 3),
            ["2026-10-25T02:00:00+02:00", "2026-10-25T02:30:00+02:00", "2026-10-26T02:00:00+01:00"]
        );
    }

    #[test]
    fn a_rhythm_goes_on_through_the_repeated_hour() {
        assert_eq!(
            next("*/30 * * * *", "Europe/Warsaw", "2026-10-24T23:59:00Z", 6),
            [
                "2026-10-25T02:00:00+02:00",
                "2026-10-25T02:30:00+02:00",
                "2026-10-25T02:00:00+01:00",
                "2026-10-25T02:30:00+01:00",
                "2026-10-25T03:00:00+01:00",
                "2026-10-25T03:30:00+01:00"
            ]
        );
    }

    #[test]
    fn half_hour_shifts_work_too() {
        assert_eq!(
            next("*/15 1-2 * * *", "Australia/Lord_Howe", "2026-04-04T14:29:00Z", 5),
            [
                "2026-04-05T01:30:00+11:00",
                "2026-04-05T01:45:00+11:00",
                "2026-04-05T01:30:00+10:30",
                "2026-04-05T01:45:00+10:30",
                "2026-04-05T02:00:00+10:30"
            ]
        );
    }

    #[test]
    fn runs_are_strictly_increasing_around_every_change() {
        for zone in [
            "Europe/Warsaw",
            "America/St_Johns",
            "Australia/Lord_Howe",
            "Africa/Casablanca",
            "Pacific/Apia",
            "Antarctica/Troll",
        ] {
            for expression in ["*/20 * * * *", "30 2 * * *", "0 */2 * * *", "15,45 0-3 * * *"] {
                let cron = Cron::parse(expression).expect(expression);
                let zone: Tz = zone.parse().expect("zone");
                let mut at: DateTime<Utc> = "2026-01-01T00:00:00Z".parse().expect("instant");
                for _ in 0..2_000 {
                    let following = cron.next_after(zone, at).expect("fires");
                    assert!(following > at, "{expression} in {zone} after {at}");
                    at = following;
                }
            }
        }
    }

    #[test]
    fn seconds_come_first_in_six_fields() {
        assert_eq!(
            next("*/20 * * * * *", "UTC", "2026-01-01T00:00:01Z", 2),
            ["2026-01-01T00:00:20+00:00", "2026-01-01T00:00:40+00:00"]
        );
    }
}
