//! The context: the connections and settings that the services share.
//!
//! Every service takes what it needs from here, so that a new one changes no line of another.

use std::sync::Arc;

use milvaion_timer::PreciseTimer;
use tokio::sync::watch;

use super::{
    activators::Activators,
    dispatch_pulse::DispatchPulse,
    leadership::Leadership,
    observations::{DeafSince, LastSnapshot},
    sender::MessageSender,
    status::ServiceStatuses,
};
use crate::{
    broker::{Broker, echo::Echo, publisher::Publisher},
    cache::Cache,
    clock::Clock,
    config::ServerConfig,
    live::Hub,
    notify::Notifier,
    store::Store,
};

/// What the services of one server share. Clones share the connections.
#[derive(Clone, Debug)]
pub struct Context {
    /// The settings.
    pub config: Arc<ServerConfig>,
    /// The name of this server, which its lease and its alerts show.
    pub server_name: String,
    /// Access to PostgreSQL for the services. Requests of users have connections of their own.
    pub store: Store,
    /// Access to PostgreSQL for the consumers of reports and heartbeats.
    pub reports: Store,
    /// Access to Redis.
    pub cache: Cache,
    /// Access to RabbitMQ.
    pub broker: Broker,
    /// The echoes that show whether the messages of workers arrive.
    pub echo: Echo,
    /// The publisher of messages to workers.
    pub publisher: Publisher,
    /// The sender of new occurrences.
    pub sender: MessageSender,
    /// The timer that wakes the sender at a due time.
    pub timer: PreciseTimer,
    /// The live events for browsers.
    pub hub: Hub,
    /// The sender of messages about alerts.
    pub notifier: Notifier,
    /// The state of each service of this server.
    pub services: ServiceStatuses,
    /// The clock of this server.
    pub clock: Clock,
    /// The activators of the services.
    pub activators: Activators,
    /// The leadership of this server.
    pub leadership: watch::Receiver<Leadership>,
    /// The pulse of this server's dispatcher.
    pub dispatch_pulse: DispatchPulse,
    /// The time since which no message of workers arrives.
    pub deaf_since: DeafSince,
    /// The oldest snapshot that a session of PostgreSQL holds.
    pub oldest_snapshot: LastSnapshot,
}
