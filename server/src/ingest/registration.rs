//! Registrations, heartbeats and goodbyes of worker instances.
//!
//! A batch is stored with a few statements, whatever its size: after an outage of the broker all instances register again
//! at once, and their heartbeats wait in the same queue. The queues of their job types are not declared here. A worker
//! declares its own, and the publisher declares a queue before the first message to it.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use milvaion_api::{events::LiveEvent, requests::is_valid_name};
use milvaion_protocol::{
    message::{InstanceHeartbeat, InstanceHello, RegistrationMessage},
    topology::Topology,
};

use crate::{broker::consumer::BatchHandler, clock::Clock, engine::context::Context, live::Hub, store::Store};

/// The most job types that one worker may register.
const MAX_JOB_TYPES: usize = 500;
/// The largest JSON Schema of a job type, in bytes.
const MAX_SCHEMA_BYTES: usize = 128 * 1024;

/// The most that the registrations of one transaction weigh, so that PostgreSQL stores them in a fraction of the time
/// limit of a statement.
const MAX_TRANSACTION_WEIGHT: usize = 10_000;

/// The consumer of the registration queue.
#[derive(Clone, Debug)]
pub struct RegistrationConsumer {
    /// The PostgreSQL store.
    pub store: Store,
    /// The hub for live events.
    pub hub: Hub,
    /// The server's clock.
    pub clock: Clock,
}

impl RegistrationConsumer {
    /// Creates the consumer of a server.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self { store: context.reports.clone(), hub: context.hub.clone(), clock: context.clock.clone() }
    }

    /// Stores messages and returns true if pages show a change. Heartbeats come first: a server that starts with the
    /// registrations of a thousand instances in the queue must not count the others as lost.
    async fn store(&self, messages: FoldedMessages) -> anyhow::Result<bool> {
        let now = self.clock.now();
        let FoldedMessages { hellos, heartbeats, goodbyes } = messages;
        let (later, first): (Vec<_>, Vec<_>) =
            heartbeats.into_values().partition(|beat| hellos.contains_key(&beat.instance_id));
        let mut changed = self.store_heartbeats(&first, now).await?;
        let hellos: Vec<InstanceHello> = hellos.into_values().collect();
        for part in split_by_weight(&hellos) {
            self.store.store_hellos(part, now).await?;
        }
        for hello in &hellos {
            tracing::info!(
                worker.id = hello.worker_id,
                worker.instance = hello.instance_id,
                job_types = hello.job_types.len(),
                "worker {} registered instance {}",
                hello.worker_id,
                hello.instance_id
            );
        }
        changed |= self.store_heartbeats(&later, now).await?;
        if !goodbyes.is_empty() {
            let goodbyes: Vec<String> = goodbyes.into_iter().collect();
            self.store.store_goodbyes(&goodbyes, now).await?;
            for instance_id in &goodbyes {
                tracing::info!(worker.instance = instance_id, "instance {instance_id} has stopped");
            }
            changed = true;
        }
        Ok(changed || !hellos.is_empty())
    }

    /// Returns true if pages show a change, which most heartbeats do not.
    async fn store_heartbeats(&self, heartbeats: &[InstanceHeartbeat], now: DateTime<Utc>) -> anyhow::Result<bool> {
        if heartbeats.is_empty() {
            return Ok(false);
        }
        let stored = self.store.store_heartbeats(heartbeats, now).await?;
        for beat in heartbeats.iter().filter(|beat| !stored.contains_key(&beat.instance_id)) {
            tracing::debug!(
                worker.instance = beat.instance_id,
                "a heartbeat of instance {} arrived before its registration",
                beat.instance_id
            );
        }
        Ok(stored.into_values().any(|has_new_notice| has_new_notice))
    }
}

impl BatchHandler for RegistrationConsumer {
    const NAME: &'static str = "milvaion server registration";

    fn is_retryable(error: &anyhow::Error) -> bool {
        super::is_retryable(error)
    }

    async fn check(&self) -> anyhow::Result<()> {
        Ok(self.store.ping().await?)
    }

    async fn handle(&self, bodies: Vec<Vec<u8>>) -> anyhow::Result<()> {
        let mut changed = false;
        for messages in fold(super::read(Self::NAME, bodies)) {
            changed |= self.store(messages).await?;
        }
        if changed {
            self.hub.publish(self.clock.now(), vec![LiveEvent::Workers]);
        }
        Ok(())
    }
}

/// The last message of each kind of each instance.
#[derive(Debug, Default, PartialEq)]
struct FoldedMessages {
    hellos: BTreeMap<String, InstanceHello>,
    heartbeats: BTreeMap<String, InstanceHeartbeat>,
    /// The instances that have stopped. A goodbye is the last message of its instance here.
    goodbyes: BTreeSet<String>,
}

/// Folds messages, and drops refused registrations. An instance that registers again after its goodbye, which is rare,
/// begins another set.
fn fold(messages: Vec<RegistrationMessage>) -> Vec<FoldedMessages> {
    let mut sets = vec![FoldedMessages::default()];
    for message in messages {
        let instance = match &message {
            RegistrationMessage::Hello(hello) => {
                if let Err(reason) = check(hello) {
                    tracing::warn!(worker.id = %hello.worker_id.escape_default(), reason, "the registration of worker {} was refused: {reason}", hello.worker_id.escape_default());
                    continue;
                }
                hello.instance_id.clone()
            }
            RegistrationMessage::Heartbeat(beat) => beat.instance_id.clone(),
            RegistrationMessage::Goodbye { instance_id } => instance_id.clone(),
        };
        if sets.last().is_none_or(|set| set.goodbyes.contains(&instance)) {
            sets.push(FoldedMessages::default());
        }
        let Some(set) = sets.last_mut() else { continue };
        match message {
            RegistrationMessage::Hello(hello) => drop(set.hellos.insert(instance, hello)),
            RegistrationMessage::Heartbeat(beat) => drop(set.heartbeats.insert(instance, beat)),
            RegistrationMessage::Goodbye { .. } => drop(set.goodbyes.insert(instance)),
        }
    }
    sets
}

/// Splits registrations into parts that one transaction stores. Each weighs one, and each of its job types another one,
/// and one more for each KiB of the schema.
fn split_by_weight(hellos: &[InstanceHello]) -> Vec<&[InstanceHello]> {
    let weight = |hello: &InstanceHello| {
        let types = hello.job_types.iter().map(|info| 1 + info.schema.to_string().len() / 1024);
        1 + types.sum::<usize>()
    };
    let (mut parts, mut start, mut sum) = (Vec::new(), 0, 0);
    for (index, hello) in hellos.iter().enumerate() {
        let weight = weight(hello);
        if sum > 0 && sum + weight > MAX_TRANSACTION_WEIGHT {
            parts.push(&hellos[start..index]);
            (start, sum) = (index, 0);
        }
        sum += weight;
    }
    if start < hellos.len() {
        parts.push(&hellos[start..]);
    }
    parts
}

/// Checks the limits of a registration, and returns the reason for a refusal.
fn check(hello: &InstanceHello) -> Result<(), String> {
    if !is_valid_name(&hello.worker_id) {
        return Err("its worker id must have 1 to 100 letters, digits, -, _ or .".into());
    }
    if hello.instance_id.is_empty()
        || hello.instance_id.chars().count() > 200
        || hello.instance_id.contains(char::is_control)
    {
        return Err("its instance id must have 1 to 200 printable characters".into());
    }
    if hello.job_types.len() > MAX_JOB_TYPES {
        return Err(format!("it registers {} job types; the maximum is {MAX_JOB_TYPES}", hello.job_types.len()));
    }
    for info in &hello.job_types {
        if !is_valid_name(&info.job_type) {
            return Err("a job type must have 1 to 100 letters, digits, -, _ or .".into());
        }
        if !Topology::fits(&hello.worker_id, &info.job_type) {
            let job_type = &info.job_type;
            return Err(format!("its id and the job type {job_type} are too long together: shorten one of them"));
        }
        let schema = info.schema.to_string();
        if schema.len() > MAX_SCHEMA_BYTES || schema.contains("\\u0000") {
            return Err(format!("the schema of job type {} contains NUL or is larger than 128 KiB", info.job_type));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use milvaion_protocol::message::JobTypeInfo;

    use super::*;

    fn hello(job_type: &str) -> InstanceHello {
        let info = JobTypeInfo {
            job_type: job_type.into(),
            description: String::new(),
            schema: serde_json::json!({ "type": "object" }),
            concurrency: 1,
            ..JobTypeInfo::default()
        };
        InstanceHello {
            worker_id: "w".repeat(100),
            instance_id: "w-1".into(),
            host: "host".into(),
            pid: 1,
            version: "0".into(),
            capacity: 1,
            job_types: vec![info],
            ..InstanceHello::default()
        }
    }

    #[test]
    fn names_that_the_broker_cannot_hold_are_refused() {
        assert_eq!(check(&hello("echo")), Ok(()));
        let reason = check(&hello(&"_".repeat(100))).expect_err("200 bytes on the broker");
        assert!(reason.contains("too long together"), "{reason}");
    }
}
