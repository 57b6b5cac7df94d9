//! Notices when a worker instance falls silent, so that open pages say so without being asked.

use std::{collections::HashSet, time::Duration};

use milvaion_api::event::Event;
use milvaion_protocol::message::HEARTBEAT_SECONDS;

use super::Task;
use crate::{clock::Clock, domain::liveness, live::Hub, store::Store};

/// The task.
#[derive(Debug)]
pub struct Presence {
    /// The truth.
    pub store: Store,
    /// The way to browsers.
    pub hub: Hub,
    /// What time it is.
    pub clock: Clock,
    /// Who was there at the last tick.
    pub known: HashSet<(String, String)>,
}

/// What one tick saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Job types with a live instance.
    pub alive: usize,
    /// Whether that changed.
    pub changed: bool,
}

impl Task for Presence {
    const NAME: &'static str = "presence";
    type Report = Seen;

    fn period(&self) -> Duration {
        Duration::from_secs(HEARTBEAT_SECONDS)
    }

    async fn tick(&mut self) -> anyhow::Result<Seen> {
        let now = self.clock.now();
        let alive = self.store.alive_types(liveness::alive_since(now)).await?;
        let changed = alive != self.known;
        if changed {
            self.hub.publish(now, vec![Event::Workers]);
        }
        self.known = alive;
        Ok(Seen { alive: self.known.len(), changed })
    }

    fn is_news(report: &Seen) -> bool {
        report.changed
    }
}
