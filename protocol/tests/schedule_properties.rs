//! What holds for every expression in every zone.
//!
//! The expected fires are worked out by walking minute by minute through the days around a change of the clock, from the
//! rules as `docs/SCHEDULES.md` writes them: a minute that does not exist fires at the first one after it, a minute that
//! comes twice fires on its first pass unless the pattern is a rhythm. Sets of values are counted out one by one. None of
//! this shares a line with the product.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use chrono::{DateTime, Datelike, Duration, NaiveDate, NaiveDateTime, NaiveTime, Offset, TimeZone, Timelike, Utc};
use chrono_tz::Tz;
use proptest::{
    prelude::*,
    sample::select,
    test_runner::{Config, TestRunner},
};
use protocol::cron::Cron;

/// Half hours, quarter hours, midnight changes, Ramadan, two hours, missing days, abolished and doubled summer times.
const ZONES: [&str; 52] = [
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

fn zone(name: &str) -> Tz {
    name.parse().expect(name)
}

fn offset(zone: Tz, at: DateTime<Utc>) -> i32 {
    zone.offset_from_utc_datetime(&at.naive_utc()).fix().local_minus_utc()
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() })
}

// ---- expressions with a meaning of their own ------------------------------------------------------------------------

/// A field's text and the values it stands for, counted out.
#[derive(Clone, Debug)]
struct Values {
    text: String,
    set: BTreeSet<u32>,
}

#[derive(Clone, Debug)]
enum Day {
    Of(Values),
    LastOfMonth(u32),
    WeekdayNear(u32),
    WeekdayNearLast(u32),
    LastInMonth(u32),
    Nth(u32, u32),
}

#[derive(Clone, Debug)]
struct Pattern {
    text: String,
    /// The last three fields.
    days: String,
    seconds: BTreeSet<u32>,
    minutes: BTreeSet<u32>,
    hours: BTreeSet<u32>,
    month_day: Day,
    months: BTreeSet<u32>,
    week_day: Day,
    rhythm: bool,
}

/// From `from` to `to`, round the end if need be, taking each `step`-th.
fn counted(low: u32, high: u32, from: u32, to: u32, step: u32) -> BTreeSet<u32> {
    let (mut value, mut n, mut set) = (from, 0, BTreeSet::new());
    loop {
        if n % step == 0 {
            set.insert(value);
        }
        if value == to {
            return set;
        }
        value = if value == high { low } else { value + 1 };
        n += 1;
    }
}

/// `top` is what a step may be and where `a/b` ends; `high` is where a range goes round (they differ for weekdays).
fn values(low: u32, high: u32, top: u32) -> impl Strategy<Value = Values> {
    let one = low..=high;
    let item = prop_oneof![
        4 => one.clone().prop_map(|n| (n.to_string(), BTreeSet::from([n]))),
        2 => (one.clone(), one.clone()).prop_map(move |(a, b)| (format!("{a}-{b}"), counted(low, high, a, b, 1))),
        1 => (one.clone(), one.clone(), 1..=top)
            .prop_map(move |(a, b, c)| (format!("{a}-{b}/{c}"), counted(low, high, a, b, c))),
        1 => (one, 1..=top).prop_map(move |(a, c)| (format!("{a}/{c}"), counted(low, top, a, top, c))),
    ];
    prop_oneof![
        4 => Just(("*".to_owned(), counted(low, high, low, high, 1))),
        2 => (1..=top).prop_map(move |c| (format!("*/{c}"), counted(low, top, low, top, c))),
        6 => prop::collection::vec(item, 1..4).prop_map(|items| {
            let text: Vec<String> = items.iter().map(|(text, _)| text.clone()).collect();
            (text.join(","), items.into_iter().flat_map(|(_, set)| set).collect())
        }),
    ]
    .prop_map(|(text, set)| Values { text, set })
}

fn fixed(low: u32, high: u32) -> impl Strategy<Value = Values> {
    prop::collection::btree_set(low..=high, 1..4).prop_map(|set| {
        let text: Vec<String> = set.iter().map(ToString::to_string).collect();
        Values { text: text.join(","), set }
    })
}

fn month_day() -> impl Strategy<Value = (String, Day)> {
    let any = || Just(("*".to_owned(), Day::Of(Values { text: "*".into(), set: (1..=31).collect() })));
    prop_oneof![
        8 => any(),
        1 => Just(("?".to_owned(), Day::Of(Values { text: "?".into(), set: (1..=31).collect() }))),
        4 => values(1, 31, 31).prop_map(|v| (v.text.clone(), Day::Of(v))),
        1 => Just(("L".to_owned(), Day::LastOfMonth(0))),
        1 => (0..=30_u32).prop_map(|n| (format!("L-{n}"), Day::LastOfMonth(n))),
        1 => Just(("LW".to_owned(), Day::WeekdayNearLast(0))),
        1 => (0..=30_u32).prop_map(|n| (format!("L-{n}W"), Day::WeekdayNearLast(n))),
        1 => (1..=31_u32).prop_map(|n| (format!("{n}W"), Day::WeekdayNear(n))),
    ]
}

fn week_day() -> impl Strategy<Value = (String, Day)> {
    let names = ["SUN", "mon", "Tue", "WED", "THU", "FRI", "sat"];
    prop_oneof![
        8 => Just(("*".to_owned(), Day::Of(Values { text: "*".into(), set: (0..=6).collect() }))),
        3 => values(0, 6, 7).prop_map(|v| {
            let set = v.set.iter().map(|n| n % 7).collect();
            (v.text.clone(), Day::Of(Values { set, ..v }))
        }),
        2 => (0..7_usize, 0..7_usize).prop_map(move |(a, b)| {
            let set = counted(0, 6, a as u32, b as u32, 1);
            (format!("{}-{}", names[a], names[b]), Day::Of(Values { text: String::new(), set }))
        }),
        1 => (0..=7_u32).prop_map(|n| (format!("{n}L"), Day::LastInMonth(n % 7))),
        1 => (0..=7_u32, 1..=5_u32).prop_map(|(n, k)| (format!("{n}#{k}"), Day::Nth(n % 7, k))),
    ]
}

/// Any pattern: half of them appointments, half of them with seconds.
fn pattern() -> impl Strategy<Value = Pattern> {
    let month = prop_oneof![3 => Just(None), 1 => values(1, 12, 12).prop_map(Some)];
    let time = |rhythm: bool| {
        if rhythm {
            (values(0, 59, 59).boxed(), values(0, 59, 59).boxed(), values(0, 23, 23).boxed())
        } else {
            (fixed(0, 59).boxed(), fixed(0, 59).boxed(), fixed(0, 23).boxed())
        }
    };
    (any::<bool>().prop_flat_map(time), any::<bool>(), month_day(), month, week_day()).prop_map(
        |((second, minute, hour), six, (day_text, month_day), month, (week_text, week_day))| {
            let zero = Values { text: "0".into(), set: BTreeSet::from([0]) };
            let second = if six { second } else { zero };
            let month = month.unwrap_or_else(|| Values { text: "*".into(), set: (1..=12).collect() });
            let lead = if six { format!("{} ", second.text) } else { String::new() };
            let days = format!("{day_text} {} {week_text}", month.text);
            Pattern {
                text: format!("{lead}{} {} {days}", minute.text, hour.text),
                days,
                rhythm: [&second, &minute, &hour].iter().any(|field| field.text.contains(['*', '-', '/'])),
                seconds: second.set,
                minutes: minute.set,
                hours: hour.set,
                month_day,
                months: month.set,
                week_day,
            }
        },
    )
}

fn length(date: NaiveDate) -> u32 {
    (28..=31).rev().find(|day| date.with_day(*day).is_some()).expect("a month has days")
}

fn nearest_weekday(date: NaiveDate, target: u32) -> Option<u32> {
    let target = date.with_day(target)?;
    // The nearest Monday to Friday of the same month; of two equally near ones there are none.
    [0, -1, 1, -2, 2]
        .iter()
        .map(|days| target + Duration::days(*days))
        .find(|day| day.month() == target.month() && day.weekday().num_days_from_monday() < 5)
        .map(|day| day.day())
}

fn day_matches(day: &Day, date: NaiveDate) -> bool {
    let (number, weekday, last) = (date.day(), date.weekday().num_days_from_sunday(), length(date));
    match day {
        Day::Of(values) => values.set.contains(&number),
        Day::LastOfMonth(n) => number + n == last,
        Day::WeekdayNear(n) => nearest_weekday(date, *n) == Some(number),
        Day::WeekdayNearLast(n) => *n < last && nearest_weekday(date, last - n) == Some(number),
        Day::LastInMonth(day) => weekday == *day && number + 7 > last,
        Day::Nth(day, k) => weekday == *day && number.div_ceil(7) == *k,
    }
}

impl Pattern {
    fn date_matches(&self, date: NaiveDate) -> bool {
        let week = match &self.week_day {
            Day::Of(values) => values.set.contains(&date.weekday().num_days_from_sunday()),
            other => day_matches(other, date),
        };
        self.months.contains(&date.month()) && week && day_matches(&self.month_day, date)
    }
}

// ---- days around a change of the clock ------------------------------------------------------------------------------

/// One minute of UTC.
struct Minute {
    at: DateTime<Utc>,
    shows: NaiveDateTime,
    first_pass: bool,
    /// The local minutes that the clock jumped over to get here.
    skipped: Vec<NaiveDateTime>,
}

struct Window {
    zone: Tz,
    change: DateTime<Utc>,
    minutes: Vec<Minute>,
}

/// Six days, minute by minute, with the change in their middle.
fn window(zone: Tz, change: DateTime<Utc>) -> Window {
    let mut seen = HashSet::new();
    let mut minutes: Vec<Minute> = Vec::with_capacity(6 * 1440);
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
        minutes.push(Minute { at, shows, first_pass: seen.insert(shows), skipped });
    }
    Window { zone, change, minutes }
}

impl Window {
    /// The first `count` fires at or after the `start`-th minute plus `seconds`; there itself a fire that only stands in
    /// for skipped minutes counts when `stand_in` says so.
    fn fires(&self, pattern: &Pattern, start: usize, seconds: u32, count: usize, stand_in: bool) -> Vec<DateTime<Utc>> {
        let from = self.minutes[start].at + Duration::seconds(i64::from(seconds));
        let table = |set: &BTreeSet<u32>| (0..60).map(|n| set.contains(&n)).collect::<Vec<bool>>();
        let (minutes, hours) = (table(&pattern.minutes), table(&pattern.hours));
        let mut dates = BTreeMap::new();
        let mut matches = |shown: NaiveDateTime| {
            minutes[shown.minute() as usize]
                && hours[shown.hour() as usize]
                && *dates.entry(shown.date()).or_insert_with(|| pattern.date_matches(shown.date()))
        };
        let mut fires = Vec::new();
        for minute in &self.minutes[start..] {
            let mut here = BTreeSet::new();
            if (stand_in || minute.at > from) && minute.skipped.iter().any(|shown| matches(*shown)) {
                here.insert(minute.at);
            }
            if (pattern.rhythm || minute.first_pass) && matches(minute.shows) {
                here.extend(pattern.seconds.iter().map(|second| minute.at + Duration::seconds(i64::from(*second))));
            }
            fires.extend(here.into_iter().filter(|at| *at >= from));
            if fires.len() >= count {
                break;
            }
        }
        fires.truncate(count);
        fires
    }
}

/// The changes of a zone's clock between two years.
fn changes(zone: Tz, years: std::ops::Range<i32>) -> Vec<DateTime<Utc>> {
    let year = |year| NaiveDate::from_ymd_opt(year, 1, 1).expect("date").and_time(NaiveTime::MIN).and_utc();
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

/// Every change from 2024 to 2030; for zones that have none then, their last four before; and three lost days.
fn all_changes() -> Vec<(Tz, DateTime<Utc>)> {
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

// ---- the properties -------------------------------------------------------------------------------------------------

#[test]
fn no_match_is_skipped_and_none_invented_around_any_change() {
    let mut count = 0;
    for (zone, change) in all_changes() {
        let window = window(zone, change);
        let start = prop_oneof![3 => 3 * 1440 - 200..3 * 1440 + 200_usize, 2 => 0..5 * 1440_usize];
        let case = (pattern(), start, select(vec![0, 1, 30, 59]), any::<bool>());
        runner(20)
            .run(&case, |(pattern, start, second, strictly)| {
                let Ok(cron) = Cron::parse(&pattern.text) else {
                    // Refused only when it can never fire: then it does not fire here either.
                    prop_assert!(window.fires(&pattern, 0, 0, 1, true).is_empty(), "{} was refused", pattern.text);
                    return Ok(());
                };
                prop_assert_eq!(cron.is_interval(), pattern.rhythm);
                let expected = window.fires(&pattern, start, second, 8, strictly);
                let mut at = window.minutes[start].at + Duration::seconds(i64::from(second));
                if strictly {
                    at -= Duration::milliseconds(1);
                }
                let mut found = Vec::new();
                for n in 0..expected.len() {
                    let next = if strictly || n > 0 {
                        cron.next_after(window.zone, at)
                    } else {
                        cron.next_from(window.zone, at)
                    };
                    at = next.expect("fires");
                    found.push(at);
                }
                prop_assert_eq!(&found, &expected, "{} in {} around {}", pattern.text, window.zone, window.change);
                if expected.len() < 8 {
                    // The walk ended with the window: so must the answers.
                    let end = window.minutes[window.minutes.len() - 1].at + Duration::minutes(1);
                    let next = if found.is_empty() && !strictly {
                        cron.next_from(window.zone, at)
                    } else {
                        cron.next_after(window.zone, at)
                    };
                    prop_assert!(next.is_none_or(|next| next >= end), "{} in {}: {next:?}", pattern.text, window.zone);
                }
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{error}"));
        count += 1;
    }
    assert!(count > 400, "only {count} changes of the clock were found");
}

#[test]
fn every_date_that_matches_is_found_and_no_other() {
    let from = NaiveDate::from_ymd_opt(1890, 1, 1).expect("date");
    runner(8_000)
        .run(&(pattern(), 0..110_000_i64), |(pattern, days)| {
            let Ok(cron) = Cron::parse(&format!("0 0 {}", pattern.days)) else { return Ok(()) };
            let start = from + Duration::days(days);
            let expected: Vec<NaiveDate> =
                start.iter_days().take(500).filter(|date| pattern.date_matches(*date)).take(3).collect();
            let mut at = start.and_time(NaiveTime::MIN).and_utc() - Duration::seconds(1);
            for date in &expected {
                at = cron.next_after(Tz::UTC, at).expect("fires");
                prop_assert_eq!(at, date.and_time(NaiveTime::MIN).and_utc(), "{} from {}", pattern.days, start);
            }
            if expected.len() < 3 {
                let next = cron.next_after(Tz::UTC, at);
                prop_assert!(next.is_none_or(|next| next.date_naive() >= start + Duration::days(500)));
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn fires_increase_strictly_and_the_next_is_the_same_until_it_comes() {
    let seconds = prop_oneof![
        6 => 1_577_836_800..1_924_992_000_i64,
        2 => -2_208_988_800..4_102_444_800_i64,
        1 => -62_135_596_800..253_402_300_799_i64,
    ];
    let case = (pattern(), select(ZONES.to_vec()), seconds, 0..1_000_000_000_u32, 0.0..1.0_f64);
    runner(22_000)
        .run(&case, |(pattern, name, seconds, nanos, part)| {
            let Ok(cron) = Cron::parse(&pattern.text) else { return Ok(()) };
            let zone = zone(name);
            let after = DateTime::from_timestamp(seconds, nanos).expect("instant");
            let Some(next) = cron.next_after(zone, after) else {
                prop_assert!(after.year() > 9900, "{} ends after {after}", pattern.text);
                return Ok(());
            };
            prop_assert!(next > after);
            prop_assert_eq!(next.timestamp_subsec_nanos(), 0);
            let between = after + Duration::milliseconds(((next - after).num_milliseconds() as f64 * part) as i64);
            if between < next {
                let again = cron.next_after(zone, between);
                prop_assert_eq!(again, Some(next), "{} in {} from {}", pattern.text, name, between);
            }
            // A fire that stands in for a time in the gap does not count where it stands.
            let jumped = offset(zone, next) > offset(zone, next - Duration::seconds(1));
            prop_assert!(jumped || cron.next_from(zone, next) == Some(next));
            prop_assert_eq!(cron.next_from(zone, next - Duration::nanoseconds(1)), Some(next));
            prop_assert!(cron.next_after(zone, next).is_none_or(|following| following > next));
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_fixed_daily_job_runs_exactly_once_for_each_local_date() {
    for (zone, change) in all_changes() {
        runner(8)
            .run(&(0..24_u32, 0..60_u32), |(hour, minute)| {
                let cron = Cron::parse(&format!("{minute} {hour} * * *")).expect("valid");
                let due = NaiveTime::from_hms_opt(hour, minute, 0).expect("time");
                let mut at = change - Duration::days(3);
                let mut served: Vec<NaiveDate> = Vec::new();
                while at < change + Duration::days(2) {
                    at = cron.next_after(zone, at).expect("fires");
                    let shows = at.with_timezone(&zone).naive_local();
                    // A run at another time than the one asked for stands in for a time in the gap before it, which may
                    // have been on the day before, or on the one that never was.
                    let date = if shows.time() >= due { shows.date() } else { shows.date() - Duration::days(1) };
                    served.push(date);
                }
                let lost = chrono::Days::new(u64::from(served.len() == 5));
                let mut expected = served[0];
                for date in &served {
                    prop_assert!(
                        *date == expected || *date == expected + lost,
                        "{hour}:{minute} in {}: {served:?}",
                        zone
                    );
                    expected = *date + Duration::days(1);
                }
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn an_hourly_job_runs_as_many_times_as_the_day_has_hours() {
    let cron = Cron::parse("0 * * * *").expect("valid");
    let mut seen = BTreeSet::new();
    for (zone, change) in all_changes() {
        let before = offset(zone, change - Duration::seconds(1));
        let shift = offset(zone, change) - before;
        let shown = change.naive_utc() + Duration::seconds(i64::from(before));
        if shift % 3600 != 0 || shown.minute() != 0 || shift.abs() > 7200 {
            continue;
        }
        let mut at = change - Duration::days(3);
        let mut runs: BTreeMap<NaiveDate, i32> = BTreeMap::new();
        while at < change + Duration::days(3) {
            at = cron.next_after(zone, at).expect("fires");
            *runs.entry(at.with_timezone(&zone).date_naive()).or_default() += 1;
        }
        // The first and the last date are cut off by the window.
        let whole: Vec<i32> = runs.values().copied().skip(1).take(runs.len() - 2).collect();
        let odd: Vec<i32> = whole.iter().copied().filter(|runs| *runs != 24).collect();
        assert_eq!(odd, [24 - shift / 3600], "{} at {}: {runs:?}", zone, change);
        seen.extend(odd);
    }
    assert!(seen.is_superset(&BTreeSet::from([23, 25])), "{seen:?}");
}

#[test]
fn reading_never_panics_whatever_is_written() {
    let piece = select(vec![
        "*",
        "?",
        "L",
        "W",
        "#",
        "-",
        ",",
        "/",
        " ",
        "\t",
        "0",
        "7",
        "9",
        "31",
        "60",
        "MON",
        "jan",
        "@daily",
        "LW",
        "5L",
        "2#3",
        "é",
        "–",
        "\u{0}",
        "\n",
        "٣",
        "99999999999999999999",
        "H",
        "🕐",
    ]);
    let soup = prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat());
    let mutated =
        (pattern(), any::<prop::sample::Index>(), any::<char>(), 0..3_u8).prop_map(|(pattern, at, odd, how)| {
            let mut text: Vec<char> = pattern.text.chars().collect();
            let at = at.index(text.len());
            match how {
                0 => text[at] = odd,
                1 => text.insert(at, odd),
                _ => drop(text.remove(at)),
            }
            text.into_iter().collect::<String>()
        });
    let anything = prop_oneof![soup, mutated, any::<String>()];
    let extremes = vec![DateTime::<Utc>::MIN_UTC, DateTime::<Utc>::MAX_UTC, DateTime::UNIX_EPOCH];
    runner(20_000)
        .run(&(anything, select(ZONES.to_vec()), select(extremes)), |(text, name, after)| {
            match Cron::parse(&text) {
                Ok(cron) => {
                    let _ = cron.next_after(zone(name), after);
                    let _ = cron.next_from(zone(name), after);
                    prop_assert!(cron.words().ends_with('.'), "{text}: {}", cron.words());
                }
                Err(refusal) => prop_assert!(!refusal.0.is_empty() && refusal.0.chars().count() < 300, "{}", refusal.0),
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

/// Run by hand: `cargo test -p protocol --test schedule_properties -- --ignored --nocapture`. A clock has no place in
/// the ordinary run; the number of months a search may look at is asserted beside the matcher.
#[test]
#[ignore = "measures time"]
fn the_worst_expressions_take_far_less_than_ten_milliseconds() {
    let long =
        format!("{} * * * *", (0..60).map(|n| n.to_string()).collect::<Vec<_>>().join(",") + &",0-59/3".repeat(11));
    let everything =
        ["* * * * *", "0 9 * * MON-FRI", "0 0 29 2 MON", "0 0 31 12 1#5", "0 0 30 2 *", "59 59 23 L-30 2 *", &long];
    let instants = [
        "0001-01-01T00:00:00Z",
        "1583-10-15T00:00:00Z",
        "1899-12-31T23:59:59Z",
        "2011-12-30T09:59:59Z",
        "2026-10-25T00:30:00Z",
        "9999-12-31T23:59:58Z",
    ];
    for expression in everything {
        let mut worst = std::time::Duration::ZERO;
        let (mut sum, mut count) = (std::time::Duration::ZERO, 0);
        for name in ZONES {
            for instant in instants {
                let after = instant.parse().expect("instant");
                let zone = zone(name);
                let began = std::time::Instant::now();
                let _ = Cron::parse(expression).map(|cron| cron.next_after(zone, after));
                let took = began.elapsed();
                worst = worst.max(took);
                (sum, count) = (sum + took, count + 1);
            }
        }
        println!("{expression:.40}: {:?} on average, {worst:?} at worst", sum / count);
        assert!(worst < std::time::Duration::from_millis(10), "{expression}: {worst:?}");
    }
}
