//! Who can be woken. A wake-up says *look*, never what to do; it reaches this server's loops only.

use std::sync::Arc;

use tokio::sync::Notify;

/// One bell for each loop that others may wake. Cloning gives the same bells.
#[derive(Clone, Debug, Default)]
pub struct Wakes {
    /// The dispatcher: the schedule changed.
    pub dispatch: Arc<Notify>,
    /// The index: Redis is not to be believed.
    pub rebuild: Arc<Notify>,
    /// The republisher: a message did not get through.
    pub republish: Arc<Notify>,
    /// The releaser: a slot is free, or something waits for one.
    pub release: Arc<Notify>,
    /// The breaker: something failed.
    pub breaker: Arc<Notify>,
}
