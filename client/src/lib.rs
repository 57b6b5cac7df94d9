//! The clients of Milvaion: of the REST API, and of the ingest queue on the broker.
//!
//! Scripts, deployments and the commands of `milvaion` call `/api/v1` with a token. Programs and jobs that create many
//! occurrences publish them on the ingest queue, which stores them in bulk. Both create occurrences from the same
//! [`Enqueue`], whose id the client makes: a request that is repeated after a lost connection creates nothing twice.
//!
//! | Feature | Content |
//! |---|---|
//! | `rest` (default) | `Client`, with one method per operation of the REST API |
//! | `broker` | `BrokerClient`, which publishes new occurrences on the ingest queue |
//! | `native-tls` (default) | `amqps://` with the library of the system; the REST API has it always |
//! | `rustls` | `amqps://` with rustls and ring |
//! | `testing` | `RecordingClient`, which records what a program enqueues |
//!
//! Networks fail between a request and its answer. A POST therefore carries an `Idempotency-Key`, with which the server
//! carries it out at most once, and is repeated like a GET. A PUT or a DELETE is not: with `If-Match`, a repetition could
//! report a conflict with its own success. The documents of the REST API are the types of `milvaion_api::rest`, which the
//! server writes; nothing is defined twice.

mod clock;
pub mod enqueue;

#[cfg(feature = "broker")]
pub mod broker;
#[cfg(feature = "testing")]
pub mod testing;

#[cfg(feature = "rest")]
mod address;
#[cfg(feature = "rest")]
mod api;
#[cfg(feature = "rest")]
mod client;
#[cfg(feature = "rest")]
mod error;
#[cfg(feature = "rest")]
mod lists;
#[cfg(feature = "rest")]
mod log_follower;
#[cfg(feature = "rest")]
mod retry;
#[cfg(feature = "rest")]
mod sse;

#[cfg(feature = "rest")]
pub use api::jobs::{JobReference, SavedJob};
#[cfg(feature = "broker")]
pub use broker::BrokerClient;
#[cfg(feature = "rest")]
pub use client::{Client, ClientOptions};
pub use enqueue::{Enqueue, EnqueueClient, EnqueueError, EnqueueTransport, Enqueued};
#[cfg(feature = "rest")]
pub use error::ClientError;
#[cfg(feature = "rest")]
pub use lists::{Listing, PagedQuery, collect};
#[cfg(feature = "rest")]
pub use log_follower::{AFTER_ALL_LINES, LogEvent, LogFollower, ResultError};
#[cfg(feature = "rest")]
pub use milvaion_api;
pub use milvaion_protocol::{
    id::{CalendarId, JobId, OccurrenceId, TokenId},
    message::{IngestOutcome, IngestResult, NewOccurrence},
    trace::Traceparent,
};
#[cfg(feature = "testing")]
pub use testing::RecordingClient;
