//! The cron dialect: the accepted expressions, and the errors for all others.
//!
//! An expression has five fields (minute first) or six (second first). Day-of-week is 0–7, where both 0 and 7 are
//! Sunday. Names, lists, ranges (also wrapping ones: `22-2`), steps, `L`, `W`, `#` and the macros are accepted. If
//! day-of-month and day-of-week are both restricted, **both** must match. Crontab would accept either, so
//! [`CronExpression::warnings`] reports it. The dialect is that of Cronos; `docs/SCHEDULES.md` describes it in full.
//!
//! A strict parser (`field`) reads an expression once into bits (`matcher`); each of its errors names the field and
//! the remedy. Matching works on local time, and `zone.rs` maps the result to instants. The scheduler parses an
//! expression again for every due time, so parsing does not allocate.

mod describe;
mod dialect;
mod field;
pub(crate) mod matcher;

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use thiserror::Error;

use crate::zone;
pub use dialect::foreign_expression;
use field::{CronField, FIELD_NAMES, HOUR_FIELD, MINUTE_FIELD, MONTH_FIELD, SECOND_FIELD};
use matcher::{ANY_MONTHDAY, ANY_WEEKDAY, CronMatcher};

/// The maximum length of an expression, in characters.
pub const MAX_EXPRESSION_CHARS: usize = 256;

/// The error of an invalid expression: a sentence for display.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct CronError(pub String);

/// A valid expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CronExpression {
    matcher: CronMatcher,
    interval: bool,
    /// True if day-of-month or day-of-week begins with `*`: crontab then requires both to match as well.
    has_any_day: bool,
    /// The first of second, minute and hour with a step from `*` that does not divide its range, and the step.
    uneven_step: Option<(&'static CronField, u32)>,
}

impl CronExpression {
    /// Parses an expression. Its fields are separated by spaces or tabs.
    ///
    /// # Errors
    ///
    /// Returns an error that names the field and the remedy.
    pub fn parse(expression: &str) -> Result<Self, CronError> {
        if expression.len() > MAX_EXPRESSION_CHARS && expression.chars().count() > MAX_EXPRESSION_CHARS {
            return Err(CronError(format!(
                "the expression has {} characters: at most {MAX_EXPRESSION_CHARS} are allowed",
                expression.chars().count()
            )));
        }
        if let Some(odd) = expression.chars().find(|c| c.is_control() && *c != '\t') {
            return Err(CronError(format!(
                "the expression contains a line break or another control character ({}): write it on one line with spaces",
                odd.escape_unicode()
            )));
        }
        if let Some(odd) = expression.chars().find(|c| !c.is_ascii()) {
            return Err(CronError(format!(
                "the expression contains {odd} ({}), perhaps from a text program: type plain spaces, hyphens and asterisks",
                odd.escape_unicode()
            )));
        }
        let expression = expression.trim_matches([' ', '\t']);
        if expression.is_empty() {
            return Err(CronError("the expression is empty: enter for example 0 9 * * MON-FRI".into()));
        }
        if expression.contains("TZ=") {
            return Err(CronError("the time zone has a field of its own: set it there, and remove TZ=".into()));
        }
        let mut fields = [""; 6];
        let mut count = 0;
        for text in expand_macro(expression)?.split([' ', '\t']).filter(|text| !text.is_empty()) {
            if let Some(field) = fields.get_mut(count) {
                *field = text;
            }
            count += 1;
        }
        if count == 5 {
            fields.rotate_right(1);
            fields[0] = "0";
        } else if count != 6 {
            return Err(wrong_count(count));
        }
        let matcher = CronMatcher {
            seconds: SECOND_FIELD.bits(fields[0])?,
            minutes: MINUTE_FIELD.bits(fields[1])?,
            hours: HOUR_FIELD.bits(fields[2])?,
            month_days: field::month_days(fields[3])?,
            months: MONTH_FIELD.bits(fields[4])?,
            week_days: field::week_days(fields[5])?,
        };
        if !matcher.can_match() {
            return Err(CronError(
                "the expression never matches: no date has its day-of-month, month and day-of-week together".into(),
            ));
        }
        let interval = fields[..3].iter().any(|field| field.contains(['*', '?', '-', '/']));
        let has_any_day = [fields[3], fields[5]].iter().any(|field| field.starts_with(['*', '?']));
        let uneven_step = [&SECOND_FIELD, &MINUTE_FIELD, &HOUR_FIELD]
            .into_iter()
            .zip(fields)
            .find_map(|(field, text)| Some((field, field.uneven_step(text)?)));
        Ok(Self { matcher, interval, has_any_day, uneven_step })
    }

    /// Returns the first due time strictly after `after` in `zone`; none if none is left. The calendar ends with the
    /// year 9999.
    #[must_use]
    pub fn next_after(&self, zone: Tz, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        zone::next_after(&self.matcher, self.interval, zone, after)
    }

    /// Returns the first due time at or after `from` in `zone`; none if none is left. `from` itself counts if the local
    /// time matches there. It does not count if it is only the substitute for local times lost in a gap.
    #[must_use]
    pub fn next_from(&self, zone: Tz, from: DateTime<Utc>) -> Option<DateTime<Utc>> {
        zone::next_from(&self.matcher, self.interval, zone, from)
    }

    /// Returns true for an interval pattern: one whose second, minute or hour has `*`, `-` or `/`. It continues through
    /// a repeated hour, while a fixed pattern matches once.
    #[must_use]
    pub fn is_interval(&self) -> bool {
        self.interval
    }

    /// Returns true if the expression is due in every hour of the days that match.
    pub(crate) fn is_due_every_hour(&self) -> bool {
        self.matcher.hours.count_ones() == 24
    }

    /// Returns the first matching local time at or after `from`, both in seconds of the local clock.
    pub(crate) fn next_local(&self, from: i64) -> Option<i64> {
        self.matcher.next(from)
    }

    /// Returns the expression as an English sentence.
    #[must_use]
    pub fn describe(&self) -> String {
        describe::sentence(&self.matcher)
    }

    /// Returns warnings about differences from other cron dialects, and about steps that do not divide their range.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.has_any_day && self.matcher.month_days != ANY_MONTHDAY && self.matcher.week_days != ANY_WEEKDAY {
            warnings.push(
                "Day-of-month and day-of-week are both restricted: both must match. Classic crontab would run when \
                 either matches."
                    .into(),
            );
        }
        if let Some((field, step)) = self.uneven_step {
            let rest = field.size() % step;
            warnings.push(format!(
                "The step {step} of {name} begins again at 0, so the last interval is {rest} {name}{s}: for an equal \
                 interval, use a schedule of the kind every.",
                name = field.name,
                s = if rest == 1 { "" } else { "s" }
            ));
        }
        warnings
    }

    #[cfg(test)]
    fn matcher(&self) -> &CronMatcher {
        &self.matcher
    }
}

fn wrong_count(count: usize) -> CronError {
    let remedy = match count {
        0..5 => {
            let missing = FIELD_NAMES[count + 1..].join(", ");
            format!("{missing} {} missing", if count == 4 { "is" } else { "are" })
        }
        7 => "there is no year field: remove it".into(),
        _ => "remove the fields after day-of-week".into(),
    };
    CronError(format!(
        "an expression has 5 fields (minute hour day-of-month month day-of-week) or 6 (second first): got {count}; {remedy}"
    ))
}

fn expand_macro(expression: &str) -> Result<&str, CronError> {
    const MACROS: [(&str, &str); 9] = [
        ("@every_second", "* * * * * *"),
        ("@every_minute", "* * * * *"),
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
    ];
    if !expression.starts_with('@') {
        return Ok(expression);
    }
    match MACROS.iter().find(|(name, _)| name.eq_ignore_ascii_case(expression)) {
        Some((_, fields)) => Ok(fields),
        None if expression.starts_with("@every") => {
            Err(CronError("@every is not a macro: for an equal interval, use a schedule of the kind every".into()))
        }
        None => {
            let short: String = expression.chars().take(40).collect();
            let names = MACROS.map(|(name, _)| name).join(", ");
            Err(CronError(format!("{short} is not a macro: the macros are {names}")))
        }
    }
}

#[cfg(test)]
mod tests;
