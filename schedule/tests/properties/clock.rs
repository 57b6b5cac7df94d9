//! Zones, their clock changes, and the expected due times around a change, computed minute by minute.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use chrono::{DateTime, Duration, NaiveDate, NaiveDateTime, NaiveTime, Offset, TimeZone, Timelike, Utc};
use chrono_tz::Tz;

use crate::pattern::CronPattern;

/// Zones with half-hour and quarter-hour offsets, changes at midnight, Ramadan, shifts of two hours, skipped days, and
/// abolished or doubled summer time.
pub(crate) const ZONES: [&str; 52] = [
    "Africa/Cairo",
    "Africa/Casablanca",
    "Africa/El_Aaiun",
    "Africa/Juba",
    "America/Adak",
    "America/Asuncion",
    "America/Caracas",
    "America/Godthab",
    "America/Havana",
    "America/Los_Angeles",
    "America/Miquelon",
    "America/New_York",
    "America/Nuuk",
    "America/Port-au-Prince",
    "America/Santiago",
    "America/Sao_Paulo",
    "America/Scoresbysund",
    "America/St_Johns",
    "Antarctica/Casey",
    "Antarctica/Macquarie",
    "Antarctica/Troll",
    "Asia/Amman",
    "Asia/Beirut",
    "Asia/Famagusta",
    "Asia/Gaza",
    "Asia/Hebron",
    "Asia/Istanbul",
    "Asia/Jerusalem",
    "Asia/Kathmandu",
    "Asia/Pyongyang",
    "Asia/Tehran",
    "Atlantic/Azores",
    "Australia/Adelaide",
    "Australia/Eucla",
    "Australia/Lord_Howe",
    "Australia/Sydney",
    "Europe/Chisinau",
    "Europe/Dublin",
    "Europe/Istanbul",
    "Europe/London",
    "Europe/Volgograd",
    "Europe/Warsaw",
    "Pacific/Apia",
    "Pacific/Auckland",
    "Pacific/Chatham",
    "Pacific/Easter",
    "Pacific/Fakaofo",
    "Pacific/Fiji",
    "Pacific/Kwajalein",
    "Pacific/Norfolk",
    "Pacific/Tongatapu",
    "UTC",
];

pub(crate) fn zone(name: &str) -> Tz {
    name.parse().expect(name)
}

pub(crate) fn offset(zone: Tz, at: DateTime<Utc>) -> i32 {
    zone.offset_from_utc_datetime(&at.naive_utc()).fix().local_minus_utc()
}

/// One minute of UTC.
pub(crate) struct ClockMinute {
    pub(crate) at: DateTime<Utc>,
    pub(crate) shows: NaiveDateTime,
    pub(crate) first_pass: bool,
    /// The local minutes that the clock skipped before this minute.
    pub(crate) skipped: Vec<NaiveDateTime>,
}

pub(crate) struct ClockWindow {
    pub(crate) zone: Tz,
    pub(crate) change: DateTime<Utc>,
    pub(crate) minutes: Vec<ClockMinute>,
}

/// Returns six days, minute by minute, with the change in the middle.
pub(crate) fn window(zone: Tz, change: DateTime<Utc>) -> ClockWindow {
    let mut seen = HashSet::new();
    let mut minutes: Vec<ClockMinute> = Vec::with_capacity(6 * 1440);
    for n in 0..6 * 1440 {
        let at = change - Duration::days(3) + Duration::minutes(n);
        let shows = at.naive_utc() + Duration::seconds(i64::from(offset(zone, at)));
        let mut skipped = Vec::new();
        if let Some(before) = minutes.last() {
            let mut missing = before.shows + Duration::minutes(1);
            while missing < shows {
                skipped.push(missing);
                missing += Duration::minutes(1);
            }
        }
        minutes.push(ClockMinute { at, shows, first_pass: seen.insert(shows), skipped });
    }
    ClockWindow { zone, change, minutes }
}

impl ClockWindow {
    /// Returns the first `count` due times at or after the `start`-th minute plus `seconds`. At that point itself, a
    /// due time that only replaces skipped minutes counts if `gap_counts` is true.
    pub(crate) fn due_times(
        &self,
        pattern: &CronPattern,
        start: usize,
        seconds: u32,
        count: usize,
        gap_counts: bool,
    ) -> Vec<DateTime<Utc>> {
        let from = self.minutes[start].at + Duration::seconds(i64::from(seconds));
        let table = |set: &BTreeSet<u32>| (0..60).map(|n| set.contains(&n)).collect::<Vec<bool>>();
        let (minutes, hours) = (table(&pattern.minutes), table(&pattern.hours));
        let mut dates = BTreeMap::new();
        let mut matches = |shown: NaiveDateTime| {
            minutes[shown.minute() as usize]
                && hours[shown.hour() as usize]
                && *dates.entry(shown.date()).or_insert_with(|| pattern.date_matches(shown.date()))
        };
        let mut due_times = Vec::new();
        for minute in &self.minutes[start..] {
            let mut here = BTreeSet::new();
            if (gap_counts || minute.at > from) && minute.skipped.iter().any(|shown| matches(*shown)) {
                here.insert(minute.at);
            }
            if (pattern.interval || minute.first_pass) && matches(minute.shows) {
                here.extend(pattern.seconds.iter().map(|second| minute.at + Duration::seconds(i64::from(*second))));
            }
            due_times.extend(here.into_iter().filter(|at| *at >= from));
            if due_times.len() >= count {
                break;
            }
        }
        due_times.truncate(count);
        due_times
    }
}

/// Returns the clock changes of a zone between two years.
pub(crate) fn changes(zone: Tz, years: std::ops::Range<i32>) -> Vec<DateTime<Utc>> {
    let year = |year| NaiveDate::from_ymd_opt(year, 1, 1).expect("a valid date").and_time(NaiveTime::MIN).and_utc();
    let (mut at, end, mut found) = (year(years.start), year(years.end), Vec::new());
    while at < end {
        let next = at + Duration::hours(12);
        if offset(zone, next) != offset(zone, at) {
            let change = (0..=720).map(|n| at + Duration::minutes(n)).find(|m| offset(zone, *m) != offset(zone, at));
            found.extend(change);
        }
        at = next;
    }
    found
}

/// Returns every change from 2024 to 2030. For zones without one, returns their last four changes before; also three
/// skipped days.
pub(crate) fn all_changes() -> Vec<(Tz, DateTime<Utc>)> {
    let of = |name: &&str| {
        let zone = zone(name);
        let mut found = changes(zone, 2024..2031);
        if found.is_empty() {
            found = changes(zone, 1985..2024).into_iter().rev().take(4).collect();
        }
        if matches!(*name, "Pacific/Apia" | "Pacific/Fakaofo" | "Pacific/Kwajalein") {
            found.extend(changes(zone, 1993..2012));
        }
        found.into_iter().map(move |change| (zone, change)).collect::<Vec<_>>()
    };
    ZONES.iter().flat_map(of).collect()
}
