//! The log of a program that has set up none.
//!
//! Everything that a worker does is an event of `tracing`. A program that has no subscriber shows none of them, and the first
//! worker of a new user is such a program. [`Worker::run`](crate::Worker::run) therefore sets a subscriber if there is none. A
//! program that wants silence sets `RUST_LOG=off`, and one that embeds a worker with `run_until` keeps what it has.

use std::io::{self, IsTerminal};

use tracing_subscriber::{EnvFilter, Layer, filter::LevelFilter, layer::SubscriberExt, util::SubscriberInitExt};

use crate::run::capture::CaptureLayer;

/// Sets a subscriber that writes to standard error and copies the events of runs into their logs, unless the program has one.
pub(crate) fn set_default() {
    if tracing::dispatcher::has_been_set() {
        return;
    }
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy();
    // Colors are for people: a file and a collector of logs would store the escape sequences.
    let has_colors = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(has_colors).with_filter(filter);
    // Another thread may have been first; then its subscriber stays.
    let _ = tracing_subscriber::registry().with(lines).with(CaptureLayer::new()).try_init();
}

/// Returns host and port of an address of Redis, without its password.
pub(crate) fn redis_address(url: &str) -> String {
    redis::Client::open(url)
        .map_or_else(|_| "an invalid address".to_owned(), |client| client.get_connection_info().addr().to_string())
}
