//! The metrics of the server, and the documents that use them.

mod documents;
mod harness;
mod prometheus;
mod scrape;
