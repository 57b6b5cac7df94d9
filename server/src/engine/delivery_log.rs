//! What the consumers leave behind for operators and for the next process: panics, and the messages being handled.

use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};
use uuid::Uuid;

use crate::{
    broker::consumer::{Delivery, DeliveryLog},
    clock::Clock,
    engine::status::ServiceStatuses,
    store::{Store, dead_letters::message_digest},
};

/// The longest time for which counting a message delays it. Messages are handled without a count while PostgreSQL is
/// slow.
const COUNT_LIMIT: Duration = Duration::from_secs(1);

/// The log of the consumers of one server.
#[derive(Clone, Debug)]
pub struct ConsumerLog {
    store: Store,
    clock: Clock,
    statuses: ServiceStatuses,
    /// A random id of this process.
    process: Uuid,
}

impl ConsumerLog {
    /// Creates the log of a server.
    #[must_use]
    pub fn new(store: Store, clock: Clock, statuses: ServiceStatuses) -> Self {
        Self { store, clock, statuses, process: Uuid::from_u128(rand::random()) }
    }
}

impl DeliveryLog for ConsumerLog {
    fn note_panic(&self, consumer: &'static str, reason: &str) {
        self.statuses.record_panic(consumer, reason);
    }

    fn is_suspected<'a>(&'a self, queue: &'a str, messages: &'a [Delivery]) -> BoxFuture<'a, bool> {
        async move {
            let hashes = hashes(queue, messages);
            let found = self.store.has_redelivery(&hashes, self.clock.now());
            // Without an answer, one of them may be the next to end this process.
            !matches!(tokio::time::timeout(COUNT_LIMIT, found).await, Ok(Ok(false)))
        }
        .boxed()
    }

    fn begin<'a>(&'a self, queue: &'a str, messages: &'a [Delivery]) -> BoxFuture<'a, u32> {
        async move {
            let hashes = hashes(queue, messages);
            let processes = self.store.begin_redeliveries(&hashes, self.process, self.clock.now());
            match tokio::time::timeout(COUNT_LIMIT, processes).await {
                Ok(Ok(processes)) => u32::try_from(processes).unwrap_or(0),
                _ => 0,
            }
        }
        .boxed()
    }

    fn end<'a>(&'a self, queue: &'a str, messages: &'a [Delivery]) -> BoxFuture<'a, ()> {
        async move {
            // A count that stays makes a server handle the message alone. It takes several of them, of servers in turn,
            // until a message is set aside.
            let _ = tokio::time::timeout(COUNT_LIMIT, self.store.end_redeliveries(&hashes(queue, messages))).await;
        }
        .boxed()
    }
}

fn hashes(queue: &str, messages: &[Delivery]) -> Vec<Vec<u8>> {
    messages.iter().map(|message| message_digest(queue, &message.data)).collect()
}
