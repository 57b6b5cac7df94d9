//! Settings for RabbitMQ.

use milvaion_api::requests::is_valid_name;
use milvaion_protocol::topology;

use super::EnvReader;

/// The connection to RabbitMQ, its names and its prefetch.
#[derive(Clone, Debug)]
pub struct BrokerConfig {
    /// The address of RabbitMQ: the value of `AMQP_URL`, or the address of the private RabbitMQ.
    pub url: String,
    /// `MILVAION_PREFIX`: prefix of the names of all exchanges and queues, 1 to 50 letters, digits, `-`, `_` and `.`; the
    /// workers need the same value. Default
    /// `milvaion`.
    pub prefix: String,
    /// `BROKER_PREFETCH`: prefetch of each ingest consumer, in messages: the maximum number of unacknowledged messages.
    /// From 50 to 10,000. Default 1,000.
    pub prefetch: u16,
}

impl BrokerConfig {
    /// Reads the settings from the environment, except the address.
    pub(super) fn read(read: &mut EnvReader) -> Self {
        Self { url: String::new(), prefix: prefix(read), prefetch: read.number("BROKER_PREFETCH", 1_000, 50, 10_000) }
    }
}

/// Reads the prefix. Names on the broker have at most 255 bytes, of which the prefix may take 50.
fn prefix(read: &mut EnvReader) -> String {
    let prefix = read.text("MILVAION_PREFIX").unwrap_or_else(|| topology::DEFAULT_BROKER_PREFIX.into());
    if prefix.len() > 50 || !is_valid_name(&prefix) {
        read.add_error("MILVAION_PREFIX", "give 1 to 50 letters, digits, -, _ and .");
    }
    prefix
}
