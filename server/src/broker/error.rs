//! The error of a connection to RabbitMQ.

use std::time::Duration;

/// An error of the address of RabbitMQ, or of a connection to it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// `AMQP_URL` is not an AMQP address.
    #[error("invalid AMQP address: {reason}")]
    Address {
        /// The parser's reason.
        reason: String,
    },
    /// RabbitMQ refused the request, or the connection failed.
    #[error("the request to RabbitMQ failed")]
    Amqp(#[from] lapin::Error),
    /// RabbitMQ did not answer in time.
    #[error("RabbitMQ did not answer within {} s", .timeout.as_secs())]
    Timeout {
        /// The time that passed.
        timeout: Duration,
    },
}
