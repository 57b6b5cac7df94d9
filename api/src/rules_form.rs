//! The rules as a form has them: text by field name, and back.
//!
//! Start and end are typed as people read them off a clock, in the zone of the schedule. An instant that no local time
//! leads back to (the second pass of an autumn hour, a fraction of a second) is written with its offset instead, so that
//! an edit which does not touch it does not move it.

use std::{collections::BTreeMap, str::FromStr};

use chrono::{DateTime, NaiveDateTime, TimeZone, Utc};
use chrono_tz::Tz;

use crate::requests::{FieldError, JobForm};
use milvaion_protocol::id::CalendarId;
use milvaion_schedule::{
    rules::{AutoDisable, BlackoutPolicy, ConcurrencyKeyLimit, LostRunPolicy, MisfirePolicy, OverlapPolicy, Rules},
    schedule::parse_zone,
};

/// The field that says whether a job keeps to a calendar begins so; the calendar's id follows.
const CALENDAR_FIELD_PREFIX: &str = "calendar_";

/// The field that says whether a job keeps to the calendar `id`: one box to tick for each, so that a plain form can send
/// any number of them.
#[must_use]
pub fn calendar_field(id: CalendarId) -> String {
    format!("{CALENDAR_FIELD_PREFIX}{id}")
}

/// The fields that show `rules`, start and end as local times in `zone`. In a zone that is not known they carry their
/// offset.
#[must_use]
pub fn write(rules: &Rules, zone: &str) -> BTreeMap<String, String> {
    let zone = parse_zone(zone).ok();
    fields(rules, |at| zone.map_or_else(|| at.to_rfc3339(), |zone| local(zone, at)))
}

impl JobForm {
    /// What stands in the field of a rule, named without `rules.`; what was never there is as usual.
    #[must_use]
    pub fn rule(&self, field: &str) -> String {
        self.rules.get(field).cloned().unwrap_or_else(|| default_fields().remove(field).unwrap_or_default())
    }

    /// Whether the box of the calendar `id` is ticked.
    #[must_use]
    pub fn has_calendar(&self, id: CalendarId) -> bool {
        self.rules.get(&calendar_field(id)).is_some_and(|value| !value.trim().is_empty())
    }

    /// Whether one of these fields, named with `rules.`, is not as usual.
    #[must_use]
    pub fn has_non_default(&self, fields: &[&str]) -> bool {
        let mut usual = default_fields();
        let names = fields.iter().filter_map(|field| field.strip_prefix("rules."));
        names.into_iter().any(|name| {
            self.rules.get(name).is_some_and(|text| {
                let text = text.trim();
                !text.is_empty() && Some(text) != usual.remove(name).as_deref()
            })
        })
    }
}

/// The fields of a job whose rules are all as usual.
#[must_use]
pub fn default_fields() -> BTreeMap<String, String> {
    // Without a zone, so that a browser which asks for this need not carry the zones of the world.
    fields(&Rules::default(), |_| String::new())
}

fn fields(rules: &Rules, moment: impl Fn(DateTime<Utc>) -> String) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    let mut put = |name: &str, value: String| {
        fields.insert(name.to_owned(), value);
    };
    put("start_at", rules.start_at.map(&moment).unwrap_or_default());
    put("end_at", rules.end_at.map(&moment).unwrap_or_default());
    put("jitter_seconds", rules.jitter_seconds.to_string());
    for id in &rules.calendars {
        put(&calendar_field(*id), "on".into());
    }
    put("blackout", rules.blackout.as_str().into());
    put("misfire", rules.misfire.as_str().into());
    put("catch_up_limit", rules.catch_up_limit.to_string());
    put("catch_up_window_seconds", rules.catch_up_window_seconds.to_string());
    put("overlap", rules.overlap.as_str().into());
    put("max_concurrent", rules.max_concurrent.map(|n| n.to_string()).unwrap_or_default());
    put("concurrency_key", rules.key_limit.as_ref().map(|key| key.key.clone()).unwrap_or_default());
    put("concurrency_key_limit", rules.key_limit.as_ref().map(|key| key.limit.to_string()).unwrap_or_default());
    put("max_retries", rules.max_retries.to_string());
    put("base_retry_delay_seconds", rules.base_retry_delay_seconds.to_string());
    put("retry_jitter_percent", rules.retry_jitter_percent.to_string());
    put("heartbeat_timeout_seconds", rules.heartbeat_timeout_seconds.map(|n| n.to_string()).unwrap_or_default());
    put("on_lost", rules.on_lost.as_str().into());
    let breaker = rules.auto_disable;
    put("auto_disable_threshold", breaker.map(|b| b.threshold.to_string()).unwrap_or_default());
    put("auto_disable_window_seconds", breaker.map(|b| b.window_seconds.to_string()).unwrap_or_default());
    let cool_down = breaker.and_then(|b| b.cool_down_seconds);
    put("auto_disable_cool_down_seconds", cool_down.map(|n| n.to_string()).unwrap_or_default());
    fields
}

/// `at` on the clock of `zone`, as a browser writes it, if that leads back to `at`; else with its offset.
fn local(zone: Tz, at: DateTime<Utc>) -> String {
    let there = at.with_timezone(&zone);
    let text = there.format("%Y-%m-%dT%H:%M:%S").to_string();
    match moment(&text, zone) {
        Some(Ok(back)) if back == at => text,
        _ => there.to_rfc3339(),
    }
}

/// What a local date and time means in `zone`: of an hour that comes twice the first. None when it is not one; `Err`
/// when the clock of `zone` never shows it.
fn moment(text: &str, zone: Tz) -> Option<Result<DateTime<Utc>, ()>> {
    let local = NaiveDateTime::parse_from_str(text, "%Y-%m-%dT%H:%M:%S")
        .or_else(|_| NaiveDateTime::parse_from_str(text, "%Y-%m-%dT%H:%M"))
        .ok()?;
    Some(zone.from_local_datetime(&local).earliest().map(|at| at.with_timezone(&Utc)).ok_or(()))
}

/// Reads the fields; what is absent or empty is as usual. Start and end are local times in `zone`, or instants with
/// their offset.
///
/// # Errors
///
/// The wrong fields, named `rules.NAME`, and `zone` when a local time needs one that is not known.
pub fn read(fields: &BTreeMap<String, String>, zone: &str) -> Result<Rules, Vec<FieldError>> {
    let mut form = RulesFormReader { fields, zone: parse_zone(zone), errors: Vec::new() };
    let usual = Rules::default();
    // In the order of the form, so that what is wrong is listed in it too.
    let rules = Rules {
        start_at: form.instant("start_at"),
        end_at: form.instant("end_at"),
        jitter_seconds: form.number("jitter_seconds").unwrap_or(usual.jitter_seconds),
        calendars: form.calendars(),
        blackout: form.word("blackout", BlackoutPolicy::parse, BlackoutPolicy::ALL.iter().map(|b| b.as_str())),
        overlap: form.word("overlap", OverlapPolicy::parse, OverlapPolicy::ALL.iter().map(|o| o.as_str())),
        misfire: form.word("misfire", MisfirePolicy::parse, MisfirePolicy::ALL.iter().map(|m| m.as_str())),
        catch_up_limit: form.number("catch_up_limit").unwrap_or(usual.catch_up_limit),
        catch_up_window_seconds: form.number("catch_up_window_seconds").unwrap_or(usual.catch_up_window_seconds),
        max_concurrent: form.number("max_concurrent"),
        key_limit: form.key_limit(),
        max_retries: form.number("max_retries").unwrap_or(usual.max_retries),
        base_retry_delay_seconds: form.number("base_retry_delay_seconds").unwrap_or(usual.base_retry_delay_seconds),
        retry_jitter_percent: form.number("retry_jitter_percent").unwrap_or(usual.retry_jitter_percent),
        heartbeat_timeout_seconds: form.number("heartbeat_timeout_seconds"),
        on_lost: form.word("on_lost", LostRunPolicy::parse, LostRunPolicy::ALL.iter().map(|o| o.as_str())),
        auto_disable: form.auto_disable(),
    };
    if form.errors.is_empty()
        && let Err(wrong) = rules.check()
    {
        for (field, message) in wrong {
            form.wrong(field, &message);
        }
    }
    if form.errors.is_empty() { Ok(rules) } else { Err(form.errors) }
}

struct RulesFormReader<'a> {
    fields: &'a BTreeMap<String, String>,
    /// The zone of local times, or what is wrong with its name.
    zone: Result<Tz, String>,
    errors: Vec<FieldError>,
}

impl<'a> RulesFormReader<'a> {
    fn wrong(&mut self, field: &str, message: &str) {
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
                self.wrong(field, &format!("write a whole number: got {short}"));
                None
            }
        }
    }

    fn instant(&mut self, field: &str) -> Option<DateTime<Utc>> {
        let text = self.text(field)?;
        if let Ok(at) = text.parse() {
            return Some(at);
        }
        // Whether it is a local time at all does not depend on the zone.
        match moment(text, *self.zone.as_ref().unwrap_or(&Tz::UTC)) {
            None => self.wrong(field, "choose a date and a time, as in 2026-11-21T09:00"),
            Some(read) => match (&self.zone, read) {
                (Ok(_), Ok(at)) => return Some(at),
                (Ok(zone), Err(())) => {
                    let message = format!(
                        "{text} does not exist in {zone}, where the clock is put forward then: choose a moment before or after"
                    );
                    self.wrong(field, &message);
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
        let ticked = self.fields.iter().filter(|(_, value)| !value.trim().is_empty());
        let ids: Result<Vec<_>, _> =
            ticked.filter_map(|(field, _)| field.strip_prefix(CALENDAR_FIELD_PREFIX)).map(str::parse).collect();
        ids.unwrap_or_else(|_| {
            self.wrong("calendars", "choose calendars from the list");
            Vec::new()
        })
    }

    fn key_limit(&mut self) -> Option<ConcurrencyKeyLimit> {
        let key = self.text("concurrency_key");
        let is_limited = self.text("concurrency_key_limit").is_some();
        let limit = self.number("concurrency_key_limit");
        if key.is_none() && is_limited {
            self.wrong("concurrency_key", "name the key that the limit is for, or leave the limit empty");
        }
        Some(ConcurrencyKeyLimit { key: key?.to_owned(), limit: limit.unwrap_or(1) })
    }

    fn auto_disable(&mut self) -> Option<AutoDisable> {
        let others = ["auto_disable_window_seconds", "auto_disable_cool_down_seconds"];
        let is_wanted = others.into_iter().any(|field| self.text(field).is_some());
        if is_wanted && self.text("auto_disable_threshold").is_none() {
            self.wrong(
                "auto_disable_threshold",
                "say after how many failures, or leave the time they fall into and the pause empty",
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
            self.wrong(field, &format!("choose one of {}", all.join(", ")));
            T::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let rules = Rules {
            start_at: Some("2026-01-01T00:00:00Z".parse().expect("instant")),
            jitter_seconds: 30,
            misfire: MisfirePolicy::CatchUp,
            overlap: OverlapPolicy::Replace,
            calendars: vec![CalendarId::from_parts(DateTime::UNIX_EPOCH, [1; 10]), CalendarId::default()],
            max_concurrent: Some(3),
            key_limit: Some(ConcurrencyKeyLimit { key: "tenant-7".into(), limit: 2 }),
            retry_jitter_percent: 20,
            auto_disable: Some(AutoDisable { threshold: 5, window_seconds: 60, cool_down_seconds: Some(9) }),
            ..Rules::default()
        };
        for zone in ["UTC", "Europe/Warsaw", "America/New_York"] {
            let mut back = read(&write(&rules, zone), zone).expect("right");
            // Boxes have no order of their own.
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
        Ok(Rules { start_at: Some(at.parse().expect("instant")), ..Rules::default() })
    }

    #[test]
    fn a_start_is_local_in_the_zone_or_carries_its_offset() {
        assert_eq!(read(&starting("2026-07-01T09:00"), "Europe/Warsaw"), start("2026-07-01T07:00:00Z"));
        assert_eq!(read(&starting("2026-07-01T09:00:30"), "UTC"), start("2026-07-01T09:00:30Z"));
        assert_eq!(read(&starting("2026-07-01T09:00:00+05:00"), "Europe/Warsaw"), start("2026-07-01T04:00:00Z"));
        let rules = start("2026-07-01T07:00:00Z").expect("valid");
        assert_eq!(write(&rules, "Europe/Warsaw")["start_at"], "2026-07-01T09:00:00");
    }

    #[test]
    fn an_hour_that_comes_twice_is_not_moved_by_an_edit() {
        // On 25 October 2026 the clock of Warsaw shows 02:30 at 00:30 and at 01:30 UTC.
        for at in ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T05:00:00.25Z"] {
            let rules = start(at).expect("valid");
            assert_eq!(read(&write(&rules, "Europe/Warsaw"), "Europe/Warsaw"), Ok(rules));
        }
    }

    #[test]
    fn a_moment_that_no_clock_shows_is_refused_with_the_reason() {
        let errors = read(&starting("2027-03-28T02:30"), "Europe/Warsaw").expect_err("wrong");
        assert_eq!(errors[0].field, "rules.start_at");
        assert!(errors[0].message.starts_with("2027-03-28T02:30 does not exist in Europe/Warsaw"), "{errors:?}");
        let errors = read(&starting("tomorrow"), "Mars/Olympus").expect_err("wrong");
        assert_eq!(errors[0].field, "rules.start_at");
    }

    #[test]
    fn a_local_time_needs_a_zone_that_is_known() {
        let both = BTreeMap::from([
            ("start_at".to_owned(), "2026-07-01T09:00".to_owned()),
            ("end_at".to_owned(), "2026-07-02T09:00".to_owned()),
        ]);
        let errors = read(&both, "Mars/Olympus").expect_err("wrong");
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].field, "zone");
        assert_eq!(read(&starting("2026-07-01T09:00:00Z"), "Mars/Olympus"), start("2026-07-01T09:00:00Z"));
    }

    #[test]
    fn a_window_without_a_number_of_failures_is_not_dropped_in_silence() {
        let fields = BTreeMap::from([("auto_disable_window_seconds".to_owned(), "60".to_owned())]);
        assert_eq!(read(&fields, "UTC").expect_err("wrong")[0].field, "rules.auto_disable_threshold");
        let fields = BTreeMap::from([
            ("auto_disable_threshold".to_owned(), "few".to_owned()),
            ("auto_disable_window_seconds".to_owned(), "60".to_owned()),
        ]);
        assert_eq!(read(&fields, "UTC").expect_err("wrong").len(), 1);
    }

    #[test]
    fn calendars_are_boxes_and_an_empty_one_is_not_ticked() {
        let (kept, other) = (CalendarId::from_parts(DateTime::UNIX_EPOCH, [1; 10]), CalendarId::default());
        let rules = BTreeMap::from([(calendar_field(kept), "on".into()), (calendar_field(other), String::new())]);
        assert_eq!(read(&rules, "UTC").map(|rules| rules.calendars), Ok(vec![kept]));
        let form = JobForm { rules, ..JobForm::default() };
        assert!(form.has_calendar(kept) && !form.has_calendar(other));
        let forged = BTreeMap::from([("calendar_holidays".to_owned(), "on".to_owned())]);
        assert_eq!(read(&forged, "UTC").expect_err("wrong")[0].field, "rules.calendars");
    }

    #[test]
    fn a_wrong_field_is_named_with_its_remedy() {
        let fields = BTreeMap::from([
            ("overlap".to_owned(), "both".to_owned()),
            ("max_concurrent".to_owned(), "many".to_owned()),
            ("concurrency_key_limit".to_owned(), "2".to_owned()),
        ]);
        let errors = read(&fields, "UTC").expect_err("wrong");
        let names: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(names, ["rules.overlap", "rules.max_concurrent", "rules.concurrency_key"]);
        assert!(errors[0].message.contains("allow, skip, queue, replace"));
    }
}
