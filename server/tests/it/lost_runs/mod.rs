//! Lost runs: a run whose worker has died is requeued, and a server that received no heartbeats declares no run lost.

mod harness;

mod detection;
mod heartbeats;
mod lost_messages;
mod overdue;
mod quarantine;
mod unreachable;
