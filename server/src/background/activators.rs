//! Who can be woken. A wake-up says *look*, never what to do; it reaches this server's loops only.

use std::sync::Arc;

use tokio::sync::Notify;

/// One bell for each loop that others may wake. Cloning gives the same bells.
#[derive(Clone, Debug, Default)]
pub struct Activators {
    /// The dispatcher: the schedule changed.
    pub dispatcher: Arc<Notify>,
    /// The index: Redis is not to be believed.
    pub due_index: Arc<Notify>,
    /// The republisher: a message did not get through.
    pub republisher: Arc<Notify>,
    /// The releaser: a slot is free, or something waits for one.
    pub slot_granter: Arc<Notify>,
    /// The breaker: something failed.
    pub auto_disable: Arc<Notify>,
}
