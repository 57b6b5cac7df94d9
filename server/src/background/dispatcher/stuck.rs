//! Whether the dispatcher makes progress: a dispatcher whose ticks succeed and that dispatches nothing must look unwell.
//!
//! Each tick may succeed and yet leave a due job where it is, because of an unknown fault. The earliest due time in
//! PostgreSQL then stays the same, however often the dispatcher ticks, and no occurrence is created for it. It is compared
//! once a minute, and the result counts as a failure of the ticks until it moves: in the health report, in the alert about
//! failing tasks and in the requests to a heartbeat address. Jobs that are left to a newer server do not count, because the
//! log names them.

use std::time::Duration;

use chrono::{DateTime, Utc};
use milvaion_schedule::due::MISFIRE_GRACE;
use tokio::time::Instant;

use super::{DispatchReport, Dispatcher};

/// The time between two comparisons.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// The earliest due time at the last comparison.
#[derive(Debug, Default)]
pub(super) struct StuckCheck {
    checked_at: Option<Instant>,
    earliest: Option<DateTime<Utc>>,
    /// True if an occurrence was created for that due time since then: so many jobs may share it that it stays.
    has_fired: bool,
    trouble: Option<String>,
}

impl StuckCheck {
    /// Returns the trouble of the dispatcher after a tick that succeeded, if there is one.
    pub(super) async fn after(&mut self, dispatcher: &Dispatcher, report: &DispatchReport) -> Option<String> {
        self.has_fired |= report.earliest_fired.is_some() && report.earliest_fired <= self.earliest;
        if report.is_paused || report.held_for.is_some() {
            *self = Self::default();
        } else if self.checked_at.is_none_or(|at| at.elapsed() >= CHECK_INTERVAL)
            // Without an answer, the next tick fails, and says why.
            && let Ok(earliest) = dispatcher.store.earliest_due_time(&dispatcher.unreadable.left_out()).await
        {
            self.checked_at = Some(Instant::now());
            self.compare(earliest, dispatcher.clock.now());
        }
        self.trouble.clone()
    }

    fn compare(&mut self, earliest: Option<DateTime<Utc>>, now: DateTime<Utc>) {
        let has_fired = std::mem::take(&mut self.has_fired);
        let stuck = earliest.filter(|at| self.earliest == Some(*at) && !has_fired && now - *at > MISFIRE_GRACE);
        self.trouble = stuck.map(|at| {
            format!(
                "the earliest due time, {}, does not move, although it passed {} s ago: pause the job \
                 that is due then",
                at.to_rfc3339(),
                (now - at).num_seconds()
            )
        });
        self.earliest = earliest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_due_time_that_does_not_move_is_a_trouble() {
        let mut check = StuckCheck::default();
        let due = DateTime::UNIX_EPOCH;
        let mut trouble = |earliest: Option<DateTime<Utc>>, seconds| {
            check.compare(earliest, due + chrono::TimeDelta::seconds(seconds));
            check.trouble.is_some()
        };
        assert!(!trouble(Some(due), 100), "it may have passed while no server was up");
        assert!(trouble(Some(due), 160));
        assert!(!trouble(Some(due + chrono::TimeDelta::seconds(1)), 220), "it has moved");
        assert!(!trouble(None, 280));
        assert!(!trouble(Some(due + chrono::TimeDelta::seconds(300)), 340));
        assert!(!trouble(Some(due + chrono::TimeDelta::seconds(300)), 350), "it is late, and no misfire yet");
        check.has_fired = true;
        check.compare(Some(due + chrono::TimeDelta::seconds(300)), due + chrono::TimeDelta::seconds(410));
        assert!(check.trouble.is_none(), "other jobs that were due then have run");
    }
}
