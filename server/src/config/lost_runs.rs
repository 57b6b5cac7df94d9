//! Settings for detecting lost runs and lost messages.

use std::time::Duration;

use super::EnvReader;

/// Timeouts after which a run or a message counts as lost.
#[derive(Clone, Debug)]
pub struct LostRunConfig {
    /// `HEARTBEAT_TIMEOUT_SECONDS`: heartbeat timeout, in seconds: time without a heartbeat after which a run counts as
    /// lost, for jobs without a timeout of their own. From 15 to 86,400. Default 15.
    pub heartbeat_timeout: Duration,
    /// `UNREACHABLE_SECONDS`: time, in seconds, for which a worker instance keeps its runs although it sends nothing over
    /// RabbitMQ, as long as its heartbeat in Redis shows that it is alive; then its runs are revoked. For jobs without a
    /// time of their own. From 15 to 86,400. Default 300.
    pub unreachable_timeout: Duration,
    /// `REQUEUE_AFTER_SECONDS`: time, in seconds, that an occurrence may be queued before the server checks that the
    /// broker still has its message. From 10 to 3,600. Default 60.
    pub requeue_after: Duration,
}

impl Default for LostRunConfig {
    fn default() -> Self {
        Self {
            heartbeat_timeout: Duration::from_secs(15),
            unreachable_timeout: Duration::from_secs(300),
            requeue_after: Duration::from_secs(60),
        }
    }
}

impl LostRunConfig {
    /// Reads the settings from the environment.
    pub(super) fn read(read: &mut EnvReader) -> Self {
        Self {
            heartbeat_timeout: Duration::from_secs(read.number("HEARTBEAT_TIMEOUT_SECONDS", 15, 15, 86_400)),
            unreachable_timeout: Duration::from_secs(read.number("UNREACHABLE_SECONDS", 300, 15, 86_400)),
            requeue_after: Duration::from_secs(read.number("REQUEUE_AFTER_SECONDS", 60, 10, 3_600)),
        }
    }
}
