//! Tests that only `make test-all` runs: they start private services or many programs, or last as long as the outages that
//! they inject.
//!
//! A test of this kind beside default tests of its subject is in a module `exhaustive` of that file. The default filter in
//! `.config/nextest.toml` leaves out every module of this name.

mod admin_private;
mod conformance_restarts;
mod examples;
mod outages;
mod prometheus;
mod queue_types;
mod worker_permissions;
