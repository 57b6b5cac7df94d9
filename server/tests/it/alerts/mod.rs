//! Alerts: what fires, what resolves it, and the messages.

mod delivery;
mod events;
mod harness;
mod states;
