use crate::{calendar::WeeklyWindow, schedule::IntervalAnchor};

use super::*;

fn at(text: &str) -> DateTime<Utc> {
    text.parse().expect("a valid instant")
}

fn cron(expression: &str) -> Schedule {
    Schedule::Cron { expression: expression.into(), zone: "UTC".into() }
}

fn effective<'a>(schedule: &'a Schedule, rules: &'a Rules, calendars: &'a [&'a Calendar]) -> EffectiveSchedule<'a> {
    EffectiveSchedule::new(JobId::default(), schedule, rules, calendars)
}

const MIDNIGHT: &str = "2026-01-01T00:00:00Z";

#[test]
fn fire_once_covers_all_misfires_and_keeps_the_interval() {
    let (schedule, rules) = (Schedule::every(60), Rules::default());
    let decision = effective(&schedule, &rules, &[]).decide(at(MIDNIGHT), at("2026-01-01T00:03:30Z"), None);
    assert_eq!(decision.action, DueAction::Run);
    assert_eq!(decision.note.as_deref(), Some("also covers 3 due times that passed before it ran"));
    assert_eq!(decision.next_fire_at, Some(at("2026-01-01T00:04:00Z")));
}

#[test]
fn due_time_on_time_has_no_note() {
    let (schedule, rules) = (Schedule::every(60), Rules::default());
    let decision = effective(&schedule, &rules, &[]).decide(at(MIDNIGHT), at("2026-01-01T00:00:00.004Z"), None);
    assert_eq!(
        decision,
        DueDecision {
            action: DueAction::Run,
            note: None,
            next_fire_at: Some(at("2026-01-01T00:01:00Z")),
            catch_up: None
        }
    );
}

#[test]
fn skip_policy_skips_misfires_but_not_late_due_times() {
    let schedule = cron("*/5 * * * *");
    let rules = Rules { misfire: MisfirePolicy::Skip, ..Rules::default() };
    let effective = effective(&schedule, &rules, &[]);
    let late = effective.decide(at(MIDNIGHT), at("2026-01-01T00:00:20Z"), None);
    assert_eq!(late.action, DueAction::Run);
    let missed = effective.decide(at(MIDNIGHT), at("2026-01-01T00:12:00Z"), None);
    assert_eq!(missed.action, DueAction::Skip);
    assert!(missed.note.as_deref().is_some_and(|note| note.contains("3 due times")), "{missed:?}");
    assert_eq!(missed.next_fire_at, Some(at("2026-01-01T00:15:00Z")));
}

#[test]
fn misfires_past_the_start_limit_are_skipped_under_each_policy() {
    let (now, first) = ("2026-01-01T00:03:30Z", (at(MIDNIGHT), DueAction::Skip));
    let minute = |minute| at(MIDNIGHT) + Duration::minutes(minute);
    for (misfire, rest) in [
        (MisfirePolicy::FireOnce, vec![(minute(2), DueAction::Run)]),
        (MisfirePolicy::Skip, vec![(minute(2), DueAction::Skip)]),
        (MisfirePolicy::CatchUp, vec![(minute(2), DueAction::Run), (minute(3), DueAction::Run)]),
    ] {
        let rules = Rules { misfire, start_within_seconds: Some(90), ..Rules::default() };
        let schedule = Schedule::every(60);
        let effective = effective(&schedule, &rules, &[]);
        let note = effective.decide(at(MIDNIGHT), at(now), None).note;
        assert_eq!(note.as_deref(), Some("Skipped: no worker began it within 90 seconds of its due time."));
        assert_eq!(decide_all(&effective, MIDNIGHT, now), [vec![first], rest].concat(), "{misfire}");
    }
    let rules = Rules { start_within_seconds: Some(90), ..Rules::default() };
    for (schedule, next) in [
        (Schedule::once(at(MIDNIGHT)), None),
        (Schedule::Every { seconds: 60, from: IntervalAnchor::End }, Some(minute(2))),
    ] {
        let decision = effective(&schedule, &rules, &[]).decide(at(MIDNIGHT), at(now), None);
        assert_eq!((decision.action, decision.next_fire_at), (DueAction::Skip, next));
    }
}

/// Applies decisions until the next due time is in the future. Returns each due time with its action.
fn decide_all(effective: &EffectiveSchedule<'_>, due: &str, now: &str) -> Vec<(DateTime<Utc>, DueAction)> {
    let now = at(now);
    let mut actions = Vec::new();
    let mut next = Some(at(due));
    while let Some(due) = next.filter(|due| *due <= now) {
        let decision = effective.decide(due, now, None);
        actions.push((due, decision.action));
        next = decision.next_fire_at;
        assert!(actions.len() < 100, "the decisions must come to an end");
    }
    actions
}

#[test]
fn edit_ignores_a_due_time_dispatched_by_a_clock_that_was_ahead() {
    let rules = Rules::default();
    let (schedule, noon) = (cron("0 12 * * *"), at("2026-01-01T12:00:00Z"));
    let effective = effective(&schedule, &rules, &[]);
    assert_eq!(effective.first(Some(noon), noon - Duration::hours(1)), Some(noon));
}

#[test]
fn job_that_a_clock_ahead_made_silent_is_due_again_in_its_rhythm() {
    let rules = Rules::default();
    let now = at("2026-01-01T10:17:00Z");
    let (last, due) = (Some(at("2026-01-01T12:55:30Z")), Some(at("2026-01-01T13:00:30Z")));
    let interval = Schedule::every(300);
    let next = effective(&interval, &rules, &[]).after_clock_ahead(last, due, now);
    assert_eq!(next, Some(at("2026-01-01T10:20:30Z")));
    let next = effective(&cron("*/5 * * * *"), &rules, &[]).after_clock_ahead(last, due, now);
    assert_eq!(next, Some(at("2026-01-01T10:20:00Z")));
}

#[test]
fn changed_calendar_keeps_the_rhythm_of_an_interval() {
    let calendar = weekend();
    let calendars = [&calendar];
    let (schedule, rules) = (Schedule::every(600), Rules::default());
    let effective = effective(&schedule, &rules, &calendars);
    let now = at("2026-01-02T10:05:00Z");
    let (last, due) = (at("2026-01-02T10:03:00Z"), at("2026-01-02T10:13:00Z"));
    assert_eq!(effective.after_calendar_change(Some(last), Some(due), now), Some(due));
    assert_eq!(effective.after_calendar_change(None, Some(due), now), Some(due), "before its first run");
    // A blackout that was undone had moved the first due time by five intervals.
    let moved = due + Duration::minutes(50);
    assert_eq!(effective.after_calendar_change(None, Some(moved), now), Some(due));
    // Jitter that exceeds the time to the first due time brings it no interval forward.
    let rules_with_jitter = Rules { jitter_seconds: 3_600, ..Rules::default() };
    let spread = EffectiveSchedule {
        offset: Duration::minutes(55),
        ..self::effective(&schedule, &rules_with_jitter, &calendars)
    };
    let first = now + Duration::minutes(62);
    assert_eq!(spread.after_calendar_change(None, Some(first), now), Some(first));
    // The due time lay after the blackout, which now ends earlier.
    let monday = at("2026-01-05T00:03:00Z");
    let postponed = at("2026-01-07T00:03:00Z");
    let saturday = at("2026-01-03T12:00:00Z");
    assert_eq!(effective.after_calendar_change(Some(last), Some(postponed), saturday), Some(monday));
}

#[test]
fn changed_calendar_keeps_a_due_time_skipped() {
    let (rules, now, skipped) = (Rules::default(), at(MIDNIGHT), at("2026-01-01T09:00:00Z"));
    for (schedule, next) in [
        (cron("0 9 * * *"), skipped + Duration::days(1)),
        (Schedule::every(3_600), skipped + Duration::hours(1)),
        (Schedule::Every { seconds: 60, from: IntervalAnchor::End }, skipped + Duration::minutes(1)),
    ] {
        let effective = effective(&schedule, &rules, &[]);
        assert_eq!(effective.after_calendar_change(Some(skipped), Some(next), now), Some(next));
    }
    // A resume has ended the skip, and the job has no last due time.
    let (daily, hourly) = (cron("0 9 * * *"), Schedule::every(3_600));
    let due = Some(skipped + Duration::minutes(20));
    assert_eq!(effective(&hourly, &rules, &[]).after_calendar_change(None, due, at("2026-01-01T08:30:00Z")), due);
    // A clock that was ahead has dispatched the last due time.
    let due = Some(now + Duration::minutes(20));
    assert_eq!(effective(&daily, &rules, &[]).after_calendar_change(Some(skipped), due, now), Some(skipped));
    assert_eq!(effective(&hourly, &rules, &[]).after_calendar_change(Some(skipped), due, now), due);
}

#[test]
fn edit_does_not_repeat_a_due_time_dispatched_early() {
    let rules = Rules::default();
    let (schedule, noon) = (cron("0 12 * * *"), at("2026-01-01T12:00:00Z"));
    let effective = effective(&schedule, &rules, &[]);
    let now = noon - Duration::milliseconds(10);
    assert_eq!(effective.first(None, now), Some(noon));
    assert_eq!(effective.first(Some(noon), now), Some(noon + Duration::days(1)));
    assert_eq!(effective.first(Some(noon - Duration::days(1)), now), Some(noon));
}

#[test]
fn catch_up_runs_each_misfire_oldest_first() {
    let schedule = cron("*/5 * * * *");
    let rules = Rules { misfire: MisfirePolicy::CatchUp, ..Rules::default() };
    let actions = decide_all(&effective(&schedule, &rules, &[]), MIDNIGHT, "2026-01-01T00:17:00Z");
    let expected: Vec<_> =
        [0, 5, 10, 15].map(|minute| (at(MIDNIGHT) + Duration::minutes(minute), DueAction::Run)).into();
    assert_eq!(actions, expected);
}

#[test]
fn catch_up_keeps_the_newest_within_limit_and_window() {
    let schedule = cron("*/5 * * * *");
    let rules = Rules { misfire: MisfirePolicy::CatchUp, catch_up_limit: 2, ..Rules::default() };
    let actions = decide_all(&effective(&schedule, &rules, &[]), MIDNIGHT, "2026-01-01T00:17:00Z");
    assert_eq!(
        actions,
        [
            (at(MIDNIGHT), DueAction::Skip),
            (at("2026-01-01T00:10:00Z"), DueAction::Run),
            (at("2026-01-01T00:15:00Z"), DueAction::Run)
        ]
    );
    let rules = Rules { misfire: MisfirePolicy::CatchUp, catch_up_window_seconds: 600, ..Rules::default() };
    let actions = decide_all(&effective(&schedule, &rules, &[]), MIDNIGHT, "2026-01-01T06:02:00Z");
    assert_eq!(
        actions,
        [
            (at(MIDNIGHT), DueAction::Skip),
            (at("2026-01-01T05:55:00Z"), DueAction::Run),
            (at("2026-01-01T06:00:00Z"), DueAction::Run)
        ]
    );
}

#[test]
fn catch_up_walks_over_the_misfires_once() {
    let schedule = cron("*/5 * * * *");
    let rules = Rules { misfire: MisfirePolicy::CatchUp, catch_up_limit: 2, ..Rules::default() };
    let effective = effective(&schedule, &rules, &[]);
    let now = at("2026-01-01T00:17:00Z");
    let first = effective.decide(at(MIDNIGHT), now, None);
    let walk = CatchUp { first: at("2026-01-01T00:10:00Z"), decided_at: now };
    assert_eq!((first.action, first.catch_up), (DueAction::Skip, Some(walk)));
    // The result of the walk counts, although another walk would find more misfires now.
    let walk = CatchUp { first: at("2026-01-01T00:05:00Z"), ..walk };
    let next = effective.decide(at("2026-01-01T00:05:00Z"), now, Some(walk));
    assert_eq!((next.action, next.catch_up), (DueAction::Run, Some(walk)));
    let late = effective.decide(at("2026-01-01T00:05:00Z"), now + Duration::seconds(61), Some(walk));
    assert_eq!(late.action, DueAction::Skip, "it counts for a minute");
}

#[test]
fn catch_up_over_a_month_of_seconds_ends() {
    let schedule = Schedule::every(1);
    let rules = Rules {
        misfire: MisfirePolicy::CatchUp,
        catch_up_limit: 3,
        catch_up_window_seconds: 2_592_000,
        ..Rules::default()
    };
    let effective = effective(&schedule, &rules, &[]);
    let (now, mut due, mut skips) = (at("2026-01-31T00:00:00Z"), at(MIDNIGHT), 0);
    while effective.decide(due, now, None).action == DueAction::Skip {
        due = effective.decide(due, now, None).next_fire_at.expect("a next due time");
        skips += 1;
        assert!(skips < 100, "the skips must come to an end");
    }
    assert_eq!(due, at("2026-01-30T23:59:58Z"));
}

#[test]
fn no_due_time_is_left_after_once_or_the_end() {
    let due = at(MIDNIGHT);
    let rules = Rules::default();
    let once = Schedule::once(due);
    assert_eq!(effective(&once, &rules, &[]).decide(due, due, None).next_fire_at, None);
    let rules = Rules { end_at: Some(at("2026-01-01T00:01:00Z")), ..Rules::default() };
    assert_eq!(effective(&Schedule::every(60), &rules, &[]).decide(due, due, None).next_fire_at, None);
}

#[test]
fn interval_from_the_end_has_no_due_time_during_the_run() {
    let schedule = Schedule::Every { seconds: 60, from: IntervalAnchor::End };
    let rules = Rules::default();
    let effective = effective(&schedule, &rules, &[]);
    assert_eq!(effective.first(None, at(MIDNIGHT)), Some(at("2026-01-01T00:01:00Z")));
    assert_eq!(effective.decide(at(MIDNIGHT), at(MIDNIGHT), None).next_fire_at, None);
}

#[test]
fn matching_start_is_a_due_time() {
    let start = at("2026-02-01T09:00:00Z");
    let rules = Rules { start_at: Some(start), ..Rules::default() };
    assert_eq!(effective(&cron("0 9 * * *"), &rules, &[]).first(None, at(MIDNIGHT)), Some(start));
    assert_eq!(effective(&Schedule::every(7), &rules, &[]).first(None, at(MIDNIGHT)), Some(start));
}

#[test]
fn interval_is_counted_from_the_start() {
    let rules = Rules { start_at: Some(at(MIDNIGHT)), ..Rules::default() };
    let schedule = Schedule::every(3_600);
    let effective = effective(&schedule, &rules, &[]);
    assert_eq!(effective.first(None, at("2026-01-01T05:20:00Z")), Some(at("2026-01-01T06:00:00Z")));
    let six = at("2026-01-01T06:00:00Z");
    assert_eq!(effective.following(six, six), Some(at("2026-01-01T07:00:00Z")));
}

#[test]
fn resumed_job_does_not_catch_up() {
    let now = at("2026-03-01T12:00:00Z");
    let rules = Rules { misfire: MisfirePolicy::CatchUp, ..Rules::default() };
    assert_eq!(effective(&Schedule::every(10), &rules, &[]).first(None, now), Some(now + Duration::seconds(10)));
}

#[test]
fn jitter_is_constant_for_a_job() {
    let schedule = cron("0 * * * *");
    let rules = Rules { jitter_seconds: 600, ..Rules::default() };
    let mut seen = std::collections::BTreeSet::new();
    for n in 0..50_u8 {
        let id = JobId::from_parts(at(MIDNIGHT), [n; 10]);
        let effective = EffectiveSchedule::new(id, &schedule, &rules, &[]);
        let first = effective.first(None, at(MIDNIGHT)).expect("a first due time");
        let second = effective.following(first, first).expect("a next due time");
        assert_eq!(second - first, Duration::hours(1));
        assert!(first >= at(MIDNIGHT) && first <= at("2026-01-01T01:10:00Z"), "{first}");
        assert_eq!(EffectiveSchedule::new(id, &schedule, &rules, &[]).first(None, at(MIDNIGHT)), Some(first));
        seen.insert(first);
    }
    assert!(seen.len() > 30, "fifty jobs have only {} different jitters", seen.len());
}

#[test]
fn jitter_spreads_intervals_that_begin_together() {
    let now = at(MIDNIGHT);
    let rules = Rules { jitter_seconds: 1_800, ..Rules::default() };
    for from in [IntervalAnchor::Fire, IntervalAnchor::End] {
        let schedule = Schedule::Every { seconds: 3_600, from };
        let mut seen = std::collections::BTreeSet::new();
        for n in 0..50_u8 {
            let effective = EffectiveSchedule::new(JobId::from_parts(now, [n; 10]), &schedule, &rules, &[]);
            let first = effective.first(None, now).expect("a first due time");
            assert!((3_600..=5_400).contains(&(first - now).num_seconds()), "{first}");
            assert_eq!(effective.following(first, first), Some(first + Duration::hours(1)));
            seen.insert(first);
        }
        assert!(seen.len() > 30, "fifty jobs have only {} different jitters", seen.len());
    }
}

#[test]
fn interval_with_a_start_is_counted_from_it_with_jitter() {
    let now = at(MIDNIGHT);
    let schedule = Schedule::every(3_600);
    let id = JobId::from_parts(now, [7; 10]);
    let due = |start: DateTime<Utc>, jitter_seconds| {
        let rules = Rules { jitter_seconds, start_at: Some(start), ..Rules::default() };
        EffectiveSchedule::new(id, &schedule, &rules, &[]).first(None, now).expect("a first due time")
    };
    let offset = jitter(id, 600);
    for minutes in [-90, -1, 0, 1, 90] {
        let start = now + Duration::minutes(minutes);
        let first = due(start, 600);
        assert_eq!((first - offset - start).num_seconds() % 3_600, 0, "{first}");
        assert!(first >= now && first - now <= Duration::minutes(90) + offset, "{first}");
    }
}

#[test]
fn no_due_time_is_after_the_year_9999() {
    let schedule = cron("59 23 31 12 *");
    let rules = Rules { jitter_seconds: 86_400, ..Rules::default() };
    let last = at("9999-12-31T23:59:00Z");
    for n in 0..50_u8 {
        let effective = EffectiveSchedule::new(JobId::from_parts(last, [n; 10]), &schedule, &rules, &[]);
        assert!(effective.first(None, at("9999-06-01T00:00:00Z")).is_none_or(instant::is_in_range));
    }
}

fn weekend() -> Calendar {
    let day = |weekday| WeeklyWindow { weekday, from: chrono::NaiveTime::MIN, to: chrono::NaiveTime::MIN };
    Calendar { name: "Weekend".into(), zone: "UTC".into(), dates: Vec::new(), windows: vec![day(6), day(0)] }
}

#[test]
fn blackout_is_skipped_or_postponed() {
    let calendar = weekend();
    let calendars = [&calendar];
    let schedule = cron("0 */6 * * *");
    // 2 January 2026 is a Friday.
    let friday = at("2026-01-02T18:00:00Z");
    let rules = Rules::default();
    assert_eq!(effective(&schedule, &rules, &calendars).following(friday, friday), Some(at("2026-01-05T00:00:00Z")));
    let rules = Rules { blackout: BlackoutPolicy::Postpone, ..Rules::default() };
    let effective = effective(&schedule, &rules, &calendars);
    let monday = at("2026-01-05T00:00:00Z");
    assert_eq!(effective.following(friday, friday), Some(monday), "all due times of the weekend become one");
    assert_eq!(effective.following(monday, monday), Some(at("2026-01-05T06:00:00Z")));
}

#[test]
fn postponed_run_with_jitter_loses_no_due_time() {
    let time = |text: &str| text.parse().expect("a valid time");
    // 1 January 2026 is a Thursday.
    let windows = vec![WeeklyWindow { weekday: 4, from: time("10:00:00"), to: time("11:00:00") }];
    let calendar = Calendar { name: "Ten".into(), zone: "UTC".into(), dates: Vec::new(), windows };
    let calendars = [&calendar];
    let schedule = cron("* * * * *");
    let rules = Rules { blackout: BlackoutPolicy::Postpone, jitter_seconds: 600, ..Rules::default() };
    let (start, end) = (at("2026-01-01T09:30:00Z"), at("2026-01-01T11:40:00Z"));
    let eleven = at("2026-01-01T11:00:00Z");
    for n in 0..50_u8 {
        let id = JobId::from_parts(start, [n; 10]);
        let effective = EffectiveSchedule::new(id, &schedule, &rules, &calendars);
        let next = |at: &DateTime<Utc>| effective.following(*at, *at).filter(|at| *at <= end);
        let due: Vec<_> = std::iter::successors(next(&start), next).collect();
        assert!(due.iter().all(|at| calendar.blackout_end(*at).is_none()), "{due:?}");
        let decided = effective.decide(at("2026-01-01T10:30:00Z"), at("2026-01-01T10:30:00Z"), None).next_fire_at;
        assert_eq!(decided, due.iter().copied().find(|at| *at >= eleven), "the dispatcher agrees");
        for minute in 1..120 {
            let at = start + Duration::minutes(minute) + jitter(id, 600);
            assert!(calendar.blackout_end(at).is_some() || due.contains(&at), "{at} is lost");
        }
    }
}

#[test]
fn interval_passes_a_long_blackout_in_one_step() {
    let calendar = weekend();
    let calendars = [&calendar];
    let (schedule, rules) = (Schedule::every(1), Rules::default());
    let friday = at("2026-01-02T23:59:59Z");
    assert_eq!(effective(&schedule, &rules, &calendars).following(friday, friday), Some(at("2026-01-05T00:00:00Z")));
}

#[test]
fn endless_blackout_leaves_no_due_time() {
    let day = |weekday| WeeklyWindow { weekday, from: chrono::NaiveTime::MIN, to: chrono::NaiveTime::MIN };
    let calendar =
        Calendar { name: "Never".into(), zone: "UTC".into(), dates: Vec::new(), windows: (0..7).map(day).collect() };
    let rules = Rules::default();
    assert_eq!(effective(&cron("0 * * * *"), &rules, &[&calendar]).first(None, at(MIDNIGHT)), None);
}

#[test]
fn due_time_in_a_blackout_without_end_is_skipped_and_the_last() {
    let time = |text: &str| text.parse().expect("a valid time");
    let daily = |from: &str, to: &str| Calendar {
        name: "Daily".into(),
        zone: "UTC".into(),
        dates: Vec::new(),
        windows: (0..7).map(|weekday| WeeklyWindow { weekday, from: time(from), to: time(to) }).collect(),
    };
    let (days, nights) = (daily("06:00:00", "18:00:00"), daily("18:00:00", "06:00:00"));
    let calendars = [&days, &nights];
    for blackout in [BlackoutPolicy::Skip, BlackoutPolicy::Postpone] {
        let rules = Rules { blackout, ..Rules::default() };
        let schedule = cron("0 * * * *");
        let effective = effective(&schedule, &rules, &calendars);
        assert_eq!(effective.first(None, at(MIDNIGHT)), None);
        let decision = effective.decide(at(MIDNIGHT), at(MIDNIGHT), None);
        assert_eq!((decision.action, decision.next_fire_at), (DueAction::Skip, None));
    }
}

#[test]
fn changed_calendar_skips_a_current_due_time() {
    let calendar = weekend();
    let calendars = [&calendar];
    let saturday = at("2026-01-03T12:00:00Z");
    let schedule = cron("0 12 * * *");
    let decision = effective(&schedule, &Rules::default(), &calendars).decide(saturday, saturday, None);
    assert_eq!(decision.action, DueAction::Skip);
    assert_eq!(decision.next_fire_at, Some(at("2026-01-05T12:00:00Z")));
    // If the decision is late, due times after the blackout are still decided one after the other.
    let decision =
        effective(&schedule, &Rules::default(), &calendars).decide(saturday, at("2026-01-07T13:00:00Z"), None);
    assert_eq!(decision.next_fire_at, Some(at("2026-01-05T12:00:00Z")));
}

/// The preview (`following`), the dispatcher (`decide`) and the command line (`CronExpression::next_after`) agree.
#[test]
fn preview_dispatcher_and_expression_agree() {
    let zones = [
        "UTC",
        "Europe/Warsaw",
        "America/New_York",
        "America/St_Johns",
        "Australia/Lord_Howe",
        "Africa/Casablanca",
        "Asia/Kathmandu",
        "Pacific/Chatham",
        "America/Santiago",
        "Antarctica/Troll",
    ];
    // A pseudo-random sequence with a fixed seed.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut draw = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let rules = Rules::default();
    for _ in 0..200 {
        let minute = match draw(3) {
            0 => format!("*/{}", 1 + draw(30)),
            1 => format!("{},{}", draw(30), 30 + draw(30)),
            _ => draw(60).to_string(),
        };
        let hour = match draw(3) {
            0 => "*".to_owned(),
            1 => format!("{}-{}", draw(12), 12 + draw(12)),
            _ => draw(24).to_string(),
        };
        let day = if draw(4) == 0 { (1 + draw(28)).to_string() } else { "*".to_owned() };
        let weekday = if draw(4) == 0 { draw(8).to_string() } else { "*".to_owned() };
        let expression = format!("{minute} {hour} {day} * {weekday}");
        let after = at("2026-01-01T00:00:00Z") + Duration::minutes(i64::try_from(draw(525_600)).expect("fits in i64"));
        for zone in zones {
            let schedule = Schedule::Cron { expression: expression.clone(), zone: zone.into() };
            let cron = CronExpression::parse(&expression).expect("a valid expression");
            let tz: Tz = zone.parse().expect("a valid zone");
            let effective = effective(&schedule, &rules, &[]);
            let mut due = effective.first(None, after).expect("a first due time");
            assert_eq!(cron.next_after(tz, after), Some(due), "{expression} in {zone} after {after}");
            for _ in 0..4 {
                let next = effective.following(due, due);
                assert_eq!(effective.decide(due, due, None).next_fire_at, next, "{expression} in {zone} at {due}");
                assert_eq!(cron.next_after(tz, due), next, "{expression} in {zone} at {due}");
                due = next.expect("a next due time");
            }
        }
    }
}
