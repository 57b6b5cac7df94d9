//! The metrics of the server, and the documents that use them.

mod documents;
pub(crate) mod harness;
mod scrape;
