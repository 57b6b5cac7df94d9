//! The rules of a job as text fields by name, and back.
//!
//! Start and end are entered as local times in the schedule's zone. An instant that its local time does not identify
//! (the second pass of an autumn hour, a fraction of a second) is shown with its UTC offset instead, so that an edit of
//! another field does not move it.

use std::{collections::BTreeMap, str::FromStr};

use chrono::{DateTime, NaiveDateTime, TimeZone, Utc};
use chrono_tz::Tz;

use milvaion_protocol::id::CalendarId;
use milvaion_schedule::{
    field_error::FieldError,
    rules::{AutoDisable, BlackoutPolicy, ConcurrencyKeyLimit, LostRunPolicy, MisfirePolicy, OverlapPolicy, Rules},
    schedule::parse_zone,
};

/// The prefix of the checkbox of a calendar; the calendar's id follows.
const CALENDAR_FIELD_PREFIX: &str = "calendar_";

/// Returns the name of the checkbox of a calendar. Each calendar has its own, so that a plain form can send any number
/// of them.
#[must_use]
pub fn calendar_field(id: CalendarId) -> String {
    format!("{CALENDAR_FIELD_PREFIX}{id}")
}

/// Returns the fields that show `rules`, with start and end as local times in `zone`. In an unknown zone they have
/// their UTC offset.
#[must_use]
pub fn write(rules: &Rules, zone: &str) -> BTreeMap<String, String> {
    let zone = parse_zone(zone).ok();
    fields(rules, |at| zone.map_or_else(|| at.to_rfc3339(), |zone| local(zone, at)))
}

/// Returns the fields of a job with default rules.
#[must_use]
pub fn default_fields() -> BTreeMap<String, String> {
    // Without a zone, so that the code for browsers does not include the zone database for this.
    fields(&Rules::default(), |_| String::new())
}

/// Returns the fields that show `rules`, with instants as `format_instant` writes them.
pub(crate) fn fields(rules: &Rules, format_instant: impl Fn(DateTime<Utc>) -> String) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    let mut put = |name: &str, value: String| {
        fields.insert(name.to_owned(), value);
    };
    put("start_at", rules.start_at.map(&format_instant).unwrap_or_default());
    put("end_at", rules.end_at.map(&format_instant).unwrap_or_default());
    put("jitter_seconds", rules.jitter_seconds.to_string());
    for id in &rules.calendars {
        put(&calendar_field(*id), "on".into());
    }
    put("blackout", rules.blackout.as_str().into());
    put("misfire", rules.misfire.as_str().into());
    put("catch_up_limit", rules.catch_up_limit.to_string());
    put("catch_up_window_seconds", rules.catch_up_window_seconds.to_string());
    put("start_within_seconds", rules.start_within_seconds.map(|n| n.to_string()).unwrap_or_default());
    put("overlap", rules.overlap.as_str().into());
    put("max_concurrent", rules.max_concurrent.map(|n| n.to_string()).unwrap_or_default());
    put("concurrency_key", rules.key_limit.as_ref().map(|key| key.key.clone()).unwrap_or_default());
    put("concurrency_key_limit", rules.key_limit.as_ref().map(|key| key.limit.to_string()).unwrap_or_default());
    put("max_retries", rules.max_retries.to_string());
    put("base_retry_delay_seconds", rules.base_retry_delay_seconds.to_string());
    put("retry_jitter_percent", rules.retry_jitter_percent.to_string());
    put("heartbeat_timeout_seconds", rules.heartbeat_timeout_seconds.map(|n| n.to_string()).unwrap_or_default());
    let unreachable = rules.unreachable_timeout_seconds;
    put("unreachable_timeout_seconds", unreachable.map(|n| n.to_string()).unwrap_or_default());
    put("on_lost", rules.on_lost.as_str().into());
    let auto_disable = rules.auto_disable;
    put("auto_disable_threshold", auto_disable.map(|rule| rule.threshold.to_string()).unwrap_or_default());
    put("auto_disable_window_seconds", auto_disable.map(|rule| rule.window_seconds.to_string()).unwrap_or_default());
    let cool_down = auto_disable.and_then(|rule| rule.cool_down_seconds);
    put("auto_disable_cool_down_seconds", cool_down.map(|n| n.to_string()).unwrap_or_default());
    fields
}

/// Formats `at` as a local time of `zone` in the format of browsers if that identifies `at`, else with its UTC offset.
fn local(zone: Tz, at: DateTime<Utc>) -> String {
    let zoned = at.with_timezone(&zone);
    let text = zoned.format("%Y-%m-%dT%H:%M:%S").to_string();
    match parse_local_time(&text, zone) {
        Some(Ok(back)) if back == at => text,
        _ => zoned.to_rfc3339(),
    }
}

/// Parses a local date and time in `zone`; in an hour that occurs twice, the first pass. Returns none if it is no date
/// and time, and `Err` if it does not exist in `zone`.
fn parse_local_time(text: &str, zone: Tz) -> Option<Result<DateTime<Utc>, ()>> {
    let local = NaiveDateTime::parse_from_str(text, "%Y-%m-%dT%H:%M:%S")
        .or_else(|_| NaiveDateTime::parse_from_str(text, "%Y-%m-%dT%H:%M"))
        .ok()?;
    Some(zone.from_local_datetime(&local).earliest().map(|at| at.with_timezone(&Utc)).ok_or(()))
}

/// Parses and checks the fields. An absent or empty field has its default. Start and end are local times in `zone`, or
/// instants with their UTC offset.
///
/// # Errors
///
/// Returns the invalid fields, named `rules.NAME`, and `zone` if a local time needs a zone that is unknown.
pub fn read(fields: &BTreeMap<String, String>, zone: &str) -> Result<Rules, Vec<FieldError>> {
    let mut form = RulesFormReader { fields, zone: parse_zone(zone), errors: Vec::new() };
    let defaults = Rules::default();
    // In the order of the form, so that errors are listed in that order too.
    let rules = Rules {
        start_at: form.instant("start_at"),
        end_at: form.instant("end_at"),
        jitter_seconds: form.number("jitter_seconds").unwrap_or(defaults.jitter_seconds),
        calendars: form.calendars(),
        blackout: form.word("blackout", BlackoutPolicy::parse, BlackoutPolicy::ALL.iter().map(|b| b.as_str())),
        overlap: form.word("overlap", OverlapPolicy::parse, OverlapPolicy::ALL.iter().map(|o| o.as_str())),
        misfire: form.word("misfire", MisfirePolicy::parse, MisfirePolicy::ALL.iter().map(|m| m.as_str())),
        catch_up_limit: form.number("catch_up_limit").unwrap_or(defaults.catch_up_limit),
        catch_up_window_seconds: form.number("catch_up_window_seconds").unwrap_or(defaults.catch_up_window_seconds),
        start_within_seconds: form.number("start_within_seconds"),
        max_concurrent: form.number("max_concurrent"),
        key_limit: form.key_limit(),
        max_retries: form.number("max_retries").unwrap_or(defaults.max_retries),
        base_retry_delay_seconds: form.number("base_retry_delay_seconds").unwrap_or(defaults.base_retry_delay_seconds),
        retry_jitter_percent: form.number("retry_jitter_percent").unwrap_or(defaults.retry_jitter_percent),
        heartbeat_timeout_seconds: form.number("heartbeat_timeout_seconds"),
        unreachable_timeout_seconds: form.number("unreachable_timeout_seconds"),
        on_lost: form.word("on_lost", LostRunPolicy::parse, LostRunPolicy::ALL.iter().map(|o| o.as_str())),
        auto_disable: form.auto_disable(),
    };
    if form.errors.is_empty()
        && let Err(errors) = rules.check()
    {
        for (field, message) in errors {
            form.add_error(field, &message);
        }
    }
    if form.errors.is_empty() { Ok(rules) } else { Err(form.errors) }
}

struct RulesFormReader<'a> {
    fields: &'a BTreeMap<String, String>,
    /// The zone of local times, or the error of its name.
    zone: Result<Tz, String>,
    errors: Vec<FieldError>,
}

impl<'a> RulesFormReader<'a> {
    fn add_error(&mut self, field: &str, message: &str) {
        self.errors.push(FieldError::new(format!("rules.{field}"), message));
    }

    fn text(&self, field: &str) -> Option<&'a str> {
        self.fields.get(field).map(|text| text.trim()).filter(|text| !text.is_empty())
    }

    fn number<T: FromStr>(&mut self, field: &str) -> Option<T> {
        let text = self.text(field)?;
        match text.parse() {
            Ok(number) => Some(number),
            Err(_) => {
                let short: String = text.chars().take(40).collect();
                self.add_error(field, &format!("enter a whole number: got {short}"));
                None
            }
        }
    }

    fn instant(&mut self, field: &str) -> Option<DateTime<Utc>> {
        let text = self.text(field)?;
        if let Ok(at) = text.parse() {
            return Some(at);
        }
        // The format of a local time is checked even if the zone is unknown.
        match parse_local_time(text, *self.zone.as_ref().unwrap_or(&Tz::UTC)) {
            None => self.add_error(field, "choose a date and a time, for example 2026-11-21T09:00"),
            Some(read) => match (&self.zone, read) {
                (Ok(_), Ok(at)) => return Some(at),
                (Ok(zone), Err(())) => {
                    let message = format!(
                        "{text} does not exist in {zone}, because the clock is set forward then: enter another time"
                    );
                    self.add_error(field, &message);
                }
                (Err(message), _) => {
                    let error = FieldError::new("zone", message.clone());
                    if !self.errors.contains(&error) {
                        self.errors.push(error);
                    }
                }
            },
        }
        None
    }

    fn calendars(&mut self) -> Vec<CalendarId> {
        let checked = self.fields.iter().filter(|(_, value)| !value.trim().is_empty());
        let ids: Result<Vec<_>, _> =
            checked.filter_map(|(field, _)| field.strip_prefix(CALENDAR_FIELD_PREFIX)).map(str::parse).collect();
        ids.unwrap_or_else(|_| {
            self.add_error("calendars", "choose calendars from the list");
            Vec::new()
        })
    }

    fn key_limit(&mut self) -> Option<ConcurrencyKeyLimit> {
        let key = self.text("concurrency_key");
        let is_limited = self.text("concurrency_key_limit").is_some();
        let limit = self.number("concurrency_key_limit");
        if key.is_none() && is_limited {
            self.add_error("concurrency_key", "enter the concurrency key of this limit, or leave the limit empty");
        }
        Some(ConcurrencyKeyLimit { key: key?.to_owned(), limit: limit.unwrap_or(1) })
    }

    fn auto_disable(&mut self) -> Option<AutoDisable> {
        let others = ["auto_disable_window_seconds", "auto_disable_cool_down_seconds"];
        let is_wanted = others.into_iter().any(|field| self.text(field).is_some());
        if is_wanted && self.text("auto_disable_threshold").is_none() {
            self.add_error(
                "auto_disable_threshold",
                "enter the number of failures in a row, or clear the failure window and the re-enable time",
            );
        }
        let threshold = self.number("auto_disable_threshold");
        let window_seconds = self.number("auto_disable_window_seconds").unwrap_or(3_600);
        let cool_down_seconds = self.number("auto_disable_cool_down_seconds");
        threshold.map(|threshold| AutoDisable { threshold, window_seconds, cool_down_seconds })
    }

    fn word<T: Default>(
        &mut self,
        field: &str,
        parse: impl Fn(&str) -> Option<T>,
        all: impl Iterator<Item = &'static str>,
    ) -> T {
        let Some(text) = self.text(field) else { return T::default() };
        parse(text).unwrap_or_else(|| {
            let all: Vec<_> = all.collect();
            self.add_error(field, &format!("choose one of {}", all.join(", ")));
            T::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::JobForm;

    #[test]
    fn rules_round_trip_through_the_form() {
        let rules = Rules {
            start_at: Some("2026-01-01T00:00:00Z".parse().expect("a valid instant")),
            jitter_seconds: 30,
            misfire: MisfirePolicy::CatchUp,
            start_within_seconds: Some(1_800),
            overlap: OverlapPolicy::Replace,
            calendars: vec![CalendarId::from_parts(DateTime::UNIX_EPOCH, [1; 10]), CalendarId::default()],
            max_concurrent: Some(3),
            key_limit: Some(ConcurrencyKeyLimit { key: "tenant-7".into(), limit: 2 }),
            retry_jitter_percent: 20,
            auto_disable: Some(AutoDisable { threshold: 5, window_seconds: 60, cool_down_seconds: Some(9) }),
            ..Rules::default()
        };
        for zone in ["UTC", "Europe/Warsaw", "America/New_York"] {
            let mut back = read(&write(&rules, zone), zone).expect("valid fields");
            // Checkboxes have an order of their own.
            back.calendars.reverse();
            assert_eq!(back, rules);
        }
        assert_eq!(read(&BTreeMap::new(), "UTC"), Ok(Rules::default()));
        assert_eq!(default_fields(), write(&Rules::default(), "Europe/Warsaw"));
    }

    fn starting(text: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("start_at".to_owned(), text.to_owned())])
    }

    fn start(at: &str) -> Result<Rules, Vec<FieldError>> {
        Ok(Rules { start_at: Some(at.parse().expect("a valid instant")), ..Rules::default() })
    }

    #[test]
    fn start_is_local_or_has_its_offset() {
        assert_eq!(read(&starting("2026-07-01T09:00"), "Europe/Warsaw"), start("2026-07-01T07:00:00Z"));
        assert_eq!(read(&starting("2026-07-01T09:00:30"), "UTC"), start("2026-07-01T09:00:30Z"));
        assert_eq!(read(&starting("2026-07-01T09:00:00+05:00"), "Europe/Warsaw"), start("2026-07-01T04:00:00Z"));
        let rules = start("2026-07-01T07:00:00Z").expect("valid rules");
        assert_eq!(write(&rules, "Europe/Warsaw")["start_at"], "2026-07-01T09:00:00");
    }

    #[test]
    fn edit_does_not_move_a_repeated_hour() {
        // On 25 October 2026 it is 02:30 in Warsaw at 00:30 and at 01:30 UTC.
        for at in ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T05:00:00.25Z"] {
            let rules = start(at).expect("valid rules");
            assert_eq!(read(&write(&rules, "Europe/Warsaw"), "Europe/Warsaw"), Ok(rules));
        }
    }

    #[test]
    fn nonexistent_local_time_is_refused() {
        let errors = read(&starting("2027-03-28T02:30"), "Europe/Warsaw").expect_err("invalid");
        assert_eq!(errors[0].field, "rules.start_at");
        assert!(errors[0].message.starts_with("2027-03-28T02:30 does not exist in Europe/Warsaw"), "{errors:?}");
        let errors = read(&starting("tomorrow"), "Mars/Olympus").expect_err("invalid");
        assert_eq!(errors[0].field, "rules.start_at");
    }

    #[test]
    fn local_time_needs_a_known_zone() {
        let both = BTreeMap::from([
            ("start_at".to_owned(), "2026-07-01T09:00".to_owned()),
            ("end_at".to_owned(), "2026-07-02T09:00".to_owned()),
        ]);
        let errors = read(&both, "Mars/Olympus").expect_err("invalid");
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].field, "zone");
        assert_eq!(read(&starting("2026-07-01T09:00:00Z"), "Mars/Olympus"), start("2026-07-01T09:00:00Z"));
    }

    #[test]
    fn failure_window_without_a_threshold_is_refused() {
        let fields = BTreeMap::from([("auto_disable_window_seconds".to_owned(), "60".to_owned())]);
        assert_eq!(read(&fields, "UTC").expect_err("invalid")[0].field, "rules.auto_disable_threshold");
        let fields = BTreeMap::from([
            ("auto_disable_threshold".to_owned(), "few".to_owned()),
            ("auto_disable_window_seconds".to_owned(), "60".to_owned()),
        ]);
        assert_eq!(read(&fields, "UTC").expect_err("invalid").len(), 1);
    }

    #[test]
    fn calendars_are_checkboxes_and_an_empty_one_is_unchecked() {
        let (kept, other) = (CalendarId::from_parts(DateTime::UNIX_EPOCH, [1; 10]), CalendarId::default());
        let rules = BTreeMap::from([(calendar_field(kept), "on".into()), (calendar_field(other), String::new())]);
        assert_eq!(read(&rules, "UTC").map(|rules| rules.calendars), Ok(vec![kept]));
        let form = JobForm { rules, ..JobForm::default() };
        assert!(form.has_calendar(kept) && !form.has_calendar(other));
        let forged = BTreeMap::from([("calendar_holidays".to_owned(), "on".to_owned())]);
        assert_eq!(read(&forged, "UTC").expect_err("invalid")[0].field, "rules.calendars");
    }

    #[test]
    fn invalid_fields_are_named_with_the_remedy() {
        let fields = BTreeMap::from([
            ("overlap".to_owned(), "both".to_owned()),
            ("max_concurrent".to_owned(), "many".to_owned()),
            ("concurrency_key_limit".to_owned(), "2".to_owned()),
        ]);
        let errors = read(&fields, "UTC").expect_err("invalid");
        let names: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(names, ["rules.overlap", "rules.max_concurrent", "rules.concurrency_key"]);
        assert!(errors[0].message.contains("allow, skip, queue, replace"));
    }
}
