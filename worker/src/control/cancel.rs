//! Receives cancel requests from Redis.
//!
//! A cancel request is sent in two ways. It is published on the cancellation channel, which reaches current subscribers
//! within a millisecond and nothing else. It is also written to the key `cancel:{occurrence}`, where it stays until it
//! is read. The channel makes cancellation fast, the key makes it reliable: the key is read when the listener has
//! reconnected, with each heartbeat, and by the claim of a delivery that has not started yet. A request therefore takes
//! effect whatever happens to the connection, at the latest one heartbeat after Redis is available again. A subscription
//! that a network has lost silently ends when the heartbeats notice the same of their connection.
//! [`CancelRequest`] describes the format of both.

use futures::StreamExt;
use milvaion_protocol::{backoff::Backoff, id::OccurrenceId, topology::RedisKeys};
use tokio::time::sleep;

use crate::{
    clock,
    delivery::cancel_request::CancelRequest,
    delivery::claim::ClaimStore,
    delivery::run_table::RunTable,
    net::connection::LastWarning,
    net::redis::{RedisUnavailable, with_timeout},
};

/// Listens on the cancellation channel and reconnects whenever the connection is lost.
pub(crate) async fn listen(keys: RedisKeys, claims: ClaimStore, running: RunTable) {
    let (mut backoff, mut last_warning) = (Backoff::default(), LastWarning::default());
    loop {
        let error = match subscribe(&keys, &claims, &running, &mut backoff, &mut last_warning).await {
            Ok(()) => "the connection was closed".to_owned(),
            Err(error) => error.to_string(),
        };
        let pause = backoff.next_delay(clock::jitter());
        if last_warning.is_due() {
            tracing::warn!(
                error,
                retry_ms = pause.as_millis() as u64,
                "cannot receive cancel requests from Redis at once; heartbeats read them until the connection is back"
            );
        }
        sleep(pause).await;
    }
}

/// Applies published requests until the connection is closed.
async fn subscribe(
    keys: &RedisKeys,
    claims: &ClaimStore,
    running: &RunTable,
    backoff: &mut Backoff,
    last_warning: &mut LastWarning,
) -> Result<(), RedisUnavailable> {
    let mut replacements = claims.redis().replacements();
    let mut channel = with_timeout(claims.redis().client().get_async_pubsub()).await?;
    with_timeout(channel.subscribe(keys.cancellation_channel())).await?;
    // Requests that were published before the subscription are read from their keys.
    catch_up(claims, running).await?;
    backoff.reset();
    *last_warning = LastWarning::default();
    let mut messages = channel.on_message();
    loop {
        let message = tokio::select! {
            message = messages.next() => message,
            _ = replacements.changed() => None,
        };
        let Some(message) = message else { return Ok(()) };
        let request = CancelRequest::read(&String::from_utf8_lossy(message.get_payload_bytes()));
        match request.occurrence_id {
            Some(occurrence) => running.cancel(occurrence, &request),
            None => tracing::warn!("ignoring a cancel request that is no JSON object with an occurrence id"),
        }
    }
}

/// Reads and applies the cancel requests and the revocations of all current runs.
///
/// # Errors
/// Returns [`RedisUnavailable`] if Redis does not answer.
pub(crate) async fn catch_up(claims: &ClaimStore, running: &RunTable) -> Result<(), RedisUnavailable> {
    let occurrences: Vec<OccurrenceId> = running.begun().into_iter().map(|(occurrence, _)| occurrence).collect();
    for (occurrence, requests) in claims.requests(&occurrences).await? {
        if let Some(text) = requests.cancel {
            running.cancel(occurrence, &CancelRequest::read(&text));
        }
        if let Some(first) = requests.revoked_below {
            running.revoke(occurrence, first);
        }
    }
    Ok(())
}
