//! Errors that keep the server from starting.
//!
//! Each variant names what failed. Its message names the thing, the cause and the remedy, and leaves out the text of
//! its source. A caller that reports the error to a user prints the chain of sources once.

use std::{
    error::Error,
    io,
    net::{IpAddr, SocketAddr},
};

use crate::{broker::BrokerError, config::error::InvalidSettings, embedded::EmbeddedError, store::StoreError};

/// A failure to start the server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Environment variables hold values that cannot be used.
    #[error(transparent)]
    Settings(#[from] InvalidSettings),

    /// A private service did not start, or ended while the server was running.
    #[error(transparent)]
    PrivateService(#[from] EmbeddedError),

    /// The port given by `PORT` is in use.
    #[error("Port {port} is in use by another program. Stop that program, set PORT to another number, or unset PORT.")]
    PortTaken {
        /// The port given by `PORT`.
        port: u16,
        /// The error of the operating system.
        source: io::Error,
    },

    /// The port given by `PORT` is reserved for privileged processes.
    #[error("Port {port} requires more privileges. Set PORT to a number above 1023.")]
    PortForbidden {
        /// The port given by `PORT`.
        port: u16,
        /// The error of the operating system.
        source: io::Error,
    },

    /// The address given by `HOST` and `PORT` cannot be bound.
    #[error("The server cannot listen on {address}. Check HOST and PORT.")]
    AddressUnusable {
        /// The address given by `HOST` and `PORT`.
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },

    /// The address given by `METRICS_ADDR` cannot be bound.
    #[error("The metrics cannot be served on {address}. Set METRICS_ADDR to a free port of this machine, or unset it.")]
    MetricsAddress {
        /// The address given by `METRICS_ADDR`.
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },

    /// Every port of the default range is in use.
    #[error("No port from {first} to {last} is free on {host}. Check HOST, or set PORT to a free port.")]
    NoFreePort {
        /// The address given by `HOST`.
        host: IpAddr,
        /// The lowest port that was tried.
        first: u16,
        /// The highest port that was tried.
        last: u16,
        /// The error for the last port.
        source: io::Error,
    },

    /// The operating system does not report the bound address.
    #[error("The operating system does not report the address of the listening socket. Start the server again.")]
    ListenerAddress(#[source] io::Error),

    /// PostgreSQL cannot be reached, refuses the connection, or refuses a migration.
    #[error("PostgreSQL cannot be used. Check DATABASE_URL and that the database runs.")]
    Postgres(#[source] StoreError),

    /// PostgreSQL accepts the connection and fails on the first statements.
    #[error(
        "PostgreSQL failed while the server prepared its partitions. Check that the database runs and that its user \
         may create tables."
    )]
    PostgresPreparation(#[source] StoreError),

    /// `REDIS_URL` cannot be parsed. The source is boxed, because only the module `cache` names the types of its
    /// driver.
    #[error("REDIS_URL cannot be read. Use the form redis://:password@host:6379.")]
    RedisUrl(#[source] Box<dyn Error + Send + Sync>),

    /// `AMQP_URL` cannot be parsed.
    #[error("AMQP_URL cannot be read. Use the form amqp://user:password@host:5672/%2f.")]
    RabbitMqUrl(#[source] BrokerError),

    /// RabbitMQ cannot be reached, or refuses the user.
    #[error("RabbitMQ cannot be reached at AMQP_URL. Check the address, the user and that RabbitMQ runs.")]
    RabbitMq(#[source] BrokerError),

    /// The thread of the timer cannot be started.
    #[error(
        "The operating system refuses a thread to the server. Raise its limit of processes (ulimit -u) and restart it."
    )]
    TimerThread(#[source] io::Error),

    /// The process cannot install its handlers for SIGINT and SIGTERM.
    #[error("The server cannot install its handlers for SIGINT and SIGTERM. Start it again.")]
    Signals(#[source] io::Error),
}
