//! The record of what a worker did with its deliveries, read from the frames of its connections.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use milvaion_protocol::{id::OccurrenceId, topology::Topology};

use super::frames::{AmqpFrame, AmqpMethod, FrameOrigin};

/// The answer of a worker to a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeliveryAnswer {
    /// Acknowledged.
    Ack,
    /// Returned to its queue.
    Return,
    /// Rejected without requeue.
    Reject,
    /// None: its connection or channel was closed.
    Closed,
}

/// The deliveries of job messages to one worker instance, and its publishing. Clones share the same record.
#[derive(Clone, Debug)]
pub(crate) struct DeliveryTap {
    jobs_exchange: String,
    claims_exchange: String,
    state: Arc<Mutex<TapState>>,
}

#[derive(Debug, Default)]
struct TapState {
    /// The deliveries without an answer, by connection, channel and delivery tag.
    open: BTreeMap<(u64, u16, u64), String>,
    /// The answers by routing key.
    answers: HashMap<String, Vec<DeliveryAnswer>>,
    /// The channels with publisher confirms.
    confirming: HashSet<(u64, u16)>,
    /// The exchanges to which a message was published without the flag `mandatory` or without confirms.
    careless: Vec<String>,
}

impl DeliveryTap {
    /// Creates an empty record.
    pub(crate) fn new(topology: &Topology) -> Self {
        Self { jobs_exchange: topology.jobs_exchange(), claims_exchange: topology.claims(), state: Arc::default() }
    }

    /// Returns the number of deliveries without an answer.
    pub(crate) fn unanswered(&self) -> usize {
        self.lock().open.len()
    }

    /// Returns the answers to the deliveries of an occurrence, in their order.
    pub(crate) fn answers(&self, occurrence: OccurrenceId) -> Vec<DeliveryAnswer> {
        let id = occurrence.to_string();
        let is_meant = |key: &str| key.split('.').any(|word| word == id);
        let state = self.lock();
        state.answers.iter().filter(|(key, _)| is_meant(key)).flat_map(|(_, answers)| answers.clone()).collect()
    }

    /// Returns the exchanges to which the worker has published without `mandatory` or without confirms.
    pub(crate) fn careless_publishing(&self) -> Vec<String> {
        self.lock().careless.clone()
    }

    pub(super) fn see(&self, connection: u64, origin: FrameOrigin, frame: &AmqpFrame) {
        let Some(method) = frame.method() else { return };
        let channel = frame.channel();
        let mut state = self.lock();
        match (origin, method) {
            (FrameOrigin::Service, AmqpMethod::Deliver { tag, exchange, routing_key })
                if exchange == self.jobs_exchange =>
            {
                state.open.insert((connection, channel, tag), routing_key);
            }
            (FrameOrigin::Client, AmqpMethod::Ack { tag, multiple }) => {
                state.answer((connection, channel, tag), multiple, DeliveryAnswer::Ack);
            }
            (FrameOrigin::Client, AmqpMethod::Nack { tag, multiple, requeue }) => {
                let answer = if requeue { DeliveryAnswer::Return } else { DeliveryAnswer::Reject };
                state.answer((connection, channel, tag), multiple, answer);
            }
            (FrameOrigin::Client, AmqpMethod::ConfirmSelect) => {
                state.confirming.insert((connection, channel));
            }
            (FrameOrigin::Client, AmqpMethod::Publish { exchange, is_mandatory }) => {
                // A claim check is a request: without a reply it is sent again, so it needs neither.
                let is_careful = is_mandatory && state.confirming.contains(&(connection, channel));
                if !is_careful && exchange != self.claims_exchange {
                    state.careless.push(exchange);
                }
            }
            (_, AmqpMethod::CloseChannel) => state.close(connection, Some(channel)),
            _ => {}
        }
    }

    pub(super) fn close_connection(&self, connection: u64) {
        self.lock().close(connection, None);
    }

    fn lock(&self) -> MutexGuard<'_, TapState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TapState {
    fn answer(&mut self, (connection, channel, tag): (u64, u16, u64), multiple: bool, answer: DeliveryAnswer) {
        // Tag 0 with `multiple` stands for all deliveries of the channel.
        let last = if multiple && tag == 0 { u64::MAX } else { tag };
        let first = if multiple { 0 } else { tag };
        self.record(answer, |&(of, on, number)| (of, on) == (connection, channel) && (first..=last).contains(&number));
    }

    fn close(&mut self, connection: u64, channel: Option<u16>) {
        self.record(DeliveryAnswer::Closed, |&(of, on, _)| {
            of == connection && channel.is_none_or(|channel| channel == on)
        });
        self.confirming.retain(|&(of, on)| of != connection || channel.is_some_and(|channel| channel != on));
    }

    fn record(&mut self, answer: DeliveryAnswer, is_meant: impl Fn(&(u64, u16, u64)) -> bool) {
        let meant: Vec<_> = self.open.keys().filter(|key| is_meant(key)).copied().collect();
        for key in meant {
            if let Some(routing_key) = self.open.remove(&key) {
                self.answers.entry(routing_key).or_default().push(answer);
            }
        }
    }
}
