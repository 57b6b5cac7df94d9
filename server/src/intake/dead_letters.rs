//! Dead letters: messages that nobody could make anything of, or that were given up.
//!
//! One of ours about an occurrence we know settles that occurrence. Everything else is kept as it came, for somebody to
//! look at. A letter is acknowledged only once it is stored in the one way or the other, and none holds up those behind
//! it: what the database does not take in its proper place is kept as a message of no meaning.

use std::sync::Arc;

use milvaion_api::{event::Event, failure::Cause};
use milvaion_protocol::{message::JobMessage, topology::HEADER_CAUSE};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use crate::{
    broker::{
        consumer::{Channel, Delivery, Handler},
        letter::Letter,
    },
    clock::Clock,
    domain::{fingerprint::fingerprint, transition::clean},
    error::chain,
    faults,
    live::Hub,
    store::{
        Store, StoreError,
        dead_letters::{GivenUp, KEEP_BYTES, NewDeadLetter, Settled},
    },
};

/// The consumer of the dead letter queue.
#[derive(Clone, Debug)]
pub struct DeadLetterIntake {
    /// The truth.
    pub store: Store,
    /// The way to browsers.
    pub hub: Hub,
    /// What time it is.
    pub clock: Clock,
    /// Wakes whoever hands out slots.
    pub release: Arc<Notify>,
    /// Wakes the breaker.
    pub failed: Arc<Notify>,
}

impl DeadLetterIntake {
    /// Takes in one letter.
    ///
    /// # Errors
    ///
    /// When the database is away; then nothing was stored and the letter must come again.
    pub async fn take(&self, letter: &Letter) -> Result<(), StoreError> {
        let reason = match read(letter) {
            Ok(given_up) => match self.store.give_up(&given_up, self.clock.now()).await {
                Ok(Settled::Failed(row)) => {
                    self.tell(*row);
                    return Ok(());
                }
                Ok(Settled::OnRecord) => return Ok(()),
                Ok(Settled::LeftAlone(status)) => {
                    format!("{}; the occurrence was {} and was left alone", given_up.reason, status.word())
                }
                Ok(Settled::Unknown) => format!("{}; the occurrence does not exist", given_up.reason),
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

    fn tell(&self, row: milvaion_api::view::OccurrenceRow) {
        self.hub.publish(self.clock.now(), vec![Event::Occurrences { rows: vec![row] }]);
        self.release.notify_one();
        self.failed.notify_one();
    }

    async fn keep(&self, letter: &Letter, reason: String) -> Result<(), StoreError> {
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
            body: letter.body[..letter.body.len().min(KEEP_BYTES)].to_vec(),
            body_bytes: i64::try_from(letter.body.len()).unwrap_or(i64::MAX),
        };
        match self.store.keep_dead_letter(&kept, now).await {
            Ok(()) => return Ok(()),
            Err(error) if error.is_outage() => return Err(error),
            Err(error) => {
                tracing::warn!(error = %chain(&error), "a dead letter could not be kept with its headers");
            }
        }
        kept.headers = Value::Object(serde_json::Map::new());
        match self.store.keep_dead_letter(&kept, now).await {
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
fn read(letter: &Letter) -> Result<GivenUp, String> {
    let message: JobMessage = serde_json::from_slice(&letter.body)
        .map_err(|error| format!("it is no job message: {}", clean(error.to_string())))?;
    let word = letter.headers.get(HEADER_CAUSE).and_then(Value::as_str);
    let cause = match word {
        None => Cause::Rejected,
        Some(word) => match Cause::from_word(word) {
            Some(cause @ (Cause::Permanent | Cause::Exhausted | Cause::Poison)) => cause,
            _ => Cause::Rejected,
        },
    };
    let reason = match (cause, death(&letter.headers)) {
        (Cause::Permanent, _) => "given up by its worker: trying again is of no use".to_owned(),
        (Cause::Exhausted, _) => "given up by its worker: every attempt failed".to_owned(),
        (Cause::Poison, _) => "given up by its worker: its runs ended the worker's process again and again".to_owned(),
        (_, Some((why, queue))) => format!("no worker could take the message: {why} in {queue}"),
        (_, None) => "no worker could take the message".to_owned(),
    };
    Ok(GivenUp {
        id: message.occurrence_id,
        attempt: i32::try_from(message.attempt).unwrap_or(i32::MAX),
        cause,
        fingerprint: fingerprint(&reason),
        reason,
        by_worker: cause != Cause::Rejected,
    })
}

/// Why the broker moved it here, and from which queue: the newest of its notes.
fn death(headers: &Value) -> Option<(&str, &str)> {
    let newest = headers.get("x-death")?.get(0)?;
    Some((newest.get("reason")?.as_str()?, newest.get("queue")?.as_str()?))
}

fn source(letter: &Letter) -> String {
    let source = match death(&letter.headers) {
        Some((_, queue)) => queue.to_owned(),
        None => format!("{}/{}", letter.exchange, letter.routing_key),
    };
    source.chars().take(500).collect()
}

impl Handler for DeadLetterIntake {
    const NAME: &'static str = "milvaion server dead letters";

    async fn handle(&self, bodies: Vec<Vec<u8>>) -> anyhow::Result<()> {
        for body in bodies {
            let (exchange, routing_key) = (String::new(), String::new());
            self.take(&Letter { body, headers: Value::Null, exchange, routing_key }).await?;
        }
        Ok(())
    }

    async fn handle_whole(&self, _: &Channel, batch: &[Delivery]) -> anyhow::Result<()> {
        for delivery in batch {
            self.take(&Letter::from(delivery)).await?;
            faults::point("cp17");
        }
        Ok(())
    }
}
