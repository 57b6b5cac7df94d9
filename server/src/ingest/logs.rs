//! Log lines of runs: stored with one statement per batch, and published to open pages.

use std::collections::BTreeMap;

use milvaion_api::events::LiveEvent;
use milvaion_protocol::{
    id::OccurrenceId,
    message::{LogLine, LogMessage, MAX_LOG_LINE_BYTES, truncate_text},
};

use crate::{
    broker::consumer::BatchHandler, clock::Clock, domain::transition::clean, engine::context::Context, faults,
    live::Hub, store::Store,
};

/// The consumer of the log queue.
#[derive(Clone, Debug)]
pub struct LogConsumer {
    /// The PostgreSQL store.
    pub store: Store,
    /// The hub for live events.
    pub hub: Hub,
    /// The server's clock.
    pub clock: Clock,
}

impl LogConsumer {
    /// Creates the consumer of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self { store: context.store.clone(), hub: context.hub.clone(), clock: context.clock.clone() }
    }
}

impl BatchHandler for LogConsumer {
    const NAME: &'static str = "milvaion server logs";

    fn is_retryable(error: &anyhow::Error) -> bool {
        super::is_retryable(error)
    }

    async fn handle(&self, bodies: Vec<Vec<u8>>) -> anyhow::Result<()> {
        let lines: Vec<(OccurrenceId, LogLine)> = super::read::<LogMessage>(Self::NAME, bodies)
            .into_iter()
            .flat_map(|message| message.lines.into_iter().map(move |line| (message.occurrence_id, line)))
            .map(|(id, line)| {
                (
                    id,
                    LogLine {
                        message: clean(truncate_text(line.message, MAX_LOG_LINE_BYTES)),
                        data: line.data.filter(is_storable),
                        ..line
                    },
                )
            })
            .collect();
        if lines.is_empty() {
            return Ok(());
        }
        faults::crash_point("logs.before_commit");
        self.store.append_logs(&lines, self.clock.now()).await?;
        faults::crash_point("logs.after_commit");
        let mut by_occurrence: BTreeMap<OccurrenceId, Vec<LogLine>> = BTreeMap::new();
        for (id, line) in lines {
            by_occurrence.entry(id).or_default().push(line);
        }
        let events =
            by_occurrence.into_iter().map(|(occurrence_id, lines)| LiveEvent::Log { occurrence_id, lines }).collect();
        self.hub.publish(self.clock.now(), events);
        Ok(())
    }
}

/// Returns true if a line's data can be stored: jsonb cannot hold NUL, and its size is limited like that of the
/// message.
fn is_storable(data: &serde_json::Value) -> bool {
    let text = data.to_string();
    text.len() <= MAX_LOG_LINE_BYTES && !text.contains("\\u0000")
}
