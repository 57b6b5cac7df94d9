//! Examples of the dialect, and of days with 23 or 25 hours.

use super::*;

fn refused(expression: &str) -> String {
    CronExpression::parse(expression).expect_err(expression).0
}

fn next(expression: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
    let cron = CronExpression::parse(expression).expect(expression);
    let zone: Tz = zone.parse().expect("a valid zone");
    let mut at: DateTime<Utc> = after.parse().expect("a valid instant");
    let mut hits = Vec::new();
    for _ in 0..count {
        at = cron.next_after(zone, at).expect("a next due time");
        hits.push(at.with_timezone(&zone).to_rfc3339());
    }
    hits
}

#[test]
fn error_names_the_field_and_the_remedy() {
    assert_eq!(refused("0 0 * * 8"), "day-of-week takes 0–7 or SUN–SAT: got 8");
    assert_eq!(refused("60 * * * *"), "minute takes 0–59: got 60");
    assert_eq!(refused("* * MON * *"), "day-of-month takes 1–31: got MON");
    assert!(refused("*/60 * * * *").contains("the step of minute takes 1–59"));
    assert!(refused("0 0 ,1 * *").contains("empty item"));
    assert!(refused("* * *").contains(
        "5 fields (minute hour day-of-month month day-of-week) or 6 (second first): got 3; month, day-of-week are missing"
    ));
    assert!(refused("0 0 30 2 *").contains("never matches"));
    assert_eq!(refused("* * * * 5#6"), "day-of-week takes 1–5 after #: got 6");
    assert_eq!(
        refused("* * * * L"),
        "day-of-week takes L only after a day, such as 5L or FRIL for the last Friday: got L"
    );
    assert_eq!(refused("* * L-31 * *"), "day-of-month takes L-0 to L-30, days before the last: got L-31");
    assert_eq!(refused("* * 32W * *"), "day-of-month takes 1W–31W, the weekday nearest to that day: got 32W");
    assert!(refused("0 0 1,15W * *").contains("15W alone, not in a list, range or step: got 1,15W"));
    assert!(refused("*,5 * * * *").contains("minute has a list with *: write * alone"));
    assert_eq!(refused("*/0 * * * *"), "the step of minute takes 1–59: got 0");
    assert_eq!(refused("0 0 1/32 * *"), "the step of day-of-month takes 1–31: got 32");
    CronExpression::parse("? ? ? ? ?").expect("? is equivalent to *");
    assert_eq!(refused("0 0 * jul-32 *"), "month takes 1–12 or JAN–DEC: got 32");
    assert_eq!(refused("007 * * * *"), "minute takes 0–59: got 007");
    assert!(refused("@often").contains("not a macro: the macros are @every_second"));
    assert!(refused(&"1,".repeat(200)).contains("256"));
    assert!(refused("0 0 * *").contains("got 4; day-of-week is missing"));
    assert!(refused("0 0 0 1 1 * 2027").contains("got 7; there is no year field"));
    assert!(refused("0 9\n* * *").contains("line break"));
    assert!(refused("0 9\u{a0}* * *").contains("contains \u{a0} (\\u{a0})"));
    assert!(refused("0 9 * * 1–5").contains("plain spaces, hyphens and asterisks"));
    assert!(refused("CRON_TZ=Europe/Warsaw 0 9 * * *").contains("a field of its own"));
    assert!(refused("@every 5m").contains("the kind every"));
    assert!(refused("H 9 * * *").contains("minute takes 0–59: got H; jobs are spread by their jitter"));
    assert!(refused(" \t ").contains("empty"));
}

#[test]
fn common_expressions_are_accepted() {
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
        CronExpression::parse(expression).expect(expression);
    }
}

#[test]
fn both_restricted_days_must_match_with_a_warning() {
    assert_eq!(
        next("0 0 13 * FRI", "UTC", "2026-01-01T00:00:00Z", 2),
        ["2026-02-13T00:00:00+00:00", "2026-03-13T00:00:00+00:00"]
    );
    let warnings = |expression: &str| CronExpression::parse(expression).expect(expression).warnings().len();
    assert_eq!(warnings("0 0 13 * FRI"), 1);
    assert_eq!(warnings("0 0 */2 * FRI"), 0, "crontab requires both here, too");
}

#[test]
fn step_that_does_not_divide_its_range_has_a_warning() {
    let warning = |expression: &str| CronExpression::parse(expression).expect(expression).warnings().pop();
    let uneven = warning("*/45 * * * *").expect("a warning");
    assert!(
        uneven.starts_with("The step 45 of minute begins again at 0, so the last interval is 15 minutes"),
        "{uneven}"
    );
    assert!(warning("0 */5 * * *").is_some_and(|warning| warning.contains("4 hours")));
    for expression in ["*/15 * * * *", "0 */6 * * *", "5/7 * * * *", "* * * * *"] {
        assert_eq!(warning(expression), None, "{expression}");
    }
}

#[test]
fn gap_moves_a_match_to_its_end_once() {
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
fn fixed_pattern_matches_once_in_a_repeated_hour() {
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
fn interval_pattern_continues_through_a_repeated_hour() {
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
fn half_hour_shift_is_supported() {
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
fn due_times_strictly_increase_around_clock_changes() {
    for zone in [
        "Europe/Warsaw",
        "America/St_Johns",
        "Australia/Lord_Howe",
        "Africa/Casablanca",
        "Pacific/Apia",
        "Antarctica/Troll",
    ] {
        for expression in ["*/20 * * * *", "30 2 * * *", "0 */2 * * *", "15,45 0-3 * * *"] {
            let cron = CronExpression::parse(expression).expect(expression);
            let zone: Tz = zone.parse().expect("a valid zone");
            let mut at: DateTime<Utc> = "2026-01-01T00:00:00Z".parse().expect("a valid instant");
            for _ in 0..2_000 {
                let following = cron.next_after(zone, at).expect("a next due time");
                assert!(following > at, "{expression} in {zone} after {at}");
                at = following;
            }
        }
    }
}

#[test]
fn six_fields_begin_with_the_second() {
    assert_eq!(
        next("*/20 * * * * *", "UTC", "2026-01-01T00:00:01Z", 2),
        ["2026-01-01T00:00:20+00:00", "2026-01-01T00:00:40+00:00"]
    );
}

/// Checks rows of expression, zone, start, and the due times after it.
fn assert_rows(rows: &[(&str, &str, &str, &[&str])]) {
    for (expression, zone, after, expected) in rows {
        assert_eq!(&next(expression, zone, after, expected.len()), expected, "{expression} in {zone}");
    }
}

fn dates(expression: &str, after: &str, count: usize) -> Vec<String> {
    next(expression, "UTC", &format!("{after}T00:00:00Z"), count).iter().map(|at| at[..10].to_owned()).collect()
}

#[test]
fn month_ends_and_leap_years() {
    for (expression, after, expected) in [
        ("0 1 31 * *", "2026-01-01", vec!["2026-01-31", "2026-03-31", "2026-05-31"]),
        ("0 1 L * *", "2027-12-31", vec!["2027-12-31", "2028-01-31", "2028-02-29", "2028-03-31"]),
        ("0 1 L-1 2 *", "2026-01-01", vec!["2026-02-27", "2027-02-27", "2028-02-28"]),
        ("0 1 L-30 * *", "2026-01-01", vec!["2026-01-01", "2026-03-01", "2026-05-01"]),
        ("0 1 29 2 *", "2096-03-01", vec!["2104-02-29", "2108-02-29"]),
        ("0 1 29 2 MON", "2090-01-01", vec!["2112-02-29", "2140-02-29"]),
        ("0 1 LW 2 *", "2026-01-01", vec!["2026-02-27", "2027-02-26", "2028-02-29"]),
        ("0 1 1W * *", "2026-07-31", vec!["2026-08-03", "2026-09-01"]),
        ("0 1 31W 5 *", "2026-01-01", vec!["2026-05-29", "2027-05-31"]),
        ("0 1 30W 2-3 *", "2026-01-01", vec!["2026-03-30", "2027-03-30"]),
        ("0 1 L-3W * *", "2017-01-01", vec!["2017-01-27", "2017-02-24"]),
        ("0 1 * * 5#5", "2026-01-01", vec!["2026-01-30", "2026-05-29", "2026-07-31"]),
        ("0 1 * * 7L", "2026-01-01", vec!["2026-01-25", "2026-02-22"]),
        ("0 1 * * 0#1", "2026-02-02", vec!["2026-03-01", "2026-04-05"]),
        ("0 1 * 11-2/3 SUN", "2026-10-30", vec!["2026-11-01", "2026-11-08"]),
    ] {
        assert_eq!(dates(expression, after, expected.len()), expected, "{expression}");
    }
}

#[test]
fn centuries_years_and_iso_weeks() {
    for (expression, after, expected) in [
        // 2100 is not a leap year, 2000 was one.
        ("0 1 28-29 2 *", "2099-03-01", vec!["2100-02-28", "2101-02-28"]),
        ("0 1 28-29 2 *", "1999-03-01", vec!["2000-02-28", "2000-02-29"]),
        ("0 1 1 1 *", "2026-12-31", vec!["2027-01-01", "2028-01-01"]),
        // 2020 had 53 ISO weeks; Mondays continue across the turn of the year.
        ("0 1 * * MON", "2020-12-22", vec!["2020-12-28", "2021-01-04"]),
        ("0 1 * * FRI-MON", "2026-12-31", vec!["2027-01-01", "2027-01-02", "2027-01-03", "2027-01-04", "2027-01-08"]),
        ("0 1 * * 5-7", "2026-12-31", vec!["2027-01-01", "2027-01-02", "2027-01-03", "2027-01-08"]),
        ("0 1 * * SUN-SAT", "2026-12-31", vec!["2026-12-31", "2027-01-01"]),
        ("0 1 * * */2", "2026-12-31", vec!["2026-12-31", "2027-01-02", "2027-01-03"]),
        ("0 1 * * 1/2", "2026-12-31", vec!["2027-01-01", "2027-01-03", "2027-01-04"]),
    ] {
        assert_eq!(dates(expression, after, expected.len()), expected, "{expression}");
    }
}

#[test]
fn unusual_zones_need_no_special_cases() {
    assert_rows(&[
        // A gap at midnight: the day begins at 01:00.
        (
            "30 0 * * *",
            "Africa/Cairo",
            "2026-04-23T12:00:00Z",
            &["2026-04-24T01:00:00+03:00", "2026-04-25T00:30:00+03:00"],
        ),
        // A fold at midnight: 23:00 to 24:00 occurs twice on the same date.
        (
            "30 23 * * *",
            "America/Santiago",
            "2026-04-04T12:00:00Z",
            &["2026-04-04T23:30:00-03:00", "2026-04-05T23:30:00-04:00"],
        ),
        (
            "0 0 * * *",
            "America/Havana",
            "2026-10-31T12:00:00Z",
            &["2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00"],
        ),
        // A skipped date: its match moves to the first instant after it.
        (
            "0 9 * * *",
            "Pacific/Apia",
            "2011-12-29T12:00:00Z",
            &["2011-12-29T09:00:00-10:00", "2011-12-31T00:00:00+14:00", "2011-12-31T09:00:00+14:00"],
        ),
        (
            "0 0 * * *",
            "Pacific/Apia",
            "2011-12-29T12:00:00Z",
            &["2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00"],
        ),
        // A shift of two hours.
        (
            "*/30 * * * *",
            "Antarctica/Troll",
            "2026-03-29T00:45:00Z",
            &["2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00"],
        ),
        (
            "30 1,2 * * *",
            "Antarctica/Troll",
            "2026-10-24T12:00:00Z",
            &["2026-10-25T01:30:00+02:00", "2026-10-25T02:30:00+02:00", "2026-10-26T01:30:00+00:00"],
        ),
        // Ramadan: clocks go back in February and forward in March.
        (
            "30 2 * * *",
            "Africa/Casablanca",
            "2026-02-14T12:00:00Z",
            &["2026-02-15T02:30:00+01:00", "2026-02-16T02:30:00+00:00"],
        ),
        (
            "30 2 * * *",
            "Africa/Casablanca",
            "2026-03-21T12:00:00Z",
            &["2026-03-22T03:00:00+01:00", "2026-03-23T02:30:00+01:00"],
        ),
        // A gap at the end of a date: the match at 23:30 on Saturday moves to the first instant of Sunday.
        (
            "30 23 * * *",
            "America/Nuuk",
            "2026-03-27T12:00:00Z",
            &["2026-03-27T23:30:00-02:00", "2026-03-29T00:00:00-01:00", "2026-03-29T23:30:00-01:00"],
        ),
        // An interval pattern without a match left in the first pass, searched from before the fold.
        (
            "45 */1 * * *",
            "Europe/Warsaw",
            "2026-10-25T00:45:00Z",
            &["2026-10-25T02:45:00+01:00", "2026-10-25T03:45:00+01:00"],
        ),
        (
            "0 2-2 * * *",
            "Europe/Warsaw",
            "2026-10-25T00:30:00Z",
            &["2026-10-25T02:00:00+01:00", "2026-10-26T02:00:00+01:00"],
        ),
    ]);
}

#[test]
fn next_from_includes_a_matching_instant() {
    let at = |text: &str| text.parse::<DateTime<Utc>>().expect("a valid instant");
    let warsaw: Tz = "Europe/Warsaw".parse().expect("a valid zone");
    let daily = CronExpression::parse("30 2 * * *").expect("a valid expression");
    assert_eq!(daily.next_from(warsaw, at("2026-10-25T00:30:00Z")), Some(at("2026-10-25T00:30:00Z")));
    // A fixed pattern does not match in the second pass, and the end of a gap shows another local time.
    assert_eq!(daily.next_from(warsaw, at("2026-10-25T01:30:00Z")), Some(at("2026-10-26T01:30:00Z")));
    assert_eq!(daily.next_from(warsaw, at("2027-03-28T01:00:00Z")), Some(at("2027-03-29T00:30:00Z")));
    assert_eq!(daily.next_from(warsaw, at("2027-03-28T00:59:59.5Z")), Some(at("2027-03-28T01:00:00Z")));
}

#[test]
fn calendar_bounds_do_not_panic() {
    let every = CronExpression::parse("* * * * * *").expect("a valid expression");
    for zone in ["UTC", "Pacific/Kiritimati", "America/Adak", "Asia/Manila", "Europe/Amsterdam"] {
        let zone: Tz = zone.parse().expect("a valid zone");
        assert_eq!(every.next_after(zone, DateTime::<Utc>::MAX_UTC), None);
        let first = every.next_after(zone, DateTime::<Utc>::MIN_UTC).expect("a next due time");
        assert!(first.timestamp() >= matcher::MIN_LOCAL_TIME && first.timestamp() < matcher::MIN_LOCAL_TIME + 86_400);
    }
    let last = "9999-12-31T23:59:59Z".parse().expect("a valid instant");
    assert_eq!(every.next_after(Tz::UTC, last), None);
    assert_eq!(every.next_from(Tz::UTC, last), Some(last));
}

#[test]
fn description_matches_the_bits() {
    for (expression, words) in [
        ("* * * * *", "Every minute."),
        ("* * * * * *", "Every second."),
        ("*/15 * * * *", "Every 15 minutes."),
        ("*/10 * * * * *", "Every 10 seconds."),
        ("30 * * * * *", "At second 30."),
        ("0 9 * * *", "At 09:00."),
        ("30 0 14 * * *", "At 14:00:30."),
        ("*/20 0 14 * * *", "At 14:00, every 20 seconds."),
        ("10-20 0 14 * * *", "At 14:00, at second 10-20."),
        ("* 0 14 * * *", "Every second, minute 0, of hour 14."),
        ("0 * * * *", "At minute 0 past every hour."),
        ("*/10 5-7 * * * *", "Every 10 seconds, minute 5-7 past every hour."),
        ("30 */2 * * * *", "At second 30, every 2 minutes."),
        ("* * 9 * * *", "Every second past hour 9."),
        ("* 9,17 * * *", "Every minute past hour 9 and 17."),
        ("* */2 * * *", "Every minute, of every 2 hours."),
        ("30 * 9 * * *", "At second 30, of hour 9."),
        ("*/15 9-17 * * *", "Every 15 minutes, of hour 9-17."),
        ("0 */12 * * *", "At minute 0, of every 12 hours."),
        // A step that does not divide the hour is not worded as "every"; its minutes are listed.
        ("*/25 * * * *", "At minute 0, 25, and 50 past every hour."),
        ("0 9 * * MON-FRI", "At 09:00, on Monday to Friday."),
        ("30 4 1,15 * *", "At 04:30, on day 1 and 15."),
        ("0 0 L-3 * *", "At 00:00, on the day 3 days before the last day of the month."),
        (
            "0 0 L-2W * 2",
            "At 00:00, on the weekday nearest the day 2 days before the last day of the month if it is also Tuesday.",
        ),
        ("0 0 13 * FRI", "At 00:00, on day 13 if it is also Friday."),
        ("0 0 * 1-3 5L", "At 00:00, on the last Friday of the month, in January, February and March."),
        ("0 0 ? * 5#2", "At 00:00, on the second Friday of the month."),
    ] {
        assert_eq!(CronExpression::parse(expression).expect(expression).describe(), words, "{expression}");
    }
}
