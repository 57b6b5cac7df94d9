//! The REST API, as a program uses it.

mod access;
mod alerts;
mod conformance;
mod document;
mod enqueue;
pub(crate) mod harness;
mod idempotency;
mod input;
mod jobs;
mod operations;
mod streams;
mod tokens;
