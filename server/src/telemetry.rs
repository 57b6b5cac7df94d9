//! Logs: one line per event, readable alone, with dotted field names.

use tracing_subscriber::{EnvFilter, fmt};

/// The log filter if `RUST_LOG` is not set. The libraries named here log every reconnect and every expired cookie as a
/// warning. The server logs the relevant ones of these events itself.
const DEFAULT_LOG_FILTER: &str =
    "info,lapin=off,async_rs=error,tower_sessions=error,tower_sessions_core=error,redis=error,sqlx::query=error";

/// Starts logging to standard error.
///
/// `LOG_FORMAT`: format of the log lines; `json` writes one JSON object per line. Default text.
///
/// `RUST_LOG`: filter of the log lines, in the syntax of `tracing-subscriber`. Default `info`, with the libraries
/// quieter.
pub fn start() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_LOG_FILTER));
    let lines = fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    if std::env::var("LOG_FORMAT").is_ok_and(|format| format == "json") {
        lines.json().init();
    } else {
        lines.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init();
    }
}
