//! Dead letters: messages that no consumer could read, or that were given up.
//!
//! A dead letter about an open occurrence fails that occurrence. Any other is stored unchanged, for a user to examine.
//! A dead letter is acknowledged only after it was stored in one of the two ways, and none blocks those behind it: if
//! PostgreSQL rejects the change of the occurrence, the message is stored as one without an occurrence.
//!
//! A bundle is different: a worker rejects it because it cannot start all of its runs, or because the bundle was delivered
//! before. Nothing has failed, so those that have not started are sent again, each in a message of its own.

use std::sync::Arc;

use milvaion_api::{events::LiveEvent, failures::FailureCause};
use milvaion_protocol::{
    message::{JobBundle, JobMessage, MAX_BUNDLE_RUNS},
    topology::{BUNDLE_TYPE, HEADER_CAUSE},
};
use serde_json::Value;
use tokio::sync::Notify;

use crate::{
    broker::{
        consumer::{BatchHandler, Channel, Delivery, HEADER_REASON},
        raw_message::RawMessage,
    },
    clock::Clock,
    domain::fingerprint::fingerprint,
    engine::{context::Context, sender::MessageSender},
    error::{body_excerpt, chain},
    faults,
    live::Hub,
    store::{
        Store, StoreError,
        dead_letters::{DeadLetterOutcome, DeadLetteredRun, NewDeadLetter},
    },
};

/// The consumer of the dead letter queue.
#[derive(Clone, Debug)]
pub struct DeadLetterConsumer {
    /// The PostgreSQL store.
    pub store: Store,
    /// The hub for live events.
    pub hub: Hub,
    /// The server's clock.
    pub clock: Clock,
    /// The sender of job messages, for the runs of bundles.
    pub sender: MessageSender,
    /// The activator of the slot granter.
    pub activate_slot_granter: Arc<Notify>,
    /// The activator of auto-disable.
    pub activate_auto_disable: Arc<Notify>,
}

impl DeadLetterConsumer {
    /// Creates the consumer of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            store: context.store.clone(),
            hub: context.hub.clone(),
            clock: context.clock.clone(),
            sender: context.sender.clone(),
            activate_slot_granter: context.activators.slot_granter.clone(),
            activate_auto_disable: context.activators.auto_disable.clone(),
        }
    }
}

impl DeadLetterConsumer {
    /// Processes one dead letter.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL is down. Nothing was stored then, and the message must be redelivered.
    pub async fn take(&self, message: &RawMessage) -> Result<(), StoreError> {
        let reason = match read(message) {
            Ok(run) => match self.store.fail_dead_lettered(&run, self.clock.now()).await {
                Ok(DeadLetterOutcome::Failed(row)) => {
                    self.publish_failure(*row);
                    return Ok(());
                }
                Ok(DeadLetterOutcome::AlreadyFailed) => return Ok(()),
                Ok(DeadLetterOutcome::Unchanged(status)) => {
                    format!("{}; the occurrence was {} and is unchanged", run.reason, status.label())
                }
                Ok(DeadLetterOutcome::Unknown) => format!("{}; the occurrence does not exist", run.reason),
                Err(error) if error.is_outage() => return Err(error),
                Err(error) => {
                    tracing::error!(occurrence.id = %run.id, error = %chain(&error), "a dead letter could not fail occurrence {} and is stored unchanged", run.id);
                    format!("{}; the occurrence could not be failed", run.reason)
                }
            },
            Err(reason) => reason,
        };
        self.insert(message, &reason).await
    }

    /// Sends those runs of rejected bundles again that have not started. The republisher sends them at once; during a cluster
    /// pause they wait for its end, like those whose message the broker has lost.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if PostgreSQL fails. Nothing was stored then, and the bundles must be redelivered.
    pub async fn send_again(&self, bundles: &[JobBundle]) -> Result<(), StoreError> {
        let runs = bundles.iter().flat_map(|bundle| &bundle.runs);
        let runs = runs.map(|run| (run.occurrence_id, i32::try_from(run.attempt).unwrap_or(i32::MAX))).collect();
        let returned = self.store.return_bundled(runs, self.clock.now()).await?;
        if returned.is_empty() {
            return Ok(());
        }
        tracing::info!(
            bundles = bundles.len(),
            runs = returned.len(),
            "workers rejected {} bundles; {} of their runs have not started and are sent again",
            bundles.len(),
            returned.len()
        );
        self.sender.send_again(returned);
        Ok(())
    }

    fn publish_failure(&self, row: milvaion_api::views::OccurrenceRow) {
        self.hub.publish(self.clock.now(), vec![LiveEvent::Occurrences { rows: vec![row] }]);
        self.activate_slot_granter.notify_one();
        self.activate_auto_disable.notify_one();
    }

    async fn insert(&self, message: &RawMessage, reason: &str) -> Result<(), StoreError> {
        let (id, headers, now) = (self.clock.dead_letter_id(), message.headers.clone(), self.clock.now());
        let mut dead_letter = NewDeadLetter::new(id, source(message), headers, &message.body, reason);
        let mut stored = self.store.insert_dead_letter(&dead_letter, now).await;
        if let Err(error) = &stored
            && !error.is_outage()
        {
            tracing::warn!(error = %chain(error), "a dead letter could not be stored with its headers; it is stored without them");
            dead_letter.headers = Value::Object(serde_json::Map::new());
            stored = self.store.insert_dead_letter(&dead_letter, now).await;
        }
        match stored {
            Ok(()) => {}
            Err(error) if error.is_outage() => return Err(error),
            // This has never been observed, but one such message must not block all others forever.
            Err(error) => {
                tracing::error!(error = %chain(&error), body.bytes = message.body.len(), body.start = body_excerpt(&message.body), "a dead letter could not be stored and is dropped");
            }
        }
        self.store.metrics().dead_letter();
        Ok(())
    }
}

/// Reads the run that a dead letter is about, or returns the reason that it is about none. What a server has set aside is
/// about none: it may be a report that can be read as the job message of another worker's run.
fn read(message: &RawMessage) -> Result<DeadLetteredRun, String> {
    if let Some(reason) = message.headers.get(HEADER_REASON).and_then(Value::as_str) {
        return Err(reason.to_owned());
    }
    let job: JobMessage =
        serde_json::from_slice(&message.body).map_err(|error| format!("it is not a job message: {error}"))?;
    let word = message.headers.get(HEADER_CAUSE).and_then(Value::as_str);
    let cause = match word {
        None => FailureCause::Rejected,
        Some(word) => match FailureCause::parse(word) {
            Some(cause @ (FailureCause::Permanent | FailureCause::Exhausted | FailureCause::Poison)) => cause,
            _ => FailureCause::Rejected,
        },
    };
    let reason = match (cause, dead_lettered_from(&message.headers)) {
        (FailureCause::Permanent, _) => "given up by its worker: a retry cannot succeed".to_owned(),
        (FailureCause::Exhausted, _) => "given up by its worker: every attempt failed".to_owned(),
        (FailureCause::Poison, _) => {
            "given up by its worker: its runs crashed the worker's process repeatedly".to_owned()
        }
        (_, Some((why, queue))) => format!("no worker could take the message: {why} in {queue}"),
        (_, None) => "no worker could take the message".to_owned(),
    };
    Ok(DeadLetteredRun {
        id: job.occurrence_id,
        attempt: i32::try_from(job.attempt).unwrap_or(i32::MAX),
        cause,
        fingerprint: fingerprint(&reason),
        reason,
        by_worker: cause != FailureCause::Rejected,
    })
}

/// The crash point after each message, and after all bundles of a batch.
fn crash_after_store() {
    faults::crash_point("dead_letters.after_store");
}

/// Returns the bundle that a dead letter is. One that cannot be read, or that has more runs than a server sends, is stored
/// like any other message that cannot be read.
fn read_bundle(delivery: &Delivery) -> Option<JobBundle> {
    let is_bundle = delivery.properties.kind().as_ref().is_some_and(|kind| kind.as_str() == BUNDLE_TYPE);
    if is_bundle { parse_bundle(&delivery.data) } else { None }
}

fn parse_bundle(body: &[u8]) -> Option<JobBundle> {
    let bundle: JobBundle = serde_json::from_slice(body).ok()?;
    (bundle.runs.len() <= MAX_BUNDLE_RUNS).then_some(bundle)
}

/// Returns the broker's reason for the dead letter and its original queue, from the newest `x-death` entry.
fn dead_lettered_from(headers: &Value) -> Option<(&str, &str)> {
    let newest = headers.get("x-death")?.get(0)?;
    Some((newest.get("reason")?.as_str()?, newest.get("queue")?.as_str()?))
}

/// Returns the original queue, or the exchange and routing key of a message published directly.
fn source(message: &RawMessage) -> String {
    let source = match dead_lettered_from(&message.headers) {
        Some((_, queue)) => queue.to_owned(),
        None => format!("{}/{}", message.exchange, message.routing_key),
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
        let (mut bundles, mut bundled, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for delivery in batch {
            match read_bundle(delivery) {
                Some(bundle) => {
                    bundles.push(bundle);
                    bundled.push(delivery);
                }
                None => others.push(delivery),
            }
        }
        if !bundles.is_empty() {
            match self.send_again(&bundles).await {
                Ok(()) => {}
                Err(error) if error.is_outage() => return Err(error.into()),
                Err(error) => {
                    tracing::error!(error = %chain(&error), bundles = bundles.len(), "the runs of {} rejected bundles could not be sent again, and the bundles are stored unchanged", bundles.len());
                    for delivery in bundled {
                        self.insert(&RawMessage::from(delivery), "a bundle whose runs could not be sent again").await?;
                    }
                }
            }
            crash_after_store();
        }
        for delivery in others {
            self.take(&RawMessage::from(delivery)).await?;
            crash_after_store();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ID: &str = "01980000-0000-7000-8000-000000000001";

    fn job() -> Value {
        json!({
            "occurrenceId": ID, "correlationId": ID, "jobId": ID, "jobType": "echo",
            "scheduledFor": "2026-01-01T00:00:00Z", "timestamp": "2026-01-01T00:00:00Z"
        })
    }

    #[test]
    fn bundle_has_as_many_runs_as_a_server_sends() {
        let runs = |count: usize| {
            let bundle = json!({ "runs": vec![job(); count] });
            parse_bundle(bundle.to_string().as_bytes()).map(|bundle| bundle.runs.len())
        };
        assert_eq!([0, 10, 11].map(runs), [Some(0), Some(10), None]);
        assert!(parse_bundle(b"{}").is_none());
    }

    #[test]
    fn message_that_was_set_aside_fails_no_run() {
        let (exchange, routing_key) = (String::new(), String::new());
        let message = RawMessage { body: job().to_string().into_bytes(), headers: json!({}), exchange, routing_key };
        assert!(read(&message).is_ok_and(|run| run.id.to_string() == ID), "the broker gave it up");
        let set_aside = RawMessage { headers: json!({ HEADER_REASON: "status: it can never be stored" }), ..message };
        assert_eq!(read(&set_aside).err().as_deref(), Some("status: it can never be stored"));
    }
}
