//! Detects that a worker instance came or stopped sending heartbeats, so that open pages are updated.

use std::{collections::HashSet, time::Duration};

use milvaion_api::events::LiveEvent;
use milvaion_protocol::message::HEARTBEAT_INTERVAL_SECONDS;

use crate::{
    clock::Clock,
    domain::liveness,
    engine::{Service, context::Context},
    live::Hub,
    store::Store,
};

/// The background task that watches worker instances.
#[derive(Debug)]
pub struct WorkerPresence {
    /// The PostgreSQL store.
    pub store: Store,
    /// The hub for live events.
    pub hub: Hub,
    /// The server's clock.
    pub clock: Clock,
    /// The live workers with their job types, as of the last tick.
    pub last_alive: HashSet<(String, String)>,
}

impl WorkerPresence {
    /// Creates the service of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            store: context.store.clone(),
            hub: context.hub.clone(),
            clock: context.clock.clone(),
            last_alive: Default::default(),
        }
    }
}

/// The result of one tick.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PresenceReport {
    /// The number of job types with a live instance.
    pub alive: usize,
    /// True if the live job types changed.
    pub changed: bool,
}

impl Service for WorkerPresence {
    const NAME: &'static str = "presence";
    type Report = PresenceReport;

    fn period(&self) -> Duration {
        Duration::from_secs(HEARTBEAT_INTERVAL_SECONDS)
    }

    async fn tick(&mut self) -> anyhow::Result<PresenceReport> {
        let now = self.clock.now();
        let alive = self.store.alive_types(liveness::alive_since(now)).await?;
        let changed = alive != self.last_alive;
        if changed {
            self.hub.publish(now, vec![LiveEvent::Workers]);
        }
        self.last_alive = alive;
        Ok(PresenceReport { alive: self.last_alive.len(), changed })
    }

    fn is_notable(report: &PresenceReport) -> bool {
        report.changed
    }
}
