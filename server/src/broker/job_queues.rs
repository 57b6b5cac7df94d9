//! Declares the queues of job types, many at once, and remembers which ones the broker has.
//!
//! A queue is declared before the first message to it. A lost connection changes nothing about the queues, so nothing is
//! declared again after a reconnect: every message is mandatory, and one that comes back says that its queue is gone.
//!
//! A job queue that the broker refuses must not stop the others. Job queues are therefore declared on a channel of their
//! own, since a refusal closes its channel, and a refused queue is parked for a while.
//!
//! A queue of critical runs is not declared here, but by the workers that consume it. So none exists that nothing consumes,
//! and a message to a missing one comes back.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lapin::{Channel, ErrorKind, protocol::AMQPErrorKind};
use milvaion_protocol::topology::Topology;

use super::{
    parked_queues::ParkedQueues,
    topology::{self, QueueKey},
};

/// The most queues whose declarations wait for the broker's answers at the same time.
const MAX_DECLARATIONS_IN_FLIGHT: usize = 256;

/// The channel for declarations on one connection. A refusal closes it, and the next declaration opens another.
#[derive(Debug)]
pub(super) struct DeclaringChannel {
    connection: Arc<lapin::Connection>,
    channel: tokio::sync::Mutex<Option<Channel>>,
}

impl DeclaringChannel {
    pub(super) fn new(connection: Arc<lapin::Connection>) -> Self {
        Self { connection, channel: tokio::sync::Mutex::default() }
    }
}

/// The queues of job types. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct JobQueues {
    names: Topology,
    /// The queues that this server has declared, and that the broker has as far as it knows.
    declared: Arc<Mutex<HashSet<QueueKey>>>,
    /// The queues that the broker refuses.
    pub(super) parked: ParkedQueues,
    /// The job types whose queue of critical runs rejects messages.
    pub(super) parked_critical: ParkedQueues,
}

impl JobQueues {
    pub(super) fn new(names: Topology) -> Self {
        Self {
            names,
            declared: Arc::default(),
            parked: ParkedQueues::default(),
            parked_critical: ParkedQueues::default(),
        }
    }

    /// Declares those of the queues that are neither declared nor parked, and parks those that the broker refuses.
    ///
    /// # Errors
    ///
    /// Returns the error of the connection if it has failed. The queues that were declared before are known then.
    pub(super) async fn ensure(
        &self,
        declaring: &DeclaringChannel,
        keys: impl IntoIterator<Item = QueueKey>,
    ) -> Result<(), lapin::Error> {
        let is_missing = |key: &QueueKey| !self.parked.contains(key) && !self.lock().contains(key);
        let mut keys: Vec<QueueKey> = keys.into_iter().filter(is_missing).collect();
        if keys.is_empty() {
            return Ok(());
        }
        let mut open = declaring.channel.lock().await;
        // Another batch may have declared them meanwhile.
        keys.retain(is_missing);
        let mut rest = keys.as_slice();
        while !rest.is_empty() {
            let channel = match open.take() {
                Some(channel) => channel,
                None => declaring.connection.create_channel().await?,
            };
            let batch = &rest[..rest.len().min(MAX_DECLARATIONS_IN_FLIGHT)];
            let (declared, error) = topology::declare_job_queues(&channel, &self.names, batch).await;
            self.lock().extend(batch[..declared].iter().cloned());
            rest = &rest[declared..];
            match error {
                None => *open = Some(channel),
                Some(error) if is_refusal(&error) => {
                    let refused = &rest[0];
                    let queue = self.names.job_queue(&refused.0, &refused.1);
                    self.parked.park(refused.clone(), &queue, "wait", &error.to_string());
                    rest = &rest[1..];
                }
                Some(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns true if messages can be sent to a queue.
    pub(super) fn is_open(&self, key: &QueueKey) -> bool {
        self.lock().contains(key) && !self.parked.contains(key)
    }

    /// Forgets a queue that the broker no longer has.
    pub(super) fn forget(&self, key: &QueueKey) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<QueueKey>> {
        self.declared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true if the broker answered and refused a declaration. The connection works then.
fn is_refusal(error: &lapin::Error) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(error) if matches!(error.kind(), AMQPErrorKind::Soft(_)))
}
