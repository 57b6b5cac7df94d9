//! The log of a program that has set up none.
//!
//! Everything that a worker does is an event of `tracing`. A program that has no subscriber shows none of them, and the first
//! worker of a new user is such a program. [`Worker::run`](crate::Worker::run) therefore sets a subscriber if there is none. A
//! program that wants silence sets `RUST_LOG=off`, and one that embeds a worker with `run_until` keeps what it has.
//!
//! `RUST_LOG` takes levels of targets, such as `debug` or `info,my_crate=trace`. Filters by span and by field need regular
//! expressions, which a worker would compile for this alone; a program that wants them sets its own subscriber.

use std::io::{self, IsTerminal};

use tracing_subscriber::{
    Layer,
    filter::{LevelFilter, Targets},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use crate::run::capture::CaptureLayer;

/// Sets a subscriber that writes to standard error and copies the events of runs into their logs, unless the program has one.
pub(crate) fn set_default() {
    if tracing::dispatcher::has_been_set() {
        return;
    }
    let filter = filter(std::env::var("RUST_LOG").ok().as_deref());
    // Colors are for people: a file and a collector of logs would store the escape sequences.
    let has_colors = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(has_colors).with_filter(filter);
    // Another thread may have been first; then its subscriber stays.
    let _ = tracing_subscriber::registry().with(lines).with(CaptureLayer::new()).try_init();
}

/// Returns the filter of a value of `RUST_LOG`. Targets that it does not name have the level INFO, and so has everything if it
/// cannot be read.
fn filter(rust_log: Option<&str>) -> Targets {
    let given: Targets = rust_log.and_then(|text| text.parse().ok()).unwrap_or_default();
    let others = given.default_level().unwrap_or(LevelFilter::INFO);
    given.with_default(others)
}

/// Returns host and port of an address of Redis, without its password.
pub(crate) fn redis_address(url: &str) -> String {
    redis::Client::open(url)
        .map_or_else(|_| "an invalid address".to_owned(), |client| client.get_connection_info().addr().to_string())
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn rust_log_sets_levels_of_targets() {
        let shows = |rust_log: Option<&str>, target: &str, level: Level| filter(rust_log).would_enable(target, &level);
        assert!(shows(None, "my_crate", Level::INFO) && !shows(None, "my_crate", Level::DEBUG));
        assert!(!shows(Some("off"), "my_crate", Level::ERROR));
        let both = Some("warn,my_crate=trace");
        assert!(shows(both, "my_crate::jobs", Level::TRACE) && !shows(both, "milvaion_worker", Level::INFO));
        assert!(shows(Some("my_crate=debug"), "milvaion_worker", Level::INFO), "others keep their level");
        assert!(shows(Some("my_crate=loud"), "my_crate", Level::INFO), "it cannot be read");
    }
}
