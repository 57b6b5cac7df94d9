//! Expressions of other schedulers that this dialect would read as something else.
//!
//! AWS puts a year into the sixth field, where Milvaion has six fields only with a second in the first one: `0 10 * * ? *`
//! is ten o'clock there, and minute 10 of every hour here. Quartz counts the days of the week from 1 for Sunday, so its
//! `2-6` is Monday to Friday there, and Tuesday to Saturday here. Both write `?` for the day that is not given, which tells
//! their expressions apart. A definition with one is refused with its translation. Only definitions are: a stored
//! expression keeps its meaning, and [`CronExpression::parse`](super::CronExpression::parse) reads it.

/// Returns what is wrong with an expression that is written for AWS or for Quartz, or that has `?` in place of a time or a
/// month. The message contains the translation.
#[must_use]
pub fn foreign_expression(expression: &str) -> Option<String> {
    let fields: Vec<&str> = expression.split([' ', '\t']).filter(|text| !text.is_empty()).collect();
    match fields[..] {
        [minute, hour, day, month, week_day, year] if day == "?" || week_day == "?" => {
            let translated = [minute, hour, day, month, from_one(week_day)?.as_str()].map(any).join(" ");
            let end = if any(year) == "*" { "" } else { ", and limit the years by the start and the end" };
            Some(format!("this is an expression of AWS, which ends with a year: write {translated}{end}"))
        }
        [second, minute, hour, "?", month, week_day] => {
            let ours = from_one(week_day).filter(|ours| ours != week_day)?;
            let translated = [second, minute, hour, "*", month, &ours].join(" ");
            Some(format!("with ? this is an expression of Quartz, where day 1 is Sunday: write {translated}"))
        }
        [ref times @ .., _, month, _] if month == "?" || times.contains(&"?") => {
            Some("? stands for day-of-month or day-of-week only: write *".to_owned())
        }
        _ => None,
    }
}

/// Returns `*` for `?`.
fn any(field: &str) -> &str {
    if field == "?" { "*" } else { field }
}

/// Translates the days of the week from 1–7 to 0–6, with Sunday first. Returns none if a number is not a day from 1 to 7.
fn from_one(week_day: &str) -> Option<String> {
    let mut translated = String::with_capacity(week_day.len());
    let mut before = ' ';
    for c in week_day.chars() {
        // The number after # counts weeks, and the one after / is a step.
        let is_day = c.is_ascii_digit() && !['#', '/'].contains(&before);
        if is_day && (before.is_ascii_digit() || !('1'..='7').contains(&c)) {
            return None;
        }
        translated.push(if is_day { char::from(c as u8 - 1) } else { c });
        before = c;
    }
    Some(translated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_of_aws_and_quartz_are_translated() {
        let translation = |expression: &str| {
            let message = foreign_expression(expression)?;
            Some(message.split_once("write ").expect("a remedy").1.to_owned())
        };
        for (foreign, ours) in [
            ("0 10 * * ? *", "0 10 * * *"),
            ("0 18 ? * MON-FRI *", "0 18 * * MON-FRI"),
            ("15 10 ? * 2-6 *", "15 10 * * 1-5"),
            ("0 8 1 * ? 2027", "0 8 1 * *, and limit the years by the start and the end"),
            ("0 0 12 ? * 2-6", "0 0 12 * * 1-5"),
            ("0 15 10 ? * 6#3", "0 15 10 * * 5#3"),
            ("0 15 10 ? * 6L", "0 15 10 * * 5L"),
            ("? * * * *", "*"),
            ("0 0 1 ? *", "*"),
        ] {
            assert_eq!(translation(foreign).as_deref(), Some(ours), "{foreign}");
        }
    }

    #[test]
    fn question_mark_for_a_day_is_accepted() {
        for expression in ["0 0 ? * 1", "0 0 1 * ?", "0 0 12 ? * MON-FRI", "0 0 12 1 * ?", "0 0 12 * * *", "@daily", ""]
        {
            assert_eq!(foreign_expression(expression), None, "{expression}");
        }
    }
}
