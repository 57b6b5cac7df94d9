//! Decides when a job that keeps failing is disabled automatically.
//!
//! Only stored rows of ended runs count, so a report that arrives twice still counts once. A job is disabled when its
//! newest runs, as many as the threshold, have all failed within the window and after a user last re-enabled the job.

use chrono::{DateTime, Duration, Utc};
use milvaion_protocol::status::OccurrenceStatus;
use milvaion_schedule::rules::{AutoDisable, in_words};

/// A run that has ended, reduced to the two facts that the decision needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedRun {
    /// The final status.
    pub status: OccurrenceStatus,
    /// The instant at which it ended, by the server's clock.
    pub at: DateTime<Utc>,
}

/// The number of runs to load beyond twice the threshold.
pub const EXTRA_RUNS: i64 = 20;

/// Returns how many of a job's newest runs to load for the decision. It is more than the threshold because overlapping
/// runs do not end in the order in which they were created.
#[must_use]
pub fn runs_to_examine(rule: AutoDisable) -> i64 {
    i64::from(rule.threshold) * 2 + EXTRA_RUNS
}

/// Returns the reason to disable the job as a sentence, or `None` if it stays enabled.
///
/// `runs` are the newest runs in any order. Cancelled and skipped runs do not count, because they do not show whether
/// the job works. Failures up to and including `since` do not count either.
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
        format!("Disabled automatically: {runs} failed within {}.", in_words(rule.window_seconds))
    })
}

#[cfg(test)]
mod tests {
    use OccurrenceStatus as S;

    use super::*;

    const RULE: AutoDisable = AutoDisable { threshold: 3, window_seconds: 600, cool_down_seconds: None };

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + Duration::seconds(second)
    }

    fn is_disabled(runs: &[(OccurrenceStatus, i64)], since: Option<i64>) -> bool {
        let runs: Vec<EndedRun> =
            runs.iter().map(|(status, second)| EndedRun { status: *status, at: at(*second) }).collect();
        disable_reason(RULE, &runs, since.map(at), at(1_000)).is_some()
    }

    #[test]
    fn consecutive_failures_in_window_disable() {
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
                "cancelled and skipped runs do not count",
                true,
                &[(S::Failed, 900), (S::Cancelled, 905), (S::Failed, 910), (S::Skipped, 915), (S::Failed, 920)],
                None,
            ),
            (
                "before the job was re-enabled",
                false,
                &[(S::Failed, 900), (S::Failed, 910), (S::Failed, 920)],
                Some(900),
            ),
            ("after the job was re-enabled", true, &[(S::Failed, 900), (S::Failed, 910), (S::Failed, 920)], Some(899)),
        ];
        for (case, wanted, runs, since) in table {
            assert_eq!(is_disabled(runs, since), wanted, "{case}");
        }
    }

    #[test]
    fn reason_names_count_and_window() {
        let runs = [EndedRun { status: S::Failed, at: at(0) }; 3];
        let reason = |rule| disable_reason(rule, &runs, None, at(0));
        assert_eq!(reason(RULE).as_deref(), Some("Disabled automatically: its last 3 runs failed within 10 minutes."));
        let once = AutoDisable { threshold: 1, window_seconds: 3_600, cool_down_seconds: None };
        assert_eq!(reason(once).as_deref(), Some("Disabled automatically: its last run failed within 1 hour."));
    }
}
