//! Log lines of runs: stored with one statement per batch, and announced to open pages.

use milvaion_api::events::LiveEvent;
use milvaion_protocol::{
    id::OccurrenceId,
    message::{LogLine, MAX_LOG_LINE_BYTES, truncate_text},
    reading::LogReading,
    storable::{clean_text, is_storable},
};

use crate::{
    broker::consumer::{BatchHandler, Channel, Delivery},
    clock::Clock,
    domain::log_trim::logs_to_trim,
    engine::context::Context,
    error::chain,
    faults,
    ingest::unreadable,
    live::Hub,
    store::{Store, unreadable::UnreadablePart},
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
        self.process(bodies.iter().map(|body| (body.as_slice(), None))).await
    }

    async fn handle_deliveries(&self, _: &Channel, batch: &[Delivery]) -> anyhow::Result<()> {
        self.process(batch.iter().map(|delivery| (delivery.data.as_slice(), super::sender(delivery)))).await
    }
}

impl LogConsumer {
    /// Stores the lines in some bodies, each with the instance that its properties name.
    async fn process(&self, bodies: impl Iterator<Item = (&[u8], Option<String>)>) -> anyhow::Result<()> {
        let now = self.clock.now();
        let (mut read, mut unreadable): (Vec<(OccurrenceId, LogLine)>, Vec<UnreadablePart>) = Default::default();
        for (body, sender) in bodies {
            match LogReading::of(body, now) {
                Ok(LogReading { message, problems }) => {
                    let id = message.occurrence_id;
                    unreadable.extend(unreadable::of_log(Some(id), &problems, sender.as_deref()));
                    read.extend(message.lines.into_iter().map(|line| (id, line)));
                }
                Err(problem) => {
                    super::log_unreadable(Self::NAME, body, &problem);
                    unreadable.extend(unreadable::of_log(None, &[problem], sender.as_deref()));
                }
            }
        }
        self.store_lines(read).await?;
        if unreadable::record(&self.store, "logs", &unreadable, now).await? {
            self.hub.publish(now, vec![LiveEvent::Workers]);
        }
        Ok(())
    }

    async fn store_lines(&self, lines: Vec<(OccurrenceId, LogLine)>) -> anyhow::Result<()> {
        let bounded = |line: LogLine| LogLine {
            message: clean_text(truncate_text(line.message, MAX_LOG_LINE_BYTES)),
            data: line.data.filter(|data| data.to_string().len() <= MAX_LOG_LINE_BYTES && is_storable(data)),
            ..line
        };
        let lines: Vec<(OccurrenceId, LogLine)> = lines.into_iter().map(|(id, line)| (id, bounded(line))).collect();
        if lines.is_empty() {
            return Ok(());
        }
        faults::crash_point("logs.before_commit");
        self.store.append_logs(&lines, self.clock.now()).await?;
        faults::crash_point("logs.after_commit");
        let bounds = self.store.log_bounds();
        let to_trim = logs_to_trim(&lines, bounds);
        self.hub.note_log_lines(lines.iter().map(|(id, _)| *id));
        for (id, first_seq) in to_trim {
            // The batch is not repeated, because its lines are stored; a later batch of the attempt trims the log.
            if let Err(error) = self.store.trim_log(id, first_seq, bounds, self.clock.now()).await {
                tracing::warn!(occurrence.id = %id, error = %chain(&error), "the log of occurrence {id} exceeds LOG_LINES or LOG_MEGABYTES and could not be trimmed");
            }
        }
        Ok(())
    }
}
