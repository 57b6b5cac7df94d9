//! Connections to the broker.
//!
//! | File | Content |
//! |---|---|
//! | [`connection`] | Opening, backoff and closing of connections |
//! | [`topology`] | Declaration of the exchanges and queues a worker needs |
//! | [`publisher`] | The publishing channel with confirms |

pub(crate) mod connection;
pub(crate) mod publisher;
pub(crate) mod topology;
