//! Dead letters: messages that nobody could make anything of, or that were given up.
//!
//! One of ours about an occurrence we know settles that occurrence. Everything else is kept as it came, for somebody to
//! look at. A letter is acknowledged only once it is stored in the one way or the other, and none holds up those behind
//! it: what the database does not take in its proper place is kept as a message of no meaning.

use std::sync::Arc;

use milvaion_api::{events::LiveEvent, failures::FailureCause};
use milvaion_protocol::{message::JobMessage, topology::HEADER_CAUSE};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use crate::{
    broker::{
        consumer::{BatchHandler, Channel, Delivery},
        raw_message::RawMessage,
    },
    clock::Clock,
    domain::{fingerprint::fingerprint, transition::clean},
    error::chain,
    faults,
    live::Hub,
    store::{
        Store, StoreError,
        dead_letters::{DeadLetterOutcome, DeadLetteredRun, MAX_STORED_BODY_BYTES, NewDeadLetter},
    },
};

/// The consumer of the dead letter queue.
#[derive(Clone, Debug)]
pub struct DeadLetterConsumer {
    /// The truth.
    pub store: Store,
    /// The way to browsers.
    pub hub: Hub,
    /// What time it is.
    pub clock: Clock,
    /// Wakes whoever hands out slots.
    pub activate_slot_granter: Arc<Notify>,
    /// Wakes the breaker.
    pub activate_auto_disable: Arc<Notify>,
}

impl DeadLetterConsumer {
    /// Takes in one letter.
    ///
    /// # Errors
    ///
    /// When the database is away; then nothing was stored and the letter must come again.
    pub async fn take(&self, letter: &RawMessage) -> Result<(), StoreError> {
        let reason = match read(letter) {
            Ok(given_up) => match self.store.fail_dead_lettered(&given_up, self.clock.now()).await {
                Ok(DeadLetterOutcome::Failed(row)) => {
                    self.tell(*row);
                    return Ok(());
                }
                Ok(DeadLetterOutcome::AlreadyFailed) => return Ok(()),
                Ok(DeadLetterOutcome::Unchanged(status)) => {
                    format!("{}; the occurrence was {} and was left alone", given_up.reason, status.label())
                }
                Ok(DeadLetterOutcome::Unknown) => format!("{}; the occurrence does not exist", given_up.reason),
                Err(error) if error.is_outage() => return Err(error),
                Err(error) => {
                    tracing::error!(occurrence.id = %given_up.id, error = %chain(&error), "a dead letter could not settle its occurrence; it is kept as it came");
                    format!("{}; the occurrence could not be settled", given_up.reason)
                }
            },
            Err(reason) => reason,
        };
        self.keep(letter, reason).await
    }

    fn tell(&self, row: milvaion_api::views::OccurrenceRow) {
        self.hub.publish(self.clock.now(), vec![LiveEvent::Occurrences { rows: vec![row] }]);
        self.activate_slot_granter.notify_one();
        self.activate_auto_disable.notify_one();
    }

    async fn keep(&self, letter: &RawMessage, reason: String) -> Result<(), StoreError> {
        let source = source(letter);
        let mut digest = Sha256::new();
        digest.update(source.as_bytes());
        digest.update([0]);
        digest.update(&letter.body);
        let digest: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let now = self.clock.now();
        let mut kept = NewDeadLetter {
            id: self.clock.dead_letter_id(),
            digest,
            reason: clean(reason),
            source,
            headers: letter.headers.clone(),
            body: letter.body[..letter.body.len().min(MAX_STORED_BODY_BYTES)].to_vec(),
            body_bytes: i64::try_from(letter.body.len()).unwrap_or(i64::MAX),
        };
        match self.store.insert_dead_letter(&kept, now).await {
            Ok(()) => return Ok(()),
            Err(error) if error.is_outage() => return Err(error),
            Err(error) => {
                tracing::warn!(error = %chain(&error), "a dead letter could not be kept with its headers");
            }
        }
        kept.headers = Value::Object(serde_json::Map::new());
        match self.store.insert_dead_letter(&kept, now).await {
            Ok(()) => Ok(()),
            Err(error) if error.is_outage() => Err(error),
            Err(error) => {
                // Never seen; but one such letter must not hold up all others for ever.
                let start: String =
                    String::from_utf8_lossy(&letter.body).chars().take(300).flat_map(char::escape_default).collect();
                tracing::error!(error = %chain(&error), body.bytes = letter.body.len(), body.start = start, "a dead letter could not be kept at all and is let go");
                Ok(())
            }
        }
    }
}

/// What a letter says about an occurrence, or why it says nothing we understand.
fn read(letter: &RawMessage) -> Result<DeadLetteredRun, String> {
    let message: JobMessage = serde_json::from_slice(&letter.body)
        .map_err(|error| format!("it is no job message: {}", clean(error.to_string())))?;
    let word = letter.headers.get(HEADER_CAUSE).and_then(Value::as_str);
    let cause = match word {
        None => FailureCause::Rejected,
        Some(word) => match FailureCause::parse(word) {
            Some(cause @ (FailureCause::Permanent | FailureCause::Exhausted | FailureCause::Poison)) => cause,
            _ => FailureCause::Rejected,
        },
    };
    let reason = match (cause, death(&letter.headers)) {
        (FailureCause::Permanent, _) => "given up by its worker: trying again is of no use".to_owned(),
        (FailureCause::Exhausted, _) => "given up by its worker: every attempt failed".to_owned(),
        (FailureCause::Poison, _) => {
            "given up by its worker: its runs ended the worker's process again and again".to_owned()
        }
        (_, Some((why, queue))) => format!("no worker could take the message: {why} in {queue}"),
        (_, None) => "no worker could take the message".to_owned(),
    };
    Ok(DeadLetteredRun {
        id: message.occurrence_id,
        attempt: i32::try_from(message.attempt).unwrap_or(i32::MAX),
        cause,
        fingerprint: fingerprint(&reason),
        reason,
        by_worker: cause != FailureCause::Rejected,
    })
}

/// Why the broker moved it here, and from which queue: the newest of its notes.
fn death(headers: &Value) -> Option<(&str, &str)> {
    let newest = headers.get("x-death")?.get(0)?;
    Some((newest.get("reason")?.as_str()?, newest.get("queue")?.as_str()?))
}

fn source(letter: &RawMessage) -> String {
    let source = match death(&letter.headers) {
        Some((_, queue)) => queue.to_owned(),
        None => format!("{}/{}", letter.exchange, letter.routing_key),
    };
    source.chars().take(500).collect()
}

impl BatchHandler for DeadLetterConsumer {
    const NAME: &'static str = "milvaion server dead letters";

    async fn handle(&self, bodies: Vec<Vec<u8>>) -> anyhow::Result<()> {
        for body in bodies {
            let (exchange, routing_key) = (String::new(), String::new());
            self.take(&RawMessage { body, headers: Value::Null, exchange, routing_key }).await?;
        }
        Ok(())
    }

    async fn handle_deliveries(&self, _: &Channel, batch: &[Delivery]) -> anyhow::Result<()> {
        for delivery in batch {
            self.take(&RawMessage::from(delivery)).await?;
            faults::point("dead_letters.after_store");
        }
        Ok(())
    }
}
