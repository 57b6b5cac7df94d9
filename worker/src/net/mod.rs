//! Connections to the broker and to Redis.
//!
//! Everything that opens, declares, publishes and reconnects belongs here, without knowledge of jobs, claims or
//! reports. The consuming side opens its connections here as well, but the handling of deliveries is in
//! [`delivery`](crate::delivery).
//!
//! | File | Content |
//! |---|---|
//! | [`connection`] | Opening and closing of connections |
//! | [`topology`] | Declaration of the exchanges and queues a worker needs |
//! | [`publisher`] | The publishing channel with confirms |
//! | [`redis`] | The connection to Redis and its timeout |

pub(crate) mod connection;
pub(crate) mod publisher;
pub(crate) mod redis;
pub(crate) mod topology;
