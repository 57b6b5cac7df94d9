//! The ways by which a run hears that somebody wants it to end.
//!
//! A wish to cancel is told twice. It is published on the cancellation channel, which reaches whoever listens within a
//! millisecond and nobody else; and it is written to the key `cancel:{occurrence}`, which waits to be read. The channel
//! makes it quick, the key makes it sure: it is read when the listener has connected again, with every heartbeat, and
//! by the claim of a delivery that has not started yet. So a wish is heard however the connection behaves, at the latest
//! a heartbeat after Redis is back.
//!
//! The message on the channel, and the value at the key:
//!
//! ```json
//! {"occurrenceId": "0190a0a0-0000-7000-8000-000000000000", "attempt": 2, "reason": "cancelled by ann: wrong customer"}
//! ```
//!
//! Without an attempt it means whichever runs; with one, that one and those before it. A value that is not of this form
//! is taken for the reason.

use futures::StreamExt;
use milvaion_protocol::{id::OccurrenceId, topology::Keys};
use redis::Client;
use serde::Deserialize;
use tokio::time::sleep;

use crate::{
    claim::{Claims, Unreachable, within},
    connection::Backoff,
    running::Running,
};

/// What is told when no reason is given.
const NO_REASON: &str = "cancelled on request";

/// What somebody wants.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Wish {
    #[serde(default)]
    occurrence_id: Option<OccurrenceId>,
    #[serde(default)]
    attempt: Option<u32>,
    #[serde(default)]
    reason: Option<String>,
}

impl Wish {
    /// Reads what stands at a `cancel:` key.
    pub(crate) fn read(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_else(|_| Self { reason: Some(text.trim().to_owned()), ..Self::default() })
    }

    /// Whether this attempt is to end.
    pub(crate) fn means(&self, attempt: u32) -> bool {
        self.attempt.is_none_or(|highest| attempt <= highest)
    }

    /// The reason, for people.
    pub(crate) fn reason(&self) -> &str {
        self.reason.as_deref().filter(|reason| !reason.is_empty()).unwrap_or(NO_REASON)
    }
}

/// Listens on the channel for ever.
pub(crate) async fn listen(client: Client, keys: Keys, claims: Claims, running: Running) {
    let mut backoff = Backoff::new();
    loop {
        let error = match hear(&client, &keys, &claims, &running, &mut backoff).await {
            Ok(()) => "the connection was closed".to_owned(),
            Err(error) => error.to_string(),
        };
        let pause = backoff.next();
        tracing::warn!(
            error,
            retry_ms = pause.as_millis() as u64,
            "cancellations are not heard at once; they are read with the heartbeat"
        );
        sleep(pause).await;
    }
}

async fn hear(
    client: &Client,
    keys: &Keys,
    claims: &Claims,
    running: &Running,
    backoff: &mut Backoff,
) -> Result<(), Unreachable> {
    let mut channel = within(client.get_async_pubsub()).await?;
    within(channel.subscribe(keys.cancellation_channel())).await?;
    // What was published before this moment was heard by nobody here.
    catch_up(claims, running).await?;
    backoff.reset();
    let mut messages = channel.on_message();
    while let Some(message) = messages.next().await {
        let wish = serde_json::from_slice::<Wish>(message.get_payload_bytes());
        match wish.map(|wish| (wish.occurrence_id, wish)) {
            Ok((Some(occurrence), wish)) => running.cancel(occurrence, &wish),
            Ok((None, _)) => tracing::warn!("a cancellation names no occurrence; it is ignored"),
            Err(error) => tracing::warn!(error = %error, "a cancellation cannot be read; it is ignored"),
        }
    }
    Ok(())
}

/// Reads the keys of everything that runs here.
///
/// # Errors
/// When Redis does not answer.
pub(crate) async fn catch_up(claims: &Claims, running: &Running) -> Result<(), Unreachable> {
    let occurrences: Vec<OccurrenceId> = running.begun().into_iter().map(|(occurrence, _)| occurrence).collect();
    for (occurrence, text) in claims.cancellations(&occurrences).await? {
        running.cancel(occurrence, &Wish::read(&text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_means_the_attempts_it_names() {
        let wish = Wish::read(r#"{"attempt": 2, "reason": "wrong customer"}"#);
        assert!(wish.means(1) && wish.means(2) && !wish.means(3));
        assert_eq!(wish.reason(), "wrong customer");
        assert!(Wish::read("{}").means(7));
        assert_eq!(Wish::read("{}").reason(), NO_REASON);
    }

    #[test]
    fn a_text_of_another_form_is_the_reason() {
        assert_eq!(Wish::read("by ann\n").reason(), "by ann");
        assert_eq!(Wish::read("").reason(), NO_REASON);
        assert_eq!(Wish::read("1").reason(), "1");
    }
}
