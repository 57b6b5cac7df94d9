//! Quarantine: keeps runs apart that were lost with their worker repeatedly.
//!
//! When a worker process dies, every run in it is lost, and nothing distinguishes the run that crashed the process from
//! the runs beside it. All of them are requeued at once, and after [`MAX_REQUEUES`](super::lost_run::MAX_REQUEUES) requeues
//! the next loss fails a run as poison. That is fair only if innocent runs do not share a process with the poison run every
//! time. By chance some do, because runs that were lost together also restart together.
//!
//! The rule: a run that was requeued twice as lost starts only while no other such run of its worker is under way. The
//! runs that died together therefore start one after the other, the oldest first; the poison run crashes its process
//! without them, and it alone is failed. A run that no instance starts within a minute is not waited for.
//!
//! What the rule does not cover: a long run delays the other quarantined runs of its worker until it ends. And a run is
//! kept apart only from other quarantined runs. A job that creates a new poison run every few seconds can still crash the
//! process of a quarantined run, because each new one has all its requeues left; auto-disable stops such a job.

use chrono::Duration;

/// Number of requeues from which a run is quarantined.
pub const MIN_QUARANTINE_REQUEUES: i16 = 2;
/// Maximum time to wait for the start of a released run: no instance may offer its job type.
pub const MAX_RELEASE_WAIT: Duration = Duration::seconds(60);
/// The start time of a quarantined run as the notes for users describe it: "attempt 4 starts …".
pub const QUARANTINE_NOTE: &str = "after the runs ahead of it in quarantine";

/// Returns true if a run must be quarantined. `requeues` includes a requeue that is just being decided.
#[must_use]
pub const fn needs_quarantine(requeues: i16) -> bool {
    requeues >= MIN_QUARANTINE_REQUEUES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_requeue_is_quarantined() {
        assert_eq!([0, 1, 2, 3].map(needs_quarantine), [false, false, true, true]);
    }
}
