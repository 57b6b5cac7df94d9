//! New occurrences that programs and jobs publish: checked, stored in bulk, answered, and sent to their workers.
//!
//! Each message is one transaction of a few statements. It is acknowledged after the commit, so a message that is
//! redelivered finds its occurrences by their receipts and creates nothing. An answer goes to the direct reply-to address
//! of the producer; what is refused without an answer becomes a dead letter with the reason, because nothing else shows it.

use std::collections::BTreeMap;

use milvaion_protocol::{
    exact_json::first_rounded_number,
    message::{IngestOutcome, IngestReply, IngestResult, MAX_INGEST_OCCURRENCES, MAX_MESSAGE_BYTES, NewOccurrence},
    storable::clean_text,
};
use milvaion_telemetry::occurrences::SpanStart;
use serde_json::{Value, json, value::RawValue};

use crate::{
    broker::{
        consumer::{BatchHandler, Channel, Delivery},
        reply,
    },
    command::{enqueue::rejected, jobs::JobCommands},
    engine::context::Context,
    faults,
    store::dead_letters::{MAX_STORED_BODY_BYTES, NewDeadLetter},
};

/// The longest name of a producer, in characters.
const MAX_PRODUCER_CHARS: usize = 200;

/// The consumer of the ingest queue.
#[derive(Clone, Debug)]
pub struct EnqueueConsumer {
    /// The commands that create occurrences.
    pub jobs: JobCommands,
    /// The name of the queue, for dead letters.
    pub queue: String,
}

impl EnqueueConsumer {
    /// Creates the consumer of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self { jobs: JobCommands::of(context), queue: context.broker.topology().ingest() }
    }

    /// Stores the occurrences of one message, and returns the answer to it.
    ///
    /// # Errors
    ///
    /// Returns an error if PostgreSQL fails; then nothing was stored.
    pub async fn take(&self, body: &[u8]) -> anyhow::Result<IngestReply> {
        let (occurrences, producer) = match read(body) {
            Ok(read) => read,
            Err(reason) => return Ok(IngestReply { error: Some(reason), ..IngestReply::default() }),
        };
        let readable: Vec<NewOccurrence> = occurrences.iter().filter_map(|one| one.as_ref().ok()).cloned().collect();
        let start = SpanStart::now();
        let by = Some(producer.as_str()).filter(|name| !name.is_empty());
        faults::crash_point("enqueue.before_commit");
        let report = self.jobs.enqueue(&readable, by).await?;
        faults::crash_point("enqueue.after_commit");
        let queued = self.jobs.announce_created(report.created, "enqueue", start);
        self.jobs.sender.send_created(queued).await;
        let mut results = report.results.into_iter();
        let results = occurrences.into_iter().filter_map(|occurrence| match occurrence {
            Ok(_) => results.next(),
            Err(refused) => Some(refused),
        });
        Ok(IngestReply { results: results.collect(), error: None })
    }

    /// Stores what was refused as dead letters: one for each reason, so that a message with one mistake in each of its 500
    /// occurrences leaves no 500 of them.
    async fn store_refused(&self, body: &[u8], reply: &IngestReply) -> anyhow::Result<()> {
        if let Some(reason) = &reply.error {
            return self.store_dead_letter(body, reason).await;
        }
        let refused = |result: &IngestResult| result.outcome == IngestOutcome::Rejected;
        if !reply.results.iter().any(refused) {
            return Ok(());
        }
        // The occurrences as they were published, also those that cannot be read.
        let raw: RawIngestMessage<'_> = serde_json::from_slice(body)?;
        let mut by_reason: BTreeMap<&str, Vec<Vec<&RawValue>>> = BTreeMap::new();
        let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
        let results = reply.results.iter().zip(raw.occurrences);
        for (result, occurrence) in results.filter(|(result, _)| refused(result)) {
            let reason = result.reason.as_deref().unwrap_or("It was rejected.");
            let parts = by_reason.entry(reason).or_default();
            let size = sizes.entry(reason).or_default();
            let bytes = occurrence.get().len() + 1;
            // A dead letter keeps a part of a long body only.
            if parts.is_empty() || *size + bytes > MAX_STORED_BODY_BYTES - 1_024 {
                parts.push(Vec::new());
                *size = 0;
            }
            *size += bytes;
            if let Some(part) = parts.last_mut() {
                part.push(occurrence);
            }
        }
        for (reason, parts) in by_reason {
            for occurrences in parts {
                let body = serde_json::to_vec(&RawIngestMessage { occurrences, producer: raw.producer.clone() })?;
                self.store_dead_letter(&body, reason).await?;
            }
        }
        Ok(())
    }

    async fn store_dead_letter(&self, body: &[u8], reason: &str) -> anyhow::Result<()> {
        let id = self.jobs.clock.dead_letter_id();
        let dead_letter = NewDeadLetter::new(id, self.queue.clone(), json!({}), body, reason);
        self.jobs.store.insert_dead_letter(&dead_letter, self.jobs.clock.now()).await?;
        self.jobs.store.metrics().dead_letter();
        Ok(())
    }
}

/// A message whose occurrences are texts, so that one that cannot be read spoils no other, and that a dead letter has the
/// numbers as they were published.
#[derive(serde::Deserialize, serde::Serialize)]
struct RawIngestMessage<'a> {
    #[serde(borrow)]
    occurrences: Vec<&'a RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    producer: Option<String>,
}

/// The occurrences of a message, each readable or with its result, and the name of the producer.
type ReadMessage = (Vec<Result<NewOccurrence, IngestResult>>, String);

/// Reads a message, or returns the reason why it is refused as a whole.
fn read(body: &[u8]) -> Result<ReadMessage, String> {
    if body.len() > MAX_MESSAGE_BYTES {
        return Err(format!("The message has {} bytes; the maximum is {MAX_MESSAGE_BYTES}.", body.len()));
    }
    let raw: RawIngestMessage<'_> = serde_json::from_slice(body).map_err(|error| {
        format!("The message cannot be read: {error}. Publish it as the schema ingest-message demands.")
    })?;
    let count = raw.occurrences.len();
    if count > MAX_INGEST_OCCURRENCES {
        return Err(format!("The message has {count} occurrences; the maximum is {MAX_INGEST_OCCURRENCES}."));
    }
    let occurrences = raw.occurrences.iter().map(|occurrence| read_occurrence(occurrence.get())).collect();
    let producer = raw.producer.unwrap_or_default();
    Ok((occurrences, clean_text(producer.chars().take(MAX_PRODUCER_CHARS).collect::<String>())))
}

/// Reads an occurrence, or returns the result that refuses it. A number that would be rounded is refused, as in requests and
/// forms: the job would receive another id or amount than was published. A reason has neither a position nor the number, so
/// that equal mistakes have one reason.
fn read_occurrence(json: &str) -> Result<NewOccurrence, IngestResult> {
    let occurrence: NewOccurrence = serde_json::from_str(json).map_err(|error| {
        let value = serde_json::from_str::<Value>(json);
        let id = value.as_ref().ok().and_then(|value| value.get("id")?.as_str()?.parse().ok());
        let error = value.and_then(serde_json::from_value::<NewOccurrence>).err().unwrap_or(error);
        rejected(id.unwrap_or_default(), format!("The occurrence cannot be read: {error}."))
    })?;
    match first_rounded_number(json) {
        None => Ok(occurrence),
        Some(number) => {
            let path = number.field.trim_start_matches('/');
            let reason = format!("{path}: the number has more digits than can be stored. Send it as text.");
            Err(rejected(occurrence.id, reason))
        }
    }
}

impl BatchHandler for EnqueueConsumer {
    const NAME: &'static str = "milvaion server enqueue";
    const KEEPS_REFUSED: bool = true;

    fn is_retryable(error: &anyhow::Error) -> bool {
        super::is_retryable(error)
    }

    async fn handle(&self, bodies: Vec<Vec<u8>>) -> anyhow::Result<()> {
        for body in bodies {
            let reply = self.take(&body).await?;
            self.store_refused(&body, &reply).await?;
        }
        Ok(())
    }

    async fn handle_deliveries(&self, channel: &Channel, batch: &[Delivery]) -> anyhow::Result<()> {
        for delivery in batch {
            let answer = self.take(&delivery.data).await?;
            if reply::is_requested(delivery) {
                reply::send(channel, delivery, &serde_json::to_vec(&answer)?).await?;
            } else {
                self.store_refused(&delivery.data, &answer).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_occurrence_spoils_no_other() {
        let id = "01932f3c-0000-7000-8000-000000000001";
        let one = |key: &str, number: &str| format!(r#"{{"id":"{id}","jobKey":{key},"input":{{"id":{number}}}}}"#);
        let exact = one("\"a\"", "18446744073709551615");
        let (numbered, rounded) = (one("7", "1"), one("\"a\"", "18446744073709551616"));
        let body = format!(r#"{{"occurrences":[{exact},{numbered},{rounded},7],"producer":"p"}}"#);
        let (occurrences, producer) = read(body.as_bytes()).expect("the message is readable");
        assert_eq!((occurrences.len(), producer.as_str()), (4, "p"));
        assert!(occurrences[0].is_ok());
        for (refused, expected) in
            occurrences[1..3].iter().zip(["The occurrence cannot", "input/id: the number has more"])
        {
            let refused = refused.as_ref().expect_err("refused");
            assert_eq!((refused.id.to_string().as_str(), refused.outcome), (id, IngestOutcome::Rejected));
            assert!(refused.reason.as_ref().is_some_and(|reason| reason.starts_with(expected)), "{refused:?}");
        }
        assert!(occurrences[3].as_ref().expect_err("a number").reason.is_some());
    }

    #[test]
    fn ingest_vectors_are_read_in_parts() {
        let vectors = include_str!("../../../docs/protocol/vectors/ingest-message.json");
        let vectors: Value = serde_json::from_str(vectors).expect("JSON");
        let list = |verdict: &str| vectors[verdict].as_array().cloned().expect("a list");
        for vector in list("partly") {
            let (occurrences, _) = read(vector["body"].to_string().as_bytes()).expect("readable in parts");
            let refused = occurrences.iter().enumerate().filter(|(_, occurrence)| occurrence.is_err());
            let refused: Vec<String> = refused.map(|(index, _)| format!("occurrences[{index}]")).collect();
            assert_eq!(json!(refused), vector["leftOut"], "{}", vector["name"]);
        }
        for vector in list("reject") {
            read(vector["body"].to_string().as_bytes()).expect_err("refused as a whole");
        }
    }

    #[test]
    fn whole_message_is_refused_with_a_reason() {
        let too_many = json!({ "occurrences": vec![json!({}); 501] }).to_string();
        for (body, expected) in [("{", "cannot be read"), ("{}", "cannot be read"), (&too_many, "maximum is 500")] {
            let reason = read(body.as_bytes()).expect_err("it is refused");
            assert!(reason.contains(expected), "{reason}");
        }
    }
}
