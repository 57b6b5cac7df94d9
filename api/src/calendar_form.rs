//! The calendar form: a calendar as text fields, and back.
//!
//! Days are entered as lines of dates and date ranges, because lists of holidays are published and pasted in this form.
//! Each weekly window is a row of seven checkboxes and two times. Empty rows are ignored, so that a browser without
//! scripts can be given spare rows.

use std::collections::BTreeMap;

use chrono::{NaiveDate, NaiveTime};
use serde::{Deserialize, Serialize};

use crate::requests::FieldError;
use milvaion_protocol::id::CalendarId;
use milvaion_schedule::calendar::{
    Calendar, MAX_CALENDAR_DATES, WeeklyWindow,
    describe::{WEEKDAYS, format_date_range, format_time_of_day},
};

/// The value of a checked checkbox.
const CHECKBOX_ON: &str = "on";
/// The accepted separators between the first and the last day of a range.
const DATE_RANGE_SEPARATORS: [&str; 3] = [" to ", "..", "–"];

/// The calendar form as entered. Every field is text; absent fields are empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CalendarForm {
    /// The id of the calendar to change; empty for a new one.
    pub id: String,
    /// The version that the form shows; empty for a new calendar.
    pub version: String,
    /// See [`Calendar::name`].
    pub name: String,
    /// See [`Calendar::zone`].
    pub zone: String,
    /// Days such as `2026-12-24` and ranges such as `2026-12-24 to 2026-12-26`, one per line or separated by commas.
    pub dates: String,
    /// The weekly windows by row number. Each row has the fields of [`weekday_field`], `from` and `to`.
    pub windows: BTreeMap<String, BTreeMap<String, String>>,
}

/// Returns the name of the checkbox of a weekday in a row: `mon` to `sun`.
#[must_use]
pub fn weekday_field(word: &str) -> String {
    word.to_ascii_lowercase()
}

impl CalendarForm {
    /// Builds the form that edits `calendar`.
    #[must_use]
    pub fn from_calendar(id: CalendarId, version: i32, calendar: &Calendar) -> Self {
        let row = |((from, to), days): ((NaiveTime, NaiveTime), Vec<u8>)| {
            let checked = WEEKDAYS.iter().filter(|(day, _)| days.contains(day));
            let mut row: BTreeMap<_, _> =
                checked.map(|(_, word)| (weekday_field(word), CHECKBOX_ON.to_owned())).collect();
            row.extend([("from".to_owned(), format_time_of_day(from)), ("to".to_owned(), format_time_of_day(to))]);
            row
        };
        let lines: Vec<_> =
            calendar.date_ranges().into_iter().map(|(first, last)| format_date_range(first, last)).collect();
        Self {
            id: id.to_string(),
            version: version.to_string(),
            name: calendar.name.clone(),
            zone: calendar.zone.clone(),
            dates: lines.join("\n"),
            windows: (0..).map(|n: usize| n.to_string()).zip(calendar.weekly_windows().into_iter().map(row)).collect(),
        }
    }

    /// Returns the row numbers in ascending order.
    #[must_use]
    pub fn rows(&self) -> Vec<usize> {
        let mut rows: Vec<usize> = self.windows.keys().filter_map(|n| n.parse().ok()).collect();
        rows.sort_unstable();
        rows
    }

    /// Returns the value of a field of a row.
    #[must_use]
    pub fn window(&self, row: usize, field: &str) -> String {
        self.windows.get(&row.to_string()).and_then(|row| row.get(field)).cloned().unwrap_or_default()
    }

    /// Parses and checks the form.
    ///
    /// # Errors
    ///
    /// Returns one error per invalid field, in the order of the form. The field of a window is `windows.ROW`.
    pub fn check(&self) -> Result<Calendar, Vec<FieldError>> {
        let mut errors = Vec::new();
        let dates = dates(&self.dates).unwrap_or_else(|message| {
            errors.push(FieldError::new("dates", message));
            Vec::new()
        });
        let mut windows = Vec::new();
        for row in self.rows() {
            match self.row(row) {
                Ok(read) => windows.extend(read),
                Err(message) => errors.push(FieldError::new(format!("windows.{row}"), message)),
            }
        }
        windows.sort_unstable_by_key(|window: &WeeklyWindow| (window.weekday, window.from, window.to));
        windows.dedup();
        let zone = self.zone.trim();
        let zone = if zone.is_empty() { "UTC".to_owned() } else { zone.to_owned() };
        let calendar = Calendar { name: self.name.trim().to_owned(), zone, dates, windows };
        if let Err(invalid) = calendar.check() {
            // If another field is unreadable, a missing day or window may be due to it and is not reported.
            let has_errors = !errors.is_empty();
            let of_calendar =
                invalid.into_iter().filter(|error| !has_errors || matches!(error.field.as_str(), "name" | "zone"));
            errors.splice(0..0, of_calendar);
        }
        if errors.is_empty() { Ok(calendar) } else { Err(errors) }
    }

    /// Parses the windows of one row. An empty row has none.
    fn row(&self, row: usize) -> Result<Vec<WeeklyWindow>, String> {
        let days: Vec<u8> = WEEKDAYS
            .iter()
            .filter(|(_, word)| !self.window(row, &weekday_field(word)).is_empty())
            .map(|(day, _)| *day)
            .collect();
        let (from, to) = (self.window(row, "from"), self.window(row, "to"));
        match (days.is_empty(), from.trim(), to.trim()) {
            (true, "", "") => Ok(Vec::new()),
            (_, "", _) => Err("enter a start time, for example 22:00, or clear the row".into()),
            (_, _, "") => Err("enter an end time, for example 06:00, or clear the row".into()),
            (true, _, _) => Err("choose at least one day of the week, or clear the row".into()),
            (false, from, to) => {
                let (from, to) = (time(from)?, time(to)?);
                Ok(days.into_iter().map(|weekday| WeeklyWindow { weekday, from, to }).collect())
            }
        }
    }
}

fn time(text: &str) -> Result<NaiveTime, String> {
    // The format of browsers, with or without seconds. Midnight at the end of a day is that of the next day.
    if text == "24:00" {
        return Ok(NaiveTime::MIN);
    }
    NaiveTime::parse_from_str(text, "%H:%M:%S")
        .or_else(|_| NaiveTime::parse_from_str(text, "%H:%M"))
        .map_err(|_| format!("enter a time of day, for example 22:00: got {}", clip(text)))
}

/// Parses the days of a text, sorted and without duplicates.
fn dates(text: &str) -> Result<Vec<NaiveDate>, String> {
    let mut dates = Vec::new();
    for part in text.split(['\n', ',', ';']).map(str::trim).filter(|part| !part.is_empty()) {
        let (first, last) = DATE_RANGE_SEPARATORS.iter().find_map(|to| part.split_once(to)).unwrap_or((part, part));
        let (first, last) = (date(first, part)?, date(last, part)?);
        if last < first {
            return Err(format!("enter the earlier day first: got {}", clip(part)));
        }
        for day in first.iter_days().take_while(|day| *day <= last) {
            dates.push(day);
            // Checked here, because a range of a thousand years is a short text.
            if dates.len() > MAX_CALENDAR_DATES {
                return Err(format!("at most {MAX_CALENDAR_DATES} days are allowed: {} exceeds the limit", clip(part)));
            }
        }
    }
    dates.sort_unstable();
    dates.dedup();
    Ok(dates)
}

fn date(text: &str, part: &str) -> Result<NaiveDate, String> {
    let text = text.trim();
    // Exactly ten characters, because chrono also accepts signs and years of five digits.
    let read = (text.len() == 10).then(|| NaiveDate::parse_from_str(text, "%Y-%m-%d").ok()).flatten();
    read.ok_or_else(|| format!("enter days as 2026-12-24 or ranges as 2026-12-24 to 2026-12-26: got {}", clip(part)))
}

fn clip(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(text: &str) -> NaiveDate {
        text.parse().expect("a valid date")
    }

    fn form(dates: &str) -> CalendarForm {
        CalendarForm {
            name: "Holidays".into(),
            zone: "Europe/Warsaw".into(),
            dates: dates.into(),
            ..CalendarForm::default()
        }
    }

    fn with_row(fields: &[(&str, &str)]) -> CalendarForm {
        let row = fields.iter().map(|(field, value)| ((*field).to_owned(), (*value).to_owned())).collect();
        CalendarForm { windows: BTreeMap::from([("10".to_owned(), row)]), ..form("") }
    }

    fn only_error(form: &CalendarForm) -> (String, String) {
        let errors = form.check().expect_err("invalid");
        assert_eq!(errors.len(), 1, "{errors:?}");
        (errors[0].field.clone(), errors[0].message.clone())
    }

    #[test]
    fn calendar_round_trips_through_its_form() {
        let time = |text: &str| text.parse().expect("a valid time");
        let window = |weekday, from, to| WeeklyWindow { weekday, from: time(from), to: time(to) };
        let calendar = Calendar {
            name: "Quiet hours".into(),
            zone: "Europe/Warsaw".into(),
            dates: ["2026-12-24", "2026-12-25", "2026-12-26", "2027-01-01"].map(day).to_vec(),
            windows: vec![
                window(0, "00:00:00", "00:00:00"),
                window(5, "22:00:00", "06:00:00"),
                window(6, "00:00:00", "00:00:00"),
            ],
        };
        let form = CalendarForm::from_calendar(CalendarId::default(), 3, &calendar);
        assert_eq!(form.dates, "2026-12-24 to 2026-12-26\n2027-01-01");
        assert_eq!(
            (form.rows(), form.window(0, "sat"), form.window(1, "to")),
            (vec![0, 1], "on".into(), "06:00".into())
        );
        assert_eq!(form.check(), Ok(calendar));
    }

    #[test]
    fn pasted_days_are_parsed() {
        let expected = ["2026-12-24", "2026-12-25", "2027-01-01", "2027-01-02"].map(day).to_vec();
        for text in [
            "2027-01-01 to 2027-01-02\r\n2026-12-24\r\n\r\n2026-12-25",
            "2026-12-24, 2026-12-25; 2027-01-01..2027-01-02",
            "2026-12-24–2026-12-25\n2026-12-25\n2027-01-01 – 2027-01-02",
        ] {
            assert_eq!(form(text).check().map(|calendar| calendar.dates), Ok(expected.clone()), "{text}");
        }
    }

    #[test]
    fn invalid_day_is_quoted_with_the_remedy() {
        let (field, message) = only_error(&form("2026-12-24\n24.12.2026"));
        assert_eq!(field, "dates");
        assert!(message.starts_with("enter days as 2026-12-24") && message.ends_with(": got 24.12.2026"), "{message}");
        assert!(only_error(&form("2026-02-29")).1.contains("got 2026-02-29"));
        assert!(only_error(&form("2026-12-26 to 2026-12-24")).1.contains("enter the earlier day first"));
        assert!(only_error(&form("0001-01-01 to 9999-12-31")).1.starts_with("at most 2000 days"));
        assert!(only_error(&form("12026-12-24")).1.contains("got 12026-12-24"));
    }

    #[test]
    fn window_row_is_complete_or_empty() {
        assert_eq!(only_error(&with_row(&[("from", "22:00"), ("to", "06:00")])).0, "windows.10");
        assert!(only_error(&with_row(&[("mon", "on"), ("to", "06:00")])).1.contains("start time"));
        assert!(only_error(&with_row(&[("mon", "on"), ("from", "22:00")])).1.contains("end time"));
        assert!(only_error(&with_row(&[("mon", "on"), ("from", "noon"), ("to", "06:00")])).1.contains("got noon"));
        let calendar = with_row(&[("mon", "on"), ("sun", "on"), ("from", "18:00"), ("to", "24:00")])
            .check()
            .expect("a valid form");
        assert_eq!(calendar.windows.len(), 2);
        assert_eq!(
            calendar.windows[0],
            WeeklyWindow { weekday: 0, from: "18:00:00".parse().expect("a valid time"), to: NaiveTime::MIN }
        );
        assert_eq!(
            only_error(&with_row(&[])).0,
            "dates",
            "an empty row has no window, and an empty calendar is refused"
        );
    }

    #[test]
    fn all_errors_are_returned_in_form_order() {
        let mut form = with_row(&[("mon", "on")]);
        form.name.clear();
        form.zone = "Mars/Olympus".into();
        form.dates = "tomorrow".into();
        let fields: Vec<_> = form.check().expect_err("invalid").into_iter().map(|error| error.field).collect();
        assert_eq!(fields, ["name", "zone", "dates", "windows.10"]);
    }
}
