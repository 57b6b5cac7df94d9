//! The test harness of the server, the worker, the benchmarks and the chaos suite.
//!
//! Tests run on real services, which the environment variables `DATABASE_URL`, `REDIS_URL` and `AMQP_URL` name. Each test
//! has its own database, Redis key prefix and broker prefix, so all tests can run at once and a failed test leaves
//! nothing that affects another one.
//!
//! The feature `server` adds the modules that need the server's library. Without it, this crate needs the worker's
//! library only. The feature `traces` adds a receiver of traces.
//!
//! Integration tests and programs may use this crate; unit tests inside `server/src` and `worker/src` must not. Cargo
//! compiles the library a second time for its unit tests, and the types of the two copies do not match.

pub mod broker_env;
pub mod http;
pub mod http_sink;
pub mod lossy_network;
pub mod messages;
pub mod net;
pub mod paths;
pub mod python;
pub mod services;
pub mod singletons;
pub mod smtp_sink;
pub mod wait;

#[cfg(feature = "server")]
pub mod budget;
#[cfg(feature = "server")]
pub mod database;
#[cfg(feature = "server")]
pub mod jobs;
#[cfg(feature = "server")]
pub mod manual_clock;
#[cfg(feature = "server")]
pub mod private_service;
#[cfg(feature = "server")]
pub mod process;
#[cfg(feature = "server")]
pub mod runs;
#[cfg(feature = "server")]
pub mod server_env;
#[cfg(feature = "traces")]
pub mod trace_receiver;
#[cfg(feature = "server")]
pub mod worker_env;
