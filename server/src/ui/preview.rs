//! The preview of a schedule: its meaning in words and its next runs, in the schedule's own time zone and in the
//! viewer's.

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use milvaion_api::{
    requests::JobInput,
    views::{PreviewRun, SchedulePreview},
};
use milvaion_protocol::id::JobId;
use milvaion_schedule::{
    calendar::Calendar,
    clock_change,
    cron::CronExpression,
    due::EffectiveSchedule,
    rules::BlackoutPolicy,
    schedule::{Schedule, parse_zone},
};

/// The number of runs that are shown.
const PREVIEW_RUNS: usize = 5;
/// The most due times of one blackout that are counted exactly.
const MAX_COUNTED: usize = 100;

/// Builds the preview of `job`, with its `calendars`, at `now`. If `next` is known, because the job exists, it is the
/// first run shown. Otherwise the schedule counts as just defined. Each blackout that excludes due times adds one row
/// between the runs.
#[must_use]
pub fn preview(
    id: JobId,
    job: &JobInput,
    calendars: &[&Calendar],
    next: Option<DateTime<Utc>>,
    viewer_zone: Option<&str>,
    now: DateTime<Utc>,
) -> SchedulePreview {
    let schedule = &job.schedule;
    let (zone, mut warnings) = match schedule {
        Schedule::Cron { expression, zone } => (
            parse_zone(zone).unwrap_or(Tz::UTC),
            CronExpression::parse(expression).map(|cron| cron.warnings()).unwrap_or_default(),
        ),
        Schedule::Once { zone, .. } => (parse_zone(zone).unwrap_or(Tz::UTC), Vec::new()),
        _ => (Tz::UTC, Vec::new()),
    };
    warnings.extend(clock_change_notes(job, calendars, now));
    let viewer = viewer_zone.and_then(|name| parse_zone(name).ok()).filter(|viewer| *viewer != zone);
    let row = |at: DateTime<Utc>, blackout| PreviewRun {
        at,
        in_zone: format_instant(at, zone),
        in_viewer_zone: viewer.map(|viewer| format_instant(at, viewer)),
        blackout,
    };
    let effective = EffectiveSchedule::new(id, schedule, &job.rules, calendars);
    let blackouts = BlackoutPreview {
        unrestricted: EffectiveSchedule::new(id, schedule, &job.rules, &[]),
        calendars,
        rule: job.rules.blackout,
    };
    let mut rows = Vec::with_capacity(PREVIEW_RUNS);
    // An interval counts from the last run. The last run of an existing job is not known here, so the time before
    // `next` is not previewed.
    let mut since = Some(now)
        .filter(|_| next.is_none() || job.rules.start_at.is_some() || !matches!(schedule, Schedule::Every { .. }));
    let mut at = next.or_else(|| effective.first(None, now));
    let mut runs = 0;
    while runs < PREVIEW_RUNS {
        rows.extend(since.and_then(|since| blackouts.between(since, at)).map(|(at, effect)| row(at, Some(effect))));
        let Some(instant) = at else { break };
        rows.push(row(instant, None));
        runs += 1;
        since = Some(instant);
        if schedule.delay_after_end().is_some() {
            break;
        }
        at = effective.following(instant, instant);
    }
    match schedule {
        Schedule::Once { at, .. } if runs == 0 && *at <= now => {
            warnings.push("This time has passed, so the job will not run.".into());
        }
        Schedule::Manual => {}
        _ if runs == 0 => warnings.push("No run is left: the end date or the calendars exclude all due times.".into()),
        _ => {}
    }
    SchedulePreview {
        words: schedule.describe(),
        zone: zone.name().to_owned(),
        viewer_zone: viewer.map(|viewer| viewer.name().to_owned()),
        runs: rows,
        warnings,
    }
}

/// Returns the effects of clock changes in the next year, without those outside the schedule's bounds and in blackouts.
fn clock_change_notes(job: &JobInput, calendars: &[&Calendar], now: DateTime<Utc>) -> Vec<String> {
    let Schedule::Cron { expression, zone } = &job.schedule else { return Vec::new() };
    let (Ok(cron), Ok(zone)) = (CronExpression::parse(expression), parse_zone(zone)) else { return Vec::new() };
    let from = job.rules.start_at.map_or(now, |start| start.max(now));
    let year = now + chrono::Duration::days(366);
    let until = job.rules.end_at.map_or(year, |end| end.min(year));
    clock_change::notes(&cron, zone, from, until)
        .into_iter()
        .filter(|note| (from..until).contains(&note.due))
        .filter(|note| calendars.iter().all(|calendar| calendar.blackout_end(note.due).is_none()))
        .map(|note| note.describe(zone))
        .collect()
}

/// The schedule of a job without its calendars, and the calendars that exclude some of its due times.
struct BlackoutPreview<'a> {
    unrestricted: EffectiveSchedule<'a>,
    calendars: &'a [&'a Calendar],
    rule: BlackoutPolicy,
}

impl BlackoutPreview<'_> {
    /// Returns the first due time after `since` and before `next` that a blackout excludes, with a text that says what
    /// happens to it and to the following ones. All due times in between are excluded, because `next` is the first one
    /// that is not.
    fn between(&self, since: DateTime<Utc>, next: Option<DateTime<Utc>>) -> Option<(DateTime<Utc>, String)> {
        if self.calendars.is_empty() {
            return None;
        }
        let before = |at: &DateTime<Utc>| next.is_none_or(|next| *at < next);
        let first = self.unrestricted.first(None, since).filter(before)?;
        let excluded = std::iter::successors(Some(first), |at| self.unrestricted.following(*at, *at).filter(before));
        let count = excluded.take(MAX_COUNTED).count();
        let mut names: Vec<_> = self
            .calendars
            .iter()
            .filter(|calendar| calendar.blackout_end(first).is_some())
            .map(|calendar| calendar.name.as_str())
            .collect();
        names.sort_unstable();
        // If no run is left, a postponed run is excluded too: the schedule ends before the blackout does.
        let postponed = self.rule == BlackoutPolicy::Postpone && next.is_some();
        let effect = match (count, postponed) {
            (1, false) => "Skipped".to_owned(),
            (1, true) => "Postponed".to_owned(),
            (n, false) => format!("This and {} skipped", more(n)),
            (n, true) => format!("This and {} postponed to one run", more(n)),
        };
        Some((first, if names.is_empty() { effect } else { format!("{effect}: {}", names.join(", ")) }))
    }
}

fn more(count: usize) -> String {
    if count >= MAX_COUNTED { format!("{MAX_COUNTED} or more") } else { format!("{} more", count - 1) }
}

/// Formats an instant, for example `Mon 2026-11-23 09:00:00 CET`.
fn format_instant(at: DateTime<Utc>, zone: Tz) -> String {
    at.with_timezone(&zone).format("%a %Y-%m-%d %H:%M:%S %Z").to_string()
}

#[cfg(test)]
mod tests {
    use milvaion_schedule::{calendar::WeeklyWindow, rules::Rules};

    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().expect("instant")
    }

    fn preview(schedule: &Schedule, viewer_zone: Option<&str>, now: DateTime<Utc>) -> SchedulePreview {
        let job = JobInput::schedule_only(schedule.clone(), Rules::default());
        super::preview(JobId::default(), &job, &[], None, viewer_zone, now)
    }

    /// Returns each row as day and time, with the effect of a blackout.
    fn rows(schedule: &Schedule, rules: Rules, calendar: &Calendar, next: Option<&str>, now: &str) -> Vec<String> {
        let job = JobInput::schedule_only(schedule.clone(), rules);
        let preview = super::preview(JobId::default(), &job, &[calendar], next.map(at), None, at(now));
        let effect = |run: &PreviewRun| format!(" {}", run.blackout.as_deref().unwrap_or("runs"));
        preview.runs.iter().map(|run| run.at.format("%d %H:%M").to_string() + &effect(run)).collect()
    }

    fn christmas() -> Calendar {
        let dates = ["2026-12-25", "2026-12-26"].map(|day| day.parse().expect("date"));
        Calendar { name: "Christmas".into(), zone: "UTC".into(), dates: dates.to_vec(), windows: Vec::new() }
    }

    fn cron(expression: &str) -> Schedule {
        Schedule::Cron { expression: expression.into(), zone: "UTC".into() }
    }

    #[test]
    fn skipped_due_times_do_not_count_as_previewed_runs() {
        let now = "2026-12-23T12:00:00Z";
        let daily = ["24 09:00 runs", "25 09:00 This and 1 more skipped: Christmas", "27 09:00 runs", "28 09:00 runs"];
        let shown = rows(&cron("0 9 * * *"), Rules::default(), &christmas(), None, now);
        assert_eq!((&shown[..4], shown.len()), (&daily.map(str::to_owned)[..], 6));
        // An existing job whose next run is after the blackout.
        let shown = rows(&cron("0 9 25,31 * *"), Rules::default(), &christmas(), Some("2026-12-31T09:00:00Z"), now);
        assert_eq!(shown[..2], ["25 09:00 Skipped: Christmas", "31 09:00 runs"]);
        let shown = rows(&cron("* * * * *"), Rules::default(), &christmas(), None, "2026-12-24T23:58:30Z");
        assert_eq!(shown[..2], ["24 23:59 runs", "25 00:00 This and 100 or more skipped: Christmas"]);
    }

    #[test]
    fn a_postponed_run_is_shown_at_both_times() {
        let rules = Rules { blackout: BlackoutPolicy::Postpone, ..Rules::default() };
        let shown = rows(&cron("0 9 * * *"), rules.clone(), &christmas(), None, "2026-12-24T12:00:00Z");
        let first = ["25 09:00 This and 1 more postponed to one run: Christmas", "27 00:00 runs", "27 09:00 runs"];
        assert_eq!(shown[..3], first);
        let rules = Rules { end_at: Some(at("2026-12-26T00:00:00Z")), ..rules };
        let shown = rows(&cron("0 9 25 * *"), rules, &christmas(), None, "2026-12-24T12:00:00Z");
        assert_eq!(shown, ["25 09:00 Skipped: Christmas"], "the schedule ends before the blackout");
    }

    #[test]
    fn a_single_time_in_a_blackout_is_not_reported_as_past() {
        let job = JobInput::schedule_only(Schedule::once(at("2026-12-25T09:00:00Z")), Rules::default());
        let preview = super::preview(JobId::default(), &job, &[&christmas()], None, None, at("2026-12-24T00:00:00Z"));
        assert_eq!(preview.runs[0].blackout.as_deref(), Some("Skipped: Christmas"));
        assert_eq!(preview.warnings, ["No run is left: the end date or the calendars exclude all due times."]);
    }

    #[test]
    fn an_interval_is_not_extrapolated_before_the_next_run() {
        let window =
            WeeklyWindow { weekday: 4, from: "10:00:00".parse().expect("time"), to: "11:00:00".parse().expect("time") };
        let calendar = Calendar { dates: Vec::new(), windows: vec![window], ..christmas() };
        // 24 December 2026 is a Thursday.
        let every = Schedule::every(1_800);
        let shown = rows(&every, Rules::default(), &calendar, Some("2026-12-24T11:20:00Z"), "2026-12-24T10:05:00Z");
        assert_eq!(shown[0], "24 11:20 runs");
        let shown = rows(&every, Rules::default(), &calendar, Some("2026-12-24T09:50:00Z"), "2026-12-24T09:30:00Z");
        assert_eq!(shown[..3], ["24 09:50 runs", "24 10:20 This and 1 more skipped: Christmas", "24 11:20 runs"]);
    }

    #[test]
    fn runs_are_shown_in_both_time_zones() {
        let schedule = Schedule::Cron { expression: "0 9 * * MON-FRI".into(), zone: "Europe/Warsaw".into() };
        let now = "2026-11-21T12:00:00Z".parse().expect("instant");
        let preview = preview(&schedule, Some("America/New_York"), now);
        assert_eq!(preview.runs.len(), 5);
        assert_eq!(preview.runs[0].in_zone, "Mon 2026-11-23 09:00:00 CET");
        assert_eq!(preview.runs[0].in_viewer_zone.as_deref(), Some("Mon 2026-11-23 03:00:00 EST"));
        assert_eq!(preview.viewer_zone.as_deref(), Some("America/New_York"));
    }

    #[test]
    fn an_equal_or_unknown_viewer_zone_is_omitted() {
        let schedule = Schedule::every(60);
        let now = "2026-11-21T12:00:00Z".parse().expect("instant");
        assert_eq!(preview(&schedule, Some("UTC"), now).viewer_zone, None);
        assert_eq!(preview(&schedule, Some("nonsense"), now).viewer_zone, None);
        assert_eq!(preview(&schedule, None, now).runs[1].in_zone, "Sat 2026-11-21 12:02:00 UTC");
    }
}
