//! Notices when a worker instance falls silent, so that open pages say so without being asked.

use std::{collections::HashSet, time::Duration};

use milvaion_api::events::LiveEvent;
use milvaion_protocol::message::HEARTBEAT_INTERVAL_SECONDS;

use super::BackgroundTask;
use crate::{clock::Clock, domain::liveness, live::Hub, store::Store};

/// The task.
#[derive(Debug)]
pub struct WorkerPresence {
    /// The truth.
    pub store: Store,
    /// The way to browsers.
    pub hub: Hub,
    /// What time it is.
    pub clock: Clock,
    /// Who was there at the last tick.
    pub last_alive: HashSet<(String, String)>,
}

/// What one tick saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresenceReport {
    /// Job types with a live instance.
    pub alive: usize,
    /// Whether that changed.
    pub changed: bool,
}

impl BackgroundTask for WorkerPresence {
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
