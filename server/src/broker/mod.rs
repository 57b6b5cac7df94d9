//! RabbitMQ: carries the work.
//!
//! Two connections, because a broker short of memory or disk blocks whole connections that publish, and consuming must
//! go on then. Each is opened again for ever, with a jittered backoff; whoever needs a channel waits for it or is told at
//! once that there is none. A broker that is away never fails an occurrence: it waits in PostgreSQL, unpublished.

pub mod consumer;
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

use crate::{backoff::ReconnectBackoff, config::broker::BrokerConfig};

/// How often the two ends assure each other that they are there, in seconds; the broker notices a dead line after two to
/// three times that. A server that is frozen holds reports in its hand meanwhile, which another one misses: it must get
/// them before it takes anybody for dead, which is after [`MIN_HEARTBEAT_TIMEOUT`](crate::domain::lost_run::MIN_HEARTBEAT_TIMEOUT).
const AMQP_HEARTBEAT: u16 = 3;
/// How long opening a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the log says that the broker is away.
const OUTAGE_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Where the broker is and what things are called there.
#[derive(Clone, Debug)]
pub struct Broker {
    uri: AMQPUri,
    topology: Topology,
    prefetch: u16,
    /// Which queues are consumed from here, and whether that works at the moment.
    consuming: Arc<Mutex<BTreeMap<String, bool>>>,
    /// When it was last said in the log that the broker is away.
    last_outage_log: Arc<Mutex<Option<Instant>>>,
}

impl Broker {
    /// Reads the address.
    ///
    /// # Errors
    ///
    /// When it is none, in a sentence.
    pub fn new(config: &BrokerConfig) -> Result<Self, String> {
        let mut uri: AMQPUri = config.url.parse().map_err(|error| format!("AMQP_URL cannot be read: {error}"))?;
        uri.query.heartbeat.get_or_insert(AMQP_HEARTBEAT);
        Ok(Self {
            uri,
            topology: Topology::new(config.prefix.clone()),
            prefetch: config.prefetch,
            consuming: Arc::default(),
            last_outage_log: Arc::default(),
        })
    }

    /// What things are called.
    #[must_use]
    pub const fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Whether every queue that is consumed from here delivers.
    #[must_use]
    pub fn is_consuming(&self) -> bool {
        self.consuming.lock().is_ok_and(|queues| !queues.is_empty() && queues.values().all(|delivers| *delivers))
    }

    /// Whether `queue` delivers to this server.
    #[must_use]
    pub fn is_consuming_from(&self, queue: &str) -> bool {
        self.consuming.lock().is_ok_and(|queues| queues.get(queue).copied().unwrap_or(false))
    }

    fn note_consuming(&self, queue: &str, delivers: bool) {
        if let Ok(mut queues) = self.consuming.lock() {
            queues.insert(queue.to_owned(), delivers);
        }
    }

    /// Opens a connection once.
    ///
    /// # Errors
    ///
    /// The broker's reason, or that it did not answer.
    pub async fn connect(&self, name: &str) -> Result<Connection, String> {
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        match tokio::time::timeout(CONNECT_TIMEOUT, Connection::connect_uri(self.uri.clone(), properties)).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {} s", CONNECT_TIMEOUT.as_secs())),
        }
    }

    /// Whether it is time to say so that the broker is away: each connection finds it out for itself, several times a
    /// second together, and the log needs to know it once.
    fn may_complain(&self) -> bool {
        let Ok(mut last) = self.last_outage_log.lock() else { return true };
        let may = last.is_none_or(|last| last.elapsed() >= OUTAGE_LOG_INTERVAL);
        if may {
            *last = Some(Instant::now());
        }
        may
    }

    /// Opens a connection, however often it takes.
    async fn connect_with_retry(&self, name: &str) -> Connection {
        let mut backoff = ReconnectBackoff::default();
        loop {
            match self.connect(name).await {
                Ok(connection) => {
                    tracing::info!(connection.name = name, "connected to the broker");
                    return connection;
                }
                Err(reason) => {
                    if self.may_complain() {
                        tracing::warn!(
                            connection.name = name,
                            broker.host = self.uri.authority.host,
                            broker.port = self.uri.authority.port,
                            error = reason,
                            "cannot connect to the broker; occurrences are recorded and wait"
                        );
                    }
                    tokio::time::sleep(backoff.pause()).await;
                }
            }
        }
    }
}
