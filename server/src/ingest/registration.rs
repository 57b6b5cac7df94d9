//! Registrations, heartbeats and goodbyes of worker instances.
//!
//! A batch is stored with a few statements, whatever its size: after an outage of the broker all instances register again
//! at once, and their heartbeats wait in the same queue. The queues of their job types are not declared here. A worker
//! declares its own, and the publisher declares a queue before the first message to it.
//!
//! A registration is answered if its sender asks for it: after it was stored, with the parts that were refused. The answer
//! is not confirmed. A worker without an answer runs all the same.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use milvaion_api::events::LiveEvent;
use milvaion_protocol::{
    message::{
        FEATURE_CHECKPOINT, FEATURE_CLAIMS, FEATURE_INGEST, FEATURE_SCHEDULES, HelloProblem, HelloReply,
        InstanceHeartbeat, InstanceHello, PROTOCOL_VERSION, RegistrationMessage,
    },
    reading::{RegistrationReading, UnreadableRegistration},
};

use crate::{
    broker::{
        consumer::{BatchHandler, Channel, Delivery},
        reply,
    },
    clock::Clock,
    domain::{
        hello_check::{self, CheckedHello},
        liveness,
    },
    engine::context::Context,
    ingest::unreadable,
    live::Hub,
    store::{Store, unreadable::UnreadablePart},
};

/// The optional parts of the protocol that the server implements.
const FEATURES: [&str; 4] = [FEATURE_CLAIMS, FEATURE_CHECKPOINT, FEATURE_SCHEDULES, FEATURE_INGEST];

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

    /// Reads, checks and stores bodies. Returns the reply to each that is a registration, in their order.
    async fn process(
        &self,
        bodies: impl Iterator<Item = (&[u8], Option<String>)>,
    ) -> anyhow::Result<Vec<Option<HelloReply>>> {
        let (mut messages, mut replies, mut unreadable) = (Vec::new(), Vec::new(), Vec::new());
        for (body, sender) in bodies {
            let ReadBody { message, reply, problem } = read(body);
            messages.extend(message);
            replies.push(reply);
            unreadable.extend(problem.map(|(instance, problem)| UnreadablePart {
                instance_id: instance.or(sender),
                reason: problem,
                ..UnreadablePart::default()
            }));
        }
        let mut changed = false;
        for messages in fold(messages) {
            changed |= self.store(messages).await?;
        }
        changed |= unreadable::record(&self.store, "registration", &unreadable, self.clock.now()).await?;
        if changed {
            self.hub.publish(self.clock.now(), vec![LiveEvent::Workers]);
        }
        Ok(replies)
    }

    /// Stores messages and returns true if pages show a change. Heartbeats come first: a server that starts with the
    /// registrations of a thousand instances in the queue must not count the others as lost.
    async fn store(&self, messages: FoldedMessages) -> anyhow::Result<bool> {
        let now = self.clock.now();
        let FoldedMessages { hellos, heartbeats, goodbyes } = messages;
        let heartbeats = heartbeats.into_values().map(|mut beat| {
            // The notice of the process itself takes precedence, because it is about work that is not done or lost.
            beat.notice = beat
                .notice
                .filter(|text| !text.trim().is_empty())
                .or_else(|| liveness::clock_notice(beat.timestamp, now));
            beat
        });
        let (later, first): (Vec<_>, Vec<_>) = heartbeats.partition(|beat| hellos.contains_key(&beat.instance_id));
        let mut changed = self.store_heartbeats(&first, now).await?;
        let (hellos, problems): (Vec<InstanceHello>, Vec<Vec<HelloProblem>>) = hellos.into_values().unzip();
        for part in split_by_weight(&hellos) {
            self.store.store_hellos(part, now).await?;
        }
        let found = hellos.iter().zip(problems).filter(|(_, problems)| !problems.is_empty());
        let problems: Vec<_> = found.map(|(hello, problems)| (hello.instance_id.clone(), problems)).collect();
        if !problems.is_empty() {
            self.store.store_hello_problems(&problems).await?;
        }
        for (instance_id, problem) in problems.iter().flat_map(|(id, list)| list.iter().map(move |one| (id, one))) {
            tracing::warn!(
                worker.instance = instance_id,
                problem = problem.text,
                "a part of the registration of instance {instance_id} was refused: {problem}"
            );
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
        Ok(stored.into_values().any(|is_new| is_new))
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
        self.process(bodies.iter().map(|body| (body.as_slice(), None))).await.map(drop)
    }

    async fn handle_deliveries(&self, channel: &Channel, batch: &[Delivery]) -> anyhow::Result<()> {
        let bodies = batch.iter().map(|delivery| (delivery.data.as_slice(), super::sender(delivery)));
        let replies = self.process(bodies).await?;
        for (delivery, reply) in batch.iter().zip(replies) {
            if let Some(reply) = reply.filter(|_| reply::is_requested(delivery)) {
                reply::send(channel, delivery, &serde_json::to_vec(&reply)?).await?;
            }
        }
        Ok(())
    }
}

/// A message of the registration queue after its check, and the parts of a registration that were refused.
type CheckedMessage = (RegistrationMessage, Vec<HelloProblem>);

/// A body of the registration queue.
#[derive(Debug)]
struct ReadBody {
    message: Option<CheckedMessage>,
    /// The reply to a registration.
    reply: Option<HelloReply>,
    /// What could not be read, with the instance that the body names.
    problem: Option<(Option<String>, String)>,
}

/// Reads and checks a body.
fn read(body: &[u8]) -> ReadBody {
    match RegistrationReading::of(body) {
        Ok(RegistrationReading { message: RegistrationMessage::Hello(hello), problems }) => {
            accept(hello_check::check(hello, problems))
        }
        Ok(RegistrationReading { message, problems }) => {
            let problem = problems.0.into_iter().next();
            let problem = problem.map(|problem| (Some(message.instance_id().to_owned()), problem.text));
            ReadBody { message: Some((message, Vec::new())), reply: None, problem }
        }
        Err(UnreadableRegistration { is_hello, instance_id, reason }) => {
            super::log_unreadable(RegistrationConsumer::NAME, body, &reason);
            let problem = HelloProblem { job_type: None, schedule: None, text: reason.clone() };
            let reply = is_hello.then(|| reply_to_hello(false, vec![problem]));
            ReadBody { message: None, reply, problem: Some((instance_id, reason)) }
        }
    }
}

fn accept(CheckedHello { accepted, problems }: CheckedHello) -> ReadBody {
    let reply = Some(reply_to_hello(accepted.is_some(), problems.clone()));
    if accepted.is_none() {
        for problem in &problems {
            tracing::warn!(problem = problem.text, "a registration was refused: {}", problem.text);
        }
    }
    let message = accepted.map(|hello| (RegistrationMessage::Hello(hello), problems));
    ReadBody { message, reply, problem: None }
}

fn reply_to_hello(accepted: bool, problems: Vec<HelloProblem>) -> HelloReply {
    let features = FEATURES.into_iter().map(str::to_owned).collect();
    HelloReply { accepted, protocol: PROTOCOL_VERSION, features, problems }
}

/// The last message of each kind of each instance.
#[derive(Debug, Default, PartialEq)]
struct FoldedMessages {
    hellos: BTreeMap<String, (InstanceHello, Vec<HelloProblem>)>,
    heartbeats: BTreeMap<String, InstanceHeartbeat>,
    /// The instances that have stopped. A goodbye is the last message of its instance here.
    goodbyes: BTreeSet<String>,
}

/// Folds messages. An instance that registers again after its goodbye, which is rare, begins another set.
fn fold(messages: Vec<CheckedMessage>) -> Vec<FoldedMessages> {
    let mut sets = vec![FoldedMessages::default()];
    for (message, problems) in messages {
        let instance = message.instance_id().to_owned();
        if sets.last().is_none_or(|set| set.goodbyes.contains(&instance)) {
            sets.push(FoldedMessages::default());
        }
        let Some(set) = sets.last_mut() else { continue };
        match message {
            RegistrationMessage::Hello(hello) => drop(set.hellos.insert(instance, (hello, problems))),
            RegistrationMessage::Heartbeat(beat) => drop(set.heartbeats.insert(instance, beat)),
            RegistrationMessage::Goodbye { .. } => drop(set.goodbyes.insert(instance)),
        }
    }
    sets
}

/// Splits registrations into parts that one transaction stores. Each weighs one, and each of its job types another one,
/// and one more for each KiB of the schema and of the schedules.
fn split_by_weight(hellos: &[InstanceHello]) -> Vec<&[InstanceHello]> {
    let weight = |hello: &InstanceHello| {
        let types = hello.job_types.iter().map(|info| {
            let schedules = info.schedules.iter().map(|schedule| 200 + schedule.input.to_string().len()).sum::<usize>();
            1 + (info.schema.to_string().len() + schedules) / 1024
        });
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
