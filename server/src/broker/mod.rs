//! RabbitMQ: carries the job messages and the reports of workers.
//!
//! The server uses two connections, because a broker short of memory or disk blocks whole connections that publish, and
//! consuming must continue then. Each connection is reopened forever with a jittered backoff. A caller that needs a
//! channel either waits for one or gets an immediate answer that there is none. A broker that is down never fails an
//! occurrence, which stays unsent in PostgreSQL until the broker is back.

pub mod consumer;
pub mod echo;
mod error;
mod job_queues;
mod link;
mod parked_queues;
mod prepared_message;
pub mod publisher;
pub mod queue_probe;
pub mod raw_message;
pub mod reply;
pub mod topology;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use lapin::{Connection, ConnectionProperties, uri::AMQPUri};
use milvaion_protocol::topology::Topology;
use tokio::time::Instant;

pub use error::BrokerError;

use crate::{config::broker::BrokerConfig, error::chain};

/// The AMQP heartbeat in seconds; the broker detects a dead connection after two to three times that. A frozen server
/// holds reports until then. The other servers must receive them before they count runs as lost, which happens after
/// [`MIN_HEARTBEAT_TIMEOUT`](crate::domain::lost_run::MIN_HEARTBEAT_TIMEOUT).
const AMQP_HEARTBEAT: u16 = 3;
/// The timeout for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time between two log lines about an outage.
const OUTAGE_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The address of the broker, and the names of its queues and exchanges.
#[derive(Clone, Debug)]
pub struct Broker {
    uri: AMQPUri,
    topology: Topology,
    prefetch: u16,
    /// The queues that this server consumes, each with true if it currently delivers.
    consuming: Arc<Mutex<BTreeMap<String, bool>>>,
    /// The instant of the last log line about an outage.
    last_outage_log: Arc<Mutex<Option<Instant>>>,
}

impl Broker {
    /// Parses the address of the broker.
    ///
    /// # Errors
    ///
    /// Returns [`BrokerError::Address`] if the URL is not an AMQP address.
    pub fn new(config: &BrokerConfig) -> Result<Self, BrokerError> {
        let mut uri: AMQPUri = config.url.parse().map_err(|reason| BrokerError::Address { reason })?;
        uri.query.heartbeat.get_or_insert(AMQP_HEARTBEAT);
        Ok(Self {
            uri,
            topology: Topology::new(config.prefix.clone()),
            prefetch: config.prefetch,
            consuming: Arc::default(),
            last_outage_log: Arc::default(),
        })
    }

    /// Returns the names of queues and exchanges.
    #[must_use]
    pub const fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns true if every queue that this server consumes delivers.
    #[must_use]
    pub fn is_consuming(&self) -> bool {
        self.consuming.lock().is_ok_and(|queues| !queues.is_empty() && queues.values().all(|delivers| *delivers))
    }

    fn note_consuming(&self, queue: &str, delivers: bool) {
        if let Ok(mut queues) = self.consuming.lock() {
            queues.insert(queue.to_owned(), delivers);
        }
    }

    /// Opens a connection, in one attempt.
    ///
    /// # Errors
    ///
    /// Returns [`BrokerError::Amqp`] if the broker refuses the connection or cannot be reached, and
    /// [`BrokerError::Timeout`] if it does not answer.
    pub async fn connect(&self, name: &str) -> Result<Connection, BrokerError> {
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        match tokio::time::timeout(CONNECT_TIMEOUT, Connection::connect_uri(self.uri.clone(), properties)).await {
            Ok(connection) => Ok(connection?),
            Err(_) => Err(BrokerError::Timeout { timeout: CONNECT_TIMEOUT }),
        }
    }

    /// Logs that a connection could not be opened. Each connection detects an outage itself, several times a second in
    /// total, and one log line is enough.
    fn log_outage(&self, name: &str, error: &BrokerError) {
        if let Ok(mut last) = self.last_outage_log.lock() {
            if last.is_some_and(|last| last.elapsed() < OUTAGE_LOG_INTERVAL) {
                return;
            }
            *last = Some(Instant::now());
        }
        tracing::warn!(
            connection.name = name,
            broker.host = self.uri.authority.host,
            broker.port = self.uri.authority.port,
            error = chain(error),
            "cannot connect to RabbitMQ; occurrences are recorded and published later"
        );
    }
}
