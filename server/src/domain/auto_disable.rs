//! Is it time to disable a job that keeps failing?
//!
//! What counts is what has ended, by the rows that say so: a report that comes twice is still one row. A job trips when
//! its last runs, as many as the threshold, have all failed within the window, and since somebody last put it right.

use chrono::{DateTime, Duration, Utc};
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_schedule::rules::AutoDisable;

/// A run that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedRun {
    /// How.
    pub status: OccurrenceStatus,
    /// When.
    pub at: DateTime<Utc>,
}

/// How many of a job's newest runs must be looked at to judge it: more than the threshold, since runs that overlap do
/// not end in the order in which they were made.
#[must_use]
pub fn runs_to_examine(rule: AutoDisable) -> i64 {
    i64::from(rule.threshold) * 2 + 20
}

/// Why the job is to be disabled, in words; none when it is not. `runs` are the newest in any order; those that were
/// cancelled or skipped say nothing about the job and do not count. Failures up to `since` do not either.
#[must_use]
pub fn disable_reason(
    rule: AutoDisable,
    runs: &[EndedRun],
    since: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
) -> Option<String> {
    use OccurrenceStatus as S;
    let threshold = usize::from(rule.threshold.max(1));
    let mut runs: Vec<EndedRun> =
        runs.iter().copied().filter(|run| matches!(run.status, S::Completed | S::Failed | S::TimedOut)).collect();
    runs.sort_by_key(|run| std::cmp::Reverse(run.at));
    let window = Duration::seconds(i64::from(rule.window_seconds));
    let last = runs.get(..threshold)?;
    let counts = |run: &EndedRun| {
        run.status != S::Completed && run.at >= now - window && since.is_none_or(|since| run.at > since)
    };
    last.iter().all(counts).then(|| {
        let runs = if threshold == 1 { "its last run".to_owned() } else { format!("its last {threshold} runs") };
        format!("Disabled by itself: {runs} failed within {}.", words(rule.window_seconds))
    })
}

/// A length of time in words: the largest unit that fits without a rest.
fn words(seconds: u32) -> String {
    let (n, unit) = match seconds {
        s if s % 86_400 == 0 => (s / 86_400, "day"),
        s if s % 3_600 == 0 => (s / 3_600, "hour"),
        s if s % 60 == 0 => (s / 60, "minute"),
        s => (s, "second"),
    };
    if n == 1 { format!("1 {unit}") } else { format!("{n} {unit}s") }
}

#[cfg(test)]
mod tests {
    use OccurrenceStatus as S;

    use super::*;

    const RULE: AutoDisable = AutoDisable { threshold: 3, window_seconds: 600, cool_down_seconds: None };

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + Duration::seconds(second)
    }

    fn trips(runs: &[(OccurrenceStatus, i64)], since: Option<i64>) -> bool {
        let runs: Vec<EndedRun> =
            runs.iter().map(|(status, second)| EndedRun { status: *status, at: at(*second) }).collect();
        disable_reason(RULE, &runs, since.map(at), at(1_000)).is_some()
    }

    #[test]
    fn the_last_runs_must_all_have_failed_in_time() {
        type Row<'a> = (&'a str, bool, &'a [(OccurrenceStatus, i64)], Option<i64>);
        let table: [Row<'_>; 10] = [
            ("three in a row", true, &[(S::Failed, 900), (S::TimedOut, 910), (S::Failed, 920)], None),
            ("one too few", false, &[(S::Failed, 900), (S::Failed, 920)], None),
            (
                "a success between",
                false,
                &[(S::Failed, 900), (S::Completed, 910), (S::Failed, 920), (S::Failed, 930)],
                None,
            ),
            (
                "a success before",
                true,
                &[(S::Completed, 890), (S::Failed, 900), (S::Failed, 910), (S::Failed, 920)],
                None,
            ),
            (
                "a success last, in another order",
                false,
                &[(S::Completed, 930), (S::Failed, 900), (S::Failed, 910), (S::Failed, 920)],
                None,
            ),
            ("one outside the window", false, &[(S::Failed, 399), (S::Failed, 910), (S::Failed, 920)], None),
            ("at the window's edge", true, &[(S::Failed, 400), (S::Failed, 910), (S::Failed, 920)], None),
            (
                "cancelled and skipped say nothing",
                true,
                &[(S::Failed, 900), (S::Cancelled, 905), (S::Failed, 910), (S::Skipped, 915), (S::Failed, 920)],
                None,
            ),
            ("from before it was put right", false, &[(S::Failed, 900), (S::Failed, 910), (S::Failed, 920)], Some(900)),
            ("after it was put right", true, &[(S::Failed, 900), (S::Failed, 910), (S::Failed, 920)], Some(899)),
        ];
        for (what, wanted, runs, since) in table {
            assert_eq!(trips(runs, since), wanted, "{what}");
        }
    }

    #[test]
    fn the_reason_says_how_many_and_how_long() {
        let runs = [EndedRun { status: S::Failed, at: at(0) }; 3];
        let says = |rule| disable_reason(rule, &runs, None, at(0));
        assert_eq!(says(RULE).as_deref(), Some("Disabled by itself: its last 3 runs failed within 10 minutes."));
        let once = AutoDisable { threshold: 1, window_seconds: 3_600, cool_down_seconds: None };
        assert_eq!(says(once).as_deref(), Some("Disabled by itself: its last run failed within 1 hour."));
    }
}
