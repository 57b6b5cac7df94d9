//! When a run counts as lost, and when a message.

use std::time::Duration;

use super::EnvReader;

/// Limits of silence.
#[derive(Clone, Debug)]
pub struct LostRunConfig {
    /// `HEARTBEAT_TIMEOUT_SECONDS`: how long a run's worker may be silent before the run is given to another, 15 to 86,400. Default
    /// 15. A job may have a limit of its own.
    pub heartbeat_timeout: Duration,
    /// `REQUEUE_AFTER_SECONDS`: how long an occurrence may be queued before the broker is asked whether it still has its
    /// message, 10 to 3,600. Default 60.
    pub requeue_after: Duration,
}

impl Default for LostRunConfig {
    fn default() -> Self {
        Self { heartbeat_timeout: Duration::from_secs(15), requeue_after: Duration::from_secs(60) }
    }
}

impl LostRunConfig {
    pub(super) fn read(read: &mut EnvReader) -> Self {
        Self {
            heartbeat_timeout: Duration::from_secs(read.number("HEARTBEAT_TIMEOUT_SECONDS", 15, 15, 86_400)),
            requeue_after: Duration::from_secs(read.number("REQUEUE_AFTER_SECONDS", 60, 10, 3_600)),
        }
    }
}
