//! The ways by which a run hears that somebody wants it to end.
//!
//! A request to cancel is told twice. It is published on the cancellation channel, which reaches whoever listens within a
//! millisecond and nobody else; and it is written to the key `cancel:{occurrence}`, which waits to be read. The channel
//! makes it quick, the key makes it sure: it is read when the listener has connected again, with every heartbeat, and
//! by the claim of a delivery that has not started yet. So a request is heard however the connection behaves, at the latest
//! a heartbeat after Redis is back. [`CancelRequest`] has the form of both.

use futures::StreamExt;
use milvaion_protocol::{id::OccurrenceId, topology::RedisKeys};
use redis::Client;
use tokio::time::sleep;

use crate::{
    delivery::cancel_request::CancelRequest,
    delivery::claim::{ClaimStore, RedisUnavailable, with_timeout},
    delivery::run_table::RunTable,
    net::connection::JitteredBackoff,
};

/// Listens on the channel for ever.
pub(crate) async fn listen(client: Client, keys: RedisKeys, claims: ClaimStore, running: RunTable) {
    let mut backoff = JitteredBackoff::new();
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
    keys: &RedisKeys,
    claims: &ClaimStore,
    running: &RunTable,
    backoff: &mut JitteredBackoff,
) -> Result<(), RedisUnavailable> {
    let mut channel = with_timeout(client.get_async_pubsub()).await?;
    with_timeout(channel.subscribe(keys.cancellation_channel())).await?;
    // What was published before this moment was heard by nobody here.
    catch_up(claims, running).await?;
    backoff.reset();
    let mut messages = channel.on_message();
    while let Some(message) = messages.next().await {
        let request = serde_json::from_slice::<CancelRequest>(message.get_payload_bytes());
        match request.map(|request| (request.occurrence_id, request)) {
            Ok((Some(occurrence), request)) => running.cancel(occurrence, &request),
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
pub(crate) async fn catch_up(claims: &ClaimStore, running: &RunTable) -> Result<(), RedisUnavailable> {
    let occurrences: Vec<OccurrenceId> = running.begun().into_iter().map(|(occurrence, _)| occurrence).collect();
    for (occurrence, text) in claims.cancellations(&occurrences).await? {
        running.cancel(occurrence, &CancelRequest::read(&text));
    }
    Ok(())
}
