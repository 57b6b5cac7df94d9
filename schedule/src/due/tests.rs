use crate::{calendar::WeeklyWindow, schedule::IntervalAnchor};

use super::*;

fn at(text: &str) -> DateTime<Utc> {
    text.parse().expect("instant")
}

fn cron(expression: &str) -> Schedule {
    Schedule::Cron { expression: expression.into(), zone: "UTC".into() }
}

fn table<'a>(schedule: &'a Schedule, rules: &'a Rules, calendars: &'a [&'a Calendar]) -> EffectiveSchedule<'a> {
    EffectiveSchedule::new(JobId::default(), schedule, rules, calendars)
}

const MIDNIGHT: &str = "2026-01-01T00:00:00Z";

#[test]
fn many_missed_fires_become_one_that_says_so_and_the_rhythm_goes_on() {
    let (schedule, rules) = (Schedule::every(60), Rules::default());
    let firing = table(&schedule, &rules, &[]).decide(at(MIDNIGHT), at("2026-01-01T00:03:30Z"));
    assert_eq!(firing.action, DueAction::Run);
    assert_eq!(firing.note.as_deref(), Some("stands for 3 fires more, which came due before it ran"));
    assert_eq!(firing.next_fire_at, Some(at("2026-01-01T00:04:00Z")));
}

#[test]
fn a_fire_on_time_says_nothing() {
    let (schedule, rules) = (Schedule::every(60), Rules::default());
    let firing = table(&schedule, &rules, &[]).decide(at(MIDNIGHT), at("2026-01-01T00:00:00.004Z"));
    assert_eq!(
        firing,
        DueDecision { action: DueAction::Run, note: None, next_fire_at: Some(at("2026-01-01T00:01:00Z")) }
    );
}

#[test]
fn skip_leaves_out_what_was_missed_but_not_what_is_merely_late() {
    let schedule = cron("*/5 * * * *");
    let rules = Rules { misfire: MisfirePolicy::Skip, ..Rules::default() };
    let table = table(&schedule, &rules, &[]);
    let late = table.decide(at(MIDNIGHT), at("2026-01-01T00:00:20Z"));
    assert_eq!(late.action, DueAction::Run);
    let missed = table.decide(at(MIDNIGHT), at("2026-01-01T00:12:00Z"));
    assert_eq!(missed.action, DueAction::Skip);
    assert!(missed.note.as_deref().is_some_and(|note| note.contains("3 fires")), "{missed:?}");
    assert_eq!(missed.next_fire_at, Some(at("2026-01-01T00:15:00Z")));
}

/// Fires until the job is due in the future; tells what became of each instant.
fn play(table: &EffectiveSchedule<'_>, due: &str, now: &str) -> Vec<(DateTime<Utc>, DueAction)> {
    let now = at(now);
    let mut made = Vec::new();
    let mut next = Some(at(due));
    while let Some(due) = next.filter(|due| *due <= now) {
        let firing = table.decide(due, now);
        made.push((due, firing.action));
        next = firing.next_fire_at;
        assert!(made.len() < 100, "it must come to an end");
    }
    made
}

#[test]
fn what_was_fired_ahead_of_its_instant_is_not_due_again_after_an_edit() {
    let rules = Rules::default();
    let (schedule, noon) = (cron("0 12 * * *"), at("2026-01-01T12:00:00Z"));
    let table = table(&schedule, &rules, &[]);
    let now = noon - Duration::milliseconds(10);
    assert_eq!(table.first(None, now), Some(noon));
    assert_eq!(table.first(Some(noon), now), Some(noon + Duration::days(1)));
    assert_eq!(table.first(Some(noon - Duration::days(1)), now), Some(noon));
}

#[test]
fn catch_up_runs_each_missed_fire_oldest_first() {
    let schedule = cron("*/5 * * * *");
    let rules = Rules { misfire: MisfirePolicy::CatchUp, ..Rules::default() };
    let made = play(&table(&schedule, &rules, &[]), MIDNIGHT, "2026-01-01T00:17:00Z");
    let expected: Vec<_> =
        [0, 5, 10, 15].map(|minute| (at(MIDNIGHT) + Duration::minutes(minute), DueAction::Run)).into();
    assert_eq!(made, expected);
}

#[test]
fn catch_up_keeps_the_newest_within_its_limit_and_window() {
    let schedule = cron("*/5 * * * *");
    let rules = Rules { misfire: MisfirePolicy::CatchUp, catch_up_limit: 2, ..Rules::default() };
    let made = play(&table(&schedule, &rules, &[]), MIDNIGHT, "2026-01-01T00:17:00Z");
    assert_eq!(
        made,
        [
            (at(MIDNIGHT), DueAction::Skip),
            (at("2026-01-01T00:10:00Z"), DueAction::Run),
            (at("2026-01-01T00:15:00Z"), DueAction::Run)
        ]
    );
    let rules = Rules { misfire: MisfirePolicy::CatchUp, catch_up_window_seconds: 600, ..Rules::default() };
    let made = play(&table(&schedule, &rules, &[]), MIDNIGHT, "2026-01-01T06:02:00Z");
    assert_eq!(
        made,
        [
            (at(MIDNIGHT), DueAction::Skip),
            (at("2026-01-01T05:55:00Z"), DueAction::Run),
            (at("2026-01-01T06:00:00Z"), DueAction::Run)
        ]
    );
}

#[test]
fn catch_up_over_a_month_of_seconds_comes_to_an_end() {
    let schedule = Schedule::every(1);
    let rules = Rules {
        misfire: MisfirePolicy::CatchUp,
        catch_up_limit: 3,
        catch_up_window_seconds: 2_592_000,
        ..Rules::default()
    };
    let table = table(&schedule, &rules, &[]);
    let (now, mut due, mut skips) = (at("2026-01-31T00:00:00Z"), at(MIDNIGHT), 0);
    while table.decide(due, now).action == DueAction::Skip {
        due = table.decide(due, now).next_fire_at.expect("goes on");
        skips += 1;
        assert!(skips < 100, "it must come to an end");
    }
    assert_eq!(due, at("2026-01-30T23:59:58Z"));
}

#[test]
fn nothing_is_left_after_once_or_after_the_end() {
    let due = at(MIDNIGHT);
    let rules = Rules::default();
    let once = Schedule::Once { at: due };
    assert_eq!(table(&once, &rules, &[]).decide(due, due).next_fire_at, None);
    let rules = Rules { end_at: Some(at("2026-01-01T00:01:00Z")), ..Rules::default() };
    assert_eq!(table(&Schedule::every(60), &rules, &[]).decide(due, due).next_fire_at, None);
}

#[test]
fn a_rhythm_counted_from_the_end_waits_for_it() {
    let schedule = Schedule::Every { seconds: 60, from: IntervalAnchor::End };
    let rules = Rules::default();
    let table = table(&schedule, &rules, &[]);
    assert_eq!(table.first(None, at(MIDNIGHT)), Some(at("2026-01-01T00:01:00Z")));
    assert_eq!(table.decide(at(MIDNIGHT), at(MIDNIGHT)).next_fire_at, None);
}

#[test]
fn a_start_that_matches_counts() {
    let start = at("2026-02-01T09:00:00Z");
    let rules = Rules { start_at: Some(start), ..Rules::default() };
    assert_eq!(table(&cron("0 9 * * *"), &rules, &[]).first(None, at(MIDNIGHT)), Some(start));
    assert_eq!(table(&Schedule::every(7), &rules, &[]).first(None, at(MIDNIGHT)), Some(start));
}

#[test]
fn a_rhythm_is_counted_from_its_start() {
    let rules = Rules { start_at: Some(at(MIDNIGHT)), ..Rules::default() };
    let schedule = Schedule::every(3_600);
    let table = table(&schedule, &rules, &[]);
    assert_eq!(table.first(None, at("2026-01-01T05:20:00Z")), Some(at("2026-01-01T06:00:00Z")));
    let six = at("2026-01-01T06:00:00Z");
    assert_eq!(table.following(six, six), Some(at("2026-01-01T07:00:00Z")));
}

#[test]
fn resuming_catches_nothing_up() {
    let now = at("2026-03-01T12:00:00Z");
    let rules = Rules { misfire: MisfirePolicy::CatchUp, ..Rules::default() };
    assert_eq!(table(&Schedule::every(10), &rules, &[]).first(None, now), Some(now + Duration::seconds(10)));
}

#[test]
fn jitter_is_the_job_s_own_and_the_same_every_time() {
    let schedule = cron("0 * * * *");
    let rules = Rules { jitter_seconds: 600, ..Rules::default() };
    let mut seen = std::collections::BTreeSet::new();
    for n in 0..50_u8 {
        let id = JobId::from_parts(at(MIDNIGHT), [n; 10]);
        let table = EffectiveSchedule::new(id, &schedule, &rules, &[]);
        let first = table.first(None, at(MIDNIGHT)).expect("fires");
        let second = table.following(first, first).expect("fires");
        assert_eq!(second - first, Duration::hours(1));
        assert!(first >= at(MIDNIGHT) && first <= at("2026-01-01T01:10:00Z"), "{first}");
        assert_eq!(EffectiveSchedule::new(id, &schedule, &rules, &[]).first(None, at(MIDNIGHT)), Some(first));
        seen.insert(first);
    }
    assert!(seen.len() > 30, "fifty jobs do not all start at once: {}", seen.len());
}

fn weekend() -> Calendar {
    let day = |weekday| WeeklyWindow { weekday, from: chrono::NaiveTime::MIN, to: chrono::NaiveTime::MIN };
    Calendar { name: "Weekend".into(), zone: "UTC".into(), dates: Vec::new(), windows: vec![day(6), day(0)] }
}

#[test]
fn a_blackout_is_left_out_or_waited_for() {
    let calendar = weekend();
    let calendars = [&calendar];
    let schedule = cron("0 */6 * * *");
    // 2 January 2026 is a Friday.
    let friday = at("2026-01-02T18:00:00Z");
    let rules = Rules::default();
    assert_eq!(table(&schedule, &rules, &calendars).following(friday, friday), Some(at("2026-01-05T00:00:00Z")));
    let rules = Rules { blackout: BlackoutPolicy::Postpone, ..Rules::default() };
    let table = table(&schedule, &rules, &calendars);
    let monday = at("2026-01-05T00:00:00Z");
    assert_eq!(table.following(friday, friday), Some(monday), "all fires of the weekend become one");
    assert_eq!(table.following(monday, monday), Some(at("2026-01-05T06:00:00Z")));
}

#[test]
fn a_rhythm_passes_a_long_blackout_in_one_step() {
    let calendar = weekend();
    let calendars = [&calendar];
    let (schedule, rules) = (Schedule::every(1), Rules::default());
    let friday = at("2026-01-02T23:59:59Z");
    assert_eq!(table(&schedule, &rules, &calendars).following(friday, friday), Some(at("2026-01-05T00:00:00Z")));
}

#[test]
fn a_calendar_that_never_ends_leaves_no_fire() {
    let day = |weekday| WeeklyWindow { weekday, from: chrono::NaiveTime::MIN, to: chrono::NaiveTime::MIN };
    let calendar =
        Calendar { name: "Never".into(), zone: "UTC".into(), dates: Vec::new(), windows: (0..7).map(day).collect() };
    let rules = Rules::default();
    assert_eq!(table(&cron("0 * * * *"), &rules, &[&calendar]).first(None, at(MIDNIGHT)), None);
}

#[test]
fn a_fire_that_a_changed_calendar_blacks_out_is_a_row_that_says_so() {
    let calendar = weekend();
    let calendars = [&calendar];
    let saturday = at("2026-01-03T12:00:00Z");
    let schedule = cron("0 12 * * *");
    let firing = table(&schedule, &Rules::default(), &calendars).decide(saturday, saturday);
    assert_eq!(firing.action, DueAction::Skip);
    assert_eq!(firing.next_fire_at, Some(at("2026-01-05T12:00:00Z")));
    // Looked at late, what was due after the blackout is still judged, one after the other.
    let firing = table(&schedule, &Rules::default(), &calendars).decide(saturday, at("2026-01-07T13:00:00Z"));
    assert_eq!(firing.next_fire_at, Some(at("2026-01-05T12:00:00Z")));
}

/// What is shown (`following`), what is fired (`fire`) and what the command line says (`CronExpression::next_after`) are one list.
#[test]
fn the_preview_the_dispatcher_and_the_expression_agree() {
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
    // A sequence that looks drawn and is the same every time.
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
        let after = at("2026-01-01T00:00:00Z") + Duration::minutes(i64::try_from(draw(525_600)).expect("fits"));
        for zone in zones {
            let schedule = Schedule::Cron { expression: expression.clone(), zone: zone.into() };
            let cron = CronExpression::parse(&expression).expect("reads");
            let tz: Tz = zone.parse().expect("a zone");
            let table = table(&schedule, &rules, &[]);
            let mut due = table.first(None, after).expect("fires");
            assert_eq!(cron.next_after(tz, after), Some(due), "{expression} in {zone} after {after}");
            for _ in 0..4 {
                let next = table.following(due, due);
                assert_eq!(table.decide(due, due).next_fire_at, next, "{expression} in {zone} at {due}");
                assert_eq!(cron.next_after(tz, due), next, "{expression} in {zone} at {due}");
                due = next.expect("goes on");
            }
        }
    }
}
