//! Logs: one line per event, readable alone, with dotted field names; and the spans of traces.

use milvaion_telemetry::{LogFormat, SpanSender, TraceSettings};
use tracing_subscriber::EnvFilter;

use crate::config::error::InvalidSettings;

/// The log filter if `RUST_LOG` is not set. The libraries named here log every reconnect and every expired cookie as a
/// warning. The server logs the relevant ones of these events itself.
const DEFAULT_LOG_FILTER: &str =
    "info,lapin=off,async_rs=error,tower_sessions=error,tower_sessions_core=error,redis=error,sqlx::query=error";
/// The name of the server in traces, unless `OTEL_SERVICE_NAME` sets another.
const SERVICE_NAME: &str = "milvaion";

/// Starts logging to standard error, and sending spans if `sends_spans` and a receiver is set. Must be called within the
/// runtime.
///
/// `LOG_FORMAT`: format of the log lines; `json` writes one JSON object per line. Default text.
///
/// `RUST_LOG`: filter of the log lines, in the syntax of `tracing-subscriber`. Default `info`, with the libraries
/// quieter.
///
/// # Errors
///
/// Returns [`InvalidSettings`] with one sentence for each variable of traces that has an invalid value.
pub fn start(sends_spans: bool) -> Result<SpanSender, InvalidSettings> {
    let traces = if sends_spans { TraceSettings::from_env(SERVICE_NAME).map_err(InvalidSettings)? } else { None };
    let logs = LogFormat {
        filter: EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_LOG_FILTER)),
        is_json: std::env::var("LOG_FORMAT").is_ok_and(|format| format == "json"),
        has_target: false,
        writer: std::io::stderr,
    };
    milvaion_telemetry::install(logs, traces.as_ref()).map_err(|error| InvalidSettings(vec![error]))
}
