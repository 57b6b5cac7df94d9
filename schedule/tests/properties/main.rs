//! Properties of every expression in every zone.
//!
//! The expected due times are computed by walking minute by minute through the days around a clock change, by the rules
//! of `docs/SCHEDULES.md`: a minute that does not exist is due at the first one after it, and a minute that occurs
//! twice is due in its first pass, unless the pattern is an interval. Sets of values are enumerated. None of this
//! shares code with the crate.

mod clock;
mod pattern;

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Datelike, Duration, NaiveDate, NaiveTime, Timelike, Utc};
use chrono_tz::Tz;
use milvaion_schedule::cron::CronExpression;
use proptest::{
    prelude::*,
    sample::select,
    test_runner::{Config, TestRunner},
};

use clock::{ZONES, all_changes, offset, window, zone};
use pattern::pattern;

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() })
}

#[test]
fn due_times_around_clock_changes_are_exact() {
    let mut count = 0;
    for (zone, change) in all_changes() {
        let window = window(zone, change);
        let start = prop_oneof![3 => 3 * 1440 - 200..3 * 1440 + 200_usize, 2 => 0..5 * 1440_usize];
        let case = (pattern(), start, select(vec![0, 1, 30, 59]), any::<bool>());
        runner(20)
            .run(&case, |(pattern, start, second, strictly)| {
                let Ok(cron) = CronExpression::parse(&pattern.text) else {
                    // An expression is refused only if it never matches, so the walk must find no due time either.
                    prop_assert!(window.due_times(&pattern, 0, 0, 1, true).is_empty(), "{} was refused", pattern.text);
                    return Ok(());
                };
                prop_assert_eq!(cron.is_interval(), pattern.interval);
                let expected = window.due_times(&pattern, start, second, 8, strictly);
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
                    at = next.expect("a next due time");
                    found.push(at);
                }
                prop_assert_eq!(&found, &expected, "{} in {} around {}", pattern.text, window.zone, window.change);
                if expected.len() < 8 {
                    // The walk ended with the window, so the next due time is not inside it.
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
fn matching_dates_are_exact() {
    let from = NaiveDate::from_ymd_opt(1890, 1, 1).expect("a valid date");
    runner(8_000)
        .run(&(pattern(), 0..110_000_i64), |(pattern, days)| {
            let Ok(cron) = CronExpression::parse(&format!("0 0 {}", pattern.days)) else { return Ok(()) };
            let start = from + Duration::days(days);
            let expected: Vec<NaiveDate> =
                start.iter_days().take(500).filter(|date| pattern.date_matches(*date)).take(3).collect();
            let mut at = start.and_time(NaiveTime::MIN).and_utc() - Duration::seconds(1);
            for date in &expected {
                at = cron.next_after(Tz::UTC, at).expect("a next due time");
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
fn due_times_increase_and_the_next_is_stable() {
    let seconds = prop_oneof![
        6 => 1_577_836_800..1_924_992_000_i64,
        2 => -2_208_988_800..4_102_444_800_i64,
        1 => -62_135_596_800..253_402_300_799_i64,
    ];
    let case = (pattern(), select(ZONES.to_vec()), seconds, 0..1_000_000_000_u32, 0.0..1.0_f64);
    runner(22_000)
        .run(&case, |(pattern, name, seconds, nanos, part)| {
            let Ok(cron) = CronExpression::parse(&pattern.text) else { return Ok(()) };
            let zone = zone(name);
            let after = DateTime::from_timestamp(seconds, nanos).expect("a valid instant");
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
            // At a due time that replaces times in a gap, the local time does not match.
            let jumped = offset(zone, next) > offset(zone, next - Duration::seconds(1));
            prop_assert!(jumped || cron.next_from(zone, next) == Some(next));
            prop_assert_eq!(cron.next_from(zone, next - Duration::nanoseconds(1)), Some(next));
            prop_assert!(cron.next_after(zone, next).is_none_or(|following| following > next));
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn fixed_daily_job_is_due_once_per_local_date() {
    for (zone, change) in all_changes() {
        runner(8)
            .run(&(0..24_u32, 0..60_u32), |(hour, minute)| {
                let cron = CronExpression::parse(&format!("{minute} {hour} * * *")).expect("a valid expression");
                let due = NaiveTime::from_hms_opt(hour, minute, 0).expect("a valid time");
                let mut at = change - Duration::days(3);
                let mut dates: Vec<NaiveDate> = Vec::new();
                while at < change + Duration::days(2) {
                    at = cron.next_after(zone, at).expect("a next due time");
                    let shows = at.with_timezone(&zone).naive_local();
                    // A due time at another local time replaces a time in the gap before it, which may be on the day
                    // before or on a skipped day.
                    let date = if shows.time() >= due { shows.date() } else { shows.date() - Duration::days(1) };
                    dates.push(date);
                }
                let skipped = chrono::Days::new(u64::from(dates.len() == 5));
                let mut expected = dates[0];
                for date in &dates {
                    prop_assert!(
                        *date == expected || *date == expected + skipped,
                        "{hour}:{minute} in {}: {dates:?}",
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
fn hourly_job_is_due_once_per_hour_of_the_day() {
    let cron = CronExpression::parse("0 * * * *").expect("a valid expression");
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
            at = cron.next_after(zone, at).expect("a next due time");
            *runs.entry(at.with_timezone(&zone).date_naive()).or_default() += 1;
        }
        // The window cuts off the first and the last date.
        let complete: Vec<i32> = runs.values().copied().skip(1).take(runs.len() - 2).collect();
        let odd: Vec<i32> = complete.iter().copied().filter(|runs| *runs != 24).collect();
        assert_eq!(odd, [24 - shift / 3600], "{} at {}: {runs:?}", zone, change);
        seen.extend(odd);
    }
    assert!(seen.is_superset(&BTreeSet::from([23, 25])), "{seen:?}");
}

#[test]
fn parsing_never_panics() {
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
            match CronExpression::parse(&text) {
                Ok(cron) => {
                    let _ = cron.next_after(zone(name), after);
                    let _ = cron.next_from(zone(name), after);
                    prop_assert!(cron.describe().ends_with('.'), "{text}: {}", cron.describe());
                }
                Err(error) => prop_assert!(!error.0.is_empty() && error.0.chars().count() < 300, "{}", error.0),
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}
