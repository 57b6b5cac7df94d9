//! The activators: notifications that make a service tick before its period has passed.
//!
//! An activation says only that there may be work. It reaches the services of this server, not those of others.

use std::sync::Arc;

use tokio::sync::Notify;

/// One activator per service that other code may activate. Clones share the activators.
#[derive(Clone, Debug, Default)]
pub struct Activators {
    /// Activates the dispatcher after the schedule has changed.
    pub dispatcher: Arc<Notify>,
    /// Activates the due index rebuild when the index in Redis may be incomplete.
    pub due_index: Arc<Notify>,
    /// Activates the republisher after a message could not be published.
    pub republisher: Arc<Notify>,
    /// Activates the slot granter when a slot is free or an occurrence waits for one.
    pub slot_granter: Arc<Notify>,
    /// Activates auto-disable after a failure.
    pub auto_disable: Arc<Notify>,
    /// Activates the cancellation repeater after a cancel request.
    pub cancellation_repeater: Arc<Notify>,
    /// Activates the repair of instants in the future after PostgreSQL's clock was set back.
    pub clock_repair: Arc<Notify>,
}
