//! A run whose worker is gone is not gone with it, and a server that heard nothing does not blame the workers.

mod harness;

mod detection;
mod heartbeats;
mod quarantine;
