//! Marks the occurrences whose messages the broker has confirmed; see [`MessageSender`] for the delay.

use std::time::Duration;

use crate::engine::{Service, context::Context, sender::MessageSender};

/// The longest time until a confirmed message is marked.
const MARK_DELAY: Duration = Duration::from_millis(500);

/// The background task that marks published occurrences.
#[derive(Debug)]
pub struct PublishMarker {
    /// The sender that records confirmed messages.
    pub sender: MessageSender,
}

impl PublishMarker {
    /// Creates the marker of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self { sender: context.sender.clone() }
    }
}

/// The result of one tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PublishMarkReport {
    /// Rows marked that no report had marked before.
    pub rows: u64,
}

impl Service for PublishMarker {
    const NAME: &'static str = "publish-marker";
    type Report = PublishMarkReport;

    fn period(&self) -> Duration {
        MARK_DELAY
    }

    async fn tick(&mut self) -> anyhow::Result<PublishMarkReport> {
        Ok(PublishMarkReport { rows: self.sender.mark().await? })
    }

    fn is_notable(_: &PublishMarkReport) -> bool {
        false
    }
}
