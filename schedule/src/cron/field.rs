//! The parser of one field of an expression: the accepted forms, and the bits that they stand for.
//!
//! Every error begins with the name of the field and ends with the rejected text, so that a form can show it below the
//! input. A form that is not listed here is rejected, even if it happens to parse.

use super::{
    CronError,
    matcher::{MonthDays, WeekDays},
};

/// The bounds and names of a field.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CronField {
    pub(super) name: &'static str,
    low: u32,
    high: u32,
    names: &'static [&'static str],
}

const MONTH_NAMES: &[&str] = &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const DAY_NAMES: &[&str] = &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

pub(super) static SECOND_FIELD: CronField = CronField { name: "second", low: 0, high: 59, names: &[] };
pub(super) static MINUTE_FIELD: CronField = CronField { name: "minute", low: 0, high: 59, names: &[] };
pub(super) static HOUR_FIELD: CronField = CronField { name: "hour", low: 0, high: 23, names: &[] };
pub(super) static MONTH_DAY_FIELD: CronField = CronField { name: "day-of-month", low: 1, high: 31, names: &[] };
pub(super) static MONTH_FIELD: CronField = CronField { name: "month", low: 1, high: 12, names: MONTH_NAMES };
pub(super) static WEEK_DAY_FIELD: CronField = CronField { name: "day-of-week", low: 0, high: 7, names: DAY_NAMES };

/// The names of the fields, in their order.
pub(super) const FIELD_NAMES: [&str; 6] = ["second", "minute", "hour", "day-of-month", "month", "day-of-week"];

impl CronField {
    /// Parses a field of numbers, names, lists, ranges and steps into bits.
    pub(super) fn bits(&self, text: &str) -> Result<u64, CronError> {
        let (base, step) = split_step(text);
        if matches!(base, "*" | "?") {
            return Ok(spread(self.low, self.high, self.step(step)?));
        }
        let mut bits = 0;
        for item in text.split(',') {
            bits |= self.item(item, text)?;
        }
        Ok(bits)
    }

    fn item(&self, item: &str, whole: &str) -> Result<u64, CronError> {
        if item.is_empty() {
            let name = self.name;
            return Err(CronError(match whole {
                "" => format!("{name} takes {}: got nothing", self.range()),
                _ => format!("{name} has an empty item in its list: remove the extra comma from {whole}"),
            }));
        }
        if item.starts_with(['*', '?']) && whole != item {
            return Err(CronError(format!(
                "{} has a list with {item}: write {item} alone, or values and ranges only: got {whole}",
                self.name
            )));
        }
        let (base, step) = split_step(item);
        let (low, high) = match base.split_once('-') {
            Some(("", _) | (_, "")) => return Err(self.invalid(item)),
            Some((low, high)) => (self.value(low)?, self.value(high)?),
            // With a step, a single value starts a range to the end of the field.
            None => {
                let value = self.value(base)?;
                (value, if step.is_some() { self.high } else { value })
            }
        };
        let step = self.step(step)?;
        if low <= high {
            return Ok(spread(low, high, step));
        }
        // A wrapping range: count past the end of the field, then map the values back. Sunday counts once, as 0.
        let low = if self.high == 7 { low % 7 } else { low };
        let width = if self.high == 7 { 7 } else { self.high + 1 - self.low };
        if low <= high {
            return Ok(spread(low, high, step));
        }
        Ok((low..=high + width).step_by(step as usize).map(|n| 1 << (self.low + (n - self.low) % width)).sum())
    }

    /// Parses a number of one or two digits, or a name.
    fn value(&self, text: &str) -> Result<u32, CronError> {
        if let Some(at) = self.names.iter().position(|name| name.eq_ignore_ascii_case(text)) {
            return Ok(at as u32 + self.low);
        }
        number(text).filter(|n| (self.low..=self.high).contains(n)).ok_or_else(|| self.invalid(text))
    }

    /// Returns the number of values of the field.
    pub(super) const fn size(&self) -> u32 {
        self.high + 1 - self.low
    }

    /// Returns the step of a valid text such as `*/45` if the field's size is no multiple of it.
    pub(super) fn uneven_step(&self, text: &str) -> Option<u32> {
        let step = number(text.strip_prefix("*/")?)?;
        (!self.size().is_multiple_of(step)).then_some(step)
    }

    fn step(&self, text: Option<&str>) -> Result<u32, CronError> {
        let Some(text) = text else { return Ok(1) };
        number(text)
            .filter(|n| (1..=self.high).contains(n))
            .ok_or_else(|| CronError(format!("the step of {} takes 1–{}: got {}", self.name, self.high, clip(text))))
    }

    fn range(&self) -> String {
        match self.names {
            [] => format!("{}–{}", self.low, self.high),
            names => format!("{}–{} or {}–{}", self.low, self.high, names[0], names[names.len() - 1]),
        }
    }

    fn invalid(&self, got: &str) -> CronError {
        if got.starts_with('H') {
            return CronError(format!(
                "{} takes {}: got {}; jobs are spread by their jitter instead",
                self.name,
                self.range(),
                clip(got)
            ));
        }
        CronError(format!("{} takes {}: got {}", self.name, self.range(), clip(got)))
    }
}

/// Parses the day-of-month field: also `L`, `L-n`, `LW`, `L-nW` and `nW`, each as the whole field.
pub(super) fn month_days(text: &str) -> Result<MonthDays, CronError> {
    let bytes = text.as_bytes();
    let near = bytes.last().is_some_and(|last| last.eq_ignore_ascii_case(&b'W'));
    if bytes.first().is_some_and(|first| first.eq_ignore_ascii_case(&b'L')) {
        let rest = if near { &text[1..text.len() - 1] } else { &text[1..] };
        let before = match rest.strip_prefix('-') {
            Some(digits) => number(digits).filter(|n| *n <= 30).ok_or_else(|| {
                CronError(format!("day-of-month takes L-0 to L-30, days before the last: got {}", clip(text)))
            })?,
            None if rest.is_empty() => 0,
            None => return Err(not_alone(text)),
        };
        return Ok(if near { MonthDays::WeekdayNearLast(before) } else { MonthDays::Last(before) });
    }
    if near {
        let day = &text[..text.len() - 1];
        if day.contains([',', '-', '/', '*', '?']) {
            return Err(not_alone(text));
        }
        return MONTH_DAY_FIELD.value(day).map(MonthDays::WeekdayNear).map_err(|_| {
            CronError(format!("day-of-month takes 1W–31W, the weekday nearest to that day: got {}", clip(text)))
        });
    }
    // A name that belongs to another field also has letters, but other ones.
    let special =
        |item: &str| item.contains(['L', 'l', 'W', 'w']) && item.bytes().all(|b| b"LlWw-/0123456789".contains(&b));
    if text.split(',').any(special) {
        return Err(not_alone(text));
    }
    MONTH_DAY_FIELD.bits(text).map(|bits| MonthDays::Listed(bits as u32))
}

fn not_alone(text: &str) -> CronError {
    CronError(format!(
        "day-of-month takes L, L-3, LW, L-3W or 15W alone, not in a list, range or step: got {}",
        clip(text)
    ))
}

/// Parses the day-of-week field: also `5L` and `5#2`, each as the whole field.
pub(super) fn week_days(text: &str) -> Result<WeekDays, CronError> {
    let combined = |part: &str| part.contains([',', '-', '/', '*', '?']);
    let not_alone = || {
        CronError(format!(
            "day-of-week takes 5L or 5#2 with one day, alone, not in a list, range or step: got {}",
            clip(text)
        ))
    };
    if let Some((day, nth)) = text.split_once('#') {
        if combined(day) || combined(nth) {
            return Err(not_alone());
        }
        let day = WEEK_DAY_FIELD.value(day)? % 7;
        return match number(nth) {
            Some(nth @ 1..=5) => Ok(WeekDays::Nth(day, nth)),
            _ => Err(CronError(format!("day-of-week takes 1–5 after #: got {}", clip(nth)))),
        };
    }
    if let Some(day) = text.strip_suffix(['L', 'l']) {
        if day.is_empty() {
            return Err(CronError(
                "day-of-week takes L only after a day, such as 5L or FRIL for the last Friday: got L".into(),
            ));
        }
        if combined(day) {
            return Err(not_alone());
        }
        return WEEK_DAY_FIELD.value(day).map(|day| WeekDays::Last(day % 7)).map_err(|_| WEEK_DAY_FIELD.invalid(text));
    }
    let bits = WEEK_DAY_FIELD.bits(text)?;
    // 7 is Sunday as well.
    Ok(WeekDays::Listed(((bits | bits >> 7) & 0x7f) as u32))
}

fn split_step(text: &str) -> (&str, Option<&str>) {
    match text.split_once('/') {
        Some((base, step)) => (base, Some(step)),
        None => (text, None),
    }
}

fn spread(low: u32, high: u32, step: u32) -> u64 {
    (low..=high).step_by(step as usize).fold(0, |bits, n| bits | 1 << n)
}

/// Parses one or two digits.
fn number(text: &str) -> Option<u32> {
    match text.as_bytes() {
        [one @ b'0'..=b'9'] => Some(u32::from(one - b'0')),
        [ten @ b'0'..=b'9', one @ b'0'..=b'9'] => Some(u32::from(ten - b'0') * 10 + u32::from(one - b'0')),
        _ => None,
    }
}

/// Truncates the rejected text for an error message.
fn clip(text: &str) -> &str {
    match text {
        "" => "nothing",
        _ => text.char_indices().nth(40).map_or(text, |(end, _)| &text[..end]),
    }
}
