//! Status reports: folded, applied in one transaction, told to browsers after the commit.

use std::sync::Arc;

use protocol::{
    event::Event,
    message::{StatusMessage, StatusReport},
    status::OccurrenceStatus,
};
use tokio::sync::Notify;

use crate::{broker::consumer::Handler, clock::Clock, domain::transition, live::Hub, store::Store};

/// The consumer of the status queue.
#[derive(Clone, Debug)]
pub struct StatusIntake {
    /// The truth.
    pub store: Store,
    /// The way to browsers.
    pub hub: Hub,
    /// What time it is.
    pub clock: Clock,
    /// Wakes the breaker.
    pub failed: Arc<Notify>,
}

impl StatusIntake {
    /// Applies reports in the order they came. Returns how many occurrences changed.
    ///
    /// # Errors
    ///
    /// When the database does not answer; then nothing was applied.
    pub async fn apply(&self, reports: Vec<StatusReport>) -> anyhow::Result<usize> {
        let changes = transition::fold(reports);
        let now = self.clock.now();
        let rows = self.store.apply(&changes, now).await?;
        let changed = rows.len();
        if rows.iter().any(|row| matches!(row.status, OccurrenceStatus::Failed | OccurrenceStatus::TimedOut)) {
            self.failed.notify_one();
        }
        if changed > 0 {
            self.hub.publish(now, vec![Event::Occurrences { rows }]);
        }
        if changed < changes.len() {
            tracing::debug!(
                reports = changes.len(),
                changed,
                "some reports were late, repeated or about something unknown"
            );
        }
        Ok(changed)
    }
}

impl Handler for StatusIntake {
    const NAME: &'static str = "milvaion server status";

    async fn handle(&self, bodies: Vec<Vec<u8>>) -> anyhow::Result<()> {
        let reports = super::read::<StatusMessage>(Self::NAME, bodies)
            .into_iter()
            .flat_map(StatusMessage::into_reports)
            .collect();
        self.apply(reports).await.map(drop)
    }
}
