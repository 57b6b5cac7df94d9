//! Log lines: appended in one statement, told to those who look at the occurrence.

use std::collections::BTreeMap;

use milvaion_api::event::Event;
use milvaion_protocol::{
    id::OccurrenceId,
    message::{LogLine, LogMessage, MAX_LOG_LINE, cut},
};

use crate::{broker::consumer::Handler, clock::Clock, domain::transition::clean, faults, live::Hub, store::Store};

/// The consumer of the log queue.
#[derive(Clone, Debug)]
pub struct LogIntake {
    /// The truth.
    pub store: Store,
    /// The way to browsers.
    pub hub: Hub,
    /// What time it is.
    pub clock: Clock,
}

impl Handler for LogIntake {
    const NAME: &'static str = "milvaion server logs";

    fn may_succeed(error: &anyhow::Error) -> bool {
        super::may_succeed(error)
    }

    async fn handle(&self, bodies: Vec<Vec<u8>>) -> anyhow::Result<()> {
        let lines: Vec<(OccurrenceId, LogLine)> = super::read::<LogMessage>(Self::NAME, bodies)
            .into_iter()
            .flat_map(|message| message.lines.into_iter().map(move |line| (message.occurrence_id, line)))
            .map(|(id, line)| {
                (
                    id,
                    LogLine {
                        message: clean(cut(line.message, MAX_LOG_LINE)),
                        data: line.data.filter(is_storable),
                        ..line
                    },
                )
            })
            .collect();
        if lines.is_empty() {
            return Ok(());
        }
        faults::point("cp15");
        self.store.append_logs(&lines).await?;
        faults::point("cp15b");
        let mut by_occurrence: BTreeMap<OccurrenceId, Vec<LogLine>> = BTreeMap::new();
        for (id, line) in lines {
            by_occurrence.entry(id).or_default().push(line);
        }
        let events =
            by_occurrence.into_iter().map(|(occurrence_id, lines)| Event::Log { occurrence_id, lines }).collect();
        self.hub.publish(self.clock.now(), events);
        Ok(())
    }
}

/// jsonb cannot hold NUL, and a line's fields are not a place for documents.
fn is_storable(data: &serde_json::Value) -> bool {
    let text = data.to_string();
    text.len() <= MAX_LOG_LINE && !text.contains("\\u0000")
}
