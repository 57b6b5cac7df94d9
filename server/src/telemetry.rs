//! Logs: one line for each event, readable alone, with dotted fields.

use tracing_subscriber::{EnvFilter, fmt};

/// What is logged unless `RUST_LOG` says otherwise. The libraries named here report every reconnect and every expired
/// cookie as a warning; what matters of that we say ourselves.
const DEFAULT_LOG_FILTER: &str =
    "info,lapin=off,async_rs=error,tower_sessions=error,tower_sessions_core=error,redis=error,sqlx::query=error";

/// Starts logging to standard error. `LOG_FORMAT=json` writes one JSON object a line.
pub fn start() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_LOG_FILTER));
    let lines = fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    if std::env::var("LOG_FORMAT").is_ok_and(|format| format == "json") {
        lines.json().init();
    } else {
        lines.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init();
    }
}
