//! The client of the REST API.
//!
//! Scripts, deployments and the commands of `milvaion` all call `/api/v1`. This crate is the one place with its
//! addresses, so that a program handles jobs and occurrences and never a header. The documents are the types of
//! [`milvaion_api::rest`], which the server writes; nothing is defined twice.
//!
//! Networks fail between a request and its answer. A POST therefore carries an `Idempotency-Key`, with which the server
//! carries it out at most once, and is repeated like a GET. A PUT or a DELETE is not: with `If-Match`, a repetition could
//! report a conflict with its own success.
//!
//! Reading order: [`Client`] sends requests, with one method per operation; [`ClientError`] has everything that can go
//! wrong; [`collect`] reads a list to its end, and [`LogFollower`] the log of an occurrence while it is written. With the
//! feature `cli`, the module `cli` has the commands.

mod address;
mod api;
mod client;
mod error;
mod lists;
mod log_follower;
mod retry;
mod sse;

#[cfg(feature = "cli")]
pub mod cli;

pub use api::jobs::{JobReference, SavedJob};
pub use client::{Client, ClientOptions};
pub use error::ClientError;
pub use lists::{Listing, PagedQuery, collect};
pub use log_follower::{LogEvent, LogFollower};
