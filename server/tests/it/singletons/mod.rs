//! Singleton loops: their state, the control by operators, and the alert about loops without a leader.

mod alerts;
mod control;
mod harness;
mod rest;
mod state;
