//! Log lines: appended in one statement, told to those who look at the occurrence.

use std::collections::BTreeMap;

use milvaion_api::events::LiveEvent;
use milvaion_protocol::{
    id::OccurrenceId,
    message::{LogLine, LogMessage, MAX_LOG_LINE_BYTES, truncate_text},
};

use crate::{broker::consumer::BatchHandler, clock::Clock, domain::transition::clean, faults, live::Hub, store::Store};

/// The consumer of the log queue.
#[derive(Clone, Debug)]
pub struct LogConsumer {
    /// The truth.
    pub store: Store,
    /// The way to browsers.
    pub hub: Hub,
    /// What time it is.
    pub clock: Clock,
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
        faults::point("logs.before_commit");
        self.store.append_logs(&lines).await?;
        faults::point("logs.after_commit");
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

/// jsonb cannot hold NUL, and a line's fields are not a place for documents.
fn is_storable(data: &serde_json::Value) -> bool {
    let text = data.to_string();
    text.len() <= MAX_LOG_LINE_BYTES && !text.contains("\\u0000")
}
