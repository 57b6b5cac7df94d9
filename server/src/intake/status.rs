//! Status reports: folded, applied in one transaction, told to browsers after the commit.

use protocol::{
    event::Event,
    message::{StatusMessage, StatusReport},
};

use crate::{
    background::wakes::Wakes,
    broker::consumer::Handler,
    clock::Clock,
    domain::transition,
    live::Hub,
    store::{Store, reports::Applied},
};

/// The consumer of the status queue.
#[derive(Clone, Debug)]
pub struct StatusIntake {
    /// The truth.
    pub store: Store,
    /// Who is to look when a slot is free, a pause begins or a job failed.
    pub wakes: Wakes,
    /// The way to browsers.
    pub hub: Hub,
    /// What time it is.
    pub clock: Clock,
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
        let Applied { rows, freed, failed, pauses } = self.store.apply(&changes, now).await?;
        let changed = rows.len();
        if freed || pauses {
            self.wakes.release.notify_one();
        }
        if failed {
            self.wakes.breaker.notify_one();
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
