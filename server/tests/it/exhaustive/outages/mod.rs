//! Outages that no scenario of the short set of `make chaos` has: a broker that crashes or loses its data while nothing
//! consumes from it, and a Redis that comes back with old data.
//!
//! Each test starts the service that it will stop, with its own folder and ports, and shares the other two with all tests.
//! They run one after another (`outages` in `.config/nextest.toml`).

mod broker;
mod redis;
mod workload;
