//! A schedule in words and dates, in its own zone and in the reader's.

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use protocol::{
    cron::Cron,
    schedule::{Schedule, parse_zone},
    view::{PreviewRun, SchedulePreview},
};

use crate::domain::due::Timetable;

/// How many coming fires are shown.
const RUNS: usize = 5;

/// The preview of `job` at `now`. With `next` known (a job that exists), it is the first fire shown; otherwise the schedule is
/// taken as just defined.
#[must_use]
pub fn preview(
    table: &Timetable<'_>,
    schedule: &Schedule,
    next: Option<DateTime<Utc>>,
    viewer_zone: Option<&str>,
    now: DateTime<Utc>,
) -> SchedulePreview {
    let (zone, mut warnings) = match schedule {
        Schedule::Cron { expression, zone } => (
            parse_zone(zone).unwrap_or(Tz::UTC),
            Cron::parse(expression).map(|cron| cron.warnings()).unwrap_or_default(),
        ),
        _ => (Tz::UTC, Vec::new()),
    };
    let viewer = viewer_zone.and_then(|name| parse_zone(name).ok()).filter(|viewer| *viewer != zone);
    let mut runs = Vec::with_capacity(RUNS);
    let mut at = next.or_else(|| table.first(now));
    while let Some(instant) = at.filter(|_| runs.len() < RUNS) {
        runs.push(PreviewRun {
            at: instant,
            in_zone: written(instant, zone),
            in_viewer_zone: viewer.map(|viewer| written(instant, viewer)),
        });
        at = if schedule.pause_after_end().is_some() { None } else { table.following(instant, instant) };
    }
    if runs.is_empty() && matches!(schedule, Schedule::Once { .. }) {
        warnings.push("That moment is past: it will not run.".into());
    } else if runs.is_empty() && !matches!(schedule, Schedule::Manual) {
        warnings.push("No fire is left: its end or its calendars leave none.".into());
    }
    SchedulePreview {
        words: schedule.words(),
        zone: zone.name().to_owned(),
        viewer_zone: viewer.map(|viewer| viewer.name().to_owned()),
        runs,
        warnings,
    }
}

/// As in `Mon 2026-11-23 09:00:00 CET`.
fn written(at: DateTime<Utc>, zone: Tz) -> String {
    at.with_timezone(&zone).format("%a %Y-%m-%d %H:%M:%S %Z").to_string()
}

#[cfg(test)]
mod tests {
    use protocol::{id::JobId, rules::Rules};

    use super::*;

    fn preview(schedule: &Schedule, viewer_zone: Option<&str>, now: DateTime<Utc>) -> SchedulePreview {
        let rules = Rules::default();
        super::preview(&Timetable::new(JobId::default(), schedule, &rules, &[]), schedule, None, viewer_zone, now)
    }

    #[test]
    fn five_fires_in_both_zones() {
        let schedule = Schedule::Cron { expression: "0 9 * * MON-FRI".into(), zone: "Europe/Warsaw".into() };
        let now = "2026-11-21T12:00:00Z".parse().expect("instant");
        let preview = preview(&schedule, Some("America/New_York"), now);
        assert_eq!(preview.runs.len(), 5);
        assert_eq!(preview.runs[0].in_zone, "Mon 2026-11-23 09:00:00 CET");
        assert_eq!(preview.runs[0].in_viewer_zone.as_deref(), Some("Mon 2026-11-23 03:00:00 EST"));
        assert_eq!(preview.viewer_zone.as_deref(), Some("America/New_York"));
    }

    #[test]
    fn one_zone_is_enough_when_they_are_the_same_or_unknown() {
        let schedule = Schedule::every(60);
        let now = "2026-11-21T12:00:00Z".parse().expect("instant");
        assert_eq!(preview(&schedule, Some("UTC"), now).viewer_zone, None);
        assert_eq!(preview(&schedule, Some("nonsense"), now).viewer_zone, None);
        assert_eq!(preview(&schedule, None, now).runs[1].in_zone, "Sat 2026-11-21 12:02:00 UTC");
    }
}
