//! RabbitMQ.

use milvaion_protocol::topology;

use super::EnvReader;

/// How to reach the broker.
#[derive(Clone, Debug)]
pub struct BrokerConfig {
    /// `AMQP_URL`: as in `amqp://user:password@host:5672/%2f`. An embedded one when not set.
    pub url: String,
    /// `MILVAION_PREFIX`: what every exchange and queue starts with. Default `milvaion`. Workers must agree.
    pub prefix: String,
    /// `BROKER_PREFETCH`: the most unsettled messages each intake holds, 50 to 10,000. Default 1,000.
    pub prefetch: u16,
}

impl BrokerConfig {
    pub(super) fn read(read: &mut EnvReader) -> Self {
        Self {
            url: String::new(),
            prefix: read.text("MILVAION_PREFIX").unwrap_or_else(|| topology::DEFAULT_BROKER_PREFIX.into()),
            prefetch: read.number("BROKER_PREFETCH", 1_000, 50, 10_000),
        }
    }
}
